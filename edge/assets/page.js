import { languages } from "./messages.js";

const POLL_MS_MIN = 2000, POLL_MS_MAX = 15000, CLOCK_MS_MAX = 60000, CALL_MS_MAX = 6000, SNAPSHOT_MS_MAX = 3000;
const TRIES_MAX = 6, RETRY_MS_MAX = 20000, BACKOFF_MS = 400, RESENT_MS_MIN = 50;
const STOPPED = /^(not_started|paused|sold_out|ended)$/;
const LIMITED = /^user_/;
const CLOSED = /^(scheduled|paused|ended|sold_out|loading|error)$/; // in an unknown state the server decides
const SPENT = /^(claim_(expired|returned|revoked)|idempotency_key_reused)$/; // this key cannot win

const $ = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const campaign = query.get("campaign") || "demo";
const path = `/v1/campaigns/${encodeURIComponent(campaign)}`;
const jitter = (ms) => ms * (0.8 + 0.4 * Math.random());

let lang = [query.get("lang"), ...navigator.languages].map((tag) => tag?.slice(0, 2)).find((tag) => languages[tag]) ?? "en";
let token; // null: signed out
let view, etag, failure, clock, user, busy, copied, lastState, pollTimer, polling, seenAt, interval = POLL_MS_MIN;
let kept; // this user's attempt and wins: { key, state: pending | denied | won, unknown, claim, wins: { id: day } }
let outcome; // { kind: won | denied | error (not known), code, problem, claim, at, until }

function load(name) {
	try { return JSON.parse(sessionStorage[`claimgate:${name}`]); } catch {}
}
function save(name, value) {
	try { sessionStorage[`claimgate:${name}`] = JSON.stringify(value); } catch { /* refused */ }
}
const keep = (change) => save(`${campaign}:${user}`, Object.assign(kept, change));
const unsure = () => kept?.state === "pending";

// Status 0: no answer; a proxy's page is {}.
async function call(url, headers, json) {
	const post = json && { method: "POST", body: JSON.stringify(json), headers: { ...headers, "Content-Type": "application/json" } };
	try {
		const reply = await fetch(url, { headers, ...post, cache: "no-store", signal: AbortSignal.timeout(CALL_MS_MAX) });
		const text = await reply.text();
		return { status: reply.status, headers: reply.headers, body: text[0] === "{" ? JSON.parse(text) : {} };
	} catch {
		return { status: 0, headers: new Headers(), body: {} };
	}
}
const bearer = () => ({ Authorization: `Bearer ${token}` });

function problemOf({ status, headers, body }) {
	const wait_ms = headers.get("Retry-After") * 1000 || 0;
	const until = Date.parse(body.resets_at ?? body.starts_at) || now() + wait_ms;
	return { code: body.code ?? (status ? "problem" : "network"), problem: body, wait_ms, until, at: now() };
}

const now = () => Date.now() + (clock?.offset ?? 0); // the server's clock; it decides, as a view may be old

function stateNow() {
	if (view.ends_at && now() >= Date.parse(view.ends_at)) return "ended";
	return view.state === "scheduled" && now() >= Date.parse(view.starts_at) ? "open" : view.state;
}

const nextTurn = () => (now() < Date.parse(view.starts_at) ? view.starts_at : view.ends_at);

function pollIn(ms) {
	clearTimeout(pollTimer);
	if (!document.hidden) pollTimer = setTimeout(refresh, ms);
}

async function refresh() {
	if (polling) return;
	polling = true;
	const sent = Date.now();
	const fresh = !clock || sent - clock.at > CLOCK_MS_MAX; // a 304 brings no server_time
	const reply = await call(path, etag && !fresh ? { "If-None-Match": etag } : {});
	polling = false;
	const { state, version, server_time } = reply.body;
	if (state) {
		const took = Date.now() - sent;
		if (fresh || took < clock.took + 50) clock = { offset: Date.parse(server_time) - sent - took / 2, took, at: sent };
		if (view?.state !== state) interval = POLL_MS_MIN;
		if (!(version < view?.version)) view = reply.body;
		etag = reply.headers.get("ETag");
	}
	const lost = failure;
	failure = state || reply.status === 304 ? null : problemOf(reply);
	if (!failure) seenAt = now();
	interval = Math.abs(Date.parse(view?.starts_at) - now()) < 30000 ? POLL_MS_MIN : Math.min(interval * 1.4, POLL_MS_MAX);
	pollIn(jitter(interval) + (failure?.wait_ms ?? 0));
	render();
	if (lost && !failure && unsure() && !secondsTo(outcome?.until)) claim(); // the network is back
	else if (outcome?.claim?.status === "held") lookUp();
}

