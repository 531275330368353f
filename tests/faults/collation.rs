//! PostgreSQL sorts strings differently from before: a different libc or ICU is installed, or a dump is
//! restored elsewhere.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use support::checker::{Checker, Expect};
use support::core_client::campaign;
use support::postgres::Postgres;
use support::sql::{Campaigns, Claims, Sql};
use support::topology::ONE_SERVER;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, Servers, eventually, only_on, promised};
use tokio::time::sleep;

use crate::fixture::{Fixture, ROOMY};
use crate::layout6::Layout6;
use crate::tally::{Row, say};

/// Changes the order to upper case first, without building the indexes again. PostgreSQL 17 has renamed the column.
const REORDERED: &str = "DO $$ BEGIN \
    UPDATE pg_database SET daticulocale = 'en-US-u-kf-upper' WHERE datname = 'sorted'; \
    EXCEPTION WHEN undefined_column THEN \
    UPDATE pg_database SET datlocale = 'en-US-u-kf-upper' WHERE datname = 'sorted'; END $$";

/// Gives all strings in indexes the database's collation, as before this version.
const AS_BEFORE: &str = "DO $$ DECLARE column_of RECORD; BEGIN \
    FOR column_of IN SELECT DISTINCT attrelid::regclass AS of_table, attname FROM pg_attribute \
        JOIN pg_index ON indrelid = attrelid AND attnum = ANY (indkey) \
        WHERE atttypid = 'text'::regtype AND attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace) \
    LOOP EXECUTE format('ALTER TABLE %s ALTER %I TYPE TEXT COLLATE \"default\"', column_of.of_table, column_of.attname); \
    END LOOP; END $$";
const CLOSE_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE datname = 'sorted' AND pid <> pg_backend_pid()";

/// The number of strings in indexes that are not compared by bytes.
const OTHERS: &str = "SELECT COUNT(*) FROM pg_index JOIN pg_class ON pg_class.oid = indrelid \
    WHERE relnamespace = 'public'::regnamespace AND relname <> '_sqlx_migrations' \
    AND EXISTS (SELECT FROM unnest(indcollation) AS used WHERE used NOT IN (0, 'pg_catalog.\"C\"'::regcollation))";

/// Stores a row twice, as a database whose order has changed does.
const STORE_TWICE: [&str; 3] = [
    "UPDATE pg_index SET indisunique = FALSE WHERE indexrelid IN ('claims_key'::regclass, 'claims_by_place'::regclass)",
    "INSERT INTO claims SELECT * FROM claims WHERE campaign_id = 'live1' AND sequence = 7",
    "UPDATE pg_index SET indisunique = TRUE WHERE indexrelid IN ('claims_key'::regclass, 'claims_by_place'::regclass)",
];
/// Removes one of the two rows.
const STORE_ONCE: &str = "DELETE FROM claims WHERE ctid = (SELECT MAX(ctid) FROM claims \
    WHERE campaign_id = 'live1' AND sequence = 7)";
/// The pause between claims during a conversion that takes long.
const CLAIM_EVERY: Duration = Duration::from_millis(20);

/// Time limit of the locks of all tables, which take less than a second.
const LOCKED_MAX: Duration = Duration::from_secs(2);

/// The number of cores that have been waiting for another one's conversion for longer than a core that starts tries to
/// connect (5 s).
const WAITING: &str = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = 'sorted' \
    AND query LIKE '%pg_try_advisory_lock%' AND pid <> pg_backend_pid() \
    AND backend_start < clock_timestamp() - INTERVAL '5 s'";

/// The number of indexes that a conversion has built and not yet renamed.
const REPLACEMENTS: &str = "SELECT COUNT(*) FROM pg_class WHERE relkind = 'i' AND relname LIKE '%\\_c'";

async fn others(fixture: &Fixture) -> i64 {
    count(fixture, OTHERS).await
}

async fn replacements(fixture: &Fixture) -> i64 {
    count(fixture, REPLACEMENTS).await
}

