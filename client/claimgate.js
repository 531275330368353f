// The client of claimgate's edge, for browsers and Node. What each export does: claimgate.d.ts.

const TRY_MS_MIN = 500, BACKOFF_MS = 400, RESENT_MS_MIN = 50;
const NOTHING_DONE = /^(rate_limited|overloaded)$/;
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
		const answer = await this.#call(pathOf(campaignId), { signal, headers });
		if (etag && answer.status === 304) return known;
		const view = read(answer, "state");
		etags.set(view, answer.headers.get("ETag"));
		return view;
	}

	async claims(campaignId, { signal, limit, cursor } = {}) {
		const query = String(new URLSearchParams(JSON.parse(JSON.stringify({ limit, cursor }))));
		return read(await this.#callAsUser(`${pathOf(campaignId)}/claims${query && `?${query}`}`, { signal }), "items");
	}

	async claimById(claimId, { signal } = {}) {
		return read(await this.#callAsUser(`/v1/claims/${encodeURIComponent(claimId)}`, { signal }), "claim").claim;
	}

	async isPending(campaignId) {
		const kept = this.#read(await this.#nameOf(campaignId));
		return kept !== null && !kept.denied;
	}

	async claim(campaignId, { quantity = 1, idempotencyKey, signal, onRetry } = {}) {
		signal?.throwIfAborted();
		const giveUpAt = performance.now() + this.#deadlineMs;
		const path = `${pathOf(campaignId)}/claims`;
		const kept = idempotencyKey ? { key: idempotencyKey } : this.#keep(await this.#nameOf(campaignId), quantity);
		let unknown = idempotencyKey ? true : kept.isOld; // a key of the caller's may have been sent before
		for (let tries = 1; ; tries++) {
			const isFirst = tries === 1 && kept.isNew;
			const sentAt = performance.now();
			const timings = isFirst ? watchTimings() : () => [];
			try {
				const answer = await this.#post(path, { key: kept.key, isFirst, quantity, signal, withinMs: giveUpAt - sentAt });
				this.#settle(kept);
				return answer;
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
	#keep(name, quantity) {
		const old = this.#read(name);
		const isOld = old?.quantity === quantity;
		if (old && !isOld && !old.denied) {
			const detail = `ask for ${old.quantity} first: that claim is without an answer`;
			throw Object.assign(new ClaimgateError({ code: "claim_pending", detail }), { outcomeUnknown: true });
		}
		const key = isOld ? old.key : newKey();
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

	async #nameOf(campaignId) {
		const at = this.#baseUrl && `@${this.#baseUrl}`;
		return `claimgate:${campaignId}:${userOf(await this.#token(false))}${at}`;
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

	async #post(path, { key, isFirst, quantity, signal, withinMs }) {
		const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
		// Only a first try may be refused from a cache: a retry must find its claim.
		if (isFirst) headers["Claimgate-Attempt"] = "1";
		const body = JSON.stringify(quantity === 1 ? {} : { quantity });
		const answer = await this.#callAsUser(path, { method: "POST", headers, body, signal }, withinMs);
		const { claim, remaining = null, version } = read(answer, "claim");
		return { claim, remaining, version, replayed: answer.status === 200 };
	}

	async #callAsUser(path, request, withinMs) {
		const ask = (token) => {
			const headers = token ? { ...request.headers, Authorization: `Bearer ${token}` } : request.headers;
			return this.#call(path, { ...request, headers }, withinMs);
		};
		const token = await this.#token(false);
		const answer = await ask(token);
		const fresh = answer.status === 401 && (await this.#token(true));
		return fresh && fresh !== token ? ask(fresh) : answer;
	}

	async #call(path, { signal, ...request }, withinMs = this.#tryMs) {
		const limit = AbortSignal.timeout(Math.max(1, Math.ceil(Math.min(this.#tryMs, withinMs))));
		try {
			const either = signal ? AbortSignal.any([signal, limit]) : limit;
			const reply = await fetch(this.#baseUrl + path, { ...request, cache: "no-store", signal: either });
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
const isUnknown = ({ status, code }) => (status < 400 || status >= 500 || status === 408) && !NOTHING_DONE.test(code);

function usualStorage() {
	try {
		return globalThis.document ? globalThis.localStorage : memoryStorage();
	} catch {
		return memoryStorage(); // the browser forbids it
	}
}

export function userOf(token) {
	try {
		return JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).sub ?? "me";
	} catch {
		return "me";
	}
}

export function newKey() {
	const bytes = crypto.getRandomValues(new Uint8Array(16));
	return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
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
