//! Past claims imported from a file, on both databases. Imported claims count like any others; a failed
//! import counts none of its claims until the same file is resent.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::raw::{Raw, status};
use support::times::{from_now, ms};
use support::wait::{holds, refused_in_time};
use support::{Core, CoreOptions, Reply, SOON, eventually, heavy};

use crate::fixture::Fixture;
use crate::tally::Row;

/// Timeout of an import: a debug build of core takes longer for a million claims than the client's default.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Number of claims in the file whose import is killed: ten transactions.
const MANY: usize = 100_000;

fn request(core: &Core, id: &str) -> RequestBuilder {
    let url = core.admin_url(&format!("/admin/v1/campaigns/{id}/import"));
    core.client().request(Method::POST, &url).header("Content-Type", "text/csv").timeout(TIMEOUT)
}

async fn try_import(core: &Core, id: &str, csv: &str) -> Result<Reply, reqwest::Error> {
    core.client().send(request(core, id).bearer_auth(core.admin_token()).body(csv.to_owned())).await
}

pub async fn import(core: &Core, id: &str, csv: &str) -> Reply {
    try_import(core, id, csv).await.expect("an answer")
}

fn counted(imported: usize, already: usize) -> Value {
    json!({"imported": imported, "already": already})
}

/// Checks the numbers in an import's response. A repeated import finds the claims that its first call imported.
fn check_counted(reply: Reply, imported: usize, already: usize) {
    let reply = reply.expect(200);
    let answer = reply.json();
    if reply.repeats == 0 {
        assert_eq!(answer, counted(imported, already));
    }
    let count = |name: &str| answer[name].as_u64().expect("a number");
    assert_eq!(count("imported") + count("already"), (imported + already) as u64, "{answer}");
    assert!(count("already") >= already as u64, "{answer}");
}

async fn view(core: &Core, id: &str) -> Value {
    core.admin_get(&format!("/admin/v1/campaigns/{id}")).await.expect(200).json()
}

/// Waits until core has the campaign's counters: `taken` units and the last sequence number.
async fn ready(core: &Core, id: &str, taken: u64, sequence: u64) {
    eventually(SOON, || async {
        let view = view(core, id).await;
        let (ready, now) = (view["ready"] == true, (view["taken"].as_u64(), view["sequence"].as_u64()));
        holds(ready && now == (Some(taken), Some(sequence)), || view.to_string())
    })
    .await;
}

/// Defines a test on SQLite and, if available, one on PostgreSQL.
macro_rules! on_both_databases {
    ($($test:ident, $what:literal;)*) => {$(
        mod $test {
            use super::{Fixture, Row, heavy};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                let _turn = heavy().await;
                super::$test(Row::begin(concat!($what, ": SQLite")), Fixture::managed().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let _turn = heavy().await;
                let row = Row::begin(concat!($what, ": PostgreSQL"));
                let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
                super::$test(row, fixture).await;
            }
        }
    )*};
}

on_both_databases! {
    imported_claims_count_like_any_others, "past claims imported";
    an_invalid_import_changes_nothing, "an invalid import";
    the_same_file_completes_a_killed_import, "an import interrupted by a kill";
    a_campaign_does_not_open_during_an_import, "a campaign that starts during an import";
    concurrent_imports_of_one_file_count_once, "one file imported concurrently";
    imported_claims_count_on_their_own_days, "earlier days imported after a later one";
    an_import_refused_by_sql_is_reported_as_stopped, "an import that the database refuses";
    a_large_file_is_imported_within_its_memory_bound, "a large file imported";
}

