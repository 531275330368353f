import { ClaimgateClient, newKey, userOf } from "./claimgate.js";
import { languages } from "./messages.js";

const POLL_MS_MIN = 2000, POLL_MS_MAX = 15000, CLOCK_MS_MAX = 60000, SNAPSHOT_MS_MAX = 3000, EARLY_TRIES_MAX = 6;
const LOOK_MS_MIN = 3000, LOOK_AGAIN_MS = 15000, CROWD_MS = 8000, OTHERS_MAX = 5;
const STOPPED = /^(not_started|paused|sold_out|ended)$/;
const LIMITED = /^user_/;
const CLOSED = /^(scheduled|paused|ended|sold_out|loading|error)$/; // in an unknown state the server decides
const SPENT = /^(claim_(expired|returned|revoked)|idempotency_key_reused)$/; // this key cannot win
const ACTIVE = /^(granted|held)$/;

const $ = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const campaign = query.get("campaign") || "demo";
const client = new ClaimgateClient({ token: currentToken });
const jitter = (ms) => ms * (0.8 + 0.4 * Math.random());

let lang = [query.get("lang"), ...navigator.languages].map((tag) => tag?.slice(0, 2)).find((tag) => languages[tag]) ?? "en";
let token; // null: signed out
let view, failure, clock, user, busy, slowed = null, copied, lastState, pollTimer, polling, seenAt, interval = POLL_MS_MIN;
let pending; // a claim is without an answer: asking again is the same claim
let outcome; // { kind: won | denied | error (not known), code, problem, claim, at, until }
let own; // the user's claims and what is left to the user, as last looked up: { items, allowance }
let lookTimer, lookFrom = 0, claimsMade = 0;

// The token is this tab's, the demo's guest and the last claim are all tabs'.
function load(name, box = "localStorage") {
	try { return JSON.parse(window[box][`claimgate:${name}`]); } catch {}
}
function save(name, value, box = "localStorage") {
	try { window[box][`claimgate:${name}`] = JSON.stringify(value); } catch { /* refused */ }
}
const lastClaim = () => `last:${campaign}:${user}`;

function problemOf({ code, status, problem, retryAfterMs }) {
	const kind = status < 400 || status >= 500 || status === 408 ? "error" : "denied";
	const until = Date.parse(problem.resets_at ?? problem.starts_at) || now() + retryAfterMs;
	return { kind, code, problem, wait_ms: retryAfterMs, until, at: now() };
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
	const sent = Date.now(), lost = failure, version = view?.version;
	const fresh = !clock || sent - clock.at > CLOCK_MS_MAX; // a view that has not changed brings no server_time
	try {
		const seen = await client.campaign(campaign, { known: fresh ? undefined : view });
		if (seen !== view) take(seen, sent, fresh);
		failure = null;
		seenAt = now();
	} catch (error) {
		failure = problemOf(error);
	}
	polling = false;
	interval = Math.abs(Date.parse(view?.starts_at) - now()) < 30000 ? POLL_MS_MIN : Math.min(interval * 1.4, POLL_MS_MAX);
	pollIn(jitter(interval) + (failure?.wait_ms ?? 0));
	render();
	if (lost && !failure && pending && token && !secondsTo(outcome?.until)) claim(); // the network is back
	else if (version && view.version !== version) lookUpIn(spread());
	else if (outcome?.claim?.status === "held") lookUpIn(0);
}

function take(seen, sent, fresh) {
	const took = Date.now() - sent;
	if (fresh || took < clock.took + 50) clock = { offset: Date.parse(seen.server_time) - sent - took / 2, took, at: sent };
	if (view?.state !== seen.state) interval = POLL_MS_MIN;
	if (!(seen.version < view?.version)) view = seen;
}

function useToken(given) {
	token = given;
	save("token", given, "sessionStorage");
	user = userOf(given);
}

async function currentToken(refused) {
	if (refused && user === load("guest")) await demoToken();
	return token;
}

async function demoToken() {
	const user_id = load("guest") ?? `guest-${newKey().slice(-8)}`;
	save("guest", user_id);
	const post = { method: "POST", body: JSON.stringify({ user_id }), headers: { "Content-Type": "application/json" } };
	const reply = await fetch("/demo/token", { ...post, signal: AbortSignal.timeout(6000) }).catch(() => ({}));
	const given = reply.ok && (await reply.json().catch(() => ({}))).token;
	if (given) useToken(given);
	else if (/40[1345]/.test(reply.status)) signOut();
	else if (!token) outcome = { kind: "error", code: reply.status ? "overloaded" : "network", at: now() };
}

function signOut(problem) {
	token = null;
	save("token", null, "sessionStorage");
	outcome = { ...problem, code: "unauthenticated", kind: "denied" };
}

async function claim() {
	if (busy) return;
	busy = pending ? "retrying" : "sending";
	outcome = null;
	claimsMade++;
	render();
	$("result").focus(); // the button goes; what comes is announced from here on
	if (!token) await demoToken();
	if (token) conclude(await ask());
	busy = slowed = null;
	render();
}

async function ask() {
	for (let tries = 1; ; tries++) {
		try {
			const { claim, remaining, replayed } = await client.claim(campaign, { onRetry });
			pending = false;
			return { ...fromClaim(claim, replayed), remaining };
		} catch (error) {
			const answer = problemOf(error);
			const wait = answer.until - now();
			pending = error.outcomeUnknown;
			if (answer.code !== "not_started" || wait > SNAPSHOT_MS_MAX || tries === EARLY_TRIES_MAX) return answer;
			await new Promise((done) => setTimeout(done, Math.max(0, wait) + 300 * Math.random())); // our clock is ahead
		}
	}
}

