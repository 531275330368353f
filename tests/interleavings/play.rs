//! One schedule's campaign, its two cores, and the callers' side of both.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use axum::http::Method;
use claimgate_shared::{CampaignId, ClaimRequest};
use serde_json::{Value, json};
use support::inspect::key;

use super::initial_state::InitialState;
use super::node::{Node, Reply};
use super::told::{Acknowledged, Told};
use super::track::Log;
use super::world::World;

pub const NAMES: [&str; 2] = ["A", "B"];

/// One campaign and who plays with it.
pub struct Play<'w> {
    pub world: &'w World,
    pub id: String,
    pub told: Told,
    pub log: Log,
    users: AtomicUsize,
    /// Users whose claims a replica has that is behind; `None` before there is one.
    behind: OnceLock<BTreeSet<String>>,
    has_failed_over: AtomicBool,
    /// Whether an older copy of the database comes back.
    pub forgets: bool,
}

impl<'w> Play<'w> {
    pub fn new(world: &'w World, forgets: bool) -> Self {
        Self {
            forgets,
            has_failed_over: AtomicBool::new(false),
            world,
            id: world.new_id(),
            told: Told::default(),
            log: Log::default(),
            users: AtomicUsize::new(0),
            behind: OnceLock::new(),
        }
    }

    pub fn campaign_id(&self) -> CampaignId {
        self.id.parse().expect("an id")
    }

    /// A user who has not asked before.
    pub fn new_user(&self) -> String {
        format!("new{}", self.users.fetch_add(1, Relaxed))
    }

    /// The id of the claim that `user` makes.
    pub fn claim_id(&self, user: &str) -> String {
        let request = ClaimRequest {
            campaign_id: self.campaign_id(),
            user_id: user.parse().expect("an id"),
            quantity: 1.try_into().expect("a quantity"),
            idempotency_key: "k".parse().expect("a key"),
        };
        request.claim_id().to_string()
    }

    /// One unit for `user`, at a core.
    pub async fn claim(&self, node: &Node, user: &str) -> Reply {
        self.told.asked_to_claim(user);
        let body = json!({"campaign_id": self.id, "user_id": user, "idempotency_key": "k"});
        let reply = node.internal(Method::POST, "/internal/v1/claims", Some(body)).await;
        self.told.claim(user, &reply);
        reply
    }

    /// `confirm` or `return` for the claim of `user`.
    pub async fn transition(&self, node: &Node, user: &str, what: &str) -> Reply {
        let id = self.claim_id(user);
        let is_return = what == "return";
        if is_return {
            self.told.asked_to_return(&id);
        }
        let reply = node.internal(Method::POST, &format!("/internal/v1/claims/{id}/{what}"), None).await;
        self.told.transition(&id, is_return, &reply);
        reply
    }

    /// Creates the campaign with these limits and holds.
    pub async fn create(&self, node: &Node, total: u32, per_user: u32, hold_seconds: Option<u32>) -> Reply {
        self.told.asked_for_total(total.into());
        let body = json!({
            "id": self.id, "name": "a schedule", "starts_at": "2020-01-01T00:00:00Z", "hold_seconds": hold_seconds,
            "limits": {"total": total, "per_user": per_user, "per_user_per_day": per_user},
        });
        let reply = node.admin(Method::POST, "/admin/v1/campaigns", Some(body)).await;
        self.told.rules(&reply);
        reply
    }

    /// Changes the campaign from `version` on.
    pub async fn patch(&self, node: &Node, mut change: Value, version: u64) -> Reply {
        change["version"] = version.into();
        self.told.asked_for_total(change["limits"]["total"].as_u64().unwrap_or(0));
        let reply =
            node.admin(Method::PATCH, &format!("/admin/v1/campaigns/{}", self.id), Some(change)).await;
        self.told.rules(&reply);
        reply
    }

    /// Adds two units, always under the same key.
    pub async fn add(&self, node: &Node) -> Reply {
        self.told.asked_to_add(2);
        let body = json!({"units": 2, "idempotency_key": "more"});
        let reply =
            node.admin(Method::POST, &format!("/admin/v1/campaigns/{}/add", self.id), Some(body)).await;
        self.told.rules(&reply);
        self.told.added(&reply);
        reply
    }

    /// `pause` or `end`.
    pub async fn set_admin_state(&self, node: &Node, what: &str) -> Reply {
        let reply = node.admin(Method::POST, &format!("/admin/v1/campaigns/{}/{what}", self.id), None).await;
        self.told.rules(&reply);
        reply
    }

    /// Has a core repair what differs between Redis and SQL; what it says to have done.
    pub async fn repair(&self, node: &Node) -> String {
        let path = format!("/admin/v1/campaigns/{}/reconciliation", self.id);
        let reply = node.admin(Method::POST, &path, None).await;
        format!("{} {}", reply.status, reply.body["repairs"])
    }

    /// The campaign as a core shows it to admins.
    pub async fn view(&self, node: &Node) -> Reply {
        node.admin(Method::GET, &format!("/admin/v1/campaigns/{}", self.id), None).await
    }

    /// The names of the campaign's five keys.
    pub fn keys(&self) -> [String; 5] {
        ["campaign", "users", "claims", "holds", "outbox"].map(|what| key(&self.id, what))
    }

    /// How many of them Redis has.
    pub async fn keys_there(&self) -> u64 {
        let mut there = 0;
        for key in self.keys() {
            // -2: not there. At 0 and above it goes by itself: a suspender's stub.
            there += u64::from(self.world.redis.query::<i64>(&["PTTL", &key]).await == -1);
        }
        there
    }

    /// Whether the campaign is suspended, loading or open in Redis.
    pub async fn phase(&self) -> String {
        let phase: Option<String> =
            self.world.redis.query(&["HGET", &key(&self.id, "campaign"), "phase"]).await;
        phase.unwrap_or_default()
    }

