// Formats and displays texts, in the language of `words` (messages.js), and asks the visitor.

const MINUTE = { hour: "numeric", minute: "2-digit" };
const write = ({ tag }, time, parts) => new Date(time).toLocaleString(tag, parts);

export const $ = (id) => document.getElementById(id);

export function show(target, text) {
	const element = target.nodeType ? target : $(target);
	if (element.textContent !== text) element.textContent = text;
}

export const minute = (words, time) => write(words, time, MINUTE);
export const moment = (words, time) => write(words, time, { weekday: "short", month: "short", day: "numeric", ...MINUTE });

// Returns the display name of the time zone, in languages that use one.
export function zoneName({ tag, zones }, timeZone) {
	try {
		return zones && (zones[timeZone] ?? new Intl.DateTimeFormat(tag, { timeZone, timeZoneName: "longGeneric" }).formatToParts().find(({ type }) => type === "timeZoneName").value);
	} catch { /* the browser does not know the zone */ }
}

// Shows the brand's name and logo in the header.
export function showBrand({ brand }) {
	show("brand", brand);
	const { dataset } = document.documentElement;
	if (!dataset.brand) return;
	delete dataset.brand;
	document.title ||= brand;
	const { logo } = window.claimgateBrand;
	if (logo) $("logo").src = logo;
	else $("logo").hidden = true;
}

// Shows the links in the footer: those of the brand, and the list of campaigns if any are listed.
export function showLinks(words) {
	const list = window.claimgateListed?.length && `/campaigns/?lang=${words.tag.slice(0, 2)}`;
	const urls = { ...words.links, list };
	const links = [...$("links").children];
	for (const link of links) {
		const url = urls[link.id];
		link.hidden = !url;
		if (url) link.href = url;
		show(link, words[link.id]);
	}
	$("links").hidden = links.every(({ hidden }) => hidden);
}

// Sets the language of the page, and of the button that switches to the other one.
export function showLanguage({ tag }) {
	document.documentElement.lang = tag;
	$("lang").lang = tag === "en" ? "zh-CN" : "en";
}

// Puts the other language into the URL, and returns it.
export function switchLanguage(lang, query) {
	const other = lang === "en" ? "zh" : "en";
	query.set("lang", other);
	history.replaceState(null, "", `?${query}`);
	return other;
}

// Fills in the template. Drops parts between "|" with a value that is missing or 0.
export function fill(words, template, values, joint = "") {
	const known = (part) => [...part.matchAll(/{(\w+)}/g)].every(([, name]) => values[name]);
	const value = (_, name) => name.endsWith("_at") ? moment(words, values[name]) : values[name].toLocaleString(words.tag);
	return template.split("|").filter(known).join(joint).replace(/{(\w+)}/g, value);
}

// Shows the `left` seconds until the time `to`, if there is one.
export function showCountdown(words, { label, kind, to, left }) {
	const parts = [left / 86400, (left / 3600) % 24, (left / 60) % 60, left % 60].map(Math.floor);
	Object.assign($("countdown").dataset, { to: kind, seconds: left });
	show("countdown-label", label);
	show("when", fill(words, words.at, { to_at: to }));
	[...$("countdown").children].forEach((cell, at) => {
		cell.hidden = !at && !parts[0];
		show(cell.firstChild, to ? String(parts[at]).padStart(at && 2, "0") : "--");
		show(cell.lastChild, words.units[at]);
	});
}

// Asks the visitor, signed in as `user`, whether to switch to another user.
export async function wantsToSwitch(words, { user, other }) {
	show("ask-text", fill(words, words.otherUser, { user, other }));
	show("stay", fill(words, words.stay, { user }));
	show("switch", fill(words, words.switchTo, { other }));
	for (const choice of ["stay", "switch"]) $(choice).onclick = () => $("ask").close(choice);
	$("ask").showModal();
	await new Promise((closed) => { $("ask").onclose = closed; });
	return $("ask").returnValue === "switch";
}
