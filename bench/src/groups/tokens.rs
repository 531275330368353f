//! The edge's cost of users' tokens: forwarded claims with each algorithm, alternately. For each
//! algorithm, one process of workerd runs the Worker, so that no algorithm pays for collecting another's
//! garbage.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use support::Core;
use support::edge::{payload, signed};
use support::issuer::Issuer;
use support::process::cpu_ms;
use support::times::now_ms;

use super::Group;
use super::edge::{CONNECTIONS, claim_path};
use super::http::length;
use crate::budget::Cost;
use crate::client::{self, Pace, Template};
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;
use crate::users::Uuids;
use crate::workers::Workers;

pub const GROUP: Group = Group {
    name: "tokens",
    about: "claims through the Worker in workerd, with users' tokens of each algorithm",
    figures: &[RSA_TO_EC, EC_TO_SECRET, CPU[0], CPU[1], CPU[2], CPU[3]],
    parts: &[Cost::of(4.0, 1.2, 1.6)],
    run: |session| Box::pin(run(session)),
};

const RSA_TO_EC: &Definition = &Definition::at_most("edge's CPU per claim, RS256 ÷ ES256", Unit::Ratio, 1.25);
const EC_TO_SECRET: &Definition = &Definition::info("edge's CPU per claim, ES256 ÷ HS256", Unit::Ratio);
const CPU: [&Definition; 4] = [
    &Definition::info("edge's CPU per claim, HS256", Unit::CpuMicroseconds),
    &Definition::info("edge's CPU per claim, ES256", Unit::CpuMicroseconds),
    &Definition::info("edge's CPU per claim, EdDSA", Unit::CpuMicroseconds),
    &Definition::info("edge's CPU per claim, RS256", Unit::CpuMicroseconds),
];

/// Number of users whose tokens are used round-robin.
pub const USERS: usize = 2_000;
pub const TOKEN_S: i64 = 3_600;
/// Length of one load's turn, long compared with the hundredths of a second in which the kernel counts CPU time.
const TURN: Duration = Duration::from_millis(250);
/// Share of a measurement's length for each algorithm.
const SHARE: f64 = 0.4;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    let campaign = server.campaign(json!({"total": 1_000_000_000})).await;
    let issuers = [Issuer::p256(), Issuer::ed25519(), Issuer::rsa()];
    let tokens = tokens(&server.core, &issuers, session.seed());
    let loads = Loads {
        workers: start(&server.core, &issuers).await,
        requests: tokens.map(|tokens| Template::first_try(&claim_path(&campaign), tokens)),
    };
    // The first turn is only warm-up.
    let mut granted: u64 = loads.turn(session).await?.iter().map(|spent| spent.claims).sum();
    while let Some(round) = session.next_round() {
        session.begin_round();
        granted += measure(session, &loads, round).await?;
    }
    server.check(&campaign, granted).await
}

/// Starts the Worker with a shared secret, and with the key set of each issuer.
async fn start(core: &Core, issuers: &[Issuer; 3]) -> [Workers; 4] {
    let with_keys = async |issuer: &Issuer| {
        let keys = json!({"keys": [issuer.jwk(&kid(issuer))]}).to_string();
        Workers::start(core, issuer.algorithm(), &[("USER_JWT_JWKS", &keys)]).await
    };
    let (secret, [ec, ed, rsa]) = (core.data_file("user-jwt.key"), issuers);
    [
        Workers::start(core, "HS256", &[("USER_JWT_KEY", &secret)]).await,
        with_keys(ec).await,
        with_keys(ed).await,
        with_keys(rsa).await,
    ]
}

fn kid(issuer: &Issuer) -> Value {
    json!({"kid": issuer.algorithm()})
}

/// Returns tokens of these users, signed with the edge's secret.
pub fn secret_tokens(core: &Core, users: &[String]) -> Arc<[String]> {
    let secret = core.data_file("user-jwt.key");
    users.iter().map(|user| signed(&secret, &json!({"alg": "HS256"}), &lasting(user))).collect()
}

/// Returns the payload of a token that is valid for the whole measurement.
fn lasting(user: &str) -> Value {
    let mut payload = payload(user);
    payload["exp"] = json!(now_ms() / 1000 + TOKEN_S);
    payload
}

/// Returns the users' tokens for each entry of [`CPU`]. They are signed before the measurement, and the edge caches
/// none.
fn tokens(core: &Core, issuers: &[Issuer; 3], seed: u64) -> [Arc<[String]>; 4] {
    let secret = core.data_file("user-jwt.key");
    let users = Uuids::of(seed).texts(USERS);
    let all = |token: &dyn Fn(&Value) -> String| users.iter().map(|user| token(&lasting(user))).collect();
    let of = |issuer: &Issuer| all(&|payload| issuer.token(&kid(issuer), payload));
    let [ec, ed, rsa] = issuers.each_ref().map(of);
    [all(&|payload| signed(&secret, &json!({"alg": "HS256", "kid": "HS256"}), payload)), ec, ed, rsa]
}

/// Measures one round, and returns the number of granted claims.
async fn measure(session: &mut Session, loads: &Loads<4>, round: u32) -> anyhow::Result<u64> {
    let spent = loads.turns(session).await?;
    let cpu_us = spent.map(Spent::us_per_claim);
    let [secret, ec, ed, rsa] = cpu_us;
    session.say(format_args!(
        "round {round} · CPU time of the edge per claim: HS256 {secret:.0} µs, ES256 {ec:.0}, EdDSA {ed:.0}, RS256 {rsa:.0}"
    ));
    session.add(RSA_TO_EC, rsa / ec);
    session.add(EC_TO_SECRET, ec / secret);
    for (definition, cpu_us) in CPU.into_iter().zip(cpu_us) {
        session.add(definition, cpu_us);
    }
    Ok(spent.iter().map(|spent| spent.claims).sum())
}

/// Claims, and the CPU time that the edge spent on them.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// Granted claims.
    pub claims: u64,
    cpu_ms: u64,
}

impl Spent {
    const NONE: Self = Self { claims: 0, cpu_ms: 0 };

    /// Returns the CPU time per claim, in microseconds.
    pub fn us_per_claim(self) -> f64 {
        self.cpu_ms as f64 * 1000.0 / self.claims as f64
    }
}

/// Workers, each with its load.
pub struct Loads<const N: usize> {
    /// The Workers.
    pub workers: [Workers; N],
    /// The requests to each Worker.
    pub requests: [Template; N],
}

impl<const N: usize> Loads<N> {
    /// Runs one turn of each load.
    pub async fn turn(&self, session: &mut Session) -> anyhow::Result<[Spent; N]> {
        let mut spent = [Spent::NONE; N];
        for ((workers, request), spent) in self.workers.iter().zip(&self.requests).zip(&mut spent) {
            let load = session.load(workers.edge, CONNECTIONS, request.clone(), Pace::Closed(TURN));
            let before = cpu_ms(workers.pid());
            spent.claims = session.measure(client::run(load)).await?.granted()?;
            spent.cpu_ms = cpu_ms(workers.pid()) - before;
        }
        Ok(spent)
    }

    /// Runs turns of each load for a measurement's length.
    pub async fn turns(&self, session: &mut Session) -> anyhow::Result<[Spent; N]> {
        let mut total = [Spent::NONE; N];
        for _ in 0..(length(session).mul_f64(SHARE).as_millis() / TURN.as_millis()).max(1) {
            for (total, spent) in total.iter_mut().zip(self.turn(session).await?) {
                total.claims += spent.claims;
                total.cpu_ms += spent.cpu_ms;
            }
        }
        Ok(total)
    }
}
