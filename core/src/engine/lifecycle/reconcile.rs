//! Compares the counts of a campaign in Redis and SQL, and repairs differences where that is safe.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use claimgate_shared::Version;
use claimgate_shared::admin::reconciliation::{
    Difference, Gap, OutboxSide, Reconciliation, RedisSide, SqlSide,
};

use super::recovery::{Recovered, Recovery};
use crate::clock;
use crate::domain::codes::CODES_AT_ONCE;
use crate::domain::not_ready::NotReadyReason;
use crate::domain::parts::parts;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::error::{RecoveryError, StoreError};
use crate::engine::stores::Stores;
use crate::store::redis::HoldState;
use crate::store::redis::outbox::OutboxState;
use crate::store::redis::scripts::calls::RulesReply;
use crate::store::redis::scripts::replies::Counters;
use crate::store::sql::Totals;

/// Maximum number of ranges of missing sequence numbers that are listed.
const GAPS_MAX: u32 = 100;
/// Age in milliseconds above which an outbox entry is late.
const LAG_MS_MAX: i64 = 10_000;
/// Minimum delay of a stranded hold after its expiry, in milliseconds.
const STRANDED_MS: i64 = 5_000;

/// Compares Redis and SQL, and repairs differences.
#[derive(Debug)]
pub struct Reconciler<'a> {
    /// Both stores.
    pub stores: &'a Stores,
    /// Loads campaigns into Redis.
    pub recovery: &'a Arc<Recovery>,
}

struct Sides {
    counters: Option<(Counters, u64, HoldState)>,
    why_not: Option<NotReadyReason>,
    totals: Totals,
    outbox: OutboxState,
    version: Version,
    /// Whether Redis has different rules of the same version.
    rules_differ: bool,
    /// A lower bound of the events that have left the outbox but are missing in SQL.
    lost_events: u64,
    /// The claims with codes in Redis, and how many there should be; `None` for a campaign without codes.
    codes: Option<(u64, RangeInclusive<u64>)>,
    /// Number of claims for which Redis shows other codes than SQL has.
    codes_differ: usize,
}

