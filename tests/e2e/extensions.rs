//! Extensions of holds, on a clock that stands still: absolute, of at least ten seconds, at most 64 times, up to the
//! maximum, and only by a back end or an operator.

use reqwest::Method;
use serde_json::{Value, json};
use support::clock::FrozenClock;
use support::core_client::campaign;
use support::follower::Follower;
use support::signing::{Signed, claim_id};
use support::times::{ms, now_ms};
use support::wait::{holds, refused_in_time};
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually};

use crate::on_postgres::on_postgres;

const HOLD_S: i64 = 600;
const VERA: &str = "the-viewers-token-for-the-extensions-1";

/// A core whose Redis has a frozen clock, and a claim by alice in the campaign `demo`, held for [`HOLD_S`].
struct Held {
    core: Core,
    redis: Servers,
    clock: FrozenClock,
    claimed_at_ms: i64,
}

impl Held {
    async fn start(options: CoreOptions) -> Self {
        let clock = FrozenClock::at(now_ms());
        let redis = Servers::start_frozen(&clock).await;
        let core = options.with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
        let mut body = campaign("demo", json!({"total": 1}));
        body["hold_seconds"] = json!(HOLD_S);
        core.create_with(body).await;
        core.claim("demo", "alice", "k").await.expect(201);
        let claimed_at_ms = clock.now_ms();
        Self { core, redis, clock, claimed_at_ms }
    }

    /// Moves the clock to this time after the claim.
    async fn set_ms(&mut self, ms: i64) {
        let now_ms = self.claimed_at_ms + ms;
        self.redis.set_frozen_clock(&mut self.clock, now_ms).await;
    }

    async fn set_s(&mut self, seconds: i64) {
        self.set_ms(seconds * 1000).await;
    }

    async fn transition(&self, verb: &str) -> Reply {
        self.core.transition(&claim_id("demo", "alice", "k"), verb).await
    }

    /// Extends the hold; returns how many seconds after the claim it now expires.
    async fn extended_until_s(&self) -> i64 {
        self.expiry_s(&self.transition("extend").await.expect(200))
    }

    fn expiry_s(&self, reply: &Reply) -> i64 {
        let claim = &reply.json()["claim"];
        assert_eq!(claim["status"], "held", "{claim}");
        let after_ms = ms(claim["expires_at"].as_str().expect("an expiry")) - self.claimed_at_ms;
        assert_eq!(after_ms % 1000, 0, "{claim}");
        after_ms / 1000
    }

    async fn look_up(&self) -> Reply {
        self.core.look_up(&claim_id("demo", "alice", "k")).await.expect(200)
    }

    /// Waits until the claim has this status, with no call that decides anything.
    async fn until(&self, status: &str) {
        eventually(SOON, || async {
            let claim = self.look_up().await.json()["claim"].clone();
            holds(claim["status"] == status, || claim.to_string())
        })
        .await;
    }

    /// Waits until SQL has everything, and returns the claim's revision and expiry there, in seconds after the claim.
    async fn row(&self) -> (u64, Option<i64>) {
        self.redis.view().await.relayed("demo", SOON).await;
        let row = self.core.sql().claims("demo").await.remove(0);
        (row.revision, row.expires_at.map(|at| (at - self.claimed_at_ms) / 1000))
    }
}

#[tokio::test]
async fn an_extension_is_absolute_and_gains_at_least_ten_seconds() {
    let mut held = Held::start(CoreOptions::default()).await;
    held.set_ms(9_999).await;
    assert_eq!(held.extended_until_s().await, HOLD_S, "it would gain less than ten seconds");
    assert_eq!(held.row().await, (1, Some(HOLD_S)));
    held.set_s(10).await;
    for _ in 0..3 {
        assert_eq!(held.extended_until_s().await, HOLD_S + 10, "however often it is sent");
    }
    assert_eq!(held.row().await, (2, Some(HOLD_S + 10)));
    assert_eq!(held.expiry_s(&held.look_up().await), HOLD_S + 10);
    let report = held.core.admin_get("/admin/v1/campaigns/demo/reconciliation").await.expect(200).json();
    assert_eq!(report["agrees"], true, "{report}");
    held.set_s(-3600).await;
    assert_eq!(held.extended_until_s().await, HOLD_S + 10, "a clock set back shortens no hold");
}

