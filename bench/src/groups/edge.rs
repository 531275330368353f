//! The Worker in plain workerd: the cost of an early rejection and of a forwarded claim, compared with a bare
//! Worker that says hello or forwards the request unchanged. All run in one process, one after the other.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use claimgate_core::clock;
use claimgate_shared::jwt::{TokenRules, UserTokens};
use serde_json::json;
use support::Core;
use support::times::from_now;

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::{self, Load, Pace, Template};
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;
use crate::workers::Workers;

pub const GROUP: Group = Group {
    name: "edge",
    about: "the Worker in workerd: rejections and forwarded claims, compared with a bare Worker",
    figures: &[
        SOLD_OUT_RATIO,
        NOT_OPEN_RATIO,
        ADDED_RATIO,
        HELLO,
        SOLD_OUT,
        NOT_OPEN,
        DIRECT,
        ADDED_BARE,
        ADDED,
    ],
    parts: &[Cost::of(1.0, 0.7, 3.1)],
    run: |session| Box::pin(run(session)),
};

const SOLD_OUT_RATIO: &Definition =
    &Definition::at_least("\"sold out\" at the edge ÷ hello world", Unit::Ratio, 0.85);
const NOT_OPEN_RATIO: &Definition =
    &Definition::at_least("\"not open\" at the edge ÷ hello world", Unit::Ratio, 0.85);
const ADDED_RATIO: &Definition =
    &Definition::at_most("latency the edge adds ÷ a bare forwarder's", Unit::Ratio, 1.4);
const HELLO: &Definition = &Definition::info("a bare Worker's hello world", Unit::PerSecond);
const SOLD_OUT: &Definition = &Definition::info("\"sold out\" at the edge", Unit::PerSecond);
const NOT_OPEN: &Definition = &Definition::info("\"not open\" at the edge", Unit::PerSecond);
const DIRECT: &Definition = &Definition::info("a single claim at core, everysec", Unit::Microseconds);
const ADDED_BARE: &Definition = &Definition::info("latency a bare forwarder adds", Unit::Microseconds);
const ADDED: &Definition = &Definition::info("latency the edge adds", Unit::Microseconds);

/// workerd has one thread: more connections would only queue.
pub const CONNECTIONS: usize = 64;
/// Length of one load's turn, short enough that the edge's cache entries do not expire during the other
/// turns.
const TURN: Duration = Duration::from_millis(100);
/// Number of turns per round in which the three paths of a single claim are measured.
const TURNS: u32 = 3;

/// User of all claims; the edge requires a token, which is signed once.
const USER: &str = "bench";

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    let key = server.core.data_file("user-jwt.key");
    let workers = Workers::start(&server.core, "edge", &[("USER_JWT_KEY", &key)]).await;
    let fixture = Fixture::prepare(&mut server, &workers).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        measure_rejections(session, &fixture, round).await?;
        measure_forwarding(session, &fixture, round).await?;
    }
    server.check(&fixture.open, fixture.granted.get()).await
}

/// Addresses, credentials and campaigns of the loads.
struct Fixture {
    core: SocketAddr,
    edge: SocketAddr,
    bare: SocketAddr,
    /// One token.
    token: Arc<[String]>,
    sold_out: String,
    not_open: String,
    open: String,
    granted: Cell<u64>,
}

impl Fixture {
    async fn prepare(server: &mut Server, workers: &Workers) -> anyhow::Result<Self> {
        let sold_out = server.campaign(json!({"total": 1})).await;
        let _ = server.core.claim(&sold_out, "winner", "key").await.expect(201);
        let not_open = server.campaign_opening(from_now(3_600)).await;
        let open = server.campaign(json!({"total": 1_000_000_000})).await;
        Ok(Self {
            core: server.address(),
            edge: workers.edge,
            bare: workers.bare,
            token: Arc::new([token(&server.core)?]),
            sold_out,
            not_open,
            open,
            granted: Cell::new(0),
        })
    }

    fn first_try(&self, path: &str) -> Template {
        Template::first_try(path, Arc::clone(&self.token))
    }
}

/// Returns the edge's path for claims of `campaign`.
pub fn claim_path(campaign: &str) -> String {
    format!("/v1/campaigns/{campaign}/claims")
}

fn token(core: &Core) -> anyhow::Result<String> {
    let rules = TokenRules::new("claimgate".to_owned(), "claimgate".to_owned());
    let tokens = UserTokens { key: core.data_file("user-jwt.key").parse()?, rules };
    Ok(tokens.mint(&USER.parse()?, clock::now(), 3_600)?)
}

/// Measures hello and the two rejections alternately, with the same request, so that only the Workers differ.
async fn measure_rejections(session: &mut Session, fixture: &Fixture, round: u32) -> anyhow::Result<()> {
    let seed = session.seed();
    let load = |address, path: &str| Load {
        address,
        connections: CONNECTIONS,
        request: fixture.first_try(path),
        seed,
        pace: Pace::Closed(TURN),
    };
    let loads = [
        load(fixture.bare, "/"),
        load(fixture.edge, &claim_path(&fixture.sold_out)),
        load(fixture.edge, &claim_path(&fixture.not_open)),
    ];
    let turns = u32::try_from(length(session).as_millis() / (2 * TURN.as_millis()))?.max(1);
    let [hello, sold_out, not_open] = session.measure(client::alternate(loads, turns)).await?;
    hello.all(200)?;
    let rejected = sold_out.all(409)?;
    ensure!(
        sold_out.sold_out == rejected,
        "only {} of {rejected} rejections were `sold_out`",
        sold_out.sold_out
    );
    not_open.all(403)?;
    let [hello, sold_out, not_open] = [hello, sold_out, not_open].map(|tally| tally.per_second());
    session.say(format_args!(
        "round {round} · hello {hello:.0}/s, sold out {sold_out:.0}/s, not open {not_open:.0}/s"
    ));
    session.add(SOLD_OUT_RATIO, sold_out / hello);
    session.add(NOT_OPEN_RATIO, not_open / hello);
    session.add(HELLO, hello);
    session.add(SOLD_OUT, sold_out);
    session.add(NOT_OPEN, not_open);
    Ok(())
}

/// Measures a single claim at core, through the bare Worker and through the edge. Reports what each Worker
/// adds to the median.
async fn measure_forwarding(session: &mut Session, fixture: &Fixture, round: u32) -> anyhow::Result<()> {
    let direct = Template::claim_of(&fixture.open, USER);
    let through_edge = fixture.first_try(&claim_path(&fixture.open));
    let mut medians = [0.0; 3];
    for _ in 0..TURNS {
        let routes = [(fixture.core, &direct), (fixture.bare, &direct), (fixture.edge, &through_edge)];
        for ((address, request), median) in routes.into_iter().zip(&mut medians) {
            let pace = Pace::Closed(length(session) / (2 * TURNS));
            let load = session.load(address, 1, request.clone(), pace);
            let tally = session.measure(client::run(load)).await?;
            fixture.granted.set(fixture.granted.get() + tally.granted()?);
            *median += tally.latency_us(0.5) / f64::from(TURNS);
        }
    }
    let [direct, bare, edge] = medians;
    session.say(format_args!(
        "round {round} · a single claim: {direct:.0} µs at core, {bare:.0} µs through a bare Worker, {edge:.0} µs \
         through the edge"
    ));
    session.add(ADDED_RATIO, (edge - direct) / (bare - direct));
    session.add(DIRECT, direct);
    session.add(ADDED_BARE, bare - direct);
    session.add(ADDED, edge - direct);
    Ok(())
}
