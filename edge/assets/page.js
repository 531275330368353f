import { ClaimgateClient, newKey, userOf } from "./client/claimgate.js";
import { languageOf, languages } from "./messages.js";
import { load, save } from "./storage.js";
import {
	$, fill, minute, moment, show, showBrand, showCountdown, showLanguage, showLinks, switchLanguage, wantsToSwitch, zoneName,
} from "./display.js";

const POLL_MS_MIN = 2000, POLL_MS_MAX = 15000, CLOCK_MS_MAX = 60000, SNAPSHOT_MS_MAX = 3000, EARLY_TRIES_MAX = 6;
const LOOKUP_MS_MIN = 3000, LOOKUP_RETRY_MS = 15000, LOOKUP_SPREAD_MS = 8000, OTHERS_MAX = 5, WARNING_S = 300;
const RESULT_SHOWN_MS = 8000; // of a hold, until the next held claim is shown
const OPENING_MS = 30000; // the page polls most often from this time before the opening until this time after it
const STOPPED = /^(not_started|paused|sold_out|ended)$/;
const LIMITED = /^user_/;
const LACKS_PASS = /^(pass_required|no_pass|insecure)$/;
const CLOSED = /^(scheduled|paused|ended|sold_out|loading|error)$/; // in any other state the server decides
const SPENT = /^(claim_(expired|returned|revoked)|idempotency_key_reused)$/; // a claim with this key can no longer be granted
const ACTIVE = /^(granted|held)$/;

const query = new URLSearchParams(location.search);
const campaign = query.get("campaign");
const NO_USER = userOf("");
const client = new ClaimgateClient({ token: currentToken });
const jitter = (ms) => ms * (0.8 + 0.4 * Math.random());

let lang = languageOf(query);
let token; // null if signed out
let signInUrl; // where a visitor without a token signs in, if anywhere
let view, failure, clock, user, busy, slowed = null, copied, lastState, pollTimer, polling, refreshedAt, interval = POLL_MS_MIN;
let pending; // a claim's outcome is unknown: a retry is the same claim
let outcome; // { kind: won | denied | error (unknown), code, problem, claim, at, until }
let own; // the user's claims and allowance from the last lookup: { items, allowance }
let passes; // the visitor's passes, if the campaign requires one
let lookupTimer, nextLookupAt = 0, claimsMade = 0, codesWait = LOOKUP_MS_MIN, dueWait = LOOKUP_MS_MIN;

const lastClaim = () => `last:${campaign}:${user}`;

function problemOf({ code, status, problem, retryAfterMs }) {
	const kind = status < 400 || status >= 500 || status === 408 ? "error" : "denied";
	const until = Date.parse(problem.resets_at ?? problem.starts_at) || now() + retryAfterMs;
	return { kind, code, problem, wait_ms: retryAfterMs, until, at: now() };
}

const now = () => Date.now() + (clock?.offset ?? 0); // the server's time, by which claims are decided

function stateNow() {
	if (view.ends_at && now() >= Date.parse(view.ends_at)) return "ended";
	return view.state === "scheduled" && now() >= Date.parse(view.starts_at) ? "open" : view.state;
}

const nextBoundary = () => (now() < Date.parse(view.starts_at) ? view.starts_at : view.ends_at);

function pollIn(ms) {
	clearTimeout(pollTimer);
	if (!document.hidden) pollTimer = setTimeout(refresh, ms);
}

// Schedules the next poll. The brand may make polls rare, but not while the page waits for a response or a payment.
function pollLater() {
	const mayBeRare = !failure && !pending && shownStatus() !== "held";
	const max = (mayBeRare && window.claimgateBrand?.refreshMs) || POLL_MS_MAX;
	const untilOpening = Date.parse(view?.starts_at) - now();
	interval = Math.abs(untilOpening) < OPENING_MS ? POLL_MS_MIN : Math.min(interval * 1.4, max);
	let wait = jitter(interval);
	// A long wait ends soon after the frequent polls begin: at a random time, so that pages do not poll together.
	if (interval > POLL_MS_MAX && untilOpening > OPENING_MS) {
		wait = Math.min(wait, untilOpening - OPENING_MS + POLL_MS_MAX * Math.random());
	}
	pollIn(wait + (failure?.wait_ms ?? 0));
}