function useToken(given) {
	token = given;
	save("token", given);
	user = "me";
	try { user = JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).sub; } catch {}
	kept = load(`${campaign}:${user}`) ?? { wins: {} };
}

async function demoToken() {
	const guest = load("guest") ?? `guest-${randomText(8)}`;
	save("guest", guest);
	const reply = await call("/demo/token", {}, { user_id: guest });
	if (reply.body.token) useToken(reply.body.token);
	else if (/40[1345]/.test(reply.status)) signOut();
	else outcome = { ...problemOf(reply), kind: "error" };
}

function signOut(problem) {
	token = null;
	save("token", null);
	outcome = { ...problem, code: "unauthenticated", kind: "denied" };
}

const randomText = (length) => btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(length)))).replace(/\W/g, "_").slice(0, length);

async function claim() {
	if (busy) return;
	busy = unsure() ? "retrying" : "sending";
	outcome = null;
	render();
	$("result").focus(); // the button goes; what comes is announced from here on
	if (!token) await demoToken();
	if (token) {
		// Stored before it is sent: after a reload it is the same claim, not a first try.
		keep({ unknown: unsure() || kept.unknown, key: kept.key ?? randomText(22), state: "pending" });
		conclude(await askUntilKnown());
	}
	busy = null;
	render();
}

async function askUntilKnown() {
	const giveUpAt = Date.now() + RETRY_MS_MAX;
	for (let tries = 1, renewed = false; ; tries++) {
		const first = !kept.unknown && { "Claimgate-Attempt": "1" };
		performance.clearResourceTimings();
		const answer = judge(await call(`${path}/claims`, { ...bearer(), "Idempotency-Key": kept.key, ...first }, {}));
		let wait = answer.wait_ms + jitter(BACKOFF_MS * 2 ** tries);
		if (answer.kind === "error") {
			keep({ unknown: true });
			busy = "retrying";
		} else if (first && STOPPED.test(answer.code) && wasSentTwice()) {
			keep({ unknown: true });
			wait = 0;
		} else if (answer.code === "unauthenticated" && user === load("guest") && !renewed) {
			renewed = true;
			await demoToken();
			wait = 0;
		} else if (answer.code === "not_started" && answer.until - now() < SNAPSHOT_MS_MAX) {
			wait = Math.max(0, answer.until - now()) + 300 * Math.random(); // our clock is ahead
		} else return answer;
		if (!token || tries >= TRIES_MAX || Date.now() + wait > giveUpAt) return answer;
		render();
		await new Promise((done) => setTimeout(done, wait));
	}
}

// A browser resends by itself when a kept connection is cut; the first copy may have won. The timing shows it.
function wasSentTwice() {
	const lost = (t) => t.domainLookupStart - t.fetchStart + t.requestStart - t.connectEnd;
	return performance.getEntriesByType("resource").some((t) => /claims$/.test(t.name) && lost(t) > RESENT_MS_MIN);
}

function judge(reply) {
	const { status, body } = reply;
	if (status < 300 && body.claim) return { ...fromClaim(body.claim, status === 200), remaining: body.remaining };
	return { ...problemOf(reply), kind: status < 400 || status >= 500 || status === 408 ? "error" : "denied" };
}

function fromClaim(claim, replayed) {
	const won = /^(granted|held)$/.test(claim.status);
	return { kind: won ? "won" : "denied", code: !won ? `claim_${claim.status}` : replayed ? "replayed" : claim.status, claim };
}

