//! A campaign's claims as SQL has them: by pages, or all of them as CSV.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use claimgate_shared::admin::{ClaimItem, Page};
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::{CampaignId, ClaimStatus, Problem, UserId};
use serde::Deserialize;

use crate::domain::utc_offsets::day_text;
use crate::http::error::ApiResult;
use crate::http::extract::{PathCampaign, Viewer, json};
use crate::http::paging::{page_begin, page_size, parse_query};
use crate::http::state::AppState;
use crate::store::sql::{ClaimCursor, ClaimFilter, ClaimRow, SqlError, SqlStore};

fn item(row: &ClaimRow) -> ClaimItem {
    ClaimItem {
        id: row.claim.id.to_string(),
        user_id: row.claim.user_id.to_string(),
        quantity: row.claim.quantity.get(),
        status: row.claim.status,
        sequence: row.claim.sequence,
        day: day_text(row.day),
        claimed_at: row.claim.claimed_at,
        updated_at: row.updated_at,
    }
}

/// The query of the list: its page, and which claims.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
struct ClaimsQuery {
    /// The most items of a page, 1 to 1000; 100 when left out.
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// Only the claims of this user.
    #[param(value_type = Option<UserId>)]
    user_id: Option<String>,
    /// Only claims of this status. A page may then have fewer items than `limit`, even none, and another one behind it.
    #[param(value_type = Option<ClaimStatus>)]
    status: Option<String>,
}

impl ClaimsQuery {
    fn filter(&self) -> Result<ClaimFilter, Problem> {
        let user = self.user_id.as_deref().map(str::parse).transpose();
        let status = self.status.as_deref().map(str::parse).transpose();
        Ok(ClaimFilter {
            user: user.map_err(|why| Problem::invalid("user_id", why))?,
            status: status.map_err(|why| Problem::invalid("status", why))?,
        })
    }
}

/// Lists a campaign's claims in the order of their sequence; `Accept: text/csv` streams all of them.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/claims", tag = "admin",
    params(("id" = CampaignId, Path), ClaimsQuery),
    responses(
        (status = 200, description = "A page as SQL has it", content(
            (Page<ClaimItem> = "application/json"), (String = "text/csv"),
        )),
        (status = "default", description = "A problem", body = ProblemFields),
    ),
)]
pub async fn list(
    State(state): State<AppState>,
    Viewer(caller): Viewer,
    PathCampaign(id): PathCampaign,
    uri: Uri,
    headers: HeaderMap,
) -> ApiResult {
    let engine = state.engine(&caller);
    let id = engine.campaign(&id).await?.id;
    let query: ClaimsQuery = parse_query(&uri)?;
    let filter = query.filter()?;
    let after = page_begin(query.cursor.as_deref())?;
    let limit = page_size(query.limit)?;
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/csv")) {
        return Ok(csv(engine.sync.sql.clone(), id, filter, after));
    }
    let page = engine.claims(&id, &filter, &after, limit).await?;
    let items: Vec<ClaimItem> = page.rows.iter().map(item).collect();
    json(StatusCode::OK, &Page { items, next_cursor: page.next.map(|next| next.to_string()) })
}

/// Claims that are read at once, and held in memory.
const PAGE: u32 = 10_000;

/// All claims that `filter` names behind `after`, in the order of their sequence, read page by page as the caller takes them: a slow one keeps
/// no connection.
fn csv(sql: SqlStore, id: CampaignId, filter: ClaimFilter, after: ClaimCursor) -> Response {
    let pages = futures_util::stream::try_unfold(Some((after, true)), move |from| {
        let (sql, id, filter) = (sql.clone(), id.clone(), filter.clone());
        async move {
            let Some((after, first)) = from else {
                return Ok::<_, CsvError>(None);
            };
            let page = sql.export_page(&id, &filter, &after, PAGE).await?;
            let next = page.next.map(|next| (next, false));
            Ok(Some((csv_text(page.rows, first)?, next)))
        }
    });
    ([(CONTENT_TYPE, "text/csv; charset=utf-8")], Body::from_stream(pages)).into_response()
}

#[derive(Debug, thiserror::Error)]
enum CsvError {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Csv(#[from] csv::Error),
    #[error(transparent)]
    Buffer(#[from] Box<csv::IntoInnerError<csv::Writer<Vec<u8>>>>),
}

fn csv_text(rows: Vec<ClaimRow>, first: bool) -> Result<Bytes, CsvError> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    if first {
        writer.write_record([
            "id",
            "user_id",
            "quantity",
            "status",
            "sequence",
            "day",
            "claimed_at",
            "updated_at",
        ])?;
    }
    for row in rows {
        writer.serialize(item(&row))?;
    }
    Ok(writer.into_inner().map_err(Box::new)?.into())
}