impl Reconciler<'_> {
    /// Compares both stores without changing them.
    pub(crate) async fn compare(&self, handle: &CampaignHandle) -> Result<Reconciliation, RecoveryError> {
        let sides = self.read_sides(handle).await?;
        let gaps = self.stores.sql.sequence_gaps(&handle.campaign().id, GAPS_MAX).await?;
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

    /// Repairs the differences that are safe to repair. Returns the comparison after the repair, with a list
    /// of the repairs.
    pub(crate) async fn repair(&self, handle: &CampaignHandle) -> Result<Reconciliation, RecoveryError> {
        let before = self.compare(handle).await?;
        let has = |name: &str| before.differences.iter().any(|difference| difference.name == name);
        let mut repairs = Vec::new();
        if has("version") && self.apply_newer_rules(handle).await? {
            repairs.push("applied the database's version of the rules".to_owned());
        }
        if has("stranded_holds") {
            self.stores.sweep(handle).await?;
            repairs.push("expired the holds that were due".to_owned());
        }
        // A reload loses nothing: SQL has all relayed events, and the reload first relays the rest and
        // restores rows that SQL has lost.
        let loads =
            ["not_ready", "taken", "users", "sequence", "holds", "backlog", "lost_events", "rules", "codes"];
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

    /// Applies SQL's rules if they are newer than the rules in Redis. Returns whether SQL's rules are in
    /// force.
    async fn apply_newer_rules(&self, handle: &CampaignHandle) -> Result<bool, RecoveryError> {
        let Some(row) = self.stores.sql.campaign(&handle.campaign().id).await? else { return Ok(false) };
        Ok(self.stores.set_rules(handle, &row, None).await? == RulesReply::Applied)
    }

    /// Returns a lower bound of the number of events that SQL has lost: some events in the outbox may be in
    /// SQL already.
    async fn lost_events(&self, handle: &CampaignHandle) -> Result<u64, RecoveryError> {
        let campaign = handle.campaign();
        let snapshots = self.stores.redis.survey(&[handle.target(&campaign)]).await?;
        let Some(snapshot) = snapshots.into_iter().flatten().next().filter(|snapshot| snapshot.ready) else {
            return Ok(0);
        };
        // Read after Redis: SQL can only have advanced.
        let totals = self.stores.sql.totals(&campaign.id).await?;
        Ok(snapshot.revisions.saturating_sub(snapshot.backlog + totals.revisions))
    }

    /// Reads a consistent state of both stores. If the counters change in the meantime, retries a few times.
    async fn read_sides(&self, handle: &CampaignHandle) -> Result<Sides, RecoveryError> {
        const TRIES: usize = 5;
        let id = &handle.campaign().id;
        let row = self.stores.sql.campaign(id).await?;
        let version = row.as_ref().map(|campaign| campaign.version).unwrap_or_default();
        if handle.campaign().evicted.is_some() {
            let totals = self.stores.sql.totals(id).await?;
            let importing = handle.campaign().unfinished_import.is_some();
            let why_not = importing.then_some(NotReadyReason::Importing);
            return Ok(Sides {
                counters: None,
                why_not,
                totals,
                outbox: OutboxState::default(),
                version,
                rules_differ: false,
                lost_events: 0,
                codes: None,
                codes_differ: 0,
            });
        }
        let state = self.stores.redis.campaign_state(&handle.keys).await?;
        let applied = state.and_then(|state| state.rules).filter(|rules| rules.version == version);
        let rules_differ = applied.zip(row).is_some_and(|(rules, row)| rules.applied_to(&row) != row);
        let lost_events = self.lost_events(handle).await?;
        let codes_differ = self.codes_differ(handle).await?;
        let mut round = 0;
        loop {
            round += 1;
            let before = self.counters(handle).await?;
            let sum = match before {
                Ok(_) => self.stores.redis.taken_by_users(&handle.keys).await?,
                Err(_) => 0,
            };
            let totals = self.stores.sql.totals(id).await?;
            let codes = self.codes(handle).await?;
            let outbox = self.stores.redis.outbox_state(&handle.keys).await?;
            let after = self.counters(handle).await?;
            let same = |one: &Counters, two: &Counters| {
                (one.taken, one.sequence, one.backlog) == (two.taken, two.sequence, two.backlog)
            };
            let (counters, why_not) = match (before, after) {
                (Ok((one, holds)), Ok((two, _))) if same(&one, &two) || round == TRIES => {
                    (Some((one, sum, holds)), None)
                }
                (Err(why), _) | (_, Err(why)) => (None, Some(why)),
                _ => continue,
            };
            return Ok(Sides {
                counters,
                why_not,
                totals,
                outbox,
                version,
                rules_differ,
                lost_events,
                codes,
                codes_differ,
            });
        }
    }

    /// Counts the claims with codes in Redis, and those that should have them there.
    async fn codes(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Option<(u64, RangeInclusive<u64>)>, RecoveryError> {
        let Some(row) = self.stores.sql.campaign(&handle.campaign().id).await? else { return Ok(None) };
        let Some(stock) = row.codes else { return Ok(None) };
        let in_redis = self.stores.redis.codes_count(&handle.keys).await?;
        Ok(Some((in_redis, self.stores.sql.claims_with_codes(&row.id, stock.pending_from).await?)))
    }

    /// Counts the claims for which Redis shows other codes than SQL has. SQL has codes before Redis has them, and unless
    /// SQL loses data, codes that Redis shows never change. So this comparison is exact while claims are decided.
    async fn codes_differ(&self, handle: &CampaignHandle) -> Result<usize, RecoveryError> {
        let campaign = handle.campaign();
        let mut differ = HashSet::new();
        if campaign.codes.is_none() {
            return Ok(0);
        }
        let mut session = self.stores.redis.session(handle.keys.slot).await?;
        let mut cursor = 0;
        loop {
            let (next, shown) = self.stores.redis.codes_page(&mut session, &handle.keys, cursor).await?;
            for shown in parts(&shown, CODES_AT_ONCE, |claim| claim.codes.len() as u64) {
                let ids: Vec<_> = shown.iter().map(|claim| (claim.user.clone(), claim.digest)).collect();
                let stored = self.stores.sql.all_codes_of(&campaign.id, &ids).await?;
                let stored: HashMap<_, _> = stored.iter().map(|claim| (claim.digest, claim)).collect();
                let differing = shown.iter().filter(|claim| stored.get(&claim.digest) != Some(claim));
                differ.extend(differing.map(|claim| claim.digest));
            }
            cursor = next;
            if cursor == 0 {
                return Ok(differ.len());
            }
        }
    }

    async fn counters(
        &self,
        handle: &CampaignHandle,
    ) -> Result<Result<(Counters, HoldState), NotReadyReason>, StoreError> {
        match self.stores.read(handle, None).await {
            Ok((counters, _)) => {
                let due_before = counters.now.saturating_add_ms(-STRANDED_MS);
                Ok(Ok((counters, self.stores.redis.hold_state(&handle.keys, due_before).await?)))
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
            differs("not_ready", format!("Redis' counters cannot be used: {why}"));
        }
        if let Some((redis, by_users, holds)) = &self.counters {
            self.compare_counters(redis, *by_users, *holds, &mut differs);
        }
        if let Some(oldest) = self.outbox.oldest
            && clock::now().as_ms() - oldest.as_ms() > LAG_MS_MAX
        {
            differs(
                "outbox_lag",
                format!("the oldest of {} entries has been pending since {oldest}", self.outbox.entries),
            );
        }
        if self.outbox.dead_letters > 0 {
            differs(
                "dead_letters",
                format!("{} malformed outbox entries were moved aside", self.outbox.dead_letters),
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
            differs(
                "users",
                format!("Redis counts {} taken, but its users add up to {by_users}", redis.taken),
            );
        }
        if redis.version != self.version {
            differs(
                "version",
                format!("Redis decides by version {}, SQL has {}", redis.version, self.version),
            );
        }
        if self.rules_differ {
            differs("rules", format!("Redis decides by different rules of version {}", self.version));
        }
        if self.lost_events > 0 {
            differs("lost_events", format!("SQL lacks {} events that it once had", self.lost_events));
        }
        if holds.stranded > 0 {
            differs("stranded_holds", format!("{} holds are overdue, but not expired", holds.stranded));
        }
        if (redis.backlog == 0) != (self.outbox.entries == 0) {
            differs(
                "backlog",
                format!(
                    "Redis counts {} outbox events, but the outbox has {} entries",
                    redis.backlog, self.outbox.entries
                ),
            );
        }
        if sql.sequence_not_revoked > redis.sequence {
            let (sql, redis) = (sql.sequence_not_revoked, redis.sequence);
            differs("sequence", format!("SQL has sequence {sql}, Redis has only assigned {redis}"));
        }
        if self.codes_differ > 0 {
            let claims = self.codes_differ;
            differs("codes", format!("Redis shows other codes of {claims} claims than SQL has"));
        }
        // While entries are in flight, it is normal that SQL is behind.
        if redis.backlog == 0 && self.outbox.entries == 0 {
            if sql.taken != redis.taken {
                differs("taken", format!("Redis counts {}, SQL has {}", redis.taken, sql.taken));
            }
            if sql.held != holds.held {
                differs("holds", format!("Redis holds {}, SQL {}", holds.held, sql.held));
            }
            if let Some((in_redis, expected)) = &self.codes
                && self.codes_differ == 0
                && !expected.contains(in_redis)
            {
                let (least, most) = (expected.start(), expected.end());
                differs(
                    "codes",
                    format!("Redis has the codes of {in_redis} claims, SQL of {least} to {most}"),
                );
            }
        }
    }
}
