// A small client with one defect, or none, which shows that the cases find the defect. Never use it as an example.

import { readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const { CLAIMGATE_URL, CLAIMGATE_TOKEN, CLAIMGATE_KEYS, CLAIMGATE_TRY_MS, CLAIMGATE_DEADLINE_MS } = process.env;
const [defect, campaign, user, quantity] = process.argv.slice(2);
const DECIDED = /^(ended|sold_out|user_daily_limit_reached|quantity_out_of_range)$/;
const file = path.join(CLAIMGATE_KEYS, "request");

function storedRequest() {
	try {
		return { request: JSON.parse(readFileSync(file, "utf8")), isNew: false };
	} catch {
		const request = { campaign_id: campaign, user_id: user, quantity: Number(quantity), idempotency_key: crypto.randomUUID() };
		if (defect !== "forgets-its-key") writeFileSync(file, JSON.stringify(request));
		return { request, isNew: true };
	}
}

async function send(request, isMarked) {
	const headers = { Authorization: `Bearer ${CLAIMGATE_TOKEN}`, "Content-Type": "application/json" };
	if (isMarked) headers["Claimgate-Attempt"] = "1";
	try {
		const signal = AbortSignal.timeout(Number(CLAIMGATE_TRY_MS));
		const answer = await fetch(`${CLAIMGATE_URL}/internal/v1/claims`, { method: "POST", headers, body: JSON.stringify(request), signal });
		const text = await answer.text();
		const body = text.startsWith("{") ? JSON.parse(text) : { code: "unexpected_answer" };
		return { ...body, status: answer.status, after_ms: 1000 * answer.headers.get("Retry-After") || 0 };
	} catch {
		return { code: "network", status: 0, after_ms: 0 };
	}
}

async function claim({ request, isNew }) {
	if (request.quantity !== Number(quantity)) return { outcome: "unknown", problem: { code: "claim_pending" } };
	const deadline = performance.now() + Number(CLAIMGATE_DEADLINE_MS);
	let isUnknown = !isNew;
	for (let tries = 1; ; tries++) {
		if (defect === "forgets-its-key" && tries > 1) request.idempotency_key = crypto.randomUUID();
		const { after_ms, ...answer } = await send(request, isNew && (tries === 1 || defect === "marks-a-retry"));
		if (answer.claim) return { outcome: "claimed", claim: answer.claim, replayed: answer.status === 200 };
		const { code, status } = answer;
		const retryHelps = (status < 400 || status >= 500 || status === 408 || status === 429) && !/^(not_configured|user_ids_differ)$/.test(code);
		isUnknown ||= retryHelps && status !== 429 && code !== "overloaded";
		const pause = 50 + (defect === "ignores-retry-after" ? 0 : after_ms);
		const isRetried = (retryHelps || (defect === "retries-a-409" && status === 409)) && performance.now() + pause < deadline;
		if (!isRetried) return { outcome: isUnknown && !DECIDED.test(code) ? "unknown" : "refused", problem: answer };
		await sleep(pause);
	}
}

const result = await claim(storedRequest());
console.log(JSON.stringify(result));
if (result.outcome !== "unknown") rmSync(file, { force: true });
