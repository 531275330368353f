//! Claims of a back end: 256 per request, compared with one per request.

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::{self, Pace, Template};
use crate::engine::generous;
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "batches",
    about: "claims of back ends: 256 per request and one",
    figures: &[RATE, RATIO, SINGLE],
    parts: &[Cost::of(0.5, 0.2, 3.7)],
    run: |session| Box::pin(run(session)),
};

const RATE: &Definition = &Definition::at_least("claims through the batch route", Unit::PerSecond, 150_000.0);
const RATIO: &Definition = &Definition::at_least("batch route ÷ single route", Unit::Ratio, 2.0);
const SINGLE: &Definition = &Definition::info("(d) single route, same rounds", Unit::PerSecond);

/// Number of claims per request: the maximum.
const CLAIMS: u32 = 256;
/// Half as many claims in flight as may be queued for one campaign.
const CONNECTIONS: usize = 16;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
        let single = server.claims(session, connections, pace).await?.tally.per_second();
        let batches = batches(session, &mut server).await?;
        session.say(format_args!(
            "round {round} · {}: {batches:.0} claims/s, {CLAIMS} per request; {single:.0} claims/s, one per request",
            server.name
        ));
        session.add(RATE, batches);
        session.add(RATIO, batches / single);
        session.add(SINGLE, single);
    }
    Ok(())
}

/// Returns claims per second. All are granted and verified in Redis and SQL.
async fn batches(session: &mut Session, server: &mut Server) -> anyhow::Result<f64> {
    let campaign = server.campaign(generous()).await;
    let pace = Pace::Closed(length(session));
    let load = session.load(server.address(), CONNECTIONS, Template::claims(&campaign, CLAIMS), pace);
    let tally = session.measure(client::run(load)).await?;
    // Each response is 200 regardless of its claims; the check verifies that all were granted.
    server.check(&campaign, tally.all(200)? * u64::from(CLAIMS)).await?;
    Ok(tally.per_second() * f64::from(CLAIMS))
}