#[tokio::test]
async fn an_extended_hold_expires_at_its_later_time() {
    let mut held = Held::start(CoreOptions::default()).await;
    held.set_s(HOLD_S - 1).await;
    assert_eq!(held.extended_until_s().await, 2 * HOLD_S - 1);
    // A claim by another user expires the holds that are due first.
    for at_s in [HOLD_S, 2 * HOLD_S - 2] {
        held.set_s(at_s).await;
        held.core.claim("demo", "bob", "k").await.refused(409, "sold_out");
        assert_eq!(held.expiry_s(&held.look_up().await), 2 * HOLD_S - 1);
    }
    held.set_s(2 * HOLD_S - 1).await;
    held.until("expired").await;
    held.transition("extend").await.refused(409, "claim_expired");
    held.core.claim("demo", "bob", "k").await.expect(201);
}

#[tokio::test]
async fn a_due_hold_expires_instead_of_being_extended() {
    let mut held = Held::start(CoreOptions::default()).await;
    held.set_s(HOLD_S).await;
    let refused = held.transition("extend").await.refused(409, "claim_expired").json();
    assert_eq!(refused["claim"]["status"], "expired");
    held.core.claim("demo", "bob", "k").await.expect(201);
}

#[tokio::test]
async fn a_hold_is_extended_at_most_64_times() {
    let mut held = Held::start(CoreOptions::default()).await;
    for times in 1..=64 {
        held.set_s(10 * times).await;
        assert_eq!(held.extended_until_s().await, HOLD_S + 10 * times);
    }
    held.set_s(649).await;
    assert_eq!(held.extended_until_s().await, HOLD_S + 640, "nothing would be gained");
    held.set_s(650).await;
    let refused = held.transition("extend").await.refused(409, "hold_extended_too_often");
    assert_eq!(held.expiry_s(&refused), HOLD_S + 640);
    assert_eq!(held.row().await, (65, Some(HOLD_S + 640)));
    assert_eq!(held.transition("confirm").await.expect(200).json()["claim"]["status"], "granted");
}

#[tokio::test]
async fn a_hold_is_extended_up_to_the_maximum_after_its_claim() {
    let mut held = Held::start(CoreOptions::default().with("CLAIMGATE_HOLD_EXTENSION_MAX_S", "900")).await;
    held.set_s(290).await;
    assert_eq!(held.extended_until_s().await, 890);
    held.set_s(880).await;
    assert_eq!(held.extended_until_s().await, 900, "exactly ten seconds to the maximum");
    held.set_s(899).await;
    assert_eq!(held.extended_until_s().await, 900);
    held.set_s(900).await;
    held.transition("extend").await.refused(409, "claim_expired");
}

#[tokio::test]
async fn an_extension_applies_the_current_hold_of_the_campaign() {
    let held = Held::start(CoreOptions::default()).await;
    held.core.patch("demo", json!({"hold_seconds": 300})).await.expect(200);
    assert_eq!(held.extended_until_s().await, HOLD_S, "no hold is shortened");
    held.core.patch("demo", json!({"hold_seconds": 7200})).await.expect(200);
    assert_eq!(held.extended_until_s().await, 7200);
    held.core.patch("demo", json!({"hold_seconds": null})).await.expect(200);
    assert_eq!(held.extended_until_s().await, 7200);
    assert_eq!(held.row().await, (2, Some(7200)));
}

/// A back end that extends thousands of holds while SQL does not respond must not fill Redis' memory.
#[tokio::test]
async fn a_full_outbox_rejects_extensions_but_not_confirmations() {
    let mut held = Held::start(CoreOptions::default().with("CLAIMGATE_OUTBOX_MAX", "2")).await;
    held.row().await;
    // Simulate a relay that has fallen behind.
    held.redis.view().await.set_counter("demo", "backlog", 2).await;
    held.set_s(9).await;
    assert_eq!(held.extended_until_s().await, HOLD_S, "nothing would be written");
    held.set_s(10).await;
    // A slow machine may answer any call with `unavailable`.
    let (once, id) = (held.core.once(), claim_id("demo", "alice", "k"));
    refused_in_time(503, "overloaded", async || once.transition(&id, "extend").await).await;
    assert_eq!(held.expiry_s(&held.look_up().await), HOLD_S);
    assert_eq!(held.transition("confirm").await.expect(200).json()["claim"]["status"], "granted");
}