async function refresh() {
	if (polling || !campaign) return;
	polling = true;
	const sent = Date.now(), lastFailure = failure, version = view?.version;
	// An unchanged view has no new server_time. The browser's clock may have been set back.
	const resync = !clock || Math.abs(sent - clock.at) > CLOCK_MS_MAX;
	try {
		const fetched = await client.campaign(campaign, { known: resync ? undefined : view });
		if (fetched !== view) acceptView(fetched, sent, resync);
		failure = null;
		refreshedAt = now();
	} catch (error) {
		failure = problemOf(error);
	}
	polling = false;
	pollLater();
	render();
	if (lastFailure && !failure && pending && token && !secondsTo(outcome?.until)) claim(); // the network is back
	else if (version && view.version !== version) lookUpIn(lookupDelay());
	else if (shownStatus() === "held") lookUpIn(0);
}

function acceptView(fetched, sent, resync) {
	const roundTrip = Date.now() - sent;
	if (resync || roundTrip < clock.roundTrip + 50) clock = { offset: Date.parse(fetched.server_time) - sent - roundTrip / 2, roundTrip, at: sent };
	if (view?.state !== fetched.state) interval = POLL_MS_MIN;
	if (!(fetched.version < view?.version)) view = fetched;
	if (view.pass) loadPasses();
}

async function loadPasses() {
	if (passes) return passes;
	const { Passes } = await import("./pass/pass.js");
	const ask = (path, options) => askAsUser(`/v1/campaigns/${encodeURIComponent(campaign)}${path}`, options);
	passes ??= new Passes({ campaign, ask, now, changed: render, box: $("widget"), language: () => languages[lang].tag });
	passes.update(view, token && user);
	return passes;
}

// Gets a pass if a claim needs one, and returns whether the claim may be sent. A claim that may have been granted is
// sent without a pass: the server finds it.
async function getPass() {
	if (pending || !view?.pass) return true;
	const loaded = await loadPasses();
	loaded.update(view, user);
	return loaded.state === "none" || loaded.current || loaded.get();
}

// Returns a new pass, not the one that the server rejected.
async function renewPass() {
	const loaded = await loadPasses();
	loaded.drop();
	loaded.update(view, user);
	await loaded.get();
	return loaded.current;
}

function useToken(given) {
	token = given;
	save("token", given, "sessionStorage");
	user = userOf(given);
}

async function currentToken(rejected) {
	if (rejected && user === load("guest")) await demoToken();
	return token;
}

async function ask(path, options) {
	return fetch(path, { ...options, signal: AbortSignal.timeout?.(6000) }).catch(() => ({}));
}

async function askAsUser(path, { isAnonymous, headers, ...options } = {}) {
	return ask(path, { ...options, headers: isAnonymous ? headers : { ...headers, Authorization: `Bearer ${token}` } });
}

const unanswered = ({ status }) => ({ kind: "error", code: status ? "overloaded" : "network", at: now() });

// For a visitor without a token: offers to sign in, or else gets a demo token. Returns the problem if neither is
// possible.
async function welcome() {
	const reply = await findSignIn();
	if (reply.ok) signOut();
	else if (reply.status === 404) return demoToken();
	else return unanswered(reply);
}

async function findSignIn() {
	const reply = await ask("/sign-in/settings");
	if (reply.ok) signInUrl = (await reply.json().catch(() => ({}))).url;
	return reply;
}

