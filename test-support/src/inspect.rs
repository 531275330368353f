//! Direct access to Redis, bypassing core, and snapshots of both stores.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisResult};

use crate::sql::Sql;
use crate::time_limits::SOON;
use crate::wait::{eventually, holds};

/// Opens a connection to a running Redis with a longer response timeout than the crate's default, because
/// other tests may slow Redis down.
pub async fn patient_connection(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(SOON));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await
}

/// Connections to core's Redis: one, or one to each primary of a cluster, by address.
#[derive(Debug, Clone)]
pub struct RedisView {
    nodes: Vec<(String, MultiplexedConnection)>,
}

/// A field or value of Redis.
pub type Bytes = Vec<u8>;

impl RedisView {
    /// Connects to a running Redis.
    pub async fn connect(url: &str) -> Result<Self, String> {
        let connection = patient_connection(url).await.map_err(|error| error.to_string())?;
        Ok(Self { nodes: vec![(url.to_owned(), connection)] })
    }

    /// Combines the views of a cluster's primaries, each with the address by which the other nodes name it.
    pub fn of_cluster(primaries: Vec<(String, Self)>) -> Self {
        let nodes = primaries.into_iter().flat_map(|(address, view)| {
            view.nodes.into_iter().map(move |(_, connection)| (address.clone(), connection))
        });
        Self { nodes: nodes.collect() }
    }

    /// Returns the server that has the keys of `campaign`.
    pub async fn node_of(&self, campaign: &str) -> Self {
        let (at, _) =
            self.routed::<u64>(redis::cmd("EXISTS").arg(key(campaign, "campaign"))).await.expect("EXISTS");
        Self { nodes: vec![self.nodes[at].clone()] }
    }

    /// Runs `command`, following a redirect to another node; returns the index of that node and the reply.
    async fn routed<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<(usize, T)> {
        let first = command.query_async(&mut self.nodes[0].1.clone()).await;
        let Err(error) = first else { return first.map(|reply| (0, reply)) };
        let named = error
            .redirect_node()
            .and_then(|(address, _)| self.nodes.iter().position(|(name, _)| name == address));
        let Some(at) = named else { return Err(error) };
        command.query_async(&mut self.nodes[at].1.clone()).await.map(|reply| (at, reply))
    }