async fn imported_claims_count_on_their_own_days(row: Row, fixture: Fixture) {
    let core = &fixture.core;
    core.create("demo", json!({"per_user": 12, "per_user_per_day": 2})).await;
    // Bob's claims exceed the size of a user record.
    let (few, many) = ("ann", "bob");
    for user in [few, many] {
        core.claim("demo", user, "k1").await.expect(201);
    }
    core.set_admin_state("demo", "pause").await.expect(200);
    let days = |user: &str, days: &[u8]| -> Vec<_> {
        days.iter().map(|day| format!("{user},1,2020-01-0{day}T12:00:00Z\n")).collect()
    };
    let lines = [days(few, &[3, 2, 1]), days(many, &[8, 7, 6, 5, 4, 3, 2, 1])].concat().concat();
    import(core, "demo", &format!("user_id,quantity,claimed_at\n{lines}")).await.expect(200);
    ready(core, "demo", 13, 13).await;
    core.set_admin_state("demo", "resume").await.expect(200);
    for user in [few, many] {
        // The reported allowance matches what can be claimed.
        let left = async || {
            let report =
                core.get(&format!("/internal/v1/campaigns/demo/users/{user}")).await.expect(200).json();
            report["allowance"]["per_user_per_day"].as_u64()
        };
        assert_eq!(left().await, Some(1), "{user}");
        core.claim("demo", user, "k2").await.expect(201);
        assert_eq!(left().await, Some(0), "{user}");
        core.claim("demo", user, "k3").await.refused(409, "user_daily_limit_reached");
    }
    row.passed(8, "each claim counts on its own day");
}

