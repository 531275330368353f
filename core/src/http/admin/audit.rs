//! The audit: changes of campaigns, and confirmations, returns and extensions of claims, each with its caller and
//! time.

use axum::http::{StatusCode, Uri};
use claimgate_shared::admin::Page;
use claimgate_shared::{CampaignId, Problem};
use serde::Deserialize;

use crate::domain::audit::AuditItem;
use crate::http::authorization::Viewer;
use crate::http::error::{ApiResult, no_such_campaign};
use crate::http::extract::json;
use crate::http::paging::{optional, page_size, parse_query};
use crate::store::sql::AuditFilter;

/// The query parameters of the audit.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Only this campaign.
    #[param(value_type = Option<CampaignId>)]
    campaign_id: Option<String>,
    /// `false`: without confirmations, returns and extensions of claims. The default is `true`.
    claims: Option<bool>,
    /// The `next_cursor` of the previous page, or the `number` of the last item read.
    #[param(pattern = "^[0-9]{1,19}$")]
    after: Option<String>,
    /// The maximum number of items on a page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Lists changes of campaigns, and confirmations, returns and extensions of claims, in the order in which they
/// reached SQL.
#[utoipa::path(
    get, path = "/admin/v1/audit", tag = "admin", operation_id = "listAudit", params(AuditQuery),
    responses((status = 200, description = "A page", body = Page<AuditItem>)),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["campaign_not_found"]))),
)]
pub async fn list(Viewer(_, engine): Viewer, uri: Uri) -> ApiResult {
    let query: AuditQuery = parse_query(&uri)?;
    let limit = page_size(query.limit)?;
    let campaign: Option<CampaignId> = optional("campaign_id", query.campaign_id.as_deref())?;
    let after = query.after.as_deref().unwrap_or("0").parse::<u64>();
    let after = after.map_err(|_| Problem::invalid("after", "must be the number of an audit item"))?;
    let filter = AuditFilter { campaign: campaign.as_ref(), claims: query.claims.unwrap_or(true) };
    let items = engine.campaigns.audit(filter, after, limit).await?;
    // An existing campaign has at least its creation in the audit.
    if campaign.is_some() && after == 0 && items.is_empty() {
        return Err(no_such_campaign().into());
    }
    let is_full = items.len() == limit as usize;
    let last = items.last().filter(|_| is_full).map(|item| item.number.to_string());
    json(StatusCode::OK, &Page { items, next_cursor: last })
}
