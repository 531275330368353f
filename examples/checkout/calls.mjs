// Calls to core and to Stripe. Each of them is safe to retry, and is retried until its outcome is known.

import { setTimeout as sleep } from "node:timers/promises";

/** Returns an environment variable. Throws if the variable is not set and has no default. */
export function setting(name, byDefault) {
	const value = process.env[name] || byDefault;
	if (!value) throw new Error(`${name} is not set`);
	return value;
}

const CORE_URL = setting("CLAIMGATE_URL"), CORE_TOKEN = setting("CLAIMGATE_TOKEN");
const STRIPE_URL = setting("STRIPE_URL", "https://api.stripe.com"), STRIPE_SECRET_KEY = setting("STRIPE_SECRET_KEY");
// The version of Stripe's API for which the shop is written. Without it, the account's default version applies.
const STRIPE_VERSION = "2026-09-30.endive";
const TRY_MS = Number(setting("CLAIMGATE_TRY_MS", "6000")), DEADLINE_MS = Number(setting("CLAIMGATE_DEADLINE_MS", "8000"));
const BACKOFF_MS = 200;

// Core did not process the request, and a retry cannot help.
const FINAL = new Set(["not_configured", "user_ids_differ"]);
// Stripe is still processing another request with the same key.
const IN_USE = "idempotency_key_in_use";

/** A response that is an error, or no response: then `status` is 0. */
export class Failure extends Error {
	constructor(url, status, problem) {
		super(`${url}: ${status || "no response"}: ${problem.code ?? problem.type}: ${problem.detail ?? problem.message}`);
		Object.assign(this, { status, problem });
	}

	get retryHelps() {
		const { status, problem: { code } } = this;
		return !FINAL.has(code) && (status === 0 || status === 408 || status === 429 || status >= 500 || code === IN_USE);
	}
}

export function core(method, path, body, firstTry) {
	const headers = { Authorization: `Bearer ${CORE_TOKEN}` };
	if (body) headers["Content-Type"] = "application/json";
	return send(`${CORE_URL}/internal/v1/claims${path}`, { method, headers, body: body && JSON.stringify(body) }, firstTry);
}

/** Confirms, extends or returns the claim. Returns the claim even if its status does not allow the call. */
export async function transition(id, verb) {
	try {
		return (await core("POST", `/${id}/${verb}`)).claim;
	} catch (failure) {
		if (failure.status !== 409 || !failure.problem.claim) throw failure;
		return failure.problem.claim;
	}
}

export function stripe(method, path, form, idempotencyKey) {
	const headers = { Authorization: `Bearer ${STRIPE_SECRET_KEY}`, "Stripe-Version": STRIPE_VERSION };
	if (idempotencyKey) headers["Idempotency-Key"] = idempotencyKey;
	return send(`${STRIPE_URL}/v1${path}`, { method, headers, body: form && new URLSearchParams(form) });
}

/** Returns the response's JSON. Only the first try has the headers `firstTry`. */
async function send(url, request, firstTry = {}) {
	const deadline = performance.now() + DEADLINE_MS;
	let headers = { ...request.headers, ...firstTry };
	for (let backoffMs = BACKOFF_MS; ; backoffMs *= 2) {
		const { body, failure, retryAfterMs } = await trySend(url, { ...request, headers });
		if (!failure) return body;
		const pauseMs = retryAfterMs + backoffMs * (0.5 + Math.random() / 2);
		if (!failure.retryHelps || performance.now() + pauseMs > deadline) throw failure;
		await sleep(pauseMs);
		headers = request.headers;
	}
}

async function trySend(url, request) {
	try {
		const reply = await fetch(url, { ...request, redirect: "error", signal: AbortSignal.timeout(TRY_MS) });
		const body = await reply.json();
		if (reply.ok) return { body };
		const retryAfterMs = 1000 * (Number(reply.headers.get("Retry-After")) || 0);
		return { failure: new Failure(url, reply.status, body.error ?? body), retryAfterMs }; // Stripe's errors are in `error`
	} catch (error) {
		return { failure: new Failure(url, 0, { code: "network", detail: String(error.cause ?? error) }), retryAfterMs: 0 };
	}
}
