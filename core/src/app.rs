//! What every handler works with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use claimgate_shared::{Attempt, CampaignId, ClaimId, ClaimRequest, Code, Problem};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::archive::{Archive, ArchiveError};
use crate::archived;
use crate::campaign::Campaign;
use crate::campaigns::{Campaigns, Known};
use crate::gate::{Decision, Gate, GateError};
use crate::http::auth::Gatekeeper;
use crate::http::claims::no_such_claim;
use crate::ledger::record::Record;
use crate::ledger::scripts::Counters;
use crate::ledger::{Ledger, LedgerError};
use crate::reconcile::Reconciler;
use crate::recovery::{Recovery, RecoveryError};

/// Shared by all handlers; cheap to clone.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// What an [`App`] is made of.
#[derive(Debug)]
pub struct Parts {
    /// To Redis.
    pub ledger: Arc<Ledger>,
    /// To SQL.
    pub archive: Archive,
    /// Decides claims.
    pub gate: Gate,
    /// What is known of the register.
    pub campaigns: Arc<Campaigns>,
    /// Brings campaigns back.
    pub recovery: Arc<Recovery>,
    /// Who may call.
    pub gatekeeper: Gatekeeper,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    /// Requests handled at once, per listener.
    pub concurrency_max: usize,
    serving: AtomicBool,
    pub(crate) redis_up: AtomicBool,
    pub(crate) sql_up: AtomicBool,
}

impl std::ops::Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Whether Redis and SQL answered when last asked.
#[derive(Debug, Clone, Copy)]
pub struct Health {
    /// Redis answered.
    pub redis: bool,
    /// SQL answered.
    pub sql: bool,
}

impl App {
    /// Puts the parts together.
    pub fn new(
        gate: Gate,
        archive: Archive,
        recovery: Arc<Recovery>,
        gatekeeper: Gatekeeper,
        metrics: PrometheusHandle,
        concurrency_max: usize,
    ) -> Self {
        Self(Arc::new(Parts {
            gate,
            ledger: Arc::clone(&recovery.ledger),
            archive,
            campaigns: Arc::clone(&recovery.campaigns),
            recovery,
            gatekeeper,
            metrics,
            concurrency_max,
            serving: AtomicBool::new(false),
            redis_up: AtomicBool::new(false),
            sql_up: AtomicBool::new(false),
        }))
    }

    /// Lets requests in, or no more of them: only a core that may serve its database with its Redis takes any.
    pub fn set_serving(&self, serving: bool) {
        self.serving.store(serving, Ordering::Release);
    }