function onRetry(error, wait) {
	busy = "retrying";
	slowed = error.code === "rate_limited" ? { ...problemOf(error), until: now() + wait } : null;
	render();
}

function fromClaim(claim, replayed) {
	const won = ACTIVE.test(claim.status);
	return { kind: won ? "won" : "denied", code: !won ? `claim_${claim.status}` : replayed ? "replayed" : claim.status, claim };
}

function conclude(answer) {
	outcome = answer;
	const { kind, code, claim, remaining } = answer;
	if (claim) save(lastClaim(), claim);
	if (kind === "won" && view && remaining >= 0) view.remaining = remaining;
	if (code === "unauthenticated") signOut(answer);
	if (kind === "won" || STOPPED.test(code)) pollIn(jitter(1.25 * SNAPSHOT_MS_MAX)); // till then the edge's view is older
	if (kind !== "won" && !LIMITED.test(code)) return;
	if (own) own.allowance = null; // looked up again
	lookUpIn(kind === "won" ? 2000 * Math.random() : spread());
}

// Thousands load the page at an opening, when core has claims to decide: look-ups come spread out.
const spread = () => Math.random() * (!view || stateNow() === "open" ? CROWD_MS : 1000);

function lookUpIn(ms) {
	clearTimeout(lookTimer);
	lookTimer = setTimeout(lookUp, Math.max(ms, lookFrom - performance.now()));
}

async function lookUp() {
	if (!token || document.hidden) return;
	if (busy) return lookUpIn(LOOK_MS_MIN);
	const before = claimsMade;
	lookFrom = performance.now() + LOOK_MS_MIN;
	try {
		const found = await client.claims(campaign);
		if (before !== claimsMade) return lookUpIn(0); // a claim made since may be missing
		own = found;
		showOwn();
	} catch (error) {
		const answer = problemOf(error);
		if (answer.kind === "error" || answer.code === "rate_limited") {
			lookFrom = performance.now() + Math.max(answer.wait_ms, jitter(LOOK_AGAIN_MS));
			lookUpIn(0);
		} else if (answer.code === "unauthenticated" && !busy) signOut(answer);
	}
	render();
}

// A claim that is shown is shown as it now stands; else the newest that counts is.
function showOwn() {
	const { items, next_cursor } = own;
	const shown = outcome?.claim;
	const found = items.find(({ id }) => id === shown?.id);
	if (found) outcome = fromClaim(found, outcome.code === "replayed");
	else if (shown && !next_cursor) outcome = { kind: "denied", code: "claim_not_found", at: now() };
	const newest = items.find(({ status }) => ACTIVE.test(status)) ?? items[0];
	if (newest && !outcome) outcome = fromClaim(newest);
	save(lastClaim(), newest ?? null);
}

// Units that the user's limits leave; undefined while that is not known.
function leftToUser() {
	const { per_user_per_day, per_user } = own?.allowance ?? {};
	return own?.allowance && Math.min(per_user_per_day ?? Infinity, per_user ?? Infinity);
}

// The limit that refuses the user's next claim, as the refusal would say it.
function foreseen() {
	if (leftToUser() !== 0) return null;
	const { per_user, resets_at } = own.allowance;
	return { kind: "denied", ...(per_user === 0 ? { code: "user_limit_reached" } : { code: "user_daily_limit_reached", problem: { resets_at } }) };
}

function lapsed({ code, at, until, problem }) {
	if (LIMITED.test(code)) return (until > at && now() >= until) || view?.version > problem?.version;
	return STOPPED.test(code) && seenAt > at + SNAPSHOT_MS_MAX && view && !CLOSED.test(stateNow());
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
	const shown = busy ? slowed : outcome ?? (view ? (STOPPED.test(state) ? null : foreseen()) : failure);
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
	renderOwn(words, shown, state);
}

function renderOwn(words, shown, state) {
	const others = (own?.items ?? []).filter(({ id, status }) => !busy && id !== shown?.claim?.id && ACTIVE.test(status));
	const numbers = others.slice(0, OTHERS_MAX).map(({ sequence }) => sequence).join(", ") + (others.length > OTHERS_MAX ? " …" : "");
	show("others", fill(words.others, { numbers }));
	const told = !busy && shown?.claim && state === "open";
	const refusal = foreseen();
	const left = leftToUser();
	show("left", !told ? "" : refusal ? textOf(words, refusal).join(words.full) : left < Infinity ? fill(words.more, { left }) : "");
}

function renderButtons(words, shown, state) {
	const { code, kind, until } = shown ?? {};
	const done = kind === "won" || SPENT.test(code);
	const stuck = pending || kind === "error" || /^(rate_limited|claim_not_found)$/.test(code);
	const again = !busy && token !== null && (done ? state === "open" && (kind === "won" ? leftToUser() > 0 : leftToUser() !== 0) : stuck);
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
	if (now() >= Date.parse(own?.allowance?.resets_at)) {
		own.allowance = null;
		lookUpIn(spread());
	}
	render();
	const left = (view && Date.parse(nextTurn()) - now()) || 0;
	setTimeout(tick, (left > 0 ? left % 1000 : 1000) + 5);
}

$("claim").onclick = claim;
$("again").onclick = claim;
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
	lookUpIn(spread());
};
window.onhashchange = () => location.reload();

render();
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) history.replaceState(null, "", location.pathname + location.search);
const known = given ?? load("token", "sessionStorage");
await Promise.all([refresh(), known ? useToken(known) : demoToken()]);
if (token) {
	pending = await client.isPending(campaign);
	const last = load(lastClaim());
	if (last) outcome = fromClaim(last);
}
tick();
if (pending) claim();
else lookUpIn(spread());
