//! Removes another register's campaign from this Redis, once its claims are written to a file.
//!
//! A campaign that a core serves is not removed. The campaign is suspended under a token between two that its own
//! database draws: a core that serves it is asked to look, finds it suspended within seconds, however many campaigns it has,
//! and loads it under a higher token, and then its keys are left alone.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use claimgate_shared::{CampaignId, ClaimId, UserId};
use tokio::time::{Instant, sleep};

use crate::domain::claim_record::ClaimRecord;
use crate::domain::utc_offsets::day_text;
use crate::redis_address::RedisAddress;
use crate::store::redis::keys::Keys;
use crate::store::redis::replies::SuspendReply;
use crate::store::redis::{KeysOwner, RedisStore, RedisStoreError};
use crate::store::sql::{SqlError, SqlStore};

/// How long a core that serves the campaign has to load it again.
pub const SERVED_WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(500);

/// Why the keys were not removed.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// Redis has no keys of the campaign.
    #[error("this Redis has no campaign '{0}'")]
    None(CampaignId),
    /// The campaign belongs to this core's own database.
    #[error("the campaign '{0}' is this database's own: its keys are removed when it is over")]
    Ours(CampaignId),
    /// A core loaded the campaign again within [`SERVED_WITHIN`].
    #[error(
        "a core serves the campaign '{0}': its keys were left alone, and the file has the claims of before"
    )]
    Served(CampaignId),
    /// The keys have a layout that this version does not know.
    #[error("the keys are of another layout: use the version of claimgate that wrote them")]
    Layout,
    /// A call to Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// A call to SQL failed.
    #[error(transparent)]
    Sql(#[from] SqlError),
    /// The export could not be written.
    #[error("{0}")]
    File(#[from] csv::Error),
}

impl From<std::io::Error> for ForeignError {
    fn from(error: std::io::Error) -> Self {
        Self::File(error.into())
    }
}

/// Writes all claims of the campaign `id` to the new file `file` as CSV, then removes its keys from
/// `redis`. Returns the number of claims. Takes [`SERVED_WITHIN`], since a core that serves the campaign must have
/// time to load it again. Dead letters stay.
///
/// # Errors
/// Nothing was removed: there are no such keys, the campaign belongs to `database_url`, a core serves it, its layout is
/// unknown, `file` exists, or a store did not answer. The campaign may stay suspended until its own core loads it.
pub async fn export_and_drop(
    (redis, database_url): (&RedisAddress, &str),
    id: &CampaignId,
    file: &Path,
) -> Result<usize, ForeignError> {
    let sql = SqlStore::as_it_is(database_url)?;
    let redis = RedisStore::new(redis.clone(), u64::MAX);
    let keys = Keys::of(id);
    let owner = redis.owner(&keys).await?.ok_or_else(|| ForeignError::None(id.clone()))?;
    let here = sql.campaign(id).await?;
    if here.is_some_and(|here| here.register_id.as_str() == owner.register_id) {
        return Err(ForeignError::Ours(id.clone()));
    }
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    let ours = KeysOwner { token: between_tokens(&owner.token), suspended: true, ..owner };
    match redis.suspend(&keys, &ours.register_id, &ours.token).await {
        Ok(SuspendReply::Done(_)) => {}
        Ok(SuspendReply::Late(_)) => return Err(ForeignError::Served(id.clone())),
        Err(RedisStoreError::NotReady(_)) => return Err(ForeignError::Layout),
        Err(error) => return Err(error.into()),
    }
    let (text, claims) = csv_of(&redis, &keys, id).await?;
    out.write_all(&text)?;
    out.sync_all()?;
    let until = Instant::now() + SERVED_WITHIN;
    while Instant::now() < until {
        if redis.owner(&keys).await?.as_ref() != Some(&ours) {
            return Err(ForeignError::Served(id.clone()));
        }
        redis.want_look(id).await?;
        sleep(LOOK).await;
    }
    if redis.drop_keys(&keys, &ours.token).await? {
        Ok(claims)
    } else {
        Err(ForeignError::Served(id.clone()))
    }
}

/// A token above `token` and below the next that its own database draws.
fn between_tokens(token: &str) -> String {
    let whole = token.split('.').next().unwrap_or_default();
    format!("{whole}.5")
}

/// All claims of a suspended campaign as CSV, and their number.
async fn csv_of(redis: &RedisStore, keys: &Keys, id: &CampaignId) -> Result<(Vec<u8>, usize), ForeignError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "id",
        "user_id",
        "quantity",
        "status",
        "sequence",
        "day",
        "claimed_at",
        "expires_at",
    ])?;
    let mut seen = HashSet::new();
    let mut at = Some(redis.scan_claims(keys).await?);
    while let Some(from) = at {
        let (claims, next) = redis.claims_page(keys, from).await?;
        for (user, claim) in claims {
            let line = line_of(id, &user, &claim);
            // A scan may show a claim twice.
            if seen.insert((user, claim.digest)) {
                writer.write_record(line)?;
            }
        }
        at = next;
    }
    let text = writer.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok((text, seen.len()))
}

fn line_of(campaign: &CampaignId, user: &UserId, claim: &ClaimRecord) -> [String; 8] {
    let id = ClaimId { campaign: campaign.clone(), user: user.clone(), digest: claim.digest };
    [
        id.to_string(),
        user.to_string(),
        claim.quantity.to_string(),
        claim.status.as_str().to_owned(),
        claim.sequence.to_string(),
        day_text(i64::from(claim.day)),
        claim.claimed_at.to_string(),
        claim.expires_at.map(|at| at.to_string()).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_between_is_above_its_own_and_below_the_next_also_a_second_time() {
        assert_eq!(between_tokens("7"), "7.5");
        assert_eq!(between_tokens("7.5"), "7.5");
    }
}
