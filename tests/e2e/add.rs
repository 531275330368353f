//! Adding units to a running campaign, campaigns with a total of zero, and changing the hold time.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::clocked::ClockedCore;
use support::core_client::API_TOKEN;
use support::core_client::{CoreClient, campaign};
use support::process::{Signal, signal_pids};
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, Sql, eventually};

use crate::on_postgres::on_postgres;

/// Maximum number of timeouts of a call before a response that says what was stored.
const ROUNDS_MAX: u64 = 5;

async fn add(core: &CoreClient, id: &str, units: i64, key: &str) -> Reply {
    let body = json!({"units": units, "idempotency_key": key});
    core.admin(Method::POST, &format!("/admin/v1/campaigns/{id}/add"), &body).await
}

fn is_replay(reply: &Reply) -> bool {
    reply.header("idempotent-replayed") == "true"
}

#[tokio::test]
async fn units_are_added_once_per_key_with_immediate_effect() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1, "per_user": 2})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.claim("demo", "bob", "k").await.refused(409, "sold_out");
    let added = add(&core, "demo", 50, "a-1").await.expect(200);
    assert!(!is_replay(&added));
    let view = added.json();
    assert_eq!(
        (&view["limits"]["total"], &view["remaining"], &view["version"]),
        (&json!(51), &json!(50), &json!(2))
    );
    assert_eq!(view["limits"]["per_user"], 2, "all other fields are unchanged");
    core.claim("demo", "bob", "k").await.expect(201);

    let again = add(&core, "demo", 50, "a-1").await.expect(200);
    assert!(is_replay(&again));
    assert_eq!((&again.json()["limits"]["total"], &again.json()["version"]), (&json!(51), &json!(2)));
    add(&core, "demo", 49, "a-1").await.refused(422, "idempotency_key_reused");

    let taken_off = add(&core, "demo", -51, "a-2").await.expect(200).json();
    assert_eq!(
        (&taken_off["limits"]["total"], &taken_off["taken"], &taken_off["remaining"]),
        (&json!(0), &json!(2), &json!(0)),
        "granted claims remain"
    );
    core.claim("demo", "carol", "k").await.refused(409, "sold_out");
    core.claim("demo", "bob", "k").await.expect(200);
    core.create("other", json!({"total": 1})).await;
    assert!(
        !is_replay(&add(&core, "other", 50, "a-1").await.expect(200)),
        "keys are scoped to their campaign"
    );

    let audit = core.sql().audit("demo").await;
    let changes: Vec<_> = audit.iter().map(|row| (row.0, row.1.as_str(), row.2.as_str())).collect();
    assert_eq!(changes, [(1, "admin", "create"), (2, "admin", "add"), (3, "admin", "add")]);
    let total = |text: &str| serde_json::from_str::<Value>(text).unwrap()["limits"]["total"].clone();
    assert_eq!((total(audit[1].3.as_ref().unwrap()), total(&audit[1].4)), (json!(1), json!(51)));
}

