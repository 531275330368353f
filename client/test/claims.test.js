// The client in Node before a real edge and a real core. `cargo test -p claimgate-tests --test e2e client` starts them and sets
// CLAIMGATE_TEST_URL (the edge's address) and CLAIMGATE_TEST_TOKENS (a token by user), with the campaigns named below.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { ClaimgateClient, ClaimgateError, memoryStorage, newKey, userOf } from "../claimgate.js";
import { problem, startFront } from "./front.js";

const { CLAIMGATE_TEST_URL: edge, CLAIMGATE_TEST_TOKENS } = process.env;
assert.ok(edge && CLAIMGATE_TEST_TOKENS, "run it by cargo test -p claimgate-tests --test e2e client");
const tokens = JSON.parse(CLAIMGATE_TEST_TOKENS);

/** Unlimited; three a user and one a day; all taken; not there. */
const OPEN = "client-open", LIMITED = "client-limited", TAKEN = "client-taken", NONE = "client-none";

let front;
before(async () => { front = await startFront(edge); });
after(() => front.stop());

/** A client of a user that no other test has, and the record of what it asks from now on. */
function clientOf(user, options = {}) {
	front.claims.length = 0;
	front.faults.length = 0;
	return new ClaimgateClient({ baseUrl: `${front.url}/`, token: tokens[user], ...options });
}

/** Where the key of a user's claim is kept. */
const nameOf = (campaign, user) => `claimgate:${campaign}:${user}@${front.url}`;

const refused = async (promise) => {
	const error = await promise.then(() => assert.fail("not refused"), (reason) => reason);
	assert.ok(error instanceof ClaimgateError, `${error}`);
	return error;
};

const marks = () => front.claims.map(({ attempt }) => attempt ?? null);
const keys = () => new Set(front.claims.map(({ key }) => key)).size;

test("one press is one claim, marked as a first try, and its key goes", async () => {
	const storage = memoryStorage();
	const client = clientOf("ann", { storage });
	const first = await client.claim(OPEN);
	assert.deepEqual([first.claim.user_id, first.claim.quantity, first.claim.status, first.replayed], ["ann", 1, "granted", false]);
	assert.match(front.claims[0].key, /^[A-Za-z0-9_-]{22}$/);
	assert.equal(storage.getItem(nameOf(OPEN, "ann")), null);
	const second = await client.claim(OPEN, { quantity: 2 });
	assert.notEqual(second.claim.id, first.claim.id);
	assert.equal(second.claim.quantity, 2);
	assert.deepEqual([marks(), keys()], [["1", "1"], 2]);
});

test("a lost answer is asked for again with the same key, without the mark", async () => {
	const client = clientOf("bob");
	const retries = [];
	front.faults.push("unanswered", "unsent");
	const { claim, replayed } = await client.claim(OPEN, { onRetry: (error, waitMs) => retries.push([error.code, waitMs > 0]) });
	assert.equal(replayed, true);
	assert.deepEqual([marks(), keys()], [["1", null, null], 1]);
	assert.deepEqual(retries, [["network", true], ["network", true]]);
	assert.deepEqual((await client.claims(OPEN)).items, [claim]);
});

test("the key is in storage before the first try, and a reload asks for the same claim", async () => {
	const storage = memoryStorage();
	const client = clientOf("carol", { storage, deadlineMs: 1200 });
	front.faults.push("unanswered", "unanswered", "unanswered");
	const startedAt = performance.now();
	const error = await refused(client.claim(OPEN));
	assert.ok(performance.now() - startedAt < 1700, "the deadline holds");
	assert.deepEqual([error.code, error.status, error.outcomeUnknown, await client.isPending(OPEN)], ["network", 0, true, true]);
	const { key } = JSON.parse(storage.getItem(nameOf(OPEN, "carol")));
	assert.equal(front.claims[0].key, key);
	const elsewhere = new ClaimgateClient({ baseUrl: edge, token: tokens.carol, storage });
	assert.equal(await elsewhere.isPending(OPEN), false, "another server's claims are others");

	const reloaded = clientOf("carol", { storage });
	assert.equal(await reloaded.isPending(OPEN), true);
	assert.equal((await refused(reloaded.claim(OPEN, { quantity: 2 }))).code, "claim_pending");
	assert.equal(front.claims.length, 0);
	assert.equal((await reloaded.claim(OPEN)).replayed, true);
	assert.deepEqual([front.claims[0].key, marks(), await reloaded.isPending(OPEN)], [key, [null], false]);
	assert.equal((await reloaded.claims(OPEN)).items.length, 1);
});

