//! How soon a large campaign goes on after a promotion.

use claimgate_core::config::sqlite_url;
use support::CoreOptions;
use support::promotion::{Cause, Moments, fail_over, has_members, large_campaign};
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::sql::Sql;

use super::Group;
use crate::budget::Cost;
use crate::figures::{Definition, Unit};
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "promotion",
    about: "a campaign of a million claims once another server is promoted, by hand or after a crash",
    figures: &[
        AFTER_A_CRASH.won,
        AFTER_A_CRASH.named,
        AFTER_A_CRASH.followed,
        AFTER_A_CRASH.core,
        PLANNED.won,
        PLANNED.named,
        PLANNED.followed,
        PLANNED.core,
        UNPLANNED.won,
        UNPLANNED.named,
        UNPLANNED.followed,
        UNPLANNED.core,
    ],
    parts: &[Cost::of(0.0, 25.0, 0.0)],
    run: |session| Box::pin(run(session)),
};

/// The figures of one way there.
struct Figures {
    won: &'static Definition,
    named: &'static Definition,
    followed: &'static Definition,
    core: &'static Definition,
}

const AFTER_A_CRASH: Figures = Figures {
    won: &Definition::at_most("1 M claims, promoted after a crash", Unit::Seconds, 1.0),
    named: &Definition::told("… until most Sentinels name the server", Unit::Seconds),
    followed: &Definition::told("… until a replica follows it", Unit::Seconds),
    core: &Definition::told("… core and that replica, from then on", Unit::Seconds),
};
const PLANNED: Figures = Figures {
    won: &Definition::at_most("1 M claims, promoted by hand, writes paused", Unit::Seconds, 1.0),
    named: &Definition::told("paused: … most Sentinels name it", Unit::Seconds),
    followed: &Definition::told("paused: … a replica follows it", Unit::Seconds),
    core: &Definition::told("paused: … core and that replica", Unit::Seconds),
};
const UNPLANNED: Figures = Figures {
    won: &Definition::at_most("1 M claims, promoted by hand, not paused", Unit::Seconds, 1.0),
    named: &Definition::told("not paused: … most Sentinels name it", Unit::Seconds),
    followed: &Definition::told("not paused: … a replica follows it", Unit::Seconds),
    core: &Definition::told("not paused: … core and that replica", Unit::Seconds),
};

const CLAIMS: u64 = 1_000_000;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    while let Some(round) = session.next_round() {
        let causes = [(Cause::Killed, AFTER_A_CRASH), (Cause::Planned, PLANNED), (Cause::Asked, UNPLANNED)];
        for (cause, figures) in causes {
            session.begin_round();
            let moments = session.measure(Box::pin(promoted(cause))).await?;
            session.say(format_args!("round {round} · {cause:?}: {}", moments.line()));
            session.add(figures.won, moments.won.as_secs_f64());
            session.add(figures.named, moments.named.as_secs_f64());
            session.add(figures.followed, moments.followed.as_secs_f64());
            session.add(figures.core, moments.core().as_secs_f64());
        }
    }
    Ok(())
}

/// On servers of its own: Sentinel fails the same ones over again after a while only.
async fn promoted(cause: Cause) -> anyhow::Result<Moments> {
    let set = SentinelSet::start(Kind::Redis).await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", set.url());
    let core = options.with("CLAIMGATE_REDIS_REPLICAS", "1").start().await;
    has_members(&core, 2).await;
    let sql = Sql::open(&sqlite_url(&core.data_dir().join("claimgate.sqlite")));
    large_campaign(&set, &core, &sql, "bench", CLAIMS).await;
    Ok(fail_over(&set, &core, "bench", cause).await)
}