#[tokio::test]
async fn a_rejected_addition_names_the_reason_and_changes_nothing() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    core.create("free", json!({})).await;
    for (units, code) in [(-11, 422), (4_294_967_286, 422), (i64::MAX, 422), (i64::MIN, 422)] {
        let refused = add(&core, "demo", units, "k").await.refused(code, "quantity_out_of_range").json();
        assert_eq!(refused["field"], "units", "{units}");
    }
    let refused = add(&core, "free", 1, "k").await.refused(400, "invalid_request").json();
    assert_eq!(refused["field"], "units");
    add(&core, "none", 1, "k").await.refused(404, "campaign_not_found");
    for (body, field) in [
        (json!({"units": 1.5, "idempotency_key": "k"}), "units"),
        (json!({"units": "1", "idempotency_key": "k"}), "units"),
        (json!({"units": null, "idempotency_key": "k"}), "units"),
        (json!({"units": 1, "idempotency_key": ""}), "idempotency_key"),
        (json!({"units": 1, "idempotency_key": "k", "version": 1}), "version"),
        (json!({"units": 1}), "idempotency_key"),
        (json!({"idempotency_key": "k"}), "units"),
    ] {
        let refused = core.admin(Method::POST, "/admin/v1/campaigns/demo/add", &body).await;
        assert_eq!(refused.refused(400, "invalid_request").json()["field"], field, "{body}");
    }
    let url = core.admin_url("/admin/v1/campaigns/demo/add");
    let body = json!({"units": 1, "idempotency_key": "k"});
    for (token, status) in [("", 401), ("wrong", 401), (API_TOKEN, 403)] {
        assert_eq!(core.client().call(Method::POST, &url, token, &body).await.status, status, "{token:?}");
    }
    let view = core.campaign("demo").await;
    assert_eq!((&view["limits"]["total"], &view["version"]), (&json!(10), &json!(1)));
    // A rejected key can still be used.
    assert!(!is_replay(&add(&core, "demo", 1, "k").await.expect(200)));

    core.set_admin_state("demo", "end").await.expect(200);
    add(&core, "demo", 1, "k2").await.refused(409, "campaign_ended");
    assert!(
        is_replay(&add(&core, "demo", 1, "k").await.expect(200)),
        "an earlier addition is still replayed"
    );
}

/// Sends additions and patches concurrently, each key twice, and checks that each change counts exactly once.
async fn concurrent_changes_all_count(core: &Core, sql: &Sql) {
    core.create("demo", json!({"total": 1000})).await;
    let additions = (0..30).map(|at| {
        let units = if at % 3 == 0 { -1 } else { 5 };
        async move { (at, add(core, "demo", units, &format!("k{}", at / 2 * 2)).await) }
    });
    // Both additions of a pair have the same key, but not always the same units.
    let patches = (0..10).map(|at| async move {
        until_status(SOON, &[200], async || {
            core.patch("demo", json!({"name": format!("n{at}"), "limits": {"per_user": at + 1}})).await
        })
        .await
    });
    let (added, answers) = tokio::join!(join_all(additions), join_all(patches));
    let mut total = 1000;
    for pair in added.chunks(2) {
        let done: Vec<_> = pair.iter().filter(|(_, reply)| reply.status == 200).collect();
        let new = done.iter().filter(|(_, reply)| !is_replay(reply)).count();
        // An addition whose first response was 503 may already have counted.
        let was_repeated = pair.iter().any(|(_, reply)| reply.repeats > 0);
        assert!(
            new == 1 || new == 0 && was_repeated && !done.is_empty(),
            "one of two additions with the same key counts: {pair:?}"
        );
        total += if done[0].0 % 3 == 0 { -1 } else { 5 };
    }
    let view = core.campaign("demo").await;
    assert_eq!(view["limits"]["total"], total);
    // A patch without a version may count again if its first response was 503.
    let repeats: usize = answers.iter().map(|reply| reply.repeats as usize).sum();
    let changes = sql.audit("demo").await.len();
    assert!((26..=26 + repeats).contains(&changes), "{changes} changes, {repeats} retries");
    assert_eq!(view["version"], changes);
    let rows = sql.number("SELECT COUNT(*) FROM additions WHERE campaign_id = $1", "demo").await;
    assert_eq!(rows, 15);
}

#[tokio::test]
async fn all_concurrent_changes_take_effect_on_sqlite() {
    let core = Core::start().await;
    concurrent_changes_all_count(&core, &core.sql()).await;
}

#[tokio::test]
async fn all_concurrent_changes_take_effect_on_postgres() {
    if let Some((core, sql, _postgres)) = on_postgres("additions on PostgreSQL", CoreOptions::default()).await
    {
        concurrent_changes_all_count(&core, &sql).await;
    }
}

/// Retries the call until the response is not a 503: under load, the database may exceed the deadline of a
/// call.
async fn until_answered<F: Future<Output = Reply>>(call: impl Fn() -> F) -> Reply {
    eventually(SOON, || async {
        let reply = call().await;
        holds(reply.status != 503, || reply.text()).map(|()| reply)
    })
    .await
}