test("two calls at once are one claim", async () => {
	const client = clientOf("dave");
	const [one, other] = await Promise.all([client.claim(OPEN), client.claim(OPEN)]);
	assert.equal(one.claim.id, other.claim.id);
	assert.deepEqual([keys(), marks().sort()], [1, ["1", null]]);
});

test("busy answers are waited out as they ask, and no longer than the deadline", async () => {
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
	const error = await refused(client.claim(OPEN));
	assert.deepEqual([error.code, error.retryAfterMs, error.outcomeUnknown, front.claims.length], ["rate_limited", 60000, false, 1]);
	assert.equal(await client.isPending(OPEN), false, "nothing was tried");
});

test("a proxy's page is no answer, and says so when it is all there is", async () => {
	const client = clientOf("finn");
	const page = { status: 502, headers: { "Content-Type": "text/html" }, body: "<h1>Bad gateway</h1>" };
	front.faults.push(page, { ...page, status: 200 });
	assert.equal((await client.claim(OPEN)).claim.status, "granted");
	assert.equal(front.claims.length, 3);
	front.faults.push({ ...page, status: 403 });
	const error = await refused(client.claim(OPEN));
	assert.deepEqual([error.code, error.status, error.outcomeUnknown], ["unexpected_answer", 403, false]);
});

test("a refusal is typed, sent once, and leaves no key", async () => {
	const storage = memoryStorage();
	const client = clientOf("gwen", { storage });
	const soldOut = await refused(client.claim(TAKEN));
	assert.deepEqual([soldOut.name, soldOut.code, soldOut.status, soldOut.problem.limit, soldOut.problem.remaining], ["ClaimgateError", "sold_out", 409, "total", 0]);
	assert.ok(soldOut.problem.instance);
	assert.equal((await refused(client.claim(NONE))).code, "campaign_not_found");
	assert.equal((await refused(client.claim(OPEN, { quantity: 0 }))).code, "quantity_out_of_range");
	await client.claim(LIMITED);
	const daily = await refused(client.claim(LIMITED));
	assert.deepEqual([daily.code, daily.problem.limit, daily.outcomeUnknown], ["user_daily_limit_reached", "per_user_per_day", false]);
	assert.ok(Date.parse(daily.problem.resets_at) > Date.now());
	assert.equal(front.claims.length, 5);
	for (const campaign of [TAKEN, NONE, OPEN, LIMITED]) assert.equal(storage.getItem(nameOf(campaign, "gwen")), null);
});

test("a code of a later version is passed on and not asked for again", async () => {
	const client = clientOf("hugo");
	front.faults.push(problem(409, "from_the_future", { "X-Other": "1" }));
	const error = await refused(client.claim(OPEN));
	assert.deepEqual([error.code, error.status, error.problem.detail, front.claims.length], ["from_the_future", 409, "as told", 1]);
});

test("a rule's refusal ends the doubt, and the key is asked for again unmarked", async () => {
	const client = clientOf("iris");
	front.faults.push("unsent");
	const error = await refused(client.claim(TAKEN));
	assert.deepEqual([error.code, error.outcomeUnknown, await client.isPending(TAKEN)], ["sold_out", false, false]);
	assert.equal((await refused(client.claim(TAKEN))).code, "sold_out");
	assert.deepEqual([marks(), keys()], [["1", null, null], 1]);
});

test("what says nothing of the claim leaves it pending", async () => {
	const client = clientOf("jack");
	front.faults.push("unanswered", problem(403, "forbidden"));
	const error = await refused(client.claim(OPEN));
	assert.deepEqual([error.code, error.outcomeUnknown, await client.isPending(OPEN)], ["forbidden", true, true]);
	assert.equal((await client.claim(OPEN)).replayed, true);
});