// Gets a demo token if the edge has them. Otherwise returns the problem.
async function demoToken() {
	const user_id = load("guest") ?? `guest-${newKey().slice(-8)}`;
	save("guest", user_id);
	const post = { method: "POST", body: JSON.stringify({ user_id }), headers: { "Content-Type": "application/json" } };
	const reply = await ask("/demo/token", post);
	const given = reply.ok && (await reply.json().catch(() => ({}))).token;
	if (given) useToken(given);
	else if (/40[1345]/.test(reply.status)) signOut();
	else if (!token) return unanswered(reply);
}

function signOut(problem) {
	token = null;
	save("token", null, "sessionStorage");
	passes?.drop();
	outcome = { ...problem, code: "unauthenticated", kind: "denied" };
	own = null;
	if (!signInUrl) findSignIn().then(render);
}

async function claim() {
	if (busy) return;
	busy = pending ? "retrying" : "sending";
	outcome = null;
	claimsMade++;
	render();
	$("result").focus(); // the button disappears; screen readers continue with the result
	if (!token) outcome = (await welcome()) ?? outcome;
	if (token) conclude(await sendClaim());
	busy = slowed = null;
	render();
}

async function sendClaim() {
	if (!(await getPass())) return passDenial() ?? { kind: "denied", code: "no_pass", at: now() };
	for (let tries = 1; ; tries++) {
		try {
			const { claim, remaining, replayed } = await client.claim(campaign, { onRetry, pass: (wasRejected) => (wasRejected ? renewPass() : passes?.current) });
			pending = false;
			return { ...fromClaim(claim, replayed), remaining };
		} catch (error) {
			const answer = problemOf(error);
			const wait = answer.until - now();
			pending = error.outcomeUnknown;
			if (answer.code !== "not_started" || wait > SNAPSHOT_MS_MAX || tries === EARLY_TRIES_MAX) return answer;
			await new Promise((done) => setTimeout(done, Math.max(0, wait) + 300 * Math.random())); // our clock is ahead of the server's
		}
	}
}

// Without a view, only loads the campaign: the user has not seen it yet, so there is nothing to claim.
async function tryAgain() {
	if (view || pending) return claim();
	interval = POLL_MS_MIN;
	await refresh();
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
	if (claim) keep(claim);
	codesWait = LOOKUP_MS_MIN;
	if (kind === "won" && view && remaining >= 0) view.remaining = remaining;
	if (code === "unauthenticated") signOut(answer);
	if (kind === "won" || STOPPED.test(code)) pollIn(jitter(1.25 * SNAPSHOT_MS_MAX)); // until then the edge may serve an older view
	else if (pending && !failure) pollLater(); // the next poll may be minutes away
	if (kind !== "won" && !LIMITED.test(code)) return;
	if (own) own.allowance = null; // out of date
	lookUpIn(kind === "won" ? 2000 * Math.random() : lookupDelay());
}

// A random delay for lookups: when a campaign opens, thousands load the page while core is busy with claims.
const lookupDelay = () => Math.random() * (!view || stateNow() === "open" ? LOOKUP_SPREAD_MS : 1000);

const shownStatus = () => outcome?.claim?.status;

// Looks up the claims of a visitor who opens the page or returns to it, without a delay if a held claim is shown: it may
// have been paid for meanwhile.
const lookUpForVisitor = () => lookUpIn(shownStatus() === "held" ? 0 : lookupDelay());

function lookUpIn(ms) {
	clearTimeout(lookupTimer);
	lookupTimer = setTimeout(lookUp, Math.max(ms, nextLookupAt - performance.now()));
}

async function lookUp() {
	if (!token || document.hidden) return;
	if (busy) return lookUpIn(LOOKUP_MS_MIN);
	const before = claimsMade;
	nextLookupAt = performance.now() + LOOKUP_MS_MIN;
	try {
		const found = await client.claims(campaign);
		if (before !== claimsMade) return lookUpIn(0); // the result may lack a claim made meanwhile
		own = found;
		showOwnClaims();
	} catch (error) {
		const answer = problemOf(error);
		if (answer.kind === "error" || answer.code === "rate_limited") {
			nextLookupAt = performance.now() + Math.max(answer.wait_ms, jitter(LOOKUP_RETRY_MS));
			lookUpIn(0);
		} else if (answer.code === "unauthenticated" && !busy) signOut(answer);
	}
	render();
}

