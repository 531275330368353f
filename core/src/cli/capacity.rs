//! `claimgate capacity`: estimates an installation's size from measured figures; docs/capacity.md explains them.

use clap::Args;
use clap::builder::RangedI64ValueParser;
use serde::Serialize;

use super::client::CallError;
use super::printer::show;
use super::table;

/// Redis memory in bytes for a user with one claim, and for each further claim.
const USER_BYTES: f64 = 137.0;
const CLAIM_BYTES: f64 = 50.0;
/// Redis memory in bytes for the code of a claim.
const CODE_BYTES: f64 = 137.0;
/// Redis memory in bytes before the first claim, and for events waiting for SQL.
const BASE_BYTES: f64 = (12 << 20) as f64;
const BACKLOG_BYTES: f64 = (64 << 20) as f64;
/// Memory of a machine as a multiple of `maxmemory`: Redis needs more while it rewrites its append-only file.
const REWRITE_FACTOR: f64 = 1.5;
/// Processor time per claim in microseconds, of Redis and of core's HTTP threads: if all claims are for one
/// campaign, and if each is for a different one. Then the relay's processor time per row.
const REDIS_US: [f64; 2] = [3.7, 26.0];
const HTTP_US: [f64; 2] = [16.0, 25.0];
const RELAY_US: f64 = 5.0;
/// With claims spread over this many campaigns, a call to Redis decides only one claim.
const SPREAD_CAMPAIGNS: f64 = 1000.0;
/// Planned utilization of a processor: near full utilization queues grow without bound.
const UTILIZATION_MAX: f64 = 0.7;
/// The threads of a core that process claims.
const CORE_THREADS: f64 = 4.0;
/// Number of claims per second that one workerd process can reject.
const EDGE_REJECTIONS_PER_S: f64 = 11_900.0;
/// Size in bytes of a claim in SQLite with its feed entry, if user ids are UUIDs.
const ROW_BYTES: f64 = 284.0;
/// Size in bytes of a code in SQLite, with the index entries of the code and its claim.
const CODE_ROW_BYTES: f64 = 100.0;

/// `claimgate capacity`
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// Number of users who will claim
    #[arg(long, value_parser = RangedI64ValueParser::<u64>::new().range(1..))]
    users: u64,
    /// Peak number of claims per second, including those denied
    #[arg(long, value_parser = RangedI64ValueParser::<u64>::new().range(1..))]
    rate: u64,
    /// Number of claims granted by all campaigns that are open at the same time [default: one per user]
    #[arg(long, value_parser = RangedI64ValueParser::<u64>::new().range(1..))]
    claims: Option<u64>,
    /// Number of campaigns claimed from at the same time; each campaign is on one Redis server
    #[arg(long, default_value_t = 1, value_parser = RangedI64ValueParser::<u64>::new().range(1..))]
    campaigns: u64,
    /// Number of replicas that must have a claim before it is acknowledged
    #[arg(long, default_value_t = 0)]
    replicas: u32,
    /// Each granted claim gets a code
    #[arg(long)]
    codes: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Plan {
    /// Number of Redis servers that accept writes.
    redis_primaries: u64,
    /// Total number of Redis replicas.
    redis_replicas: u64,
    /// `maxmemory` of each Redis server, in MiB.
    redis_maxmemory_mib: u64,
    /// Memory of each Redis server's machine, in MiB.
    redis_machine_mib: u64,
    /// Processors that each Redis server uses at peak.
    redis_processors: f64,
    cores: u64,
    /// Processors of each core.
    core_processors: u64,
    /// workerd processes, if the edge is not on Cloudflare.
    edges: u64,
    /// Rows of claims in SQL, and their size in MiB.
    sql_rows: u64,
    sql_mib: u64,
    /// Seconds after the peak until SQL has all claims.
    sql_behind_s: u64,
    /// Requirements that no additional machine can meet.
    warnings: Vec<String>,
}

