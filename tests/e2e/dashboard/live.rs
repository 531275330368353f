//! `GET /admin/v1/live`: who may watch, what a snapshot contains, and the behavior with many watchers or a
//! failed store.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::checker::{Checker, Limits};
use support::core_client::API_TOKEN;
use support::fault_proxy::FaultProxy;
use support::pair::Pair;
use support::postgres::Postgres;
use support::process::{Signal, signal_pid};
use support::rng::Rng;
use support::storm::{ClaimAttempt, claim_attempts};
use support::topology::Topology;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, SOON, Sql, eventually, only_on, promised, times};

use super::{LiveStream, OPERATOR, VIEWER, campaign, denials, with_roles};
use crate::on_postgres::on_postgres;

/// Delay of each packet between core and PostgreSQL, at most: a connection needs some ten packets, a statement four.
const SLOW_LINK_MAX: Duration = Duration::from_millis(200);
/// Time limit until a killed core is shown as silent: 5 s, and the second until the next snapshot.
const SILENT_SHOWN_MAX: Duration = Duration::from_secs(7);
/// Time limit of a snapshot while Redis hangs: the second until it is due, and 2.5 s.
const SNAPSHOT_MAX: Duration = Duration::from_secs(4);

/// Maximum number of concurrent watchers.
const SLOTS: usize = 32;

#[tokio::test]
async fn only_admins_may_watch_and_see_their_name_and_role() {
    let core = with_roles().start().await;
    assert_eq!(LiveStream::request(&core, "nobodys-token-nobodys-token-nobodys").await.status(), 401);
    assert_eq!(LiveStream::request(&core, API_TOKEN).await.status(), 403, "a back end has no role");
    let own = core.admin_token();
    for (token, name, role) in
        [(VIEWER, "vera", "viewer"), (OPERATOR, "olga", "operator"), (&*own, "admin", "admin")]
    {
        let (event, watcher) = LiveStream::open(&core, token).await.next().await.unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            (event.as_str(), watcher),
            ("watcher", json!({"name": name, "role": role, "version": version, "page_url": null}))
        );
    }
}

#[tokio::test]
async fn a_snapshot_counts_the_winners_without_codes() {
    let core = Core::start().await;
    core.run_out_of_codes("coded").await;
    core.create("plain", json!({"total": 1})).await;
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    stream
        .until("one winner waits", |snapshot| {
            campaign(snapshot, "coded")["claims_without_codes"] == 1
                && campaign(snapshot, "plain")["claims_without_codes"].is_null()
        })
        .await;
    core.add_codes("coded", "B\n").await.expect(200);
    stream
        .until("no winner waits", |snapshot| campaign(snapshot, "coded")["claims_without_codes"] == 0)
        .await;
}

#[tokio::test]
async fn a_snapshot_has_counters_denials_and_recent_changes() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    for user in 0..5 {
        core.claim("demo", &format!("u{user}"), "k").await.expect(201);
    }
    core.claim("demo", "late", "k").await.refused(409, "sold_out");
    let _ = core.set_admin_state("demo", "pause").await.expect(200);
    core.claim("demo", "late", "k").await.refused(403, "paused");
    core.sql().until("demo", 5).await;
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    let snapshot = stream
        .until("paused and relayed, SQL up", |snapshot| {
            let demo = campaign(snapshot, "demo");
            let relayed = demo["ready"] == true && demo["backlog"] == 0;
            let has_sql = snapshot["sql"]["state"] == "up" && snapshot["audit"].is_array();
            relayed && demo["state"] == "paused" && has_sql
        })
        .await;
    let demo = campaign(&snapshot, "demo");
    assert_eq!(
        (&demo["remaining"], &demo["taken"], &demo["limits"]["total"]),
        (&json!(0), &json!(5), &json!(5))
    );
    assert_eq!((denials(&snapshot, "sold_out"), denials(&snapshot, "paused")), (1, 1));
    assert_eq!(denials(&snapshot, "granted"), 0, "a grant is not a denial");
    let changes: Vec<_> =
        snapshot["audit"].as_array().unwrap().iter().map(|change| &change["what"]).collect();
    assert_eq!(changes, ["pause", "create"], "the latest change first");
    assert_eq!(snapshot["redis"]["state"], "up");
    let cores = snapshot["cores"].as_array().unwrap();
    assert_eq!((cores.len(), &cores[0]["is_this"], &cores[0]["state"]), (1, &json!(true), &json!("up")));
    let reported = snapshot.to_string();
    assert!(!reported.contains("late") && !reported.contains("u0"), "a snapshot names no user: {reported}");
}

