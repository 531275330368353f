//! Reads of one user's claims of a campaign.

use std::fmt;
use std::str::FromStr;

use claimgate_shared::ids::digest_text;
use claimgate_shared::{CampaignId, Claim, ClaimStatus, UserId};
use sqlx::Row as _;

use super::claims::{ClaimRow, read};
use super::numbers::{big, unsigned};
use super::{SqlError, SqlStore, statements};
use crate::step;

/// A place in the list of a user's claims of one campaign, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserClaimCursor {
    place: u64,
    digest: String,
}

impl UserClaimCursor {
    /// The place of `claim`.
    pub fn of(claim: &Claim) -> Self {
        Self { place: place(claim), digest: digest_text(&claim.id.digest) }
    }

    /// Whether `claim`, one that is not revoked, comes after this place.
    pub fn is_before(&self, claim: &Claim) -> bool {
        place(claim) < self.place
    }
}

impl Default for UserClaimCursor {
    /// Before the first.
    fn default() -> Self {
        Self { place: u64::MAX, digest: String::new() }
    }
}

/// The number that the list is ordered by, as in [`statements::NEWEST_OF_USER`]: no two claims of a user have the same but
/// revoked ones, whose sequence may have been given again.
pub fn place(claim: &Claim) -> u64 {
    claim.sequence.saturating_mul(2) + u64::from(claim.status != ClaimStatus::Revoked)
}

impl fmt::Display for UserClaimCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place, self.digest)
    }
}

impl FromStr for UserClaimCursor {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = |text: &str| {
            let (place, digest) = text.split_once('.')?;
            Some(Self { place: place.parse().ok()?, digest: digest.to_owned() })
        };
        parts(text).ok_or("is not one of ours")
    }
}

impl SqlStore {
    /// Up to `limit` claims of `user` after the place `after`, newest first.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer.
    pub async fn claims_of_user(
        &self,
        campaign: &CampaignId,
        user: &UserId,
        after: &UserClaimCursor,
        limit: u32,
    ) -> Result<Vec<ClaimRow>, SqlError> {
        step::before("sql:claims_of_user").await;
        let rows = sqlx::query(statements::NEWEST_OF_USER)
            .bind(campaign.as_str())
            .bind(user.as_str())
            .bind(big(after.place))
            .bind(after.digest.as_str())
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await;
        step::after(rows)?.iter().map(|row| read(campaign, row)).collect()
    }

    /// Units that `user` has taken, in all and on `day` (days since 1970).
    ///
    /// # Errors
    /// [`SqlError::Sql`] when the database does not answer.
    pub async fn taken_by_user(
        &self,
        campaign: &CampaignId,
        user: &UserId,
        day: u32,
    ) -> Result<(u64, u64), SqlError> {
        step::before("sql:taken_by_user").await;
        let row = sqlx::query(statements::TAKEN_BY_USER)
            .bind(campaign.as_str())
            .bind(user.as_str())
            // No claim has this digest: all of them count.
            .bind("")
            .bind(i64::from(day))
            .fetch_one(&self.pool)
            .await;
        let row = step::after(row)?;
        Ok((unsigned(row.try_get(0)?)?, unsigned(row.try_get(1)?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = UserClaimCursor { place: 35, digest: "aHSIRPhRB6fDKajWWhFLtQ".to_owned() };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "35", "x.y", "-1.y", "18446744073709551616.y"] {
            assert_eq!(wrong.parse::<UserClaimCursor>(), Err("is not one of ours"), "{wrong}");
        }
    }
}
