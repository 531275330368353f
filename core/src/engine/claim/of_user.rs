//! Reads one user's claims of a campaign: from the user's record in Redis if the record is complete,
//! otherwise from both stores. SQL has the claims that have moved out of the record; Redis has the events
//! that the relay has not written yet.

use std::cmp::Reverse;
use std::collections::HashMap;

use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{CampaignId, Claim, ClaimId, ClaimStatus, UserId};

use super::{Claims, claim_from_record};
use crate::clock;
use crate::domain::campaign::Evicted;
use crate::domain::claim_record::{ClaimRecord, UserCounters};
use crate::domain::counters::Epoch;
use crate::engine::campaign::handle::CampaignHandle;
use crate::engine::campaigns;
use crate::engine::error::EngineError;
use crate::store::redis::scripts::replies::UserReply;
use crate::store::sql::{ClaimRow, UserClaimCursor, order_key};

/// The epoch of a campaign's first load. Only a later load revokes earlier claims, and only SQL has revoked
/// claims.
const FIRST_EPOCH: Epoch = Epoch::new(1);

/// A position in the list of a user's claims, and a page size.
#[derive(Debug, Clone, Copy)]
pub struct UserPage<'a> {
    /// The position after which the page begins.
    pub after: &'a UserClaimCursor,
    /// Maximum number of claims on the page.
    pub limit: u32,
}

impl Claims {
    /// Returns a page of `user`'s claims of the campaign `id`, newest first, and the user's allowance. The
    /// list includes every claim that was acknowledged before the call.
    pub async fn of_user(
        &self,
        id: &CampaignId,
        user: &UserId,
        page: UserPage<'_>,
    ) -> Result<UserClaims, EngineError> {
        let handle = self.campaigns.find(id).await?;
        if handle.campaign().evicted.is_some() {
            let handle = self.campaigns.find_in_sql(id).await?;
            if let Some(evicted) = campaigns::evicted(&handle.campaign())? {
                return self.claims_of_evicted(&handle, evicted, user, page).await;
            }
        }
        // SQL is read after Redis, so that SQL has every event that has left the outbox.
        let reply = self.campaigns.stores.user(&handle, user).await?;
        if reply.next.is_some() {
            return Err(EngineError::TooFarBehind);
        }
        let campaign = self.campaigns.rules_at(&handle, reply.version).await?;
        let rows = if reply.record.has_moved_out || campaign.epoch > FIRST_EPOCH {
            self.campaigns.stores.sql.claims_of_user(id, user, page.after, page.limit).await?
        } else {
            Vec::new()
        };
        let allowance = campaign.allowance(reply.taken, &reply.record.counters, reply.today);
        let (mut items, next) = merged(in_redis(id, user, &reply)?, rows, page);
        self.add_codes(&handle, items.iter_mut().collect()).await?;
        Ok(UserClaims { items, next_cursor: next.map(|next| next.to_string()), allowance })
    }

    /// Returns the same for an evicted campaign, using only SQL.
    async fn claims_of_evicted(
        &self,
        handle: &CampaignHandle,
        evicted: Evicted,
        user: &UserId,
        page: UserPage<'_>,
    ) -> Result<UserClaims, EngineError> {
        let campaign = handle.campaign();
        let sql = &self.campaigns.stores.sql;
        let rows = sql.claims_of_user(&campaign.id, user, page.after, page.limit).await?;
        let today = campaign.zone.day_of(clock::now());
        let (ever, on_day) = sql.taken_by_user(&campaign.id, user, today).await?;
        let counters = UserCounters { day: today, on_day, ever };
        let allowance = campaign.allowance(evicted.taken, &counters, today);
        let (mut items, next) = merged(HashMap::new(), rows, page);
        self.add_codes(handle, items.iter_mut().collect()).await?;
        Ok(UserClaims { items, next_cursor: next.map(|next| next.to_string()), allowance })
    }
}

/// A claim and its revision.
type Revised = (Claim, u64);

/// Returns the user's claims from Redis' reply, each in its latest state.
fn in_redis(
    campaign: &CampaignId,
    user: &UserId,
    reply: &UserReply,
) -> Result<HashMap<ClaimId, Revised>, EngineError> {
    // For each claim the last item wins: later events override earlier events, and the record overrides the
    // outbox.
    let records = reply.events.iter().chain(&reply.record.claims);
    let claim = |record: &ClaimRecord| {
        let id = ClaimId { campaign: campaign.clone(), user: user.clone(), digest: record.digest };
        Ok((id.clone(), (claim_from_record(id, record, None)?, record.revision.into())))
    };
    records.map(claim).collect()
}

