//! The one judge of all fault tests: it knows what callers were told, and compares that, from outside, with what
//! core, SQL and Redis say once all is quiet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::core_client::API_TOKEN;
use crate::core_client::campaign;
use crate::inspect::{key, user_counters};
use crate::sql::{Sql, SqlClaim};
use crate::storm::{Seen, Wish};
use crate::wait::{SOON, eventually, holds};
use crate::{Core, RedisView, claim_body};

/// Calls of the judge at once.
const AT_ONCE: usize = 64;
/// How old what a core refuses by may be.
const REFUSAL_AGE_MAX: Duration = Duration::from_millis(100);

/// The highest that each limit of the campaign has ever been; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Of all.
    pub total: Option<u64>,
    /// Of each user.
    pub per_user: Option<u64>,
    /// Of each user on each day.
    pub per_user_per_day: Option<u64>,
}

/// What is guaranteed about claims that were acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promise {
    /// Each is there, as it was acknowledged.
    #[default]
    All,
    /// Those that had reached SQL: Redis has lost others.
    Persisted,
}

/// What is expected beside the invariants.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expect<'a> {
    /// See [`Promise`].
    pub promise: Promise,
    /// Names of differences that the reconciliation is to report, and no others.
    pub differences: &'a [&'a str],
}

/// What the judge found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Verdict {
    /// Claims that callers were told they have.
    pub acknowledged: usize,
    /// Claims refused by a rule.
    pub denied: usize,
    /// Claims whose outcome was unknown until they were asked again.
    pub unknown: usize,
    /// Claims acknowledged and then lost; 0 where all were promised.
    pub lost: usize,
    /// Claims that SQL holds as revoked.
    pub revoked: usize,
}

/// Keeps what callers of one campaign were told.
#[derive(Debug)]
pub struct Checker {
    campaign: String,
    limits: Mutex<Limits>,
    seen: Mutex<BTreeMap<Wish, Seen>>,
    /// Ids of claims that were given back, or are to be taken as such.
    ended: Mutex<BTreeSet<String>>,
    asked: AtomicUsize,
    unknown: AtomicUsize,
}

impl Checker {
    /// For the campaign `id`, which the test makes itself.
    pub fn new(id: &str, limits: Limits) -> Self {
        Self {
            campaign: id.to_owned(),
            limits: Mutex::new(limits),
            seen: Mutex::default(),
            ended: Mutex::default(),
            asked: AtomicUsize::new(0),
            unknown: AtomicUsize::new(0),
        }
    }

    /// Makes the campaign `id`, open and in UTC, with `limits`.
    pub async fn create(core: &Core, id: &str, limits: Limits) -> Self {
        core.create_with(campaign(id, limits.json())).await;
        Self::new(id, limits)
    }

    /// The campaign's id.
    pub fn campaign(&self) -> &str {
        &self.campaign
    }

    /// Calls made so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// What callers were told so far.
    pub fn seen(&self) -> BTreeMap<Wish, Seen> {
        self.seen.lock().expect("what was seen").clone()
    }

    /// Ids of all claims acknowledged so far.
    pub fn acknowledged(&self) -> Vec<String> {
        let claimed = |seen| match seen {
            Seen::Claimed { id, .. } => Some(id),
            _ => None,
        };
        self.seen().into_values().filter_map(claimed).collect()
    }

    /// Records that a claim was given back or has expired: its row must be there, but no longer counts.
    pub fn ended(&self, claim_id: &str) {
        self.ended.lock().expect("what has ended").insert(claim_id.to_owned());
    }

    /// One unit for `user`, by `key`.
    pub async fn claim(&self, core: &Core, user: &str, key: &str) -> Seen {
        let wish = Wish { user: user.to_owned(), key: key.to_owned(), units: 1 };
        self.ask(core.client(), &core.url("/internal/v1/claims"), &wish).await
    }

    /// One unit for each of the users `from..upto`, by the key `k`, one after another; all must win, and each asks again as
    /// long as the contract permits it.
    pub async fn win(&self, core: &Core, users: std::ops::Range<usize>) {
        for user in users {
            let wish = Wish { user: format!("u{user}"), key: "k".to_owned(), units: 1 };
            let seen = self.ask_by(core.client(), &core.url("/internal/v1/claims"), &wish).await;
            assert!(matches!(seen, Seen::Claimed { .. }), "u{user}: {seen:?}");
        }
    }

