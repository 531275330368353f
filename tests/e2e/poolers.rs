//! PgBouncer in front of PostgreSQL: core works in session mode. In any other mode it does not start, and one
//! line says what to do.

use serde_json::json;
use support::CoreOptions;
use support::available::available;
use support::examples::example;
use support::pgbouncer::PgBouncer;
use support::postgres::Postgres;
use support::process::free_address;
use support::sql::Sql;

use crate::command_line::{CommandOutput, run};

const IGNORED: (&str, &str) = ("ignore_startup_parameters", "extra_float_digits");

/// Starts PostgreSQL with a database, behind a PgBouncer with `settings`. Returns `None` if either is
/// missing, which fails in CI.
async fn pooled(what: &str, settings: &[(&str, &str)]) -> Option<(PgBouncer, Postgres)> {
    let started = async {
        let postgres = Postgres::start().await?;
        postgres.database("claimgate").await;
        let bouncer = PgBouncer::start(&postgres, settings).await?;
        Ok::<_, String>((bouncer, postgres))
    };
    available(what, started.await)
}

/// Runs a command with the database at `url`.
pub(crate) async fn with_database(command: &[&str], url: &str) -> CommandOutput {
    let directory = tempfile::tempdir().unwrap();
    let (listen, admin) = (free_address().to_string(), free_address().to_string());
    let environment = [
        ("CLAIMGATE_LISTEN", listen.as_str()),
        ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
        ("CLAIMGATE_DATABASE_URL", url),
        // The database is checked first.
        ("CLAIMGATE_REDIS_URL", "unix:///nowhere"),
    ];
    tokio::time::timeout(support::SOON, run(command, &environment, directory.path()))
        .await
        .expect("the command ends")
}

#[tokio::test]
async fn core_works_behind_a_pooler_in_session_mode() {
    let shown = example("docs/deployment.md", "pool_mode = session");
    let settings: Vec<_> = shown.lines().map(|line| line.split_once(" = ").unwrap()).collect();
    let Some((bouncer, postgres)) = pooled("a pooler", &settings).await else { return };
    let url = bouncer.url("claimgate");
    let core = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).start().await;
    core.create("demo", json!({"total": 5})).await;
    for user in ["a", "b", "c"] {
        core.claim("demo", user, "k").await.expect(201);
    }
    Sql::open(&postgres.url("claimgate")).until("demo", 3).await;
    let output = with_database(&["doctor"], &url).await;
    assert!(!output.out.contains("pooler"), "{output:?}");
}

#[tokio::test]
async fn the_error_names_a_pooler_that_shares_sessions() {
    for mode in ["transaction", "statement"] {
        let Some((bouncer, _postgres)) = pooled(mode, &[("pool_mode", mode), IGNORED]).await else { return };
        let url = bouncer.url("claimgate");
        let output = with_database(&["serve"], &url).await.ended(2);
        output.one_line("CLAIMGATE_DATABASE_URL");
        assert!(output.err.contains("PgBouncer") && output.err.contains("pool_mode = session"), "{output:?}");
        let output = with_database(&["doctor"], &url).await;
        assert!(output.out.contains("PgBouncer") && output.out.contains("pool_mode = session"), "{output:?}");
    }
}

#[tokio::test]
async fn the_error_for_a_refused_parameter_names_the_setting() {
    let Some((bouncer, _postgres)) = pooled("a pooler", &[("pool_mode", "session")]).await else { return };
    let output = with_database(&["serve"], &bouncer.url("claimgate")).await.ended(2);
    output.one_line("CLAIMGATE_DATABASE_URL");
    assert!(output.err.contains("ignore_startup_parameters = extra_float_digits"), "{output:?}");
}
