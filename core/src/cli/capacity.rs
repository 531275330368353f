//! `claimgate capacity`: what an installation needs, from figures that were measured. docs/capacity.md says which and how.

use clap::Args;
use serde::Serialize;

use super::client::CallError;
use super::printer::show;
use super::table;

/// Redis' memory for a user with one claim, in bytes, and for each further claim.
const USER_BYTES: f64 = 137.0;
const CLAIM_BYTES: f64 = 50.0;
/// Redis' memory before there is any claim, and for events that wait for SQL, in bytes.
const BASE_BYTES: f64 = (12 << 20) as f64;
const BACKLOG_BYTES: f64 = (64 << 20) as f64;
/// Of `maxmemory`: what a machine must have besides, while Redis rewrites its append-only file beside claims.
const REWRITE: f64 = 1.5;
/// Processor time for a claim, in microseconds, where one campaign takes all, and where each is of another one: of Redis, and of
/// core's HTTP threads. And of the relay for a row.
const REDIS_US: [f64; 2] = [3.7, 26.0];
const HTTP_US: [f64; 2] = [16.0, 25.0];
const RELAY_US: f64 = 5.0;
/// So many campaigns take turns that a call to Redis decides one claim.
const SPREAD_CAMPAIGNS: f64 = 1000.0;
/// How much of a processor is planned with: queues grow without bound near the whole of it.
const USED_MAX: f64 = 0.7;
/// The threads of a core that answer claims.
const CORE_THREADS: f64 = 4.0;
/// Refusals a second by one workerd process.
const EDGE_REFUSALS: f64 = 11_900.0;
/// A claim in SQLite with its place in the feed, in bytes, with UUIDs for users.
const ROW_BYTES: f64 = 284.0;

/// `claimgate capacity`
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// How many users will claim
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    users: u64,
    /// The most claims a second, the refused ones included
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// How many claims will be granted in all campaigns that are open at a time [default: one for each user]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    claims: Option<u64>,
    /// How many campaigns the claims come for at the same time; a campaign is always on one Redis server
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    campaigns: u64,
    /// How many replicas must have a claim before it is acknowledged
    #[arg(long, default_value_t = 0)]
    replicas: u32,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

/// What is needed.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Plan {
    /// Redis servers that take writes.
    redis_primaries: u64,
    /// Redis servers beside them.
    redis_replicas: u64,
    /// `maxmemory` of each, in MiB.
    redis_maxmemory_mib: u64,
    /// Memory of a machine that runs one of them, in MiB.
    redis_machine_mib: u64,
    /// Processors that each of them uses at the peak.
    redis_processors: f64,
    /// Cores.
    cores: u64,
    /// Processors of each.
    core_processors: u64,
    /// workerd processes, where the edge is not on Cloudflare.
    edges: u64,
    /// Rows of claims in SQL, and their size in MiB.
    sql_rows: u64,
    sql_mib: u64,
    /// Seconds until SQL has all claims, once the peak is over.
    sql_behind_s: u64,
    /// What does not fit whatever is added.
    warnings: Vec<String>,
}

impl CapacityArgs {
    /// Prints the plan.
    pub fn run(&self) -> Result<(), CallError> {
        let plan = self.plan();
        let value = serde_json::to_value(&plan).map_err(std::io::Error::other)?;
        show(self.json, &value, || table::capacity(&value))?;
        Ok(())
    }