// Updates the claim that is shown. If there is none, shows the newest active one. A held claim, which the user must
// still complete, precedes all others. But if the shown claim is no longer held, its new status is shown first.
function showOwnClaims() {
	const { items, next_cursor } = own;
	const shown = outcome?.claim;
	const found = items.find(({ id }) => id === shown?.id);
	if (found) outcome = fromClaim(found, outcome.code === "replayed");
	else if (shown && !next_cursor) outcome = { kind: "denied", code: "claim_not_found", at: now() };
	const held = items.find(({ status }) => status === "held");
	const first = held ?? items.find(({ status }) => ACTIVE.test(status)) ?? items[0];
	const status = shownStatus();
	const precedes = held && status && status !== "held";
	if (first && (!outcome || (precedes && shown.status === status))) outcome = fromClaim(first);
	else if (precedes) lookUpIn(RESULT_SHOWN_MS);
	keep(first);
	if (isDue(outcome?.claim)) {
		// The server still holds it: this page's clock may be wrong, or the server is late.
		clock.at = 0;
		pollIn(0);
		nextLookupAt = performance.now() + jitter(dueWait);
		dueWait = Math.min(dueWait * 2, LOOKUP_RETRY_MS);
	} else dueWait = LOOKUP_MS_MIN;
	if (!items.some(lacksCodes)) return;
	lookUpIn(jitter(codesWait));
	codesWait = Math.min(codesWait * 2, LOOKUP_RETRY_MS);
}

const codesOf = ({ codes }) => codes ?? [];
const lacksCodes = (claim) => view?.codes && claim.status === "granted" && !codesOf(claim).length;

// Keeps a claim for the next visit, without its codes.
const keep = (claim) => save(lastClaim(), claim ? { ...claim, codes: undefined } : null);

// Returns the units that the limits leave the user; null or undefined while unknown.
function leftToUser() {
	const { per_user_per_day, per_user } = own?.allowance ?? {};
	return own?.allowance && Math.min(per_user_per_day ?? Infinity, per_user ?? Infinity);
}

// Returns the denial of each claim if the visitor cannot get a pass here.
function passDenial() {
	if (passes?.state === "missing") return { kind: "denied", code: "pass_required", problem: { until_at: view.pass?.until }, at: now() };
	return passes?.state === "insecure" ? { kind: "denied", code: "insecure", at: now() } : null;
}

// Returns the denial that the user's next claim would get because of a missing pass or the user's limits, if any.
function nextDenial() {
	const denial = passDenial();
	if (denial || leftToUser() !== 0) return denial;
	const { per_user, resets_at } = own.allowance;
	return { kind: "denied", ...(per_user === 0 ? { code: "user_limit_reached" } : { code: "user_daily_limit_reached", problem: { resets_at } }) };
}

// Returns whether the claim's hold should have expired. Only the server knows whether it has: the hold may have been
// confirmed or extended.
const isDue = (claim) => claim?.status === "held" && clock && now() >= Date.parse(claim.expires_at);

function isOutdated({ code, at, until, problem }) {
	if (LIMITED.test(code)) return (until > at && now() >= until) || view?.version > problem?.version;
	if (LACKS_PASS.test(code)) return passes?.current || passes?.state === "none";
	return STOPPED.test(code) && refreshedAt > at + SNAPSHOT_MS_MAX && view && !CLOSED.test(stateNow());
}

// Returns the text for a granted claim: what proves it, or the state of its codes.
function proofOf({ status, codes }, words) {
	if (status !== "granted") return "";
	return view?.codes ? words.codes[codes?.length ? 1 : 0] : words.keepId;
}

