//! The Worker under plain workerd: what an early refusal and a forwarded claim cost, against a bare Worker that says
//! hello, and one that passes the request on as it is. All in one process, in turn.

use std::cell::Cell;
use std::net::SocketAddr;
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

/// The group.
pub const GROUP: Group = Group {
    name: "edge",
    about: "the Worker under workerd: refusals and forwarded claims, beside a bare Worker's",
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
const HELLO: &Definition = &Definition::told("a bare Worker's hello world", Unit::PerSecond);
const SOLD_OUT: &Definition = &Definition::told("\"sold out\" at the edge", Unit::PerSecond);
const NOT_OPEN: &Definition = &Definition::told("\"not open\" at the edge", Unit::PerSecond);
const DIRECT: &Definition = &Definition::told("a lone claim at core, everysec", Unit::Microseconds);
const ADDED_BARE: &Definition = &Definition::told("a bare forwarder adds", Unit::Microseconds);
const ADDED: &Definition = &Definition::told("the edge adds", Unit::Microseconds);

/// workerd has one thread: more connections only wait in line.
const CONNECTIONS: usize = 64;
/// How long refusals and hello have turn about: so short that what the edge remembers outlives the others' turns, as in
/// a crowd that never pauses.
const TURN: Duration = Duration::from_millis(100);
/// Each round measures the three ways of a lone claim in this many turns.
const TURNS: u32 = 3;

/// A claim's user; the edge wants to be shown a token, which is signed once.
const USER: &str = "bench";

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    let workers = Workers::start(&server.core).await;
    let bench = Bench::prepare(&mut server, &workers).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        refusals(session, &bench, round).await?;
        forwarded(session, &bench, round).await?;
    }
    server.check(&bench.open, bench.granted.get()).await
}

/// What the loads are made of.
struct Bench {
    core: SocketAddr,
    edge: SocketAddr,
    bare: SocketAddr,
    token: String,
    sold_out: String,
    not_open: String,
    open: String,
    granted: Cell<u64>,
}

impl Bench {
    async fn prepare(server: &mut Server, workers: &Workers) -> anyhow::Result<Self> {
        let sold_out = server.campaign(json!({"total": 1})).await;
        let _ = server.core.claim(&sold_out, "winner", "key").await.expect(201);
        let not_open = server.campaign_opening(from_now(3_600)).await;
        let open = server.campaign(json!({"total": 1_000_000_000})).await;
        Ok(Self {
            core: server.address(),
            edge: workers.edge,
            bare: workers.bare,
            token: token(&server.core)?,
            sold_out,
            not_open,
            open,
            granted: Cell::new(0),
        })
    }

    /// A claim as the page sends its first try.
    fn first_try(&self, path: &str) -> Template {
        let headers = format!(
            "Authorization: Bearer {}\r\nIdempotency-Key: {{uuid}}\r\nClaimgate-Attempt: 1\r\n",
            self.token
        );
        Template::post(path, &headers, "{}")
    }

    fn claim_path(campaign: &str) -> String {
        format!("/v1/campaigns/{campaign}/claims")
    }
}

fn token(core: &Core) -> anyhow::Result<String> {
    let rules = TokenRules { issuer: "claimgate".to_owned(), audience: "claimgate".to_owned() };
    let tokens = UserTokens { key: core.data_file("user-jwt.key").parse()?, rules };
    Ok(tokens.mint(&USER.parse()?, clock::now(), 3_600)?)
}

/// Hello and the two refusals turn about: the same request to each, so that what differs is the Worker.
async fn refusals(session: &mut Session, bench: &Bench, round: u32) -> anyhow::Result<()> {
    let seed = session.seed();
    let load = |address, path: &str| Load {
        address,
        connections: CONNECTIONS,
        request: bench.first_try(path),
        seed,
        pace: Pace::Closed(TURN),
    };
    let loads = [
        load(bench.bare, "/"),
        load(bench.edge, &Bench::claim_path(&bench.sold_out)),
        load(bench.edge, &Bench::claim_path(&bench.not_open)),
    ];
    let turns = u32::try_from(length(session).as_millis() / (2 * TURN.as_millis()))?.max(1);
    let [hello, sold_out, not_open] = session.measure(client::alternate(loads, turns)).await?;
    hello.all(200)?;
    let refused = sold_out.all(409)?;
    ensure!(sold_out.sold_out == refused, "{} of {refused} refusals said sold out", sold_out.sold_out);
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

/// A lone claim at core, through the bare Worker, and through the edge: what each of the two adds to the median.
async fn forwarded(session: &mut Session, bench: &Bench, round: u32) -> anyhow::Result<()> {
    let direct = Template::claim_of(&bench.open, USER);
    let through_edge = bench.first_try(&Bench::claim_path(&bench.open));
    let mut medians = [0.0; 3];
    for _ in 0..TURNS {
        let ways = [(bench.core, &direct), (bench.bare, &direct), (bench.edge, &through_edge)];
        for ((address, request), median) in ways.into_iter().zip(&mut medians) {
            let pace = Pace::Closed(length(session) / (2 * TURNS));
            let load = Load { address, connections: 1, request: request.clone(), seed: session.seed(), pace };
            let tally = session.measure(client::run(load)).await?;
            bench.granted.set(bench.granted.get() + tally.granted()?);
            *median += tally.latency_us(0.5) / f64::from(TURNS);
        }
    }
    let [direct, bare, edge] = medians;
    session.say(format_args!(
        "round {round} · a lone claim: {direct:.0} µs at core, {bare:.0} µs through a bare Worker, {edge:.0} µs \
         through the edge"
    ));
    session.add(ADDED_RATIO, (edge - direct) / (bare - direct));
    session.add(DIRECT, direct);
    session.add(ADDED_BARE, bare - direct);
    session.add(ADDED, edge - direct);
    Ok(())
}
