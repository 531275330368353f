// <claimgate-button>: a button that claims, for any page. docs/embedding.md documents it.

import { ClaimgateClient, ClaimgateError } from "./claimgate.js";

const POLL_MS = 15000, TIMER_MS_MAX = 3600000, OWN_MAX = 20;
// When the user's claims are read: spread at the start and after a claim, sooner while codes are missing.
const START_MS = 1000, CLAIMED_MS = 2000, CODES_MS = 1500;
const ACTIVE = /^(granted|held)$/;
const OF_STATE = /^(not_started|paused|sold_out)$/; // a denial that no longer holds once the campaign is open
const jitter = (ms) => ms * (0.6 + 0.8 * Math.random());

const en = {
	tag: "en", loading: "One moment…", open: "Claim", another: "Claim another", busy: "One moment…", again: "Try again",
	scheduled: "Opens {starts_at}", paused: "Paused for now", sold_out: "All taken", ended: "This has ended",
	done: "Claimed", granted: "It is yours: number {sequence}.", held: "Reserved for you until {expires_at}: number {sequence}.", also: "Also yours: {numbers}.", codesSoon: "Your code appears here as soon as it is there.",
	unknown: "Not confirmed yet. You can try again safely: you will not be counted twice.", unreachable: "The server cannot be reached. Trying again.", other: "That did not work. Please try again later.",
	not_started: "Not open yet.", user_limit_reached: "You have reached your limit.", user_daily_limit_reached: "You have reached today's limit.",
	unauthenticated: "Please sign in first.", no_token: "Your sign-in could not be checked. Please try again.", pass_required: "You need a pass.", campaign_not_found: "There is no such campaign.",
	rate_limited: "Very busy right now. Please try again.", overloaded: "Very busy right now. Please try again.",
};
const zh = {
	tag: "zh-CN", loading: "请稍候…", open: "领取", another: "再领一份", busy: "请稍候…", again: "重试",
	scheduled: "{starts_at} 开放", paused: "暂停中", sold_out: "已领完", ended: "已结束",
	done: "已领取", granted: "领取成功：第 {sequence} 号。", held: "已为您保留至 {expires_at}：第 {sequence} 号。", also: "您还领取了：{numbers}。", codesSoon: "兑换码准备好后显示在这里。",
	unknown: "尚未确认。重试不会重复计数。", unreachable: "无法连接服务器，正在重试。", other: "未能完成，请稍后再试。",
	not_started: "尚未开放。", user_limit_reached: "您已达到领取上限。", user_daily_limit_reached: "您已达到今日上限。",
	unauthenticated: "请先登录。", no_token: "无法确认您的登录，请重试。", pass_required: "您需要通行证。", campaign_not_found: "没有这个活动。",
	rate_limited: "当前繁忙，请重试。", overloaded: "当前繁忙，请重试。",
};

const style = `
	:host { display: inline-block; font: inherit; }
	:host([hidden]) { display: none; }
	button { font: inherit; padding: .6em 1.4em; border: 1px solid transparent; border-radius: .5em; cursor: pointer; background: var(--claimgate-background, #1a56db); color: var(--claimgate-color, #fff); }
	button[aria-disabled=true] { cursor: default; background: transparent; border-color: currentColor; color: inherit; }
	p { margin: 0; }
	p:not(:empty) { margin-top: .5em; }
	code { display: block; font-size: 1.1em; user-select: all; overflow-wrap: anywhere; }`;

export class ClaimgateButton extends HTMLElement {
	static observedAttributes = ["campaign", "lang", "quantity", "token"];

	#button = document.createElement("button");
	#status = document.createElement("p");
	#token; #pass; #base = new URL(import.meta.url).origin;
	#life; // aborted when the element is removed, or restarts
	#client; #view; #clockMs; #failure; #viewTimer; #stateTimer;
	#isBusy; #isPending; #error;
	#claims; #allowance; #ownTimer; // the user's active claims, newest first, and what the limits leave the user

