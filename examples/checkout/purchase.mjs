// A purchase: a held claim, one Checkout session for the claim, and one function that makes claim and payment agree.

import { randomBytes } from "node:crypto";
import { core, setting, stripe, transition } from "./calls.mjs";
import { remove, stored, storeOnce } from "./store.mjs";

// Only new purchases are of this campaign. Payments for former campaigns are still settled.
const CAMPAIGN = setting("CAMPAIGN");
/** The mark of this shop's sessions, because other programs may use the same account of Stripe. */
export const SHOP = setting("SHOP", "claimgate");
const ORIGIN = setting("ORIGIN"), PRICE = setting("STRIPE_PRICE");

// Stripe requires at least 30 minutes. The other five are for retries, which must repeat the same `expires_at`.
const SESSION_S = 35 * 60;
// After a payment in the session's last second, the webhook still finds the hold.
const HOLD_AFTER_SESSION_S = 5 * 60;
// The states of a payment that cannot succeed any more.
const FAILED = new Set(["requires_payment_method", "canceled"]);

const buying = new Map();

/** Returns whether this shop sells the claim: its campaign is the current one, or its payment began before a change. */
export function sells(id) {
	return id.startsWith(`${CAMPAIGN}.`) || stored(`${id}.expiry`) !== null;
}

/** Returns a held claim of the user. Concurrent calls for one user share the claim. */
export function buy(user) {
	if (!buying.has(user)) buying.set(user, heldClaim(user).finally(() => buying.delete(user)));
	return buying.get(user);
}

async function heldClaim(user) {
	const name = `${CAMPAIGN}.${user}`;
	for (;;) {
		const newKey = randomBytes(16).toString("base64url");
		const { key } = storeOnce(name, { key: newKey }); // before the first try: after a crash, the same claim is retried
		const isNew = key === newKey;
		const request = { campaign_id: CAMPAIGN, user_id: user, quantity: 1, idempotency_key: key };
		const { claim } = await core("POST", "", request, isNew ? { "Claimgate-Attempt": "1" } : {});
		if (claim.status === "held" && !stored(`${claim.id}.refund`)) return claim;
		if (isNew) {
			await transition(claim.id, "return");
			throw new Error(`the campaign ${CAMPAIGN} needs hold_seconds`);
		}
		remove(name, key); // the previous purchase is over: paid, expired, returned or refunded
	}
}

/**
 * Returns the claim's only session, or null if nothing is to be paid. `settle` reads the claim after the session is
 * stored, and `returnClaim` reads the session after the claim is returned. So no session outlives a concurrent return.
 */
export async function sessionOf(id) {
	const known = stored(`${id}.session`);
	const session = known ? await readSession(known.id) : await newSession(id);
	return session && await settle(session) === "held" ? session : null;
}

async function newSession(id) {
	let { claim } = await core("GET", `/${id}`);
	if (claim.status !== "held") return null;
	const { expires_at } = storeOnce(`${id}.expiry`, { expires_at: Math.floor(Date.now() / 1000) + SESSION_S });
	const isTooShort = (hold) => Date.parse(hold.expires_at) / 1000 < expires_at + HOLD_AFTER_SESSION_S;
	if (isTooShort(claim)) claim = await transition(id, "extend");
	if (claim.status !== "held") return null;
	try {
		if (isTooShort(claim)) throw new Error(`the campaign ${CAMPAIGN} needs hold_seconds of at least 2700`);
		const session = await stripe("POST", "/checkout/sessions", {
			mode: "payment",
			"payment_method_types[0]": "card",
			"line_items[0][price]": PRICE,
			"line_items[0][quantity]": claim.quantity,
			"metadata[claim_id]": id,
			"metadata[shop]": SHOP,
			expires_at,
			success_url: `${ORIGIN}/orders/${id}`,
			cancel_url: `${ORIGIN}/orders/${id}`,
		}, id);
		storeOnce(`${id}.session`, { id: session.id });
		return session;
	} catch (error) {
		// Either the request is never accepted, for example because the first try was more than five minutes ago, or Stripe
		// repeats a 5xx for this key, for a day. No buyer has a URL of this session, so the next purchase gets a new claim.
		const isFinal = !error.retryHelps || error.status >= 500;
		if (isFinal && !stored(`${id}.session`)) await returnClaim(id);
		throw error;
	}
}

export function readSession(id) {
	return stripe("GET", `/checkout/sessions/${id}?expand[]=payment_intent`);
}

/**
 * Makes claim and payment agree, and returns the order's state. Only the session's current state matters: events may
 * arrive in any order, any number of times, before or after the redirect.
 */
export async function settle(session) {
	const { claim_id: id } = session.metadata;
	if (session.status === "complete" && session.payment_status !== "unpaid") return confirmOrRefund(id, session.payment_intent);
	const { claim } = await core("GET", `/${id}`);
	if (claim.status !== "held") {
		if (session.status === "open") await endSession(session.id);
		return claim.status;
	}
	if (session.status === "open") return "held";
	if (session.status === "complete" && !FAILED.has(session.payment_intent?.status)) {
		const { status } = await transition(id, "extend"); // the payment takes longer
		return status === "held" ? "processing" : status;
	}
	return (await transition(id, "return")).status;
}

async function confirmOrRefund(id, payment) {
	if (!stored(`${id}.refund`)) {
		const { status } = await transition(id, "confirm");
		if (status === "granted" || !payment) return status;
		storeOnce(`${id}.refund`, { status }); // before the refund: from now on, the claim is never confirmed
	}
	try {
		// Without an idempotency key, because Stripe repeats the error of a key for a day. Stripe itself refuses a second
		// refund of the whole payment.
		await stripe("POST", "/refunds", { payment_intent: payment.id, "metadata[claim_id]": id });
	} catch (failure) {
		if (failure.problem?.code !== "charge_already_refunded") throw failure;
	}
	console.log(`refunded ${payment.id}: the claim ${id} was ${stored(`${id}.refund`).status}`);
	return "refunded";
}

/** Returns the order's state. */
export async function stateOf(id) {
	const known = stored(`${id}.session`);
	return known ? settle(await readSession(known.id)) : (await core("GET", `/${id}`)).claim.status;
}

/** Cancels the order unless it is paid. The session ends before the claim, so that a returned claim is not paid for. */
export async function cancel(id) {
	const known = stored(`${id}.session`);
	if (known) await endSession(known.id);
	if (await stateOf(id) === "held") await returnClaim(id);
}

async function returnClaim(id) {
	await transition(id, "return");
	await stateOf(id); // ends a session that was stored in between
}

async function endSession(id) {
	try {
		await stripe("POST", `/checkout/sessions/${id}/expire`);
	} catch (failure) {
		if (failure.status !== 400) throw failure; // 400: the session is not open
	}
}
