// For a team's back end in Node: user ids and passes. Not part of the browser module. server.d.ts documents it.

import { createHash, createHmac } from "node:crypto";

const KEY_BYTES_MIN = 32, FINGERPRINT_CHARACTERS = 6, UNITS_MAX = 2 ** 32 - 1;
const ID = /^[\w-]{1,64}$/;

export function hmacUserIds({ key, issuer, claim = "sub" }) {
	const secret = secretOf(key);
	const hmac = (...parts) => parts.reduce((mac, part) => mac.update(part), createHmac("sha256", secret)).digest();
	const fields = [field("hmac"), field(claim), field(issuer), field(hmac("fingerprint"))];
	const hash = createHash("sha256").update(Buffer.concat(fields)).digest("base64url");
	const fingerprint = hash.slice(0, FINGERPRINT_CHARACTERS);
	return {
		userIds: `hmac:${fingerprint}`,
		userId(value) {
			if (typeof value !== "string" || !value) throw new TypeError("value: must be a string that is not empty");
			return `${fingerprint}_${hmac(field(issuer), field(value)).toString("base64url")}`;
		},
	};
}

export function passIssuer({ key }) {
	const [, kid, text] = /^([\w-]{1,64}):(.*)$/s.exec(key) ?? [];
	if (!kid) throw new TypeError("key: must be kid:base64url-key, as in PASS_KEYS");
	const secret = secretOf(text);
	const encoded = (content) => Buffer.from(JSON.stringify(content)).toString("base64url");
	const header = encoded({ alg: "HS256", typ: "claimgate-pass+jwt", kid });
	return {
		pass({ user, campaign, expiresAt, notBefore, units }) {
			for (const [name, id] of Object.entries({ user, campaign })) {
				if (typeof id !== "string" || !ID.test(id)) throw new TypeError(`${name}: must be 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'`);
			}
			if (units !== undefined && !(Number.isInteger(units) && units >= 1 && units <= UNITS_MAX)) {
				throw new RangeError(`units: must be a whole number from 1 to ${UNITS_MAX}`);
			}
			// Fractions of a second shorten the validity. JSON has no member for `undefined`.
			const exp = Math.floor(secondsOf("expiresAt", expiresAt));
			const nbf = notBefore === undefined ? undefined : Math.ceil(secondsOf("notBefore", notBefore));
			const signed = `${header}.${encoded({ sub: user, campaign, exp, nbf, units })}`;
			return `${signed}.${createHmac("sha256", secret).update(signed).digest("base64url")}`;
		},
	};
}

function secretOf(key) {
	const secret = Buffer.from(key, "base64url");
	if (secret.toString("base64url") !== key) throw new TypeError("key: must be base64url without padding");
	if (secret.length < KEY_BYTES_MIN) throw new RangeError(`key: must be at least ${KEY_BYTES_MIN} bytes`);
	return secret;
}

function secondsOf(name, date) {
	if (!(date instanceof Date) || Number.isNaN(date.getTime())) throw new TypeError(`${name}: must be a valid Date`);
	return date.getTime() / 1000;
}

// The bytes of a string after their number: no two lists of fields are the same bytes.
function field(content) {
	if (typeof content !== "string" && !Buffer.isBuffer(content)) throw new TypeError("issuer and claim: must be strings");
	const bytes = Buffer.from(content);
	const length = Buffer.alloc(4);
	length.writeUInt32BE(bytes.length);
	return Buffer.concat([length, bytes]);
}
