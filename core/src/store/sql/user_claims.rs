//! Reads a user's claims in one campaign.

use std::fmt;
use std::str::FromStr;

use claimgate_shared::ids::{digest_text, parse_digest};
use claimgate_shared::{CampaignId, Claim, ClaimStatus, UserId};
use sqlx::Row as _;

use super::claims::{ClaimRow, read};
use super::numbers::{to_i64, unsigned};
use super::{NO_CURSOR, SqlError, SqlStore, statements};

/// A position in the list of a user's claims in one campaign, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserClaimCursor {
    order_key: u64,
    digest: String,
}

impl UserClaimCursor {
    /// Returns the position of `claim`.
    pub fn of(claim: &Claim) -> Self {
        Self { order_key: order_key(claim), digest: digest_text(&claim.id.digest) }
    }

    /// Returns true if `claim`, which must not be revoked, is after this position.
    pub fn is_before(&self, claim: &Claim) -> bool {
        order_key(claim) < self.order_key
    }
}

impl Default for UserClaimCursor {
    /// Returns the position before the first claim.
    fn default() -> Self {
        Self { order_key: u64::MAX, digest: String::new() }
    }
}

/// Returns the sort key of the list, as in [`statements::NEWEST_OF_USER`]. The key is unique among a user's
/// claims, except for revoked claims, whose sequence numbers may be reused.
pub fn order_key(claim: &Claim) -> u64 {
    claim.sequence.saturating_mul(2) + u64::from(claim.status != ClaimStatus::Revoked)
}

impl fmt::Display for UserClaimCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.order_key, self.digest)
    }
}

impl FromStr for UserClaimCursor {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = |text: &str| {
            let (order_key, digest) = text.split_once('.')?;
            Some(Self {
                order_key: order_key.parse().ok()?,
                digest: digest_text(&parse_digest(digest).ok()?),
            })
        };
        parts(text).ok_or(NO_CURSOR)
    }
}

impl SqlStore {
    /// Returns up to `limit` claims of `user` after the position `after`, newest first.
    pub async fn claims_of_user(
        &self,
        campaign: &CampaignId,
        user: &UserId,
        after: &UserClaimCursor,
        limit: u32,
    ) -> Result<Vec<ClaimRow>, SqlError> {
        let query = sqlx::query(statements::NEWEST_OF_USER)
            .bind(campaign.as_str())
            .bind(user.as_str())
            .bind(to_i64(after.order_key))
            .bind(after.digest.as_str())
            .bind(i64::from(limit));
        self.pool.all("sql:claims_of_user", query).await?.iter().map(|row| read(campaign, row)).collect()
    }

    /// Returns the units that `user` has taken, in total and on `day` (days since 1970).
    pub async fn taken_by_user(
        &self,
        campaign: &CampaignId,
        user: &UserId,
        day: u32,
    ) -> Result<(u64, u64), SqlError> {
        let query = sqlx::query(statements::TAKEN_BY_USER)
            .bind(campaign.as_str())
            .bind(user.as_str())
            // No claim has an empty digest, so no claim is excluded.
            .bind("")
            .bind(i64::from(day));
        let row = self.pool.one("sql:taken_by_user", query).await?;
        Ok((unsigned(row.try_get(0)?)?, unsigned(row.try_get(1)?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_a_round_trip_through_its_text() {
        let cursor = UserClaimCursor { order_key: 35, digest: "aHSIRPhRB6fDKajWWhFLtQ".to_owned() };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        let digest = "aHSIRPhRB6fDKajWWhFLtQ";
        for wrong in ["", "35", "35.", "35.y", "35.a\0b"] {
            assert_eq!(wrong.parse::<UserClaimCursor>(), Err(NO_CURSOR), "{wrong}");
        }
        for key in ["", "x", "-1", "18446744073709551616"] {
            assert_eq!(format!("{key}.{digest}").parse::<UserClaimCursor>(), Err(NO_CURSOR), "{key}");
        }
    }
}
