//! A campaign's claims as stored in SQL, in pages or all in one response as CSV; and the return of a claim.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use claimgate_shared::admin::{ClaimItem, Page};
use claimgate_shared::claim_request::ClaimLookup;
use claimgate_shared::{CampaignId, ClaimCode, ClaimId, ClaimStatus, Problem, UserId, http};
use serde::Deserialize;

use crate::clock;
use crate::credentials::Role;
use crate::domain::claim_transition::{ClaimReturn, Requester};
use crate::domain::codes::CODES_AT_ONCE;
use crate::domain::days::day_text;
use crate::domain::parts::parts;
use crate::engine::{Engine, EngineError};
use crate::http::authorization::{Operator, Viewer};
use crate::http::error::ApiResult;
use crate::http::extract::{PathCampaign, PathClaim, WithBody, json, prefers};
use crate::http::middleware::in_time;
use crate::http::paging::{optional, page_begin, page_size, parse_query};
use crate::store::sql::{ClaimCursor, ClaimFilter, ClaimRow, SqlError};

fn item(row: ClaimRow) -> ClaimItem {
    ClaimItem {
        id: row.claim.id.to_string(),
        user_id: row.claim.user_id.to_string(),
        quantity: row.claim.quantity.get(),
        status: row.claim.status,
        sequence: row.claim.sequence,
        day: day_text(row.day),
        claimed_at: row.claim.claimed_at,
        updated_at: row.updated_at,
        codes: row.claim.codes,
    }
}

/// The query parameters of the list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ClaimsQuery {
    /// The maximum number of items on a page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the previous page.
    #[param(pattern = r"^[0-9]{1,19}~[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{21}[AQgw]$")]
    cursor: Option<String>,
    /// Only the claims of this user.
    #[param(value_type = Option<UserId>)]
    user_id: Option<String>,
    /// Only claims with this status. A page may then have fewer items than `limit`, or none, although more
    /// pages follow.
    #[param(value_type = Option<ClaimStatus>)]
    status: Option<String>,
    /// With the codes of the claims. Needs the role admin, and is recorded in the audit.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    codes: bool,
}

impl ClaimsQuery {
    fn filter(&self) -> Result<ClaimFilter, Problem> {
        Ok(ClaimFilter {
            user: optional("user_id", self.user_id.as_deref())?,
            status: optional("status", self.status.as_deref())?,
        })
    }
}

/// Lists a campaign's claims in the order of their sequence; `Accept: text/csv` streams all claims.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/claims", tag = "admin", operation_id = "listClaims",
    params(("id" = CampaignId, Path), ClaimsQuery),
    responses(
        (status = 200, description = "A page, as stored in SQL", content(
            (Page<ClaimItem> = "application/json"), (String = "text/csv"),
        )),
    ),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["campaign_not_found"]))),
)]
pub async fn list(
    Viewer(caller, engine): Viewer,
    PathCampaign(id): PathCampaign,
    uri: Uri,
    headers: HeaderMap,
) -> ApiResult {
    let id = engine.campaigns.stored(&id).await?.id;
    let query: ClaimsQuery = parse_query(&uri)?;
    let filter = query.filter()?;
    let after = page_begin(query.cursor.as_deref())?;
    let limit = page_size(query.limit)?;
    if query.codes {
        let caller = caller.with_role(Role::Admin)?;
        engine.claims.audit_codes_read(Some(&id), caller.name(), clock::now()).await?;
    }
    if prefers(&headers, http::CSV) {
        return Ok(csv(engine, id, filter, after, query.codes));
    }
    let mut page = engine.claims.list(&id, &filter, &after, limit).await?;
    if query.codes {
        engine.claims.add_codes_to_rows(&id, page.rows.iter_mut().collect()).await?;
    }
    let items: Vec<ClaimItem> = page.rows.into_iter().map(item).collect();
    json(StatusCode::OK, &Page { items, next_cursor: page.next.map(|next| next.to_string()) })
}