#[tokio::test]
async fn additions_are_listed_with_their_units() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    for (key, units) in [("more", 50), ("less", -7)] {
        let url = core.admin_url("/admin/v1/campaigns/demo/add");
        let body = json!({"units": units, "idempotency_key": key});
        let _ = core.client().call(Method::POST, &url, &core.admin_token(), &body).await.expect(200);
    }
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    let snapshot = stream.until("three changes", |snapshot| snapshot["audit"][2].is_object()).await;
    let reported: Vec<_> =
        snapshot["audit"].as_array().unwrap().iter().map(|one| (&one["what"], &one["units"])).collect();
    assert_eq!(
        reported,
        [(&json!("add"), &json!(-7)), (&json!("add"), &json!(50)), (&json!("create"), &Value::Null)]
    );
}

#[tokio::test]
async fn claims_per_second_match_the_counters() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    let mut before =
        stream.until("quiet", |snapshot| campaign(snapshot, "demo")["claims_per_s"] == 0.0).await;
    let checker = Checker::new("demo", Limits::default());
    // All claims may be made between two missing snapshots: then new users claim.
    let (mut compared, mut made) = (0, 0_u64);
    while compared == 0 {
        assert!(made < 20_000, "each storm was between two missing snapshots");
        let attempts = claim_attempts(200, 5).into_iter();
        let attempts: Vec<_> = attempts
            .map(|attempt| ClaimAttempt { user: format!("{}-{made}", attempt.user), ..attempt })
            .collect();
        made += 1000;
        let stormed = async {
            checker.storm(core.client(), || core.url("/internal/v1/claims"), &attempts, 8).await;
            checker.resolve_unknown(&core).await;
        };
        let watched = async {
            while campaign(&before, "demo")["taken"] != made {
                let now = stream.until("sent", |snapshot| campaign(snapshot, "demo")["ready"] == true).await;
                let [(taken_before, ms_before), (taken, ms)] = [&before, &now].map(|snapshot| {
                    let demo = campaign(snapshot, "demo");
                    (demo["taken"].as_f64().unwrap(), times::ms(demo["server_time"].as_str().unwrap()))
                });
                // Snapshots may be missing if this test was too slow, and right after a stall of Redis the
                // rate is unknown.
                let speed = campaign(&now, "demo")["claims_per_s"].as_f64();
                if let Some(speed) = speed.filter(|_| taken > taken_before && ms - ms_before < 1800) {
                    let passed_s = f64::from(i32::try_from(ms - ms_before).unwrap()) / 1000.0;
                    let reported = speed * passed_s;
                    assert!(
                        (reported - (taken - taken_before)).abs() < 0.5,
                        "{reported} claims according to the speed: {before:#} {now:#}"
                    );
                    compared += 1;
                }
                before = now;
            }
        };
        tokio::join!(watched, stormed);
    }
}

