//! Codes: how long a million take to add, what they cost the relay and the claims, and how soon a winner can read them.

use std::time::{Duration, Instant};

use claimgate_core::config::sqlite_url;
use reqwest::Method;
use support::core_client::{API_TOKEN, claim_body};
use support::postgres::Postgres;
use tempfile::TempDir;
use tokio::try_join;

use super::Group;
use super::http::length;
use super::relay::relay_claims;
use crate::budget::Cost;
use crate::campaigns::Campaigns;
use crate::client::{self, Pace, Template};
use crate::engine::{Engine, generous};
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "codes",
    about: "adding codes, the relay and claims with and without codes, and when a winner can read a code",
    figures: &[ADDED, SQLITE, POSTGRES, CLAIMS, READABLE, MEANWHILE],
    parts: &[Cost::once(12.0), Cost::of(1.5, 4.5, 0.0), Cost::once(20.0)],
    run: |session| Box::pin(run(session)),
};

const ADDED: &Definition = &Definition::at_most("a million codes added, SQLite", Unit::Seconds, 20.0).once();
const SQLITE: &Definition =
    &Definition::at_most("relay's time per row, with ÷ without codes, SQLite", Unit::Ratio, 1.25);
const POSTGRES: &Definition =
    &Definition::at_most("relay's time per row, with ÷ without codes, PostgreSQL", Unit::Ratio, 1.25);
const CLAIMS: &Definition = &Definition::at_least("claims with ÷ without codes", Unit::Ratio, 0.95).once();
const READABLE: &Definition =
    &Definition::at_most("p95 until a winner can read the code, 10,000 claims/s", Unit::Seconds, 1.0).once();
const MEANWHILE: &Definition =
    &Definition::info("claims while winners read codes, of 10,000/s", Unit::PerSecond).once();

const MILLION: u32 = 1_000_000;
/// Number of claims whose relay is measured.
const RELAYED: u32 = 50_000;
const RATE: f64 = 10_000.0;
const CONNECTIONS: usize = 256;
/// Time between two winners whose code is read.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
const POLL: Duration = Duration::from_millis(10);

async fn run(session: &mut Session) -> anyhow::Result<()> {
    add_million(session).await?;
    relay(session).await?;
    claims(session).await
}

async fn add_million(session: &mut Session) -> anyhow::Result<()> {
    while session.next_round().is_some() {
        session.begin_round();
        let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
        let (_, seconds) = session.measure(server.campaign_with_codes(MILLION)).await?;
        session.say(format_args!("a million codes added in {seconds:.1} s"));
        session.add(ADDED, seconds);
    }
    Ok(())
}

async fn relay(session: &mut Session) -> anyhow::Result<()> {
    let postgres = Postgres::start_with(&[("fsync", "on")]).await.map_err(anyhow::Error::msg)?;
    while let Some(round) = session.next_round() {
        for (name, figure) in [("SQLite", SQLITE), ("PostgreSQL", POSTGRES)] {
            session.begin_round();
            let mut rates = [0.0; 2];
            for (at, has_codes) in [false, true].into_iter().enumerate() {
                let directory = TempDir::with_prefix("cgb-")?;
                let url = match name {
                    "SQLite" => sqlite_url(&directory.path().join("claimgate.sqlite")),
                    _ => postgres.database(&format!("codes_{round}_{at}")).await,
                };
                let engine = Engine::start(Fsync::EverySecond, &url).await?;
                let handle = if has_codes {
                    engine.campaign_with_codes("bench", RELAYED).await?
                } else {
                    engine.campaign("bench", generous()).await?
                };
                (rates[at], _) = relay_claims(session, engine, &handle, RELAYED as usize).await?;
            }
            let [without, with] = rates;
            session.say(format_args!(
                "round {round} · relay into {name}: {without:.0} rows/s without codes, {with:.0} with"
            ));
            session.add(figure, without / with);
        }
    }
    Ok(())
}

async fn claims(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let (connections, pace) = (session.options.connections, Pace::Closed(length(session)));
        let without = server.claims(session, connections, pace).await?.tally.per_second();
        let codes = codes_for(without, length(session));
        let mut campaigns = Campaigns::one(server.campaign_with_codes(codes).await?.0);
        let with = server.claims_of(session, &mut campaigns, connections, pace).await?.tally.per_second();

        let (campaign, _) = server.campaign_with_codes(codes_for(RATE, length(session))).await?;
        let samples = winners(&server, &campaign, length(session));
        let pace = Pace::Open(RATE, length(session));
        // The sampled winners are not part of the load, so its claims are counted without the checks of `claims_of`.
        let load = session.load(server.address(), CONNECTIONS, Template::claim(&campaign), pace);
        let (tally, waits) = session.measure(async { try_join!(client::run(load), samples) }).await?;
        server.check(&campaign, tally.granted()? + waits.len() as u64).await?;
        let p95 = quantile(waits, 0.95);
        session.say(format_args!(
            "round {round} · {without:.0} claims/s without codes, {with:.0} with; at {:.0} claims/s 95 % of winners read \
             their code within {p95:.2} s",
            tally.per_second()
        ));
        session.add(CLAIMS, with / without);
        session.add(READABLE, p95);
        session.add(MEANWHILE, tally.per_second());
    }
    Ok(())
}

/// Returns a number of codes that a load at this rate does not use up, even if it is half as fast again.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a positive number, far below 2^32
fn codes_for(per_second: f64, length: Duration) -> u32 {
    (1.5 * per_second * length.as_secs_f64()) as u32
}

/// Wins a claim every [`SAMPLE_EVERY`] for `length`. Returns the seconds until each winner's lookup had a code.
async fn winners(server: &Server, campaign: &str, length: Duration) -> anyhow::Result<Vec<f64>> {
    let (started, mut waits) = (Instant::now(), tokio::task::JoinSet::new());
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    let mut number = 0;
    while started.elapsed() < length {
        ticks.tick().await;
        let (client, url) = (server.core.client().clone(), server.core.url("/internal/v1/claims"));
        let body = claim_body(campaign, &format!("sample-{number}"), "k", 1);
        number += 1;
        waits.spawn(async move {
            let request = client.request(Method::POST, &url).bearer_auth(API_TOKEN).json(&body);
            let won = client.send(request).await?.expect(201).json();
            let claim = won["claim"]["id"].as_str().unwrap_or_default().to_owned();
            let granted = Instant::now();
            loop {
                let request = client.request(Method::GET, &format!("{url}/{claim}")).bearer_auth(API_TOKEN);
                let found = client.send(request).await?.expect(200).json();
                if found["claim"]["codes"][0].is_string() {
                    return Ok(granted.elapsed().as_secs_f64());
                }
                tokio::time::sleep(POLL).await;
            }
        });
    }
    waits.join_all().await.into_iter().collect()
}

/// Returns the value that this share of `values` does not exceed.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share).ceil();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a positive number of values
    values.get((at as usize).saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
