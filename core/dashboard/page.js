// The dashboard: signs in, follows core's events, and shows them.

import { ask, closeOutcomes, closeQuestion, showQuestion } from "./actions.js";
import { forgetCampaigns, searchedId, showCampaigns } from "./campaigns.js";
import { closeClaims, openClaims } from "./claims.js";
import { closeCodes, openCodes, showCodes } from "./codes.js";
import { drawCharts, redrawCharts } from "./charts.js";
import { foldAll } from "./folds.js";
import { closeForm, openForm, showForm } from "./form.js";
import { closeHistory, openHistory, showHistory } from "./history.js";
import { closeReport, openReport, showReport } from "./report.js";
import { follow } from "./stream.js";
import { record, recordPast } from "./trends.js";
import { $, age, clock, element, fill, moment, number, rate, show, showFixedTexts, switchLanguage, words } from "./display.js";

const STALE_MS = 3500, SEARCH_MS = 2000, REASONS_MAX = 8, STORED = "claimgate:admin-token";

let token = stored();
let watcher; // the signed-in caller: { name, role, version, page_url }
let snapshot, receivedAt; // the last snapshot, and when it arrived by the monotonic clock
let trouble; // why there is no stream: { key, seconds }
let known = {}; // the last audit from SQL, and its time
let searched, searchedAt = 0; // a campaign that is not listed
let following;

function stored() {
	try { return sessionStorage.getItem(STORED); } catch { return null; }
}
function store(value) {
	try { value ? sessionStorage.setItem(STORED, value) : sessionStorage.removeItem(STORED); } catch { /* storage is not allowed: it stays in memory */ }
}

async function signIn(given) {
	token = given;
	trouble = null;
	following?.abort();
	following = new AbortController();
	closeOutcomes(); // an upload of the previous user may have ended since
	render();
	const status = await follow("/admin/v1/live", token, following.signal, { onEvent, onLost });
	if (status) signOut(status === 403 ? "forbidden" : watcher ? "withdrawn" : "unauthenticated");
}

function signOut(problem) {
	following?.abort();
	following = null;
	store(null);
	closeQuestion();
	closeReport();
	closeClaims();
	closeCodes();
	closeForm();
	closeHistory();
	closeOutcomes();
	forgetCampaigns();
	redrawCharts();
	token = watcher = snapshot = searched = null;
	known = {};
	trouble = problem ? { key: problem } : null;
	render();
	$("token").value = "";
	$("token").focus();
}

function onEvent(name, data) {
	trouble = null;
	if (name === "watcher") {
		const isNew = !watcher;
		watcher = data;
		store(token);
		render();
		if (isNew) $("board").focus();
	} else if (name === "trends") recordPast(data);
	else if (name === "snapshot") onSnapshot(data);
}

function onSnapshot(data) {
	snapshot = data;
	receivedAt = performance.now();
	if (data.audit) known = { at: data.at, audit: data.audit };
	const refused = data.refusals.by_reason.reduce((sum, { per_s }) => (per_s === null ? sum : (sum ?? 0) + per_s), data.refusals.by_reason.length ? null : 0);
	const { claims_per_s, listed } = data.campaigns;
	record(data.at, { granted: claims_per_s, refused, outbox: data.outbox?.events }, listed.map((one) => [one.id, one.claims_per_s]));
	lookUpSearched();
	render();
}

const troubleOf = ({ status, code }) => (code === "overloaded" ? "busy" : status === 503 ? "starting" : watcher ? "lost" : "unreachable");

function onLost(why, pause) {
	trouble = { key: troubleOf(why), seconds: Math.ceil(pause / 1000) };
	render();
}

// Reads a campaign that is not among the busiest by its id.
async function lookUpSearched() {
	const id = searchedId();
	if (!id) searched = null;
	if (!id || performance.now() - searchedAt < SEARCH_MS) return;
	searchedAt = performance.now();
	const reply = await fetch(`/admin/v1/campaigns/${id}`, { headers: { Authorization: `Bearer ${token}` } }).catch(() => null);
	if (id !== searchedId()) return;
	searched = reply?.ok ? { ...(await reply.json()), claims_per_s: null, as_of: Date.now() } : null;
	render();
}

function render() {
	const isIn = Boolean(watcher);
	document.body.dataset.view = isIn ? "board" : "sign-in";
	$("sign-in").hidden = isIn;
	$("board").hidden = $("sign-out").hidden = !isIn;
	showFixedTexts();
	showQuestion();
	showReport();
	showForm();
	showHistory();
	showCodes();
	show("who", isIn ? fill(words().signedInAs, { ...watcher, role: words().roles[watcher.role] ?? watcher.role }) : "");
	show("token-problem", isIn || !trouble ? "" : fill(words()[trouble.key], trouble));
	show("token-send", token && !isIn && !trouble ? words().signingIn : words().signIn);
	renderConnection(isIn);
	if (snapshot) renderSnapshot();
}

