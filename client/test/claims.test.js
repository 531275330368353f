// Tests of the client in Node, against a real edge and a real core.
// `cargo test -p claimgate-tests --test e2e js_client` starts both, creates the campaigns below and sets
// CLAIMGATE_TEST_URL (the edge), CLAIMGATE_TEST_TOKENS (tokens by user) and CLAIMGATE_TEST_PASS_KEY (a key of passes).

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { ClaimgateClient, ClaimgateError, memoryStorage, newKey, userOf } from "../claimgate.js";
import { passIssuer } from "../server.js";
import { problem, startFront } from "./front.js";

const { CLAIMGATE_TEST_URL: edge, CLAIMGATE_TEST_TOKENS, CLAIMGATE_TEST_PASS_KEY } = process.env;
assert.ok(edge && CLAIMGATE_TEST_TOKENS, "run it with cargo test -p claimgate-tests --test e2e js_client");
const tokens = JSON.parse(CLAIMGATE_TEST_TOKENS);

/** Campaigns: unlimited; three per user and one per day; all taken; only with a pass; missing. */
const OPEN = "client-open", LIMITED = "client-limited", TAKEN = "client-taken", MEMBERS = "client-members", NONE = "client-none";

/** Passes for MEMBERS: an expired one, and one for each of these users. */
const issuer = passIssuer({ key: CLAIMGATE_TEST_PASS_KEY });
const passOf = (user, seconds) => issuer.pass({ user, campaign: MEMBERS, expiresAt: new Date(Date.now() + seconds * 1000) });
const passes = { stale: passOf("zoe", -3600), zoe: passOf("zoe", 3600), yara: passOf("yara", 3600) };

let front;
before(async () => { front = await startFront(edge); });
after(() => front.stop());

/** Returns a client for a user that no other test uses. Clears the recorded requests and the faults. */
function clientOf(user, options = {}) {
	front.claims.length = 0;
	front.faults.length = 0;
	return new ClaimgateClient({ baseUrl: `${front.url}/`, token: tokens[user], ...options });
}

/** Returns the storage name of a user's key. */
const storageName = (campaign, user) => `claimgate:${campaign}:${user}@${front.url}`;

const rejection = async (promise) => {
	const error = await promise.then(() => assert.fail("not rejected"), (reason) => reason);
	assert.ok(error instanceof ClaimgateError, `${error}`);
	return error;
};

/** Faults that leave a claim's outcome unknown: the second response asks for a retry after the deadline. */
const UNKNOWN = ["unanswered", problem(503, "unavailable", { "Retry-After": "60" })];

const marks = () => front.claims.map(({ attempt }) => attempt ?? null);
const keys = () => new Set(front.claims.map(({ key }) => key)).size;

test("each claim has its own key, removed after the response", async () => {
	const storage = memoryStorage();
	const client = clientOf("ann", { storage });
	const first = await client.claim(OPEN);
	assert.deepEqual([first.claim.user_id, first.claim.quantity, first.claim.status, first.replayed], ["ann", 1, "granted", false]);
	assert.match(front.claims[0].key, /^[A-Za-z0-9_-]{22}$/);
	assert.equal(storage.getItem(storageName(OPEN, "ann")), null);
	const second = await client.claim(OPEN, { quantity: 2 });
	assert.notEqual(second.claim.id, first.claim.id);
	assert.equal(second.claim.quantity, 2);
	assert.deepEqual([marks(), keys()], [["1", "1"], 2]);
});

test("a lost response is retried with the same key, unmarked", async () => {
	const client = clientOf("bob");
	const retries = [];
	front.faults.push("unanswered", "unsent");
	const { claim, replayed } = await client.claim(OPEN, { onRetry: (error, waitMs) => retries.push([error.code, waitMs > 0]) });
	assert.equal(replayed, true);
	assert.deepEqual([marks(), keys()], [["1", null, null], 1]);
	assert.deepEqual(retries, [["network", true], ["network", true]]);
	assert.deepEqual((await client.claims(OPEN)).items, [claim]);
});

