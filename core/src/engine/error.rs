//! The engine's errors.

use std::sync::Arc;

use claimgate_shared::{Claim, Problem, Version};

use super::batcher::BatcherError;
use super::recovery::RecoveryError;
use super::sync::SyncError;
use crate::store::redis::RedisStoreError;
use crate::store::sql::{OutboxWriteError, SqlError};

/// Why the engine did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such campaign.
    #[error("there is no such campaign")]
    CampaignNotFound,
    /// There is no such claim.
    #[error("there is no such claim")]
    ClaimNotFound,
    /// There is no such webhook.
    #[error("there is no such webhook")]
    WebhookNotFound,
    /// Another campaign has the id.
    #[error("another campaign has this id")]
    CampaignExists,
    /// Redis has keys of another register's campaign of that id.
    #[error("Redis holds another register's campaign of this id")]
    OfAnotherRegister,
    /// The campaign is at this version, and the change was made against another.
    #[error("the campaign is at version {0}")]
    VersionConflict(Version),
    /// The campaign was ended by an admin, for good.
    #[error("an ended campaign stays ended")]
    CampaignEnded,
    /// Claims may be decided on the campaign at this moment.
    #[error("the campaign is open")]
    CampaignOpen,
    /// An import is unfinished: until the same file has completed it, the campaign can only be ended.
    #[error("an import is unfinished")]
    ImportUnfinished,
    /// The database refuses claims of an import, which is unfinished now.
    #[error("the database refuses claims of an import: {0}")]
    ImportRefused(#[source] OutboxWriteError),
    /// A change of a campaign is in SQL, but may not be in force yet.
    #[error("the change is stored, but may not be in force yet: {0}")]
    NotInForce(#[source] Box<EngineError>),
    /// A user's claims cannot be told in time while so much waits for SQL.
    #[error("too much waits for SQL")]
    TooMuchWaits,
    /// What was given as a cursor is no place of this database's feed.
    #[error("the cursor is not of this feed")]
    CursorInvalid,
    /// The claim stands as it is, and cannot become what was asked for.
    #[error("the claim is {}", .0.status.as_str())]
    ClaimStands(Box<Claim>),
    /// Another core is loading the campaign.
    #[error("another core is loading the campaign")]
    LoadingElsewhere,
    /// What was asked for is not valid.
    #[error("not valid: {}", .0.detail)]
    Invalid(Problem),
    /// A claim was not decided, or that is unknown.
    #[error(transparent)]
    Batcher(#[from] BatcherError),
    /// A call on the campaign gave no answer.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// The campaign could not be loaded into Redis.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// SQL did not answer.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl From<RedisStoreError> for EngineError {
    fn from(error: RedisStoreError) -> Self {
        Self::Sync(error.into())
    }
}

impl From<SqlError> for BatcherError {
    fn from(error: SqlError) -> Self {
        Self::Sync(Arc::new(error.into()))
    }
}