/// Pauses and resumes the campaign while units are added, and checks that no call conflicts with another.
async fn pausing_during_additions_always_succeeds(core: &Core) {
    core.create("demo", json!({"total": 1})).await;
    let additions = (0..4).map(|adder| async move {
        for at in 0..10 {
            until_answered(|| async { add(core, "demo", 1, &format!("k{adder}-{at}")).await })
                .await
                .expect(200);
        }
    });
    let states = async {
        for at in 0..20 {
            let verb = if at % 2 == 0 { "pause" } else { "resume" };
            until_answered(|| core.set_admin_state("demo", verb)).await.expect(200);
        }
    };
    tokio::join!(join_all(additions), states);
    let view = core.campaign("demo").await;
    assert_eq!((&view["limits"]["total"], &view["version"]), (&json!(41), &json!(1 + 40 + 20)));
    core.set_admin_state("demo", "end").await.expect(200);
    core.set_admin_state("demo", "end").await.expect(200);
    core.set_admin_state("demo", "pause").await.refused(409, "campaign_ended");
    assert_eq!(core.campaign("demo").await["version"], 62, "repeating a change does not raise the version");
}

#[tokio::test]
async fn pausing_during_additions_always_succeeds_on_sqlite() {
    pausing_during_additions_always_succeeds(&Core::start().await).await;
}

#[tokio::test]
async fn pausing_during_additions_always_succeeds_on_postgres() {
    if let Some((core, _sql, _postgres)) =
        on_postgres("pauses during additions on PostgreSQL", CoreOptions::default()).await
    {
        pausing_during_additions_always_succeeds(&core).await;
    }
}

/// An addition that SQL has stored must not be reported as undecided, unless storing it took all of the call's time.
#[tokio::test]
async fn an_addition_stored_in_sql_only_is_reported_as_stored() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 0})).await;
    let pids = core.redis().await.pids().await;
    for round in 1.. {
        let key = format!("k{round}");
        signal_pids(&pids, Signal::STOP);
        let answer = add(&core.once(), "demo", 5, &key).await;
        signal_pids(&pids, Signal::CONT);
        let answer = answer.refused(503, "unavailable");
        assert!(!answer.header("retry-after").is_empty());
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        let again = until_status(SOON, &[200], async || add(&core, "demo", 5, &key).await).await;
        assert_eq!(again.json()["limits"]["total"], 5 * round);
        if detail.contains("stored") {
            assert!(detail.contains("not apply it twice"), "{detail}");
            assert!(is_replay(&again), "the addition was stored");
            break;
        }
        assert!(detail.contains("unknown") && round < ROUNDS_MAX, "{detail}");
    }
    core.claim("demo", "alice", "k").await.expect(201);
}

#[tokio::test]
async fn additions_interrupted_by_a_crash_count_once_when_resent() {
    let mut core = Core::start().await;
    core.create("demo", json!({"total": 0})).await;
    let (url, token) = (core.admin_url("/admin/v1/campaigns/demo/add"), core.admin_token());
    let send = |client: support::client::Client, at: i64| {
        let (url, token) = (url.clone(), token.clone());
        let body = json!({"units": at, "idempotency_key": format!("k{at}")});
        async move {
            let request = client.request(Method::POST, &url).bearer_auth(token).json(&body);
            client.send(request).await.is_ok_and(|reply| reply.status == 200)
        }
    };
    let calls: Vec<_> = (1..=40).map(|at| tokio::spawn(send(support::client::client(), at))).collect();
    eventually(SOON, || async {
        let rows = core.sql().number("SELECT COUNT(*) FROM additions WHERE campaign_id = $1", "demo").await;
        holds(rows >= 3, || format!("{rows} added"))
    })
    .await;
    core.kill();
    join_all(calls).await;
    let core = core.restart().await;
    for at in 1..=40 {
        add(&core, "demo", at, &format!("k{at}")).await.expect(200);
    }
    let view = core.campaign("demo").await;
    assert_eq!((&view["limits"]["total"], &view["version"]), (&json!(40 * 41 / 2), &json!(41)));
}

