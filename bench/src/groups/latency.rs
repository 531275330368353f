//! How long an answer takes: of claims that come at half of what claimgate can do, and of a lone one.

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::Pace;
use crate::figures::{Definition, Unit};
use crate::naive::Naive;
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "latency",
    about: "p99 at half the top rate, open loop, and a lone claim's latency",
    figures: &[
        LONE_RATIO,
        P99_RATIO,
        RATE,
        P99_ONE,
        P99,
        P50_ONE,
        P50,
        LONE_TO_ONE,
        LONE_ONE,
        LONE_NAIVE,
        LONE,
    ],
    parts: &[Cost::of(1.0, 0.0, 3.6), Cost::of(1.0, 0.3, 1.8)],
    run: |session| Box::pin(run(session)),
};

const P99_RATIO: &Definition = &Definition::told("p99 at half the top rate ÷ (c)", Unit::Ratio);
const LONE_RATIO: &Definition = &Definition::at_most("a lone claim ÷ (e), everysec", Unit::Ratio, 1.5);
const LONE_TO_ONE: &Definition = &Definition::told("a lone claim ÷ (c), everysec", Unit::Ratio);
const RATE: &Definition = &Definition::told("half the top rate", Unit::PerSecond);
const P99_ONE: &Definition = &Definition::told("(c) p99 at that rate", Unit::Microseconds);
const P99: &Definition = &Definition::told("(d) p99 at that rate", Unit::Microseconds);
const P50_ONE: &Definition = &Definition::told("(c) median at that rate", Unit::Microseconds);
const P50: &Definition = &Definition::told("(d) median at that rate", Unit::Microseconds);
const LONE_ONE: &Definition = &Definition::told("(c) a lone claim, everysec", Unit::Microseconds);
const LONE_NAIVE: &Definition = &Definition::told("(e) a lone claim, everysec", Unit::Microseconds);
const LONE: &Definition = &Definition::told("(d) a lone claim, everysec", Unit::Microseconds);

/// Connections of an open loop: enough that a request waits for the server and not for a connection.
const OPEN_CONNECTIONS: usize = 256;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    at_half_rate(session).await?;
    lone(session).await
}

async fn at_half_rate(session: &mut Session) -> anyhow::Result<()> {
    let mut one = Server::start(Batching::One, Fsync::Always).await?;
    let mut shipped = Server::start(Batching::Shipped, Fsync::Always).await?;
    let top_rate = match session.top_rate {
        Some(rate) => rate,
        None => top_rate(session, &mut shipped).await?,
    };
    let pace = Pace::Open(top_rate / 2.0, length(session));
    while let Some(round) = session.next_round() {
        session.begin_round();
        let mut found = Vec::new();
        for server in [&mut one, &mut shipped] {
            let tally = server.claims(session, OPEN_CONNECTIONS, pace).await?.tally;
            let (p50, p99) = (tally.latency_us(0.5), tally.latency_us(0.99));
            session.say(format_args!(
                "round {round} · {} at {:.0} claims/s: median {:.2} ms, p99 {:.2} ms",
                server.name,
                top_rate / 2.0,
                p50 / 1000.0,
                p99 / 1000.0
            ));
            found.push((p50, p99));
        }
        session.add(RATE, top_rate / 2.0);
        session.add(P99_RATIO, found[1].1 / found[0].1);
        session.add(P50_ONE, found[0].0);
        session.add(P99_ONE, found[0].1);
        session.add(P50, found[1].0);
        session.add(P99, found[1].1);
    }
    Ok(())
}

/// Where the group "http" has not told it.
async fn top_rate(session: &mut Session, server: &mut Server) -> anyhow::Result<f64> {
    let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
    let rate = server.claims(session, connections, pace).await?.tally.per_second();
    session.say(format_args!("{}: {rate:.0} claims/s", server.name));
    Ok(rate)
}

async fn lone(session: &mut Session) -> anyhow::Result<()> {
    let mut one = Server::start(Batching::One, Fsync::EverySecond).await?;
    let mut naive = Naive::start(Fsync::EverySecond).await?;
    let mut shipped = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    // One at a time needs no long look.
    let pace = Pace::Closed(length(session) / 2);
    while let Some(round) = session.next_round() {
        session.begin_round();
        let one = one.claims(session, 1, pace).await?.tally.latency_us(0.5);
        let naive = naive.claims(session, 1, pace).await?.tally.latency_us(0.5);
        let shipped = shipped.claims(session, 1, pace).await?.tally.latency_us(0.5);
        session.say(format_args!(
            "round {round} · one at a time, medians: {one:.0} µs by (c), {naive:.0} µs by (e), {shipped:.0} µs by (d)"
        ));
        session.add(LONE_RATIO, shipped / naive);
        session.add(LONE_TO_ONE, shipped / one);
        session.add(LONE_ONE, one);
        session.add(LONE_NAIVE, naive);
        session.add(LONE, shipped);
    }
    Ok(())
}
