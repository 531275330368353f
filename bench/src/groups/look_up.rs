//! Cost of lookups for claims: a crowd's pages look up the users' claims while they load.

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

pub const GROUP: Group = Group {
    name: "look-up",
    about: "claims over HTTP, without and with the lookups of 10,000 loading pages",
    figures: &[RATIO, WITHOUT, WITH, CPU, CPU_TO_CLAIM],
    parts: &[Cost::of(0.5, 0.3, 3.4)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition = &Definition::at_least("claims with lookups ÷ without", Unit::Ratio, 0.9);
const WITHOUT: &Definition = &Definition::info("claims without lookups", Unit::PerSecond);
const WITH: &Definition = &Definition::info("claims with lookups", Unit::PerSecond);
const CPU: &Definition = &Definition::info("CPU per lookup", Unit::CpuMicroseconds);
const CPU_TO_CLAIM: &Definition = &Definition::info("CPU per lookup ÷ per claim", Unit::Ratio);

/// Number of lookups per second: 10,000 pages, each at a random time within 8 s.
const RATE: f64 = 1_250.0;
/// Number of connections for the lookups: the edge also keeps only a few to core.
const CONNECTIONS: usize = 32;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::Always).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
        let undisturbed = server.claims(session, connections, pace).await?;

        let campaign = server.campaign(generous()).await;
        let look_ups = look_ups(session, &server, &campaign);
        let mut campaigns = Campaigns::one(campaign.clone());
        let claims = server.claims_of(session, &mut campaigns, connections, pace);
        let (disturbed, looked_up) = try_join!(claims, client::run(look_ups))?;
        answered(&looked_up)?;

        let cpu_us = look_up_cpu_us(session, &server, &campaign).await?;
        let [without, with] = [&undisturbed, &disturbed].map(|claims| claims.tally.per_second());
        session.say(format_args!(
            "round {round} · {}: {without:.0} claims/s, {with:.0} with {:.0} lookups/s; CPU per lookup {cpu_us:.1} µs, \
             per claim {:.1} µs",
            server.name,
            looked_up.per_second(),
            undisturbed.cpu_us.total()
        ));
        session.add(RATIO, with / without);
        session.add(WITHOUT, without);
        session.add(WITH, with);
        session.add(CPU, cpu_us);
        session.add(CPU_TO_CLAIM, cpu_us / undisturbed.cpu_us.total());
    }
    Ok(())
}

/// Returns microseconds of CPU time of core and its Redis per lookup, without other load.
async fn look_up_cpu_us(session: &mut Session, server: &Server, campaign: &str) -> anyhow::Result<f64> {
    let load = look_ups(session, server, campaign);
    let before = server.cpu_time().await?;
    let tally = session.measure(client::run(load)).await?;
    let cpu_time = server.cpu_time().await? - before;
    Ok(cpu_time.us_per_claim(answered(&tally)?).total())
}

/// Builds the load of lookups, each for a new user without claims.
fn look_ups(session: &mut Session, server: &Server, campaign: &str) -> Load {
    let pace = Pace::Open(RATE, length(session));
    session.load(server.address(), CONNECTIONS, Template::look_up(campaign), pace)
}

fn answered(tally: &Tally) -> anyhow::Result<u64> {
    tally.all(200)
}