function renderConnection(isIn) {
	const age = snapshot ? performance.now() - receivedAt : 0;
	const isStale = isIn && Boolean(snapshot) && (Boolean(trouble) || age > STALE_MS);
	const state = trouble ? "lost" : isStale ? "late" : snapshot ? "live" : "connecting";
	document.body.dataset.connection = isIn ? state : "none";
	document.title = isIn ? `${isStale ? "⚠ " : ""}${words().board} · claimgate` : "claimgate";
	show("connection", !isIn ? "" : trouble ? fill(words()[trouble.key], trouble) : words()[state]);
	$("stale").hidden = !isStale;
	show("stale", isStale ? fill(words().stale, { seconds: Math.round(age / 1000) }) : "");
}

function renderSnapshot() {
	const { campaigns } = snapshot;
	renderFigures();
	drawCharts();
	renderRefusals();
	const listed = searched && !campaigns.listed.some(({ id }) => id === searched.id) ? [...campaigns.listed, searched] : campaigns.listed;
	showCampaigns(listed, { total: campaigns.total, role: watcher?.role, pageUrl: watcher?.page_url, act });
	renderStores();
	renderCores();
	renderAudit();
}

function act(verb, campaign) {
	const used = token;
	const onUnauthorized = () => {
		if (token === used) signOut("withdrawn"); // unless another caller has signed in since
	};
	if (["create", "edit", "clone"].includes(verb)) openForm(verb, campaign, { token: used, onUnauthorized });
	else if (verb === "history") openHistory(campaign, { token: used, onUnauthorized });
	else if (verb === "report") openReport(campaign, used, onUnauthorized);
	else if (verb === "claims") openClaims(campaign, watcher.role, used, onUnauthorized);
	else if (verb === "codes") openCodes(campaign, watcher.role, { token: used, onUnauthorized });
	else ask(verb, { campaign }, { token: used, onUnauthorized });
}

function figure(name, value, note, tone = "") {
	const tile = document.querySelector(`[data-figure=${name}]`);
	show(tile.querySelector("b"), value);
	show(tile.querySelector("small"), note);
	tile.dataset.tone = tone;
}

const reasonOf = (code) => words().reasons[code] ?? code;

function renderFigures() {
	const said = words();
	const { campaigns, refusals, outbox, redis, sql, cores } = snapshot;
	figure("claims", rate(campaigns.claims_per_s), said.granted);
	const known = refusals.by_reason.filter(({ per_s }) => per_s !== null);
	const most = known.reduce((top, one) => (one.per_s > (top?.per_s ?? 0) ? one : top), null);
	figure("refused", known.length || !refusals.by_reason.length ? rate(known.reduce((sum, { per_s }) => sum + per_s, 0)) : "–", most ? fill(said.mostly, { reason: reasonOf(most.code) }) : said.noneRefused);
	figure("open", number(campaigns.open), fill(said.ofCampaigns, campaigns));
	figure("outbox", number(outbox?.events), !outbox ? said.unknown : outbox.events ? fill(said.oldest, { age: age(outbox.oldest_age_ms) }) : said.emptyOutbox, outbox?.oldest_age_ms > 5000 ? "warn" : "");
	const up = redis.nodes.filter(({ state }) => state === "up").length;
	const total = redis.nodes.length;
	const short = missing(redis.replication);
	const isWhole = redis.state === "up" && up === total;
	figure("redis", redis.state === "up" && !isWhole ? fill(said.nodesUp, { up, total }) : said[redis.state], short ? fill(said.replicasMissing, { missing: short }) : replicasAsked(), !isWhole ? "bad" : short ? "warn" : "good");
	figure("sql", said[sql.state], sql.state === "up" ? sql.kind : said.waits, sql.state === "up" ? "good" : "bad");
	const serving = cores.filter(({ state }) => state === "up");
	const versions = new Set(serving.map(({ version }) => version));
	figure("cores", number(serving.length), versions.size === 1 ? fill(said.oneVersion, { version: [...versions][0] }) : fill(said.versions, { versions: versions.size }), serving.length < cores.length ? "warn" : "good");
}

const replicasAsked = () => {
	const asked = snapshot.redis.replication?.replicas_min;
	return asked === undefined ? "" : asked ? fill(words().replicasAsked, { replicas_min: asked }) : words().noReplicas;
};

// Counts the required replicas that are down or have fallen behind.
function missing(replication) {
	const lacks = ({ set, replicas }) => (set?.members ?? []).filter((name) => !replicas.some(({ replica, keeps_up }) => replica === name && keeps_up)).length;
	return (replication?.primaries ?? []).reduce((sum, primary) => sum + lacks(primary), 0) + (replication?.orphans ?? []).reduce((sum, { members }) => sum + members.length, 0);
}

