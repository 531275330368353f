// Types of claimgate's client. A test compares the types of the server's responses with openapi.json.

/** A time in UTC with milliseconds, such as `2026-11-22T09:00:00.000Z`. */
export type Timestamp = string;

export type CampaignState = "scheduled" | "open" | "paused" | "ended" | "sold_out";

export type ClaimStatus = "granted" | "held" | "returned" | "expired" | "revoked";

/** Limits on the number of units; `null` is unlimited. */
export interface Limits {
	/** Limit for all users together. */
	total: number | null;
	/** Limit for one user in the whole campaign. */
	per_user: number | null;
	/** Limit for one user per calendar day in the campaign's time zone. */
	per_user_per_day: number | null;
	/** Limit for one claim. */
	per_claim: number | null;
}

/** When a campaign's claims need a pass: always, or in a presale until `until`. */
export type PassRule = { required: "always" } | { required: "until"; until: Timestamp };

/** A campaign as all callers see it. */
export interface CampaignView {
	id: string;
	name: string;
	state: CampaignState;
	starts_at: Timestamp;
	/** `null` if the campaign has no end. */
	ends_at: Timestamp | null;
	/** IANA time zone of the daily limit's calendar days. */
	time_zone: string;
	limits: Limits;
	/** When claims need a pass; `null` if they never do. */
	pass: PassRule | null;
	/** Whether each unit of a granted claim has a code. */
	codes: boolean;
	/** Units left of `total`; `null` if the total is unlimited. */
	remaining: number | null;
	/** Incremented by every change of the rules. */
	version: number;
	/** The time of this view, by the clock that decides claims. */
	server_time: Timestamp;
}

/** A claim. */
export interface Claim {
	/** The same for every retry. */
	id: string;
	campaign_id: string;
	user_id: string;
	/** Units claimed. */
	quantity: number;
	status: ClaimStatus;
	/** The claim's number in the order in which the campaign's claims were granted or held, from 1. */
	sequence: number;
	claimed_at: Timestamp;
	/** When a held claim expires unless it is confirmed. */
	expires_at: Timestamp | null;
	/** Whether SQL has the claim in its current state; only in `claimById`. */
	persisted?: boolean | null;
	/**
	 * The codes of a granted claim, one for each unit; only in lookups and lists, and only if the campaign has codes.
	 * Empty until claimgate has stored them, normally within a second.
	 */
	codes?: string[] | null;
}

/** Units that each limit leaves the user; `null` is unlimited. The smallest number is the maximum for one call. */
export interface Allowance {
	per_claim: number | null;
	per_user_per_day: number | null;
	/** When the daily limit resets; `null` without a daily limit. */
	resets_at: Timestamp | null;
	per_user: number | null;
	total: number | null;
}

/** A page of the user's claims from a campaign, newest first. */
export interface UserClaims {
	items: Claim[];
	/** The `cursor` of the next page; `null` on the last page. */
	next_cursor: string | null;
	allowance: Allowance;
}

/** The result of a successful `claim`. */
export interface ClaimResult {
	/** The claim in its current status: `granted` or `held`; after a retry also `returned`, `expired` or `revoked`. */
	claim: Claim;
	/** Units left of `total`; `null` if the total is unlimited. */
	remaining: number | null;
	/** The version of the campaign's rules at the decision. */
	version: number;
	/** Whether the server already had this claim, because an earlier try reached it. */
	replayed: boolean;
}

/** The server's codes that a caller of the edge can get. Later versions may add codes. */
export type ServerCode =
	| "not_started" | "ended" | "paused" | "pass_required" | "challenge_failed" | "sold_out" | "user_limit_reached" | "user_daily_limit_reached"
	| "rate_limited" | "unauthenticated" | "forbidden" | "campaign_not_found" | "claim_not_found" | "not_found"
	| "method_not_allowed" | "request_timeout" | "invalid_request" | "quantity_out_of_range" | "idempotency_key_reused"
	| "payload_too_large" | "unsupported_media_type" | "campaign_not_ready" | "overloaded" | "unavailable" | "not_configured"
	| "user_ids_differ";

/**
 * The client's own codes:
 * - `network`: there was no response.
 * - `unexpected_answer`: the response is not from the server, such as a proxy's page.
 * - `claim_pending`: the outcome of a claim for a different quantity is still unknown.
 * - `user_changed`: another user signed in during a claim. The claim still belongs to the first user.
 * - `no_token`: the token function did not return within `tryMs`.
 * - `no_pass`: the pass function did not return within `deadlineMs`.
 */
export type ClientCode = "network" | "unexpected_answer" | "claim_pending" | "user_changed" | "no_token" | "no_pass";

/** A problem code. Unlisted codes are passed on as received. */
export type Code = ServerCode | ClientCode | (string & {});

