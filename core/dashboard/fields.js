// The fields of a campaign's form: from a campaign to their texts, and from the texts to the body of a request. Core
// checks the values, so a text that is no number is sent as it is.

export const LIMITS = ["total", "per_user", "per_user_per_day", "per_claim"];

// All fields, by the names that core gives them in its errors. `isFixed`: cannot be changed after the creation.
export const FIELDS = [
	{ name: "id", kind: "text", isFixed: true }, { name: "name", kind: "text" },
	{ name: "starts_at", kind: "time" }, { name: "ends_at", kind: "time" },
	...LIMITS.map((limit) => ({ name: `limits.${limit}`, kind: "number" })),
	{ name: "time_zone", kind: "zone", isFixed: true }, { name: "hold_seconds", kind: "number" },
	{ name: "pass", kind: "pass" }, { name: "pass.until", kind: "time" },
	{ name: "codes", kind: "check", isFixed: true },
];
export const PASSES = ["never", "always", "until"];

export const browserZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

// Formats a time as the value of a field of the browser's local time, with milliseconds only if there are any.
function localTime(time) {
	if (!time) return "";
	const date = new Date(time);
	return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 23).replace(".000", "");
}

// Returns the texts for a new campaign.
export const newTexts = () => ({ ...textsOf({ limits: {} }), time_zone: browserZone() });

// Returns the texts for `campaign`, by field; "" or "1" for a checkbox.
export function textsOf({ id = "", name = "", starts_at, ends_at, time_zone = "", limits, hold_seconds, pass, codes }) {
	const numbers = LIMITS.map((limit) => [`limits.${limit}`, String(limits[limit] ?? "")]);
	return {
		id, name, starts_at: localTime(starts_at), ends_at: localTime(ends_at), ...Object.fromEntries(numbers), time_zone,
		hold_seconds: String(hold_seconds ?? ""), pass: pass?.required ?? PASSES[0], "pass.until": localTime(pass?.until), codes: codes ? "1" : "",
	};
}

// Returns the texts for a copy of `campaign`, without its id, times in the past and codes.
export function textsOfCopy(campaign, now) {
	const later = (time) => (Date.parse(time) > now ? time : null);
	const { starts_at, ends_at, limits, pass, codes } = campaign;
	const times = { starts_at: later(starts_at), ends_at: later(ends_at), pass: pass && { ...pass, until: later(pass.until) } };
	return textsOf({ ...campaign, ...times, id: "", limits: codes ? { ...limits, total: 0 } : limits });
}

const numberOf = (text) => (/^\d+$/.test(text) ? Number(text) : text || null);

// A year of more than four digits is left for core to refuse.
const timeOf = (text) => (Number.isNaN(Date.parse(text)) ? text || null : new Date(text).toISOString());

function passOf(texts) {
	if (texts.pass === PASSES[0]) return null;
	return texts.pass === "until" ? { required: "until", until: timeOf(texts["pass.until"]) } : { required: texts.pass };
}

// Returns the value of each member in the texts, with one level of nesting: the limits.
function membersOf(texts) {
	const limits = Object.fromEntries(LIMITS.map((limit) => [limit, numberOf(texts[`limits.${limit}`])]));
	return {
		id: texts.id, name: texts.name, starts_at: timeOf(texts.starts_at), ends_at: timeOf(texts.ends_at), time_zone: texts.time_zone,
		limits, hold_seconds: numberOf(texts.hold_seconds), pass: passOf(texts), codes: Boolean(texts.codes),
	};
}

// Returns whether any of the limits is set without which the units are unlimited.
export const hasLimits = (texts) => ["total", "per_user", "per_user_per_day"].some((limit) => texts[`limits.${limit}`]);

// Returns the body that creates a campaign.
export const creation = (texts) => membersOf(texts);

// Returns the names of the fields whose texts differ.
export const changedFields = (before, after) => FIELDS.map(({ name }) => name).filter((name) => before[name] !== after[name]);

// Returns the body that changes a campaign of this `version`: only the members whose fields differ. An empty start is sent as
// it is, so that core refuses it: `null` would mean no change.
export function change(before, after, version) {
	const members = membersOf(after), body = { version };
	for (const field of changedFields(before, after)) {
		const [member, limit] = field.split(".");
		if (member === "limits") body.limits = { ...body.limits, [limit]: members.limits[limit] };
		else body[member] = member === "starts_at" ? members.starts_at ?? "" : members[member];
	}
	return body;
}
