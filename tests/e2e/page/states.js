// Fakes the responses of the edge for the `state` in the page's URL, so that each state of the page can be shown.

(() => {
	const state = new URLSearchParams(location.search).get("state");
	const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
	const day = 86400;
	const limits = { total: 12000, per_user: 8, per_user_per_day: 2, per_claim: 1 };
	const view = {
		id: "launch", name: "Launch day tickets", state: "open", starts_at: at(-600), ends_at: at(29 * day),
		time_zone: "Asia/Shanghai", limits, remaining: 11988, version: 3,
	};
	const claim = (sequence, more) => ({
		id: `launch.guest-12345678.0123456789abcdef${String(sequence).padStart(6, "0")}`, campaign_id: "launch", user_id: "guest-12345678",
		quantity: 1, status: "granted", sequence, claimed_at: at(-60), expires_at: null, ...more,
	});
	const held = (seconds) => claim(13, { status: "held", expires_at: at(seconds) });
	const left = (per_user, per_user_per_day) => ({ per_claim: 1, per_user_per_day, resets_at: at(day / 2), per_user, total: 11988 });
	const own = (allowance, ...items) => ({ items, next_cursor: null, allowance });
	const granted = (given) => ({ status: 201, body: { claim: given, remaining: 11987, version: 3 } });
	const problem = (status, code, more = {}, after = 60) => ({ status, body: { code, status, instance: "3kT9vYbQd0mXw7aHc2ZpLg", version: 3, ...more }, after });
	const never = () => new Promise(() => {});
	const lost = () => Promise.reject(new TypeError("no network"));
	// The client's time is over, so it does not retry.
	const lostAtLast = () => {
		const elapsed = performance.now.bind(performance);
		performance.now = () => elapsed() + 20000;
		return lost();
	};

	// `view`, `claim` and `own` are the responses to the three calls. Without `own`, lookups fail.
	const states = {
		scheduled: { view: { state: "scheduled", starts_at: at(3 * day), remaining: 12000 } },
		open: { own: own(left(8, 2)) },
		sending: { claim: never },
		"asking-again": { claim: lost },
		won: { claim: granted(claim(13)), own: own(left(7, 1), claim(13)) },
		held: { claim: granted(held(900)), own: own(left(7, 1), held(900)) },
		"held-ending": { claim: granted(held(290)), own: own(left(7, 1), held(290)) },
		"held-due": { claim: granted(held(-5)) },
		"won-several": { own: own(left(1, 1), ...[4294967295, 1000000, 99, 42, 41, 40, 7].map((sequence) => claim(sequence))) },
		"already-won-today": { own: own(left(6, 0), claim(14), claim(13)) },
		"already-won-all": { own: own(left(0, 0), claim(14), claim(13)) },
		returned: { own: own(left(8, 2), claim(13, { status: "returned" })) },
		expired: { own: own(left(8, 2), claim(13, { status: "expired" })) },
		revoked: { own: own(left(8, 2), claim(13, { status: "revoked" })) },
		"refused-per-day": { claim: problem(409, "user_daily_limit_reached", { limit: "per_user_per_day", remaining: 0, resets_at: at(day / 2) }) },
		"refused-per-user": { claim: problem(409, "user_limit_reached", { limit: "per_user", remaining: 0 }) },
		"refused-per-claim": { claim: problem(422, "quantity_out_of_range", { limit: "per_claim" }) },
		"foreseen-per-day": { own: own(left(6, 0)) },
		"foreseen-per-user": { own: own(left(0, 0)) },
		"sold-out": { view: { state: "sold_out", remaining: 0 } },
		"sold-out-after-press": { claim: problem(409, "sold_out", { limit: "total", remaining: 0 }) },
		"too-early": { claim: problem(403, "not_started", { starts_at: at(3600) }) },
		ended: { view: { state: "ended", ends_at: at(-60) } },
		"ended-by-hand": { view: { state: "ended", ends_at: null } },
		paused: { view: { state: "paused" } },
		"rate-limited": { claim: problem(429, "rate_limited", {}, 15) },
		"rate-limited-long": { claim: problem(429, "rate_limited") },
		overloaded: { claim: problem(503, "overloaded") },
		"not-ready": { claim: problem(503, "campaign_not_ready") },
		"in-doubt": { claim: problem(503, "unavailable") },
		offline: { claim: lostAtLast, offline: true },
		"token-missing": { token: 404 },
		"token-expired": { claim: problem(401, "unauthenticated") },
		forbidden: { claim: problem(403, "forbidden") },
		"from-the-future": { claim: problem(409, "from_the_future") },
		"no-campaign": { none: problem(404, "campaign_not_found") },
		"not-loaded": { none: problem(503, "unavailable") },
		"not-configured": { none: problem(503, "not_configured"), token: 404 },
		"not-configured-after-press": { claim: problem(503, "not_configured") },
		unlimited: { view: { limits: {}, ends_at: null, remaining: null }, own: own({ ...left(null, null), total: null }) },
	};

	Math.random = () => 0; // lookups are not delayed
	const { none, token, offline, ...answers } = states[state];
	const real = window.fetch;
	let views = 0;
	const answer = (said) => {
		if (typeof said === "function") return said();
		const { status = 200, body = said, after } = said;
		return new Response(JSON.stringify(body), { status, headers: after ? { "Retry-After": after } : {} });
	};
	window.fetch = async (url, options) => {
		if (url === "/sign-in/settings") return real(url, options);
		if (url === "/demo/token") return token ? new Response("{}", { status: token }) : real(url, options);
		if (options?.method === "POST") return answer(answers.claim);
		if (/claims$/.test(url)) return answer(answers.own ?? problem(503, "unavailable"));
		if (offline && views++ > 0) return lost();
		return answer(none ?? { ...view, ...answers.view, server_time: at(0) });
	};
})();
