//! One schedule's campaign, with its two cores and their callers.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use axum::http::Method;
use claimgate_shared::{CampaignId, ClaimRequest};
use serde_json::{Value, json};
use support::inspect::key;
use support::wait::holds;
use support::{SOON, eventually};

use super::answers::{Acknowledged, AnswerLog};
use super::initial_state::InitialState;
use super::node::{Reply, TestCore};
use super::track::Log;
use super::world::World;

pub const NAMES: [&str; 2] = ["A", "B"];

/// A campaign and its callers.
pub struct ScheduleRun<'w> {
    pub world: &'w World,
    pub id: String,
    pub answers: AnswerLog,
    pub log: Log,
    users: AtomicUsize,
    /// Users whose claims the stale replica has; unset before it exists.
    behind: OnceLock<BTreeSet<String>>,
    has_failed_over: AtomicBool,
    /// Whether the database is replaced by an older copy.
    pub forgets: bool,
    /// Whether the campaign has codes.
    pub codes: bool,
    /// The id of the webhook, if a protocol delivers events.
    pub webhook: OnceLock<String>,
}

impl<'w> ScheduleRun<'w> {
    pub fn new(world: &'w World, forgets: bool, codes: bool) -> Self {
        Self {
            forgets,
            codes,
            webhook: OnceLock::new(),
            has_failed_over: AtomicBool::new(false),
            world,
            id: world.new_id(),
            answers: AnswerLog::default(),
            log: Log::default(),
            users: AtomicUsize::new(0),
            behind: OnceLock::new(),
        }
    }

    pub fn campaign_id(&self) -> CampaignId {
        self.id.parse().expect("an id")
    }

    /// Returns the campaign's version in this state: adding codes and raising the total make two more, ending the holds
    /// of the first claims a third, and adding more codes a fourth.
    pub fn version(&self, initial: InitialState) -> u64 {
        let of_codes = match initial {
            InitialState::Absent => 0,
            InitialState::Over | InitialState::Evicted => 2,
            InitialState::CodePending => 4,
            _ => 3,
        };
        initial.version() + if self.codes { of_codes } else { 0 }
    }

    /// Retries a call at `node` until it succeeds. On a machine that stalls, a store answers too late:
    /// the call gets 503, and the campaign may have to be loaded again.
    pub async fn settled(&self, node: &TestCore, call: impl AsyncFn() -> Reply) {
        let is_repeated = Cell::new(false);
        eventually(SOON, || async {
            let reply = call().await;
            // The call before may have stored a change, although its answer was 503.
            let is_stored = is_repeated.replace(true) && reply.code() == "version_conflict";
            assert!(is_stored || [200, 201, 503].contains(&reply.status), "{}: {}", reply.status, reply.body);
            if reply.status == 503 {
                node.maintain(&self.campaign_id()).await;
            }
            if is_stored {
                node.put_into_force(&self.campaign_id()).await?;
            }
            holds(reply.status != 503, || reply.body.to_string())
        })
        .await;
    }

    /// Retries a call as long as a store answers too late; returns the first other answer.
    pub async fn until_in_time(&self, call: impl AsyncFn() -> Reply) -> Reply {
        eventually(SOON, || async {
            let reply = call().await;
            holds(reply.code() != "unavailable", || reply.body.to_string()).map(|()| reply)
        })
        .await
    }

    /// Returns a user who has not claimed before.
    pub fn new_user(&self) -> String {
        format!("new{}", self.users.fetch_add(1, Relaxed))
    }

    /// Returns the id of the claim of `user`.
    pub fn claim_id(&self, user: &str) -> String {
        let request = ClaimRequest {
            campaign_id: self.campaign_id(),
            user_id: user.parse().expect("an id"),
            quantity: 1.try_into().expect("a quantity"),
            idempotency_key: "k".parse().expect("a key"),
        };
        request.claim_id().to_string()
    }

    /// Claims one unit for `user` at a core.
    pub async fn claim(&self, node: &TestCore, user: &str) -> Reply {
        self.answers.claim_sent(user);
        let body = json!({"campaign_id": self.id, "user_id": user, "idempotency_key": "k"});
        let reply = node.internal(Method::POST, "/internal/v1/claims", Some(body)).await;
        self.answers.claim(user, &reply);
        reply
    }

    /// Requires passes from now on; then visitors without one claim at both cores.
    pub async fn require_pass(&self, node: &TestCore, version: u64) -> String {
        let required = self.patch(node, json!({"pass": {"required": "always"}}), version).await;
        let mut said = required.brief();
        if required.status == 200 {
            for at in 0..NAMES.len() {
                let visit = self.visit_without_pass(&self.world.node(at), &self.new_user()).await;
                said = format!("{said}, then a visitor without a pass gets {}", visit.brief());
            }
        }
        said
    }

