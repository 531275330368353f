//! Many claims at once, and what must hold after them whatever happened meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;

use crate::client::record;
use crate::process::{Signal, signal_pid};
use crate::wait::{SOON, eventually, holds};
use crate::{Core, Reply};

/// One claim to be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wish {
    /// The user that claims.
    pub user: String,
    /// Its idempotency key.
    pub key: String,
    /// Units asked for.
    pub units: u32,
}

/// What became of a wish, as its caller was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// 201 or 200: the claim's id and sequence; whether it was a replay.
    Claimed {
        /// The claim's id.
        id: String,
        /// Its place.
        sequence: u64,
        /// 200 instead of 201.
        replayed: bool,
        /// What was left after it; `None` also for a claim that was asked for again.
        remaining: Option<u64>,
    },
    /// A denial: its code, and what was left by it.
    Denied {
        /// The problem's code.
        code: String,
        /// The denial's `remaining`.
        remaining: Option<u64>,
    },
    /// 503, or no answer.
    Unknown,
}

impl Seen {
    /// What a claim's answer says; `None` for 503.
    pub fn of(reply: &Reply) -> Option<Self> {
        match reply.status {
            200 | 201 => {
                let body = reply.json();
                Some(Self::Claimed {
                    id: body["claim"]["id"].as_str().expect("an id").to_owned(),
                    sequence: body["claim"]["sequence"].as_u64().expect("a sequence"),
                    replayed: reply.status == 200,
                    remaining: body["remaining"].as_u64(),
                })
            }
            403 | 409 | 422 => {
                Some(Self::Denied { code: reply.code(), remaining: reply.json()["remaining"].as_u64() })
            }
            503 => None,
            other => panic!("{other}: {}", reply.text()),
        }
    }
}

/// `users` users, each with `each` keys, one unit a claim; the users' first keys come first.
pub fn wishes(users: usize, each: usize) -> Vec<Wish> {
    let one = |each: usize, user: usize| Wish { user: format!("u{user}"), key: format!("k{each}"), units: 1 };
    (0..each).flat_map(|key| (0..users).map(move |user| one(key, user))).collect()
}

/// Makes all `wishes`, at most `at_once` at a time; `acknowledged` counts the claims as they come in.
pub async fn storm(
    core: &Core,
    campaign: &str,
    wishes: &[Wish],
    at_once: usize,
    acknowledged: &AtomicUsize,
) -> BTreeMap<Wish, Seen> {
    let asked = stream::iter(wishes).map(|wish| async move {
        let seen = ask(core, campaign, wish).await;
        if matches!(seen, Seen::Claimed { .. }) {
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        (wish.clone(), seen)
    });
    asked.buffer_unordered(at_once).collect().await
}

/// Makes one wish.
pub async fn ask(core: &Core, campaign: &str, wish: &Wish) -> Seen {
    let Ok(reply) = core.try_claim(campaign, &wish.user, &wish.key, wish.units).await else {
        return Seen::Unknown;
    };
    Seen::of(&reply).unwrap_or(Seen::Unknown)
}

/// `kill -9` of `pid` as soon as `count` claims were acknowledged. On a thread of its own: the test's own tasks are
/// busy with the storm, and would come to it too late.
pub fn kill_once(acknowledged: &Arc<AtomicUsize>, count: usize, pid: u32) -> JoinHandle<()> {
    let acknowledged = Arc::clone(acknowledged);
    std::thread::spawn(move || {
        let deadline = Instant::now() + SOON;
        while acknowledged.load(Ordering::Relaxed) < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
        signal_pid(pid, Signal::KILL);
    })
}

/// Asks again for every wish whose outcome is unknown, until each has one. A claim found then counts as its first answer.
pub async fn resolve_unknown(core: &Core, campaign: &str, seen: &mut BTreeMap<Wish, Seen>) {
    let unknown: Vec<_> =
        seen.iter().filter(|(_, seen)| **seen == Seen::Unknown).map(|(wish, _)| wish.clone()).collect();
    let asked = stream::iter(unknown).map(|wish| async move {
        record(&format!("of a storm on {campaign}"));
        let resolved = eventually(SOON, || async {
            match ask(core, campaign, &wish).await {
                Seen::Unknown => Err(format!("{wish:?} is still unknown")),
                Seen::Claimed { id, sequence, .. } => {
                    Ok(Seen::Claimed { id, sequence, replayed: false, remaining: None })
                }
                seen @ Seen::Denied { .. } => Ok(seen),
            }
        })
        .await;
        (wish, resolved)
    });
    let resolved: Vec<_> = asked.buffer_unordered(64).collect().await;
    seen.extend(resolved);
}

/// The limits of a storm's campaign.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Of all.
    pub total: u64,
    /// Of each user.
    pub per_user: u64,
}

/// What must hold once all is quiet: nothing acknowledged is missing, no limit passed, nothing granted twice,
/// Redis and SQL agree, the outbox is empty.
pub async fn check(core: &Core, campaign: &str, seen: &BTreeMap<Wish, Seen>, bounds: Bounds) {
    // Right after a restart of Redis core may not have found it again yet.
    eventually(SOON, || async {
        let view = core.get(&format!("/internal/v1/campaigns/{campaign}")).await;
        holds(view.status == 200, || view.text())
    })
    .await;
    let redis = core.redis().await;
    eventually(SOON, || async {
        let (entries, backlog) =
            (redis.outbox_entries(campaign).await, redis.counter(campaign, "backlog").await);
        holds((entries, backlog) == (1, 0), || format!("{entries} entries, {backlog} events in the outbox"))
    })
    .await;
    let rows = core.sql().claims(campaign).await;
    let granted: u64 = rows.iter().map(|row| row.quantity).sum();
    assert!(granted <= bounds.total, "granted {granted} of {}", bounds.total);
    assert_eq!(Some(granted), Some(redis.counter(campaign, "taken").await), "SQL and Redis disagree");
    let sequences: Vec<_> = rows.iter().map(|row| row.sequence).collect();
    let expected: Vec<_> = (1..).take(rows.len()).collect();
    assert_eq!(sequences, expected, "sequences repeat or have gaps");
    let mut of_user = BTreeMap::<&str, u64>::new();
    for row in &rows {
        *of_user.entry(&row.user_id).or_default() += row.quantity;
    }
    for (user, units) in of_user {
        assert!(units <= bounds.per_user, "{user} has {units}");
    }
    check_acknowledged(core, seen, &rows.iter().map(|row| (row.id.as_str(), row.sequence)).collect()).await;
}

async fn check_acknowledged(core: &Core, seen: &BTreeMap<Wish, Seen>, rows: &BTreeMap<&str, u64>) {
    let mut known = BTreeSet::new();
    for (wish, seen) in seen {
        let Seen::Claimed { id, sequence, .. } = seen else {
            continue;
        };
        assert!(known.insert(id.clone()), "{id} was given to two keys");
        assert_eq!(rows.get(id.as_str()).copied(), Some(*sequence), "{wish:?} was acknowledged");
    }
    assert_eq!(known.len(), rows.len(), "SQL holds claims that no caller has, all outcomes being known");
    let looked_up = stream::iter(&known).map(|id| async move {
        let reply = core.look_up(id).await.expect(200);
        assert_eq!(reply.json()["claim"]["persisted"], true, "{id}");
    });
    looked_up.buffer_unordered(64).collect::<Vec<()>>().await;
}
