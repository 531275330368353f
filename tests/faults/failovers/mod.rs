//! Failovers of every kind under load, on Sentinel and on Cluster, with one replica that counts: nothing that was
//! acknowledged is lost, no limit is exceeded, no key is granted twice, no claim is refused wrongly. And what happens
//! without what keeps it so.

mod controls;
mod crowd;
mod event;
mod installation;
mod verdict;

use std::time::Duration;

use support::checker::Expect;
use support::heavy;
use support::only_on;
use support::redis_server::Kind as Server;
use support::rng::Rng;
use support::topology::OWN;

use crate::tally::{Row, say};

use self::crowd::{Campaign, Crowd};
use self::event::{Event, KINDS, Kind};
use self::installation::{Installation, Shape};
use self::verdict::{Verdict, checker, outage};

/// Failovers of each kind on each topology and server without `ROUNDS`: each takes some ten seconds, and `make test` has 25
/// minutes for all tests. `make soak` plays fifty.
const ROUNDS: usize = 1;

/// What came of the failovers of one kind.
#[derive(Default)]
struct Tally {
    verdict: Verdict,
    /// For each, how long no claim of a campaign that was hit was acknowledged.
    outages: Vec<Duration>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost() {
    only_on!(OWN, "it brings its own servers");
    let server = Server::asked();
    let _turn = heavy().await;
    tokio::join!(all_kinds(Shape::Sentinel, server), all_kinds(Shape::Cluster, server));
}

async fn all_kinds(shape: Shape, server: Server) {
    let row =
        Row::begin_on(server, &format!("{shape}: failovers of every kind under load, one replica counting"));
    let mut site = match Installation::start(shape, server, 1).await {
        Ok(site) => site,
        Err(why) => return row.skip(&why),
    };
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let mut rng = Rng::seeded(&format!("failovers, {}", site.name));
    let mut tallies = KINDS.map(|_| Tally::default());
    for round in 1..=rounds {
        for (number, kind) in KINDS.into_iter().enumerate() {
            row.fault();
            let (verdict, outage) =
                failover(&mut site, kind, rng.draw(), &format!("r{round}-{number}")).await;
            tallies[number].verdict += verdict;
            tallies[number].outages.push(outage);
        }
    }
    let mut operations = 0;
    for (kind, tally) in KINDS.into_iter().zip(&mut tallies) {
        operations += tally.verdict.acknowledged + tally.verdict.denied;
        say(&tally.line(&site.name, kind));
    }
    row.passed(operations, "acknowledged lost 0, over a limit 0, double 0, wrong denials 0");
}

/// One failover under load, and the judgement on its campaigns.
async fn failover(site: &mut Installation, kind: Kind, seed: u64, name: &str) -> (Verdict, Duration) {
    let event = Event::draw(kind, seed);
    eprintln!("{}, {name}: {event:?}, seed {seed}", site.name);
    site.all_replicas_count().await;
    let campaigns = Campaign::four(site, name).await;
    {
        let Installation { cores, topology, network, .. } = site;
        let crowd = Crowd::of(cores, &campaigns);
        let happens = async {
            crowd.until_acknowledged(event.after).await;
            event.play(topology, network, &campaigns[0].id).await;
            crowd.all_decide().await;
            crowd.over();
        };
        tokio::join!(happens, crowd.gather(seed));
    }
    let mut verdict = Verdict::default();
    for campaign in &campaigns {
        verdict += judge(site, campaign).await;
    }
    (verdict, outage(&campaigns[0]))
}

/// What callers were told first; then SQL, Redis and the cores among themselves.
async fn judge(site: &Installation, campaign: &Campaign) -> Verdict {
    let redis = site.redis(&campaign.id).await;
    let (cores, checker) = (site.cores.each_ref(), checker(campaign));
    checker.settle(&cores, &redis).await;
    let verdict = Verdict::of(campaign, &site.sql.claims(&campaign.id).await);
    assert!(verdict.is_clean(), "{}, {}: {verdict:?}", site.name, campaign.id);
    checker.judge(&cores, &site.sql, &redis, Expect::default()).await;
    verdict
}

impl Tally {
    fn line(&mut self, name: &str, kind: Kind) -> String {
        self.outages.sort_unstable();
        let (median, worst) = (self.outages[self.outages.len() / 2], self.outages[self.outages.len() - 1]);
        let Verdict { acknowledged, denied, unknown, lost, over, double, wrong } = self.verdict;
        format!(
            "  {name:16} {kind:16} {:3} failovers: {acknowledged} claims acknowledged, {denied} denied, {unknown} calls \
             unknown; lost {lost}, over {over}, double {double}, wrong denials {wrong}; decisions go on after {median:.1?} \
             (median), {worst:.1?} (worst)",
            self.outages.len(),
        )
    }
}