    /// Claims one unit for `user`, as an edge does that was shown no pass.
    pub async fn visit_without_pass(&self, node: &TestCore, user: &str) -> Reply {
        self.answers.claim_sent(user);
        let body = json!({"campaign_id": self.id, "user_id": user, "idempotency_key": "k"});
        let reply = node.claim_by_edge(user, "k", &body).await;
        self.answers.claim(user, &reply);
        reply
    }

    /// Sends `confirm`, `return` or `extend` for the claim of `user`.
    pub async fn transition(&self, node: &TestCore, user: &str, what: &str) -> Reply {
        let id = self.claim_id(user);
        if what == "return" {
            self.answers.return_sent(&id);
        }
        let reply = node.internal(Method::POST, &format!("/internal/v1/claims/{id}/{what}"), None).await;
        self.answers.transition(&id, what, &reply);
        reply
    }

    /// Creates the campaign with these limits and holds, with as many codes as units if it has codes.
    pub async fn open(&self, node: &TestCore, total: u32, per_user: u32, hold_s: Option<u32>) {
        let first = if self.codes { 0 } else { total };
        self.settled(node, async || self.create(node, first, per_user, hold_s).await).await;
        if self.codes {
            self.settled(node, async || self.add_codes(node, 0..total).await).await;
            self.settled(node, async || self.patch(node, json!({"limits": {"total": total}}), 2).await).await;
        }
    }

    /// Adds the codes of these numbers.
    pub async fn add_codes(&self, node: &TestCore, numbers: std::ops::Range<u32>) -> Reply {
        let codes: Vec<_> = numbers.map(|number| format!("C{number}")).collect();
        node.add_codes(&self.id, codes.join("\n")).await
    }

    /// Adds the codes 100 to 103: the same codes in every call.
    pub async fn upload(&self, node: &TestCore) -> Reply {
        self.add_codes(node, 100..104).await
    }

    /// Looks up every claim that was acknowledged, at B, and records its codes.
    pub async fn look_at_codes(&self, nodes: &[TestCore; 2]) {
        if !self.codes {
            return;
        }
        for claim in self.answers.get().claims.into_values() {
            self.codes_of(&nodes[1], &claim.id).await;
        }
    }

    /// Returns the codes of a claim as its owner sees them, and records them; `None` without an answer.
    pub async fn codes_of(&self, node: &TestCore, id: &str) -> Option<Vec<String>> {
        let reply = node.internal(Method::GET, &format!("/internal/v1/claims/{id}"), None).await;
        let codes: Vec<String> = serde_json::from_value(reply.body["claim"]["codes"].clone()).ok()?;
        if !codes.is_empty() {
            self.answers.codes_shown(id, &codes);
        }
        Some(codes)
    }

    /// Creates the campaign with these limits and holds.
    pub async fn create(
        &self,
        node: &TestCore,
        total: u32,
        per_user: u32,
        hold_seconds: Option<u32>,
    ) -> Reply {
        self.answers.total_requested(total.into());
        let body = json!({
            "id": self.id, "name": "a schedule", "starts_at": "2020-01-01T00:00:00Z", "hold_seconds": hold_seconds,
            "limits": {"total": total, "per_user": per_user, "per_user_per_day": per_user}, "codes": self.codes,
        });
        let reply = node.admin(Method::POST, "/admin/v1/campaigns", Some(body)).await;
        self.answers.rules(&reply);
        reply
    }

    /// Changes the campaign at `version`.
    pub async fn patch(&self, node: &TestCore, mut change: Value, version: u64) -> Reply {
        change["version"] = version.into();
        self.answers.total_requested(change["limits"]["total"].as_u64().unwrap_or(0));
        let reply =
            node.admin(Method::PATCH, &format!("/admin/v1/campaigns/{}", self.id), Some(change)).await;
        self.answers.rules(&reply);
        reply
    }

    /// Adds two units, always with the same key.
    pub async fn add(&self, node: &TestCore) -> Reply {
        self.answers.addition_sent(2);
        let body = json!({"units": 2, "idempotency_key": "more"});
        let reply =
            node.admin(Method::POST, &format!("/admin/v1/campaigns/{}/add", self.id), Some(body)).await;
        self.answers.rules(&reply);
        self.answers.added(&reply);
        reply
    }

