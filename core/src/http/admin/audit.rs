//! Who changed which campaign, and who confirmed or returned which claim, when and how.

use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use claimgate_shared::admin::Page;
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{CampaignId, ClaimId, Problem, Timestamp, Version};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::http::error::{ApiResult, no_such_campaign};
use crate::http::extract::{Viewer, json};
use crate::http::paging::page_size;
use crate::http::state::AppState;
use crate::store::sql::AuditEntry;

/// A change of a campaign, of a claim or of a webhook.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditItem {
    /// Its place in the audit of all campaigns: rises with each change, by one or more.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// The name of the admin's or back end's token; `admin` for the one without a name.
    pub who: String,
    /// `create`, `update`, `add`, `pause`, `resume`, `end` or `import`; of a claim `confirm` or `return`; of a webhook
    /// `webhook_create`, `webhook_delete`, `webhook_enable`, `webhook_disable` or `webhook_rotate_secret`.
    pub what: String,
    /// The campaign that was changed, or whose claim or webhook was; `null` for a webhook of all campaigns.
    #[schema(value_type = Option<String>)]
    pub campaign_id: Option<CampaignId>,
    /// The claim that was confirmed or returned; `null` when the campaign was changed.
    #[schema(value_type = Option<String>)]
    pub claim_id: Option<ClaimId>,
    /// The webhook that was changed; `null` for all else.
    pub webhook_id: Option<String>,
    /// The version of the campaign that the change made; `null` for all else.
    pub version: Option<u64>,
    /// The rules before it, the claim's `status`, or the webhook; `null` when it was created.
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The same after it.
    #[schema(value_type = Object)]
    pub after: Value,
}

impl From<AuditEntry> for AuditItem {
    fn from(entry: AuditEntry) -> Self {
        Self {
            number: entry.number,
            at: entry.at,
            who: entry.who,
            what: entry.what,
            campaign_id: entry.campaign_id,
            claim_id: entry.claim_id,
            webhook_id: entry.webhook_id,
            version: entry.version.map(Version::get),
            before: entry.before,
            after: entry.after,
        }
    }
}

/// Which part of the audit.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Of this campaign alone.
    campaign_id: Option<String>,
    /// The `next_cursor` of the page before, or the `number` of the last item read.
    after: Option<String>,
    /// The most items of a page, 1 to 1000; 100 when left out.
    limit: Option<u32>,
}

/// Lists the changes of campaigns, and who confirmed and returned claims, in the order in which SQL has learnt of them.
#[utoipa::path(
    get, path = "/admin/v1/audit", tag = "admin", params(AuditQuery),
    responses(
        (status = 200, description = "A page", body = Page<AuditItem>),
        (status = "default", description = "404 campaign_not_found and other problems", body = ProblemFields),
    ),
)]
pub async fn list(State(state): State<AppState>, Viewer(caller): Viewer, uri: Uri) -> ApiResult {
    let Query(query) = Query::<AuditQuery>::try_from_uri(&uri)
        .map_err(|error| Problem::invalid("query", error.body_text()))?;
    let limit = page_size(query.limit)?;
    let campaign = query.campaign_id.as_deref().map(str::parse::<CampaignId>).transpose();
    let campaign = campaign.map_err(|error| Problem::invalid("campaign_id", error))?;
    let after = query.after.as_deref().unwrap_or("0").parse::<u64>();
    let after = after.map_err(|_| Problem::invalid("after", "must be the number of an item"))?;
    let entries = state.engine(&caller).audit(campaign.as_ref(), after, limit).await?;
    // Every campaign has been created.
    if campaign.is_some() && after == 0 && entries.is_empty() {
        return Err(no_such_campaign().into());
    }
    let is_full = entries.len() == limit as usize;
    let last = entries.last().filter(|_| is_full).map(|entry| entry.number.to_string());
    let items: Vec<AuditItem> = entries.into_iter().map(AuditItem::from).collect();
    json(StatusCode::OK, &Page { items, next_cursor: last })
}