    #[allow(clippy::cast_precision_loss)] // far below 2^53, or so large that it does not matter
    fn plan(&self) -> Plan {
        let (users, rate) = (self.users as f64, self.rate as f64);
        let claims = self.claims.unwrap_or(self.users).max(1) as f64;
        let spread = ((self.campaigns - 1) as f64 / SPREAD_CAMPAIGNS).min(1.0);
        let a_claim = |[hot, cold]: [f64; 2]| hot + (cold - hot) * spread;
        let redis_us = a_claim(REDIS_US);
        let busy = rate * redis_us / 1e6;
        let mut warnings = Vec::new();
        let wanted = (busy / USED_MAX).ceil().max(1.0);
        let primaries = wanted.min(self.campaigns as f64);
        if wanted > primaries {
            let most = USED_MAX * 1e6 / redis_us * primaries;
            warnings.push(format!(
                "one campaign is on one Redis server, which decides some {most:.0} claims a second: of {rate} the others wait \
                 or are refused, unless the edge refuses them"
            ));
        }
        let bytes = (users.min(claims) * USER_BYTES + (claims - users).max(0.0) * CLAIM_BYTES) / primaries;
        let maxmemory = bytes * 1.25 + BASE_BYTES + BACKLOG_BYTES;
        let core_us = a_claim(HTTP_US) + RELAY_US;
        let processors = (rate * core_us / 1e6 / USED_MAX).ceil().max(1.0);
        let cores = (processors / CORE_THREADS).ceil().max(2.0);
        let relayed_a_second = USED_MAX * 1e6 / RELAY_US;
        Plan {
            redis_primaries: whole(primaries),
            redis_replicas: whole(
                primaries * f64::from(self.replicas.saturating_add(u32::from(self.replicas > 0))),
            ),
            redis_maxmemory_mib: mib(maxmemory),
            redis_machine_mib: mib(maxmemory * REWRITE),
            redis_processors: (busy / primaries * 100.0).round() / 100.0,
            cores: whole(cores),
            core_processors: whole((processors / cores).ceil()),
            edges: whole((rate / EDGE_REFUSALS).ceil().max(1.0)),
            sql_rows: whole(claims),
            sql_mib: mib(claims * ROW_BYTES),
            sql_behind_s: whole((claims / relayed_a_second).ceil()),
            warnings,
        }
    }
}

fn mib(bytes: f64) -> u64 {
    whole((bytes / f64::from(1 << 20)).ceil())
}

/// As large as it may be where it does not fit.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // what is given is never negative
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(users: u64, rate: u64, claims: Option<u64>, campaigns: u64, replicas: u32) -> Plan {
        CapacityArgs { users, rate, claims, campaigns, replicas, json: false }.plan()
    }

    #[test]
    fn a_million_users_of_one_campaign_fit_on_one_redis() {
        let plan = plan(1_000_000, 50_000, None, 1, 0);
        assert_eq!(
            (plan.redis_primaries, plan.redis_replicas, plan.cores, plan.core_processors),
            (1, 0, 2, 1)
        );
        assert!((200..=260).contains(&plan.redis_maxmemory_mib), "{plan:?}");
        assert_eq!((plan.sql_rows, plan.sql_behind_s), (1_000_000, 8));
        assert!(plan.warnings.is_empty(), "{plan:?}");
        assert!(plan.redis_machine_mib > plan.redis_maxmemory_mib);
    }

    #[test]
    fn many_campaigns_need_more_redis_servers_and_one_cannot_have_them() {
        let spread = plan(1_000_000, 100_000, None, 10_000, 1);
        assert_eq!((spread.redis_primaries, spread.redis_replicas), (4, 8), "{spread:?}");
        // 30 µs a claim, where claims of one campaign take 21.
        assert_eq!((spread.cores, spread.core_processors), (2, 3), "{spread:?}");
        let one = plan(1_000_000, 100_000, None, 1, 1);
        assert_eq!((one.cores, one.core_processors), (2, 2), "{one:?}");
        assert!(spread.warnings.is_empty());
        let hot = plan(1_000_000, 1_000_000, None, 1, 1);
        assert_eq!((hot.redis_primaries, hot.redis_replicas), (1, 2));
        assert!(hot.warnings[0].contains("one Redis server"), "{hot:?}");
    }

    #[test]
    fn whatever_is_asked_is_answered() {
        for (users, rate) in [(1, 1), (u64::MAX, u64::MAX)] {
            for claims in [None, Some(1), Some(u64::MAX)] {
                let plan = plan(users, rate, claims, u64::MAX, u32::MAX);
                assert!(plan.redis_primaries >= 1 && plan.cores >= 2 && plan.edges >= 1, "{plan:?}");
            }
        }
        assert!(plan(1, 1, Some(1000), 1, 0).redis_maxmemory_mib < 100);
    }
}
