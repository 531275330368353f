// The history of a campaign in a dialog: what was added and by how much, and every other change of its rules.

import { read } from "./calls.js";
import { $, element, exact, fill, moment, number, show, whenClosed, words } from "./display.js";
import { LIMITS } from "./fields.js";

const PAGE = 1000, PAGES_MAX = 5;
const TIMES = ["starts_at", "ends_at"];

let shown; // the dialog's history: { campaign, token, onUnauthorized, items, isCut, problem, language }

// Opens the history of `campaign`. `caller` is { token, onUnauthorized }; `onUnauthorized` is called if the token is no
// longer valid.
export async function openHistory(campaign, caller) {
	const history = { campaign, ...caller, items: [], isCut: false, problem: "readingHistory" };
	shown = history;
	$("history-items").replaceChildren();
	showHistory();
	$("history").showModal();
	const isRead = await readAll(history);
	history.problem = isRead ? "" : "noHistoryRead";
	if (shown === history) showHistory();
}

export function closeHistory() {
	if ($("history").open) $("history").close();
}

// Reads the items from the oldest on; returns whether all reads succeeded.
async function readAll(history) {
	for (let after = "0", pages = 0; after; pages++) {
		if (pages === PAGES_MAX) {
			history.isCut = true;
			return true;
		}
		const query = new URLSearchParams({ campaign_id: history.campaign.id, claims: false, limit: PAGE, after });
		const page = await read(`/admin/v1/audit?${query}`, "application/json", "json", history);
		if (!page) return false;
		history.items.push(...page.items);
		after = page.next_cursor;
	}
	return true;
}

// Writes the dialog's texts; also called after a change of language.
export function showHistory() {
	if (!shown) return;
	const said = words(), { campaign, items, isCut, problem } = shown;
	show("history-title", fill(said.historyOf, campaign));
	show("history-problem", problem ? said[problem] : isCut ? fill(said.historyCut, { shown: items.length }) : "");
	show("history-sums", problem || isCut ? "" : sumsOf(items));
	if (problem === "readingHistory" || shown.language === said.tag) return; // the lines stay the same
	shown.language = said.tag;
	$("history-items").replaceChildren(...items.map(lineOf).reverse());
}

const totalOf = (rules) => rules?.limits?.total ?? null;

// Returns the units that an addition added, negative if it removed them; null for any other change.
function unitsOf({ what, before, after }) {
	return what === "add" ? totalOf(after) - totalOf(before) : null;
}

// Describes how the total came about: at the creation, by all changes since, and now.
function sumsOf(items) {
	const isLimited = ({ before, after }) => totalOf(before) !== null && totalOf(after) !== null;
	const rises = items.filter(isLimited).map(({ before, after }) => totalOf(after) - totalOf(before));
	const sum = (of) => rises.filter(of).reduce((all, one) => all + Math.abs(one), 0);
	const total = (rules) => (totalOf(rules) === null ? words().unlimited : number(totalOf(rules)));
	const last = items.findLast(({ after }) => after.limits);
	return last ? fill(words().historySums, { first: total(items[0].after), added: sum((one) => one > 0), removed: sum((one) => one < 0) || null, total: total(last.after) }) : "";
}

function lineOf(item) {
	const said = words(), { at, who, what } = item;
	const units = unitsOf(item);
	const did = units ? fill(units > 0 ? said.historyAdded : said.historyRemoved, { units: Math.abs(units), total: totalOf(item.after) }) : said.whats[what] ?? what;
	const changes = item.before && units === null ? differences(item.before, item.after) : [];
	const object = units ? [] : [element("code", { textContent: shown.campaign.id })];
	return element("li", {}, element("time", { dateTime: at, textContent: moment(at) }), " ", element("b", { textContent: who }), ` ${did} `, ...object,
		...changes.map((text) => element("small", { textContent: text })));
}

// Describes each member that differs. The state of an admin is what the change itself says.
function differences(before, after) {
	const flat = ({ limits, ...rules }) => ({ ...rules, ...Object.fromEntries(LIMITS.map((limit) => [`limits.${limit}`, limits?.[limit] ?? null])) });
	const [old, now] = [flat(before), flat(after)];
	const names = Object.keys(words().fields).filter((name) => name in now && JSON.stringify(old[name]) !== JSON.stringify(now[name]));
	return names.map((name) => fill(words().historyChange, { field: words().fields[name], before: textOf(name, old[name]), after: textOf(name, now[name]) }));
}

function textOf(name, value) {
	const said = words();
	if (name === "pass") return value ? fill(said.passRules[value.required], { at: value.until && exact(value.until) }) : said.passes.never;
	if ((value ?? null) === null) return said.none;
	if (TIMES.includes(name)) return exact(value);
	return typeof value === "number" ? number(value) : String(value);
}

$("history-close").onclick = closeHistory;
whenClosed("history", () => { shown = null; });
