//! What it costs claims that others look up what they have, as the pages of a crowd do while they load.

use tokio::try_join;

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::campaigns::Campaigns;
use crate::client::{self, Load, Pace, Tally, Template};
use crate::engine::generous;
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "look-up",
    about: "claims over HTTP: alone, and while as many look up what they have as 10,000 pages that load",
    figures: &[RATIO, ALONE, BESIDE, CPU, CPU_TO_CLAIM],
    parts: &[Cost::of(0.5, 0.3, 3.4)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition = &Definition::at_least("claims beside look-ups ÷ alone", Unit::Ratio, 0.9);
const ALONE: &Definition = &Definition::told("claims, no look-ups", Unit::PerSecond);
const BESIDE: &Definition = &Definition::told("claims beside look-ups", Unit::PerSecond);
const CPU: &Definition = &Definition::told("CPU a look-up", Unit::CpuMicroseconds);
const CPU_TO_CLAIM: &Definition = &Definition::told("CPU a look-up ÷ a claim", Unit::Ratio);

/// Look-ups a second: 10,000 pages, each at a moment drawn from 8 s.
const RATE: f64 = 1_250.0;
/// Connections of the look-ups: the edge keeps a few to core.
const CONNECTIONS: usize = 32;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::Always).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
        let alone = server.claims(session, connections, pace).await?;

        let campaign = server.campaign(generous()).await;
        let look_ups = look_ups(session, &server, &campaign);
        let mut campaigns = Campaigns::one(campaign.clone());
        let claims = server.claims_of(session, &mut campaigns, connections, pace);
        let (beside, looked_up) = try_join!(claims, client::run(look_ups))?;
        answered(&looked_up)?;

        let cpu_us = look_ups_alone(session, &server, &campaign).await?;
        let [without, with] = [&alone, &beside].map(|claims| claims.tally.per_second());
        session.say(format_args!(
            "round {round} · {}: {without:.0} claims/s, {with:.0} beside {:.0} look-ups/s; CPU a look-up {cpu_us:.1} µs, \
             a claim {:.1} µs",
            server.name,
            looked_up.per_second(),
            alone.cpu_us.together()
        ));
        session.add(RATIO, with / without);
        session.add(ALONE, without);
        session.add(BESIDE, with);
        session.add(CPU, cpu_us);
        session.add(CPU_TO_CLAIM, cpu_us / alone.cpu_us.together());
    }
    Ok(())
}

/// Microseconds of processor time that each look-up takes of core and its Redis when nothing else goes on.
async fn look_ups_alone(session: &mut Session, server: &Server, campaign: &str) -> anyhow::Result<f64> {
    let load = look_ups(session, server, campaign);
    let before = server.spent().await?;
    let tally = session.measure(client::run(load)).await?;
    let spent = server.spent().await? - before;
    Ok(spent.us_a_claim(answered(&tally)?).together())
}

/// Each by another user, who has no claim.
fn look_ups(session: &mut Session, server: &Server, campaign: &str) -> Load {
    Load {
        address: server.address(),
        connections: CONNECTIONS,
        request: Template::look_up(campaign),
        seed: session.seed(),
        pace: Pace::Open(RATE, length(session)),
    }
}

fn answered(tally: &Tally) -> anyhow::Result<u64> {
    tally.all(200)
}
