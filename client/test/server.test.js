// User ids and passes of back ends. The vectors are those of shared/src/user_id.rs and shared/src/jwt/pass.rs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { hmacUserIds, passIssuer } from "../server.js";

const KEY = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
const ISSUER = "https://example.eu.auth0.com/";

test("ids match the test vectors", () => {
	const bySub = hmacUserIds({ key: KEY, issuer: ISSUER });
	assert.equal(bySub.userIds, "hmac:VR1TK4");
	assert.equal(bySub.userId("auth0|6512ab"), "VR1TK4_EOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs");
	const byEmail = hmacUserIds({ key: KEY, issuer: ISSUER, claim: "email" });
	assert.equal(byEmail.userIds, "hmac:PBjTMm");
	assert.equal(byEmail.userId("zoë@example.com"), "PBjTMm_jcavUUsMCScrcWRMMVwca2pCCTLo-gj0WrhUmL2aoiI");
});

test("a wrong setting or value throws and does not quote the key", () => {
	const good = { key: KEY, issuer: ISSUER };
	for (const bad of [{ key: `${KEY}=` }, { key: "c2hvcnQ" }, { key: "not base64url!" }, { issuer: undefined }, { claim: 7 }]) {
		assert.throws(() => hmacUserIds({ ...good, ...bad }), (error) => !error.message.includes(String(bad.key)));
	}
	for (const value of ["", undefined, null, 7]) assert.throws(() => hmacUserIds(good).userId(value), TypeError);
});

const { pass } = passIssuer({ key: `shop:${KEY}` });
const AT = 1_700_000_000_000;
const GOOD = { user: "alice", campaign: "spring", expiresAt: new Date(AT + 60_000) };

test("passes match the test vectors", () => {
	const header = "eyJhbGciOiJIUzI1NiIsInR5cCI6ImNsYWltZ2F0ZS1wYXNzK2p3dCIsImtpZCI6InNob3AifQ";
	const plain = '{"sub":"alice","campaign":"spring","exp":1700000060}';
	const full = '{"sub":"alice","campaign":"spring","exp":1700000060,"nbf":1700000000,"units":2}';
	const token = (payload, signature) => `${header}.${Buffer.from(payload).toString("base64url")}.${signature}`;
	assert.equal(pass(GOOD), token(plain, "FysBx2mpaM17Qy_mweeMehmTLnCfzn7nu3yLwFCTyek"));
	assert.equal(pass({ ...GOOD, notBefore: new Date(AT), units: 2 }), token(full, "9KPscw8J5D_q8p8FuR7b2bKUuEWQLATe2fci1tA6Kfw"));
	const fraction = { notBefore: new Date(AT - 999), expiresAt: new Date(AT + 60_999), units: 2 };
	assert.equal(pass({ ...GOOD, ...fraction }), token(full, "9KPscw8J5D_q8p8FuR7b2bKUuEWQLATe2fci1tA6Kfw"), "fractions shorten the validity");
});

test("an invalid member of a pass throws, and an invalid key is not quoted", () => {
	for (const key of [KEY, `:${KEY}`, `a b:${KEY}`, "shop:c2hvcnQ", `shop:${KEY}=`]) {
		assert.throws(() => passIssuer({ key }), (error) => !error.message.includes(key.split(":").at(-1)), key);
	}
	const bad = [
		{ user: undefined }, { user: "a|b" }, { user: "" }, { campaign: "a b" }, { expiresAt: AT }, { expiresAt: undefined },
		{ expiresAt: new Date("soon") }, { notBefore: null }, { units: 0 }, { units: 1.5 }, { units: "2" }, { units: 2 ** 32 }, { units: null },
	];
	for (const member of bad) assert.throws(() => pass({ ...GOOD, ...member }), /^(Type|Range)Error: (user|campaign|expiresAt|notBefore|units): /);
});
