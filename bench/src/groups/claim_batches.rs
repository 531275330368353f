//! Claims of a back end that sends 256 of them a request, against one a request.

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::{self, Load, Pace, Template};
use crate::engine::generous;
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "batches",
    about: "claims of back ends: 256 a request against one",
    figures: &[RATE, RATIO, SINGLE],
    parts: &[Cost::of(0.5, 0.2, 3.7)],
    run: |session| Box::pin(run(session)),
};

const RATE: &Definition = &Definition::at_least("claims by the batch route", Unit::PerSecond, 150_000.0);
const RATIO: &Definition = &Definition::at_least("batch route ÷ single route", Unit::Ratio, 2.0);
const SINGLE: &Definition = &Definition::told("(d) single route beside it", Unit::PerSecond);

/// Claims a request, the most that there may be.
const CLAIMS: u32 = 256;
/// Half as many claims at once as may wait for one campaign.
const CONNECTIONS: usize = 16;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
        let single = server.claims(session, connections, pace).await?.tally.per_second();
        let batches = batches(session, &mut server).await?;
        session.say(format_args!(
            "round {round} · {}: {batches:.0} claims/s, {CLAIMS} a request; {single:.0} one a request",
            server.name
        ));
        session.add(RATE, batches);
        session.add(RATIO, batches / single);
        session.add(SINGLE, single);
    }
    Ok(())
}

/// Claims per second, all of them granted and found in Redis and SQL.
async fn batches(session: &mut Session, server: &mut Server) -> anyhow::Result<f64> {
    let campaign = server.campaign(generous()).await;
    let load = Load {
        address: server.address(),
        connections: CONNECTIONS,
        request: Template::claims(&campaign, CLAIMS),
        seed: session.seed(),
        pace: Pace::Closed(length(session)),
    };
    let tally = session.measure(client::run(load)).await?;
    // Each answer is 200, whatever became of its claims: that all were granted shows in their number.
    server.check(&campaign, tally.all(200)? * u64::from(CLAIMS)).await?;
    Ok(tally.per_second() * f64::from(CLAIMS))
}
