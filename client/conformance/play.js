// Plays one case: a server that answers as the case says, and a program that claims from it.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { text } from "node:stream/consumers";

/** A program that has not ended by then hangs. Retries and tries have less time, so that a slow machine changes no result. */
const PROGRAM_MS = 180_000, DEADLINE_MS = 120_000, TRY_MS = 60_000;
const KEY = /^[\w-]{1,64}$/;

/** Each door's path, and the key and members of a claim's request. */
const DOORS = {
	core: {
		path: () => "/internal/v1/claims",
		key: (_, body) => body.idempotency_key,
		members: ({ campaign, user }, key) => ({ campaign_id: campaign, user_id: user, idempotency_key: key }),
	},
	edge: {
		path: ({ campaign }) => `/v1/campaigns/${campaign}/claims`,
		key: (headers) => headers["idempotency-key"],
		members: () => ({}),
	},
};

/** Returns what the client did wrong. */
export async function playCase(suite, { runs }, client) {
	const failures = [], keys = new Map();
	const directory = mkdtempSync(path.join(tmpdir(), "conformance-"));
	let handle = null;
	// One server for all runs: a client may store its keys by the server's address.
	const server = createServer((request, response) => handle(request, response));
	await new Promise((done) => server.listen(0, "127.0.0.1", done));
	try {
		for (const [index, run] of runs.entries()) {
			const fail = (text) => failures.push(runs.length > 1 ? `run ${index + 1}: ${text}` : text);
			const play = { suite, run, client, keys, directory, url: `http://127.0.0.1:${server.address().port}`, fail };
			handle = scripted(play);
			await playRun(play);
			server.closeAllConnections();
			if (failures.length > 0) break;
		}
	} finally {
		server.close();
		rmSync(directory, { recursive: true });
	}
	return failures;
}

/** Runs the program once, and checks its result. */
async function playRun(play) {
	const { suite, run, client, fail } = play;
	const [program, ...words] = client.command;
	const child = spawn(program, [...words, suite.campaign, suite.user, String(run.quantity ?? 1)], {
		stdio: ["ignore", "pipe", "pipe"],
		env: {
			...process.env,
			NO_PROXY: "*",
			no_proxy: "*",
			CLAIMGATE_URL: play.url,
			CLAIMGATE_TOKEN: tokenOf(suite.user),
			CLAIMGATE_KEYS: play.directory,
			CLAIMGATE_TRY_MS: String(run.try_ms ?? TRY_MS),
			CLAIMGATE_DEADLINE_MS: String(DEADLINE_MS),
		},
	});
	play.kill = () => {
		play.wasKilled = true;
		child.kill("SIGKILL");
	};
	const limit = setTimeout(() => {
		fail(`the program did not end within ${PROGRAM_MS / 1000} s`);
		play.kill();
	}, PROGRAM_MS);
	const ended = new Promise((done) => child.on("error", (error) => done({ signal: error.message })).on("close", (status, signal) => done({ status, signal })));
	const [output, errors, end] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
	clearTimeout(limit);
	if (play.requests < run.steps.length) fail(`${play.requests} requests arrived instead of ${run.steps.length}`);
	if (!play.wasKilled) checkResult(run.result, output, errors, end, fail);
}

/** Returns the handler of the server that checks the run's requests and gives its responses. */
function scripted(play) {
	const { suite, run, fail } = play;
	let answeredAt = 0;
	play.requests = 0;
	return async (request, response) => {
		const arrivedAt = performance.now();
		const body = await text(request).catch(() => null);
		if (body === null) return; // the client has given up
		const number = ++play.requests;
		const step = run.steps[number - 1] ?? (run.repeat_last && run.steps.at(-1));
		if (!step) {
			fail(`request ${number} arrived after the last expected one`);
			play.kill();
			return;
		}
		checkRequest(play, step, request, body, (text) => fail(`request ${number}: ${text}`));
		const pause = arrivedAt - answeredAt;
		if (step.pause_ms_min && pause < step.pause_ms_min) fail(`request ${number}: arrived after ${Math.floor(pause)} ms instead of at least ${step.pause_ms_min} ms`);
		answeredAt = performance.now();
		if (step.answer === "hang") return;
		if (step.answer === "closed") request.socket.destroy();
		else if (step.answer === "kill") play.kill();
		else send(response, suite.answers[step.answer], step.half);
	};
}