function conclude(answer) {
	outcome = answer;
	const { kind, code, claim, remaining } = answer;
	if (kind === "won") {
		keep({ state: "won", claim, wins: { ...kept.wins, [claim.id]: dayOf(claim.claimed_at) } });
		if (view && remaining >= 0) view.remaining = remaining;
	} else if (SPENT.test(code)) {
		if (claim) delete kept.wins[claim.id];
		keep({ state: "denied", key: null, unknown: false });
	} else if (kind === "denied") {
		// Rules are tried after the look for the key; other refusals say nothing of it.
		if (!kept.unknown || claim || STOPPED.test(code) || LIMITED.test(code)) keep({ state: "denied" });
		if (code === "unauthenticated") signOut(answer);
	}
	if (kind === "won" || STOPPED.test(code)) pollIn(jitter(1.25 * SNAPSHOT_MS_MAX)); // till then the edge's view is older
}

async function lookUp() {
	const { id } = outcome.claim;
	const reply = await call(`/v1/claims/${id}`, bearer());
	if (busy || outcome?.claim?.id !== id) return;
	if (reply.body.claim) conclude(fromClaim(reply.body.claim, outcome.code === "replayed"));
	else if (reply.status === 404) {
		delete kept.wins[id];
		keep({ state: "denied", unknown: true });
		outcome = { ...problemOf(reply), code: "claim_not_found", kind: "denied" };
	}
	render();
}

function lapsed({ code, at, until, problem }) {
	if (LIMITED.test(code)) return (until > at && now() >= until) || view?.version > problem?.version;
	return STOPPED.test(code) && seenAt > at + SNAPSHOT_MS_MAX && view && !CLOSED.test(stateNow());
}

const dayOf = (time) => new Intl.DateTimeFormat("en", { timeZone: view?.time_zone }).format(new Date(time));

function mayClaimMore() {
	const { per_user, per_user_per_day } = view.limits;
	const days = Object.values(kept.wins);
	const today = days.filter((day) => day === dayOf(now()));
	return days.length < (per_user ?? 1e9) && today.length < (per_user_per_day ?? 1e9);
}

function show(target, text) {
	const element = target.nodeType ? target : $(target);
	if (element.textContent !== text) element.textContent = text;
}

const moment = (time) => new Date(time).toLocaleString(languages[lang].tag, { weekday: "short", month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });

// Parts between "|" without a value, or with 0, go.
function fill(template, values, joint = "") {
	const known = (part) => [...part.matchAll(/{(\w+)}/g)].every(([, name]) => values[name]);
	const value = (_, name) => name.endsWith("_at") ? moment(values[name]) : values[name].toLocaleString(languages[lang].tag);
	return template.split("|").filter(known).join(joint).replace(/{(\w+)}/g, value);
}

function render() {
	const words = languages[lang];
	if (outcome && lapsed(outcome)) outcome = null;
	const state = view ? stateNow() : failure ? "error" : "loading";
	const shown = busy ? null : outcome ?? (view ? null : failure);
	document.body.dataset.phase = busy ?? shown?.kind ?? state;
	document.documentElement.lang = words.tag;
	$("lang").lang = lang === "en" ? "zh-CN" : "en";
	show("state", words.state[state] ?? (STOPPED.test(state) ? words[state][0] : state));
	$("state").dataset.state = state;
	if (view) renderCampaign(words, state);
	else if (failure) show("name", campaign);
	renderResult(words, shown, state);
	renderButtons(words, shown, state);
	show("user", token ? fill(words.you, { user }) : token === null ? words.unauthenticated[0] : "");
	show("note", view && failure ? words.network[0] : "");
}

function renderCampaign(words, state) {
	const { name, remaining, time_zone, starts_at, limits } = view;
	document.title = name;
	show("name", name);
	show("remaining", remaining?.toLocaleString(words.tag) ?? words.unlimited);
	show("remaining-of", remaining == null ? "" : fill(words.left, limits));
	$("meter").hidden = remaining == null || !limits.total;
	$("meter").value = remaining / limits.total || 0;
	show("limits", words.perPerson + (fill(words.limits, { ...limits, time_zone }, " · ") || words.noLimits));

	const to = state === "ended" ? null : nextTurn();
	const starts = to === starts_at;
	const left = secondsTo(Date.parse(to));
	const parts = [left / 86400, (left / 3600) % 24, (left / 60) % 60, left % 60].map(Math.floor);
	Object.assign($("countdown").dataset, { to: to ? (starts ? "starts" : "ends") : "none", seconds: left });
	show("countdown-label", to ? (starts ? words.opensIn : words.endsIn) : state === "ended" ? words.ended[0] : words.noEnd);
	show("when", fill(words.at, { to_at: to ?? view.ends_at }));
	[...$("countdown").children].forEach((cell, at) => {
		cell.hidden = !at && !parts[0];
		show(cell.firstChild, to ? String(parts[at]).padStart(at && 2, "0") : "--");
		show(cell.lastChild, words.units[at]);
	});
}