    /// Makes one wish at `url` with one request, and keeps what came of it.
    pub async fn ask(&self, client: &Client, url: &str, wish: &Wish) -> Seen {
        self.ask_by(&client.once(), url, wish).await
    }

    async fn ask_by(&self, client: &Client, url: &str, wish: &Wish) -> Seen {
        let body = claim_body(&self.campaign, &wish.user, &wish.key, wish.units);
        let request = client.request(Method::POST, url).bearer_auth(API_TOKEN).json(&body);
        let reply = client.send(request).await;
        self.asked.fetch_add(1, Ordering::Relaxed);
        let seen = reply.ok().and_then(|reply| Seen::of(&reply)).unwrap_or(Seen::Unknown);
        self.keep(wish, seen.clone());
        seen
    }

    /// Records what the caller of `wish` was told.
    pub fn keep(&self, wish: &Wish, seen: Seen) {
        if seen == Seen::Unknown {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
        let mut all = self.seen.lock().expect("what was seen");
        // Once acknowledged, only another acknowledgement can say more.
        let known = matches!(all.get(wish), Some(Seen::Claimed { .. }));
        if !known || matches!(seen, Seen::Claimed { .. }) {
            all.insert(wish.clone(), seen);
        }
    }

    /// Makes all `wishes`, at most `at_once` at a time, wherever `url` says at that moment.
    pub async fn storm(&self, client: &Client, url: impl Fn() -> String, wishes: &[Wish], at_once: usize) {
        let url = &url;
        let asked = stream::iter(wishes).map(|wish| async move { self.ask(client, &url(), wish).await });
        asked.buffer_unordered(at_once).for_each(|_| async {}).await;
    }

    /// Waits until no core has anything left to do, then checks everything. Panics with what is wrong.
    pub async fn judge(&self, cores: &[&Core], sql: &Sql, redis: &RedisView, expect: Expect<'_>) -> Verdict {
        self.settle(cores, redis).await;
        self.within_limits(&standing(&sql.claims(&self.campaign).await));
        self.claims_succeed(cores).await;
        self.until_quiet(cores, redis).await;
        let rows = sql.claims(&self.campaign).await;
        let standing = standing(&rows);
        self.within_limits(&standing);
        self.same_in_redis(&standing, redis).await;
        let gaps = sequences_are_unique(&rows);
        let lost = self.all_acknowledged_are_there(&rows, expect.promise);
        self.look_ups_agree(cores[0], &rows).await;
        for core in cores {
            self.reconciliation_agrees(core, &gaps, expect.differences).await;
        }
        let denied = self.seen().into_values().filter(|seen| matches!(seen, Seen::Denied { .. })).count();
        Verdict {
            acknowledged: self.acknowledged().len(),
            denied,
            unknown: self.unknown.load(Ordering::Relaxed),
            lost,
            revoked: rows.iter().filter(|row| row.status == "revoked").count(),
        }
    }

    /// Waits until all outcomes are known and no core has anything left to do: SQL then has all that was decided.
    pub async fn settle(&self, cores: &[&Core], redis: &RedisView) {
        self.resolve_unknown(cores[0]).await;
        self.until_quiet(cores, redis).await;
    }

    /// Every outcome that is unknown becomes known by asking again, with the same key.
    async fn resolve_unknown(&self, core: &Core) {
        let unknown = self.seen().into_iter().filter(|(_, seen)| *seen == Seen::Unknown);
        let asked = stream::iter(unknown).map(|(wish, _)| async move {
            eventually(SOON, || async {
                let seen = self.ask(core.client(), &core.url("/internal/v1/claims"), &wish).await;
                holds(seen != Seen::Unknown, || format!("{wish:?} is still unknown"))
            })
            .await;
        });
        asked.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }

    /// A new user wins on every core, without intervention; when all is taken, once there is one more.
    async fn claims_succeed(&self, cores: &[&Core]) {
        for (at, core) in cores.iter().enumerate() {
            let user = format!("new-{at}-{}", self.asked());
            let Seen::Denied { code, remaining } = self.decided(core, &user).await else { continue };
            assert_eq!((code.as_str(), remaining), ("sold_out", Some(0)), "{user}");
            self.one_more(cores[0]).await;
            // So old a core's refusal may be.
            tokio::time::sleep(REFUSAL_AGE_MAX).await;
            let seen = self.decided(core, &user).await;
            assert!(matches!(seen, Seen::Claimed { .. }), "{user} was {seen:?} though one more was there");
        }
    }

    /// Asks for `user` until there is a decision.
    async fn decided(&self, core: &Core, user: &str) -> Seen {
        eventually(SOON, || async {
            match self.claim(core, user, "k").await {
                Seen::Unknown => Err(format!("no decision for {user}\n{}", core.log())),
                seen => Ok(seen),
            }
        })
        .await
    }

    /// Raises the total by one.
    async fn one_more(&self, core: &Core) {
        let total = {
            let mut limits = self.limits.lock().expect("limits");
            let total = limits.total.as_mut().expect("sold out without a total");
            *total += 1;
            *total
        };
        eventually(SOON, || async {
            let reply = core.patch(&self.campaign, json!({"limits": {"total": total}})).await;
            holds(reply.status == 200, || reply.text())
        })
        .await;
    }

    async fn until_quiet(&self, cores: &[&Core], redis: &RedisView) {
        for core in cores {
            eventually(SOON, || async {
                // A connection that a frozen core has let go of is no answer.
                let url = core.url(&format!("/internal/v1/campaigns/{}", self.campaign));
                match core.client().try_get(&url, API_TOKEN).await {
                    Ok(view) if view.status == 200 => Ok(()),
                    Ok(view) => Err(format!("{}\n{}", view.text(), core.log())),
                    Err(error) => Err(format!("{error:#}")),
                }
            })
            .await;
        }
        eventually(SOON, || async {
            let entries = redis.outbox_entries(&self.campaign).await;
            // None while the campaign is being loaded into Redis.
            let backlog = redis.state(&self.campaign).await.map(|state| state["backlog"]);
            let logs = || cores.iter().map(|core| core.log()).collect::<String>();
            holds((entries, backlog) == (1, Some(0)), || {
                format!("{entries} entries, {backlog:?} events in the outbox\n{}", logs())
            })
        })
        .await;
    }

    fn within_limits(&self, standing: &[&SqlClaim]) {
        let limits = *self.limits.lock().expect("limits");
        let granted: u64 = standing.iter().map(|row| row.quantity).sum();
        assert!(granted <= limits.total.unwrap_or(u64::MAX), "SQL holds {granted} of {limits:?}");
        let (mut of_user, mut of_day) = (BTreeMap::new(), BTreeMap::new());
        for row in standing {
            *of_user.entry(&row.user_id).or_insert(0) += row.quantity;
            *of_day.entry((&row.user_id, row.day)).or_insert(0) += row.quantity;
        }
        for (user, units) in of_user {
            assert!(units <= limits.per_user.unwrap_or(u64::MAX), "{user} has {units} in SQL, {limits:?}");
        }
        for (day, units) in of_day {
            assert!(units <= limits.per_user_per_day.unwrap_or(u64::MAX), "{day:?} has {units}, {limits:?}");
        }
    }

    /// Redis' counters, in total and user by user, are what SQL's rows sum up to.
    async fn same_in_redis(&self, standing: &[&SqlClaim], redis: &RedisView) {
        let granted: u64 = standing.iter().map(|row| row.quantity).sum();
        let taken = redis.counter(&self.campaign, "taken").await;
        assert_eq!(taken, granted, "Redis' total and SQL's");
        let records: BTreeMap<String, Vec<u8>> =
            redis.query(&["HGETALL", &key(&self.campaign, "users")]).await;
        let mut in_sql: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
        for row in standing {
            *in_sql.entry(&row.user_id).or_default().entry(row.day).or_default() += row.quantity;
        }
        let mut counted = 0;
        for (user, record) in records.iter().filter(|(user, _)| *user != ".") {
            let (day, today, ever) = user_counters(record);
            let days = in_sql.remove(user.as_str()).unwrap_or_default();
            let of_sql = (days.get(&day).copied().unwrap_or(0), days.values().sum());
            assert_eq!((today, ever), of_sql, "today and ever of {user}, in Redis and in SQL");
            counted += ever;
        }
        assert_eq!(counted, granted, "the sum over Redis' users, and SQL's total");
        assert!(in_sql.is_empty(), "Redis has no record of {in_sql:?}");
    }

    /// How many acknowledged claims are gone: none, where all were promised.
    fn all_acknowledged_are_there(&self, rows: &[SqlClaim], promise: Promise) -> usize {
        let by_id: BTreeMap<_, _> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        assert_eq!(by_id.len(), rows.len(), "an id stands in SQL twice");
        let ended = self.ended.lock().expect("what has ended").clone();
        let (mut ids, mut lost) = (BTreeSet::new(), 0);
        for (wish, seen) in self.seen() {
            let Seen::Claimed { id, sequence, .. } = seen else { continue };
            assert!(ids.insert(id.clone()), "{id} was given to two keys");
            let row = by_id.get(id.as_str());
            let there = row.is_some_and(|row| {
                (row.sequence, row.quantity) == (sequence, u64::from(wish.units))
                    && (row.stands() != ended.contains(&id))
            });
            lost += usize::from(!there);
            assert!(there || promise == Promise::Persisted, "{wish:?} was told {sequence}, SQL has {row:?}");
        }
        for row in rows.iter().filter(|row| row.stands()) {
            assert!(
                ids.contains(&row.id),
                "SQL holds {row:?}, which no caller has, all outcomes being known"
            );
        }
        lost
    }

    /// The API tells of each claim what SQL holds.
    async fn look_ups_agree(&self, core: &Core, rows: &[SqlClaim]) {
        let looked_up = stream::iter(rows).map(|row| async move {
            // A database that has just come back may refuse a connection or two yet.
            let reply = eventually(SOON, || async {
                let reply = core.look_up(&row.id).await;
                if reply.status == 503 { Err(reply.text()) } else { Ok(reply) }
            });
            let claim = reply.await.expect(200).json()["claim"].clone();
            let told = (claim["status"].as_str(), claim["sequence"].as_u64(), claim["quantity"].as_u64());
            assert_eq!(told, (Some(row.status.as_str()), Some(row.sequence), Some(row.quantity)), "{claim}");
            assert_eq!(claim["persisted"], true, "{claim}");
        });
        looked_up.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    }

    async fn reconciliation_agrees(&self, core: &Core, gaps: &[(u64, u64)], differences: &[&str]) {
        let path = format!("/admin/v1/campaigns/{}/reconciliation", self.campaign);
        let told = core.admin_get(&path).await.expect(200).json();
        let list = told["differences"].as_array().expect("differences");
        let names: Vec<_> = list.iter().filter_map(|difference| difference["name"].as_str()).collect();
        assert_eq!(names, differences, "{told}");
        assert_eq!(told["agrees"], differences.is_empty(), "{told}");
        let ranges: Vec<_> = gaps.iter().map(|(from, to)| json!({"from": from, "to": to})).collect();
        assert_eq!(told["sql"]["sequence_gaps"], Value::from(ranges), "{told}");
    }
}

impl Limits {
    /// As the API takes them.
    pub fn json(&self) -> Value {
        json!({"total": self.total, "per_user": self.per_user, "per_user_per_day": self.per_user_per_day})
    }
}

fn standing(rows: &[SqlClaim]) -> Vec<&SqlClaim> {
    rows.iter().filter(|row| row.stands()).collect()
}

/// No two standing claims share a sequence; the ranges that no claim has.
fn sequences_are_unique(rows: &[SqlClaim]) -> Vec<(u64, u64)> {
    let mut taken = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status != "revoked") {
        let other = taken.insert(row.sequence, row);
        assert!(other.is_none(), "one sequence twice: {row:?} and {other:?}");
    }
    let all: BTreeSet<_> = rows.iter().map(|row| row.sequence).collect();
    let (mut gaps, mut last) = (Vec::new(), 0);
    for sequence in all {
        if sequence > last + 1 {
            gaps.push((last + 1, sequence - 1));
        }
        last = sequence;
    }
    gaps
}