test("a campaign that is being loaded may have granted before, so the claim stays pending", async () => {
	const client = clientOf("quin");
	front.faults.push(problem(503, "campaign_not_ready", { "Retry-After": "60" }));
	const error = await refused(client.claim(OPEN));
	assert.deepEqual([error.code, error.outcomeUnknown, await client.isPending(OPEN)], ["campaign_not_ready", true, true]);
	assert.equal((await client.claim(OPEN)).claim.status, "granted");
	assert.deepEqual([marks(), keys()], [["1", null], 1]);
});

test("a key that another tab has freed is kept by the one that is in doubt", async () => {
	const storage = memoryStorage();
	const client = clientOf("rosa", { storage, deadlineMs: 1500 });
	front.faults.push(...Array(9).fill("unanswered"));
	const error = await refused(client.claim(OPEN, { onRetry: () => storage.removeItem(nameOf(OPEN, "rosa")) }));
	assert.deepEqual([error.outcomeUnknown, await client.isPending(OPEN)], [true, true]);
	front.faults.length = 0;
	assert.equal((await client.claim(OPEN)).replayed, true);
	assert.equal(keys(), 1);
});

test("nothing is certain of a caller's own key, which may have been sent before", async () => {
	const client = clientOf("saul");
	front.faults.push(problem(429, "rate_limited", { "Retry-After": "60" }));
	const error = await refused(client.claim(OPEN, { idempotencyKey: newKey() }));
	assert.deepEqual([error.code, error.outcomeUnknown], ["rate_limited", true]);
});

test("a caller's own key is neither stored nor marked", async () => {
	const storage = memoryStorage();
	const client = clientOf("kate", { storage });
	const idempotencyKey = newKey();
	const first = await client.claim(OPEN, { idempotencyKey });
	const again = await client.claim(OPEN, { idempotencyKey });
	assert.deepEqual([again.claim, first.replayed, again.replayed], [first.claim, false, true]);
	assert.deepEqual([marks(), storage.getItem(nameOf(OPEN, "kate"))], [[null, null], null]);
	const reused = await refused(client.claim(OPEN, { idempotencyKey, quantity: 2 }));
	assert.deepEqual([reused.code, reused.status], ["idempotency_key_reused", 422]);
});

test("a refused token is renewed once", async () => {
	const asked = [];
	const token = (wasRefused) => {
		asked.push(wasRefused);
		return asked.includes(true) ? tokens.liam : "stale";
	};
	assert.equal((await clientOf("liam", { token }).claim(OPEN)).claim.user_id, "liam");
	assert.deepEqual([asked.filter(Boolean).length, keys()], [1, 1]);
	asked.length = 0;
	assert.equal((await clientOf("liam", { token }).claims(OPEN)).items.length, 1);
	for (const bad of [undefined, "stale", () => "stale"]) {
		assert.equal((await refused(clientOf("liam", { token: bad }).claim(OPEN))).code, "unauthenticated");
	}
	assert.deepEqual([userOf(tokens.liam), userOf("stale"), userOf(undefined)], ["liam", "me", "me"]);
});

