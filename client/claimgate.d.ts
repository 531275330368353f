// Types of claimgate's client. Those of the server's answers have the members of openapi.json: a test compares them.

/** A time in UTC with milliseconds, as `2026-11-22T09:00:00.000Z`. */
export type Timestamp = string;

export type CampaignState = "scheduled" | "open" | "paused" | "ended" | "sold_out";

export type ClaimStatus = "granted" | "held" | "returned" | "expired" | "revoked";

/** How much may be claimed, in units; `null` is unlimited. */
export interface Limits {
	/** By all users together. */
	total: number | null;
	/** By one user, over the whole campaign. */
	per_user: number | null;
	/** By one user on one calendar day of the campaign's time zone. */
	per_user_per_day: number | null;
	/** In one claim. */
	per_claim: number | null;
}

/** A campaign as all callers see it. */
export interface CampaignView {
	id: string;
	name: string;
	state: CampaignState;
	starts_at: Timestamp;
	/** `null`: it stays open. */
	ends_at: Timestamp | null;
	/** The IANA time zone whose days count. */
	time_zone: string;
	limits: Limits;
	/** Units left of `total`; `null` when that is unlimited. */
	remaining: number | null;
	/** Raised by every change of the rules. */
	version: number;
	/** The clock that decides, when this was read. */
	server_time: Timestamp;
}

/** A claim. */
export interface Claim {
	/** The same for every retry. */
	id: string;
	campaign_id: string;
	user_id: string;
	/** Units. */
	quantity: number;
	status: ClaimStatus;
	/** Its place in the order in which the campaign's claims were granted or held, from 1. */
	sequence: number;
	claimed_at: Timestamp;
	/** Until when a held claim can be confirmed. */
	expires_at: Timestamp | null;
	/** Whether SQL holds it as it stands here; only in `claimById`. */
	persisted?: boolean | null;
}

/** What each limit leaves the user, in units; `null` is unlimited. What can be claimed at once is the least of them. */
export interface Allowance {
	per_claim: number | null;
	per_user_per_day: number | null;
	/** When `per_user_per_day` begins again; `null` without that limit. */
	resets_at: Timestamp | null;
	per_user: number | null;
	total: number | null;
}

/** A page of the user's claims of a campaign, newest first. */
export interface UserClaims {
	items: Claim[];
	/** The `cursor` of the next page; `null` on the last. */
	next_cursor: string | null;
	allowance: Allowance;
}

/** A claim that stands. */
export interface ClaimResult {
	/** As it stands now: `granted` or `held`; a claim asked for again may also be `returned`, `expired` or `revoked`. */
	claim: Claim;
	/** Units left of `total`; `null` when that is unlimited. */
	remaining: number | null;
	/** The campaign's version by which it was decided. */
	version: number;
	/** Whether the server had this claim already: an earlier try had reached it. */
	replayed: boolean;
}

/** The server's codes that a caller of the edge can meet. Later versions may add some. */
export type ServerCode =
	| "not_started" | "ended" | "paused" | "sold_out" | "user_limit_reached" | "user_daily_limit_reached"
	| "rate_limited" | "unauthenticated" | "forbidden" | "campaign_not_found" | "claim_not_found" | "not_found"
	| "method_not_allowed" | "request_timeout" | "invalid_request" | "quantity_out_of_range" | "idempotency_key_reused"
	| "payload_too_large" | "unsupported_media_type" | "campaign_not_ready" | "overloaded" | "unavailable";

/**
 * The client's own: no answer came; an answer that is none of the server's, as a proxy's page; a claim of another quantity is
 * still without an answer; another user has signed in while a claim was asked for, which stays the first one's; what gives the
 * token did not answer within `tryMs`.
 */
export type ClientCode = "network" | "unexpected_answer" | "claim_pending" | "user_changed" | "no_token";

/** A code. One that is not listed is passed on as it came. */
export type Code = ServerCode | ClientCode | (string & {});

/** A problem as the server sent it (RFC 9457). Of the client's own codes only `code` and `detail` are set. */
export interface Problem {
	code: Code;
	type?: string;
	title?: string;
	status?: number;
	detail?: string;
	/** The request's id, for support. */
	instance?: string;
	/** With `not_started`. */
	starts_at?: Timestamp | null;
	/** With `ended`, unless an admin ended it. */
	ends_at?: Timestamp | null;
	/** The limit that refused. */
	limit?: "total" | "per_user" | "per_user_per_day" | null;
	/** What that limit still allows this user, in units. */
	remaining?: number | null;
	/** With `user_daily_limit_reached`: when to try again. */
	resets_at?: Timestamp | null;
	/** With `invalid_request`: the member of the request that is wrong. */
	field?: string | null;
	/** The campaign's version by which it was refused. */
	version?: number | null;
	/** The claim that stands in the way. */
	claim?: Claim | null;
}

