//! What one user has of a campaign: from the user's record in Redis where that has all of it, else from both stores, of which
//! one knows what the other does not: SQL what has moved out of the record, Redis what the relay has not written yet.

use std::cmp::Reverse;
use std::collections::HashMap;

use claimgate_shared::user_claims::UserClaims;
use claimgate_shared::{CampaignId, Claim, ClaimId, ClaimStatus, UserId};

use super::claims::standing;
use super::{Engine, EngineError, evicted_answers};
use crate::clock;
use crate::domain::campaign::{Campaign, Evicted};
use crate::domain::claim_record::{ClaimRecord, UserCounters};
use crate::domain::counters::Epoch;
use crate::store::redis::replies::UserReply;
use crate::store::sql::{ClaimRow, UserClaimCursor, place};

/// The epoch of a campaign's first load. Only a later one makes claims of an earlier one revoked, which SQL alone knows.
const FIRST_EPOCH: Epoch = Epoch::new(1);

/// A place in the list of a user's claims, and how many are asked for.
#[derive(Debug, Clone, Copy)]
pub struct UserPage<'a> {
    /// The claim after which the page begins.
    pub after: &'a UserClaimCursor,
    /// The most claims of the page.
    pub limit: u32,
}

impl Engine {
    /// A page of what `user` has claimed of the campaign `id`, newest first, and what is left to the user. Every claim that was
    /// acknowledged before the call is in the list.
    ///
    /// # Errors
    /// [`EngineError::CampaignNotFound`], [`EngineError::TooMuchWaits`], or when a store that has to be asked does not answer.
    pub async fn user_claims(
        &self,
        id: &CampaignId,
        user: &UserId,
        page: UserPage<'_>,
    ) -> Result<UserClaims, EngineError> {
        let handle = self.handle(id).await?;
        if handle.campaign().evicted.is_some() {
            let campaign = self.as_sql_has_it(id).await?.campaign();
            if let Some(evicted) = evicted_answers::evicted(&campaign)? {
                return self.claims_of_evicted(&campaign, evicted, user, page).await;
            }
        }
        // SQL is asked after Redis: what the outbox does not hold any more is in SQL by then.
        let reply = self.sync.user(&handle, user).await?;
        if reply.next.is_some() {
            return Err(EngineError::TooMuchWaits);
        }
        let campaign = self.campaign_at(&handle, reply.version).await?;
        let rows = if reply.record.has_moved_out || campaign.epoch > FIRST_EPOCH {
            self.sync.sql.claims_of_user(id, user, page.after, page.limit).await?
        } else {
            Vec::new()
        };
        let allowance = campaign.allowance(reply.taken, &reply.record.counters, reply.today);
        let (items, next) = merged(in_redis(id, user, &reply)?, rows, page);
        Ok(UserClaims { items, next_cursor: next.map(|next| next.to_string()), allowance })
    }

    /// The same of an evicted campaign, from SQL alone.
    async fn claims_of_evicted(
        &self,
        campaign: &Campaign,
        evicted: Evicted,
        user: &UserId,
        page: UserPage<'_>,
    ) -> Result<UserClaims, EngineError> {
        let sql = &self.sync.sql;
        let rows = sql.claims_of_user(&campaign.id, user, page.after, page.limit).await?;
        let today = campaign.zone.day_of(clock::now());
        let (ever, on_day) = sql.taken_by_user(&campaign.id, user, today).await?;
        let counters = UserCounters { day: today, on_day, ever };
        let allowance = campaign.allowance(evicted.taken, &counters, today);
        let (items, next) = merged(HashMap::new(), rows, page);
        Ok(UserClaims { items, next_cursor: next.map(|next| next.to_string()), allowance })
    }
}

/// A claim, and how often it has changed.
type Revised = (Claim, u64);

/// The user's claims that Redis has told of, each as it stands.
fn in_redis(
    campaign: &CampaignId,
    user: &UserId,
    reply: &UserReply,
) -> Result<HashMap<ClaimId, Revised>, EngineError> {
    // Of one claim the later word counts, and the record's before the outbox's.
    let records = reply.events.iter().chain(&reply.record.claims);
    let claim = |record: &ClaimRecord| {
        let id = ClaimId { campaign: campaign.clone(), user: user.clone(), digest: record.digest };
        Ok((id.clone(), (standing(id, record, None)?, record.revision.into())))
    };
    records.map(claim).collect()
}

/// The page's claims out of both stores, newest first, and the place after which the next page begins. `rows` is a page of
/// SQL's.
fn merged(
    mut redis: HashMap<ClaimId, Revised>,
    rows: Vec<ClaimRow>,
    page: UserPage<'_>,
) -> (Vec<Claim>, Option<UserClaimCursor>) {
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    // SQL may have more behind the last row of a full page.
    let end = rows.last().filter(|_| rows.len() >= limit).map(|row| row.claim.clone());
    let mut items = Vec::new();
    for row in rows {
        match redis.get_mut(&row.claim.id) {
            None => items.push(row.claim),
            // Events of a claim may leave the outbox in any order: SQL may have a later one than the outbox. A revoked row is
            // of an earlier load.
            Some((claim, revision)) => {
                if row.claim.status != ClaimStatus::Revoked && row.revision > *revision {
                    *claim = row.claim;
                }
            }
        }
    }
    let is_in_page = |claim: &Claim| {
        page.after.is_before(claim) && end.as_ref().is_none_or(|end| place(claim) >= place(end))
    };
    items.extend(redis.into_values().map(|(claim, _)| claim).filter(is_in_page));
    // Stable: revoked claims of one place stay in SQL's order, by which the next page goes on.
    items.sort_by_key(|claim| Reverse(place(claim)));
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
        }
    }

    fn granted(sequence: u64) -> Claim {
        claim(sequence, u8::try_from(sequence).unwrap(), ClaimStatus::Granted)
    }

    fn in_redis(claims: &[(Claim, u64)]) -> HashMap<ClaimId, Revised> {
        claims.iter().map(|(claim, revision)| (claim.id.clone(), (claim.clone(), *revision))).collect()
    }

    /// All pages of `limit`, one after the other, where SQL has `rows`, newest first.
    fn pages(redis: &[(Claim, u64)], rows: &[(Claim, u64)], limit: u32) -> Vec<(u64, ClaimStatus)> {
        let (mut seen, mut after) = (Vec::new(), UserClaimCursor::default());
        loop {
            // As SQL does it; no two claims here have one place.
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
    fn both_stores_are_one_list_whatever_the_size_of_its_pages() {
        use ClaimStatus::{Granted, Returned, Revoked};
        // In Redis only 9 and 7; in both 8, 5 and 4; in SQL only 6 to 1.
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
    fn a_claim_that_was_granted_again_is_listed_once_at_its_new_place() {
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
