// Lists the campaigns that the brand files name (docs/own-page.md), each as the server reports it. Ended campaigns and
// those that do not exist are left out.

import { ClaimgateClient } from "../client/claimgate.js";
import { $, fill, show, showBrand, showLanguage, showLinks, switchLanguage } from "../display.js";
import { languageOf, languages } from "../messages.js";

const POLL_MS = 15000, POLL_MS_MIN = 3000;

const query = new URLSearchParams(location.search);
const client = new ClaimgateClient();
const { hash } = location; // may contain a token or pass, which is for the campaigns' pages
const ids = window.claimgateListed ?? [];
const rows = new Map(ids.map((id) => [id, $("row").content.firstElementChild.cloneNode(true)]));
const views = new Map(); // the last view of each campaign that exists, by id

let lang = languageOf(query);
let failure, isLoaded, isPolling, pollTimer, nextPollAt = 0;

// Reads a campaign's view. Returns the error if its state is unknown.
async function read(id) {
	try {
		views.set(id, await client.campaign(id, { known: views.get(id) }));
	} catch (error) {
		if (error.code !== "campaign_not_found") return error;
		views.delete(id);
	}
}

function pollIn(ms) {
	clearTimeout(pollTimer);
	pollTimer = setTimeout(poll, Math.max(ms, nextPollAt - performance.now()));
}

async function poll() {
	if (isPolling || document.hidden) return;
	isPolling = true;
	const failures = (await Promise.all(ids.map(read))).filter(Boolean);
	isPolling = false;
	isLoaded = true;
	failure = failures[0];
	render();
	const wait = Math.max(0, ...failures.map(({ retryAfterMs }) => retryAfterMs));
	nextPollAt = performance.now() + Math.max(POLL_MS_MIN, wait);
	pollIn(POLL_MS * (0.8 + 0.4 * Math.random()) + wait);
}

function render() {
	const words = languages[lang];
	showLanguage(words);
	showBrand(words);
	showLinks(words);
	document.title = words.list;
	show("title", words.list);
	const known = ids.map((id) => views.get(id)).filter((view) => view && view.state !== "ended");
	const shown = known.sort((one, other) => Date.parse(one.starts_at) - Date.parse(other.starts_at));
	for (const view of shown) renderRow(words, view);
	place(shown.map(({ id }) => rows.get(id)));
	show("notice", notice(words, shown.length));
}

function notice(words, count) {
	if (failure) return [(failure.code === "network" ? words.network : words.not_configured)[0], words.loading].join(words.full);
	if (!isLoaded) return words.state.loading;
	return count ? "" : words.noneListed;
}

function renderRow(words, view) {
	const [link] = rows.get(view.id).children;
	const [name, state, detail] = link.children;
	const target = new URLSearchParams(query);
	target.set("campaign", view.id);
	link.href = `/?${target}${hash}`;
	link.dataset.state = view.state;
	show(name, view.name);
	show(state, words.state[view.state] ?? words[view.state]?.[0] ?? view.state);
	show(detail, fill(words, words.offer[view.state] ?? "", view, " · "));
}

// Replaces the rows of the list only if they differ: a link that is moved loses the focus.
function place(wanted) {
	const list = $("campaigns");
	const isPlaced = wanted.length === list.children.length && wanted.every((row, at) => row === list.children[at]);
	if (!isPlaced) list.replaceChildren(...wanted);
}

$("lang").onclick = () => {
	lang = switchLanguage(lang, query);
	render();
};
document.onvisibilitychange = window.ononline = () => pollIn(0);
window.onhashchange = () => location.reload();
if (hash) history.replaceState(null, "", location.pathname + location.search);
render();
poll();