#[tokio::test]
async fn watchers_are_limited_and_leaving_frees_a_slot() {
    let core = Core::start().await;
    let token = core.admin_token();
    let mut watching = Vec::new();
    for _ in 0..SLOTS {
        watching.push(LiveStream::open(&core, &token).await);
    }
    let rejected = LiveStream::request(&core, &token).await;
    assert_eq!(rejected.status(), 503);
    assert!(rejected.headers().contains_key("retry-after"));
    assert_eq!(rejected.json::<Value>().await.unwrap()["code"], "overloaded");
    core.admin_get("/admin/v1/campaigns").await.expect(200);
    drop(watching.pop());
    eventually(SOON, || async {
        let answer = LiveStream::request(&core, &token).await.status();
        holds(answer == 200, || answer.to_string())
    })
    .await;
}

/// Opens five streams and reads four snapshots of each. Returns the times of all snapshots.
async fn snapshot_times(core: &Core) -> BTreeSet<String> {
    let token = core.admin_token();
    let (mut times, mut watching) = (BTreeSet::new(), Vec::new());
    for _ in 0..5 {
        watching.push(LiveStream::open(core, &token).await);
    }
    for stream in &mut watching {
        for _ in 0..4 {
            let snapshot = stream.until("sent", |_| true).await;
            times.insert(snapshot["at"].as_str().unwrap().to_owned());
        }
    }
    times
}

#[tokio::test]
async fn all_watchers_share_one_snapshot_a_second() {
    let core = Core::start().await;
    // On a busy machine the first snapshot may be later than the last one: then measure again.
    eventually(SOON, || async {
        let all = snapshot_times(&core).await;
        // The streams are read one after the other, so each may start a second after the previous one.
        assert!(all.len() <= 4 + 5, "{all:#?}");
        let times: Vec<_> = all.iter().map(|at| times::ms(at)).collect();
        // Check the average: on a busy machine one snapshot may be late and the next on time.
        let (span, seconds) = (times[times.len() - 1] - times[0], i64::try_from(times.len()).unwrap() - 1);
        holds(span + 500 > 1000 * seconds, || format!("{times:?}"))
    })
    .await;
}

#[tokio::test]
async fn open_streams_do_not_delay_a_shutdown() {
    let mut core = Core::start().await;
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    stream.until("sent", |_| true).await;
    core.stop().await;
    while stream.next().await.is_some() {}
    // At shutdown, core waits 5 s for connections that stay open.
    assert!(!core.log().contains("not waiting any longer"), "{}", core.log());
}

#[tokio::test]
async fn removing_a_token_ends_its_streams() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    std::fs::write(&file, format!("vera:viewer:{VIEWER}")).unwrap();
    let core =
        CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS_FILE", file.to_str().unwrap()).start().await;
    let mut stream = LiveStream::open(&core, VIEWER).await;
    stream.until("sent", |_| true).await;
    std::fs::write(&file, format!("vera:viewer:{OPERATOR}")).unwrap();
    signal_pid(core.pid(), Signal::HUP);
    while stream.next().await.is_some() {}
    assert_eq!(LiveStream::request(&core, VIEWER).await.status(), 401);
}

#[tokio::test]
async fn all_other_data_is_reported_while_sql_is_down() {
    let Some((core, sql, mut postgres)) =
        on_postgres("the dashboard while SQL is down", CoreOptions::default()).await
    else {
        return;
    };
    core.create("demo", json!({"total": 50})).await;
    core.claim("demo", "before", "k").await.expect(201);
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    let up =
        stream.until("up", |snapshot| snapshot["sql"]["state"] == "up" && snapshot["audit"].is_array()).await;
    assert_eq!(up["sql"]["kind"], "PostgreSQL");
    sql.until("demo", 1).await;
    postgres.stop_immediately().await;
    core.claim("demo", "during", "k").await.expect(201);
    let away = stream
        .until("SQL down", |snapshot| {
            let is_redis_up = snapshot["redis"]["state"] == "up";
            is_redis_up && snapshot["sql"]["state"] == "down" && campaign(snapshot, "demo")["taken"] == 2
        })
        .await;
    assert_eq!(away["audit"], Value::Null);
    assert_eq!(away["cores"].as_array().unwrap().len(), 1, "this core still lists itself");
    // The outbox is unknown if a probe of Redis failed.
    let aged = |snapshot: &Value| snapshot["outbox"]["oldest_age_ms"].as_u64().is_some_and(|ms| ms > 1000);
    let waiting = stream.until("an old event in the outbox", aged).await;
    assert_eq!(waiting["outbox"]["events"], 1);
    postgres.start_again().await;
    let back = |snapshot: &Value| {
        snapshot["sql"]["state"] == "up" && snapshot["audit"].is_array() && snapshot["outbox"]["events"] == 0
    };
    stream.until("SQL back and the outbox empty", back).await;
}

