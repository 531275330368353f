//! Random failovers, reproducible from a seed.

use std::fmt;
use std::time::Duration;

use support::network::Network;
use support::process::{Signal, signal_pid};
use support::rng::Rng;
use tokio::time::sleep;

use super::installation::Topology;

/// The kinds of failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    PrimaryKilled,
    PrimaryStalled,
    PrimaryPartitioned,
    ReplicaKilled,
    ByHand,
}

/// All kinds, in the order in which the test runs them.
pub const KINDS: [Kind; 5] =
    [Kind::PrimaryKilled, Kind::PrimaryStalled, Kind::PrimaryPartitioned, Kind::ReplicaKilled, Kind::ByHand];

/// One failover.
#[derive(Debug, Clone)]
pub struct Event {
    pub kind: Kind,
    /// Number of acknowledged claims after which the failover begins.
    pub after: usize,
    /// Number of replicas whose replication is delayed until the failover ends.
    slowed: usize,
    late: Duration,
    /// Index of the replica that is killed.
    replica: usize,
    /// Also partitions the primary from callers, or forces a manual failover without waiting for the primary.
    hard: bool,
    /// Duration of the fault after the promotion.
    lasts: Duration,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PrimaryKilled => "primary killed",
            Self::PrimaryStalled => "primary stalled",
            Self::PrimaryPartitioned => "primary partitioned",
            Self::ReplicaKilled => "replica killed",
            Self::ByHand => "manual failover",
        })
    }
}

impl Event {
    /// Chooses the failover of this seed.
    pub fn choose(kind: Kind, seed: u64) -> Self {
        let mut rng = Rng::of(seed);
        let mut upto = |most: u64| rng.within(0, most);
        Self {
            kind,
            after: usize::try_from(30 + upto(150)).expect("a small number"),
            slowed: usize::try_from(upto(2)).expect("a small number"),
            late: Duration::from_millis(upto(30)),
            replica: usize::try_from(upto(1)).expect("a small number"),
            hard: upto(1) == 1,
            lasts: Duration::from_millis(upto(1000)),
        }
    }

    /// Runs the failover on the primary of `campaign`; waits until all servers have recovered.
    pub async fn play(&self, topology: &mut Topology, network: &Network, campaign: &str) {
        let primary = topology.primary_of(campaign).await;
        let replicas = topology.replicas_of(primary);
        for replica in replicas.iter().take(self.slowed) {
            network.slow_replication(*replica, self.late);
        }
        match self.kind {
            Kind::PrimaryKilled => {
                topology.server(primary).process().kill();
                topology.promoted_after(campaign, primary).await;
                sleep(self.lasts).await;
                topology.server(primary).kill_and_restart().await;
            }
            Kind::PrimaryStalled => {
                let pid = topology.server(primary).process().pid();
                signal_pid(pid, Signal::STOP);
                topology.promoted_after(campaign, primary).await;
                sleep(self.lasts).await;
                signal_pid(pid, Signal::CONT);
            }
            Kind::PrimaryPartitioned => {
                network.cut_off(primary);
                if self.hard {
                    network.out_of_reach(primary);
                }
                topology.promoted_after(campaign, primary).await;
                sleep(self.lasts).await;
            }
            Kind::ReplicaKilled => {
                let replica = topology.server(replicas[self.replica % replicas.len()]);
                replica.process().kill();
                sleep(self.lasts).await;
                replica.kill_and_restart().await;
            }
            Kind::ByHand => topology.fail_over(campaign, primary, self.hard).await,
        }
        network.mend();
        topology.settled().await;
    }
}
