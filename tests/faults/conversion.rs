//! Campaigns of layout 6, which the version before this one wrote. A core converts each of them: it suspends the
//! campaign, relays the outbox of layout 6, and loads the campaign from SQL.
//! `rolling.rs` tests the same with that version's program.

use std::time::Duration;

use serde_json::{Value, json};
use support::checker::{Checker, Expect, Limits};
use support::inspect::key;
use support::only_on;
use support::process::fast_disk;
use support::storm::{ClaimAttempt, ClaimOutcome};
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{CoreOptions, RedisView, SOON, Servers, eventually};

use crate::fixture::Fixture;
use crate::layout6::Layout6;
use crate::tally::Row;

const LIMITS: Limits = Limits { total: Some(100), per_user: Some(12), per_user_per_day: Some(12) };
/// The latest moment of a kill, counted from the first sign of the conversion.
const KILLED_AFTER_MS: u64 = 36;

/// The state in which a core finds the campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Open.
    Open,
    /// A core of this version suspended the campaign and stopped before the load. The keys are complete, but
    /// must not be adopted.
    Suspended,
    /// Cores of this version were killed at various moments of the conversion.
    Killed,
    /// SQL has lost the last change of the rules, which only Redis has.
    Changed,
    /// The outbox has lost entries that SQL lacks, so only the records of layout 6 have these claims.
    WithoutEntries,
}

async fn converts(found: Found) {
    let row = Row::begin(format!("a campaign of layout 6 is converted ({found:?})"));
    let options = CoreOptions::default().on_fast_disk();
    let mut fixture = Fixture::on(Servers::start_with(&[], &fast_disk()).await, options).await;
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    if found == Found::Changed {
        fixture.sql.copy_tables().await;
        let change = json!({"limits": {"per_claim": 3}, "hold_seconds": null});
        fixture.core.patch("demo", change).await.expect(200);
        fixture.sql.restore_tables().await;
    }
    fixture.core.stop().await;
    let redis = fixture.redis().await;
    row.fault();
    let old = Layout6::replace(redis.clone()).await;
    // The oldest claims of `often` move out of the user's record.
    for at in 0..12 {
        old.claim(&checker, "often", &format!("k{at}")).await;
    }
    for user in 10..20 {
        old.claim(&checker, &format!("u{user}"), "k").await;
    }
    old.return_claim(&checker, "u3", "k").await;
    old.return_claim(&checker, "often", "k1").await;
    let entries: u64 = redis.query(&["XLEN", "cg:{demo}:outbox"]).await;
    assert_eq!(entries, 1 + 24, "nothing has been relayed");
    match found {
        Found::Open | Found::Changed => {}
        Found::Suspended => {
            let token = (old.token.parse::<u64>().unwrap() + 1).to_string();
            let (prelude, suspend) =
                (include_str!("../../lua/prelude.lua"), include_str!("../../lua/suspend.lua"));
            assert_eq!(old.suspend(prelude, suspend, "7", &token).await, "suspended");
        }
        Found::Killed => killed_in_conversions(&mut fixture, &redis).await,
        Found::WithoutEntries => {
            let script = "for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '1', '+')) do \
                redis.call('XDEL', KEYS[1], entry[1]) end return 1";
            redis.query::<u64>(&["EVAL", script, "1", "cg:{demo}:outbox"]).await;
        }
    }
    fixture.core = fixture.core.restart().await;
    for (user, idempotency_key) in [("u0", "k"), ("u12", "k"), ("often", "k0"), ("often", "k11")] {
        let known = checker.outcomes();
        let attempt = ClaimAttempt { user: user.to_owned(), key: idempotency_key.to_owned(), units: 1 };
        let ClaimOutcome::Claimed { sequence: decided, .. } = known[&attempt] else { panic!("{user}") };
        let again = checker.decided(SOON, &fixture.core, user, idempotency_key).await;
        let ClaimOutcome::Claimed { sequence, replayed: true, .. } = again else {
            panic!("{user}: {again:?}")
        };
        assert_eq!(sequence, decided, "{user} {idempotency_key}");
    }
    has_the_new_layout(&fixture, &redis, found).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Checks what the conversion logged, the keys, the rules and the audit.
async fn has_the_new_layout(fixture: &Fixture, redis: &RedisView, found: Found) {
    let log = fixture.core.log();
    assert!(log.contains("the keys in Redis have layout 6"), "{log}");
    assert!(log.contains("from_layout=6") || log.contains("\"from_layout\":6"), "{log}");
    let layouts: (String, String) = (
        redis.query(&["GET", "cg:layout"]).await,
        redis.query(&["HGET", &key("demo", "campaign"), "layout"]).await,
    );
    assert_eq!(layouts, ("7".to_owned(), "7".to_owned()));
    assert_eq!(redis.query::<u64>(&["EXISTS", "cg:{demo}:outbox", "cg:{demo}:dead_letters"]).await, 0);
    let (per_claim, version) = if found == Found::Changed { (json!(3), 2) } else { (Value::Null, 1) };
    let view = fixture.core.campaign("demo").await;
    assert_eq!(
        (&view["limits"], &view["pass"], &view["version"]),
        (
            &json!({"total": 100, "per_user": 12, "per_user_per_day": 12, "per_claim": per_claim}),
            &Value::Null,
            &json!(version)
        )
    );
    if found != Found::WithoutEntries {
        let audit = fixture.sql.claim_audit("demo").await;
        assert_eq!(audit.len(), 2, "only the outbox names who returned a claim: {audit:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaign_of_layout_6_is_converted() {
    only_on!(ONE_SERVER, "the keys are written to one server");
    converts(Found::Open).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_campaign_of_layout_6_is_not_adopted() {
    only_on!(ONE_SERVER, "the keys are written to one server");
    converts(Found::Suspended).await;
}

/// Starts the core and kills it during the conversion, a little later each time.
async fn killed_in_conversions(fixture: &mut Fixture, redis: &RedisView) {
    for after_ms in (0..KILLED_AFTER_MS).step_by(3) {
        fixture.core = fixture.core.launch_tested();
        eventually(SOON, || async {
            let layout: String = redis.query(&["GET", "cg:layout"]).await;
            holds(layout == "7", || layout.clone())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        fixture.core.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversion_survives_kills() {
    only_on!(ONE_SERVER, "the keys are written to one server");
    converts(Found::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_lost_by_sql_is_read_from_layout_6() {
    only_on!(ONE_SERVER, "the keys are written to one server");
    converts(Found::Changed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_only_in_records_of_layout_6_reach_sql() {
    only_on!(ONE_SERVER, "the keys are written to one server");
    converts(Found::WithoutEntries).await;
}
