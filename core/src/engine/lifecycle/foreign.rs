//! Exports the claims of another database's campaign from Redis to a file, then removes the campaign's keys.
//!
//! A campaign that a core serves is not removed. The campaign is suspended under a fencing token that is
//! higher than its current token and lower than the next one that its own database issues, and a check of the
//! campaign is requested. A core that serves the campaign finds the suspension within seconds, regardless of
//! its number of campaigns, and reloads the campaign under a higher token. The keys are then not removed.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use claimgate_shared::{CampaignId, ClaimId, UserId};
use tokio::time::{Instant, sleep};

use crate::domain::claim_record::ClaimRecord;
use crate::domain::days::day_text;
use crate::redis_address::RedisAddress;
use crate::store::redis::scripts::keys::Keys;
use crate::store::redis::scripts::replies::SuspendReply;
use crate::store::redis::{KeysOwner, RedisStore, RedisStoreError};
use crate::store::sql::{SqlError, SqlStore};

/// Time in which a core that serves the campaign reloads it.
pub const SERVED_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(500);

/// The reason why the keys were not removed.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// Redis has no keys of the campaign.
    #[error("this Redis has no campaign '{0}'")]
    None(CampaignId),
    /// The campaign belongs to this core's own database.
    #[error("the campaign '{0}' belongs to this database: its keys are removed some time after it has ended")]
    Ours(CampaignId),
    /// A core reloaded the campaign within [`SERVED_WITHIN`].
    #[error("a core serves the campaign '{0}': its keys were left alone, and the file may be out of date")]
    Served(CampaignId),
    /// This version does not support the layout of the keys.
    #[error("the keys have a different layout: use the version of claimgate that wrote them")]
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

/// Writes all claims of the campaign `id` to the new CSV file `file`, then removes its keys from `redis`.
/// Returns the number of claims. Takes [`SERVED_WITHIN`], so that a core that serves the campaign has time to
/// reload it. Dead letters are kept.
///
/// # Errors
/// The keys do not exist, the campaign belongs to `database_url` or is served by a core, its layout is
/// unknown, `file` exists, or a store failed. Nothing was removed, unless the reply to the removal was lost;
/// then `file` is complete. The campaign may stay suspended until a core of its own database loads it.
pub async fn export_and_drop(
    (redis, database_url): (&RedisAddress, &str),
    id: &CampaignId,
    file: &Path,
) -> Result<usize, ForeignError> {
    let sql = SqlStore::without_migrating(database_url);
    let redis = RedisStore::new(redis.clone(), u64::MAX);
    let keys = Keys::of(id);
    let owner = redis.owner(&keys).await?.ok_or_else(|| ForeignError::None(id.clone()))?;
    let here = sql.campaign(id).await?;
    if here.is_some_and(|here| here.register_id.as_str() == owner.register_id) {
        return Err(ForeignError::Ours(id.clone()));
    }
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    let ours = KeysOwner { token: between_tokens(&owner.token), suspended: true, ..owner };
    let layout = match redis.suspend(&keys, &ours.register_id, &ours.token).await {
        Ok(SuspendReply::Done(suspended)) => suspended.layout,
        Ok(SuspendReply::Superseded(_)) => return Err(ForeignError::Served(id.clone())),
        Err(RedisStoreError::NotReady(_)) => return Err(ForeignError::Layout),
        Err(error) => return Err(error.into()),
    };
    let (text, claims) = csv_of(&redis, &keys, layout, id).await?;
    out.write_all(&text)?;
    out.sync_all()?;
    let until = Instant::now() + SERVED_WITHIN;
    while Instant::now() < until {
        if redis.owner(&keys).await?.as_ref() != Some(&ours) {
            return Err(ForeignError::Served(id.clone()));
        }
        redis.request_check(id).await?;
        sleep(POLL).await;
    }
    if redis.drop_keys(&keys, &ours.token).await? {
        Ok(claims)
    } else {
        Err(ForeignError::Served(id.clone()))
    }
}

/// Returns a token above `token` and below the next token that the campaign's own database issues.
fn between_tokens(token: &str) -> String {
    let whole = token.split('.').next().unwrap_or_default();
    format!("{whole}.5")
}

/// Returns all claims of a suspended campaign as CSV, and the number of claims.
async fn csv_of(
    redis: &RedisStore,
    keys: &Keys,
    layout: u32,
    id: &CampaignId,
) -> Result<(Vec<u8>, usize), ForeignError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record("id,user_id,quantity,status,sequence,day,claimed_at,expires_at".split(','))?;
    let mut seen = HashSet::new();
    let mut at = Some(redis.scan_claims(keys, layout).await?);
    while let Some(from) = at {
        let (claims, next) = redis.claims_page(keys, from).await?;
        for (user, claim) in claims {
            let line = line_of(id, &user, &claim);
            // A scan may return a claim twice.
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
    fn the_token_lies_between_the_current_and_the_next() {
        assert_eq!(between_tokens("7"), "7.5");
        assert_eq!(between_tokens("7.5"), "7.5");
    }
}