// Returns the text for a held claim: when the hold expires, how much time is left, and what to do. Without the server's
// clock, the time that is left is unknown.
function holdOf({ status, expires_at }, words) {
	if (status !== "held") return "";
	const left = clock ? secondsTo(Date.parse(expires_at)) : 0;
	const parts = { hours: Math.floor(left / 3600), minutes: Math.floor(left / 60) % 60, seconds: left % 60 };
	const isToday = clock && new Date(expires_at).toDateString() === new Date(now()).toDateString();
	return fill(words, words.hold, {
		until: isToday ? minute(words, expires_at) : moment(words, expires_at),
		left: fill(words, words.span, parts).trim(),
		next: words.buy[words.links.checkout ? 1 : 0],
	});
}

// Returns the warning that the hold expires soon. Its text changes once, because screen readers read each change.
function warningOf(claim, words) {
	const left = secondsTo(Date.parse(claim?.expires_at));
	if (claim?.status !== "held" || !clock || !left || left > WARNING_S) return "";
	return fill(words, words.hurry, { minutes: left > 60 ? WARNING_S / 60 : 1 });
}

function render() {
	const words = languages[lang];
	if (outcome && isOutdated(outcome)) outcome = null;
	const state = view ? stateNow() : failure ? "error" : "loading";
	const unloaded = !view && failure && (!outcome || outcome.code === "unauthenticated") ? failure : null;
	// After the end, a visitor signs in only to see a claim.
	const answer = state === "ended" && outcome?.code === "unauthenticated" ? null : outcome;
	const shown = busy ? slowed : unloaded ?? answer ?? (view && !STOPPED.test(state) ? nextDenial() : null);
	document.body.dataset.phase = busy ?? shown?.kind ?? state;
	showLanguage(words);
	showBrand(words);
	showLinks(words);
	show("state", state === "error" ? "" : words.state[state] ?? (STOPPED.test(state) ? words[state][0] : state));
	$("state").dataset.state = state;
	if (view) renderCampaign(words, state);
	else if (failure) show("name", campaign || words.brand);
	renderResult(words, shown, state);
	renderButtons(words, shown, state);
	show("user", token ? fill(words, words.you, { user }) : "");
	show("sign-out", words.signOut);
	$("sign-out").hidden = !token || user === load("guest");
	show("note", view && failure ? textOfFailure(words)[0] : "");
}

function renderCampaign(words, state) {
	const { name, remaining, time_zone, starts_at, limits } = view;
	document.title = name;
	show("name", name);
	document.querySelector(".stock").hidden = state === "ended"; // nothing is on offer after the end
	show("remaining-label", remaining == null ? "" : words.leftLabel);
	show("remaining", remaining?.toLocaleString(words.tag) ?? words.unlimited);
	show("remaining-of", remaining == null || limits.total == null ? "" : fill(words, words.left, limits));
	$("meter").hidden = remaining == null || !limits.total;
	$("meter").value = remaining / limits.total || 0;
	show("limits", words.perPerson + (fill(words, words.limits, { ...limits, zone: zoneName(words, time_zone) ?? time_zone }, " · ") || words.noLimits));

	const to = state === "ended" ? null : nextBoundary();
	const starts = to === starts_at;
	const label = to ? (starts ? words.opensIn : words.endsIn) : state === "ended" ? "" : words.noEnd;
	showCountdown(words, { label, kind: to ? (starts ? "starts" : "ends") : "none", to, left: secondsTo(Date.parse(to)) });
}

function textOfAnswer(words, { code, problem, claim, until }) {
	const [title, detail] = isDue(claim) ? words.due : words[code] ?? (claim ? words.claim : words.problem);
	const isUnsure = code === "held" && !clock; // a hold from the last visit may be over
	const proof = claim && proofOf(claim, words);
	const texts = { proof, code: view?.codes && proof, hold: claim && holdOf(claim, words), seconds: secondsTo(until) };
	return [isUnsure ? words.due[0] : title, fill(words, detail, { ...view?.limits, ...problem, ...claim, ...texts })];
}

