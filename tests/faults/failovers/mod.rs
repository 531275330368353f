//! Failovers of every kind under load, on Sentinel and Cluster, with one required replica. No acknowledged
//! claim is lost, no limit is exceeded, no key is granted twice, and no claim is denied wrongly. `controls`
//! shows the failures without this protection.

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

/// Number of failovers of each kind on each topology and server, unless `ROUNDS` is set. A failover takes
/// about ten seconds, and `make test` has 25 minutes for all tests. `make soak` runs fifty.
const ROUNDS: usize = 1;

/// Number of times that a failover is repeated if it promoted a server outside the set.
const TRIES_MAX: usize = 3;

/// The results of the failovers of one kind.
#[derive(Default)]
struct Tally {
    verdict: Verdict,
    /// For each failover, how long no claim of an affected campaign was acknowledged.
    outages: Vec<Duration>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost() {
    only_on!(OWN, "it starts its own servers");
    let server = Server::from_env();
    let _turn = heavy().await;
    tokio::join!(all_kinds(Shape::Sentinel, server), all_kinds(Shape::Cluster, server));
}

async fn all_kinds(shape: Shape, server: Server) {
    let row =
        Row::begin_on(server, &format!("{shape}: failovers of every kind under load, one replica required"));
    let Some(mut site) = row.needs(Installation::start(shape, server, 1).await) else { return };
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let mut rng = Rng::seeded(&format!("failovers, {}", site.name));
    let mut tallies = KINDS.map(|_| Tally::default());
    for round in 1..=rounds {
        for (number, kind) in KINDS.into_iter().enumerate() {
            row.fault();
            let (verdict, outage) =
                failover(&mut site, kind, rng.next_number(), &format!("r{round}-{number}")).await;
            tallies[number].verdict += verdict;
            tallies[number].outages.push(outage);
        }
    }
    let mut operations = 0;
    for (kind, tally) in KINDS.into_iter().zip(&mut tallies) {
        operations += tally.verdict.acknowledged + tally.verdict.denied;
        say(&tally.line(&site.name, kind));
    }
    row.passed(operations, "0 acknowledged claims lost, 0 over a limit, 0 double, 0 wrong denials");
}

/// Runs one failover under load and checks its campaigns. On a busy machine a replica may lag behind for so
/// long that it leaves the set, and still be promoted. After that, no claim is acknowledged until an operator
/// accepts the loss. Core is not at fault, so the failover is repeated.
async fn failover(site: &mut Installation, kind: Kind, seed: u64, name: &str) -> (Verdict, Duration) {
    for again in 0..TRIES_MAX {
        if let Some(judged) = try_failover(site, kind, seed, &format!("{name}-{again}")).await {
            return judged;
        }
        say(&format!(
            "  {}, {name}: a replica outside the set was promoted; its loss was accepted",
            site.name
        ));
    }
    panic!("a replica outside the set was promoted {TRIES_MAX} times");
}

/// Runs one failover; returns `None` if a server outside the set was promoted.
async fn try_failover(
    site: &mut Installation,
    kind: Kind,
    seed: u64,
    name: &str,
) -> Option<(Verdict, Duration)> {
    let event = Event::choose(kind, seed);
    eprintln!("{}, {name}: {event:?}, seed {seed}", site.name);
    site.all_replicas_count().await;
    let campaigns = Campaign::four(site, name).await;
    let loss_accepted = {
        let Installation { cores, topology, network, .. } = site;
        let crowd = Crowd::of(cores, &campaigns);
        let happens = async {
            crowd.until_acknowledged(event.after).await;
            event.play(topology, network, &campaigns[0].id).await;
            let loss_accepted = crowd.all_decide().await;
            crowd.stop();
            loss_accepted
        };
        tokio::join!(happens, crowd.run(seed)).0
    };
    if loss_accepted {
        return None;
    }
    let mut verdict = Verdict::default();
    for campaign in &campaigns {
        verdict += judge(site, campaign).await;
    }
    Some((verdict, outage(&campaigns[0])))
}

/// Checks the callers' responses first; then compares SQL, Redis and the cores.
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
             unknown; lost {lost}, over {over}, double {double}, wrong denials {wrong}; decisions continue after {median:.1?} \
             (median), {worst:.1?} (worst)",
            self.outages.len(),
        )
    }
}
