//! Denials of a campaign that is sold out with nothing left, against the bare route.

use anyhow::ensure;
use serde_json::json;

use super::Group;
use super::http::{bare_claims, length};
use crate::bare;
use crate::budget::Cost;
use crate::client::{self, Load, Pace, Tally, Template};
use crate::figures::{Definition, Unit};
use crate::redis::Fsync;
use crate::server::{Batching, Server};
use crate::session::Session;

/// The group.
pub const GROUP: Group = Group {
    name: "soldout",
    about: "a limited campaign hammered until it is sold out, and its denials after that",
    figures: &[RATIO, DENIALS, BARE, P99],
    parts: &[Cost::of(0.5, 0.6, 2.3)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition = &Definition::at_least("sold-out denials ÷ (b)", Unit::Ratio, 0.9);
const DENIALS: &Definition = &Definition::told("(d) sold-out denials", Unit::PerSecond);
const BARE: &Definition = &Definition::told("(b) beside the denials", Unit::PerSecond);
const P99: &Definition = &Definition::told("(d) p99 of denials at top rate", Unit::Microseconds);

/// Units of a limited campaign, and claims made for them.
const TOTAL: u64 = 1000;
const CLAIMS: u64 = 5000;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let bare = bare::start().await?;
    let mut server = Server::start(Batching::Shipped, Fsync::Always).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let bare = bare_claims(session, &bare).await?;
        session.say(format_args!("round {round} · (b) bare route: {bare:.0} answers/s"));
        let denials = denials(session, &mut server).await?;
        session.say(format_args!(
            "round {round} · {}: {TOTAL} of {TOTAL} granted, then {:.0} denials/s, p99 {:.1} ms",
            server.name,
            denials.per_second(),
            denials.latency_us(0.99) / 1000.0
        ));
        session.add(RATIO, denials.per_second() / bare);
        session.add(DENIALS, denials.per_second());
        session.add(BARE, bare);
        session.add(P99, denials.latency_us(0.99));
    }
    Ok(())
}

/// Sells a campaign out, measures what follows, and looks whether a winner's retry still meets its claim.
async fn denials(session: &mut Session, server: &mut Server) -> anyhow::Result<Tally> {
    let limits = json!({"total": TOTAL, "per_user": 5, "per_user_per_day": 5});
    let campaign = server.campaign(limits).await;
    let won = server.core.claim(&campaign, "winner", "key").await.expect(201).json();
    sell_out(session, server, &campaign).await?;
    let tally = client::run(load(session, server, &campaign, Pace::Closed(length(session))));
    let tally = session.measure(tally).await?;
    let denied = tally.all(409)?;
    ensure!(tally.sold_out == denied, "{campaign}: {} of {denied} denials said sold out", tally.sold_out);
    let again = server.core.claim(&campaign, "winner", "key").await.expect(200).json();
    ensure!(won["claim"]["id"] == again["claim"]["id"], "{campaign}: a winner's retry met another claim");
    server.check(&campaign, TOTAL).await?;
    Ok(tally)
}

/// Many more claims than there are units: exactly as many are granted as are left after the first.
async fn sell_out(session: &mut Session, server: &Server, campaign: &str) -> anyhow::Result<()> {
    let tally = client::run(load(session, server, campaign, Pace::Count(CLAIMS))).await?;
    let granted = tally.statuses.get(&201).copied().unwrap_or(0);
    ensure!(
        granted == TOTAL - 1 && tally.sold_out == CLAIMS - granted,
        "{campaign}: {TOTAL} units, one given before; of {CLAIMS} claims {granted} were granted and {} sold out \
         (status, number): {:?}",
        tally.sold_out,
        tally.statuses
    );
    server.check(campaign, TOTAL).await
}

fn load(session: &mut Session, server: &Server, campaign: &str, pace: Pace) -> Load {
    Load {
        address: server.address(),
        connections: session.options.connections,
        request: Template::claim(campaign),
        seed: session.seed(),
        pace,
    }
}