async fn count(fixture: &Fixture, statement: &'static str) -> i64 {
    let postgres = fixture.postgres.as_ref().expect("PostgreSQL");
    sqlx::query_scalar(statement).fetch_one(&postgres.pool("sorted")).await.expect("a count")
}

async fn fixture(postgres: Postgres) -> Fixture {
    let url = postgres.database_sorted("sorted", "en-US").await;
    let server = Servers::start().await;
    let core = options(&url, &server).start().await;
    let sql = Sql::open(&url);
    Fixture { core, others: vec![], proxy: None, server: Some(server), postgres: Some(postgres), sql }
}

fn options(url: &str, server: &Servers) -> CoreOptions {
    CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url).with("CLAIMGATE_REDIS_URL", server.url())
}

/// Stores claims of another campaign, and gives all strings the collation of an earlier version. Core reconnects.
async fn of_a_former_collation(fixture: &mut Fixture) {
    fixture.sql.run(Campaigns { live: 1, ended: 0 }.insert()).await;
    fixture.sql.run(Claims { campaign: "live1", count: 100_000 }.insert()).await;
    fixture.postgres().run("sorted", &[AS_BEFORE]).await;
    fixture.postgres().run("postgres", &[CLOSE_SESSIONS]).await;
    assert!(others(fixture).await > 10);
}

/// Starts another core on the same servers.
async fn another(fixture: &Fixture) -> Core {
    let (postgres, server) = fixture.postgres.as_ref().zip(fixture.server.as_ref()).expect("servers");
    options(&postgres.url("sorted"), server).start().await
}

/// Opens a transaction that keeps a conversion from changing the table of claims, but not from building indexes.
async fn reader(fixture: &Fixture) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let pool = fixture.postgres.as_ref().expect("PostgreSQL").pool("sorted");
    let mut reader = pool.begin().await.expect("a transaction");
    sqlx::query("LOCK TABLE claims IN ACCESS SHARE MODE").execute(&mut *reader).await.expect("a lock");
    reader
}

/// Runs `conversion` while the first core gets claims, with `pause` after each. All must be granted.
async fn beside_load<T>(
    fixture: &Fixture,
    checker: &Checker,
    pause: Duration,
    conversion: impl Future<Output = T>,
) -> T {
    let is_over = AtomicBool::new(false);
    let load = async {
        let mut user = 0;
        while !is_over.load(Ordering::Relaxed) {
            checker.win(&fixture.core, user..user + 1).await;
            user += 1;
            sleep(pause).await;
        }
    };
    let conversion = async {
        let result = conversion.await;
        is_over.store(true, Ordering::Relaxed);
        result
    };
    tokio::join!(load, conversion).1
}