/** Every call that fails rejects with this, unless its `signal` was aborted: then with the signal's reason. */
export class ClaimgateError extends Error {
	constructor(problem: Problem, options?: { status?: number; retryAfterMs?: number; cause?: unknown });
	readonly name: "ClaimgateError";
	readonly code: Code;
	/** The HTTP status; 0 without an answer. */
	readonly status: number;
	readonly problem: Problem;
	/** How long the server asks to wait, in milliseconds; 0 when it does not say. */
	readonly retryAfterMs: number;
	/** Of a claim: whether it may have been granted all the same. Its key is kept: `claim` again asks for the same claim. */
	readonly outcomeUnknown: boolean;
}

/** Where the keys of claims without an answer are kept: as `localStorage`. */
export interface KeyStorage {
	getItem(name: string): string | null;
	setItem(name: string, text: string): unknown;
	removeItem(name: string): unknown;
}

/** A storage in memory. */
export function memoryStorage(): KeyStorage;

/** The user that a token names, without checking it; `me` when it names none. */
export function userOf(token: string | null | undefined): string;

/** A new idempotency key, for callers that keep it themselves: 128 random bits in 22 characters. */
export function newKey(): string;

type Token = string | null | undefined;

export interface ClaimgateClientOptions {
	/** The edge's address, as `https://claims.example.com`. Default: the page's own. */
	baseUrl?: string;
	/**
	 * The user's JWT, or what gives it. It is called before each call, and with `true` after the server has refused the token:
	 * a new one is tried once. It has `tryMs` to give it.
	 */
	token?: Token | ((refused: boolean) => Token | Promise<Token>);
	/** Default: `localStorage` in a page, else memory. */
	storage?: KeyStorage;
	/** How long `claim` asks in all, in milliseconds; a try with a renewed token may end later. Default: 20000. */
	deadlineMs?: number;
	/** How long one try may take, in milliseconds. Default: 6000. */
	tryMs?: number;
}

export interface CallOptions {
	signal?: AbortSignal;
}

export class ClaimgateClient {
	constructor(options?: ClaimgateClientOptions);

	/** The campaign. With `known`, a view that this gave before, a view that has not changed is that very object. One try. */
	campaign(campaignId: string, options?: CallOptions & { known?: CampaignView }): Promise<CampaignView>;

	/**
	 * Claims `quantity` units (default 1).
	 *
	 * A key is made and stored before the first try. It is tried again, with the same key, when the outcome is unknown (no
	 * answer, 408, 5xx) and when nothing was tried (`rate_limited`, `overloaded`, `campaign_not_ready`), never before
	 * `Retry-After`, with jitter, until the deadline. Calls of one user for one campaign until there is an answer, in this page,
	 * after a reload or in another tab with the same storage, are the same claim.
	 *
	 * With an `idempotencyKey` of your own nothing is stored, and no try is marked as the first.
	 *
	 * `onRetry` is told before each wait, in milliseconds.
	 *
	 * An aborted claim may have been granted; the next `claim` asks for it.
	 *
	 * A key is one user's. Where another one signs in meanwhile it ends with `user_changed`, and stays the first one's claim.
	 */
	claim(
		campaignId: string,
		options?: CallOptions & {
			quantity?: number;
			idempotencyKey?: string;
			onRetry?: (error: ClaimgateError, waitMs: number) => void;
		},
	): Promise<ClaimResult>;

	/** Whether a claim of the user's is without an answer, as after a reload: then `claim` asks for that one. */
	isPending(campaignId: string): Promise<boolean>;

	/**
	 * Forgets the key of the user's claim that is without an answer: the next `claim` is another one. The claim may have been
	 * granted all the same, now or still to come: `claims` tells. Gives the key, or `null` when there was none.
	 */
	forget(campaignId: string): Promise<string | null>;

	/** The user's claims of a campaign, and what is left to the user. One try. */
	claims(campaignId: string, options?: CallOptions & { limit?: number; cursor?: string }): Promise<UserClaims>;

	/** A claim of the user's. One try. */
	claimById(claimId: string, options?: CallOptions): Promise<Claim>;
}
