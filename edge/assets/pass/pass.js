// The visitor's pass for a campaign that requires one: from the link, or from the edge for a solved challenge. Loaded
// by the page only for such a campaign. The page calls `update` every second.

import { load, save } from "../storage.js";

// Passes outlive the opening by far. So pages get them at a random time before it, not all at the same moment, and no
// claim waits.
const LEAD_MS_MAX = 1200000, LEAD_MS_MIN = 20000;
const RENEW_MS_MAX = 240000, RENEW_MS_MIN = 60000; // before a pass expires
const PROBE_MS_MAX = 2000, RETRY_MS_MIN = 15000, RETRY_MS_MAX = 240000;
const OPEN = /^(scheduled|open)$/;

const between = (from, to) => from + Math.random() * (to - from);

class NoAnswer extends Error {
	constructor(reply, code) {
		super(`status ${reply.status}: ${code}`);
		this.status = reply.status;
	}
}

async function bodyOf(reply) {
	const body = await reply.json?.().catch(() => ({}));
	if (!reply.ok) throw new NoAnswer(reply, body?.code);
	return body;
}

// Returns when a pass expires, in milliseconds; NaN if it is malformed.
function expiryOf(pass) {
	try {
		return 1000 * JSON.parse(atob(pass.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).exp;
	} catch {
		return NaN;
	}
}

export class Passes {
	// none: not needed. waiting: needed later. solving. shown: the visitor has one. failed: a retry follows. missing: this
	// edge issues none. insecure: the page was not opened over HTTPS, which ALTCHA's solver needs.
	state = "none";
	kind; // of the challenge that is being solved
	retryAt;
	#final; // "missing" or "insecure", which no retry changes
	#user; #version; #nextAt; #isProbed; #getting; #failures = 0;
	#campaign; #ask; #now; #changed; #box; #language;

	// `ask(path, options)` sends a request as the current user. `now()` is the server's time. `changed()` is called after
	// each change of state. `box` is the element for a widget in `language()`.
	constructor({ campaign, ask, now, changed, box, language }) {
		[this.#campaign, this.#ask, this.#now, this.#changed, this.#box, this.#language] = [campaign, ask, now, changed, box, language];
	}

	get #entry() {
		return load(`pass:${this.#campaign}`, "sessionStorage");
	}

	// Returns the pass, if it is valid and not another user's. Only the edge knows whether a link's pass is this user's.
	get current() {
		const { pass, user = this.#user } = this.#entry ?? {};
		return user === this.#user && this.#now() < expiryOf(pass) ? pass : null;
	}

	get expiresAt() {
		return expiryOf(this.current);
	}

	// Forgets a pass that the server did not accept.
	drop() {
		save(`pass:${this.#campaign}`, null, "sessionStorage");
		this.#nextAt = null;
	}

	// Gets a pass when it is time. `user` is null without a signed-in user.
	update(view, user) {
		if (user !== this.#user || view.version !== this.#version) {
			[this.#user, this.#version, this.#nextAt] = [user, view.version, null];
		}
		const opensAt = Date.parse(view.starts_at), { required, until } = view.pass ?? {};
		const isNeeded = user && (required === "always" || Math.max(this.#now(), opensAt) < Date.parse(until));
		if (!isNeeded) return this.#enter("none");
		const isKept = Boolean(this.current);
		if (!this.#getting) this.#enter(isKept ? "shown" : (this.#final ?? (this.state === "failed" ? "failed" : "waiting")));
		if (this.#final || this.#getting || !OPEN.test(view.state)) return;
		if (!isKept && !this.#isProbed) return this.#probe();
		this.#nextAt ??= isKept ? this.expiresAt - between(RENEW_MS_MIN, RENEW_MS_MAX) : this.#draw(opensAt);
		if (this.#now() >= this.#nextAt) this.get();
	}

	// Returns a time before the opening, or now if it is too late for that.
	#draw(opensAt) {
		return between(Math.max(this.#now(), opensAt - LEAD_MS_MAX), Math.max(this.#now(), opensAt - LEAD_MS_MIN));
	}

	// Finds out whether this edge issues passes: then it refuses to issue one without a token.
	#probe() {
		this.#isProbed = true;
		setTimeout(async () => {
			if (this.state !== "waiting") return;
			const { status } = await this.#ask("/challenge", { isAnonymous: true });
			if (status === 404) this.#final = "missing";
		}, between(0, PROBE_MS_MAX));
	}

	// Gets a pass now, and returns whether there is one.
	async get() {
		if (!this.#final) this.#getting ??= this.#get().finally(() => { this.#getting = null; });
		await this.#getting;
		return Boolean(this.current);
	}

	async #get() {
		const user = this.#user;
		if (!this.current) this.#enter("solving"); // a renewal stays in the background
		try {
			const [[kind, challenge]] = Object.entries(await bodyOf(await this.#ask("/challenge")));
			if (kind === "altcha" && !isSecureContext) {
				this.#final = "insecure";
				return this.#enter(this.current ? "shown" : "insecure");
			}
			this.kind = kind;
			this.#changed();
			const solved = await this.#solve(kind, challenge);
			const body = JSON.stringify({ [kind]: solved });
			const post = { method: "POST", body, headers: { "Content-Type": "application/json" } };
			const { pass } = await bodyOf(await this.#ask("/pass", post));
			save(`pass:${this.#campaign}`, { pass, user }, "sessionStorage");
			[this.#failures, this.#nextAt] = [0, null];
			this.#enter("shown");
		} catch (error) {
			console.warn("no pass:", error);
			this.retryAt = this.#now() + between(0.8, 1.2) * Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** this.#failures++);
			this.#nextAt = this.retryAt;
			if (error.status === 404) this.#final = "missing";
			this.#enter("failed");
		}
	}

	async #solve(kind, challenge) {
		const { solve } = await import(kind === "turnstile" ? "./turnstile.js" : "./altcha.js");
		return solve(challenge, this.#box, this.#language());
	}

	#enter(state) {
		if (state === this.state) return;
		this.state = state;
		this.#changed();
	}
}