    /// Lets every lease on the campaign run out; whether there was any.
    pub async fn expire_leases(&self) -> bool {
        self.on_leases("DEL").await
    }

    /// Whether any core has a lease on the campaign.
    pub async fn has_leases(&self) -> bool {
        self.on_leases("EXISTS").await
    }

    async fn on_leases(&self, command: &str) -> bool {
        let lease = format!("cg:lease:{{{}}}", self.id);
        self.world.redis.query::<u64>(&[command, &lease]).await > 0
    }

    /// Redis loses the campaign. What SQL has not heard of by then is gone, as nothing else was promised.
    pub async fn lose_keys(&self) {
        self.lose_all_but(&BTreeSet::new()).await;
        let keys = self.keys();
        let words: Vec<&str> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
        self.world.redis.query::<u64>(&words).await;
    }

    /// No promise covers claims any more of which SQL has not heard, but for those of `kept`.
    async fn lose_all_but(&self, kept: &BTreeSet<String>) {
        let rows = self.world.sql.claims(&self.id).await;
        let told = self.told.get();
        let in_sql = |id: &String, sequence: u64| {
            rows.iter().any(|row| row.id == *id && row.sequence == sequence && row.status != "revoked")
        };
        let is_up_to_date = |id: &String| {
            let status = rows.iter().find(|row| row.id == *id).map_or("", |row| row.status.as_str());
            told.transitions.get(id).is_none_or(|transitions| {
                (!transitions.returned || status == "returned")
                    && (!transitions.confirmed || ["granted", "returned"].contains(&status))
            })
        };
        let is_lost = |user: &String, claim: &Acknowledged| {
            !(kept.contains(user) || in_sql(&claim.id, claim.sequence)) || !is_up_to_date(&claim.id)
        };
        let lost = told.claims.iter().filter(|(user, claim)| is_lost(user, claim));
        self.told.lost(lost.map(|(_, claim)| claim.id.clone()));
    }

    /// A copy of the database as it is by now, if some protocol is to bring it back.
    pub async fn leave_a_database_behind(&self) {
        if self.forgets {
            self.world.sql.copy_tables().await;
        }
    }

    /// The copy of the database takes its place. No promise covers what Redis does not have either, or what is about to be
    /// replaced there by what SQL had.
    pub async fn forget(&self) {
        let epoch = self.world.sql.numbers("SELECT epoch FROM campaigns WHERE id = $1", &self.id).await;
        let state = self.world.redis.state(&self.id).await;
        let in_redis = state.and_then(|state| i64::try_from(*state.get("epoch")?).ok());
        let is_being_loaded = epoch.and_then(|epoch| epoch[0]) > in_redis;
        self.world.sql.bring_tables_back().await;
        if self.keys_there().await < 5 || is_being_loaded {
            self.lose_all_but(&BTreeSet::new()).await;
            let version =
                self.world.sql.numbers("SELECT version FROM campaigns WHERE id = $1", &self.id).await;
            self.told.forgotten(version.and_then(|version| u64::try_from(version[0]?).ok()).unwrap_or(0));
        } else if let Some(kept) = self.behind.get()
            && self.has_failed_over.load(Relaxed)
        {
            self.lose_all_but(kept).await;
        }
    }

    /// A replica that has what Redis has by now, and gets nothing more.
    pub async fn leave_a_replica_behind(&self) {
        for key in self.keys() {
            self.world.redis.query::<u64>(&["COPY", &key, &behind(&key)]).await;
        }
        let users = self.told.get().claims.into_keys().collect();
        self.behind.set(users).expect("one replica is behind");
    }

    /// The replica that is behind, if there is one, becomes the primary.
    pub async fn fail_over(&self) {
        if let Some(kept) = self.behind.get() {
            self.has_failed_over.store(true, Relaxed);
            self.lose_all_but(kept).await;
            for key in self.keys() {
                self.world.redis.query::<u64>(&["COPY", &behind(&key), &key, "REPLACE"]).await;
            }
        }
        self.promote().await;
    }

    /// The same. What has left Redis stays away: an eviction waits for a replica, too.
    pub async fn fail_over_unless_evicted(&self, initial: InitialState) {
        if [InitialState::Over, InitialState::Evicted].contains(&initial) {
            self.promote().await;
        } else {
            self.fail_over().await;
        }
    }

    /// The server becomes a replica and a primary again, with all that it has. All connections end, as they do with the
    /// server that a promoted one replaces.
    pub async fn promote(&self) {
        let redis = &self.world.redis;
        redis.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
        redis.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        redis.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    }

    /// While both protocols stand still: two callers who have not asked before, one at each core, who ask again at
    /// the other if they win; and one who gives a claim
    /// back, if the campaign is in Redis. An evicted one would come back for it, in the midst of what stands still.
    pub async fn callers(&self, nodes: &[Node; 2], initial: InitialState) {
        if initial.is_in_redis() {
            let reply = self.transition(&nodes[1], "u5", "return").await;
            self.log.add(format!("    u5 gives back at B: {}", reply.brief()));
        }
        for at in 0..nodes.len() {
            let user = self.new_user();
            let reply = self.claim(&nodes[at], &user).await;
            self.log.add(format!("    {user} claims at {}: {}", NAMES[at], reply.brief()));
            if reply.status == 201 {
                let again = self.claim(&nodes[1 - at], &user).await;
                self.log.add(format!("    {user} asks again at {}: {}", NAMES[1 - at], again.brief()));
            }
        }
    }
}

/// The name under which the replica that is behind has its copy of a key.
fn behind(key: &str) -> String {
    format!("behind:{key}")
}
