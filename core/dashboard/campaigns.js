// The table of campaigns. A campaign's row stays the same element for as long as it is shown.

import { fold } from "./folds.js";
import { hasRole } from "./roles.js";
import { $, clock, element, fill, minute, number, rate, show, words } from "./display.js";
import { NO_TREND, PARTS, trendOf } from "./trends.js";

const STATES = ["open", "sold_out", "paused", "scheduled", "ended"];
// The links of each campaign, besides the one to its page, and the role that each needs; `isFor`: only for such campaigns.
const LINKS = [
	{ verb: "claims", least: "viewer" }, { verb: "report", least: "viewer" }, { verb: "history", least: "viewer" }, { verb: "codes", least: "viewer", isFor: ({ codes }) => codes }, { verb: "edit", least: "admin" }, { verb: "clone", least: "admin" },
	{ verb: "archive", least: "admin", isFor: ({ state, archived }) => state === "ended" && !archived }, { verb: "unarchive", least: "admin", isFor: ({ archived }) => archived },
];
const rows = new Map();

// Shows `listed` to a caller with this role, with links to the claim page if its address is known. A pressed button
// calls `act(verb, campaign)`.
export function showCampaigns(listed, { total, role, pageUrl, act }) {
	const text = $("find").value.trim().toLowerCase();
	for (const campaign of listed) {
		const row = rows.get(campaign.id) ?? build(campaign.id, pageUrl, act);
		Object.assign(row, { campaign, ...(campaign.as_of ? NO_TREND : trendOf(campaign.id)) });
	}
	const ids = new Set(listed.map(({ id }) => id));
	for (const [id, row] of rows) if (!ids.has(id)) drop(id, row);
	const shown = arranged().filter(({ campaign }) => !text || `${campaign.id} ${campaign.name}`.toLowerCase().includes(text));
	place(shown);
	for (const row of shown) fillRow(row, role);
	$("new").hidden = !hasRole(role, "admin");
	show("role-note", words().roleNotes[role] ?? "");
	showNotes(listed.filter(({ as_of }) => !as_of).length, total, shown.length, text);
}

// Returns the typed text if it may be the id of a campaign that is not listed, otherwise null.
export function searchedId() {
	const text = $("find").value.trim();
	return /^[\w-]{1,64}$/.test(text) && !(rows.has(text) && !rows.get(text).campaign.as_of) ? text : null;
}

export function forgetCampaigns() {
	for (const [id, row] of rows) drop(id, row);
}

function drop(id, row) {
	row.row.remove();
	rows.delete(id);
}

function showNotes(listed, total, shown, text) {
	show("campaigns-note", fill(listed < total ? words().campaignsMore : words().campaignsNote, { listed, total }));
	show("none", shown ? "" : text ? fill(words().notFound, { text: $("find").value.trim() }) : words().noCampaigns);
}

// Sorts by state, then by activity in powers of ten, so that rows rarely move.
function arranged() {
	const busy = ({ peak }) => Math.ceil(Math.log10(1 + peak));
	const order = ({ campaign }) => STATES.indexOf(campaign.state);
	return [...rows.values()].sort((one, other) => order(one) - order(other) || busy(other) - busy(one) || (one.campaign.id < other.campaign.id ? -1 : 1));
}

// Does not move rows while the pointer or the focus is in the table.
function place(shown) {
	const body = $("rows");
	const wanted = shown.map(({ row }) => row);
	for (const row of [...body.children]) if (!wanted.includes(row)) row.remove();
	if (body.matches(":hover") || body.contains(document.activeElement) || $("ask").open) {
		for (const row of wanted) if (!row.isConnected) body.append(row);
	} else if (wanted.some((row, at) => body.children[at] !== row)) body.append(...wanted);
}

function build(id, pageUrl, act) {
	const cell = (name, ...children) => element("td", { className: name, role: "cell" }, ...children);
	const name = element("b"), code = element("code", { textContent: id }), rules = element("small", { className: "rules" });
	const link = pageUrl ? element("a", { href: `${pageUrl}/?campaign=${id}`, target: "_blank", rel: "noopener" }) : "";
	const links = Object.fromEntries(LINKS.map(({ verb }) => [verb, linkButton(verb, () => act(verb, rows.get(id).campaign))]));
	const more = element("details", { className: "fold more" }, element("summary", {}, name, code), rules, element("p", { className: "links" }, link, ...Object.values(links)));
	fold(more);
	const state = element("span", { className: "state" }), note = element("small");
	const speed = element("b"), line = trendLine();
	const left = element("b"), of = element("small"), meter = element("progress", { max: 1, value: 0 });
	const backlog = element("span");
	const buttons = Object.fromEntries(["turn", "add", "end"].map((kind) => [kind, element("button", { type: "button", className: kind })]));
	const head = element("th", { scope: "row", role: "rowheader" }, more);
	const cells = { state: cell("", state, note), speed: cell("wide speed", speed, line), left: cell("left", left, " ", of, meter), backlog: cell("backlog", backlog), actions: cell("actions", ...Object.values(buttons)) };
	const row = { row: element("tr", { role: "row" }, head, ...Object.values(cells)), name, link, links, rules, state, note, speed, line, left, of, meter, backlog, buttons, cells };
	row.row.dataset.id = id;
	buttons.turn.onclick = () => act(row.campaign.state === "paused" ? "resume" : "pause", row.campaign);
	buttons.add.onclick = () => act("add", row.campaign);
	buttons.end.onclick = () => act("end", row.campaign);
	rows.set(id, row);
	return row;
}

