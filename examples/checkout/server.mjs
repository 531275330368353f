#!/usr/bin/env node
// A shop that sells a campaign's units through Stripe Checkout, in Node 20 without a library. README.md explains it.
//
// Stripe's real service was not called. The tests use a stand-in that speaks the documented requests.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";
import { setting } from "./calls.mjs";
import { buy, cancel, readSession, SHOP, sells, sessionOf, settle, stateOf } from "./purchase.mjs";

const HOST = setting("HOST", "127.0.0.1"), PORT = Number(setting("PORT", "3000"));
const LOGIN_KEY = setting("LOGIN_KEY"), WEBHOOK_SECRET = setting("STRIPE_WEBHOOK_SECRET");
const SIGNATURE_AGE_S_MAX = 5 * 60;
const BODY_BYTES_MAX = 1024 * 1024;

const DENIED = /^(not_started|paused|ended|sold_out|user_\w*limit_reached)$/;
const STATES = {
	held: "A unit is held for you. Please pay before the hold ends.",
	processing: "Your payment is being processed.",
	granted: "The unit is yours.",
	refunded: "Your payment arrived too late: the unit was no longer held. The payment is refunded.",
	expired: "The hold has ended. A payment that still arrives is refunded.",
	returned: "The order is cancelled. A payment that still arrives is refunded.",
	revoked: "The order is cancelled. A payment that still arrives is refunded.",
};
const BUY = '<form method="post" action="/buy"><button>Buy</button></form>';

async function respond(request) {
	const call = `${request.method} ${request.url.split("?")[0]}`;
	if (call === "POST /stripe") return webhook(request);
	const user = userOf(request);
	if (!user) return page(401, "Please sign in.");
	if (call === "GET /") return page(200, "One unit for each order.", BUY);
	if (call === "POST /buy") return redirect(`/checkout/${(await buy(user)).id}`);
	const [id] = /[\w-]+\.[\w-]+\.[\w-]{22}/.exec(call) ?? [];
	if (id?.split(".")[1] !== user || !sells(id)) return page(404, "There is no such page.");
	switch (call) {
		case `GET /checkout/${id}`:
			return redirect((await sessionOf(id))?.url ?? `/orders/${id}`);
		case `GET /orders/${id}`:
			return orderPage(id, await stateOf(id));
		case `POST /orders/${id}/cancel`:
			await cancel(id);
			return redirect(`/orders/${id}`);
		default:
			return page(404, "There is no such page.");
	}
}

/** Stripe retries an event until the response is 200. */
async function webhook(request) {
	const payload = await bodyOf(request);
	if (!payload) return rejected(413, `the body has more than ${BODY_BYTES_MAX} bytes`);
	const fault = signatureFault(payload, request.headers["stripe-signature"]);
	if (fault) return rejected(400, fault);
	const { type, data: { object } } = JSON.parse(payload);
	if (type.startsWith("checkout.session.") && object.metadata?.shop === SHOP) await settle(await readSession(object.id));
	return page(200, "Received.");
}

function rejected(status, reason) {
	console.error(`rejected an event: ${reason}`);
	return page(status, `The event is rejected: ${reason}.`);
}

/** Returns why the signature is not accepted, or null if Stripe signed the payload within the last five minutes. */
function signatureFault(payload, header = "") {
	const fields = header.split(",").map((field) => field.split("="));
	const time = fields.find(([name]) => name === "t")?.[1];
	const ageS = Math.round(Date.now() / 1000 - Number(time));
	if (Number.isNaN(ageS)) return "the header Stripe-Signature has no time";
	if (Math.abs(ageS) > SIGNATURE_AGE_S_MAX) return `the signature's age is ${ageS} s; the limit is ${SIGNATURE_AGE_S_MAX} s`;
	const expected = hmac(WEBHOOK_SECRET, `${time}.`, payload);
	const isSigned = fields.some(([name, value]) => name === "v1" && isEqual(Buffer.from(value ?? "", "hex"), expected));
	return isSigned ? null : "no signature matches STRIPE_WEBHOOK_SECRET";
}

/** Returns the signed-in user, or null. Replace it by your login: here, a cookie has the user's id and its signature. */
function userOf(request) {
	const [, user, signature] = /(?:^|; )login=([\w-]{1,64})\.([\w-]{43})(?:;|$)/.exec(request.headers.cookie ?? "") ?? [];
	return user && isEqual(Buffer.from(signature, "base64url"), hmac(LOGIN_KEY, user)) ? user : null;
}

function hmac(key, ...parts) {
	return parts.reduce((mac, part) => mac.update(part), createHmac("sha256", key)).digest();
}

function isEqual(bytes, expected) {
	return bytes.length === expected.length && timingSafeEqual(bytes, expected);
}

/** Returns the body, or null if it is too large. Reads it to its end, so that the client gets the response. */
async function bodyOf(request) {
	const chunks = [];
	let bytes = 0;
	for await (const chunk of request) {
		bytes += chunk.length;
		if (bytes <= BODY_BYTES_MAX) chunks.push(chunk);
	}
	return bytes <= BODY_BYTES_MAX ? Buffer.concat(chunks) : null;
}

function orderPage(id, state) {
	const pay = `<a href="/checkout/${id}">Pay</a><form method="post" action="/orders/${id}/cancel"><button>Cancel</button></form>`;
	const next = { held: pay, processing: "" };
	return page(200, STATES[state] ?? state, next[state] ?? BUY);
}

function page(status, text, html = "") {
	const escaped = text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
	const body = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Shop</title><p>${escaped}</p>${html}</html>\n`;
	return { status, headers: { "Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store" }, body };
}

function redirect(location) {
	return { status: 303, headers: { Location: location, "Cache-Control": "no-store" }, body: "" };
}

function failed(error) {
	const { code, detail, title } = error.problem ?? {};
	if (DENIED.test(code)) return page(409, detail ?? title);
	console.error(error);
	return page(503, "Please try again in a moment. No unit is taken twice, and no payment either.");
}

createServer(async (request, response) => {
	const { status, headers, body } = await respond(request).catch(failed);
	response.writeHead(status, headers).end(body);
}).listen(PORT, HOST, () => console.log(`listening on http://${HOST}:${PORT}`));