/// Core stops while it has a heartbeat under way, and before it has removed the row of the run that was
/// killed: each used to be listed as silent for an hour.
#[tokio::test]
async fn a_stopped_core_is_listed_no_longer_over_a_slow_link() {
    let postgres = Postgres::start().await;
    let Some(postgres) = available("a slow link to PostgreSQL", postgres) else { return };
    let direct = Sql::open(&postgres.database("claimgate").await);
    let link = FaultProxy::start(postgres.socket()).await;
    let url = Postgres::url_at(link.address(), "claimgate");
    let mut core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url).start().await;
    let listed = async || direct.number("SELECT COUNT(*) FROM cores WHERE id <> $1", "").await;
    eventually(SOON, || async { holds(listed().await == 1, || "the core is not listed".to_owned()) }).await;
    link.slow(SLOW_LINK_MAX / 4, Rng::seeded("stopped cores"));
    let mut removed = 0;
    for round in 1..=4 {
        core.kill();
        core = core.restart().await;
        core.stop().await;
        let gave_up = core.log().matches("remains listed").count();
        removed += usize::from(listed().await == 0);
        assert!(removed + gave_up >= round, "{}", core.log());
        core = core.restart().await;
    }
    assert!(removed > 0);
}

/// Over such a link, it takes longer to open a connection than a call may take, and longer to read the changes than a
/// snapshot waits. Each used to be cancelled and begun again.
#[tokio::test]
async fn a_database_behind_a_slow_link_is_still_used() {
    let postgres = Postgres::start().await;
    let Some(postgres) = available("a slow link to PostgreSQL", postgres) else { return };
    postgres.database("claimgate").await;
    let link = FaultProxy::start(postgres.socket()).await;
    let url = Postgres::url_at(link.address(), "claimgate");
    let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url).start().await;
    core.create("demo", json!({"total": 50})).await;
    link.slow(SLOW_LINK_MAX, Rng::seeded("slow link"));
    let end_sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'claimgate'";
    postgres.run("postgres", &[end_sessions]).await;
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    stream.until("changes from SQL", |snapshot| snapshot["audit"].is_array()).await;
    eventually(SOON, || async {
        let answer = core.once().admin_get("/admin/v1/campaigns/demo/claims").await;
        holds(answer.status == 200, || answer.text())
    })
    .await;
}

#[tokio::test]
async fn all_other_data_is_reported_while_redis_hangs() {
    only_on!(&[Topology::Own], "it stops core's own Redis");
    let core = Core::start().await;
    core.create("demo", json!({"total": 50})).await;
    core.claim("demo", "before", "k").await.expect(201);
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    stream.until("ready", |snapshot| campaign(snapshot, "demo")["taken"] == 1).await;
    let redis = core.redis_pid().await;
    signal_pid(redis, Signal::STOP);
    for _ in 0..4 {
        let began = Instant::now();
        stream.until("the next snapshot", |_| true).await;
        assert!(began.elapsed() < promised(SNAPSHOT_MAX), "the next snapshot took {:?}", began.elapsed());
    }
    let away = stream
        .until("Redis down", |snapshot| {
            snapshot["redis"]["state"] == "down" && campaign(snapshot, "demo")["ready"] == false
        })
        .await;
    signal_pid(redis, Signal::CONT);
    let demo = campaign(&away, "demo");
    assert_eq!(
        (&demo["remaining"], &demo["claims_per_s"]),
        (&Value::Null, &Value::Null),
        "outdated numbers are not shown"
    );
    assert_eq!(away["outbox"], Value::Null, "the outbox is unknown");
    assert_eq!((&away["sql"]["state"], &away["audit"][0]["what"]), (&json!("up"), &json!("create")));
    let back =
        |snapshot: &Value| snapshot["redis"]["state"] == "up" && campaign(snapshot, "demo")["taken"] == 1;
    stream.until("back", back).await;
}

