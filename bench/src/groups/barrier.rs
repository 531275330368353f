//! What it costs to wait until a replica has each claim: claimgate beside itself, a replica attached to both.

use super::Group;
use super::http::length;
use crate::campaigns::Campaigns;
use crate::client::Pace;
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::Server;
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "barrier",
    about: "claims over HTTP with a replica: not waited for, waited for",
    figures: FIGURES,
    run: |session| Box::pin(run(session)),
};

/// Claims from 1,000 campaigns before those that count: each is brought into Redis by its first.
const WARM_UP: Pace = Pace::Count(5_000);

/// The figures of one fsync setting and one spread.
#[derive(Debug)]
struct Set {
    spread: &'static str,
    ratio: &'static Definition,
    without: &'static Definition,
    with: &'static Definition,
}

/// The figures of one fsync setting: of one campaign, and of 1,000.
#[derive(Debug)]
struct Sets {
    fsync: Fsync,
    one: Set,
    thousand: Set,
}

macro_rules! set {
    ($spread:literal, $word:literal) => {
        Set {
            spread: $spread,
            ratio: &Definition::at_least(concat!("barrier, ", $spread, ", ", $word), Unit::Ratio, 0.9),
            without: &Definition::told(
                concat!("replica not waited for, ", $spread, ", ", $word),
                Unit::PerSecond,
            ),
            with: &Definition::told(concat!("replica waited for, ", $spread, ", ", $word), Unit::PerSecond),
        }
    };
}

macro_rules! sets {
    ($($name:ident: $fsync:expr, $word:literal;)*) => {
        $(const $name: Sets = Sets {
            fsync: $fsync,
            one: set!("one campaign", $word),
            thousand: set!("1,000 campaigns", $word),
        };)*
        const SETS: &[&Sets] = &[$(&$name),*];
        const FIGURES: &[&Definition] = &[$(
            $name.one.ratio, $name.one.without, $name.one.with,
            $name.thousand.ratio, $name.thousand.without, $name.thousand.with,
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
    thousand: Campaigns,
}

impl Replicated {
    async fn start(session: &mut Session, replicas: u32, fsync: Fsync) -> anyhow::Result<Self> {
        let mut server = Server::start_replicated(replicas, fsync).await?;
        let mut thousand = server.thousand().await;
        server.claims_of(session, &mut thousand, session.options.connections, WARM_UP).await?;
        Ok(Self { server, thousand })
    }

    /// Claims a second from one campaign, and from 1,000.
    async fn measure(&mut self, session: &mut Session) -> anyhow::Result<[f64; 2]> {
        let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
        let one = self.server.claims(session, connections, pace).await?;
        let thousand = self.server.claims_of(session, &mut self.thousand, connections, pace).await?;
        Ok([one, thousand].map(|claims| claims.tally.per_second()))
    }
}

async fn run(session: &mut Session) -> anyhow::Result<()> {
    for sets in SETS {
        let mut without = Replicated::start(session, 0, sets.fsync).await?;
        let mut with = Replicated::start(session, 1, sets.fsync).await?;
        for round in 1..=session.options.rounds {
            session.begin_round();
            let before = without.measure(session).await?;
            let after = with.measure(session).await?;
            for (set, at) in [(&sets.one, 0), (&sets.thousand, 1)] {
                session.say(format_args!(
                    "round {round} · {}, {}: {:.0} claims/s, {:.0} when the replica is waited for",
                    set.spread, sets.fsync, before[at], after[at]
                ));
                session.add(set.ratio, after[at] / before[at]);
                session.add(set.without, before[at]);
                session.add(set.with, after[at]);
            }
        }
    }
    Ok(())
}