// Returns the texts for a campaign that could not be loaded. Nothing was claimed, so no outcome is unknown.
function textOfFailure(words) {
	if (failure.kind !== "error" || failure.code === "campaign_not_ready") return textOfAnswer(words, failure);
	return [(failure.code === "network" ? words.network : words.not_configured)[0], words.loading];
}

// Returns the stub's title and the line below it. A campaign's state has no title here: #state shows it.
function textOf(words, shown, state) {
	if (shown?.code === "unauthenticated" && signInUrl) return words.signInFirst;
	if (shown) return shown === failure ? textOfFailure(words) : textOfAnswer(words, shown);
	if (busy) return busy === "retrying" ? words.asking : [words.button.sending, words.idle];
	const problem = { ...view, see: offersSignIn() ? words.see : "" };
	return ["", STOPPED.test(state) ? textOfAnswer(words, { code: state, problem })[1] : words.idle];
}

const offersSignIn = () => token === null && Boolean(signInUrl);

const secondsTo = (until) => Math.max(0, Math.ceil((until - now()) / 1000)) || 0;

function renderResult(words, shown, state) {
	const [title, detail] = textOf(words, shown, state);
	const won = shown?.kind === "won" && shown.claim;
	$("result").dataset.code = shown?.code ?? "";
	$("result").classList.toggle("has-title", Boolean((title || state === "ended") && !won) && busy !== "sending");
	show("yours", words.yours);
	show("no", won ? "No." : "");
	show("sequence", String(won ? won.sequence : "—"));
	$("sequence").style.setProperty("--digits", $("sequence").textContent.length);
	show("message", title);
	show("detail", detail);
	show("warning", warningOf(shown?.claim, words));
	show("pass", !passes || (busy && passes.state !== "solving") ? "" : fill(words, words.pass[passes.state] ?? "", { seconds: secondsTo(passes.retryAt), expires_at: passes.expiresAt }));
	$("proof").hidden = !won;
	show("claim-id", won ? codesOf(won).join("\n") || won.id : "");
	show("copy", won && copied === $("claim-id").textContent ? words.copied : words.copy);
	show("request", fill(words, words.request, shown?.problem ?? {}));
	renderOwn(words, shown, state);
}

function renderOwn(words, shown, state) {
	const others = (own?.items ?? []).filter(({ id, status }) => !busy && id !== shown?.claim?.id && ACTIVE.test(status));
	const named = others.slice(0, OTHERS_MAX).map((claim) => [claim.sequence, ...codesOf(claim)].join(" "));
	const numbers = named.join(", ") + (others.length > OTHERS_MAX ? " …" : "");
	show("others", fill(words, words.others, { numbers }));
	const showsLeft = !busy && shown?.claim && state === "open";
	const denial = nextDenial();
	const left = leftToUser();
	show("left", !showsLeft ? "" : denial ? textOfAnswer(words, denial).join(words.full) : left < Infinity ? fill(words, words.more, { left }) : "");
}

function renderButtons(words, shown, state) {
	const { code, kind, until } = shown ?? {};
	const done = kind === "won" || SPENT.test(code);
	const stuck = pending || kind === "error" || /^(rate_limited|claim_not_found)$/.test(code);
	const again = !busy && (token !== null || !view) && (done ? state === "open" && (kind === "won" ? leftToUser() > 0 : leftToUser() !== 0) : stuck);
	const seconds = secondsTo(until);
	$("again").hidden = !again;
	$("again").disabled = seconds > 0;
	const isHeld = shown?.claim?.status === "held";
	$("again").classList.toggle("minor", isHeld); // completing the held claim is more important
	show("again", done ? words.another : fill(words, words.again, { seconds }));
	const checkout = isHeld && clock && !isDue(shown.claim) && words.links.checkout;
	$("checkout").hidden = !checkout;
	if (checkout) $("checkout").href = checkout.replaceAll("{claim_id}", encodeURIComponent(shown.claim.id));
	show("checkout", words.checkout);
	const lacksPass = pending ? null : passDenial()?.code;
	const denied = STOPPED.test(code) || LIMITED.test(code) ? code : CLOSED.test(state) ? state : lacksPass;
	const reason = busy || (token === null ? "unauthenticated" : denied);
	$("sign-in").hidden = !offersSignIn();
	show("sign-in", words.signIn);
	$("claim").hidden = offersSignIn() || again || done || /^(ended|error)$/.test(state);
	$("claim").disabled = reason;
	show("claim", words.button[busy || "open"]); // the reason is shown above the button
}