    /// Whether requests are let in.
    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Acquire)
    }

    /// The campaign `id`; one that this core has not heard of yet is looked for in SQL.
    pub async fn known(&self, id: &CampaignId) -> Result<Arc<Known>, Problem> {
        if let Some(known) = self.campaigns.get(id) {
            return Ok(known);
        }
        let campaign = self.archive.campaign(id).await.map_err(|error| self.sql_failed(&error))?;
        let campaign = campaign.ok_or_else(Self::no_such_campaign)?;
        Ok(self.campaigns.learn(campaign))
    }

    /// The campaign whose id stands in a path; what is no id has no campaign.
    pub async fn known_by_text(&self, id: &str) -> Result<Arc<Known>, Problem> {
        self.known(&id.parse().map_err(|_| Self::no_such_campaign())?).await
    }

    /// The campaign of a claim; an id that leads nowhere has no claim.
    pub async fn known_for_claim(&self, id: &ClaimId) -> Result<Arc<Known>, Problem> {
        self.known(&id.campaign).await.map_err(|problem| match problem.code {
            Code::CampaignNotFound => no_such_claim(),
            _ => problem,
        })
    }

    /// The campaign as SQL has it now.
    pub async fn register(&self, id: &str) -> Result<Campaign, Problem> {
        let id = id.parse().map_err(|_| Self::no_such_campaign())?;
        let found = self.archive.campaign(&id).await.map_err(|error| self.sql_failed(&error))?;
        found.ok_or_else(Self::no_such_campaign)
    }

    /// Decides a claim, at the gate or, on a campaign that has left Redis, from SQL.
    pub async fn decide(
        &self,
        known: &Arc<Known>,
        request: &ClaimRequest,
        attempt: Attempt,
    ) -> Result<Decision, GateError> {
        let campaign = known.campaign();
        match campaign.archived {
            None => self.gate.claim(known, request, attempt).await,
            Some(archived) => archived::decide(&self.archive, &campaign, archived, request)
                .await
                .map_err(|error| Arc::new(LedgerError::Register(error)).into()),
        }
    }

    /// The campaign's counters, and the claim `id` where Redis has it.
    pub async fn find(
        &self,
        known: &Known,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<Record>), LedgerError> {
        let campaign = known.campaign();
        match campaign.archived {
            None => self.ledger.find(known, id).await,
            Some(archived) => Ok((archived::counters(&campaign, archived), None)),
        }
    }

    /// The campaign's rules at `version` or newer: Redis may already decide by rules that another core has set.
    pub async fn at_least(&self, known: &Arc<Known>, version: u64) -> Result<Arc<Campaign>, Problem> {
        let campaign = known.campaign();
        if campaign.version >= version {
            return Ok(campaign);
        }
        let found = self.archive.campaign(&campaign.id).await.map_err(|error| self.sql_failed(&error))?;
        let found = found.ok_or_else(Self::no_such_campaign)?;
        Ok(self.campaigns.learn(found).campaign())
    }

    /// Brings a campaign that has just been written to SQL into Redis.
    pub async fn opened(&self, campaign: Campaign) -> Result<(), RecoveryError> {
        let known = self.campaigns.learn(campaign);
        self.recovery.ensure_ready(&known).await
    }

    /// Applies a change that has just been written to SQL.
    pub async fn changed(&self, campaign: Campaign) -> Result<(), LedgerError> {
        let known = self.campaigns.learn(campaign);
        // An ended campaign that has left Redis stays away: there is nothing to put into force.
        if known.campaign().archived.is_some() {
            return Ok(());
        }
        match self.apply(&known).await {
            // One that had left and has a future again comes back first.
            Err(LedgerError::NotReady(why)) => {
                if let Err(error) = self.recovery.ensure_ready(&known).await {
                    tracing::warn!(%error, campaign = %known.campaign().id, "not ready");
                    return Err(LedgerError::NotReady(why));
                }
                self.apply(&known).await
            }
            result => result,
        }
    }

    /// Puts the campaign's rules into force in Redis.
    pub(crate) async fn apply(&self, known: &Known) -> Result<(), LedgerError> {
        let campaign = known.campaign();
        self.ledger.change(known, &campaign).await?;
        self.gate.changed(&campaign.id);
        known.applied(campaign.version);
        Ok(())
    }

    /// Compares Redis and SQL.
    pub fn reconciler(&self) -> Reconciler<'_> {
        Reconciler { ledger: &self.ledger, archive: &self.archive, recovery: &self.recovery }
    }

    /// Whether Redis and SQL answered when last asked.
    pub fn health(&self) -> Health {
        Health { redis: self.redis_up.load(Ordering::Relaxed), sql: self.sql_up.load(Ordering::Relaxed) }
    }

    /// What callers are told while SQL does not answer.
    pub fn sql_failed(&self, error: &ArchiveError) -> Problem {
        // One line a request would let anyone fill the log: the health checks say once that SQL is away, and the register
        // which campaign cannot be read.
        tracing::debug!(%error, "SQL did not answer");
        let detail = match error {
            ArchiveError::Unreadable(_) => "the register holds what this version cannot read",
            _ => "the register does not answer",
        };
        Problem::new(Code::Unavailable, detail)
    }

    /// For ids that lead nowhere.
    pub fn no_such_campaign() -> Problem {
        Problem::new(Code::CampaignNotFound, "there is no such campaign")
    }
}