function textOf(words, { code, problem, claim, until }) {
	const [title, detail] = words[code] ?? (claim ? words.claim : words.problem);
	const expires_at = claim?.status === "held" && claim.expires_at;
	return [title, fill(detail, { ...view?.limits, ...problem, ...claim, expires_at, seconds: secondsTo(until) })];
}

const secondsTo = (until) => Math.max(0, Math.ceil((until - now()) / 1000)) || 0;

function renderResult(words, shown, state) {
	const told = shown ?? (!busy && STOPPED.test(state) ? { code: state, problem: view } : null);
	const [title, detail] = told ? textOf(words, told) : busy === "retrying" ? words.asking : [busy ? words.button.sending : "", words.idle];
	const won = shown?.kind === "won" && shown.claim;
	$("result").dataset.code = shown?.code ?? "";
	$("result").classList.toggle("told", busy === "retrying" || (told && !won));
	show("yours", words.yours);
	show("no", won ? "No." : "");
	show("sequence", String(won ? won.sequence : "—"));
	$("sequence").style.setProperty("--digits", $("sequence").textContent.length);
	$("message").ariaLive = told === shown ? "polite" : "off"; // #state announces the campaign's
	show("message", title);
	show("detail", detail);
	$("proof").hidden = !won;
	show("claim-id", won ? won.id : "");
	show("copy", won && copied === won.id ? words.copied : words.copy);
	show("request", fill(words.request, shown?.problem ?? {}));
}

function renderButtons(words, shown, state) {
	const { code, kind, until } = shown ?? {};
	const done = kind === "won" || SPENT.test(code);
	const stuck = unsure() || kind === "error" || /^(rate_limited|claim_not_found)$/.test(code);
	const again = !busy && token !== null && (done ? state === "open" && mayClaimMore() : stuck);
	const seconds = secondsTo(until);
	$("again").hidden = !again;
	$("again").disabled = seconds > 0;
	show("again", done ? words.another : fill(words.again, { seconds }));
	const refused = STOPPED.test(code) || LIMITED.test(code) ? code : CLOSED.test(state) ? state : null;
	const label = busy || (token === null ? "unauthenticated" : refused);
	$("claim").hidden = again || done;
	$("claim").disabled = label;
	show("claim", words.button[label ?? "open"] ?? words.state[label] ?? (words[label] ?? words.problem)[0]);
}

// A crowd sees the state turn at once: it asks spread out.
function tick() {
	const state = view && stateNow();
	if (lastState && state !== lastState) pollIn(Math.random() * 800);
	lastState = state;
	render();
	const left = (view && Date.parse(nextTurn()) - now()) || 0;
	setTimeout(tick, (left > 0 ? left % 1000 : 1000) + 5);
}

$("claim").onclick = claim;
$("again").onclick = () => {
	if (outcome?.kind === "won") keep({ key: null, unknown: false, state: "denied" }); // another claim: a new key
	claim();
};
$("copy").onclick = async () => {
	getSelection().selectAllChildren($("claim-id"));
	const id = $("claim-id").textContent;
	await navigator.clipboard.writeText(id); // refused: it stays selected
	copied = id;
	render();
};
$("lang").onclick = () => {
	lang = lang === "en" ? "zh" : "en";
	query.set("lang", lang);
	history.replaceState(null, "", `?${query}`);
	render();
};
document.onvisibilitychange = window.ononline = () => {
	interval = POLL_MS_MIN;
	if (clock) clock.at = 0; // it may have slept
	pollIn(secondsTo(failure?.until) * 1000);
};
window.onhashchange = () => location.reload();

render();
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) history.replaceState(null, "", location.pathname + location.search);
const known = given ?? load("token");
await Promise.all([refresh(), known ? useToken(known) : demoToken()]);
if (kept?.state === "won") outcome = fromClaim(kept.claim);
tick();
if (unsure()) claim();
else if (outcome?.claim) lookUp();