impl CapacityArgs {
    /// Prints the plan.
    pub fn run(&self) -> Result<(), CallError> {
        let plan = self.plan();
        let value = serde_json::to_value(&plan).map_err(std::io::Error::other)?;
        show(self.json, &value, || table::capacity(&value))
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
        let wanted = (busy / UTILIZATION_MAX).ceil().max(1.0);
        let primaries = wanted.min(self.campaigns as f64);
        if wanted > primaries {
            let most = UTILIZATION_MAX * 1e6 / redis_us * primaries;
            warnings.push(format!(
                "one campaign is on one Redis server: Redis decides about {most:.0} of {rate} claims per second, and the rest \
                 are queued or rejected unless the edge rejects them first"
            ));
        }
        let [code_bytes, code_row_bytes] = if self.codes { [CODE_BYTES, CODE_ROW_BYTES] } else { [0.0; 2] };
        let claim_bytes = users.min(claims) * USER_BYTES + (claims - users).max(0.0) * CLAIM_BYTES;
        let bytes = (claim_bytes + claims * code_bytes) / primaries;
        let maxmemory = bytes * 1.25 + BASE_BYTES + BACKLOG_BYTES;
        let core_us = a_claim(HTTP_US) + RELAY_US;
        let processors = (rate * core_us / 1e6 / UTILIZATION_MAX).ceil().max(1.0);
        let cores = (processors / CORE_THREADS).ceil().max(2.0);
        let relayed_per_s = UTILIZATION_MAX * 1e6 / RELAY_US;
        Plan {
            redis_primaries: whole(primaries),
            redis_replicas: whole(
                primaries * f64::from(self.replicas.saturating_add(u32::from(self.replicas > 0))),
            ),
            redis_maxmemory_mib: mib(maxmemory),
            redis_machine_mib: mib(maxmemory * REWRITE_FACTOR),
            redis_processors: (busy / primaries * 100.0).round() / 100.0,
            cores: whole(cores),
            core_processors: whole((processors / cores).ceil()),
            edges: whole((rate / EDGE_REJECTIONS_PER_S).ceil().max(1.0)),
            sql_rows: whole(claims),
            sql_mib: mib(claims * (ROW_BYTES + code_row_bytes)),
            sql_behind_s: whole((claims / relayed_per_s).ceil()),
            warnings,
        }
    }
}

fn mib(bytes: f64) -> u64 {
    whole((bytes / f64::from(1 << 20)).ceil())
}

/// Converts to an integer, saturating at the largest one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // no input is negative
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(users: u64, rate: u64, claims: Option<u64>, campaigns: u64, replicas: u32) -> Plan {
        CapacityArgs { users, rate, claims, campaigns, replicas, codes: false, json: false }.plan()
    }

    #[test]
    fn a_million_users_of_one_campaign_fit_on_one_redis_server() {
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
    fn codes_need_memory_and_space_for_each_claim() {
        let args = CapacityArgs {
            users: 1_000_000,
            rate: 1,
            claims: None,
            campaigns: 1,
            replicas: 0,
            codes: false,
            json: false,
        };
        let without = args.plan();
        let with = CapacityArgs { codes: true, ..args }.plan();
        // 137 and 100 bytes for each of a million claims; Redis' with a quarter as headroom.
        assert_eq!(
            (with.redis_maxmemory_mib - without.redis_maxmemory_mib, with.sql_mib - without.sql_mib),
            (163, 96)
        );
    }

    #[test]
    fn one_campaign_cannot_use_several_redis_servers() {
        let spread = plan(1_000_000, 100_000, None, 10_000, 1);
        assert_eq!((spread.redis_primaries, spread.redis_replicas), (4, 8), "{spread:?}");
        // 30 µs per claim, compared with 21 µs if all claims are for one campaign.
        assert_eq!((spread.cores, spread.core_processors), (2, 3), "{spread:?}");
        let one = plan(1_000_000, 100_000, None, 1, 1);
        assert_eq!((one.cores, one.core_processors), (2, 2), "{one:?}");
        assert!(spread.warnings.is_empty());
        let hot = plan(1_000_000, 1_000_000, None, 1, 1);
        assert_eq!((hot.redis_primaries, hot.redis_replicas), (1, 2));
        assert!(hot.warnings[0].contains("one Redis server"), "{hot:?}");
    }

    #[test]
    fn extreme_inputs_get_a_plan() {
        for (users, rate) in [(1, 1), (u64::MAX, u64::MAX)] {
            for claims in [None, Some(1), Some(u64::MAX)] {
                let plan = plan(users, rate, claims, u64::MAX, u32::MAX);
                assert!(plan.redis_primaries >= 1 && plan.cores >= 2 && plan.edges >= 1, "{plan:?}");
            }
        }
        assert!(plan(1, 1, Some(1000), 1, 0).redis_maxmemory_mib < 100);
    }
}
