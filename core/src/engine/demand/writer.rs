//! The single writer of refusals.

use std::collections::BTreeSet;
use std::sync::Arc;

use claimgate_shared::refusals::UNKNOWN_CAMPAIGN;
use tokio::sync::mpsc;

use super::{Refusals, WaitingReport};
use crate::clock;
use crate::domain::refusals::{RefusedBy, Report};
use crate::engine::campaign::registry::CampaignRegistry;
use crate::engine::error::{EngineError, StoreError};
use crate::store::sql::{SqlError, SqlStore};

/// Maximum number of reports written in one transaction.
const BATCH_MAX: usize = 256;
/// Maximum age of a refusal in a report, in seconds. Older refusals are dropped: the number of a report
/// that is sent again may no longer be in SQL.
const AGE_MAX_S: i64 = 55 * 60;

/// Writes the reports of edges and this core's own counts to SQL.
#[derive(Debug)]
pub struct RefusalWriter {
    refusals: Refusals,
    registry: Arc<CampaignRegistry>,
    sql: SqlStore,
    receiver: mpsc::Receiver<WaitingReport>,
    batch: Vec<WaitingReport>,
    /// Names this run of core in its own reports.
    run: String,
    /// The number of this run's last report.
    number: u64,
    /// The last own report, until it is written.
    unwritten: Option<Report>,
}

impl RefusalWriter {
    /// Creates the writer of `refusals` for the core's run `run`; `None` if there is one already.
    pub fn new(
        refusals: &Refusals,
        registry: &Arc<CampaignRegistry>,
        sql: &SqlStore,
        run: &str,
    ) -> Option<Self> {
        let receiver = refusals.shared.receiver.lock().take()?;
        Some(Self {
            refusals: refusals.clone(),
            registry: Arc::clone(registry),
            sql: sql.clone(),
            receiver,
            batch: Vec::new(),
            run: run.to_owned(),
            number: 0,
            unwritten: None,
        })
    }

    /// Waits for reports of edges. Dropping the future loses none.
    pub async fn wait(&mut self) {
        if self.receiver.recv_many(&mut self.batch, BATCH_MAX).await == 0 {
            std::future::pending::<()>().await;
        }
    }

    /// Writes the reports that [`Self::wait`] has received, and answers their edges.
    pub async fn write_received(&mut self) {
        let (reports, answers): (Vec<_>, Vec<_>) =
            self.batch.drain(..).map(|waiting| (waiting.report, waiting.answer)).unzip();
        let written = self.write(reports).await.map_err(|error| Arc::new(StoreError::from(error)));
        for answer in answers {
            // An edge that no longer waits sends its report again.
            let _ = answer.send(written.clone().map_err(EngineError::Store));
        }
    }

    /// Writes this core's own counts, or the last counts again if they may not have been written.
    pub async fn write_own(&mut self) -> Result<(), SqlError> {
        if self.unwritten.is_none() {
            let refused = self.refusals.take();
            if refused.is_empty() {
                return Ok(());
            }
            self.number += 1;
            self.unwritten = Some(Report::of_core(&self.run, self.number, refused));
        }
        self.write(self.unwritten.iter().cloned().collect()).await?;
        self.unwritten = None;
        Ok(())
    }

    /// Removes the report numbers and refusals that are past their retention from SQL.
    pub async fn remove_old(&self) -> Result<(), SqlError> {
        self.sql.remove_old_refusals(clock::now()).await
    }

    async fn write(&self, mut reports: Vec<Report>) -> Result<(), SqlError> {
        let now_s = clock::now().as_ms() / 1_000;
        self.name_unknown_campaigns(&mut reports).await?;
        for report in &mut reports {
            report.refusals.retain(|refusal| now_s - refusal.at_s < AGE_MAX_S);
            for refusal in &mut report.refusals {
                refusal.at_s = refusal.at_s.min(now_s);
            }
        }
        let are_new = self.sql.add_refusals(&reports).await?;
        let mut totals = self.refusals.shared.totals.lock();
        let of_edges = |(report, is_new): &(Report, bool)| *is_new && report.by == RefusedBy::Edge;
        for (report, _) in reports.into_iter().zip(are_new).filter(of_edges) {
            totals.add(report.refusals);
        }
        Ok(())
    }

    /// Replaces ids that name no campaign: made-up ids must not fill tables or metrics.
    async fn name_unknown_campaigns(&self, reports: &mut [Report]) -> Result<(), SqlError> {
        let is_in_memory = |id: &str| id.parse().is_ok_and(|id| self.registry.get(&id).is_some());
        let ids: BTreeSet<String> = reports
            .iter()
            .flat_map(|report| &report.refusals)
            .map(|refusal| refusal.campaign.clone())
            .filter(|id| id != UNKNOWN_CAMPAIGN && !is_in_memory(id))
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        let known = self.sql.known_campaigns(&ids.iter().map(String::as_str).collect()).await?;
        for refusal in reports.iter_mut().flat_map(|report| &mut report.refusals) {
            if ids.contains(&refusal.campaign) && !known.contains(&refusal.campaign) {
                UNKNOWN_CAMPAIGN.clone_into(&mut refusal.campaign);
            }
        }
        Ok(())
    }
}