/// Rows were no longer found in indexes of the previous order, and were stored twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_when_texts_are_sorted_differently() {
    let row = Row::begin("PostgreSQL sorts strings in a different order");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let mut held = campaign("demo", ROOMY.json());
    held["hold_seconds"] = json!(3600);
    fixture.core.create_with(held).await;
    let checker = Checker::new("demo", ROOMY);
    for number in 0..100 {
        for user in ["user", "User", "uSER"] {
            checker.claim(&fixture.core, &format!("{user}{number}"), "k").await;
        }
    }
    fixture.relayed("demo").await;
    fixture.core.stop().await;
    row.fault();
    fixture.postgres().run("postgres", &[REORDERED]).await;
    fixture.core = fixture.core.restart().await;
    for claim in checker.acknowledged() {
        fixture.core.transition(&claim, "confirm").await.expect(200);
    }
    fixture.relayed("demo").await;
    let stored = fixture.sql.claims("demo").await;
    assert_eq!(stored.len(), 300);
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_compared_by_bytes_after_a_conversion_under_load() {
    let row = Row::begin("a database is converted while another core uses it");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    of_a_former_collation(&mut fixture).await;
    row.fault();
    let second = beside_load(&fixture, &checker, Duration::ZERO, Box::pin(another(&fixture))).await;
    assert_eq!(others(&fixture).await, 0);
    let log = second.log();
    let converted = log.lines().find(|line| line.contains("compared by bytes"));
    let converted = converted.expect("the end of the conversion");
    say(converted);
    let locked_ms = converted.split_once("locked_ms=").expect("the time of the locks").1;
    let locked_ms = locked_ms.split(' ').next().unwrap_or_default().parse().expect("a number");
    assert!(
        Duration::from_millis(locked_ms) < promised(LOCKED_MAX),
        "all tables were locked for {locked_ms} ms"
    );
    fixture.others.push(second);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// An upgrade from layout 6 converts the strings of the database, and the keys of each campaign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cores_convert_layout_and_collation_under_load() {
    only_on!(ONE_SERVER, "the keys are written to one server");
    let row = Row::begin("two cores upgrade a database and keys of layout 6");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let mut second = another(&fixture).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..100).await;
    fixture.relayed("demo").await;
    for core in [&mut fixture.core, &mut second] {
        core.stop().await;
    }
    of_a_former_collation(&mut fixture).await;
    row.fault();
    let old = Layout6::replace(fixture.redis().await).await;
    for user in 100..150 {
        old.claim(&checker, &format!("u{user}"), "k").await;
    }
    old.return_claim(&checker, "u3", "k").await;
    fixture.core = fixture.core.launch_tested();
    let second = second.launch_tested();
    let (first, cores) = (&fixture.core, [&fixture.core, &second]);
    tokio::join!(claims(&checker, first, 200..400), claims(&checker, &second, 300..500));
    let logs = cores.map(Core::log).concat();
    // The first conversion was that of the new database.
    let converted: Vec<_> = logs.lines().filter(|line| line.contains("compared by bytes")).skip(1).collect();
    assert_eq!((others(&fixture).await, converted.len()), (0, 1), "{logs}");
    say(converted[0]);
    assert_eq!(fixture.redis().await.query::<String>(&["GET", "cg:layout"]).await, "7");
    fixture.others.push(second);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Sends one claim of each of `users`, and retries until core decides it, even while core starts.
async fn claims(checker: &Checker, core: &Core, users: Range<u32>) {
    for user in users {
        checker.decided(SOON, core, &format!("u{user}"), "k").await;
    }
}

