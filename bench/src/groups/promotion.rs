//! Time until a large campaign grants claims again after a promotion.

use claimgate_core::config::sqlite_url;
use support::CoreOptions;
use support::promotion::{Cause, Timings, fail_over, has_members, large_campaign};
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::sql::Sql;

use super::Group;
use crate::budget::Cost;
use crate::figures::{Definition, Unit};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "promotion",
    about: "a campaign of a million claims when another server is promoted, manually or after a crash",
    figures: &[
        AFTER_A_CRASH.won,
        AFTER_A_CRASH.named,
        AFTER_A_CRASH.followed,
        AFTER_A_CRASH.core,
        REQUESTED.won,
        REQUESTED.named,
        REQUESTED.followed,
        REQUESTED.core,
    ],
    parts: &[Cost::of(0.0, 17.0, 0.0)],
    run: |session| Box::pin(run(session)),
};

/// The figures of one cause of a promotion.
struct Figures {
    won: &'static Definition,
    named: &'static Definition,
    followed: &'static Definition,
    core: &'static Definition,
}

const AFTER_A_CRASH: Figures = Figures {
    won: &Definition::at_most("1 M claims, promoted after a crash", Unit::Seconds, 1.0),
    named: &Definition::info("… until most Sentinels name the server", Unit::Seconds),
    followed: &Definition::info("… until a replica follows it", Unit::Seconds),
    core: &Definition::info("… then core and that replica", Unit::Seconds),
};
const REQUESTED: Figures = Figures {
    won: &Definition::at_most("1 M claims, manual failover", Unit::Seconds, 1.0),
    named: &Definition::info("manual: … most Sentinels name it", Unit::Seconds),
    followed: &Definition::info("manual: … a replica follows it", Unit::Seconds),
    core: &Definition::info("manual: … core and that replica", Unit::Seconds),
};

const CLAIMS: u64 = 1_000_000;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    while let Some(round) = session.next_round() {
        for (cause, figures) in [(Cause::Killed, AFTER_A_CRASH), (Cause::Requested, REQUESTED)] {
            session.begin_round();
            let timings = session.measure(Box::pin(promoted(cause))).await?;
            session.say(format_args!("round {round} · {cause:?}: {}", timings.line()));
            session.add(figures.won, timings.won.as_secs_f64());
            session.add(figures.named, timings.named.as_secs_f64());
            session.add(figures.followed, timings.followed.as_secs_f64());
            session.add(figures.core, timings.core().as_secs_f64());
        }
    }
    Ok(())
}

/// Uses new servers, because Sentinel allows the next failover of the same servers only after a delay.
async fn promoted(cause: Cause) -> anyhow::Result<Timings> {
    let set = SentinelSet::start(Kind::Redis).await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", set.url());
    let core = options.with("CLAIMGATE_REDIS_REPLICAS", "1").start().await;
    has_members(&core, 2).await;
    let sql = Sql::open(&sqlite_url(&core.data_dir().join("claimgate.sqlite")));
    large_campaign(&set, &core, &sql, "bench", CLAIMS).await;
    Ok(fail_over(&set, &core, "bench", cause).await)
}