test("the key is stored before the first try and survives a reload", async () => {
	const storage = memoryStorage();
	const client = clientOf("carol", { storage });
	front.faults.push(...UNKNOWN);
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.status, error.outcomeUnknown, await client.isPending(OPEN)], ["unavailable", 503, true, true]);
	const { key } = JSON.parse(storage.getItem(storageName(OPEN, "carol")));
	assert.equal(front.claims[0].key, key);
	const elsewhere = new ClaimgateClient({ baseUrl: edge, token: tokens.carol, storage });
	assert.equal(await elsewhere.isPending(OPEN), false, "claims at another server are separate");

	const reloaded = clientOf("carol", { storage });
	assert.equal(await reloaded.isPending(OPEN), true);
	assert.equal((await rejection(reloaded.claim(OPEN, { quantity: 2 }))).code, "claim_pending");
	assert.equal(front.claims.length, 0);
	assert.equal((await reloaded.claim(OPEN)).replayed, true);
	assert.deepEqual([front.claims[0].key, marks(), await reloaded.isPending(OPEN)], [key, [null], false]);
	assert.equal((await reloaded.claims(OPEN)).items.length, 1);
});

test("two concurrent calls are one claim", async () => {
	const client = clientOf("dave");
	const [one, other] = await Promise.all([client.claim(OPEN), client.claim(OPEN)]);
	assert.equal(one.claim.id, other.claim.id);
	assert.deepEqual([keys(), marks().sort()], [1, ["1", null]]);
});

test("retries respect Retry-After and the deadline", async () => {
	const client = clientOf("erin");
	for (const [status, code] of [[503, "unavailable"], [503, "overloaded"], [503, "campaign_not_ready"], [429, "rate_limited"]]) {
		front.claims.length = 0;
		front.faults.push(problem(status, code, { "Retry-After": "1" }));
		const { claim } = await client.claim(OPEN);
		assert.equal(claim.status, "granted", code);
		assert.ok(front.claims[1].at - front.claims[0].at >= 1000, code);
		assert.deepEqual([marks(), keys()], [["1", null], 1], code);
	}
	front.claims.length = 0;
	front.faults.push(problem(429, "rate_limited", { "Retry-After": "60" }));
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.retryAfterMs, error.outcomeUnknown, front.claims.length], ["rate_limited", 60000, false, 1]);
	assert.equal(await client.isPending(OPEN), false, "the request was not processed");
});

test("tries end before the deadline", async (t) => {
	const client = clientOf("theo");
	const { setTimeout: start } = globalThis;
	let now = 0, pause = null;
	t.mock.method(performance, "now", () => now);
	// Skips the pauses between tries.
	t.mock.method(globalThis, "setTimeout", (done, ms, ...values) => {
		if (ms !== pause) return start(done, ms, ...values);
		now += ms;
		return start(done, 0);
	});
	front.faults.push(...Array(9).fill("unanswered"));
	const error = await rejection(client.claim(OPEN, { onRetry: (_, waitMs) => { pause = waitMs; } }));
	assert.deepEqual([error.code, error.status, error.outcomeUnknown, await client.isPending(OPEN)], ["network", 0, true, true]);
	// Pauses of about 0.8, 1.6, 3.2 and 6.4 s: the fifth one would end after 20 s, the default deadline.
	assert.equal(front.claims.length, 5);
});

test("not_configured is not retried and leaves the outcome known", async () => {
	const client = clientOf("yves");
	front.faults.push(problem(503, "not_configured"));
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.outcomeUnknown, front.claims.length], ["not_configured", false, 1]);
	assert.equal(await client.isPending(OPEN), false);
	// After a try with an unknown outcome, not_configured does not settle it.
	front.faults.push(problem(503, "unavailable"), problem(503, "not_configured"));
	assert.equal((await rejection(client.claim(OPEN))).outcomeUnknown, true);
	assert.equal(await client.isPending(OPEN), true);
});

test("a proxy's page is retried, or reported as unexpected_answer", async () => {
	const client = clientOf("finn");
	const page = { status: 502, headers: { "Content-Type": "text/html" }, body: "<h1>Bad gateway</h1>" };
	front.faults.push(page, { ...page, status: 200 });
	assert.equal((await client.claim(OPEN)).claim.status, "granted");
	assert.equal(front.claims.length, 3);
	front.faults.push({ ...page, status: 403 });
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.status, error.outcomeUnknown], ["unexpected_answer", 403, false]);
});