/** A problem as the server sent it (RFC 9457). With the client's own codes, only `code` and `detail` are set. */
export interface Problem {
	code: Code;
	type?: string;
	title?: string;
	status?: number;
	detail?: string;
	/** The request id, for support. */
	instance?: string;
	/** When the campaign opens; with `not_started`. */
	starts_at?: Timestamp | null;
	/** When the campaign closed; with `ended`, unless an admin ended the campaign. */
	ends_at?: Timestamp | null;
	/** Until when claims need a pass; with `pass_required`, unless they always do. */
	until?: Timestamp | null;
	/** The limit that denied the claim. */
	limit?: "total" | "per_user" | "per_user_per_day" | null;
	/** Units that the limit still allows the user. */
	remaining?: number | null;
	/** When the daily limit resets; with `user_daily_limit_reached`. */
	resets_at?: Timestamp | null;
	/** The invalid member of the request; with `invalid_request`. */
	field?: string | null;
	/** The version of the campaign's rules at the decision. */
	version?: number | null;
	/** The claim that conflicts with the request. */
	claim?: Claim | null;
}

/** Every failed call rejects with this error, or with the signal's reason if its `signal` was aborted. */
export class ClaimgateError extends Error {
	constructor(problem: Problem, options?: { status?: number; retryAfterMs?: number; cause?: unknown });
	readonly name: "ClaimgateError";
	readonly code: Code;
	/** The HTTP status; 0 without a response. */
	readonly status: number;
	readonly problem: Problem;
	/** The server's `Retry-After` in milliseconds; 0 if it sent none. */
	readonly retryAfterMs: number;
	/** Only for `claim`: the claim may still have been granted. The key is kept, so the next `claim` is a retry. */
	readonly outcomeUnknown: boolean;
}

/** Stores the keys of claims whose outcome is unknown. Has the interface of `localStorage`. */
export interface KeyStorage {
	getItem(name: string): string | null;
	setItem(name: string, text: string): unknown;
	removeItem(name: string): unknown;
}

/** Creates a storage in memory. */
export function memoryStorage(): KeyStorage;

/** Returns the user that a token names, without verifying it; `me` if it names none. */
export function userOf(token: string | null | undefined): string;

/** Generates an idempotency key, for callers that store it themselves: 128 random bits in 22 characters. */
export function newKey(): string;

type Token = string | null | undefined;

type Pass = string | null | undefined;

export interface ClaimgateClientOptions {
	/** The edge's address, such as `https://claims.example.com`. Default: the page's own. */
	baseUrl?: string;
	/**
	 * The user's JWT, or a function that returns it. The function is called before each call. It is called with
	 * `true` after the server has rejected the token, and the new token is tried once. It must return within
	 * `tryMs`.
	 */
	token?: Token | ((rejected: boolean) => Token | Promise<Token>);
	/** Default: `localStorage` in a page, memory elsewhere. */
	storage?: KeyStorage;
	/** Total time limit of `claim`, in milliseconds; a try with a renewed token may end later. Default: 20000. */
	deadlineMs?: number;
	/** Time limit of one try, in milliseconds. Default: 6000. */
	tryMs?: number;
}

export interface CallOptions {
	signal?: AbortSignal;
}

export class ClaimgateClient {
	constructor(options?: ClaimgateClientOptions);

	/** Returns the campaign. If it is unchanged since `known`, a view returned earlier, returns that object. One try. */
	campaign(campaignId: string, options?: CallOptions & { known?: CampaignView }): Promise<CampaignView>;

	/**
	 * Claims `quantity` units (default 1).
	 *
	 * Generates a key and stores it before the first try. Retries with the same key if the outcome is unknown (no
	 * response, 408, 5xx) or if the request was not processed (`rate_limited`, `overloaded`). Waits for `Retry-After` plus
	 * a backoff with jitter before each retry, and stops at the deadline. Until the outcome is known, all calls of one
	 * user for one campaign are the same claim: in this page, after a reload, and in other tabs with the same storage.
	 *
	 * With your own `idempotencyKey`, nothing is stored and no try is marked as the first.
	 *
	 * `onRetry` is called before each wait, with the error and the wait in milliseconds.
	 *
	 * `pass` is the user's pass for the campaign, or a function that returns it. The function is called before the first
	 * try. It is called with `true` after `pass_required`, and a new pass is sent once, with the same key. It must return
	 * within `deadlineMs`. If `claim` fails with `pass_required`, the key is kept: the next `claim` sends it again.
	 *
	 * An aborted claim may have been granted. The next `claim` is the same claim.
	 *
	 * A key belongs to one user. If another user signs in meanwhile, the call fails with `user_changed`, and the claim
	 * still belongs to the first user.
	 */
	claim(
		campaignId: string,
		options?: CallOptions & {
			quantity?: number;
			idempotencyKey?: string;
			pass?: Pass | ((rejected: boolean) => Pass | Promise<Pass>);
			onRetry?: (error: ClaimgateError, waitMs: number) => void;
		},
	): Promise<ClaimResult>;

	/** Returns whether the outcome of a claim by the user is unknown, for example after a reload. `claim` then retries it. */
	isPending(campaignId: string): Promise<boolean>;

	/**
	 * Forgets the key of the user's claim whose outcome is unknown: the next `claim` is a new claim. The old one may still
	 * be granted; `claims` shows it. Returns the key, or `null` if there was none.
	 */
	forget(campaignId: string): Promise<string | null>;

	/** Returns the user's claims from a campaign and the user's allowance. One try. */
	claims(campaignId: string, options?: CallOptions & { limit?: number; cursor?: string }): Promise<UserClaims>;

	/** Returns one claim of the user. One try. */
	claimById(claimId: string, options?: CallOptions): Promise<Claim>;
}
