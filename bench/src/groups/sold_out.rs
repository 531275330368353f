//! Denials of a sold-out campaign, compared with the bare route.

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

pub const GROUP: Group = Group {
    name: "soldout",
    about: "a limited campaign until it is sold out, then its denials",
    figures: &[RATIO, DENIALS, BARE, P99],
    parts: &[Cost::of(0.5, 0.6, 2.3)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition = &Definition::at_least("sold-out denials ÷ (b)", Unit::Ratio, 0.9);
const DENIALS: &Definition = &Definition::info("(d) sold-out denials", Unit::PerSecond);
const BARE: &Definition = &Definition::info("(b), same rounds", Unit::PerSecond);
const P99: &Definition = &Definition::info("(d) p99 of denials at top rate", Unit::Microseconds);

/// Number of units of a limited campaign, and of claims sent to sell all units.
const TOTAL: u64 = 1000;
const CLAIMS: u64 = 5000;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let bare = bare::start().await?;
    let mut server = Server::start(Batching::Shipped, Fsync::Always).await?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let bare = bare_claims(session, &bare).await?;
        session.say(format_args!("round {round} · (b) bare route: {bare:.0} responses/s"));
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

/// Sends claims until a campaign is sold out, then measures its denials. Checks that a winner's retry still
/// returns its claim.
async fn denials(session: &mut Session, server: &mut Server) -> anyhow::Result<Tally> {
    let limits = json!({"total": TOTAL, "per_user": 5, "per_user_per_day": 5});
    let campaign = server.campaign(limits).await;
    let first = server.core.claim(&campaign, "winner", "key").await.expect(201).json();
    sell_out(session, server, &campaign).await?;
    let tally = client::run(load(session, server, &campaign, Pace::Closed(length(session))));
    let tally = session.measure(tally).await?;
    let denied = tally.all(409)?;
    ensure!(
        tally.sold_out == denied,
        "{campaign}: only {} of {denied} denials were `sold_out`",
        tally.sold_out
    );
    let retry = server.core.claim(&campaign, "winner", "key").await.expect(200).json();
    ensure!(
        first["claim"]["id"] == retry["claim"]["id"],
        "{campaign}: a winner's retry returned a different claim"
    );
    server.check(&campaign, TOTAL).await?;
    Ok(tally)
}

/// Sends many more claims than there are units; exactly the units that the first claim left must be granted.
async fn sell_out(session: &mut Session, server: &Server, campaign: &str) -> anyhow::Result<()> {
    let tally = client::run(load(session, server, campaign, Pace::Count(CLAIMS))).await?;
    let granted = tally.statuses.get(&201).copied().unwrap_or(0);
    ensure!(
        granted == TOTAL - 1 && tally.sold_out == CLAIMS - granted,
        "{campaign}: {TOTAL} units, one already granted; of {CLAIMS} claims {granted} were granted and {} `sold_out` \
         (status, number): {:?}",
        tally.sold_out,
        tally.statuses
    );
    server.check(campaign, TOTAL).await
}

fn load(session: &mut Session, server: &Server, campaign: &str, pace: Pace) -> Load {
    session.load(server.address(), session.options.connections, Template::claim(campaign), pace)
}
