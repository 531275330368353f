// The client of claimgate's edge, for browsers and Node. What each export does: claimgate.d.ts.

const TRY_MS_MIN = 500, BACKOFF_MS = 400, RESENT_MS_MIN = 50;
const NOTHING_DONE = /^(rate_limited|overloaded)$/;
// This client's own: nothing was sent.
const NOTHING_SENT = /^(user_changed|no_token)$/;
// For a token that names no user: the server takes no claim by it.
const NO_USER = "me";
// Refusals of a first try that may come from a cache.
const CACHED = /^(not_started|paused|ended|sold_out)$/;
// Rules are tried after the look for the key: who is refused by one has no claim under it.
const DECIDED = /^(not_started|paused|ended|sold_out|user_\w*limit_reached|quantity_out_of_range|idempotency_key_reused)$/;

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

	constructor({ baseUrl = "", token, storage = usualStorage(), deadlineMs = 20000, tryMs = 6000 } = {}) {
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
		const kept = this.#read(this.#nameOf(campaignId, await this.#user()));
		return kept !== null && !kept.denied;
	}

	async forget(campaignId) {
		const name = this.#nameOf(campaignId, await this.#user());
		const kept = this.#read(name);
		if (kept) this.#write(name, null);
		return kept?.key ?? null;
	}

	async claim(campaignId, { quantity = 1, idempotencyKey, signal, onRetry } = {}) {
		signal?.throwIfAborted();
		const giveUpAt = performance.now() + this.#deadlineMs;
		const path = `${pathOf(campaignId)}/claims`;
		const keyOf = (user, key) => idempotencyKey ? { key: idempotencyKey } : this.#keep(this.#nameOf(campaignId, user), quantity, key);
		let user = await this.#user(signal);
		let kept = keyOf(user);
		let unknown = idempotencyKey ? true : kept.isOld; // a key of the caller's may have been sent before
		for (let tries = 1; ; tries++) {
			// A key is one user's: another one who signs in meanwhile must not claim by it. Before the first, there was no user.
			const request = (token) => {
				const now = userOf(token);
				if (now !== user) {
					if (user !== NO_USER) throw new ClaimgateError({ code: "user_changed", detail: "another user has signed in since" });
					this.#settle(kept);
					user = now;
					kept = keyOf(user, kept.key);
					unknown ||= kept.isOld;
				}
				return claimRequest(kept.key, tries === 1 && kept.isNew, quantity);
			};
			const sentAt = performance.now();
			const timings = tries === 1 && kept.isNew ? watchTimings() : () => [];
			try {
				const answer = await this.#callAsUser(path, request, { signal, withinMs: giveUpAt - sentAt });
				const { claim, remaining = null, version } = read(answer, "claim");
				this.#settle(kept);
				return { claim, remaining, version, replayed: answer.status === 200 };
			} catch (error) {
				if (!(error instanceof ClaimgateError)) throw error; // aborted: the key stays
				const twice = wasSentTwice(timings(), path);
				const doubtful = twice && CACHED.test(error.code);
				const wait = doubtful ? 0 : error.retryAfterMs + jitter(BACKOFF_MS * 2 ** tries);
				unknown ||= twice || isUnknown(error);
				const helps = doubtful || isUnknown(error) || NOTHING_DONE.test(error.code);
				if (!helps || performance.now() + wait + TRY_MS_MIN > giveUpAt) throw this.#settle(kept, error, unknown);
				onRetry?.(error, wait);
				await sleep(wait, signal);
			} finally {
				timings();
			}
		}
	}

	// The key of this claim, in storage before it is first sent: after a crash or a reload it is the same claim.
	#keep(name, quantity, fresh = newKey()) {
		const old = this.#read(name);
		const isOld = old?.quantity === quantity;
		if (old && !isOld && !old.denied) {
			const detail = `ask for ${old.quantity} first: that claim is without an answer`;
			throw Object.assign(new ClaimgateError({ code: "claim_pending", detail }), { outcomeUnknown: true });
		}
		const key = isOld ? old.key : fresh;
		this.#write(name, { key, quantity });
		return { name, key, quantity, isOld, isNew: !isOld };
	}

	// What becomes of the key. An answer that leaves no doubt frees it; while a claim may stand behind it, it stays.
	#settle({ name, key, quantity }, error, unknown) {
		const denied = DECIDED.test(error?.code);
		const stays = unknown && error.code !== "idempotency_key_reused";
		if (error) error.outcomeUnknown = Boolean(unknown && !denied);
		if (!name) return error; // the caller's own key
		const now = this.#read(name); // another tab may have freed it; who is in doubt puts it back
		if (now ? now.key !== key : !stays) return error;
		this.#write(name, stays ? { key, quantity, denied } : null);
		return error;
	}

	#nameOf(campaignId, user) {
		const at = this.#baseUrl && `@${this.#baseUrl}`;
		return `claimgate:${campaignId}:${user}${at}`;
	}

	async #user(signal) {
		return userOf(await this.#tokenNow(false, { signal }));
	}

	// What gives the token may hang, as a page that waits for a login: it has as long as a try.
	async #tokenNow(wasRefused, { signal, withinMs } = {}) {
		const limit = this.#limit(withinMs);
		try {
			return await until(Promise.resolve(this.#token(wasRefused)), either(signal, limit));
		} catch (cause) {
			signal?.throwIfAborted();
			if (!limit.aborted) throw cause;
			throw new ClaimgateError({ code: "no_token", detail: "what gives the token did not answer" }, { cause });
		}
	}

	#limit(withinMs = this.#tryMs) {
		return AbortSignal.timeout(Math.max(1, Math.ceil(Math.min(this.#tryMs, withinMs))));
	}

	#read(name) {
		try {
			const kept = JSON.parse(this.#storage.getItem(name));
			return typeof kept?.key === "string" ? kept : null;
		} catch {
			return null;
		}
	}

	// Storage may refuse (none left, a private window): then this client remembers.
	#write(name, kept) {
		const write = () => kept ? this.#storage.setItem(name, JSON.stringify(kept)) : this.#storage.removeItem(name);
		try {
			write();
		} catch {
			this.#storage = memoryStorage();
			write();
		}
	}

	// `request` makes a call of the token that it is sent with.
	async #callAsUser(path, request, options) {
		const ask = (token) => {
			const { headers, ...rest } = request(token);
			return this.#call(path, { ...rest, headers: token ? { ...headers, Authorization: `Bearer ${token}` } : headers }, options);
		};
		const token = await this.#tokenNow(false, options);
		const answer = await ask(token);
		const fresh = answer.status === 401 && (await this.#tokenNow(true, options));
		return fresh && fresh !== token ? ask(fresh) : answer;
	}

	async #call(path, request, { signal, withinMs } = {}) {
		try {
			const reply = await fetch(this.#baseUrl + path, { ...request, cache: "no-store", signal: either(signal, this.#limit(withinMs)) });
			const text = await reply.text();
			return { status: reply.status, headers: reply.headers, body: text[0] === "{" ? JSON.parse(text) : {} };
		} catch (cause) {
			signal?.throwIfAborted();
			throw new ClaimgateError({ code: "network", detail: "no answer came" }, { cause });
		}
	}
}

const etags = new WeakMap();
const jitter = (ms) => ms * (0.8 + 0.4 * Math.random());
const pathOf = (campaignId) => `/v1/campaigns/${encodeURIComponent(campaignId)}`;
const either = (signal, limit) => signal ? AbortSignal.any([signal, limit]) : limit;
const isUnknown = ({ status, code }) =>
	(status < 400 || status >= 500 || status === 408) && !NOTHING_DONE.test(code) && !NOTHING_SENT.test(code);

function usualStorage() {
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

function claimRequest(key, isFirst, quantity) {
	const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
	// Only a first try may be refused from a cache: a retry must find its claim.
	if (isFirst) headers["Claimgate-Attempt"] = "1";
	return { method: "POST", headers, body: JSON.stringify(quantity === 1 ? {} : { quantity }) };
}

// What `promise` gives, unless the signal is aborted first.
function until(promise, signal) {
	return new Promise((done, fail) => {
		const stop = () => fail(signal.reason);
		if (signal.aborted) stop();
		signal.addEventListener("abort", stop);
		promise.then(done, fail).finally(() => signal.removeEventListener("abort", stop));
	});
}

// The body when it has what was asked for. Anything else, as a proxy's page, is an error.
function read({ status, headers, body }, member) {
	if (status < 300 && body[member] !== undefined) return body;
	const problem = body.code ? body : { ...body, code: "unexpected_answer", detail: `status ${status} without a problem's code` };
	const after = headers.get("Retry-After") ?? 0;
	const retryAfterMs = Math.max(0, after * 1000 || Date.parse(after) - Date.now() || 0);
	throw new ClaimgateError(problem, { status, retryAfterMs });
}

// The timings since then, however many the page has had; told once, and watched no longer.
function watchTimings() {
	const seen = [];
	const observer = new PerformanceObserver((list) => seen.push(...list.getEntries()));
	observer.observe({ type: "resource" });
	return () => {
		seen.push(...observer.takeRecords());
		observer.disconnect();
		return seen;
	};
}

// A browser resends by itself when a kept connection is cut; the first copy may have won. The timing shows it.
function wasSentTwice(timings, path) {
	const lost = (t) => t.domainLookupStart - t.fetchStart + t.requestStart - t.connectEnd;
	return timings.some((t) => t.name.endsWith(path) && lost(t) > RESENT_MS_MIN);
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