test("a denial is typed, not retried, and removes the key", async () => {
	const storage = memoryStorage();
	const client = clientOf("gwen", { storage });
	const soldOut = await rejection(client.claim(TAKEN));
	assert.deepEqual([soldOut.name, soldOut.code, soldOut.status, soldOut.problem.limit, soldOut.problem.remaining], ["ClaimgateError", "sold_out", 409, "total", 0]);
	assert.ok(soldOut.problem.instance);
	assert.equal((await rejection(client.claim(NONE))).code, "campaign_not_found");
	assert.equal((await rejection(client.claim(OPEN, { quantity: 0 }))).code, "quantity_out_of_range");
	await client.claim(LIMITED);
	const daily = await rejection(client.claim(LIMITED));
	assert.deepEqual([daily.code, daily.problem.limit, daily.outcomeUnknown], ["user_daily_limit_reached", "per_user_per_day", false]);
	assert.ok(Date.parse(daily.problem.resets_at) > Date.now());
	assert.equal(front.claims.length, 5);
	for (const campaign of [TAKEN, NONE, OPEN, LIMITED]) assert.equal(storage.getItem(storageName(campaign, "gwen")), null);
});

test("an unknown code is passed on and not retried", async () => {
	const client = clientOf("hugo");
	front.faults.push(problem(409, "from_the_future", { "X-Other": "1" }));
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.status, error.problem.detail, front.claims.length], ["from_the_future", 409, "as told", 1]);
});

test("a denial settles the outcome; later tries are unmarked", async () => {
	const client = clientOf("iris");
	front.faults.push("unsent");
	const error = await rejection(client.claim(TAKEN));
	assert.deepEqual([error.code, error.outcomeUnknown, await client.isPending(TAKEN)], ["sold_out", false, false]);
	assert.equal((await rejection(client.claim(TAKEN))).code, "sold_out");
	assert.deepEqual([marks(), keys()], [["1", null, null], 1]);
});

test("an error unrelated to the claim leaves it pending", async () => {
	const client = clientOf("jack");
	front.faults.push("unanswered", problem(403, "forbidden"));
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.outcomeUnknown, await client.isPending(OPEN)], ["forbidden", true, true]);
	assert.equal((await client.claim(OPEN)).replayed, true);
});

test("campaign_not_ready leaves the claim pending", async () => {
	const client = clientOf("quin");
	front.faults.push(problem(503, "campaign_not_ready", { "Retry-After": "60" }));
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.outcomeUnknown, await client.isPending(OPEN)], ["campaign_not_ready", true, true]);
	assert.equal((await client.claim(OPEN)).claim.status, "granted");
	assert.deepEqual([marks(), keys()], [["1", null], 1]);
});

test("a key removed by another tab is restored if the outcome is unknown", async () => {
	const storage = memoryStorage();
	const client = clientOf("rosa", { storage });
	front.faults.push(...UNKNOWN);
	const error = await rejection(client.claim(OPEN, { onRetry: () => storage.removeItem(storageName(OPEN, "rosa")) }));
	assert.deepEqual([error.outcomeUnknown, await client.isPending(OPEN)], [true, true]);
	assert.equal((await client.claim(OPEN)).replayed, true);
	assert.equal(keys(), 1);
});

test("the outcome with a caller's own key is always uncertain", async () => {
	const client = clientOf("saul");
	front.faults.push(problem(429, "rate_limited", { "Retry-After": "60" }));
	const error = await rejection(client.claim(OPEN, { idempotencyKey: newKey() }));
	assert.deepEqual([error.code, error.outcomeUnknown], ["rate_limited", true]);
});

test("a caller's own key is neither stored nor marked", async () => {
	const storage = memoryStorage();
	const client = clientOf("kate", { storage });
	const idempotencyKey = newKey();
	const first = await client.claim(OPEN, { idempotencyKey });
	const again = await client.claim(OPEN, { idempotencyKey });
	assert.deepEqual([again.claim, first.replayed, again.replayed], [first.claim, false, true]);
	assert.deepEqual([marks(), storage.getItem(storageName(OPEN, "kate"))], [[null, null], null]);
	const reused = await rejection(client.claim(OPEN, { idempotencyKey, quantity: 2 }));
	assert.deepEqual([reused.code, reused.status], ["idempotency_key_reused", 422]);
});