    /// Runs a prepared command, for arguments that are not text.
    pub async fn run<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.routed(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}")).1
    }

    /// Runs a command without a key on every primary.
    pub async fn query_all<T: FromRedisValue>(&self, words: &[&str]) -> Vec<T> {
        let replies = self.nodes.iter().map(|node| async move {
            let one = Self { nodes: vec![node.clone()] };
            one.query(words).await
        });
        join_all(replies).await
    }

    /// Runs a command on a campaign's keys; on a single server, any command.
    pub async fn query<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_query(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Runs a command on a campaign's keys; returns an error instead of failing the test.
    pub async fn try_query<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, String> {
        let has_key = || words.iter().any(|word| word.starts_with("cg:") && !word.contains('*'));
        assert!(self.nodes.len() == 1 || has_key(), "{words:?}: on which node? `query_all`, or `node_of`");
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        self.routed(&command).await.map(|(_, reply)| reply).map_err(|error| error.to_string())
    }

    /// Returns a number of the campaign's state, such as `taken`.
    pub async fn counter(&self, campaign: &str, field: &str) -> u64 {
        let number = self.state(campaign).await.and_then(|state| state.get(field).copied());
        number.unwrap_or_else(|| panic!("no number {field} of {campaign}"))
    }

    /// Returns all numbers of the campaign's state; `None` if it has no state.
    pub async fn state(&self, campaign: &str) -> Option<BTreeMap<&'static str, u64>> {
        let bytes: Option<Bytes> = self.query(&["HGET", &key(campaign, "users"), "."]).await;
        numbers(&bytes?)
    }

    /// Returns the records of the campaign's users and its state, without the field that core rewrites after
    /// a reconnect.
    pub async fn users(&self, campaign: &str) -> BTreeMap<Bytes, Bytes> {
        let mut users: BTreeMap<Bytes, Bytes> = self.query(&["HGETALL", &key(campaign, "users")]).await;
        if let Some(state) = users.get_mut(&b"."[..]) {
            let place = places(state).and_then(|mut places| places.remove("days_until"));
            state[place.expect("a state")].fill(0);
        }
        users
    }

    /// Makes every rewrite of the append-only file fail, with a directory in the place of the next base file. Returns the
    /// directory.
    pub async fn block_rewrites(&self) -> PathBuf {
        let [_, directory]: [String; 2] = self.query(&["CONFIG", "GET", "dir"]).await;
        let files = Path::new(&directory).join("appendonlydir");
        let bases = fs::read_dir(&files).expect("an append-only file").filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_prefix("appendonly.aof.")?.strip_suffix(".base.rdb")?.parse::<u32>().ok()
        });
        let next = files.join(format!("appendonly.aof.{}.base.rdb", 1 + bases.max().expect("a base file")));
        fs::create_dir(&next).expect("a directory");
        next
    }

    /// Has the server rewrite its append-only file, and waits for this status: `ok` or `err`.
    pub async fn rewrite(&self, status: &str) {
        self.query::<String>(&["BGREWRITEAOF"]).await;
        eventually(SOON, || async {
            let info: String = self.query(&["INFO", "persistence"]).await;
            let has = |line: &str| info.lines().any(|other| other == line);
            let has_ended = has("aof_rewrite_in_progress:0") && has("aof_rewrite_scheduled:0");
            holds(has_ended && has(&format!("aof_last_bgrewrite_status:{status}")), || info.clone())
        })
        .await;
    }

    /// Overwrites a number in the campaign's state, bypassing core's scripts.
    pub async fn set_counter(&self, campaign: &str, field: &str, number: u64) {
        let users = key(campaign, "users");
        let mut bytes: Bytes = self.query(&["HGET", &users, "."]).await;
        let place = places(&bytes).and_then(|mut places| places.remove(field)).expect("a number");
        let width = place.len();
        bytes[place].copy_from_slice(&number.to_be_bytes()[8 - width..]);
        self.run::<()>(redis::cmd("HSET").arg(users).arg(".").arg(bytes)).await;
    }

    /// Returns the number of outbox entries; 1 is only the epoch marker.
    pub async fn outbox_entries(&self, campaign: &str) -> u64 {
        self.query(&["XLEN", &key(campaign, "outbox")]).await
    }

    /// Waits until everything in the outbox has been relayed.
    pub async fn relayed(&self, campaign: &str, within: Duration) {
        eventually(within, || async {
            let entries = self.outbox_entries(campaign).await;
            holds(entries == 1, || format!("{entries} entries in the outbox of {campaign}"))
        })
        .await;
    }

    /// Waits until the campaign has left Redis.
    pub async fn evicted(&self, campaign: &str) {
        eventually(SOON, || async {
            let left: u64 =
                self.query(&["EXISTS", &key(campaign, "campaign"), &key(campaign, "codes")]).await;
            holds(left == 0, || format!("{left} keys of {campaign} are left"))
        })
        .await;
    }

    /// Returns the number of claims that were moved from their users' records to the claims key, without the
    /// epoch marker.
    pub async fn moved_claims(&self, campaign: &str) -> u64 {
        self.query::<u64>(&["HLEN", &key(campaign, "claims")]).await - 1
    }

    /// Returns the campaign's holds in order of expiry, each as the member of the set and when it expires, in
    /// milliseconds. The epoch marker is left out.
    pub async fn due_holds(&self, campaign: &str) -> Vec<(Vec<u8>, i64)> {
        self.query(&["ZRANGE", &key(campaign, "holds"), "1", "+inf", "BYSCORE", "WITHSCORES"]).await
    }

    /// Returns the number of script calls so far, on all primaries.
    pub async fn script_calls(&self) -> u64 {
        self.calls(&["evalsha", "fcall"]).await
    }

    /// Returns the number of calls of `commands` so far, on all primaries; of all commands if the list is
    /// empty.
    pub async fn calls(&self, commands: &[&str]) -> u64 {
        let infos: Vec<String> = self.query_all(&["INFO", "commandstats"]).await;
        let calls = infos.iter().flat_map(|info| info.lines()).filter_map(|line| {
            let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let wanted = commands.is_empty() || commands.contains(&command);
            rest.split(',').next()?.parse::<u64>().ok().filter(|_| wanted)
        });
        calls.sum()
    }

    /// Returns the process id of the only server.
    pub async fn pid(&self) -> u32 {
        let pids = self.pids().await;
        assert_eq!(pids.len(), 1, "the process id of which node?");
        pids[0]
    }

    /// Returns the process ids of all primaries.
    pub async fn pids(&self) -> Vec<u32> {
        let infos: Vec<String> = self.query_all(&["INFO", "server"]).await;
        let id = |info: &String| {
            let line = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("process_id");
            line.trim().parse().expect("a process id")
        };
        infos.iter().map(id).collect()
    }
}