#[tokio::test]
async fn a_resent_addition_completes_an_interrupted_one() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 0})).await;
    let sql = core.sql();
    sql.run(
        "INSERT INTO additions (campaign_id, idempotency_key, units, version) VALUES ('demo', 'k', 5, 2)"
            .into(),
    )
    .await;
    sql.change_campaign("demo", "total = 5").await;
    let again = add(&core, "demo", 5, "k").await.expect(200);
    assert!(is_replay(&again));
    core.claim("demo", "alice", "k").await.expect(201);
}

#[tokio::test]
async fn a_total_of_zero_is_sold_out_until_it_is_raised() {
    let mut core = Core::start().await;
    let made = core.create("demo", json!({"total": 0, "per_claim": 2})).await;
    assert_eq!(
        (&made["limits"]["total"], &made["remaining"], &made["state"]),
        (&json!(0), &json!(0), &json!("sold_out"))
    );
    for (user, units) in [("alice", 1), ("alice", 2), ("bob", 1)] {
        let refused = core.claim_units("demo", user, "k", units).await.refused(409, "sold_out").json();
        assert_eq!((&refused["limit"], &refused["remaining"]), (&json!("total"), &json!(0)));
    }
    core.claim_units("demo", "alice", "k", 3).await.refused(422, "quantity_out_of_range");
    let same =
        core.admin(Method::POST, "/admin/v1/campaigns", &campaign("demo", json!({"total": null}))).await;
    same.refused(409, "campaign_exists");
    core.patch("demo", json!({"limits": {"total": 1}})).await.expect(200);
    core.claim("demo", "alice", "k").await.expect(201);
    let emptied = core.patch("demo", json!({"limits": {"total": 0}})).await.expect(200).json();
    assert_eq!((&emptied["taken"], &emptied["remaining"]), (&json!(1), &json!(0)));
    core.claim("demo", "bob", "k").await.refused(409, "sold_out");
    core.sql().until("demo", 1).await;
    // The total must be read back from SQL correctly.
    core.kill();
    let core = core.restart().await;
    assert_eq!(core.campaign("demo").await["limits"]["total"], 0);
    core.claim("demo", "bob", "k").await.refused(409, "sold_out");
    core.claim("demo", "alice", "k").await.expect(200);
}

#[tokio::test]
async fn a_changed_hold_time_applies_to_later_claims_only() {
    let clocked = ClockedCore::start(CoreOptions::default()).await;
    let core = &clocked.core;
    core.create("demo", json!({"total": 5})).await;
    let claim = async |user: &str| core.claim("demo", user, "k").await.expect(201).json()["claim"].clone();
    assert_eq!(claim("alice").await["status"], "granted");
    let changed = core.patch("demo", json!({"hold_seconds": 3600})).await.expect(200).json();
    assert_eq!((&changed["hold_seconds"], &changed["limits"]["total"]), (&json!(3600), &json!(5)));
    let held = claim("bob").await;
    assert_eq!(held["status"], "held");
    core.patch("demo", json!({"hold_seconds": 86_400})).await.expect(200);
    assert_eq!(claim("carol").await["status"], "held");
    let named = core.patch("demo", json!({"name": "New"})).await.expect(200).json();
    assert_eq!(named["hold_seconds"], 86_400, "an omitted field is unchanged");
    core.patch("demo", json!({"hold_seconds": null})).await.expect(200);
    assert_eq!(claim("dave").await["status"], "granted");
    clocked.move_by_hours(2).await;
    // Bob's hold still expires although the campaign no longer has a hold time. Carol's longer hold remains.
    eventually(SOON, || async {
        let taken = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json()["taken"].clone();
        holds(taken == json!(3), || format!("{taken} taken"))
    })
    .await;
    let id = held["id"].as_str().unwrap();
    assert_eq!(core.look_up(id).await.expect(200).json()["claim"]["status"], "expired");
    for wrong in [json!(0), json!(-1), json!("1"), json!(1.5)] {
        let refused =
            core.patch("demo", json!({"hold_seconds": wrong})).await.refused(400, "invalid_request");
        assert_eq!(refused.json()["field"], "hold_seconds");
    }
}