function fillRow(row, role) {
	const { campaign, cells } = row;
	const { name, state, remaining, limits, claims_per_s, backlog, ready, import_unfinished, claims_without_codes, as_of, archived } = campaign;
	const said = words();
	show(row.name, name);
	if (row.link) show(row.link, said.openPage);
	fillLinks(row, role);
	show(row.rules, rulesOf(campaign));
	show(row.state, said.states[state] ?? state);
	row.state.dataset.state = state;
	const isOver = state === "ended" && remaining === null;
	show(row.note, import_unfinished ? said.importing : !ready && !isOver ? said.notReady : as_of ? fill(archived ? said.archived : said.notLive, { at: clock(as_of) }) : claims_without_codes ? fill(said.withoutCodes, { claims_without_codes }) : "");
	row.row.classList.toggle("unknown", !ready);
	show(row.speed, rate(claims_per_s));
	drawTrend(row.line, row.trend);
	show(row.left, remaining !== null ? number(remaining) : limits.total === null ? said.unlimited : said.unknown);
	show(row.of, limits.total === null || remaining === null ? "" : fill(said.ofTotal, { total: limits.total }));
	row.meter.hidden = limits.total === null || remaining === null;
	row.meter.value = remaining / limits.total || 0;
	row.meter.ariaLabel = `${said.left} ${row.left.textContent} ${row.of.textContent}`;
	show(row.backlog, number(backlog));
	for (const [kind, label] of [["speed", "claimsPerS"], ["left", "left"], ["backlog", "backlog"]]) cells[kind].dataset.label = said[label];
	fillButtons(row, role);
}

function linkButton(verb, onclick) {
	return element("button", { type: "button", className: `link ${verb}`, onclick });
}

function fillLinks({ links, campaign }, role) {
	for (const { verb, least, isFor = () => true } of LINKS) {
		show(links[verb], words()[verb]);
		links[verb].ariaLabel = fill(words().ofCampaign, { verb: words()[verb], name: campaign.name });
		links[verb].hidden = !hasRole(role, least) || !isFor(campaign);
	}
}

// Describes when the campaign is open, and the limits per person.
function rulesOf({ state, starts_at, ends_at, time_zone, limits }) {
	const said = words();
	const times = state === "scheduled" ? [said.opensAt, starts_at] : state === "ended" ? [ends_at && said.endedAt, ends_at] : [ends_at ? said.endsAt : said.noEnd, ends_at];
	const each = [said.perUser, said.perDay, said.perClaim].map((part) => fill(part, { ...limits, time_zone })).filter(Boolean).join(", ");
	return [times[0] && fill(times[0], { at: minute(times[1]) }), each ? fill(said.perPerson, { limits: each }) : said.noLimits].filter(Boolean).join(" · ");
}

// Shows the buttons that the caller's role allows; core checks the role again.
function fillButtons({ buttons, campaign, cells }, role) {
	const may = (least) => hasRole(role, least) && campaign.state !== "ended";
	const turn = campaign.state === "paused" ? "resume" : "pause";
	const verbs = { turn: may("operator") && turn, add: may("operator") && campaign.limits.total !== null && "add", end: may("admin") && "end" };
	for (const [kind, verb] of Object.entries(verbs)) {
		buttons[kind].hidden = !verb;
		if (!verb) continue;
		show(buttons[kind], words()[verb]);
		buttons[kind].ariaLabel = fill(words().ofCampaign, { verb: words()[verb], name: campaign.name });
	}
	cells.actions.classList.toggle("empty", !Object.values(verbs).some(Boolean));
}

const SVG = "http://www.w3.org/2000/svg";

function trendLine() {
	const svg = document.createElementNS(SVG, "svg");
	svg.setAttribute("viewBox", `0 0 ${PARTS} 16`);
	svg.setAttribute("preserveAspectRatio", "none");
	svg.setAttribute("aria-hidden", "true");
	svg.append(document.createElementNS(SVG, "polyline"));
	return svg;
}

function drawTrend(svg, trend) {
	const most = Math.max(1, ...trend.values());
	const points = [...trend].map(([part, per_s]) => `${part},${15 - (14 * per_s) / most}`);
	svg.firstChild.setAttribute("points", points.join(" "));
}