async fn an_import_refused_by_sql_is_reported_as_stopped(row: Row, fixture: Fixture) {
    let core = &fixture.core;
    core.create("demo", json!({})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    // Create a unique index that the file's claims violate.
    row.fault();
    fixture.sql.run("CREATE UNIQUE INDEX guard ON claims (quantity)".to_owned()).await;
    let file = "user_id,quantity\nann,1\nbob,1\n";
    let refused = import(core, "demo", file).await.refused(409, "import_unfinished").json();
    let detail = refused["detail"].as_str().expect("a detail");
    assert!(detail.contains("refused") && detail.contains("not retried automatically"), "{detail}");
    assert_eq!(fixture.sql.claims("demo").await.len(), 0);
    fixture.sql.run("DROP INDEX guard".to_owned()).await;
    check_counted(import(core, "demo", file).await, 2, 0);
    ready(core, "demo", 2, 2).await;
    row.passed(2, "rejected with its reason, then completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_too_many_lines_is_rejected() {
    let row = Row::begin("an import of more than 3,000,000 lines");
    let fixture = Fixture::managed().await;
    fixture.core.create("demo", json!({})).await;
    fixture.core.set_admin_state("demo", "pause").await.expect(200);
    let file = format!("user_id,quantity\n{}", "\n".repeat(3_000_000));
    let refused = import(&fixture.core, "demo", &file).await.refused(413, "payload_too_large").json();
    assert!(refused["detail"].as_str().expect("a detail").contains("3000000 lines"), "{refused}");
    // Empty lines are counted as lines but contain no claims.
    let file = format!("user_id,quantity\nann,1\n{}", "\n".repeat(2_999_998));
    check_counted(import(&fixture.core, "demo", &file).await, 1, 0);
    row.passed(2, "bounded");
}

async fn imported_claims_count_like_any_others(row: Row, fixture: Fixture) {
    let core = &fixture.core;
    core.create("demo", json!({"total": 10, "per_user": 3, "per_user_per_day": 2})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    let file = format!(
        "user_id,quantity,claimed_at,idempotency_key\nalice,1,{},old-1\nbob,2,2020-02-29T12:00:00+02:00,\ncarol,1,,\n",
        from_now(-1)
    );
    import(core, "demo", &file).await.refused(409, "campaign_open");
    core.set_admin_state("demo", "pause").await.expect(200);
    check_counted(import(core, "demo", &file).await, 3, 0);
    check_counted(import(core, "demo", &file).await, 0, 3);
    ready(core, "demo", 5, 4).await;
    let report = fixture.reconciliation("demo").await;
    assert_eq!((&report["agrees"], &report["sql"]["sequence_gaps"]), (&json!(true), &json!([])), "{report}");
    let rows = fixture.sql.claims("demo").await;
    let users: Vec<_> = rows.iter().map(|row| (row.user_id.as_str(), row.sequence, row.quantity)).collect();
    assert_eq!(users, [("alice", 1, 1), ("alice", 2, 1), ("bob", 3, 2), ("carol", 4, 1)]);
    assert_eq!(rows[2].claimed_at, ms("2020-02-29T10:00:00Z"));
    assert_eq!(rows[2].day, 18_321);
    assert_eq!(rows[3].claimed_at, ms(view(core, "demo").await["starts_at"].as_str().unwrap()));
    let audit = fixture.sql.audit("demo").await;
    assert_eq!(audit.last().map(|row| (row.1.as_str(), row.2.as_str())), Some(("admin", "import")));

    // Later claims are subject to the limits that the imported claims count towards.
    core.set_admin_state("demo", "resume").await.expect(200);
    let again = core.claim("demo", "alice", "old-1").await.expect(200).json();
    assert_eq!((&again["claim"]["id"], &again["claim"]["sequence"]), (&json!(rows[1].id), &json!(2)));
    core.claim("demo", "alice", "k2").await.refused(409, "user_daily_limit_reached");
    core.claim("demo", "bob", "k").await.expect(201);
    core.claim("demo", "bob", "k2").await.refused(409, "user_limit_reached");
    core.claim_units("demo", "dora", "k", 2).await.expect(201);
    core.claim_units("demo", "eve", "k", 2).await.expect(201);
    core.claim("demo", "fred", "k").await.refused(409, "sold_out");

    // Imported claims can be returned like any others.
    for _ in 0..2 {
        let returned = core.transition(&rows[2].id, "return").await;
        assert_eq!(returned.expect(200).json()["claim"]["status"], "returned");
    }
    core.claim_units("demo", "fred", "k", 2).await.expect(201);
    fixture.relayed("demo").await;
    let report = fixture.reconciliation("demo").await;
    assert_eq!((&report["agrees"], &report["redis"]["taken"]), (&json!(true), &json!(10)), "{report}");
    core.set_admin_state("demo", "pause").await.expect(200);
    assert_eq!(
        import(core, "demo", &file).await.expect(200).json(),
        counted(0, 3),
        "a returned claim stays returned"
    );
    ready(core, "demo", 10, 8).await;
    row.passed(20, "counted as claims");
}

async fn an_invalid_import_changes_nothing(row: Row, fixture: Fixture) {
    let core = &fixture.core;
    let mut body =
        campaign("demo", json!({"total": 3, "per_user": 2, "per_user_per_day": 1, "per_claim": 2}));
    body["starts_at"] = json!(from_now(3600));
    core.create_with(body).await;
    let future = format!("user_id,quantity,claimed_at\nann,1,{}\n", from_now(3600));
    for (file, field) in [
        ("\n", "line 1"),
        ("ann,1\n", "line 1"),
        ("user_id,quantity\nann,1\nbob,0\n", "line 3"),
        ("user_id,quantity\nann\n", "line 2"),
        ("user_id,quantity\na b,1\n", "line 2"),
        ("user_id,quantity,claimed_at\nann,1,yesterday\n", "line 2"),
        ("user_id,quantity,idempotency_key\nann,1,a key\n", "line 2"),
        (&future, "line 2"),
        // The first invalid line is reported before any limit.
        ("user_id,quantity\nann,9\nbob,x\n", "line 3"),
    ] {
        let refused = import(core, "demo", file).await.refused(400, "invalid_request").json();
        assert_eq!(refused["field"], field, "{refused}");
    }
    for (lines, code, limit, field) in [
        (
            "ann,1,2020-01-01T12:00:00Z\nann,1,2020-01-01T23:59:59Z\n",
            "user_daily_limit_reached",
            "per_user_per_day",
            "line 3",
        ),
        (
            "ann,1,2020-01-01T00:00:00Z\nann,1,2020-01-02T00:00:00Z\nann,1,2020-01-03T00:00:00Z\n",
            "user_limit_reached",
            "per_user",
            "line 4",
        ),
        ("ann,1,\nbob,1,\ncarl,1,\ndan,1,\n", "sold_out", "total", "line 5"),
    ] {
        let file = format!("user_id,quantity,claimed_at\n{lines}");
        let refused = import(core, "demo", &file).await.refused(409, code).json();
        assert_eq!((&refused["limit"], &refused["field"]), (&json!(limit), &json!(field)), "{refused}");
    }
    import(core, "demo", "user_id,quantity\nann,3\n").await.refused(422, "quantity_out_of_range");
    import(core, "nothing", "user_id,quantity\n").await.refused(404, "campaign_not_found");
    refused_unread(core).await;
    ready(core, "demo", 0, 0).await;
    assert_eq!(fixture.sql.claims("demo").await, []);
    assert_eq!(view(core, "demo").await["version"], 1);

    // A scheduled campaign also accepts imports, and its start is the time of claims without a time.
    check_counted(import(core, "demo", "user_id,quantity\nann,1\n").await, 1, 0);
    let starts_at = view(core, "demo").await["starts_at"].clone();
    assert_eq!(fixture.sql.claims("demo").await[0].claimed_at, ms(starts_at.as_str().unwrap()));
    let refused = import(core, "demo", "user_id,quantity\nann,2\n").await;
    assert_eq!(refused.refused(422, "idempotency_key_reused").json()["field"], "line 2");
    ready(core, "demo", 1, 1).await;
    core.claim("demo", "bob", "k").await.refused(403, "not_started");
    core.set_admin_state("demo", "end").await.expect(200);
    import(core, "demo", "user_id,quantity\nann,1\n").await.refused(409, "campaign_ended");
    row.passed(20, "rejected, and nothing changed");
}

/// Files that core rejects without reading them.
async fn refused_unread(core: &Core) {
    let file = "user_id,quantity\nann,1\n";
    let send = |request: RequestBuilder| core.client().send(request.body(file));
    let admin = || request(core, "demo").bearer_auth(core.admin_token());
    send(request(core, "demo")).await.unwrap().refused(401, "unauthenticated");
    send(request(core, "demo").bearer_auth(API_TOKEN)).await.unwrap().refused(403, "forbidden");
    send(admin().header("Content-Encoding", "gzip")).await.unwrap().refused(415, "unsupported_media_type");
    let json = core.admin(Method::POST, "/admin/v1/campaigns/demo/import", &json!({})).await;
    json.refused(415, "unsupported_media_type");
    for (length, answer) in
        [("Content-Length: 268435457", 413), ("Transfer-Encoding: chunked", 400), ("X-Length: none", 400)]
    {
        let mut raw = Raw::connect(core.admin_listen()).await;
        let head = format!(
            "POST /admin/v1/campaigns/demo/import HTTP/1.1\r\nHost: core\r\nConnection: close\r\n\
             Authorization: Bearer {}\r\nContent-Type: text/csv\r\n{length}\r\n\r\n",
            core.admin_token()
        );
        assert!(raw.send(head).await);
        assert_eq!(status(&raw.read_some().await), Some(answer), "{length}");
    }
}

/// Builds a file of `count` claims of one unit, two for each user.
fn file_of(count: usize) -> String {
    (0..count).fold("user_id,quantity\n".to_owned(), |file, at| file + &format!("user-{},1\n", at / 2))
}

async fn written(fixture: &Fixture, id: &str) -> usize {
    let count = fixture.sql.number("SELECT COUNT(*) FROM claims WHERE campaign_id = $1", id).await;
    usize::try_from(count).unwrap()
}

/// Kills core during an import of `file` into the campaign `id`; returns whether it was answered.
async fn import_until_killed(fixture: &Fixture, id: &str, file: &str) -> bool {
    fixture.core.create(id, json!({"total": MANY})).await;
    fixture.core.set_admin_state(id, "pause").await.expect(200);
    let (answer, ()) = tokio::join!(try_import(&fixture.core, id, file), async {
        eventually(SOON, || async {
            holds(written(fixture, id).await > 0, || "no row written yet".to_owned())
        })
        .await;
        support::process::signal_pid(fixture.core.pid(), support::process::Signal::KILL);
    });
    answer.is_ok_and(|reply| reply.expect(200).status == 200)
}

/// Imports `file` into new campaigns until core is killed amid an import. On a machine that stalls, an import
/// may end before the kill. Returns the campaign's id and its number of claims.
async fn killed_amid_an_import(row: &Row, fixture: &mut Fixture, file: &str) -> (String, usize) {
    for at in 0..5 {
        let id = format!("demo{at}");
        row.kill();
        let is_answered = import_until_killed(fixture, &id, file).await;
        fixture.replace_core().await;
        let before = written(fixture, &id).await;
        assert!((1..=MANY).contains(&before), "killed with {before} claims written");
        assert!(!is_answered || before == MANY, "the import was answered with {before} claims written");
        if before < MANY {
            return (id, before);
        }
    }
    panic!("each import ended before the kill");
}

async fn the_same_file_completes_a_killed_import(row: Row, mut fixture: Fixture) {
    let file = file_of(MANY);
    let (id, before) = killed_amid_an_import(&row, &mut fixture, &file).await;
    let (id, core) = (id.as_str(), &fixture.core);

    let unfinished = view(core, id).await;
    assert_eq!((&unfinished["import_unfinished"], &unfinished["ready"]), (&json!(true), &json!(false)));
    for verb in ["resume", "warm-up"] {
        core.set_admin_state(id, verb).await.refused(409, "import_unfinished");
    }
    core.patch(id, json!({"limits": {"total": 1}})).await.refused(409, "import_unfinished");
    let units = json!({"units": 1, "idempotency_key": "k"});
    let path = format!("/admin/v1/campaigns/{id}/add");
    core.admin(Method::POST, &path, &units).await.refused(409, "import_unfinished");
    let claim = async || core.once().claim(id, "user-1", "k").await;
    refused_in_time(503, "campaign_not_ready", claim).await;
    let user = async || core.once().get(&format!("/internal/v1/campaigns/{id}/users/user-1")).await;
    refused_in_time(503, "campaign_not_ready", user).await;
    let report = fixture.reconciliation(id).await;
    assert_eq!(report["differences"][0]["name"], "not_ready", "{report}");
    import(core, id, "user_id,quantity\nann,1\n").await.refused(409, "import_unfinished");
    assert_eq!(written(&fixture, id).await, before, "no other import may have written rows");

    check_counted(import(core, id, &file).await, MANY - before, before);
    ready(core, id, MANY as u64, MANY as u64).await;
    assert_eq!(written(&fixture, id).await, MANY);
    core.set_admin_state(id, "resume").await.expect(200);
    core.claim(id, "user-1", "k").await.refused(409, "sold_out");
    let report = fixture.reconciliation(id).await;
    assert_eq!((&report["agrees"], &report["sql"]["sequence_gaps"]), (&json!(true), &json!([])), "{report}");
    row.passed(10, &format!("completed after {before} of {MANY} claims"));
}

async fn a_campaign_does_not_open_during_an_import(row: Row, fixture: Fixture) {
    let core = &fixture.core;
    let mut body = campaign("demo", json!({"total": 3}));
    body["starts_at"] = json!(from_now(3600));
    core.create_with(body).await;
    // The state that a core leaves if it dies after its first transaction.
    let broken_off = "import_digest = 'of a file', evicted_at = 1, evicted_taken = 0, evicted_sequence = 0, epoch = epoch + 1";
    fixture.sql.change_campaign("demo", broken_off).await;
    eventually(SOON, || async {
        let reply = core.once().claim("demo", "ann", "k").await;
        holds(reply.code() == "campaign_not_ready", || reply.text())
    })
    .await;
    let is_not_ready = async || {
        let claim = async || core.once().claim("demo", "ann", "k").await;
        refused_in_time(503, "campaign_not_ready", claim).await;
    };
    fixture.sql.change_campaign("demo", "starts_at = 1577836800000").await;
    eventually(SOON, || async {
        is_not_ready().await;
        let view = view(core, "demo").await;
        holds(ms(view["starts_at"].as_str().unwrap()) == 1_577_836_800_000, || view.to_string())
    })
    .await;
    is_not_ready().await;
    core.set_admin_state("demo", "resume").await.refused(409, "import_unfinished");
    core.set_admin_state("demo", "pause").await.refused(409, "import_unfinished");
    let read = async || core.once().get("/internal/v1/campaigns/demo").await;
    refused_in_time(503, "campaign_not_ready", read).await;
    assert_eq!(core.admin_get("/admin/v1/campaigns").await.json()["items"][0]["ready"], false);
    // An admin who has lost the file can end the campaign.
    core.set_admin_state("demo", "end").await.expect(200);
    core.claim("demo", "ann", "k").await.refused(403, "ended");
    assert_eq!(view(core, "demo").await["import_unfinished"], false);
    assert_eq!(fixture.sql.claims("demo").await, []);
    row.passed(5, "no claim was granted");
}

async fn concurrent_imports_of_one_file_count_once(row: Row, fixture: Fixture) {
    import_concurrently(row, fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cores_import_one_file_once() {
    let row = Row::begin("one file imported through two cores concurrently");
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    import_concurrently(row, fixture).await;
}

async fn import_concurrently(row: Row, fixture: Fixture) {
    const CLAIMS: usize = 2000;
    let cores: Vec<&Core> = std::iter::once(&fixture.core).chain(&fixture.others).collect();
    cores[0].create("demo", json!({"total": CLAIMS, "per_user": 2})).await;
    cores[0].set_admin_state("demo", "pause").await.expect(200);
    let file = file_of(CLAIMS);
    let answers = join_all((0..4).map(|at| {
        let (core, file) = (cores[at % cores.len()], &file);
        // The other core's import may take longer than this core waits.
        eventually(SOON, move || async move {
            let reply = import(core, "demo", file).await;
            if reply.code() == "campaign_not_ready" { Err(reply.text()) } else { Ok(reply.expect(200)) }
        })
    }))
    .await;
    let sum = |name: &str| answers.iter().filter_map(|reply| reply.json()[name].as_u64()).sum::<u64>();
    let (imported, already) = (sum("imported"), sum("already"));
    assert_eq!(imported + already, 4 * CLAIMS as u64, "{answers:?}");
    // A call that is repeated may find claims that it imported before.
    let is_repeated = answers.iter().any(|reply| reply.repeats > 0);
    let is_exact = imported == CLAIMS as u64;
    assert!(is_exact || (is_repeated && imported < CLAIMS as u64), "{imported} imported: {answers:?}");
    for core in &cores {
        ready(core, "demo", CLAIMS as u64, CLAIMS as u64).await;
    }
    cores[0].set_admin_state("demo", "resume").await.expect(200);
    for core in &cores {
        core.claim("demo", "user-1", "k").await.refused(409, "user_limit_reached");
    }
    let report = fixture.reconciliation("demo").await;
    assert_eq!((&report["agrees"], &report["sql"]["claims"]), (&json!(true), &json!(CLAIMS)), "{report}");
    row.passed(answers.len(), "imported once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_campaign_accepts_imports() {
    let row = Row::begin("past claims imported into an evicted campaign");
    let fixture = Fixture::managed_with(CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1")).await;
    let core = &fixture.core;
    core.create("demo", json!({"total": 3})).await;
    core.claim("demo", "ann", "k").await.expect(201);
    core.set_admin_state("demo", "pause").await.expect(200);
    core.end_by_time("demo").await;
    let evicted = || async {
        let gone = fixture
            .sql
            .number("SELECT COUNT(*) FROM campaigns WHERE id = $1 AND evicted_at IS NOT NULL", "demo");
        let gone = gone.await;
        holds(gone == 1, || "it is not evicted yet".to_owned())
    };
    eventually(SOON, evicted).await;
    let file = "user_id,quantity,idempotency_key\nann,1,k\nbob,2,old\n";
    check_counted(import(core, "demo", file).await, 1, 1);
    ready(core, "demo", 3, 2).await;
    eventually(SOON, evicted).await;
    assert_eq!(core.claim_units("demo", "bob", "old", 2).await.expect(200).json()["claim"]["sequence"], 2);
    core.claim("demo", "bob", "k").await.refused(403, "paused");
    row.passed(3, "counted, and evicted again");
}

/// Imports `CLAIMS` claims, by default 100,000, and measures the time until new claims are possible.
async fn a_large_file_is_imported_within_its_memory_bound(row: Row, fixture: Fixture) {
    let given = std::env::var("CLAIMS").ok().and_then(|count| count.parse().ok());
    let count: usize = given.unwrap_or(100_000);
    let core = &fixture.core;
    core.create("demo", json!({"total": count})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    let file = file_of(count);
    let started = std::time::Instant::now();
    check_counted(import(core, "demo", &file).await, count, 0);
    let took = started.elapsed();
    ready(core, "demo", count as u64, count as u64).await;
    // The bound of docs/api.md, which the memory limit of packaging/kubernetes/core.yaml exceeds. CLAIMS=2999998 is
    // the largest file that the API accepts.
    let peak = core.peak_kib();
    assert!(peak < 1 << 20, "{peak} KiB for {count} claims");
    row.passed(
        1,
        &format!(
            "{count} claims in {took:.1?}, loaded after {:.1?}, peak memory {} MiB",
            started.elapsed(),
            peak >> 10
        ),
    );
}
