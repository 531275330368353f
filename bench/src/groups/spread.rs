//! Claims over HTTP from 1,000 campaigns, round-robin: claimgate compared with the simplest server.

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::campaigns::Campaigns;
use crate::client::Pace;
use crate::figures::{Definition, Unit};
use crate::naive::Naive;
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "spread",
    about: "claims over HTTP from 1,000 campaigns: the simplest server, claimgate",
    figures: FIGURES,
    parts: &[Cost::of(4.0, 1.0, 4.5)],
    run: |session| Box::pin(run(session)),
};

/// Warm-up: a campaign's first claim loads it into Redis.
const WARM_UP: Pace = Pace::Count(5_000);

/// The figures of one fsync setting.
#[derive(Debug)]
struct Set {
    fsync: Fsync,
    ratio: &'static Definition,
    naive: &'static Definition,
    claims: &'static Definition,
    batch: &'static Definition,
}

macro_rules! sets {
    ($($name:ident: $fsync:expr, $word:literal;)*) => {
        $(const $name: Set = Set {
            fsync: $fsync,
            ratio: &Definition::at_least(concat!("1,000 campaigns ÷ (e), ", $word), Unit::Ratio, 0.8),
            naive: &Definition::info(concat!("(e) 1,000 campaigns, ", $word), Unit::PerSecond),
            claims: &Definition::info(concat!("(d) 1,000 campaigns, ", $word), Unit::PerSecond),
            batch: &Definition::info(
                concat!("claims per batch, 1,000 campaigns, ", $word), Unit::Claims),
        };)*
        const SETS: &[&Set] = &[$(&$name),*];
        const FIGURES: &[&Definition] = &[$($name.ratio, $name.naive, $name.claims, $name.batch),*];
    };
}

sets! {
    ALWAYS: Fsync::Always, "always";
    EVERY_SECOND: Fsync::EverySecond, "everysec";
}

/// Both servers with one fsync setting, each with its campaigns.
#[derive(Debug)]
struct Pair {
    set: &'static Set,
    naive: (Naive, Campaigns),
    shipped: (Server, Campaigns),
}

impl Pair {
    async fn start(session: &mut Session, set: &'static Set) -> anyhow::Result<Self> {
        let mut naive = Naive::start(set.fsync).await?;
        let mut shipped = Server::start(Batching::Shipped, set.fsync).await?;
        let mut campaigns = [naive.thousand_campaigns(), shipped.thousand_campaigns().await];
        let connections = session.options.connections;
        naive.claims_of(session, &mut campaigns[0], connections, WARM_UP).await?;
        shipped.claims_of(session, &mut campaigns[1], connections, WARM_UP).await?;
        let [of_naive, of_shipped] = campaigns;
        Ok(Self { set, naive: (naive, of_naive), shipped: (shipped, of_shipped) })
    }
}

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut pairs = Vec::new();
    for set in SETS {
        pairs.push(Pair::start(session, set).await?);
    }
    while let Some(round) = session.next_round() {
        for pair in &mut pairs {
            session.begin_round();
            measure(session, pair, round).await?;
        }
    }
    Ok(())
}

async fn measure(session: &mut Session, pair: &mut Pair, round: u32) -> anyhow::Result<()> {
    let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
    let (server, campaigns) = &mut pair.naive;
    let naive = server.claims_of(session, campaigns, connections, pace).await?.tally.per_second();
    let (server, campaigns) = &mut pair.shipped;
    let shipped = server.claims_of(session, campaigns, connections, pace).await?;
    let rate = shipped.tally.per_second();
    session.say(format_args!(
        "round {round} · 1,000 campaigns, {}: (e) {naive:.0} claims/s, (d) {rate:.0} claims/s, {:.1} per batch",
        pair.set.fsync, shipped.batch
    ));
    session.add(pair.set.ratio, rate / naive);
    session.add(pair.set.naive, naive);
    session.add(pair.set.claims, rate);
    session.add(pair.set.batch, shipped.batch);
    Ok(())
}