/// Merges the claims of both stores into a page, newest first. Also returns the position after which the next
/// page begins. `rows` is a page of claims from SQL.
fn merged(
    mut redis: HashMap<ClaimId, Revised>,
    rows: Vec<ClaimRow>,
    page: UserPage<'_>,
) -> (Vec<Claim>, Option<UserClaimCursor>) {
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    // SQL may have more rows after a full page.
    let end = rows.last().filter(|_| rows.len() >= limit).map(|row| row.claim.clone());
    let mut items = Vec::new();
    for row in rows {
        match redis.get_mut(&row.claim.id) {
            None => items.push(row.claim),
            // A claim's events may leave the outbox in any order, so SQL may have a later event than the
            // outbox. A revoked row is from an earlier load.
            Some((claim, revision)) => {
                if row.claim.status != ClaimStatus::Revoked && row.revision > *revision {
                    *claim = row.claim;
                }
            }
        }
    }
    let is_in_page = |claim: &Claim| {
        page.after.is_before(claim) && end.as_ref().is_none_or(|end| order_key(claim) >= order_key(end))
    };
    items.extend(redis.into_values().map(|(claim, _)| claim).filter(is_in_page));
    // The sort is stable: revoked claims with equal keys stay in SQL's order, in which the next page
    // continues.
    items.sort_by_key(|claim| Reverse(order_key(claim)));
    let is_cut = items.len() > limit;
    items.truncate(limit);
    let last = if is_cut { items.last() } else { end.as_ref() };
    let next = last.map(UserClaimCursor::of);
    (items, next)
}

#[cfg(test)]
mod tests {
    use claimgate_shared::{Quantity, Timestamp};

    use super::*;

    fn claim(sequence: u64, key: u8, status: ClaimStatus) -> Claim {
        let (campaign_id, user_id): (CampaignId, UserId) = ("demo".parse().unwrap(), "ann".parse().unwrap());
        Claim {
            id: ClaimId { campaign: campaign_id.clone(), user: user_id.clone(), digest: [key; 16] },
            campaign_id,
            user_id,
            quantity: Quantity::ONE,
            status,
            sequence,
            claimed_at: Timestamp::default(),
            expires_at: None,
            persisted: None,
            codes: None,
        }
    }

    fn granted(sequence: u64) -> Claim {
        claim(sequence, u8::try_from(sequence).unwrap(), ClaimStatus::Granted)
    }

    fn in_redis(claims: &[(Claim, u64)]) -> HashMap<ClaimId, Revised> {
        claims.iter().map(|(claim, revision)| (claim.id.clone(), (claim.clone(), *revision))).collect()
    }

    /// Returns the concatenation of all pages of `limit` claims, if SQL has `rows`, newest first.
    fn pages(redis: &[(Claim, u64)], rows: &[(Claim, u64)], limit: u32) -> Vec<(u64, ClaimStatus)> {
        let (mut seen, mut after) = (Vec::new(), UserClaimCursor::default());
        loop {
            // Filter like SQL does; no two claims in this test have the same position.
            let behind = rows.iter().filter(|(claim, _)| after.is_before(claim));
            let page = behind.take(usize::try_from(limit).unwrap());
            let rows = page.map(|(claim, revision)| ClaimRow {
                claim: claim.clone(),
                revision: *revision,
                day: 0,
                updated_at: Timestamp::default(),
            });
            let (items, next) = merged(in_redis(redis), rows.collect(), UserPage { after: &after, limit });
            assert!(items.len() <= usize::try_from(limit).unwrap());
            seen.extend(items.iter().map(|claim| (claim.sequence, claim.status)));
            match next {
                Some(next) => after = next,
                None => return seen,
            }
        }
    }

    #[test]
    fn both_stores_form_one_list_at_any_page_size() {
        use ClaimStatus::{Granted, Returned, Revoked};
        // Only Redis has 9 and 7, only SQL has 6, 2 and 1, and both have 8, 5 and 4.
        let redis = [(granted(9), 1), (granted(8), 1), (granted(7), 1), (granted(5), 1), (granted(4), 1)];
        let rows = [
            (granted(8), 1),
            (claim(6, 60, Revoked), 1),
            (claim(5, 5, Returned), 2),
            (claim(4, 4, Revoked), 2),
            (granted(2), 1),
            (granted(1), 1),
        ];
        let expected = [
            (9, Granted),
            (8, Granted),
            (7, Granted),
            (6, Revoked),
            (5, Returned),
            (4, Granted),
            (2, Granted),
            (1, Granted),
        ];
        for limit in 1..=10 {
            assert_eq!(pages(&redis, &rows, limit), expected, "pages of {limit}");
        }
    }

    #[test]
    fn a_claim_granted_again_is_listed_once_in_its_new_position() {
        use ClaimStatus::{Granted, Revoked};
        let redis = [(claim(9, 3, Granted), 1)];
        let rows = [(granted(5), 1), (claim(3, 3, Revoked), 2), (granted(2), 1)];
        for limit in 1..=5 {
            assert_eq!(pages(&redis, &rows, limit), [(9, Granted), (5, Granted), (2, Granted)], "{limit}");
        }
    }

    #[test]
    fn without_claims_there_is_one_empty_page() {
        assert_eq!(pages(&[], &[], 1), []);
    }
}