#[tokio::test]
async fn both_cores_are_listed_and_their_denials_are_summed() {
    let pair = Pair::start(CoreOptions::default()).await;
    let Some(mut pair) = available("two cores on the dashboard", pair) else { return };
    let [one, other] = &pair.cores;
    one.create("demo", json!({"total": 2})).await;
    one.claim("demo", "a", "k").await.expect(201);
    until_status(SOON, &[200, 201], async || other.claim("demo", "b", "k").await).await;
    one.claim("demo", "c", "k").await.refused(409, "sold_out");
    other.claim("demo", "d", "k").await.refused(409, "sold_out");
    other.claim("demo", "e", "k").await.refused(409, "sold_out");
    let mut stream = LiveStream::open(one, &one.admin_token()).await;
    let both = stream
        .until("both cores' denials", |snapshot| {
            snapshot["cores"].as_array().unwrap().len() == 2 && denials(snapshot, "sold_out") == 3
        })
        .await;
    assert_eq!(both["refusals"]["cores"], 2);
    let address = other.listen().to_string();
    let is_other = |core: &&Value| core["name"].as_str().unwrap().ends_with(&address);
    let reported = both["cores"].as_array().unwrap().iter().find(is_other).unwrap();
    assert_eq!((&reported["state"], &reported["is_this"]), (&json!("up"), &json!(false)));
    pair.cores[1].kill();
    let silent = |snapshot: &Value| {
        let cores = snapshot["cores"].as_array().unwrap();
        cores.iter().any(|core| core["state"] == "silent")
    };
    let killed_at = Instant::now();
    stream.until("the killed core is silent", silent).await;
    assert!(killed_at.elapsed() < promised(SILENT_SHOWN_MAX), "shown only after {:?}", killed_at.elapsed());
    pair.cores[1] = pair.cores[1].restart().await;
    pair.cores[1].stop().await;
    stream
        .until("the stopped core is gone", |snapshot| snapshot["cores"].as_array().unwrap().len() == 1)
        .await;
}

#[tokio::test]
async fn the_busiest_of_many_campaigns_are_listed() {
    let core = Core::start().await;
    for n in 0..60 {
        core.create(&format!("quiet-{n:02}"), json!({"total": 5})).await;
    }
    core.create("zz-busy", json!({})).await;
    let mut stream = LiveStream::open(&core, &core.admin_token()).await;
    let quiet = stream.until("all campaigns listed", |snapshot| snapshot["campaigns"]["total"] == 61).await;
    assert_eq!(quiet["campaigns"]["listed"].as_array().unwrap().len(), 50);
    assert_eq!(quiet["campaigns"]["open"], 61, "the count includes unlisted campaigns");
    assert_eq!(*campaign(&quiet, "zz-busy"), Value::Null, "by name it would be listed last");
    for user in 0..20 {
        core.claim("zz-busy", &format!("u{user}"), "k").await.expect(201);
    }
    let busy = |snapshot: &Value| {
        let first = &snapshot["campaigns"]["listed"][0];
        first["id"] == "zz-busy" && first["taken"] == 20
    };
    let snapshot = stream.until("the busy one first, with its claims", busy).await;
    assert!(snapshot.to_string().len() < 50_000, "{} bytes", snapshot.to_string().len());
}