function renderRefusals() {
	const { by_reason, cores } = snapshot.refusals;
	const at_edges = by_reason.reduce((sum, one) => sum + one.at_edges, 0);
	show("refusals-note", fill(snapshot.sql.state === "up" ? words().refusalsNote : words().refusalsAlone, { cores, at_edges }));
	const reasons = by_reason.filter(({ count }) => count).sort((one, other) => other.count - one.count).slice(0, REASONS_MAX);
	const most = Math.max(1, ...reasons.map(({ count }) => count));
	replace("reasons", reasons.length ? reasons.map(({ code, count, per_s }) => element("li", {},
		element("span", { textContent: reasonOf(code) }), element("b", { textContent: number(count) }),
		element("small", { textContent: per_s === null ? "" : fill(words().perS, { per_s: rate(per_s) }) }),
		element("progress", { max: most, value: count, ariaHidden: "true" }))) : [element("li", { className: "note", textContent: words().noRefusals })]);
}

// Replaces a list's items only if they differ.
function replace(id, items) {
	const text = (list) => [...list].map((item) => item.outerHTML).join("");
	if (text(items) !== text($(id).children)) $(id).replaceChildren(...items);
}

function fact(state, name, label, ...notes) {
	const badge = element("span", { className: "badge", textContent: label });
	badge.dataset.tone = state;
	const lines = notes.filter(Boolean).map((note) => element("small", { textContent: note }));
	return element("li", {}, element("code", { textContent: name }), badge, ...lines);
}

function renderStores() {
	const { redis, sql } = snapshot;
	const said = words();
	const tone = (state) => (state === "up" ? "good" : "bad");
	const notes = (address) => {
		const primary = redis.replication?.primaries.find((one) => one.primary === address);
		const names = (keeps_up) => primary?.replicas.filter((one) => one.keeps_up === keeps_up).map(({ replica }) => replica).join(", ");
		return [primary?.refused && said.refusedPrimary, names(true) && fill(said.replicas, { names: names(true) }), names(false) && fill(said.behind, { names: names(false) })];
	};
	const nodes = redis.nodes.length ? redis.nodes : [{ address: "Redis", state: redis.state }];
	replace("nodes", [...nodes.map(({ address, state }) => fact(tone(state), address, said[state], ...notes(address))), fact(tone(sql.state), sql.kind, said[sql.state], sql.state === "up" ? "" : said.waits)]);
	show("replication", replicasAsked());
}

function renderCores() {
	const said = words();
	replace("cores", snapshot.cores.map(({ name, state, version, started_at, is_this, decisions_per_s }) => fact(state === "up" ? "good" : "warn", name, said[state],
		[is_this && said.thisCore, version, fill(said.since, { at: moment(started_at) })].filter(Boolean).join(" · "),
		decisions_per_s === null ? "" : fill(said.decisions, { per_s: rate(decisions_per_s) }))));
	show("cores-note", snapshot.sql.state === "up" ? "" : said.coresNote);
}

function renderAudit() {
	const said = words();
	const did = ({ what, units }) => (units ? fill(units > 0 ? said.addedUnits : said.tookUnits, { units: Math.abs(units) }) : said.whats[what] ?? what);
	const line = ({ at, who, campaign_id, claim_id, webhook_id, reason, ...change }) => element("li", {},
		element("time", { dateTime: at, textContent: moment(at) }), " ", element("b", { textContent: who }), ` ${did(change)} `,
		element("code", { textContent: campaign_id ?? said.allCampaigns, title: claim_id ?? webhook_id ?? "" }), reason ? `: ${reason}` : "");
	replace("changes", (known.audit ?? []).map(line));
	show("audit-note", snapshot.audit ? (known.audit.length ? "" : said.noChanges) : known.at ? fill(said.auditNote, { at: clock(known.at) }) : said.unknown);
}

$("token-form").onsubmit = (event) => {
	event.preventDefault();
	const given = $("token").value.trim();
	if (given) return signIn(given);
	trouble = { key: "tokenMissing" };
	render();
	$("token").focus();
};
$("sign-out").onclick = () => signOut();
$("lang").onclick = () => {
	switchLanguage();
	redrawCharts();
	render();
};
$("new").onclick = () => act("create");
$("find").oninput = () => {
	searchedAt = 0;
	searched = null;
	render();
};
$("find-form").onsubmit = (event) => {
	event.preventDefault();
	searchedAt = 0;
	lookUpSearched();
};
matchMedia("(prefers-color-scheme: dark)").onchange = () => {
	redrawCharts();
	render();
};
foldAll();
setInterval(() => renderConnection(Boolean(watcher)), 500);

render();
if (token) signIn(token);
else $("token").focus();
