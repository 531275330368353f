// Fakes the responses of core for the `state` in the page's URL, so that each state of the dashboard can be
// shown. The charts get an hour immediately, as if core had run for that long and the page had been open for the last
// five minutes.

(() => {
	const state = new URLSearchParams(location.search).get("state");
	if (!state) return;
	const now = Date.now();
	const at = (seconds) => new Date(now + seconds * 1000).toISOString();
	const limits = { total: 12000, per_user: 4, per_user_per_day: 1, per_claim: 1 };
	const campaign = (id, name, more) => ({
		id, name, state: "open", starts_at: at(-600), ends_at: at(86400), time_zone: "Asia/Shanghai", limits, remaining: 7421, version: 3,
		server_time: at(0), ready: true, import_unfinished: false, taken: 4579, claims_per_s: 0, backlog: 0, ...more,
	});
	const campaigns = [
		campaign("launch-day", "Launch day tickets", { claims_per_s: 2841.5, backlog: 312 }),
		campaign("coupon-2026", "Coupon of the anniversary, 20 off", { claims_per_s: 512.2, remaining: 99120, limits: { ...limits, total: 100000 }, backlog: 44 }),
		campaign("members", "Members' evening", { claims_per_s: 3.4, remaining: null, limits: { ...limits, total: null } }),
		campaign("early-birds", "Early birds", { state: "sold_out", remaining: 0, codes: true, claims_without_codes: 12 }),
		campaign("workshop_2", "Workshop: bread", { state: "paused", remaining: 14, limits: { ...limits, total: 40 } }),
		campaign("spring", "Spring sale", { state: "scheduled", remaining: 12000 }),
		campaign("winter", "Winter sale", { state: "ended", remaining: 3 }),
	];
	const soldOut = campaigns.map((one) => ({ ...one, state: one.state === "open" && one.limits.total ? "sold_out" : one.state, remaining: one.limits.total && one.state === "open" ? 0 : one.remaining, claims_per_s: 0, backlog: 0 }));
	const large = campaign("c".repeat(64), "x".repeat(200), { claims_per_s: 123456.7, remaining: 4294967294, limits: { ...limits, total: 4294967295 }, backlog: 1000000 });
	const node = (address, up = "up") => ({ address, state: up });
	const reason = (code, count, per_s, at_edges = 0) => ({ code, count, per_s, at_edges });
	const core = (name, more) => ({ name, version: "0.1.0", started_at: at(-7200), is_this: false, state: "up", decisions_per_s: 3120.4, ...more });
	const change = (number, ago, who, what, campaign_id, units = null) => ({ number, at: at(-ago), who, what, campaign_id, claim_id: null, webhook_id: null, reason: null, units });
	const set = (primary, members) => ({ primary, members, joining: [], version: 4 });
	const primary = (address, replica, keeps_up = true) => ({ primary: address, refused: null, set: set(address, [replica]), replicas: [{ replica, keeps_up }] });
	const replicated = { replicas_min: 1, primaries: [primary("10.0.0.1:6379", "10.0.1.1:6379"), primary("10.0.0.2:6379", "10.0.1.2:6379"), primary("10.0.0.3:6379", "10.0.1.3:6379", false)], orphans: [] };
	const cluster = { state: "up", nodes: [node("10.0.0.1:6379"), node("10.0.0.2:6379"), node("10.0.0.3:6379")], replication: replicated };
	const load = {
		campaigns: { total: 7, open: 3, claims_per_s: 3357.1, listed: campaigns },
		refusals: { cores: 2, by_reason: [reason("sold_out", 184220, 5210.5, 171034), reason("user_daily_limit_reached", 20113, 402), reason("paused", 812, 0), reason("not_started", 96, 0), reason("not_ready", 3, 0)] },
		outbox: { events: 356, oldest_age_ms: 84 },
		redis: { ...cluster, replication: { ...replicated, primaries: replicated.primaries.map((one) => ({ ...one, replicas: one.replicas.map(({ replica }) => ({ replica, keeps_up: true })) })) } },
		sql: { kind: "PostgreSQL", state: "up" },
		cores: [core("core-1 10.0.2.1:8080", { is_this: true }), core("core-2 10.0.2.2:8080", { decisions_per_s: 3011.9 })],
		audit: [change(214, 20, "olga", "add", "coupon-2026", 20000), change(213, 95, "olga", "resume", "launch-day"), change(212, 190, "olga", "pause", "launch-day"), { ...change(211, 400, "olga", "return", "members"), reason: "Bought twice" }, change(210, 4000, "ada", "update", "spring"), change(209, 90000, "admin", "create", "spring"), change(208, 91000, "admin", "webhook_create", null), change(207, 99000, "admin", "end", "winter")],
	};
	const quiet = { campaigns: { total: 0, open: 0, claims_per_s: 0, listed: [] }, refusals: { cores: 1, by_reason: [] }, outbox: { events: 0, oldest_age_ms: 0 }, redis: { state: "up", nodes: [node("/srv/claimgate/data/redis.sock")], replication: { replicas_min: 0, primaries: [], orphans: [] } }, sql: { kind: "SQLite", state: "up" }, cores: [core("host 127.0.0.1:8080", { is_this: true, decisions_per_s: 0 })], audit: [] };
	const away = (one) => ({ ...one, ready: false, remaining: null, taken: null, claims_per_s: null, backlog: null });
	const states = {
		load,
		fresh: load, // right after the page was opened
		empty: quiet,
		"sold-out": { ...load, campaigns: { total: 7, open: 1, claims_per_s: 0, listed: soldOut }, outbox: { events: 0, oldest_age_ms: 0 } },
		"node-down": { ...load, campaigns: { ...load.campaigns, claims_per_s: 515.6, listed: campaigns.map((one, index) => (index % 3 ? one : away(one))) }, redis: { ...cluster, nodes: [node("10.0.0.1:6379", "down"), node("10.0.0.2:6379"), node("10.0.0.3:6379")] } },
		"sql-down": { ...load, outbox: { events: 81204, oldest_age_ms: 48210 }, sql: { kind: "PostgreSQL", state: "down" }, cores: load.cores.slice(0, 1), refusals: { ...load.refusals, cores: 1 }, audit: null },
		"redis-down": { ...load, campaigns: { total: 7, open: 3, claims_per_s: null, listed: campaigns.map(away) }, outbox: null, redis: { state: "down", nodes: [node("/srv/claimgate/data/redis.sock", "down")], replication: null } },
		large: { ...load, campaigns: { total: 10000, open: 8214, claims_per_s: 123456.7, listed: [large, ...campaigns] } },
		lost: load,
		"ask-end": load,
		"ask-add": load,
		form: load,
	};
	const snapshot = states[state];
	window.following = state === "sign-in" ? null : state;
	if (snapshot) sessionStorage.setItem("claimgate:admin-token", "t");
	else sessionStorage.clear();
	const event = (name, data) => new TextEncoder().encode(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
	const wave = (offset) => 1 + 0.35 * Math.sin(offset / 19) + 0.15 * Math.sin(offset / 3.1);
	const before = (offset) => ({
		...snapshot, at: at(offset), outbox: snapshot.outbox && { ...snapshot.outbox, events: Math.round(snapshot.outbox.events * wave(offset)) },
		campaigns: { ...snapshot.campaigns, claims_per_s: snapshot.campaigns.claims_per_s === null ? null : snapshot.campaigns.claims_per_s * wave(offset) * Math.min(1, (300 + offset) / 40), listed: snapshot.campaigns.listed.map((one) => ({ ...one, claims_per_s: one.claims_per_s && one.claims_per_s * wave(offset) })) },
		refusals: { ...snapshot.refusals, by_reason: snapshot.refusals.by_reason.map((one) => ({ ...one, per_s: one.per_s && one.per_s * wave(offset + 9) })) },
	});
	const steps = Array.from({ length: 660 }, (_, step) => step * 5 - 3600);
	// The page draws everything for each snapshot, so there are few. A line of the charts connects snapshots that are up
	// to 4 s apart, in whole seconds.
	const offsets = state === "fresh" ? [-1, 0] : Array.from({ length: 101 }, (_, step) => step * 3 - 300);
	const earlier = (offset) => ({ at: at(offset), claims_per_s: snapshot.campaigns.total * wave(offset), refusals_per_s: 0.5 * wave(offset), outbox_events: 0 });
	const trends = () => ({ samples: steps.map(earlier), campaigns: { members: steps.map(wave) } });
	let streams = 0;
	window.fetch = async (url) => {
		if (!url.endsWith("/live")) return new Response(JSON.stringify({ code: "campaign_not_found" }), { status: 404 });
		if (streams++ > 0 && state === "lost") throw new TypeError("no network");
		const timers = [];
		const stream = new ReadableStream({
			start(events) {
				events.enqueue(event("watcher", { name: "ada", role: "admin", version: "0.1.0", page_url: "https://claims.example.com" }));
				if (state !== "fresh") events.enqueue(event("trends", trends()));
				for (const offset of offsets) events.enqueue(event("snapshot", offset ? before(offset) : { ...snapshot, at: at(0) }));
				if (state === "lost") setTimeout(() => events.close(), 300);
				else timers.push(setInterval(() => {
					window.snapshots = (window.snapshots ?? 0) + 1;
					events.enqueue(event("snapshot", { ...snapshot, at: new Date().toISOString() }));
				}, 1000));
			},
			cancel: () => timers.forEach(clearInterval),
		});
		return new Response(stream);
	};
})();
