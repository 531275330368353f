// Types of claimgate-client/server, for back ends in Node.

/** The edge's settings of user ids. */
export interface HmacUserIdSettings {
	/** `USER_ID_KEY`: base64url without padding, at least 32 bytes. Keep it out of pages. */
	key: string;
	/** `USER_JWT_ISS`. */
	issuer: string;
	/** `USER_ID_CLAIM`; `sub` by default. */
	claim?: string;
}

/** User ids as an edge with `USER_ID_FORM=hmac` derives them. */
export interface HmacUserIds {
	/** Form and fingerprint, as `claimgate user-ids` shows them: `hmac:FFFFFF`. */
	readonly userIds: string;
	/**
	 * The id of the user whose token has `value` in the claim.
	 * @throws TypeError if `value` is empty or not a string.
	 */
	userId(value: string): string;
}

/** Throws if the key is malformed or too short. */
export function hmacUserIds(settings: HmacUserIdSettings): HmacUserIds;

/** A pass to sign. */
export interface Pass {
	/** The user's id in claims: with `USER_ID_FORM=hmac`, what `userId` returns. */
	user: string;
	/** The campaign that the user may claim from. */
	campaign: string;
	/** When the pass expires, in whole seconds. */
	expiresAt: Date;
	/** When the pass becomes valid, in whole seconds; immediately by default. */
	notBefore?: Date;
	/** The most units that the user may take in the whole campaign; by default only the campaign's limits apply. */
	units?: number;
}

/** Signs passes with one key. */
export interface PassIssuer {
	/**
	 * Returns the signed pass, which the user's page sends with a claim.
	 * @throws TypeError or RangeError if a member is missing or wrong.
	 */
	pass(pass: Pass): string;
}

/** `key` is one of the edge's `PASS_KEYS`, `kid:base64url-key`. Keep it out of pages. Throws if it is malformed or too short. */
export function passIssuer(settings: { key: string }): PassIssuer;