// Runs every second. At a change of state all pages poll, so each waits for a random time.
function tick() {
	const state = view && stateNow();
	if (lastState && state !== lastState) pollIn(Math.random() * 800);
	lastState = state;
	if (view) passes?.update(view, token && user);
	if (now() >= Date.parse(own?.allowance?.resets_at)) {
		own.allowance = null;
		lookUpIn(lookupDelay());
	}
	render();
	if (isDue(outcome?.claim)) lookUpIn(0);
	const left = (view && Date.parse(nextBoundary()) - now()) || 0;
	setTimeout(tick, (left > 0 ? left % 1000 : 1000) + 5);
}

$("claim").onclick = claim;
$("again").onclick = tryAgain;
$("copy").onclick = async () => {
	getSelection().selectAllChildren($("claim-id"));
	const id = $("claim-id").textContent;
	// Browsers have `clipboard` only over HTTPS; the older command copies the selection. If both fail, the id stays
	// selected.
	if (navigator.clipboard) await navigator.clipboard.writeText(id);
	else if (!document.execCommand("copy")) return;
	copied = id;
	render();
};
$("sign-in").onclick = () => {
	const url = new URL(signInUrl, location.href);
	url.searchParams.set("return_to", location.href);
	location.assign(url);
};
$("sign-out").onclick = async () => {
	save("signed-out", true);
	signOut();
	outcome = (await welcome()) ?? outcome;
	render();
};
$("lang").onclick = () => {
	lang = switchLanguage(lang, query);
	render();
};
document.onvisibilitychange = window.ononline = () => {
	interval = POLL_MS_MIN;
	if (clock) clock.at = 0; // the device may have slept
	pollIn(secondsTo(failure?.until) * 1000);
	lookUpForVisitor();
};
window.onhashchange = () => location.reload();

// Returns the user that a token names, if any.
function userNamedBy(token) {
	const user = token ? userOf(token) : NO_USER;
	return user !== NO_USER ? user : null;
}

// Returns whether a link's token may replace the current one. A link can come from anyone, so a signed-in user is asked
// before the page switches to another user.
async function mayReplaceToken(given, current) {
	const [user, other] = [current, given].map(userNamedBy);
	if (!user || user === other || user === load("guest")) return true;
	if (!other) return false;
	return wantsToSwitch(languages[lang], { user, other });
}

async function begin() {
	const link = new URLSearchParams(location.hash.slice(1));
	const given = link.get("token");
	if (link.has("pass")) save(`pass:${campaign}`, { pass: link.get("pass") }, "sessionStorage");
	if (given || link.has("pass")) history.replaceState(null, "", location.pathname + location.search);
	const current = load("token", "sessionStorage");
	const chosen = given && (await mayReplaceToken(given, current)) ? given : current;
	if (chosen) useToken(chosen);
	else if (campaign) await welcome();
}

if (!campaign) failure = { kind: "denied", code: "no_campaign" };
tick();
await Promise.all([refresh(), begin()]);
if (token) {
	pending = await client.isPending(campaign);
	const last = load(lastClaim());
	if (last) outcome = fromClaim(last);
}
render();
if (pending) claim();
else lookUpForVisitor();