test("a rejected token is renewed once", async () => {
	const calls = [];
	const token = (wasRejected) => {
		calls.push(wasRejected);
		return calls.includes(true) ? tokens.liam : "stale";
	};
	assert.equal((await clientOf("liam", { token }).claim(OPEN)).claim.user_id, "liam");
	assert.deepEqual([calls.filter(Boolean).length, keys()], [1, 1]);
	calls.length = 0;
	assert.equal((await clientOf("liam", { token }).claims(OPEN)).items.length, 1);
	for (const bad of [undefined, "stale", () => "stale"]) {
		assert.equal((await rejection(clientOf("liam", { token: bad }).claim(OPEN))).code, "unauthenticated");
	}
	assert.deepEqual([userOf(tokens.liam), userOf("stale"), userOf(undefined)], ["liam", "me", "me"]);
});

test("an aborted claim rejects with the reason and stays pending", async () => {
	const client = clientOf("mona");
	const stop = new AbortController();
	front.faults.push("unanswered");
	const reason = new Error("the user left");
	await assert.rejects(client.claim(OPEN, { signal: stop.signal, onRetry: () => stop.abort(reason) }), reason);
	await assert.rejects(client.claim(OPEN, { signal: stop.signal }), reason);
	assert.deepEqual([front.claims.length, await client.isPending(OPEN)], [1, true]);
	assert.equal((await client.claim(OPEN)).replayed, true);
	assert.equal(keys(), 1);
});

test("failing storage is replaced by memory", async () => {
	const fail = () => { throw new Error("full"); };
	const client = clientOf("nick", { storage: { getItem: () => null, setItem: fail, removeItem: () => {} } });
	front.faults.push("unanswered");
	assert.equal((await client.claim(OPEN)).replayed, true);
	assert.equal(keys(), 1);
	const stuck = clientOf("nick", { storage: { ...memoryStorage(), removeItem: fail } });
	assert.equal((await stuck.claim(OPEN)).claim.status, "granted", "the response survives the storage's failure");
});

test("an unchanged campaign returns the known object", async () => {
	const client = clientOf("olga");
	const view = await client.campaign(LIMITED);
	assert.deepEqual([view.id, view.state, view.limits.per_user], [LIMITED, "open", 3]);
	const again = await client.campaign(TAKEN);
	assert.equal(await client.campaign(TAKEN, { known: again }), again);
	assert.equal((await client.campaign(TAKEN, { known: view })).id, TAKEN, "another campaign's view is not returned");
	assert.equal((await rejection(client.campaign(NONE))).code, "campaign_not_found");
});

test("claims, allowance and a single claim can be read", async () => {
	const client = clientOf("pete");
	const { claim } = await client.claim(LIMITED);
	const { items, allowance, next_cursor } = await client.claims(LIMITED);
	assert.deepEqual([items, next_cursor], [[claim], null]);
	assert.deepEqual([allowance.per_user, allowance.per_user_per_day, allowance.per_claim], [2, 0, 1]);
	assert.ok(allowance.resets_at);
	for (let made = 0; made < 3; made++) await client.claim(OPEN);
	const first = await client.claims(OPEN, { limit: 2 });
	const rest = await client.claims(OPEN, { limit: 2, cursor: first.next_cursor });
	assert.deepEqual([first.items.length, rest.items.length, rest.next_cursor], [2, 1, null]);
	const { persisted, ...found } = await client.claimById(claim.id);
	assert.deepEqual([found, typeof persisted], [claim, "boolean"]);
	assert.equal((await rejection(clientOf("ann").claimById(claim.id))).code, "claim_not_found");
});

