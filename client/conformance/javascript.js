// The JavaScript client as a program of the conformance suite: README.md.

import { readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { ClaimgateClient, ClaimgateError } from "../claimgate.js";

const { CLAIMGATE_URL, CLAIMGATE_TOKEN, CLAIMGATE_KEYS, CLAIMGATE_TRY_MS, CLAIMGATE_DEADLINE_MS } = process.env;
const [campaign, , quantity] = process.argv.slice(2);

const fileOf = (name) => path.join(CLAIMGATE_KEYS, encodeURIComponent(name));
const storage = {
	getItem(name) {
		try {
			return readFileSync(fileOf(name), "utf8");
		} catch {
			return null;
		}
	},
	setItem: (name, text) => writeFileSync(fileOf(name), text),
	removeItem: (name) => rmSync(fileOf(name), { force: true }),
};

const client = new ClaimgateClient({
	baseUrl: CLAIMGATE_URL,
	token: CLAIMGATE_TOKEN,
	storage,
	tryMs: Number(CLAIMGATE_TRY_MS),
	deadlineMs: Number(CLAIMGATE_DEADLINE_MS),
});

try {
	const { claim, replayed } = await client.claim(campaign, { quantity: Number(quantity) });
	console.log(JSON.stringify({ outcome: "claimed", claim, replayed }));
} catch (error) {
	if (!(error instanceof ClaimgateError)) throw error;
	const problem = { ...error.problem, code: error.code, status: error.status };
	console.log(JSON.stringify({ outcome: error.outcomeUnknown ? "unknown" : "refused", problem }));
}
