// Checks that the types of the server's responses have exactly the members in openapi.json.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as client from "../claimgate.js";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const types = read("../claimgate.d.ts").replace(/\/\*[\s\S]*?\*\//g, "");
const { schemas } = JSON.parse(read("../../openapi.json")).components;

/** Returns the members of an interface: a map from name to whether it may be null. */
function declared(name) {
	const [, body] = types.match(new RegExp(`export interface ${name} {([^}]*)}`));
	const members = [...body.matchAll(/^\t(\w+)\??: ([^;]+);/gm)];
	return Object.fromEntries(members.map(([, member, type]) => [member, /\bnull\b/.test(type)]));
}

function described({ $ref, allOf, oneOf, type, properties }) {
	if ($ref) return described(schemas[$ref.split("/").at(-1)]);
	if (allOf) return Object.assign({}, ...allOf.map(described));
	assert.ok(properties, JSON.stringify({ oneOf, type }));
	return Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, mayBeNull(schema)]));
}

const mayBeNull = ({ oneOf = [], type }) => [type, ...oneOf.map((one) => one.type)].flat().includes("null");

for (const name of ["CampaignView", "Claim", "Limits", "Allowance", "UserClaims", "Problem"]) {
	test(`${name} matches openapi.json`, () => assert.deepEqual(declared(name), described(schemas[name])));
}

test("ClaimResult is openapi.json's ClaimReply with `replayed`", () => {
	assert.deepEqual(declared("ClaimResult"), { ...described(schemas.ClaimReply), replayed: false });
});

for (const name of ["CampaignState", "ClaimStatus"]) {
	test(`${name} lists every value`, () => {
		const [, union] = types.match(new RegExp(`export type ${name} = ([^;]+);`));
		assert.deepEqual([...union.matchAll(/"(\w+)"/g)].map(([, value]) => value), schemas[name].enum);
	});
}

test("ServerCode lists the codes that the edge can return", () => {
	const [, union] = types.match(/export type ServerCode =([^;]+);/);
	const snake = (code) => code.replace(/\B[A-Z]/g, (letter) => `_${letter}`).toLowerCase();
	const known = schemas.Code.enum.map(snake);
	const listed = [...union.matchAll(/"(\w+)"/g)].map(([, code]) => code);
	// Codes of calls that only back ends and admins make.
	const unreachable = /^(claim_(expired|returned|revoked)|campaign_(exists|ended|open)|version_conflict|import_unfinished|codes_missing|hold_extended_too_often|cursor_invalid|webhook_\w+)$/;
	assert.deepEqual(listed.toSorted(), known.filter((code) => !unreachable.test(code)).toSorted());
});

test("every export is declared", () => {
	const values = [...types.matchAll(/export (?:class|function) (\w+)/g)].map(([, name]) => name);
	assert.deepEqual(values.toSorted(), Object.keys(client).toSorted());
});

test("every published file exists", () => {
	const { files, exports, engines } = JSON.parse(read("../package.json"));
	for (const file of [...files, exports["."].types, exports["."].default]) assert.ok(read(`../${file}`), file);
	assert.equal(engines.node, ">=20.3");
});