/// The numbers of a state after its identity, with their widths in bytes. `admin_state` is 1 on, 2 paused, 3
/// ended, 4 suspended.
const STATE: [(&str, usize); 17] = [
    ("admin_state", 1),
    ("sequence", 6),
    ("taken", 6),
    ("events", 6),
    ("backlog", 6),
    ("loaded_epoch", 5),
    ("next_due", 6),
    ("starts_at", 6),
    ("ends_at", 6),
    ("total", 5),
    ("per_user", 5),
    ("per_user_per_day", 5),
    ("per_claim", 5),
    ("hold_ms", 6),
    ("pass_until", 6),
    ("version", 6),
    ("days_until", 6),
];

/// Returns the byte range of each number in a state; `None` if `bytes` is not a state.
fn places(bytes: &[u8]) -> Option<BTreeMap<&'static str, Range<usize>>> {
    let mut at = 1 + usize::from(*bytes.first()?);
    let mut places = BTreeMap::from([("epoch", 1..6)]);
    for (name, width) in STATE {
        places.insert(name, at..at + width);
        at += width;
    }
    (at <= bytes.len()).then_some(places)
}

/// Returns the numbers of a state, which is stored at `.` among a campaign's users; `None` if the bytes are
/// not a state.
pub fn numbers(state: &[u8]) -> Option<BTreeMap<&'static str, u64>> {
    places(state)?.into_iter().map(|(name, place)| Some((name, number(state.get(place)?)))).collect()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Length of a claim's record, in bytes.
const CLAIM_BYTES: usize = 43;

/// Returns the last day on which a user claimed, the units of that day, and all units. These numbers come
/// from the header of the user's record or, without a header, from its claims.
pub fn user_counters(record: &[u8]) -> (u64, u64, u64) {
    if !record.len().is_multiple_of(CLAIM_BYTES) {
        return (number(&record[..3]), number(&record[3..8]), number(&record[8..13]));
    }
    let claims = || record.chunks(CLAIM_BYTES);
    let day_of = |claim: &[u8]| number(&claim[40..]);
    let units = |claim: &[u8]| if claim[25] <= 2 { number(&claim[21..25]) } else { 0 };
    let day = claims().map(day_of).max().unwrap_or(0);
    (day, claims().filter(|claim| day_of(claim) == day).map(units).sum(), claims().map(units).sum())
}

/// Returns the name of the campaign's key for `what`.
pub fn key(campaign: &str, what: &str) -> String {
    let what = if what == "outbox" { "outbox7" } else { what };
    format!("cg:{{{campaign}}}:{what}")
}

/// Everything that Redis and SQL store for a campaign: equal before and after a call that must change
/// nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    campaign: BTreeMap<String, Bytes>,
    users: BTreeMap<Bytes, Bytes>,
    claims: BTreeMap<Bytes, Bytes>,
    holds: Vec<(Bytes, String)>,
    outbox: u64,
    sql: Vec<String>,
}

impl Snapshot {
    /// Takes a snapshot once the outbox is empty, so that the relay's own work does not show up.
    pub async fn take(redis: &RedisView, sql: &Sql, campaign: &str) -> Self {
        redis.relayed(campaign, SOON).await;
        Self {
            campaign: redis.query(&["HGETALL", &key(campaign, "campaign")]).await,
            users: redis.users(campaign).await,
            claims: redis.query(&["HGETALL", &key(campaign, "claims")]).await,
            holds: redis.query(&["ZRANGE", &key(campaign, "holds"), "0", "-1", "WITHSCORES"]).await,
            outbox: redis.outbox_entries(campaign).await,
            sql: sql.everything().await,
        }
    }
}
