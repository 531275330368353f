// The client for claimgate's edge, for browsers and Node. claimgate.d.ts documents the exports.

const TRY_MS_MIN = 500, BACKOFF_MS = 400, RESENT_MS_MIN = 50;
// The request was not processed; a retry may help.
const NOT_PROCESSED = /^(rate_limited|overloaded)$/;
// The request was not processed, and a retry cannot help. The last three are the client's own codes.
const NOT_PROCESSED_FINAL = /^(not_configured|user_ids_differ|user_changed|no_token|no_pass)$/;
// Stands for the user if the token has no `sub`. The server accepts such a token only if USER_ID_CLAIM is not `sub`.
const NO_USER = "me";
// Denials of a first try that may come from a cache.
const CACHEABLE = /^(not_started|paused|ended|pass_required|sold_out)$/;
// The server looks up the key before it applies the rules, so after such a denial there is no claim with this key.
const DECIDED = /^(not_started|paused|ended|pass_required|sold_out|user_\w*limit_reached|quantity_out_of_range|idempotency_key_reused)$/;

export class ClaimgateError extends Error {
	constructor(problem, { status = 0, retryAfterMs = 0, cause } = {}) {
		super(problem.detail ?? problem.title ?? problem.code, { cause });
		Object.assign(this, { name: "ClaimgateError", code: problem.code, status, problem, retryAfterMs, outcomeUnknown: false });
	}
}

export function memoryStorage() {
	const items = new Map();
	return {
		getItem: (name) => items.get(name) ?? null,
		setItem: (name, text) => items.set(name, text),
		removeItem: (name) => items.delete(name),
	};
}

export class ClaimgateClient {
	#baseUrl; #token; #storage; #deadlineMs; #tryMs;

	constructor({ baseUrl = "", token, storage = defaultStorage(), deadlineMs = 20000, tryMs = 6000 } = {}) {
		this.#baseUrl = baseUrl.replace(/\/+$/, "");
		this.#token = typeof token === "function" ? token : () => token;
		this.#storage = storage;
		this.#deadlineMs = deadlineMs;
		this.#tryMs = tryMs;
	}

	async campaign(campaignId, { signal, known } = {}) {
		const etag = etags.get(known);
		const headers = etag ? { "If-None-Match": etag } : {};
		const answer = await this.#call(pathOf(campaignId), { headers }, { signal });
		if (etag && answer.status === 304) return known;
		const view = read(answer, "state");
		etags.set(view, answer.headers.get("ETag"));
		return view;
	}

