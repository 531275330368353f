//! The engine's errors.

use std::sync::Arc;

use claimgate_shared::{CampaignId, Claim, Problem, Version};

use crate::domain::not_ready::NotReadyReason;
use crate::domain::user_ids::UserIdsDiffer;
use crate::store::redis::RedisStoreError;
use crate::store::redis::loader::LoadError;
use crate::store::sql::{OutboxWriteError, SqlError};

/// The error of a store that did not return a usable answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Redis failed.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// SQL failed.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl StoreError {
    /// Creates the error for a campaign that is not ready for this reason.
    pub fn not_ready(reason: NotReadyReason) -> Self {
        Self::Redis(RedisStoreError::NotReady(reason))
    }

    /// Returns why there was no decision.
    pub fn no_decision(&self) -> NoDecision {
        match self {
            Self::Redis(RedisStoreError::NotReady(reason)) => NoDecision::NotReady(*reason),
            Self::Redis(RedisStoreError::OutOfMemory(_)) => NoDecision::OutOfMemory,
            Self::Redis(error) if error.is_unreachable() => NoDecision::Unavailable,
            Self::Sql(error) if error.is_transient() => NoDecision::Unavailable,
            Self::Redis(_) | Self::Sql(_) => NoDecision::Unusable,
        }
    }

    /// Returns the reason if the error is that the campaign is not ready.
    pub fn not_ready_reason(&self) -> Option<NotReadyReason> {
        match self.no_decision() {
            NoDecision::NotReady(reason) => Some(reason),
            _ => None,
        }
    }
}

/// Why a store made no decision. The call is safe to retry with the same ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDecision {
    /// The campaign is not ready for this reason; nothing was decided.
    NotReady(NotReadyReason),
    /// Redis is out of memory; nothing was decided.
    OutOfMemory,
    /// Timed out: the call may have taken effect.
    Unavailable,
    /// A store answered with an error, or with something else than this version expects.
    Unusable,
}

impl NoDecision {
    /// Returns the reason as a label of the metric of undecided claims.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotReady(_) => "not_ready",
            Self::OutOfMemory => "out_of_memory",
            Self::Unavailable | Self::Unusable => "unavailable",
        }
    }
}

/// The reason why a campaign could not be loaded yet.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A store failed.
    #[error(transparent)]
    Store(StoreError),
    /// A newer loader has taken over, or the keys were lost.
    #[error("a newer loader has taken over")]
    Superseded,
    /// The system returned no random bytes for the id of a lease's holder.
    #[error("the system returned no random bytes: {0}")]
    Random(#[from] getrandom::Error),
    /// SQL refuses outbox entries.
    #[error(transparent)]
    OutboxRefused(OutboxWriteError),
    /// This version does not support the layout of the keys.
    #[error("its keys have a different layout: another version of claimgate uses them")]
    Layout,
    /// The keys belong to another database's campaign.
    #[error("its keys in Redis belong to another database's campaign with the same id")]
    OtherDatabase,
}

impl RecoveryError {
    /// Creates the error for keys that `suspend.lua` refuses to suspend.
    pub(super) fn suspension_refused(reason: NotReadyReason) -> Self {
        if reason == NotReadyReason::Layout { Self::Layout } else { Self::OtherDatabase }
    }
}

impl<E: Into<StoreError>> From<E> for RecoveryError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

impl From<LoadError> for RecoveryError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Superseded => Self::Superseded,
            LoadError::Redis(error) => error.into(),
        }
    }
}

impl From<OutboxWriteError> for RecoveryError {
    fn from(error: OutboxWriteError) -> Self {
        match error {
            OutboxWriteError::Sql(error) => error.into(),
            refused => Self::OutboxRefused(refused),
        }
    }
}

/// The reason why the engine could not process a request.
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
    /// A different campaign has this id. The value lists the members that differ.
    #[error("another campaign has this id, with a different {}", .0.join(", "))]
    CampaignExists(Vec<&'static str>),
    /// Redis has keys of another database's campaign with this id.
    #[error("Redis holds another database's campaign with this id")]
    OtherDatabase,
    /// The change was based on a different version than the campaign's current version, which is this one.
    #[error("the campaign is at version {0}")]
    VersionConflict(Version),
    /// The campaign was ended by an admin, which is final.
    #[error("the campaign has ended and can no longer be changed")]
    CampaignEnded,
    /// Claims may be decided on the campaign now.
    #[error("the campaign is open")]
    CampaignOpen,
    /// Only an ended campaign can be archived.
    #[error("the campaign has not ended")]
    CampaignNotEndedYet,
    /// The user ids cannot be changed while this campaign has not ended.
    #[error("the campaign {0} has not ended")]
    CampaignNotEnded(CampaignId),
    /// A caller's user ids are not those of the database; nothing was changed.
    #[error("{0}")]
    UserIdsDiffer(UserIdsDiffer),
    /// An import is unfinished. Until the same file is imported completely, the campaign can only be ended.
    #[error("an import is unfinished")]
    ImportUnfinished,
    /// The database refuses claims of the import, which is therefore unfinished.
    #[error("the database refused claims of an import: {0}")]
    ImportRefused(#[source] OutboxWriteError),
    /// The change is in SQL, but may not be in force yet.
    #[error("the change is stored, but may not be in force yet: {0}")]
    NotInForce(#[source] Box<EngineError>),
    /// A user's claims cannot be listed in time: too many events are not yet in SQL.
    #[error("SQL is too far behind")]
    TooFarBehind,
    /// The cursor is not a position in this database's feed.
    #[error("the cursor is not from this feed")]
    CursorInvalid,
    /// The claim keeps its status, which does not allow the requested transition.
    #[error("the claim is {}", .0.status.as_str())]
    ClaimStands(Box<Claim>),
    /// The claim's hold was extended the maximum number of times; nothing was changed.
    #[error("the hold was extended too often")]
    ExtendedTooOften(Box<Claim>),
    /// Another core is loading the campaign.
    #[error("another core is loading the campaign")]
    LoadingElsewhere,
    /// The request is not valid.
    #[error("not valid: {}", .0.detail)]
    Invalid(Problem),
    /// Too many claims are queued; the claim was not processed.
    #[error("too many claims are queued")]
    QueueFull,
    /// The outbox is full; nothing was changed.
    #[error("too many events are pending for SQL")]
    OutboxFull,
    /// Core is stopping, so it is unknown whether the claim was decided.
    #[error("core is stopping")]
    Stopping,
    /// The system returned no random bytes for a secret; nothing was changed.
    #[error("the system returned no random bytes: {0}")]
    Random(getrandom::Error),
    /// A store failed; the request may have been processed.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
    /// The campaign could not be loaded into Redis, though both stores answered.
    #[error(transparent)]
    NotLoaded(RecoveryError),
}

impl EngineError {
    /// Returns why a store made no decision; `None` if the call failed for another reason.
    pub fn no_decision(&self) -> Option<NoDecision> {
        match self {
            Self::Store(error) => Some(error.no_decision()),
            Self::NotInForce(error) => error.no_decision(),
            _ => None,
        }
    }

    /// Returns whether SQL answered with data that this version cannot read.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Store(error) if matches!(**error, StoreError::Sql(SqlError::Unreadable(_))))
    }
}

impl<E: Into<StoreError>> From<E> for EngineError {
    fn from(error: E) -> Self {
        Self::Store(Arc::new(error.into()))
    }
}

impl From<RecoveryError> for EngineError {
    fn from(error: RecoveryError) -> Self {
        match error {
            RecoveryError::Store(error) => error.into(),
            other => Self::NotLoaded(other),
        }
    }
}
