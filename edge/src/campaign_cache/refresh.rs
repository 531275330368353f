//! Fetching a campaign from core, by one request at a time.

use std::rc::Rc;

use claimgate_shared::{CampaignId, Code, Problem, Timestamp};
use worker::js_sys::Math;

use super::snapshot::{Snapshot, View};
use super::store::{self, Lookup};
use crate::clock;
use crate::core_client::circuit_breaker::CallKind;
use crate::core_client::{self, CoreClient, CoreRequest, CoreResponse};

/// What core answered when it was asked for a campaign.
#[derive(Debug)]
pub enum Refreshed {
    /// The campaign's new snapshot.
    Snapshot(Rc<Snapshot>),
    /// A problem, to be passed on as it is.
    Problem(CoreResponse),
}

/// The turn of one request to fetch a campaign from core. Dropping it ends the turn.
#[derive(Debug)]
pub struct Refresh {
    id: CampaignId,
    began_at: Timestamp,
}

impl Refresh {
    /// Takes the turn at `now`, if `found` is due for a refresh and no other request has the turn.
    pub fn begin(id: &CampaignId, found: &Lookup, now: Timestamp) -> Option<Self> {
        let has_turn = found.is_due(now) && store::with(|cache| cache.begin_refresh(id, now));
        has_turn.then(|| Self { id: id.clone(), began_at: now })
    }

    /// Fetches the campaign, puts it into the cache and returns it. A campaign that core does not know is cached as such.
    ///
    /// # Errors
    /// `unavailable` when core does not answer in time, or answers with something that is not this campaign.
    pub async fn run(self, core: &CoreClient<'_>, request_id: &str) -> Result<Refreshed, Problem> {
        let requested_at = clock::now()?;
        let path = format!("/internal/v1/campaigns/{}", self.id);
        // The snapshot serves every user, so it is requested without one.
        let kind = store::call_kind(&self.id, requested_at, CallKind::Views);
        let response = core.send(CoreRequest::new(kind, &path, request_id)).await?;
        if response.summary().is_problem(Code::CampaignNotFound) {
            store::with(|cache| cache.insert_not_found(self.id.clone(), requested_at));
        }
        if response.summary().problem.is_some() {
            return Ok(Refreshed::Problem(response));
        }
        let view: View = response.read()?;
        if view.id != self.id {
            return Err(core_client::invalid_response(&"it is about another campaign"));
        }
        let snapshot = Rc::new(Snapshot::new(view, requested_at, clock::now()?, Math::random()));
        store::with(|cache| cache.insert(Rc::clone(&snapshot)));
        Ok(Refreshed::Snapshot(snapshot))
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        store::with(|cache| cache.end_refresh(&self.id, self.began_at));
    }
}
