//! Laying a campaign down in Redis from what SQL holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use claimgate_shared::{ClaimStatus, UserId};
use redis::ScriptInvocation;

use super::keys::Keys;
use super::link::Session;
use super::record::{Record, put_be};
use super::scripts;
use super::{Ledger, LedgerError, rule_fields};
use crate::campaign::{Campaign, Reached};

/// Claims kept in a user's own record; older ones are kept apart. As in `prelude.lua`.
const INLINE_MAX: usize = 8;
/// Pairs of field and value in one call: Lua's `unpack` ends far above twice that.
const PAIRS_MAX: usize = 1000;

/// A loader at work on one campaign, for one epoch, over one connection: behind another one may be a server that lacks
/// what was laid down so far.
#[derive(Debug)]
pub struct Loader<'a> {
    ledger: &'a Ledger,
    session: Session,
    keys: &'a Keys,
    campaign: &'a Campaign,
    /// The fencing token of the lease it works under.
    token: u64,
    users: Pairs,
    claims: Pairs,
    holds: Pairs,
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Why a loader stopped.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Another loader, or another epoch, is at work.
    #[error("a newer loader is at work")]
    Late,
    /// Redis.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl<'a> Loader<'a> {
    /// Drops what Redis holds of the campaign and begins anew under its epoch.
    pub async fn begin(
        ledger: &'a Ledger,
        keys: &'a Keys,
        campaign: &'a Campaign,
        token: u64,
    ) -> Result<Self, LoadError> {
        let session = ledger.link.session().await.map_err(LedgerError::from)?;
        let lineage = Arc::clone(&session.lineage);
        let mut loader =
            Self { ledger, session, keys, campaign, token, users: vec![], claims: vec![], holds: vec![] };
        loader
            .step("begin", |call| {
                call.arg(&*lineage);
            })
            .await?;
        Ok(loader)
    }

    /// Takes in all claims of one user, in the order of their sequence.
    pub async fn user(&mut self, user: &UserId, claims: &[Record]) -> Result<(), LoadError> {
        let apart = claims.len().saturating_sub(INLINE_MAX);
        for claim in &claims[..apart] {
            let mut record = Vec::with_capacity(Record::BYTES);
            claim.write(&mut record);
            self.claims.push((claim.digest.to_vec(), record));
        }
        for claim in claims.iter().filter(|claim| claim.status == ClaimStatus::Held) {
            let expires_ms = claim.expires_at.map_or(0, claimgate_shared::Timestamp::as_ms).to_string();
            let member = [user.as_str().as_bytes(), b".", &claim.digest].concat();
            self.holds.push((expires_ms.into_bytes(), member));
        }
        self.users.push((user.as_str().as_bytes().to_vec(), user_record(claims, apart)));
        self.flush(PAIRS_MAX).await
    }

    /// Opens the campaign: `taken` units are taken, and sequences go on above what was `reached`.
    pub async fn open(mut self, reached: Reached, taken: u64) -> Result<(), LoadError> {
        self.flush(1).await?;
        let campaign = self.campaign;
        self.step("open", |call| {
            call.arg(reached.sequence).arg(reached.events).arg(taken);
            rule_fields(call, campaign);
        })
        .await
    }

    /// Sends what has gathered, of each kind that has at least `least`.
    async fn flush(&mut self, least: usize) -> Result<(), LoadError> {
        let mut kinds = [
            ("users", std::mem::take(&mut self.users)),
            ("claims", std::mem::take(&mut self.claims)),
            ("holds", std::mem::take(&mut self.holds)),
        ];
        for (step, pairs) in &mut kinds {
            while pairs.len() >= least {
                let rest = pairs.split_off(pairs.len().min(PAIRS_MAX));
                let batch = std::mem::replace(pairs, rest);
                self.step(step, |call| {
                    for (field, value) in &batch {
                        call.arg(&field[..]).arg(&value[..]);
                    }
                })
                .await?;
            }
        }
        [self.users, self.claims, self.holds] = kinds.map(|(_, pairs)| pairs);
        Ok(())
    }

    async fn step(
        &mut self,
        step: &str,
        arguments: impl FnOnce(&mut ScriptInvocation<'_>),
    ) -> Result<(), LoadError> {
        let mut call = scripts::LOAD.prepare_invoke();
        for key in self.keys.all() {
            call.key(key);
        }
        call.arg(scripts::LAYOUT).arg(self.campaign.epoch).arg(self.token).arg(step);
        arguments(&mut call);
        let name = match step {
            "begin" => "redis:load.begin",
            "users" => "redis:load.users",
            "claims" => "redis:load.claims",
            "holds" => "redis:load.holds",
            _ => "redis:load.open",
        };
        let reply = self.ledger.run_on(&mut self.session, name, &call).await?;
        match scripts::word(reply, &["done", "late"]).map_err(LedgerError::from)? {
            Ok(0) => Ok(()),
            Ok(_) => Err(LoadError::Late),
            Err(why) => Err(LedgerError::NotReady(why).into()),
        }
    }
}

/// A user's record: counters over all claims, then those that are not kept apart.
fn user_record(claims: &[Record], apart: usize) -> Vec<u8> {
    let standing = |claim: &&Record| matches!(claim.status, ClaimStatus::Granted | ClaimStatus::Held);
    let mut by_day: BTreeMap<u32, u64> = BTreeMap::new();
    for claim in claims {
        let units = if standing(&claim) { u64::from(claim.quantity) } else { 0 };
        *by_day.entry(claim.day).or_default() += units;
    }
    // A user's day never goes backwards: the last day seen is the current one.
    let (day, today) = by_day.last_key_value().map_or((0, 0), |(day, units)| (*day, *units));
    let mut record = Vec::with_capacity(14 + (claims.len() - apart) * Record::BYTES);
    put_be(&mut record, u64::from(day), 3);
    put_be(&mut record, today, 5);
    put_be(&mut record, by_day.values().sum(), 5);
    record.push(u8::from(apart > 0));
    for claim in &claims[apart..] {
        claim.write(&mut record);
    }
    record
}

impl Ledger {
    /// Drops a closed campaign's keys. What people have yet to look at stays.
    pub async fn drop_keys(&self, keys: &Keys) -> Result<(), LedgerError> {
        self.query::<redis::Value>("redis:drop_keys", redis::cmd("UNLINK").arg(&keys.all())).await.map(drop)
    }

    /// Stops every decision on a campaign until it has been loaded anew; the epoch Redis has it in, 0 for none.
    pub async fn close(&self, keys: &Keys) -> Result<u64, LedgerError> {
        Ok(scripts::closed(self.run("redis:close", &close(keys)).await?)?)
    }
}

/// A call that closes a campaign; a lineage as its argument spares one that was loaded under it.
pub(super) fn close(keys: &Keys) -> ScriptInvocation<'static> {
    let mut call = scripts::CLOSE.prepare_invoke();
    for key in keys.all() {
        call.key(key);
    }
    call
}