/// Returns a claim's units for a reason, which the audit records.
#[utoipa::path(
    post, path = "/admin/v1/claims/{claim_id}/return", tag = "admin", operation_id = "returnClaimForReason",
    params(("claim_id" = ClaimId, Path)),
    request_body = ClaimReturn,
    responses((
        status = 200,
        description = "Returned; an expired claim is unchanged, and the reason of a repeated return is not recorded",
        body = ClaimLookup,
    )),
    security(("adminToken" = ["operator"])),
    extensions(("x-codes" = json!(["claim_not_found", "claim_revoked", "campaign_not_ready"]))),
)]
pub async fn return_units(
    PathClaim(id): PathClaim,
    WithBody(Operator(caller, engine), body): WithBody<Operator, ClaimReturn>,
) -> ApiResult {
    in_time(async {
        let by = Requester { name: caller.name(), reason: Some(body.reason.as_str()) };
        let claim = engine.claims.return_units(id, by, clock::now()).await?;
        json(StatusCode::OK, &ClaimLookup { claim })
    })
    .await
}

/// Number of claims read in one call and held in memory. Their codes are read in parts of [`CODES_AT_ONCE`].
const PAGE_ROWS: u32 = 10_000;

/// Streams all claims after `after` that match `filter`, in the order of their sequence. A page is only read
/// when the caller needs it, so a slow caller does not occupy a connection to SQL.
fn csv(
    engine: Arc<Engine>,
    id: CampaignId,
    filter: ClaimFilter,
    after: ClaimCursor,
    with_codes: bool,
) -> Response {
    let sql = engine.stores.sql.for_export();
    let begin = (Vec::new(), Some(after), true);
    let pages = futures_util::stream::try_unfold(begin, move |(mut rows, mut next, first)| {
        let (engine, sql, id, filter) = (Arc::clone(&engine), sql.clone(), id.clone(), filter.clone());
        async move {
            if rows.is_empty() {
                let Some(after) = next else { return Ok::<_, CsvError>(None) };
                let page = sql.claims(&id, &filter, &after, PAGE_ROWS).await?;
                (rows, next) = (page.rows, page.next);
            }
            let mut rest = Vec::new();
            if with_codes {
                let units = |row: &ClaimRow| u64::from(row.claim.quantity.get());
                let count = parts(&rows, CODES_AT_ONCE, units).next().map_or(0, <[_]>::len);
                rest = rows.split_off(count);
                engine.claims.add_codes_to_rows(&id, rows.iter_mut().collect()).await?;
            }
            Ok(Some((csv_text(rows, first, with_codes)?, (rest, next, false))))
        }
    });
    ([(CONTENT_TYPE, "text/csv; charset=utf-8")], Body::from_stream(pages)).into_response()
}

#[derive(Debug, thiserror::Error)]
enum CsvError {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Codes(#[from] EngineError),
    #[error(transparent)]
    Csv(#[from] csv::Error),
    #[error(transparent)]
    Buffer(#[from] Box<csv::IntoInnerError<csv::Writer<Vec<u8>>>>),
}

const COLUMNS: &str = "id,user_id,quantity,status,sequence,day,claimed_at,updated_at";

/// Returns rows as CSV. The column `codes` has the codes of a claim separated by spaces.
fn csv_text(rows: Vec<ClaimRow>, first: bool, with_codes: bool) -> Result<Bytes, CsvError> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    if first {
        writer.write_record(COLUMNS.split(',').chain(with_codes.then_some("codes")))?;
    }
    for row in rows {
        let mut item = item(row);
        let codes = item.codes.take().unwrap_or_default();
        let codes: Vec<_> = codes.iter().map(ClaimCode::as_str).collect();
        if with_codes { writer.serialize((item, codes.join(" "))) } else { writer.serialize(item) }?;
    }
    Ok(writer.into_inner().map_err(Box::new)?.into())
}
