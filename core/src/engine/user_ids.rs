//! Restricts all callers to one user-id scheme: with a different scheme, every user would get a second
//! allowance.
//!
//! The first claim by an edge pins its scheme in SQL. Every core caches the pinned scheme and polls it
//! once a second. An admin can change it only while all campaigns have ended, and a campaign that had
//! ended then cannot be reopened. So a cached scheme can be outdated only for campaigns created
//! after it was read. A core that learns of a campaign therefore reads the scheme again, after it has
//! read the campaign.
//!
//! The first pin is different: campaigns are live, and other cores may accept other ids until their next
//! poll. The first claim on each of these campaigns therefore checks the campaign, see `claim::user_ids`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use claimgate_shared::admin::user_ids::UserIdsView;
use claimgate_shared::user_id::Scheme;
use claimgate_shared::{Timestamp, UserId};
use parking_lot::{Mutex, RwLock};

use super::error::EngineError;
use crate::clock;
use crate::domain::user_ids::{PinnedScheme, UserIdsDiffer};
use crate::step;
use crate::store::sql::{ChangedBy, SchemePinned, SchemeSet, SqlError, SqlStore};

/// Period in which readiness reports a rejection.
const NAMED_FOR: Duration = Duration::from_secs(60);
/// The minimum time between two log lines about the same rejection.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// TTL of the cached rejection of an edge's scheme that cannot be pinned.
const RETRY_PIN_AFTER: Duration = Duration::from_secs(1);
/// The name of the edge in the audit.
const EDGE: &str = "edge";

/// Restricts all callers to one scheme of user ids.
#[derive(Debug, Clone)]
pub struct UserIds {
    pub(super) sql: SqlStore,
    pub(super) state: Arc<UserIdsState>,
}

/// The part that all threads share.
#[derive(Debug, Default)]
pub struct UserIdsState {
    /// The scheme last read from SQL.
    pinned: RwLock<Option<PinnedScheme>>,
    /// Taken while a scheme is pinned, so that a crowd's first claims pin it once.
    pinning: tokio::sync::Mutex<()>,
    rejection: Mutex<Option<Rejection>>,
}

/// The last rejection.
#[derive(Debug)]
struct Rejection {
    why: UserIdsDiffer,
    at: Instant,
    logged_at: Instant,
}

impl UserIds {
    /// Reads the pinned scheme from SQL. If the database has lost it, writes it again.
    pub async fn refresh(&self) -> Result<(), SqlError> {
        let stored = match (self.sql.user_id_scheme().await?, self.pinned()) {
            (None, Some(known)) => Some(self.sql.restore_user_ids(known, "core").await?),
            (stored, _) => stored,
        };
        self.cache(stored);
        Ok(())
    }

    /// Caches the scheme read from SQL, unless this core has observed a later change.
    fn cache(&self, stored: Option<PinnedScheme>) {
        let mut pinned = self.state.pinned.write();
        if pinned.map(|pinned| pinned.since) <= stored.map(|stored| stored.since) {
            *pinned = stored;
        }
    }

    /// Checks a claim of `user`; `edge` is the user-id scheme of the edge that sent it. The first claim by an
    /// edge pins its scheme. Returns the pinned scheme.
    ///
    /// # Errors
    /// [`EngineError::UserIdsDiffer`], or a store's error while no scheme is pinned.
    pub async fn check_claim(
        &self,
        edge: Option<Scheme>,
        user: &UserId,
    ) -> Result<Option<PinnedScheme>, EngineError> {
        let pinned = match (self.pinned(), edge) {
            (None, None) => return Ok(None),
            // Boxed, because it would make every claim's future larger.
            (None, Some(scheme)) => Box::pin(self.pin(scheme)).await?,
            (Some(pinned), edge) => {
                self.check_scheme(pinned, edge)?;
                pinned
            }
        };
        if pinned.scheme.admits(user) {
            return Ok(Some(pinned));
        }
        Err(self.rejected(UserIdsDiffer::Id { pinned: pinned.scheme }))
    }

    /// Checks the scheme of an edge that reads for one of its users.
    ///
    /// # Errors
    /// [`EngineError::UserIdsDiffer`].
    pub fn check_read(&self, edge: Option<Scheme>) -> Result<(), EngineError> {
        self.pinned().map_or(Ok(()), |pinned| self.check_scheme(pinned, edge))
    }

    /// Returns the pinned scheme as this core knows it.
    pub fn pinned(&self) -> Option<PinnedScheme> {
        *self.state.pinned.read()
    }