    /// Sends `pause` or `end`.
    pub async fn set_admin_state(&self, node: &TestCore, what: &str) -> Reply {
        let reply = node.admin(Method::POST, &format!("/admin/v1/campaigns/{}/{what}", self.id), None).await;
        self.answers.rules(&reply);
        reply
    }

    /// Makes a core repair differences between Redis and SQL; returns the reported repairs.
    pub async fn repair(&self, node: &TestCore) -> String {
        let path = format!("/admin/v1/campaigns/{}/reconciliation", self.id);
        let reply = node.admin(Method::POST, &path, None).await;
        format!("{} {}", reply.status, reply.body["repairs"])
    }

    /// Returns the campaign as a core shows it to admins.
    pub async fn view(&self, node: &TestCore) -> Reply {
        node.admin(Method::GET, &format!("/admin/v1/campaigns/{}", self.id), None).await
    }

    /// Returns the names of the campaign's keys.
    pub fn keys(&self) -> Vec<String> {
        let names = ["campaign", "users", "claims", "holds", "outbox"].into_iter();
        names.chain(self.codes.then_some("codes")).map(|what| key(&self.id, what)).collect()
    }

    /// Returns the number of these keys in Redis.
    pub async fn keys_in_redis(&self) -> u64 {
        let mut there = 0;
        for key in self.keys() {
            // -2 means that the key is missing; 0 or more means a suspension's stub, which expires.
            there += u64::from(self.world.redis.query::<i64>(&["PTTL", &key]).await == -1);
        }
        there
    }

    /// Returns the phase of the campaign in Redis: suspended, loading or open.
    pub async fn phase(&self) -> String {
        let phase: Option<String> =
            self.world.redis.query(&["HGET", &key(&self.id, "campaign"), "phase"]).await;
        phase.unwrap_or_default()
    }

    /// Expires all leases on the campaign and the webhook; returns whether there were any.
    pub async fn expire_leases(&self) -> bool {
        let of_webhook = self.has_webhook_lease().await;
        if of_webhook {
            self.world.sql.run("UPDATE webhooks SET held_until = 0".to_owned()).await;
        }
        self.on_leases("DEL").await || of_webhook
    }

    /// Returns whether any core has a lease on the campaign or the webhook.
    pub async fn has_leases(&self) -> bool {
        self.on_leases("EXISTS").await || self.has_webhook_lease().await
    }

    async fn on_leases(&self, command: &str) -> bool {
        let lease = format!("cg:lease:{{{}}}", self.id);
        self.world.redis.query::<u64>(&[command, &lease]).await > 0
    }

    async fn has_webhook_lease(&self) -> bool {
        let held = "SELECT COUNT(*) FROM webhooks WHERE id = $1 AND held_until > 0";
        match self.webhook.get() {
            Some(id) => self.world.sql.number(held, id).await > 0,
            None => false,
        }
    }

    /// Creates a webhook for all campaigns; `node` gets its lease. Call it before the database is copied, because only
    /// SQL has webhooks.
    pub async fn create_webhook(&self, node: &TestCore) {
        let body = json!({"url": self.world.receiver().await.url});
        let create = async || node.admin(Method::POST, "/admin/v1/webhooks", Some(body.clone())).await;
        let reply = self.until_in_time(create).await;
        assert_eq!(reply.status, 201, "{}", reply.body);
        let id = reply.body["id"].as_str().expect("an id").to_owned();
        eventually(SOON, || async { node.deliver(&id).await }).await;
        self.webhook.set(id).expect("one webhook");
    }

    /// Delivers a page of events to the webhook; returns a short description of the result.
    pub async fn deliver(&self, node: &TestCore) -> String {
        let id = self.webhook.get().expect("a webhook");
        match node.deliver(id).await {
            Ok(events) => format!("{events} events delivered"),
            Err(why) => why,
        }
    }

    /// Deletes the campaign from Redis. Claims that SQL does not have by then are lost, as permitted.
    pub async fn lose_keys(&self) {
        self.lose_all_except(&BTreeSet::new()).await;
        let keys = self.keys();
        let words: Vec<&str> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
        self.world.redis.query::<u64>(&words).await;
    }