	async claims(campaignId, { signal, limit, cursor } = {}) {
		const query = String(new URLSearchParams(JSON.parse(JSON.stringify({ limit, cursor }))));
		return read(await this.#callAsUser(`${pathOf(campaignId)}/claims${query && `?${query}`}`, () => ({}), { signal }), "items");
	}

	async claimById(claimId, { signal } = {}) {
		return read(await this.#callAsUser(`/v1/claims/${encodeURIComponent(claimId)}`, () => ({}), { signal }), "claim").claim;
	}

	async isPending(campaignId) {
		const entry = this.#read(this.#storageName(campaignId, await this.#user()));
		return entry !== null && !entry.denied;
	}

	async forget(campaignId) {
		const name = this.#storageName(campaignId, await this.#user());
		const entry = this.#read(name);
		if (entry) this.#write(name, null);
		return entry?.key ?? null;
	}

	async claim(campaignId, { quantity = 1, idempotencyKey, pass, signal, onRetry } = {}) {
		signal?.throwIfAborted();
		const passOf = typeof pass === "function" ? pass : () => pass;
		const nextPass = (wasRejected) => this.#ask("pass", () => passOf(wasRejected), signal, this.#deadlineMs);
		let shown = await nextPass(false), wasRenewed = false;
		let deadline = performance.now() + this.#deadlineMs;
		const path = `${pathOf(campaignId)}/claims`;
		const entryOf = (user, key) => idempotencyKey ? { key: idempotencyKey } : this.#storeKey(this.#storageName(campaignId, user), quantity, key);
		let user = await this.#user(signal);
		let entry = entryOf(user);
		let unknown = idempotencyKey ? true : entry.isOld; // the caller may have sent its own key before
		for (let tries = 1; ; tries++) {
			// A key belongs to one user: if a different user signs in meanwhile, that user must not claim with it.
			// NO_USER may still sign in.
			const request = (token) => {
				const tokenUser = userOf(token);
				if (tokenUser !== user) {
					if (user !== NO_USER) throw new ClaimgateError({ code: "user_changed", detail: "another user has signed in since this claim began" });
					this.#settle(entry);
					user = tokenUser;
					entry = entryOf(user, entry.key);
					unknown ||= entry.isOld;
				}
				return claimRequest(entry.key, tries === 1 && entry.isNew, quantity, shown);
			};
			const sentAt = performance.now();
			const timings = tries === 1 && entry.isNew ? watchTimings() : () => [];
			try {
				const answer = await this.#callAsUser(path, request, { signal, withinMs: deadline - sentAt });
				const { claim, remaining = null, version } = read(answer, "claim");
				this.#settle(entry);
				return { claim, remaining, version, replayed: answer.status === 200 };
			} catch (error) {
				if (!(error instanceof ClaimgateError)) throw error; // aborted: the key stays
				const sentTwice = wasSentTwice(timings(), path);
				const isDoubtful = sentTwice && CACHEABLE.test(error.code);
				if (error.code === "pass_required" && !isDoubtful && !wasRenewed) {
					this.#settle(entry, error, unknown);
					const renewed = await nextPass(true);
					if (!renewed || renewed === shown) throw error;
					[shown, wasRenewed, deadline] = [renewed, true, performance.now() + this.#deadlineMs];
					entry = entryOf(user, entry.key);
					continue;
				}
				const wait = isDoubtful ? 0 : error.retryAfterMs + jitter(BACKOFF_MS * 2 ** tries);
				unknown ||= sentTwice || isUnknown(error);
				const retryHelps = isDoubtful || isUnknown(error) || NOT_PROCESSED.test(error.code);
				if (!retryHelps || performance.now() + wait + TRY_MS_MIN > deadline) throw this.#settle(entry, error, unknown);
				onRetry?.(error, wait);
				await sleep(wait, signal);
			} finally {
				timings();
			}
		}
	}

	// Returns the stored key or stores a new one. It is stored before the first try, so a retry after a reload is the same
	// claim.
	#storeKey(name, quantity, fresh = newKey()) {
		const old = this.#read(name);
		const isOld = old?.quantity === quantity;
		if (old && !isOld && !old.denied) {
			const detail = `a claim with quantity ${old.quantity} is pending: retry it before you claim a different quantity`;
			throw Object.assign(new ClaimgateError({ code: "claim_pending", detail }), { outcomeUnknown: true });
		}
		const key = isOld ? old.key : fresh;
		this.#write(name, { key, quantity });
		return { name, key, quantity, isOld, isNew: !isOld };
	}

	// Removes the key once the outcome is known. Keeps it while a claim with it may have been granted, and while only a
	// pass is missing. Returns `error`.
	#settle({ name, key, quantity }, error, unknown) {
		const denied = DECIDED.test(error?.code);
		const keepKey = error?.code === "pass_required" || (unknown && error.code !== "idempotency_key_reused");
		if (error) error.outcomeUnknown = Boolean(unknown && !denied);
		if (!name) return error; // the caller's own key
		const current = this.#read(name); // another tab may have removed it; restore it if the outcome is unknown
		if (current ? current.key !== key : !keepKey) return error;
		this.#write(name, keepKey ? { key, quantity, denied } : null);
		return error;
	}

	#storageName(campaignId, user) {
		const at = this.#baseUrl && `@${this.#baseUrl}`;
		return `claimgate:${campaignId}:${user}${at}`;
	}

	async #user(signal) {
		return userOf(await this.#currentToken(false, { signal }));
	}

	// The token function gets as much time as a try.
	#currentToken(wasRejected, { signal, withinMs } = {}) {
		return this.#ask("token", () => this.#token(wasRejected), signal, this.#tryLimitMs(withinMs));
	}

	// Returns what the caller's function returns. It may hang, such as one that waits for a login.
	async #ask(name, source, signal, limitMs) {
		const limit = abortedAfter(limitMs);
		try {
			return await unlessAborted(Promise.resolve(source()), firstOf(signal, limit));
		} catch (cause) {
			signal?.throwIfAborted();
			if (!limit.aborted) throw cause;
			throw new ClaimgateError({ code: `no_${name}`, detail: `the ${name} function did not return in time` }, { cause });
		}
	}

	#tryLimitMs(withinMs = this.#tryMs) {
		return Math.max(1, Math.ceil(Math.min(this.#tryMs, withinMs)));
	}

	#read(name) {
		try {
			const entry = JSON.parse(this.#storage.getItem(name));
			return typeof entry?.key === "string" ? entry : null;
		} catch {
			return null;
		}
	}

	// Storage may fail (full, or a private window). Then the keys are kept in memory.
	#write(name, entry) {
		const write = () => entry ? this.#storage.setItem(name, JSON.stringify(entry)) : this.#storage.removeItem(name);
		try {
			write();
		} catch {
			this.#storage = memoryStorage();
			write();
		}
	}

	// `request` is a function from the token to the request. A rejected token is renewed once.
	async #callAsUser(path, request, options) {
		const send = (token) => {
			const { headers, ...rest } = request(token);
			return this.#call(path, { ...rest, headers: token ? { ...headers, Authorization: `Bearer ${token}` } : headers }, options);
		};
		const token = await this.#currentToken(false, options);
		const answer = await send(token);
		const renewed = answer.status === 401 && (await this.#currentToken(true, options));
		return renewed && renewed !== token ? send(renewed) : answer;
	}

	async #call(path, request, { signal, withinMs } = {}) {
		try {
			const reply = await fetch(this.#baseUrl + path, { ...request, cache: "no-store", signal: firstOf(signal, abortedAfter(this.#tryLimitMs(withinMs))) });
			const text = await reply.text();
			return { status: reply.status, headers: reply.headers, body: text[0] === "{" ? JSON.parse(text) : {} };
		} catch (cause) {
			signal?.throwIfAborted();
			throw new ClaimgateError({ code: "network", detail: "no response from the server" }, { cause });
		}
	}
}