/** `half`: after half of the body the connection is `closed` or `hangs`. */
function send(response, { status, headers = {}, body, text = JSON.stringify(body) }, half) {
	const bytes = Buffer.from(text);
	response.writeHead(status, {
		"Content-Type": status < 400 ? "application/json" : "application/problem+json",
		"Content-Length": bytes.length,
		"X-Request-Id": "r-1",
		...headers,
	});
	if (!half) return response.end(bytes);
	response.write(bytes.subarray(0, bytes.length / 2), () => half === "closed" && response.destroy());
}

function checkRequest({ suite, run, client, keys }, step, { method, url, headers }, text, fail) {
	const door = DOORS[client.door];
	const is = (what, found, expected) => found === expected || fail(`${what} is ${found ?? "absent"} instead of ${expected ?? "absent"}`);
	is("the call", `${method} ${url}`, `POST ${door.path(suite)}`);
	is("Authorization", headers.authorization, `Bearer ${tokenOf(suite.user)}`);
	is("Content-Type", headers["content-type"]?.split(";")[0], "application/json");
	is("Content-Length", headers["content-length"], String(Buffer.byteLength(text)));
	const body = parsed(text);
	if (!body) return fail(`the body is not a JSON object: ${text}`);
	const key = door.key(headers, body);
	const members = { ...door.members(suite, key), quantity: run.quantity ?? 1 };
	for (const name of new Set([...Object.keys(body), ...Object.keys(members)])) is(name, body[name] ?? (name === "quantity" ? 1 : undefined), members[name]);
	if (!KEY.test(key)) fail(`the key ${key} is not an id`);
	if (step.marked !== undefined) is("Claimgate-Attempt", headers["claimgate-attempt"], step.marked ? "1" : undefined);
	if (step.key) checkKey(keys, step.key, key, fail);
}

/** Equal letters of a case stand for one key, and different letters for different keys. */
function checkKey(keys, letter, key, fail) {
	if (keys.has(letter) && keys.get(letter) !== key) fail(`the key is not ${letter}, the key of an earlier request`);
	const other = [...keys].find(([known, value]) => known !== letter && value === key);
	if (other) fail(`the key is ${other[0]}, the key of an earlier claim`);
	if (!keys.has(letter)) keys.set(letter, key);
}

function checkResult(expected, output, errors, { status, signal }, fail) {
	const result = parsed(output.trim().split("\n").at(-1));
	if (!result) return fail(`the last line of the output is not a JSON object: ${output}${errors} (status ${status ?? signal})`);
	for (const difference of differences(expected, result, "result")) fail(difference);
	if (status !== 0) fail(`the program ended with ${status ?? signal}: ${errors}`);
}

/** Yields the members of `expected` that `found` lacks or that differ. */
function* differences(expected, found, at) {
	if (typeof expected !== "object" || expected === null) {
		if (found !== expected) yield `${at} is ${JSON.stringify(found) ?? "absent"} instead of ${JSON.stringify(expected)}`;
	} else {
		for (const [name, value] of Object.entries(expected)) yield* differences(value, found?.[name], `${at}.${name}`);
	}
}

function parsed(text) {
	try {
		const value = JSON.parse(text);
		return typeof value === "object" ? value : null;
	} catch {
		return null;
	}
}

/** A token in the form of a JWT, in which the JavaScript client finds the user. The server of the cases does not verify it. */
function tokenOf(user) {
	return `e30.${Buffer.from(JSON.stringify({ sub: user })).toString("base64url")}.c2lnbmF0dXJl`;
}
