//! The slowest responses with fsync always, at a rate that both servers can serve: claimgate compared with the simplest
//! server, and with the syncs of the disk beside them.

use hdrhistogram::Histogram;

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::{Pace, Tally};
use crate::disk::SyncWatcher;
use crate::figures::{Definition, Unit};
use crate::naive::Naive;
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "tails",
    about: "p99 and slowest response at half of (e)'s top rate, beside the disk's syncs",
    figures: &[P99_RATIO, UNEXPLAINED, RATE, P99_NAIVE, P99, P99_SYNC, LONGEST_NAIVE, LONGEST, LONGEST_SYNC],
    parts: &[Cost::of(4.0, 0.5, 2.0)],
    run: |session| Box::pin(run(session)),
};

const P99_RATIO: &Definition =
    &Definition::at_most("p99 at half of (e)'s top rate ÷ (e)'s", Unit::Ratio, 1.5);
/// A claim that arrives during a sync waits for the rest of it and for its own.
const UNEXPLAINED: &Definition =
    &Definition::at_most("slowest response beyond two syncs", Unit::Microseconds, 100_000.0);
const RATE: &Definition = &Definition::info("half of (e)'s top rate, always", Unit::PerSecond);
const P99_NAIVE: &Definition = &Definition::info("(e) p99 at this rate", Unit::Microseconds);
const P99: &Definition = &Definition::info("(d) p99 at this rate", Unit::Microseconds);
const P99_SYNC: &Definition = &Definition::info("p99 of a sync beside (d)", Unit::Microseconds);
const LONGEST_NAIVE: &Definition = &Definition::info("(e) slowest response at this rate", Unit::Microseconds);
const LONGEST: &Definition = &Definition::info("(d) slowest response at this rate", Unit::Microseconds);
const LONGEST_SYNC: &Definition = &Definition::info("slowest sync beside (d)", Unit::Microseconds);

/// Number of connections of an open loop: enough that requests wait for the server, not for a connection.
const OPEN_CONNECTIONS: usize = 256;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut naive = Naive::start(Fsync::Always).await?;
    let mut shipped = Server::start(Batching::Shipped, Fsync::Always).await?;
    let (connections, closed) = (session.options.connections, Pace::Closed(length(session)));
    let rate = naive.claims(session, connections, closed).await?.tally.per_second() / 2.0;
    let pace = Pace::Open(rate, length(session));
    while let Some(round) = session.next_round() {
        session.begin_round();
        let syncs = SyncWatcher::start();
        let of_naive = naive.claims(session, OPEN_CONNECTIONS, pace).await?.tally;
        syncs.end().await?;
        let syncs = SyncWatcher::start();
        let of_shipped = shipped.claims(session, OPEN_CONNECTIONS, pace).await?.tally;
        add(session, round, rate, &of_naive, &of_shipped, &syncs.end().await?);
    }
    Ok(())
}

fn add(session: &mut Session, round: u32, rate: f64, naive: &Tally, shipped: &Tally, syncs: &Histogram<u64>) {
    let sync_us = |quantile| syncs.value_at_quantile(quantile) as f64 / 1000.0;
    let (p99_naive, p99) = (naive.latency_us(0.99), shipped.latency_us(0.99));
    let (longest, longest_sync) = (shipped.latency_us(1.0), sync_us(1.0));
    session.say(format_args!(
        "round {round} · at {rate:.0} claims/s: p99 (e) {:.1} ms, (d) {:.1} ms, a sync {:.1} ms; slowest (d) {:.1} ms, \
         sync {:.1} ms",
        p99_naive / 1000.0,
        p99 / 1000.0,
        sync_us(0.99) / 1000.0,
        longest / 1000.0,
        longest_sync / 1000.0
    ));
    session.add(P99_RATIO, p99 / p99_naive);
    session.add(UNEXPLAINED, (longest - 2.0 * longest_sync).max(0.0));
    session.add(RATE, rate);
    session.add(P99_NAIVE, p99_naive);
    session.add(P99, p99);
    session.add(P99_SYNC, sync_us(0.99));
    session.add(LONGEST_NAIVE, naive.latency_us(1.0));
    session.add(LONGEST, longest);
    session.add(LONGEST_SYNC, longest_sync);
}
