//! Whether Redis and SQL agree on a campaign, in numbers; and the repair of what is safe to repair.

use std::sync::Arc;

use claimgate_shared::{Timestamp, Version};
use serde::{Deserialize, Serialize};

use super::handle::CampaignHandle;
use super::recovery::{Recovered, Recovery, RecoveryError};
use super::sync::{CampaignSync, SyncError};
use crate::clock;
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::HoldState;
use crate::store::redis::calls::RulesReply;
use crate::store::redis::outbox::OutboxState;
use crate::store::redis::replies::Counters;
use crate::store::sql::Totals;

/// The most ranges of missing sequences that are listed.
const GAPS_MAX: u32 = 100;
/// An outbox entry older than this is late, in milliseconds.
const LAG_MS_MAX: i64 = 10_000;
/// A hold that is due for longer than this is stranded, in milliseconds.
const STRANDED_MS: i64 = 5_000;

/// Redis, SQL and the outbox between them, side by side.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Reconciliation {
    /// Whether nothing differs.
    pub agrees: bool,
    /// Redis' side; `null` while the campaign is not ready, or when it was evicted.
    pub redis: Option<RedisSide>,
    /// SQL's side.
    pub sql: SqlSide,
    /// What waits in Redis to be relayed to SQL.
    pub outbox: OutboxSide,
    /// Everything that differs, by name.
    pub differences: Vec<Difference>,
    /// What a repair has done; empty in a dry run.
    #[serde(default)]
    pub repairs: Vec<String>,
}

/// Redis' side.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RedisSide {
    /// Units taken, by the campaign's own counter.
    pub taken: u64,
    /// Units taken, summed over all users.
    pub taken_by_users: u64,
    /// The last sequence given.
    pub sequence: u64,
    /// The version of the rules that Redis decides by.
    #[schema(value_type = u64)]
    pub version: Version,
    /// Claims held.
    pub holds: u64,
}

/// SQL's side.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SqlSide {
    /// Units granted or held.
    pub taken: u64,
    /// The highest sequence.
    pub sequence: u64,
    /// The campaign's version.
    #[schema(value_type = u64)]
    pub version: Version,
    /// Claims held.
    pub holds: u64,
    /// All claims.
    pub claims: u64,
    /// Claims lost with the Redis that granted them.
    pub revoked: u64,
    /// Sequences that no claim has, at most 100 ranges: where claims were lost before they reached SQL.
    pub sequence_gaps: Vec<Gap>,
}

/// Sequences that no claim has.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Gap {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

/// The outbox.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OutboxSide {
    /// Entries not yet relayed to SQL.
    pub entries: u64,
    /// Events in them, by the campaign's own counter.
    pub events: u64,
    /// When the oldest was written.
    pub oldest: Option<Timestamp>,
    /// Malformed entries, moved out of the outbox.
    pub dead_letters: u64,
}

/// One thing that differs.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Difference {
    /// `not_ready`, `taken`, `users`, `sequence`, `version`, `rules`, `lost_events`, `holds`, `stranded_holds`, `backlog`,
    /// `outbox_lag` or `dead_letters`.
    pub name: String,
    /// In words, with both numbers.
    pub detail: String,
}

/// Compares, and repairs.
#[derive(Debug)]
pub struct Reconciler<'a> {
    /// Both stores.
    pub sync: &'a CampaignSync,
    /// Loads campaigns into Redis.
    pub recovery: &'a Arc<Recovery>,
}

struct Sides {
    counters: Option<(Counters, u64, HoldState)>,
    why_not: Option<NotReadyReason>,
    totals: Totals,
    outbox: OutboxState,
    version: Version,
    /// Whether Redis decides by other rules of the same version.
    rules_differ: bool,
    /// Events that SQL lacks though they have left the outbox, at least.
    lost_events: u64,
}

