#!/usr/bin/env node
// Plays the cases of cases.json with claimgate's clients and with the examples, and checks that broken clients fail.
//
//   node client/conformance/run.js             all clients, and the controls
//   node client/conformance/run.js NAME…       some of: javascript, rust, rust-edge, java, go, python, php, controls
//   node client/conformance/run.js -- PROGRAM  another client: README.md describes what it must do
//
// DOOR=edge plays another client through the edge's call instead of core's. CASE is a part of the names of the cases to
// play, and JOBS how many are played at a time.

import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { playCase } from "./play.js";
import { CLIENTS, CONTROLS, notReady } from "./programs.js";

const suite = JSON.parse(readFileSync(new URL("cases.json", import.meta.url), "utf8"));
if (process.env.CASE) suite.cases = suite.cases.filter(({ name }) => name.includes(process.env.CASE));
const words = process.argv.slice(2), isAll = words.length === 0;
const jobs = Number(process.env.JOBS) || 2 * availableParallelism();

/** Plays cases, some at a time. Returns the failures of each, by the case's name. */
async function play(cases, client) {
	const failures = new Map(), left = [...cases];
	const worker = async () => {
		for (let next = left.shift(); next; next = left.shift()) failures.set(next.name, await playCase(suite, next, client));
	};
	await Promise.all(Array.from({ length: jobs }, worker));
	return failures;
}

/** Returns whether the client passes the cases. A client that cannot be played passes, unless all were to be played. */
async function check(name, client, cases = suite.cases) {
	const missing = notReady(client);
	if (missing) {
		console.log(`SKIPPED ${name}: ${missing}`);
		return !isAll;
	}
	const startedAt = performance.now();
	const failed = [...(await play(cases, client))].filter(([, failures]) => failures.length > 0);
	for (const [title, failures] of failed) console.log(`${name}: "${title}":\n${failures.map((failure) => `    ${failure}\n`).join("")}`);
	const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
	console.log(`${name}: ${cases.length - failed.length} of ${cases.length} cases passed in ${seconds} s`);
	return failed.length === 0;
}

/** Returns whether each case that looks for the defect finds it, and nothing else. */
async function checkControl(defect, { reason, ...client }) {
	const cases = casesFor(client);
	if (cases.length === 0) throw new Error(`no case looks for ${defect}`);
	const played = await play(cases, client);
	const wrong = [...played].filter(([, failures]) => failures.length === 0 || !failures.every((failure) => reason.test(failure)));
	for (const [title, failures] of wrong) console.log(`control ${defect}: "${title}": ${failures.join("; ") || "passed, but must fail"}`);
	console.log(`control ${defect}: ${played.size - wrong.length} of ${played.size} cases found the defect, such as: ${firstOf(played)}`);
	return wrong.length === 0;
}

const casesFor = ({ cases }) => suite.cases.filter(({ name }) => cases.test(name));

function firstOf(played) {
	const [[title, [failure]]] = played;
	return `"${title}": ${failure}`;
}

async function checkControls() {
	const { none, ...broken } = CONTROLS;
	const found = Object.values(broken).flatMap(casesFor);
	let isGreen = await check("control without a defect", none, suite.cases.filter((one) => found.includes(one)));
	for (const [defect, control] of Object.entries(broken)) isGreen = (await checkControl(defect, control)) && isGreen;
	return isGreen;
}

let isGreen = true;
if (words[0] === "--") {
	isGreen = await check(words[1], { command: words.slice(1), door: process.env.DOOR ?? "core" });
} else {
	const names = isAll ? [...Object.keys(CLIENTS), "controls"] : words;
	const wrong = names.filter((name) => name !== "controls" && !CLIENTS[name]);
	if (wrong.length > 0) {
		console.error(`no such client: ${wrong.join(", ")}; use ${Object.keys(CLIENTS).join(", ")}, controls, or -- PROGRAM`);
		process.exit(2);
	}
	for (const name of names) isGreen = (name === "controls" ? await checkControls() : await check(name, CLIENTS[name])) && isGreen;
}
process.exit(isGreen ? 0 : 1);