test("an aborted claim rejects with the reason and stays the same claim", async () => {
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

test("storage that refuses is done without", async () => {
	const refuse = () => { throw new Error("full"); };
	const client = clientOf("nick", { storage: { getItem: () => null, setItem: refuse, removeItem: () => {} } });
	front.faults.push("unanswered");
	assert.equal((await client.claim(OPEN)).replayed, true);
	assert.equal(keys(), 1);
	const stuck = clientOf("nick", { storage: { ...memoryStorage(), removeItem: refuse } });
	assert.equal((await stuck.claim(OPEN)).claim.status, "granted", "the answer is not lost with the storage");
});

test("the campaign, and that it has not changed", async () => {
	const client = clientOf("olga");
	const view = await client.campaign(LIMITED);
	assert.deepEqual([view.id, view.state, view.limits.per_user], [LIMITED, "open", 3]);
	const again = await client.campaign(TAKEN);
	assert.equal(await client.campaign(TAKEN, { known: again }), again);
	assert.equal((await client.campaign(TAKEN, { known: view })).id, TAKEN, "another campaign's view is no answer");
	assert.equal((await refused(client.campaign(NONE))).code, "campaign_not_found");
});

test("the user's claims, what is left, and one of them", async () => {
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
	assert.equal((await refused(clientOf("ann").claimById(claim.id))).code, "claim_not_found");
});

test("who signs in during a claim's retries does not claim with the first one's key", async () => {
	const storage = memoryStorage();
	let user = "tess";
	const client = clientOf("tess", { storage, token: () => tokens[user] });
	front.faults.push("unanswered");
	const error = await refused(client.claim(OPEN, { onRetry: () => { user = "ugo"; } }));
	assert.deepEqual([error.code, error.outcomeUnknown, front.claims.length], ["user_changed", true, 1]);
	assert.deepEqual([(await client.claims(OPEN)).items, await client.isPending(OPEN)], [[], false], "ugo has nothing");
	user = "tess";
	assert.equal(await client.isPending(OPEN), true);
	const { claim, replayed } = await client.claim(OPEN);
	assert.deepEqual([claim.user_id, replayed, keys()], ["tess", true, 1]);
	// With a key of the caller's it is the same.
	const own = refused(client.claim(OPEN, { idempotencyKey: newKey(), onRetry: () => { user = "ugo"; } }));
	front.faults.push("unanswered");
	assert.equal((await own).code, "user_changed");
	assert.deepEqual((await client.claims(OPEN)).items, []);
});

test("whose token is renewed to another user's does not claim with the first one's key", async () => {
	const storage = memoryStorage();
	const client = clientOf("tess", { storage, token: (wasRefused) => wasRefused ? tokens.ugo : `${tokens.tess}x` });
	const error = await refused(client.claim(OPEN));
	assert.deepEqual([error.code, error.outcomeUnknown], ["user_changed", false]);
	assert.equal(storage.getItem(nameOf(OPEN, "tess")), null, "nothing was tried");
});

test("who signs in at the first refusal keeps the key as that user", async () => {
	const storage = memoryStorage();
	let token = "stale";
	const client = clientOf("vera", { storage, deadlineMs: 1500, token: (wasRefused) => (token = wasRefused ? tokens.vera : token) });
	front.faults.push(null, ...Array(9).fill("unanswered"));
	const error = await refused(client.claim(OPEN));
	assert.equal(error.outcomeUnknown, true);
	assert.deepEqual([storage.getItem(nameOf(OPEN, "me")), typeof storage.getItem(nameOf(OPEN, "vera"))], [null, "string"]);
	front.faults.length = 0;
	assert.equal((await client.claim(OPEN)).replayed, true);
	assert.equal((await client.claims(OPEN)).items.length, 1);
});

test("a token that never comes is not waited for for ever", async () => {
	const client = clientOf("walt", { tryMs: 200, token: () => new Promise(() => {}) });
	for (const call of [() => client.claim(OPEN), () => client.claims(OPEN), () => client.isPending(OPEN)]) {
		assert.equal((await refused(call())).code, "no_token");
	}
	assert.equal(front.claims.length, 0);
	const stop = new AbortController();
	const claim = clientOf("walt", { token: () => new Promise(() => {}) }).claim(OPEN, { signal: stop.signal });
	const reason = new Error("the user left");
	stop.abort(reason);
	await assert.rejects(claim, reason);
	// Once the outcome is unknown, the key stays.
	let hangs = false;
	const late = clientOf("walt", { tryMs: 1000, token: () => hangs ? new Promise(() => {}) : tokens.walt });
	front.faults.push("unanswered");
	const error = await refused(late.claim(OPEN, { onRetry: () => { hangs = true; } }));
	assert.deepEqual([error.code, error.outcomeUnknown], ["no_token", true]);
	hangs = false;
	assert.equal(await late.isPending(OPEN), true);
});

test("a key that stays in doubt can be given up", async () => {
	const storage = memoryStorage();
	const client = clientOf("xena", { storage, deadlineMs: 1500 });
	assert.equal(await client.forget(OPEN), null);
	front.faults.push(...Array(9).fill("unanswered"));
	assert.equal((await refused(client.claim(OPEN))).outcomeUnknown, true);
	front.faults.length = 0;
	const [{ key }] = front.claims;
	assert.deepEqual([await client.forget(OPEN), await client.isPending(OPEN)], [key, false]);
	assert.equal((await client.claim(OPEN)).replayed, false);
	assert.equal((await client.claims(OPEN)).items.length, 2, "the one given up was granted, too");
});