const etags = new WeakMap();
const jitter = (ms) => ms * (0.8 + 0.4 * Math.random());
const pathOf = (campaignId) => `/v1/campaigns/${encodeURIComponent(campaignId)}`;
const firstOf = (signal, limit) => signal ? abortedWithAny([signal, limit]) : limit;
const isUnknown = ({ status, code }) =>
	(status < 400 || status >= 500 || status === 408) && !NOT_PROCESSED.test(code) && !NOT_PROCESSED_FINAL.test(code);

// Returns a signal that aborts after `ms`.
function abortedAfter(ms) {
	if (AbortSignal.timeout) return AbortSignal.timeout(ms);
	const controller = new AbortController(); // Safari before 16
	setTimeout(() => controller.abort(new DOMException("timed out", "TimeoutError")), ms);
	return controller.signal;
}

// Returns a signal that aborts with the first of `signals`.
function abortedWithAny(signals) {
	if (AbortSignal.any) return AbortSignal.any(signals);
	const controller = new AbortController(); // Safari before 17.4, Firefox before 124, Chrome before 116
	for (const signal of signals) {
		const abort = () => controller.abort(signal.reason);
		if (signal.aborted) abort();
		else signal.addEventListener("abort", abort, { signal: controller.signal });
	}
	return controller.signal;
}

function defaultStorage() {
	try {
		return globalThis.document ? globalThis.localStorage : memoryStorage();
	} catch {
		return memoryStorage(); // the browser forbids it
	}
}

export function userOf(token) {
	try {
		return JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).sub ?? NO_USER;
	} catch {
		return NO_USER;
	}
}

export function newKey() {
	const bytes = crypto.getRandomValues(new Uint8Array(16));
	return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
}

function claimRequest(key, isFirst, quantity, pass) {
	const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
	// Only a first try may be rejected from a cache. A retry must reach the server that stores the claim.
	if (isFirst) headers["Claimgate-Attempt"] = "1";
	if (pass) headers["Claimgate-Pass"] = pass;
	return { method: "POST", headers, body: JSON.stringify(quantity === 1 ? {} : { quantity }) };
}

// Resolves like `promise`, unless the signal is aborted first.
function unlessAborted(promise, signal) {
	return new Promise((done, fail) => {
		const stop = () => fail(signal.reason);
		if (signal.aborted) stop();
		signal.addEventListener("abort", stop);
		promise.then(done, fail).finally(() => signal.removeEventListener("abort", stop));
	});
}

// Returns the body if it has `member`. Otherwise throws the problem, or `unexpected_answer` for a proxy's page.
function read({ status, headers, body }, member) {
	if (status < 300 && body[member] !== undefined) return body;
	const problem = body.code ? body : { ...body, code: "unexpected_answer", detail: `status ${status} without a problem's code` };
	const after = headers.get("Retry-After") ?? 0;
	const retryAfterMs = Math.max(0, after * 1000 || Date.parse(after) - Date.now() || 0);
	throw new ClaimgateError(problem, { status, retryAfterMs });
}

// Starts to record resource timings, even if the page's buffer is full. Returns a function that stops
// recording and returns the timings.
function watchTimings() {
	const entries = [];
	const observer = new PerformanceObserver((list) => entries.push(...list.getEntries()));
	observer.observe({ type: "resource" });
	return () => {
		entries.push(...observer.takeRecords());
		observer.disconnect();
		return entries;
	};
}

// A browser resends a request by itself if a reused connection breaks, and the first copy may have been granted.
// Returns whether the timings show such a gap.
function wasSentTwice(timings, path) {
	const gap = (t) => t.domainLookupStart - t.fetchStart + t.requestStart - t.connectEnd;
	return timings.some((t) => t.name.endsWith(path) && gap(t) > RESENT_MS_MIN);
}

async function sleep(ms, signal) {
	signal?.throwIfAborted();
	await new Promise((done, fail) => {
		const end = () => {
			clearTimeout(timer);
			signal?.removeEventListener("abort", end);
			if (signal?.aborted) fail(signal.reason);
			else done();
		};
		const timer = setTimeout(end, ms);
		signal?.addEventListener("abort", end);
	});
}