impl Reconciler<'_> {
    /// Compares both sides; changes nothing.
    pub(crate) async fn compare(&self, handle: &CampaignHandle) -> Result<Reconciliation, RecoveryError> {
        let sides = self.look(handle).await?;
        let gaps = self.sync.sql.sequence_gaps(&handle.campaign().id, GAPS_MAX).await?;
        let differences = sides.differences();
        Ok(Reconciliation {
            agrees: differences.is_empty(),
            redis: sides.counters.map(|(counters, by_users, holds)| RedisSide {
                taken: counters.taken,
                taken_by_users: by_users,
                sequence: counters.sequence,
                version: counters.version,
                holds: holds.held,
            }),
            sql: SqlSide {
                taken: sides.totals.taken,
                sequence: sides.totals.sequence,
                version: sides.version,
                holds: sides.totals.held,
                claims: sides.totals.claims,
                revoked: sides.totals.revoked,
                sequence_gaps: gaps.into_iter().map(|(from, to)| Gap { from, to }).collect(),
            },
            outbox: OutboxSide {
                entries: sides.outbox.entries,
                events: sides.counters.map_or(0, |(counters, ..)| counters.backlog),
                oldest: sides.outbox.oldest,
                dead_letters: sides.outbox.dead_letters,
            },
            differences,
            repairs: Vec::new(),
        })
    }

    /// Repairs what is safe to repair. The result is the comparison after it, and lists what was done.
    pub(crate) async fn repair(&self, handle: &CampaignHandle) -> Result<Reconciliation, RecoveryError> {
        let before = self.compare(handle).await?;
        let has = |name: &str| before.differences.iter().any(|difference| difference.name == name);
        let mut repairs = Vec::new();
        if has("version") && self.apply_newer_rules(handle).await? {
            repairs.push("applied the database's version of the rules".to_owned());
        }
        if has("stranded_holds") {
            self.sync.sweep(handle).await?;
            repairs.push("gave back the holds that were due".to_owned());
        }
        // SQL holds everything that was relayed, and loading relays the rest first, and writes again what SQL has lost:
        // nothing is lost by it.
        let loads = ["not_ready", "taken", "users", "sequence", "holds", "backlog", "lost_events", "rules"];
        let rules_are_lost = has("version") && repairs.is_empty();
        if rules_are_lost || loads.into_iter().any(has) {
            repairs.push(match self.recovery.recover(handle, true).await? {
                Recovered::Loaded(claims) => format!("loaded {claims} claims from SQL under a new epoch"),
                Recovered::Ready | Recovered::Adopted => "nothing to load".to_owned(),
                Recovered::Elsewhere => "another core is loading the campaign".to_owned(),
            });
        }
        Ok(Reconciliation { repairs, ..self.compare(handle).await? })
    }

    /// Puts the rules into force that SQL has, if they are newer than those in Redis. Returns whether they are in force.
    async fn apply_newer_rules(&self, handle: &CampaignHandle) -> Result<bool, RecoveryError> {
        let Some(row) = self.sync.sql.campaign(&handle.campaign().id).await? else { return Ok(false) };
        Ok(self.sync.set_rules(handle, &row, None).await? == RulesReply::Applied)
    }

    /// How many events of a campaign SQL has lost at least: of those that are in the outbox some may be there already.
    async fn lost_events(&self, handle: &CampaignHandle) -> Result<u64, RecoveryError> {
        let campaign = handle.campaign();
        let looks = self.sync.redis.survey(&[handle.target(&campaign)]).await?;
        let Some(look) = looks.into_iter().flatten().next().filter(|look| look.ready) else { return Ok(0) };
        // Asked after Redis, SQL can only have come further.
        let totals = self.sync.sql.totals(&campaign.id).await?;
        Ok(look.revisions.saturating_sub(look.backlog + totals.revisions))
    }

    /// Both sides at one moment: when the counters moved meanwhile, once more, a few times.
    async fn look(&self, handle: &CampaignHandle) -> Result<Sides, RecoveryError> {
        const TRIES: usize = 5;
        let id = &handle.campaign().id;
        let row = self.sync.sql.campaign(id).await?;
        let version = row.as_ref().map(|campaign| campaign.version).unwrap_or_default();
        if handle.campaign().evicted.is_some() {
            let totals = self.sync.sql.totals(id).await?;
            let importing = handle.campaign().unfinished_import.is_some();
            return Ok(Sides {
                counters: None,
                why_not: importing.then_some(NotReadyReason::Importing),
                totals,
                outbox: OutboxState::default(),
                version,
                rules_differ: false,
                lost_events: 0,
            });
        }
        let state = self.sync.redis.campaign_state(&handle.keys).await?;
        let applied = state.and_then(|state| state.rules).filter(|rules| rules.version == version);
        let rules_differ = applied.zip(row).is_some_and(|(rules, row)| rules.of(&row) != row);
        let lost_events = self.lost_events(handle).await?;
        let mut round = 0;
        loop {
            round += 1;
            let before = self.counters(handle).await?;
            let sum = match before {
                Ok(_) => self.sync.redis.taken_by_users(&handle.keys).await?,
                Err(_) => 0,
            };
            let totals = self.sync.sql.totals(id).await?;
            let outbox = self.sync.redis.outbox_state(&handle.keys).await?;
            let after = self.counters(handle).await?;
            let same = |one: &Counters, two: &Counters| {
                (one.taken, one.sequence, one.backlog) == (two.taken, two.sequence, two.backlog)
            };
            match (before, after) {
                (Ok((one, holds)), Ok((two, _))) if same(&one, &two) || round == TRIES => {
                    return Ok(Sides {
                        counters: Some((one, sum, holds)),
                        why_not: None,
                        totals,
                        outbox,
                        version,
                        rules_differ,
                        lost_events,
                    });
                }
                (Err(why), _) | (_, Err(why)) => {
                    let counters = None;
                    let why_not = Some(why);
                    return Ok(Sides {
                        counters,
                        why_not,
                        totals,
                        outbox,
                        version,
                        rules_differ,
                        lost_events,
                    });
                }
                _ => {}
            }
        }
    }

    async fn counters(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Result<(Counters, HoldState), NotReadyReason>, SyncError> {
        match self.sync.read(handle, None).await {
            Ok((counters, _)) => {
                let due_before = counters.now.saturating_add_ms(-STRANDED_MS);
                Ok(Ok((counters, self.sync.redis.hold_state(&handle.keys, due_before).await?)))
            }
            Err(error) => error.not_ready_reason().map(Err).ok_or(error),
        }
    }
}

