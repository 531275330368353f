//! Cost for claims of thousands of slow connections without credentials.

use support::signing::Signed;

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::Pace;
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;
use crate::slow::{CONNECTIONS, SlowConnections};

pub const GROUP: Group = Group {
    name: "slow",
    about: "claims over HTTP, without and with 10,000 slow connections with wrong signatures",
    figures: &[RATIO, WITHOUT, WITH],
    parts: &[Cost::of(0.5, 2.5, 1.2)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition = &Definition::at_least("claims with slow connections ÷ without", Unit::Ratio, 0.9);
const WITHOUT: &Definition = &Definition::info("claims without slow connections", Unit::PerSecond);
const WITH: &Definition = &Definition::info("claims with slow connections", Unit::PerSecond);

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::Always).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        // Half the length each: opening the connections takes time.
        let (connections, pace) = (session.options.connections, Pace::Closed(length(session) / 2));
        let without = server.claims(session, connections, pace).await?.tally.per_second();
        let claim = Signed::claim(&server.core, "bench-1", "mallory", "k");
        let slow = SlowConnections::start(server.address(), claim).await?;
        let with = server.claims(session, connections, pace).await?.tally.per_second();
        let rejected = slow.end().await?;
        session.say(format_args!(
            "round {round} · {}: {without:.0} claims/s, {with:.0} with {CONNECTIONS} slow connections, {rejected} rejected",
            server.name
        ));
        session.add(RATIO, with / without);
        session.add(WITHOUT, without);
        session.add(WITH, with);
    }
    Ok(())
}
