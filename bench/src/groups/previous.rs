//! The edge's cost of a claim compared with the previous version's edge: claims with HS256 tokens through both
//! Workers, alternately, at one core of this version.

use std::path::PathBuf;

use serde_json::json;

use super::Group;
use super::edge::claim_path;
use super::tokens::{Loads, Spent, USERS, secret_tokens};
use crate::budget::Cost;
use crate::client::Template;
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;
use crate::users::Uuids;
use crate::workers::Workers;

pub const GROUP: Group = Group {
    name: "previous",
    about: "claims through this version's Worker and the previous version's, with HS256 tokens",
    figures: &[RATIO],
    parts: &[Cost::of(1.5, 0.5, 0.8)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition =
    &Definition::at_most("edge's CPU per claim, HS256 ÷ previous version", Unit::Ratio, 1.05);

/// The directory that `scripts/previous.sh edge` prints.
const PREVIOUS: &str = "CLAIMGATE_PREVIOUS_EDGE";

/// Returns the directory of the previous version's edge, if it was built.
pub fn directory() -> Option<PathBuf> {
    std::env::var_os(PREVIOUS).filter(|path| !path.is_empty()).map(PathBuf::from)
}

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let Some(previous) = directory() else {
        session.say(format_args!("not measured: {PREVIOUS} is not set"));
        while session.next_round().is_some() {}
        return Ok(());
    };
    let mut server = Server::start(Batching::Shipped, Fsync::EverySecond).await?;
    let campaign = server.campaign(json!({"total": 1_000_000_000})).await;
    let users = Uuids::of(session.seed()).texts(USERS);
    let claims = Template::first_try(&claim_path(&campaign), secret_tokens(&server.core, &users));
    let secret = server.core.data_file("user-jwt.key");
    let keys = [("USER_JWT_KEY", secret.as_str())];
    let loads = Loads {
        workers: [
            Workers::start(&server.core, "this-version", &keys).await,
            Workers::start_at(&previous, &server.core, "previous-version", &keys).await,
        ],
        requests: [claims.clone(), claims],
    };
    // The first turn is only warm-up.
    let mut granted: u64 = loads.turn(session).await?.iter().map(|spent| spent.claims).sum();
    while let Some(round) = session.next_round() {
        session.begin_round();
        let spent = loads.turns(session).await?;
        let [this, previous] = spent.map(Spent::us_per_claim);
        session.say(format_args!(
            "round {round} · CPU time of the edge per claim: this version {this:.0} µs, previous version {previous:.0}"
        ));
        session.add(RATIO, this / previous);
        granted += spent.iter().map(|spent| spent.claims).sum::<u64>();
    }
    server.check(&campaign, granted).await
}