    /// Lifts the guarantees for claims that SQL does not have, except those of `kept`.
    async fn lose_all_except(&self, kept: &BTreeSet<String>) {
        let rows = self.world.sql.claims(&self.id).await;
        let answers = self.answers.get();
        let in_sql = |id: &String, sequence: u64| {
            rows.iter().any(|row| row.id == *id && row.sequence == sequence && row.status != "revoked")
        };
        let is_up_to_date = |id: &String| {
            let row = rows.iter().find(|row| row.id == *id);
            let (status, expires_at) = row.map_or(("", None), |row| (row.status.as_str(), row.expires_at));
            answers.transitions.get(id).is_none_or(|transitions| {
                let is_confirmed = ["granted", "returned"].contains(&status);
                (!transitions.returned || status == "returned")
                    && (!transitions.confirmed || is_confirmed)
                    && (is_confirmed || transitions.extended_until <= expires_at)
            })
        };
        let is_lost = |user: &String, claim: &Acknowledged| {
            !(kept.contains(user) || in_sql(&claim.id, claim.sequence)) || !is_up_to_date(&claim.id)
        };
        let lost = answers.claims.iter().filter(|(user, claim)| is_lost(user, claim));
        self.answers.lost(lost.map(|(_, claim)| claim.id.clone()));
    }

    /// Copies the database if a protocol will restore the copy.
    pub async fn copy_database(&self) {
        if self.forgets {
            self.world.sql.copy_tables().await;
        }
    }

    /// Restores the copy of the database. Lifts the guarantees for data that Redis does not have either, and
    /// for data that Redis is about to replace from SQL.
    pub async fn forget(&self) {
        let epoch = self.world.sql.numbers("SELECT epoch FROM campaigns WHERE id = $1", &self.id).await;
        let state = self.world.redis.state(&self.id).await;
        let in_redis = state.and_then(|state| i64::try_from(*state.get("epoch")?).ok());
        let is_being_loaded = epoch.and_then(|epoch| epoch[0]) > in_redis;
        self.world.sql.restore_tables().await;
        if self.keys_in_redis().await < self.keys().len() as u64 || is_being_loaded {
            self.lose_all_except(&BTreeSet::new()).await;
            let version =
                self.world.sql.numbers("SELECT version FROM campaigns WHERE id = $1", &self.id).await;
            self.answers.forgotten(version.and_then(|version| u64::try_from(version[0]?).ok()).unwrap_or(0));
        } else if let Some(kept) = self.behind.get()
            && self.has_failed_over.load(Relaxed)
        {
            self.lose_all_except(kept).await;
        }
    }

    /// Copies the campaign's current keys as a replica that gets no more updates.
    pub async fn copy_to_stale_replica(&self) {
        for key in self.keys() {
            self.world.redis.query::<u64>(&["COPY", &key, &behind(&key)]).await;
        }
        let users = self.answers.get().claims.into_keys().collect();
        self.behind.set(users).expect("one replica is behind");
    }

    /// Promotes the stale replica if there is one.
    pub async fn fail_over(&self) {
        if let Some(kept) = self.behind.get() {
            self.has_failed_over.store(true, Relaxed);
            self.lose_all_except(kept).await;
            for key in self.keys() {
                self.world.redis.query::<u64>(&["COPY", &behind(&key), &key, "REPLACE"]).await;
            }
        }
        self.promote().await;
    }

    /// Promotes the stale replica, but keeps evicted campaigns out of Redis, because an eviction also waits
    /// for a replica.
    pub async fn fail_over_unless_evicted(&self, initial: InitialState) {
        if [InitialState::Over, InitialState::Evicted].contains(&initial) {
            self.promote().await;
        } else {
            self.fail_over().await;
        }
    }

    /// Demotes and promotes the server with all its data. All connections close, as in a promotion of a
    /// different server.
    pub async fn promote(&self) {
        let redis = &self.world.redis;
        redis.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
        redis.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        redis.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    }

    /// Sends calls while both protocols are stopped. A new caller at each core claims and, if successful,
    /// retries at the other core. If the campaign is in Redis, another caller returns a claim; for an evicted
    /// campaign that would trigger a load in between.
    pub async fn callers(&self, nodes: &[TestCore; 2], initial: InitialState) {
        if initial.is_in_redis() {
            let reply = self.transition(&nodes[1], "u5", "return").await;
            self.log.add(format!("    u5 returns at B: {}", reply.brief()));
        }
        for at in 0..nodes.len() {
            let user = self.new_user();
            let reply = self.claim(&nodes[at], &user).await;
            self.log.add(format!("    {user} claims at {}: {}", NAMES[at], reply.brief()));
            if reply.status == 201 {
                let again = self.claim(&nodes[1 - at], &user).await;
                self.log.add(format!("    {user} retries at {}: {}", NAMES[1 - at], again.brief()));
            }
        }
    }
}

/// Returns the name of the stale replica's copy of a key.
fn behind(key: &str) -> String {
    format!("behind:{key}")
}