impl Sides {
    fn differences(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        let mut differs = |name: &str, detail: String| {
            found.push(Difference { name: name.to_owned(), detail });
        };
        if let Some(why) = &self.why_not {
            differs("not_ready", format!("Redis' counters do not count: {why}"));
        }
        if let Some((redis, by_users, holds)) = &self.counters {
            self.compare_counters(redis, *by_users, *holds, &mut differs);
        }
        if let Some(oldest) = self.outbox.oldest
            && clock::now().as_ms() - oldest.as_ms() > LAG_MS_MAX
        {
            differs(
                "outbox_lag",
                format!("the oldest of {} entries waits since {oldest}", self.outbox.entries),
            );
        }
        if self.outbox.dead_letters > 0 {
            differs(
                "dead_letters",
                format!("{} outbox entries were not written by any core", self.outbox.dead_letters),
            );
        }
        found
    }

    fn compare_counters(
        &self,
        redis: &Counters,
        by_users: u64,
        holds: HoldState,
        differs: &mut impl FnMut(&str, String),
    ) {
        let sql = &self.totals;
        if redis.taken != by_users {
            differs("users", format!("Redis counts {} taken, its users sum up to {by_users}", redis.taken));
        }
        if redis.version != self.version {
            differs(
                "version",
                format!("Redis decides by version {}, SQL holds {}", redis.version, self.version),
            );
        }
        if self.rules_differ {
            differs("rules", format!("Redis decides by other rules of version {}", self.version));
        }
        if self.lost_events > 0 {
            differs("lost_events", format!("SQL lacks {} events that it once had", self.lost_events));
        }
        if holds.stranded > 0 {
            differs("stranded_holds", format!("{} holds are due and not given back", holds.stranded));
        }
        if (redis.backlog == 0) != (self.outbox.entries == 0) {
            differs(
                "backlog",
                format!("Redis counts {} events, {} entries wait", redis.backlog, self.outbox.entries),
            );
        }
        if sql.sequence_standing > redis.sequence {
            let (sql, redis) = (sql.sequence_standing, redis.sequence);
            differs("sequence", format!("SQL holds sequence {sql}, Redis has only given {redis}"));
        }
        // While entries are on their way SQL is behind, as it should be.
        if redis.backlog == 0 && self.outbox.entries == 0 {
            if sql.taken != redis.taken {
                differs("taken", format!("Redis counts {}, SQL holds {}", redis.taken, sql.taken));
            }
            if sql.held != holds.held {
                differs("holds", format!("Redis holds {}, SQL {}", holds.held, sql.held));
            }
        }
    }
}