    /// Returns the pinned scheme as SQL has it, and the last rejection.
    pub async fn view(&self) -> Result<UserIdsView, EngineError> {
        self.refresh().await?;
        let pinned = self.pinned();
        Ok(UserIdsView {
            user_ids: pinned.map(|pinned| pinned.scheme),
            since: pinned.map(|pinned| pinned.since),
            refused: self.last_rejection(),
        })
    }

    /// Returns why a caller was rejected within the last minute.
    pub fn last_rejection(&self) -> Option<String> {
        let rejection = self.state.rejection.lock();
        rejection.as_ref().filter(|last| last.at.elapsed() < NAMED_FOR).map(|last| last.why.to_string())
    }

    /// Changes the pinned scheme at `now`, once all campaigns have ended; `who` is the caller's name in
    /// the audit. Other cores apply the change within a second.
    ///
    /// # Errors
    /// [`EngineError::CampaignNotEnded`].
    pub async fn set(&self, scheme: Scheme, who: &str, now: Timestamp) -> Result<(), EngineError> {
        match self.sql.set_user_ids(scheme, ChangedBy { who, at: now }).await? {
            SchemeSet::Live(campaign) => Err(EngineError::CampaignNotEnded(campaign)),
            SchemeSet::Done(pinned) => {
                tracing::info!(who, user_ids = %pinned.scheme, "the database is pinned to these user ids");
                self.cache(Some(pinned));
                *self.state.rejection.lock() = None;
                Ok(())
            }
        }
    }

    fn check_scheme(&self, pinned: PinnedScheme, edge: Option<Scheme>) -> Result<(), EngineError> {
        let pinned = pinned.scheme;
        match edge.filter(|edge| *edge != pinned) {
            None => Ok(()),
            Some(edge) => Err(self.rejected(UserIdsDiffer::Edge { edge, pinned })),
        }
    }

    /// Pins the scheme of the first edge, and returns the pinned one.
    async fn pin(&self, scheme: Scheme) -> Result<PinnedScheme, EngineError> {
        let pinned = if step::is_scheduled() {
            self.pin_once(scheme).await?
        } else {
            let this = self.clone();
            // On a task: a claim has less time than a large campaign's claims take to be checked.
            let pinned = tokio::spawn(async move { this.pin_once(scheme).await });
            pinned.await.map_err(|_| EngineError::Stopping)??
        };
        self.check_scheme(pinned, Some(scheme))?;
        Ok(pinned)
    }

    async fn pin_once(&self, scheme: Scheme) -> Result<PinnedScheme, EngineError> {
        let _turn = self.state.pinning.lock().await;
        if let Some(pinned) = self.pinned() {
            return Ok(pinned);
        }
        if let Some(why) = self.recently_unpinnable(scheme) {
            // Not recorded again: repeated claims must not prolong the rejection.
            return Err(EngineError::UserIdsDiffer(why));
        }
        let earlier_claims =
            |campaign| self.rejected(UserIdsDiffer::EarlierClaims { edge: scheme, campaign });
        // Checking all claims takes too long for a transaction, which then checks only campaigns that have
        // changed since.
        let checked = self.sql.last_change().await?;
        if let Some(campaign) = self.sql.campaign_with_other_user_ids(scheme, clock::now()).await? {
            return Err(earlier_claims(campaign));
        }
        let by = ChangedBy { who: EDGE, at: clock::now() };
        let pinned = match self.sql.pin_user_ids(scheme, checked, by).await? {
            SchemePinned::Done(pinned) => pinned,
            SchemePinned::EarlierClaims(campaign) => return Err(earlier_claims(campaign)),
        };
        tracing::info!(user_ids = %pinned.scheme, "user ids pinned: back ends must send the same ids as the edge");
        self.cache(Some(pinned));
        Ok(pinned)
    }

    fn recently_unpinnable(&self, scheme: Scheme) -> Option<UserIdsDiffer> {
        let rejection = self.state.rejection.lock();
        let recent = rejection.as_ref().filter(|last| last.at.elapsed() < RETRY_PIN_AFTER)?;
        match &recent.why {
            UserIdsDiffer::EarlierClaims { edge, .. } if *edge == scheme => Some(recent.why.clone()),
            _ => None,
        }
    }

    /// Records and logs a rejection.
    pub(super) fn rejected(&self, why: UserIdsDiffer) -> EngineError {
        let now = Instant::now();
        let mut last = self.state.rejection.lock();
        let same = last.as_ref().filter(|last| last.why == why && now - last.logged_at < LOG_EVERY);
        let logged_at = same.map_or(now, |same| same.logged_at);
        if same.is_none() {
            tracing::error!(%why, "rejected a caller's user ids");
        }
        *last = Some(Rejection { why: why.clone(), at: now, logged_at });
        EngineError::UserIdsDiffer(why)
    }
}
