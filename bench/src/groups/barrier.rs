//! Cost of waiting until a replica has each claim: claimgate with and without the wait. Both have a replica.

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::campaigns::Campaigns;
use crate::client::Pace;
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::Server;
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "barrier",
    about: "claims over HTTP with a replica, without and with waiting for it",
    figures: FIGURES,
    parts: &[Cost::of(10.0, 3.0, 7.0), Cost::of(8.0, 2.0, 6.5)],
    run: |session| Box::pin(run(session)),
};

/// Warm-up for 1,000 campaigns: a campaign's first claim loads it into Redis.
const WARM_UP: Pace = Pace::Count(5_000);
/// Full load has this many times the connections, so that no processor is idle while callers wait for a
/// replica.
const FULL_LOAD: usize = 4;
/// Factor that shortens each measurement: full load doubles the number of measurements, and `make bench` has
/// 12 minutes.
const SHORTER: f64 = 2.0 / 3.0;

/// The figures of one fsync setting, one spread and one number of connections.
#[derive(Debug)]
struct Set {
    load: &'static str,
    ratio: &'static Definition,
    without: &'static Definition,
    with: &'static Definition,
}

/// The figures of one fsync setting, in the order of [`Replicated::measure`].
#[derive(Debug)]
struct Sets {
    fsync: Fsync,
    sets: [Set; 4],
}

macro_rules! set {
    ($load:literal, $word:literal) => {
        Set {
            load: $load,
            ratio: &Definition::at_least(concat!("barrier, ", $load, ", ", $word), Unit::Ratio, 0.9),
            without: &Definition::info(
                concat!("without waiting for replica, ", $load, ", ", $word),
                Unit::PerSecond,
            ),
            with: &Definition::info(concat!("waiting for replica, ", $load, ", ", $word), Unit::PerSecond),
        }
    };
}

macro_rules! sets {
    ($($name:ident: $fsync:expr, $word:literal;)*) => {
        $(const $name: Sets = Sets {
            fsync: $fsync,
            sets: [
                set!("one campaign", $word),
                set!("1,000 campaigns", $word),
                set!("one campaign, full load", $word),
                set!("1,000 campaigns, full load", $word),
            ],
        };)*
        const SETS: &[&Sets] = &[$(&$name),*];
        const FIGURES: &[&Definition] = &[$(
            $name.sets[0].ratio, $name.sets[0].without, $name.sets[0].with,
            $name.sets[1].ratio, $name.sets[1].without, $name.sets[1].with,
            $name.sets[2].ratio, $name.sets[2].without, $name.sets[2].with,
            $name.sets[3].ratio, $name.sets[3].without, $name.sets[3].with,
        )*];
    };
}

sets! {
    ALWAYS: Fsync::Always, "always";
    EVERY_SECOND: Fsync::EverySecond, "everysec";
}

/// A core with its 1,000 campaigns.
#[derive(Debug)]
struct Replicated {
    server: Server,
    thousand_campaigns: Campaigns,
}

impl Replicated {
    async fn start(session: &mut Session, replicas: u32, fsync: Fsync) -> anyhow::Result<Self> {
        let mut server = Server::start_replicated(replicas, fsync).await?;
        let mut thousand_campaigns = server.thousand_campaigns().await;
        server.claims_of(session, &mut thousand_campaigns, session.options.connections, WARM_UP).await?;
        Ok(Self { server, thousand_campaigns })
    }

    /// Returns claims per second of one campaign and of 1,000, then the same with four times as many
    /// connections.
    async fn measure(&mut self, session: &mut Session) -> anyhow::Result<[f64; 4]> {
        let pace = Pace::Closed(length(session).mul_f64(SHORTER));
        let mut measured = [0.0; 4];
        for (at, times) in [(0, 1), (2, FULL_LOAD)] {
            let connections = times * session.options.connections;
            let one = self.server.claims(session, connections, pace).await?;
            let spread =
                self.server.claims_of(session, &mut self.thousand_campaigns, connections, pace).await?;
            measured[at] = one.tally.per_second();
            measured[at + 1] = spread.tally.per_second();
        }
        Ok(measured)
    }
}

async fn run(session: &mut Session) -> anyhow::Result<()> {
    for sets in SETS {
        let mut without = Replicated::start(session, 0, sets.fsync).await?;
        let mut with = Replicated::start(session, 1, sets.fsync).await?;
        while let Some(round) = session.next_round() {
            session.begin_round();
            let before = without.measure(session).await?;
            let after = with.measure(session).await?;
            for ((set, before), after) in sets.sets.iter().zip(before).zip(after) {
                session.say(format_args!(
                    "round {round} · {}, {}: {before:.0} claims/s, {after:.0} when waiting for the replica",
                    set.load, sets.fsync
                ));
                session.add(set.ratio, after / before);
                session.add(set.without, before);
                session.add(set.with, after);
            }
        }
    }
    Ok(())
}