test("a user who signs in during retries does not use the old key", async () => {
	const storage = memoryStorage();
	let user = "tess";
	const client = clientOf("tess", { storage, token: () => tokens[user] });
	front.faults.push("unanswered");
	const error = await rejection(client.claim(OPEN, { onRetry: () => { user = "ugo"; } }));
	assert.deepEqual([error.code, error.outcomeUnknown, front.claims.length], ["user_changed", true, 1]);
	assert.deepEqual([(await client.claims(OPEN)).items, await client.isPending(OPEN)], [[], false], "ugo has nothing");
	user = "tess";
	assert.equal(await client.isPending(OPEN), true);
	const { claim, replayed } = await client.claim(OPEN);
	assert.deepEqual([claim.user_id, replayed, keys()], ["tess", true, 1]);
	// The same with the caller's own key.
	const own = rejection(client.claim(OPEN, { idempotencyKey: newKey(), onRetry: () => { user = "ugo"; } }));
	front.faults.push("unanswered");
	assert.equal((await own).code, "user_changed");
	assert.deepEqual((await client.claims(OPEN)).items, []);
});

test("a token renewed for a different user does not use the old key", async () => {
	const storage = memoryStorage();
	const client = clientOf("tess", { storage, token: (wasRejected) => wasRejected ? tokens.ugo : `${tokens.tess}x` });
	const error = await rejection(client.claim(OPEN));
	assert.deepEqual([error.code, error.outcomeUnknown], ["user_changed", false]);
	assert.equal(storage.getItem(storageName(OPEN, "tess")), null, "the request was not processed");
});

test("a user who signs in after a 401 takes over the key", async () => {
	const storage = memoryStorage();
	let token = "stale";
	const client = clientOf("vera", { storage, token: (wasRejected) => (token = wasRejected ? tokens.vera : token) });
	front.faults.push(null, ...UNKNOWN);
	const error = await rejection(client.claim(OPEN));
	assert.equal(error.outcomeUnknown, true);
	assert.deepEqual([storage.getItem(storageName(OPEN, "me")), typeof storage.getItem(storageName(OPEN, "vera"))], [null, "string"]);
	front.faults.length = 0;
	assert.equal((await client.claim(OPEN)).replayed, true);
	assert.equal((await client.claims(OPEN)).items.length, 1);
});

test("a pass is sent; a new one after pass_required, with the same key, unmarked", async () => {
	const calls = [];
	const pass = async (wasRejected) => {
		calls.push(wasRejected);
		return passes[wasRejected ? "zoe" : "stale"];
	};
	const { claim } = await clientOf("zoe", {}).claim(MEMBERS, { pass });
	assert.deepEqual([claim.user_id, claim.status, calls], ["zoe", "granted", [false, true]]);
	assert.deepEqual([marks(), keys()], [["1", null], 1]);
	assert.deepEqual(front.claims.map((sent) => sent.pass), [passes.stale, passes.zoe]);
	const again = await clientOf("zoe").claim(MEMBERS, { pass: passes.zoe });
	assert.notEqual(again.claim.id, claim.id);
	assert.deepEqual(marks(), ["1"]);
});

test("pass_required keeps the key, and the next claim sends it unmarked", async () => {
	const storage = memoryStorage();
	const client = clientOf("yara", { storage });
	for (const pass of [undefined, null, passes.stale, () => passes.stale, () => undefined]) {
		const error = await rejection(client.claim(MEMBERS, { pass }));
		assert.deepEqual([error.code, error.status, error.outcomeUnknown], ["pass_required", 403, false]);
		assert.equal(await client.isPending(MEMBERS), false);
	}
	assert.deepEqual([marks(), keys()], [["1", null, null, null, null], 1]);
	const reloaded = new ClaimgateClient({ baseUrl: front.url, token: tokens.yara, storage });
	const { claim, replayed } = await reloaded.claim(MEMBERS, { pass: passes.yara });
	assert.deepEqual([claim.user_id, replayed, keys()], ["yara", false, 1]);
	assert.equal(storage.getItem(storageName(MEMBERS, "yara")), null);
});

test("a pass that expires between two tries is renewed for the same claim", async () => {
	const client = clientOf("yara");
	front.faults.push("unanswered", problem(403, "pass_required"));
	const { replayed } = await client.claim(OPEN, { pass: (wasRejected) => wasRejected ? "new" : "old" });
	assert.deepEqual([replayed, keys(), marks()], [true, 1, ["1", null, null]]);
	assert.deepEqual(front.claims.map((sent) => sent.pass), ["old", "old", "new"]);
	// A second refusal ends the call.
	const client2 = clientOf("yara");
	front.faults.push(problem(403, "pass_required"), problem(403, "pass_required"));
	let passes = 0;
	const error = await rejection(client2.claim(OPEN, { pass: () => `pass${passes++}` }));
	assert.deepEqual([error.code, error.outcomeUnknown, passes, front.claims.length], ["pass_required", false, 2, 2]);
});

