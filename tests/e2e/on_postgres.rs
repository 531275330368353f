//! A core on a PostgreSQL of its own.

use support::postgres::Postgres;
use support::{Core, CoreOptions, Sql};

/// Starts it for the test `what`, as `options` have it. `None` where there is no PostgreSQL, which CI does not accept.
pub async fn on_postgres(what: &str, options: CoreOptions) -> Option<(Core, Sql, Postgres)> {
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => {
            eprintln!("SKIPPED {what}: {why}");
            assert!(std::env::var_os("CI").is_none(), "skipped: {why}");
            return None;
        }
    };
    let url = postgres.database("claimgate").await;
    let core = options.with("CLAIMGATE_DATABASE_URL", &url).start().await;
    Some((core, Sql::open(&url), postgres))
}
