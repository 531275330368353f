//! The edge's cost of passes: forwarded claims with and without a pass, and first tries rejected because they have no
//! pass.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use support::Core;
use support::edge::signed;
use support::issuer::Issuer;
use support::times::now_ms;

use super::Group;
use super::edge::{CONNECTIONS, claim_path};
use super::http::length;
use super::tokens::{Loads, Spent, TOKEN_S, USERS, secret_tokens};
use crate::budget::Cost;
use crate::client::{self, Load, Pace, Template};
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;
use crate::users::Uuids;
use crate::workers::Workers;

pub const GROUP: Group = Group {
    name: "edge-passes",
    about: "claims with passes through the Worker in workerd, and `pass_required` rejections",
    figures: &[SECRET_RATIO, REJECTED_RATIO, EC_RATIO, CPU],
    parts: &[Cost::of(3.0, 1.0, 1.6)],
    run: |session| Box::pin(run(session)),
};

const SECRET_RATIO: &Definition =
    &Definition::at_most("edge's CPU per claim, HS256 pass ÷ none", Unit::Ratio, 1.15);
const REJECTED_RATIO: &Definition =
    &Definition::at_least("\"no pass\" ÷ \"sold out\" at the edge", Unit::Ratio, 0.95);
const EC_RATIO: &Definition =
    &Definition::at_most("edge's CPU per claim, ES256 pass ÷ none", Unit::Ratio, 1.15);
const CPU: &Definition = &Definition::info("edge's CPU per claim, HS256 pass", Unit::CpuMicroseconds);

/// The issuer's secret: the bytes 0x01 … 0x20.
const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
/// Length of one load's turn of rejections, short enough that the edge's cache entries do not expire.
const TURN: Duration = Duration::from_millis(100);

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    let plain = server.campaign(json!({"total": 1_000_000_000})).await;
    let members = server.campaign_with_passes().await;
    let sold_out = server.campaign(json!({"total": 1})).await;
    let _ = server.core.claim(&sold_out, "winner", "key").await.expect(201);
    let issuer = Issuer::p256();
    let users = Uuids::of(session.seed()).texts(USERS);
    let tokens = secret_tokens(&server.core, &users);
    let hs256 = passes(&users, &members, |pass| signed(SECRET, &header("HS256"), pass));
    let es256 = passes(&users, &members, |pass| issuer.token(&header("ES256"), pass));
    let with = |passes: &[String]| {
        // The slot of the token also has the header of the pass: the request's length is fixed.
        let pairs =
            tokens.iter().zip(passes).map(|(token, pass)| format!("{token}\r\nClaimgate-Pass: {pass}"));
        Template::first_try(&claim_path(&members), pairs.collect())
    };
    let loads = Loads {
        workers: start(&server.core, &issuer).await,
        requests: [Template::first_try(&claim_path(&plain), Arc::clone(&tokens)), with(&hs256), with(&es256)],
    };
    let rejected = [&sold_out, &members].map(|id| Template::first_try(&claim_path(id), Arc::clone(&tokens)));
    // The first turn is only warm-up.
    let mut granted = loads.turn(session).await?.map(|spent| spent.claims);
    while let Some(round) = session.next_round() {
        session.begin_round();
        let spent = measure_claims(session, &loads, round).await?;
        for (granted, spent) in granted.iter_mut().zip(spent) {
            *granted += spent.claims;
        }
        measure_rejections(session, &loads.workers[0], &rejected, round).await?;
    }
    let [without, hs256, es256] = granted;
    server.check(&plain, without).await?;
    server.check(&members, hs256 + es256).await
}

fn header(algorithm: &str) -> Value {
    json!({"alg": algorithm, "typ": "claimgate-pass+jwt", "kid": "shop"})
}

/// Returns the users' passes, signed before the measurement.
fn passes(users: &[String], campaign: &str, sign: impl Fn(&Value) -> String) -> Vec<String> {
    let exp = now_ms() / 1000 + TOKEN_S;
    users.iter().map(|user| sign(&json!({"sub": user, "campaign": campaign, "exp": exp}))).collect()
}

/// Starts a Worker for each load.
async fn start(core: &Core, issuer: &Issuer) -> [Workers; 3] {
    let set = json!({"keys": [issuer.jwk(&json!({"kid": "shop"}))]}).to_string();
    let (secret, shop) = (core.data_file("user-jwt.key"), format!("shop:{SECRET}"));
    let worker = async |name: &str, keys: &str| {
        Workers::start(core, name, &[("USER_JWT_KEY", &secret), ("PASS_KEYS", keys)]).await
    };
    [worker("no-pass", &shop).await, worker("pass-hs256", &shop).await, worker("pass-es256", &set).await]
}

async fn measure_claims(session: &mut Session, loads: &Loads<3>, round: u32) -> anyhow::Result<[Spent; 3]> {
    let spent = loads.turns(session).await?;
    let [none, secret, ec] = spent.map(Spent::us_per_claim);
    session.say(format_args!(
        "round {round} · CPU time of the edge per claim: no pass {none:.0} µs, HS256 pass {secret:.0}, ES256 pass {ec:.0}"
    ));
    session.add(SECRET_RATIO, secret / none);
    session.add(EC_RATIO, ec / none);
    session.add(CPU, secret);
    Ok(spent)
}

/// Measures the two rejections alternately, at one Worker.
async fn measure_rejections(
    session: &mut Session,
    workers: &Workers,
    requests: &[Template; 2],
    round: u32,
) -> anyhow::Result<()> {
    let seed = session.seed();
    let loads = requests.each_ref().map(|request| Load {
        address: workers.edge,
        connections: CONNECTIONS,
        request: request.clone(),
        seed,
        pace: Pace::Closed(TURN),
    });
    let turns = u32::try_from(length(session).as_millis() / (5 * TURN.as_millis()))?.max(1);
    let [sold_out, no_pass] = session.measure(client::alternate(loads, turns)).await?;
    sold_out.all(409)?;
    no_pass.all(403)?;
    let [sold_out, no_pass] = [sold_out, no_pass].map(|tally| tally.per_second());
    session.say(format_args!("round {round} · sold out {sold_out:.0}/s, no pass {no_pass:.0}/s"));
    session.add(REJECTED_RATIO, no_pass / sold_out);
    Ok(())
}