	constructor() {
		super();
		const sheet = new CSSStyleSheet();
		sheet.replaceSync(style);
		const root = this.attachShadow({ mode: "open" });
		root.adoptedStyleSheets = [sheet];
		Object.assign(this.#button, { type: "button", part: "button", onclick: () => this.#canClaim() && this.claim() });
		this.#status.part = "status";
		this.#status.setAttribute("role", "status");
		root.append(this.#button, this.#status);
	}

	connectedCallback() {
		for (const name of ["token", "pass", "base", "campaign", "quantity"]) this.#takeOver(name);
		this.#start();
	}

	disconnectedCallback() {
		this.#stop();
	}

	attributeChangedCallback(name) {
		if (name === "lang") this.#render();
		else this.#restart();
	}

	get campaign() { return this.getAttribute("campaign"); }
	set campaign(id) { this.setAttribute("campaign", id); }
	get quantity() { return Number(this.getAttribute("quantity") ?? 1); }
	set quantity(units) { this.setAttribute("quantity", units); }
	get token() { return this.#token; }
	set token(token) { this.#token = token; this.#restart(); }
	get pass() { return this.#pass; }
	set pass(pass) { this.#pass = pass; }
	// Not an attribute: markup must not be enough to send the user's token to another server.
	get base() { return this.#base; }
	set base(url) { this.#base = url; this.#restart(); }

	// Claims, as a click does. Resolves once the outcome is shown.
	async claim() {
		if (this.#isBusy || !this.#life) return;
		const { signal } = this.#life;
		this.#isBusy = true;
		this.#error = null;
		this.#render();
		try {
			const result = await this.#client.claim(this.campaign, { quantity: this.quantity, pass: this.#pass, signal });
			this.#isPending = false;
			this.#accept(result);
		} catch (error) {
			if (signal.aborted) return;
			if (!(error instanceof ClaimgateError)) console.error(error); // of the page's token or pass function
			this.#error = error;
			this.#isPending = Boolean(error.outcomeUnknown);
			this.#dispatch("claimgate-error", { error });
		}
		if (signal.aborted) return;
		this.#readOwnIn(CLAIMED_MS);
		this.#isBusy = false;
		this.#render();
	}

	#accept(result) {
		const { claim } = result;
		if (!ACTIVE.test(claim.status)) throw new ClaimgateError({ code: `claim_${claim.status}`, detail: `the claim is ${claim.status}` });
		this.#claims = [claim, ...this.#claims.filter(({ id }) => id !== claim.id)];
		this.#allowance = null; // until it is read again: a double click claims once
		this.#dispatch("claimgate-claim", result);
	}

	// Takes over a property that was set before the element was defined.
	#takeOver(name) {
		if (!Object.hasOwn(this, name)) return;
		const value = this[name];
		delete this[name];
		this[name] = value;
	}

	#start() {
		this.#life = new AbortController();
		const { signal } = this.#life;
		this.#view = this.#failure = this.#error = this.#allowance = null;
		this.#claims = [];
		this.#isBusy = this.#isPending = false;
		this.#client = new ClaimgateClient({ baseUrl: this.#base, token: (wasRejected) => this.#askToken(wasRejected) });
		const onVisible = () => {
			if (document.hidden) return;
			this.#render();
			this.#refresh(signal);
		};
		document.addEventListener("visibilitychange", onVisible, { signal });
		this.#refresh(signal);
		this.#resume(signal);
	}

	#stop() {
		this.#life?.abort();
		this.#life = null;
		for (const timer of [this.#viewTimer, this.#stateTimer, this.#ownTimer]) clearTimeout(timer);
	}

	#restart() {
		if (!this.#life) return;
		this.#stop();
		this.#start();
	}

	// The attribute names a global function; the property may also be a token.
	#askToken(wasRejected) {
		const name = this.getAttribute("token");
		const token = this.#token ?? globalThis[name];
		if (typeof token === "function") return token(wasRejected);
		if (this.#token === undefined && name) console.error(`claimgate-button: there is no global function ${name}`);
		return this.#token;
	}

	#dispatch(name, detail) {
		this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
	}

	async #refresh(signal) {
		clearTimeout(this.#viewTimer);
		try {
			const view = await this.#client.campaign(this.campaign, { known: this.#view, signal });
			if (view !== this.#view) this.#clockMs = Date.parse(view.server_time) - Date.now();
			this.#view = view;
			this.#failure = null;
		} catch (error) {
			if (signal.aborted) return;
			if (!this.#failure && error.code === "network") console.warn(`claimgate-button: no response from ${this.#base}. Does its CORS_ORIGINS list ${location.origin}, and the page's connect-src allow it?`);
			this.#failure = error;
		}
		clearTimeout(this.#viewTimer);
		if (!document.hidden) this.#viewTimer = setTimeout(() => this.#refresh(signal), jitter(POLL_MS));
		if (this.#state() === "open" && OF_STATE.test(this.#error?.code)) this.#error = null;
		this.#render();
	}

	// Retries a claim whose outcome is unknown, or else reads the user's claims.
	async #resume(signal) {
		const isPending = await this.#client.isPending(this.campaign).catch(() => null); // the page's token function failed
		if (signal.aborted) return;
		if (isPending === null) this.#ownTimer = setTimeout(() => this.#resume(signal), jitter(POLL_MS));
		else if (isPending) this.claim();
		else this.#readOwnIn(START_MS);
	}

	#readOwnIn(ms) {
		const { signal } = this.#life;
		clearTimeout(this.#ownTimer);
		this.#ownTimer = setTimeout(() => this.#readOwn(signal, ms), Math.min(jitter(ms), TIMER_MS_MAX));
	}

	// Reads again, later each time, what may change without the user: missing codes, a hold, a day's limit, a failed read.
	async #readOwn(signal, waitedMs) {
		let again = POLL_MS;
		try {
			if (!(await this.#askToken(false))) return;
			const { items, allowance } = await this.#client.claims(this.campaign, { limit: OWN_MAX, signal });
			this.#claims = items.filter(({ status }) => ACTIVE.test(status));
			this.#allowance = allowance;
			if (this.#lacksCodes()) again = Math.min(POLL_MS, Math.max(CODES_MS, 1.5 * waitedMs));
			else if (!this.#claims.some(({ status }) => status === "held")) again = allowance.resets_at && this.#msTo(allowance.resets_at) + START_MS;
		} catch (error) {
			if (signal.aborted) return;
			console.warn("claimgate-button: the user's claims cannot be read:", error);
		}
		if (again) this.#readOwnIn(again);
		this.#render();
	}

	#lacksCodes() {
		return this.#claims.some(({ codes }) => codes?.length === 0);
	}

	// By the server's clock, which decides claims.
	#msTo(time) {
		return Date.parse(time) - Date.now() - (this.#clockMs ?? 0);
	}

	#state() {
		if (!this.#view) return "loading";
		const { state, starts_at, ends_at } = this.#view;
		if (ends_at && this.#msTo(ends_at) <= 0) return "ended";
		return state === "scheduled" && this.#msTo(starts_at) <= 0 ? "open" : state;
	}

	// Returns the limit that leaves the user less than a claim takes.
	#spentLimit() {
		const { per_user_per_day, per_user } = this.#allowance ?? {};
		const isSpent = (left) => (left ?? Infinity) < this.quantity;
		return isSpent(per_user) ? "user_limit_reached" : isSpent(per_user_per_day) ? "user_daily_limit_reached" : null;
	}

	// After a claim, only once it is known what the limits leave.
	#isOffered() {
		return this.#state() === "open" && !this.#spentLimit() && (!this.#claims.length || Boolean(this.#allowance));
	}

	#canClaim() {
		return !this.#isBusy && (this.#isPending || this.#isOffered());
	}

	#render() {
		if (!this.#life) return;
		const words = /^zh/.test(this.closest("[lang]")?.lang || navigator.language) ? zh : en;
		clearTimeout(this.#stateTimer);
		// Re-renders at `starts_at` from a local timer, so that the opening causes no requests.
		if (this.#state() === "scheduled") this.#stateTimer = setTimeout(() => this.#render(), Math.min(this.#msTo(this.#view.starts_at) + 5, TIMER_MS_MAX));
		this.#button.setAttribute("aria-disabled", String(!this.#canClaim()));
		this.#renderLabel(words);
		this.#status.lang = words.tag;
		const codes = this.#claims.flatMap((claim) => claim.codes ?? []).map((text) => Object.assign(document.createElement("code"), { textContent: text, part: "code" }));
		const message = this.#message(words);
		// A screen reader repeats a text that is replaced.
		if (this.#status.textContent !== [message, ...codes.map((code) => code.textContent)].join("")) this.#status.replaceChildren(message, ...codes);
	}

	// The page's own text is the label of the first claim.
	#renderLabel(words) {
		const state = this.#state(), has = this.#claims.length > 0, isOffered = this.#isOffered();
		const isFirst = isOffered && !has && !this.#isBusy && !this.#isPending;
		const label = this.#isBusy ? words.busy : this.#isPending ? words.again : has ? (isOffered ? words.another : words.done) : fill(words, words[state], this.#view);
		if (isFirst && this.textContent.trim()) {
			if (!this.#button.querySelector("slot")) this.#button.replaceChildren(document.createElement("slot"));
		} else if (this.#button.textContent !== label || this.#button.firstElementChild) this.#button.replaceChildren(label);
	}

	#message(words) {
		const [newest, ...others] = this.#claims;
		const problem = this.#error ?? (newest ? null : this.#failure);
		const said = [];
		if (newest) said.push(fill(words, words[newest.status], newest));
		if (others.length) said.push(fill(words, words.also, { numbers: others.map(({ sequence }) => sequence).join(", ") }));
		if (this.#lacksCodes()) said.push(words.codesSoon);
		if (this.#isPending) said.push(words.unknown);
		else if (problem) said.push(words[problem.code] ?? (problem === this.#failure ? words.unreachable : words.other));
		else if (!newest && this.#spentLimit()) said.push(words[this.#spentLimit()]);
		return said.join(" ");
	}
}

function fill({ tag }, template, values) {
	const time = (text) => new Date(text).toLocaleString(tag, { dateStyle: "medium", timeStyle: "short" });
	return template.replace(/{(\w+)}/g, (_, name) => name.endsWith("_at") ? time(values[name]) : values[name].toLocaleString(tag));
}

customElements.define("claimgate-button", ClaimgateButton);