test("a pass function that fails or hangs leaves the key", async () => {
	const PASS_MS = 20000; // the client's default deadline
	const storage = memoryStorage();
	const client = clientOf("yara", { storage });
	const closed = new Error("the visitor closed the challenge");
	front.faults.push(problem(403, "pass_required"));
	const failing = (wasRejected) => { if (wasRejected) throw closed; };
	await assert.rejects(client.claim(OPEN, { pass: failing }), closed);
	const { key } = JSON.parse(storage.getItem(storageName(OPEN, "yara")));
	front.faults.push(problem(403, "pass_required"));
	const hanging = (wasRejected) => wasRejected ? new Promise(() => {}) : null;
	const { timeout } = AbortSignal;
	AbortSignal.timeout = (ms) => timeout.call(AbortSignal, ms === PASS_MS ? 1 : ms); // only a pass has this limit
	try {
		const late = await rejection(client.claim(OPEN, { pass: hanging }));
		assert.deepEqual([late.code, late.status, await client.isPending(OPEN)], ["no_pass", 0, false]);
		assert.equal((await rejection(client.claim(OPEN, { pass: () => new Promise(() => {}) }))).code, "no_pass");
	} finally {
		AbortSignal.timeout = timeout;
	}
	assert.deepEqual([front.claims.length, keys(), front.claims[0].key], [2, 1, key]);
});

test("waiting for a token times out", async () => {
	const client = clientOf("walt", { tryMs: 200, token: () => new Promise(() => {}) });
	for (const call of [() => client.claim(OPEN), () => client.claims(OPEN), () => client.isPending(OPEN)]) {
		assert.equal((await rejection(call())).code, "no_token");
	}
	assert.equal(front.claims.length, 0);
	const stop = new AbortController();
	const claim = clientOf("walt", { token: () => new Promise(() => {}) }).claim(OPEN, { signal: stop.signal });
	const reason = new Error("the user left");
	stop.abort(reason);
	await assert.rejects(claim, reason);
	// If the outcome is already unknown, the key is kept.
	let hangs = false;
	const late = clientOf("walt", { tryMs: 1000, token: () => hangs ? new Promise(() => {}) : tokens.walt });
	front.faults.push("unanswered");
	const error = await rejection(late.claim(OPEN, { onRetry: () => { hangs = true; } }));
	assert.deepEqual([error.code, error.outcomeUnknown], ["no_token", true]);
	hangs = false;
	assert.equal(await late.isPending(OPEN), true);
});

test("a key with an unknown outcome can be forgotten", async () => {
	const storage = memoryStorage();
	const client = clientOf("xena", { storage });
	assert.equal(await client.forget(OPEN), null);
	front.faults.push(...UNKNOWN);
	assert.equal((await rejection(client.claim(OPEN))).outcomeUnknown, true);
	const [{ key }] = front.claims;
	assert.deepEqual([await client.forget(OPEN), await client.isPending(OPEN)], [key, false]);
	assert.equal((await client.claim(OPEN)).replayed, false);
	assert.equal((await client.claims(OPEN)).items.length, 2, "the forgotten claim was granted too");
});

test("AbortSignal.timeout and AbortSignal.any are optional", async () => {
	const { timeout, any } = AbortSignal; // Safari 15.4 has neither
	Object.assign(AbortSignal, { timeout: undefined, any: undefined });
	try {
		const client = clientOf("yves");
		assert.equal((await client.claim(OPEN)).claim.status, "granted");
		const never = new Promise(() => {});
		const waits = clientOf("yves", { tryMs: 300, token: () => never });
		assert.equal((await rejection(waits.claims(OPEN))).code, "no_token");
		const stop = new AbortController();
		const reason = new Error("enough");
		const stopped = assert.rejects(clientOf("yves", { token: () => never }).claims(OPEN, { signal: stop.signal }), reason);
		stop.abort(reason);
		await stopped;
		await assert.rejects(client.campaign(OPEN, { signal: stop.signal }), reason);
	} finally {
		Object.assign(AbortSignal, { timeout, any });
	}
});