#[tokio::test]
async fn a_claim_that_is_not_held_is_answered_as_by_confirm() {
    let held = Held::start(CoreOptions::default()).await;
    held.core.transition(&claim_id("demo", "bob", "k"), "extend").await.refused(404, "claim_not_found");
    held.transition("confirm").await.expect(200);
    let granted = held.transition("extend").await.expect(200).json();
    assert_eq!(
        (&granted["claim"]["status"], &granted["claim"]["expires_at"]),
        (&json!("granted"), &Value::Null)
    );
    held.transition("return").await.expect(200);
    let returned = held.transition("extend").await.refused(409, "claim_returned").json();
    assert_eq!(returned["claim"]["status"], "returned");
}

#[tokio::test]
async fn the_edge_and_viewers_may_not_extend_a_hold() {
    let held =
        Held::start(CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", format!("vera:viewer:{VERA}")))
            .await;
    held.core.patch("demo", json!({"hold_seconds": 7200})).await.expect(200);
    let path = format!("/internal/v1/claims/{}/extend", claim_id("demo", "alice", "k"));
    let signed = Signed { method: Method::POST, ..Signed::get(&held.core, &path, "alice") };
    signed.send(&held.core).await.refused(403, "forbidden");
    for (token, status, code) in
        [(VERA, 403, "forbidden"), ("a-token-that-is-not-known-but-long-enough", 401, "unauthenticated")]
    {
        let client = held.core.client();
        client.call(Method::POST, &held.core.url(&path), token, &Value::Null).await.refused(status, code);
    }
    assert_eq!(held.row().await, (1, Some(HOLD_S)));
}

/// The feed and the audit follow the row in SQL.
async fn an_extension_is_in_the_feed_and_the_audit(core: &Core) {
    let mut body = campaign("demo", json!({}));
    body["hold_seconds"] = json!(HOLD_S);
    core.create_with(body).await;
    let before = core.claim("demo", "alice", "k").await.expect(201).json()["claim"].clone();
    core.redis().await.relayed("demo", SOON).await;
    let mut follower = Follower::default();
    follower.read_all(core, 100).await;
    core.patch("demo", json!({"hold_seconds": 7200})).await.expect(200);
    let after = core.transition(&claim_id("demo", "alice", "k"), "extend").await.expect(200).json();
    let after = after["claim"].clone();
    assert!(ms(after["expires_at"].as_str().unwrap()) > ms(before["expires_at"].as_str().unwrap()));
    core.redis().await.relayed("demo", SOON).await;
    let items = follower.read_all(core, 100).await;
    let shown: Vec<_> = items.iter().map(|item| (&item["claim"], &item["revision"])).collect();
    assert_eq!(shown, [(&after, &json!(2))]);
    let audit = core.admin_get("/admin/v1/audit?campaign_id=demo").await.expect(200).json();
    let extension = audit["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        [&extension["who"], &extension["what"], &extension["claim_id"], &extension["version"]],
        [&json!("shop"), &json!("extend"), &after["id"], &Value::Null]
    );
    for (name, claim) in [("before", &before), ("after", &after)] {
        let expected = json!({"status": "held", "expires_at": claim["expires_at"]});
        assert_eq!(extension[name], expected, "{name}: {extension}");
    }
}

#[tokio::test]
async fn an_extension_is_in_the_feed_and_the_audit_on_sqlite() {
    an_extension_is_in_the_feed_and_the_audit(&Core::start().await).await;
}

#[tokio::test]
async fn an_extension_is_in_the_feed_and_the_audit_on_postgres() {
    let what = "extensions on PostgreSQL";
    if let Some((core, _sql, _postgres)) = on_postgres(what, CoreOptions::default()).await {
        an_extension_is_in_the_feed_and_the_audit(&core).await;
    }
}

/// Redis' set of holds follows each extension, so that the earlier expiry has no effect.
#[tokio::test]
async fn the_set_of_holds_has_the_later_expiry() {
    let mut held = Held::start(CoreOptions::default()).await;
    held.set_s(100).await;
    assert_eq!(held.extended_until_s().await, HOLD_S + 100);
    let due = held.redis.view().await.due_holds("demo").await;
    let due: Vec<_> = due.into_iter().map(|(_, expires_at)| expires_at).collect();
    assert_eq!(due, [held.claimed_at_ms + (HOLD_S + 100) * 1000]);
}
