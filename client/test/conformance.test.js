// The cases of the conformance suite script responses that claimgate can send.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const read = (path) => JSON.parse(readFileSync(new URL(path, import.meta.url), "utf8"));
const suite = read("../conformance/cases.json");
const { schemas } = read("../../openapi.json").components;

const LATER_VERSION = /^(of_)?a_(member_of_a_)?later_version$/;
const [, problem] = schemas.Problem.allOf;
const membersOf = (schema, object) => Object.keys(object).filter((name) => !LATER_VERSION.test(name) && !schema.properties[name]);

test("claims have the members of openapi.json", () => {
	const replies = Object.values(suite.answers).filter(({ body }) => body?.claim).map(({ body }) => body);
	assert.ok(replies.length > 1);
	for (const { claim, ...reply } of replies) {
		assert.deepEqual(membersOf(schemas.ClaimReply, reply), []);
		assert.deepEqual(membersOf(schemas.Claim, claim), []);
		for (const name of schemas.Claim.required) assert.ok(name in claim, name);
		assert.ok(schemas.ClaimStatus.enum.includes(claim.status), claim.status);
	}
});

test("problems have the members and codes of openapi.json", () => {
	const answers = Object.values(suite.answers).filter(({ body }) => body?.code);
	assert.ok(answers.length > 10);
	for (const { status, body } of answers) {
		for (const name of problem.required) assert.ok(name in body, `${body.code} has no ${name}`);
		assert.equal(body.status, status);
		assert.equal(body.type, `/problems/${body.code.replaceAll("_", "-")}`);
		assert.ok(LATER_VERSION.test(body.code) || schemas.Code.enum.includes(body.code), body.code);
	}
});

test("each answer is used, and each name of a case is unique", () => {
	const steps = suite.cases.flatMap(({ runs }) => runs).flatMap((run) => run.steps);
	const used = new Set(steps.map(({ answer }) => answer));
	assert.deepEqual(Object.keys(suite.answers).filter((name) => !used.has(name)), []);
	assert.deepEqual([...used].filter((name) => !suite.answers[name]).sort(), ["closed", "hang", "kill"]);
	const names = suite.cases.map(({ name }) => name);
	assert.equal(new Set(names).size, names.length);
});
