//! How soon a large campaign goes on after a promotion.

use claimgate_core::config::sqlite_url;
use support::CoreOptions;
use support::promotion::{fail_over, has_members, large_campaign};
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::sql::Sql;

use super::Group;
use crate::figures::{Definition, Unit};
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "promotion",
    about: "a campaign of a million claims after a failover by hand: until the first caller wins",
    figures: &[WON, NAMED, FOLLOWED, CORE],
    run: |session| Box::pin(run(session)),
};

const WON: &Definition = &Definition::at_most("1 M claims, promoted: decisions go on", Unit::Seconds, 1.0);
const NAMED: &Definition = &Definition::told("… most Sentinels name the server", Unit::Seconds);
const FOLLOWED: &Definition = &Definition::told("… a replica has followed it", Unit::Seconds);
const CORE: &Definition = &Definition::told("… core, from the later of the two on", Unit::Seconds);

const CLAIMS: u64 = 1_000_000;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    for round in 1..=session.options.rounds {
        session.begin_round();
        // Servers of its own: Sentinel fails the same ones over again after a while only.
        let set = SentinelSet::start(Kind::Redis).await;
        let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", set.url());
        let core = options.with("CLAIMGATE_REDIS_REPLICAS", "1").start().await;
        has_members(&core, 2).await;
        let sql = Sql::open(&sqlite_url(&core.data_dir().join("claimgate.sqlite")));
        large_campaign(&set, &core, &sql, "bench", CLAIMS).await;
        let moments = session.measure(async { Ok(fail_over(&set, &core, "bench").await) }).await?;
        session.say(format_args!("round {round} · {}", moments.line()));
        session.add(WON, moments.won.as_secs_f64());
        session.add(NAMED, moments.named.as_secs_f64());
        session.add(FOLLOWED, moments.followed.as_secs_f64());
        session.add(CORE, moments.core().as_secs_f64());
    }
    Ok(())
}
