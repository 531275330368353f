//! Refreshes of campaigns from core, by one request at a time.

use std::rc::Rc;

use claimgate_shared::{CampaignId, Code, Problem, Timestamp};
use worker::js_sys::Math;

use super::snapshot::{Snapshot, View};
use super::store::{self, Lookup};
use crate::clock;
use crate::core_client::CoreClient;
use crate::core_client::circuit_breaker::CallKind;
use crate::core_client::request::CoreRequest;
use crate::core_client::response::{self, CoreResponse};

/// Core's response about a campaign.
#[derive(Debug)]
pub enum Refreshed {
    /// The campaign's new snapshot.
    Snapshot(Rc<Snapshot>),
    /// A problem, to be returned unchanged.
    Problem(CoreResponse),
}

/// The right of one request to fetch a campaign from core. Dropping it gives up the right.
#[derive(Debug)]
pub struct Refresh {
    id: CampaignId,
    began_at: Timestamp,
}

impl Refresh {
    /// Begins a refresh at `now`, if `found` is due and no other request is refreshing the campaign.
    pub fn begin(id: &CampaignId, found: &Lookup, now: Timestamp) -> Option<Self> {
        let has_begun = found.is_due(now) && store::with(|cache| cache.begin_refresh(id, now));
        has_begun.then(|| Self { id: id.clone(), began_at: now })
    }

    /// Fetches the campaign, caches it and returns it. A campaign that does not exist is cached as not found.
    ///
    /// # Errors
    /// `unavailable` if core does not respond in time, or its response is not this campaign.
    pub async fn run(self, core: &CoreClient<'_>, request_id: &str) -> Result<Refreshed, Problem> {
        let requested_at = clock::now()?;
        let path = format!("/internal/v1/campaigns/{}", self.id);
        // The snapshot is for all users, so the request names no user.
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
            return Err(response::invalid_response(&"it describes another campaign"));
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