/// The other cores must wait for the converting core; otherwise they would build the same indexes. A
/// reader delays the conversion beyond the time in which a core that starts connects again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_cores_started_together_converts() {
    let row = Row::begin("two cores start on a database that is to be converted");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    of_a_former_collation(&mut fixture).await;
    row.fault();
    let reader = reader(&fixture).await;
    let released = async {
        eventually(SOON, || async {
            let waiting = count(&fixture, WAITING).await;
            holds(waiting > 0, || format!("{waiting} cores wait"))
        })
        .await;
        reader.commit().await.expect("the end of the reader");
    };
    let both = Box::pin(async { tokio::join!(another(&fixture), another(&fixture), released) });
    let (second, third, ()) = beside_load(&fixture, &checker, CLAIM_EVERY, both).await;
    assert_eq!((others(&fixture).await, replacements(&fixture).await), (0, 0));
    let logs = [second.log(), third.log()].concat();
    assert!(!logs.contains("cannot change the id columns to collation"), "{logs}");
    let converted: Vec<_> = logs.lines().filter(|line| line.contains("compared by bytes")).collect();
    assert_eq!(converted.len(), 1, "{logs}");
    say(converted[0]);
    fixture.others.extend([second, third]);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// An index that is built while its table is in use waits for every older transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversion_beside_an_export_is_left_to_the_next_start() {
    let row = Row::begin("a database is to be converted while it is exported");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    fixture.sql.run(Campaigns { live: 1, ended: 0 }.insert()).await;
    fixture.sql.run(Claims { campaign: "live1", count: 50_000 }.insert()).await;
    fixture.core.stop().await;
    fixture.postgres().run("sorted", &[AS_BEFORE]).await;
    let pool = fixture.postgres().pool("sorted");
    let mut export = pool.begin().await.expect("a transaction");
    for statement in ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT COUNT(*) FROM claims"] {
        sqlx::query(statement).execute(&mut *export).await.expect("a snapshot");
    }
    row.fault();
    fixture.core = fixture.core.restart().await;
    checker.win(&fixture.core, 0..20).await;
    assert!(
        fixture.core.log().contains("cannot change the id columns to collation"),
        "{}",
        fixture.core.log()
    );
    assert!(others(&fixture).await > 10);
    export.commit().await.expect("the end of the export");
    fixture.core.stop().await;
    fixture.core = fixture.core.restart().await;
    assert_eq!(others(&fixture).await, 0, "{}", fixture.core.log());
    assert_eq!(replacements(&fixture).await, 0);
    checker.win(&fixture.core, 20..40).await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Each attempt to lock the tables is short, since other calls wait behind it: core gives up after a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_postpones_the_conversion() {
    let row = Row::begin("a table stays locked while the database is to be converted");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    of_a_former_collation(&mut fixture).await;
    row.fault();
    let reader = reader(&fixture).await;
    let mut second = beside_load(&fixture, &checker, CLAIM_EVERY, Box::pin(another(&fixture))).await;
    assert!(second.log().contains("cannot change the id columns to collation"), "{}", second.log());
    assert!(others(&fixture).await > 10);
    for number in 0..20 {
        checker.granted(&second, &format!("other{number}"), "k").await;
    }
    reader.commit().await.expect("the end of the reader");
    second.stop().await;
    fixture.others.push(second.restart().await);
    assert_eq!((others(&fixture).await, replacements(&fixture).await), (0, 0), "{}", second.log());
    fixture.judge(row, &checker, Expect::default()).await;
}

/// An order that changed below an index hides a row, so that the row is stored again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_row_blocks_only_the_collation_conversion() {
    let row = Row::begin("a database that is to be converted has a row twice");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    of_a_former_collation(&mut fixture).await;
    fixture.core.stop().await;
    row.fault();
    fixture.postgres().run("sorted", &STORE_TWICE).await;
    fixture.core = fixture.core.restart().await;
    let log = fixture.core.log();
    let of_row = |line: &&str| {
        line.contains("cannot change the id columns to collation") && line.contains("claims_by_place_c")
    };
    assert_eq!(log.lines().filter(of_row).count(), 1, "{log}");
    assert!(others(&fixture).await > 10);
    assert_eq!(replacements(&fixture).await, 0, "an index that was left takes time at each claim");
    checker.win(&fixture.core, 0..20).await;
    fixture.core.stop().await;
    fixture.postgres().run("sorted", &[STORE_ONCE]).await;
    fixture.core = fixture.core.restart().await;
    assert_eq!((others(&fixture).await, replacements(&fixture).await), (0, 0), "{}", fixture.core.log());
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_owns_no_table_serves_without_the_conversion() {
    let row = Row::begin("core's role owns no table of a database that is to be converted");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let mut fixture = fixture(postgres).await;
    let checker = Checker::create(&fixture.core, "demo", ROOMY).await;
    checker.win(&fixture.core, 0..20).await;
    let grants = [
        AS_BEFORE,
        "CREATE ROLE guest LOGIN",
        "GRANT CREATE ON SCHEMA public TO guest",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest",
        "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO guest",
    ];
    fixture.core.stop().await;
    fixture.postgres().run("sorted", &grants).await;
    row.fault();
    let url = fixture.postgres().url("sorted").replace("claimgate@", "guest@");
    fixture.core = options(&url, fixture.server()).start().await;
    assert!(
        fixture.core.log().contains("cannot change the id columns to collation"),
        "{}",
        fixture.core.log()
    );
    checker.win(&fixture.core, 20..40).await;
    fixture.judge(row, &checker, Expect::default()).await;
}
