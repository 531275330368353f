//! The report on a campaign's demand: as JSON, as CSV, or as a page with charts.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use claimgate_shared::admin::report::DemandReport;
use claimgate_shared::{CampaignId, Code, Problem, Timestamp, http};

use crate::http::authorization::Viewer;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::{PathCampaign, json, prefers};
use crate::report_page::page;
use crate::store::sql::Step;

/// Returns the report on a campaign's demand: as JSON; with `Accept: text/csv` as a line for each second in
/// which a claim was made or refused; with `Accept: text/html` as a page with charts.
#[utoipa::path(
    get, path = "/admin/v1/campaigns/{id}/report", tag = "admin", operation_id = "getReport",
    params(("id" = CampaignId, Path)),
    responses(
        (status = 200, description = "The report, on what SQL has", content(
            (DemandReport = "application/json"), (String = "text/csv"), (String = "text/html"),
        )),
    ),
    security(("adminToken" = ["viewer"])),
    extensions(("x-codes" = json!(["campaign_not_found"]))),
)]
pub async fn show(
    Viewer(_, engine): Viewer,
    PathCampaign(id): PathCampaign,
    headers: HeaderMap,
) -> ApiResult {
    if prefers(&headers, http::CSV) {
        let (each_s, steps) = engine.reports.demand_steps(&id).await?;
        return Ok(answer("text/csv; charset=utf-8", csv_text(each_s, &steps)?));
    }
    let report = engine.reports.report(&id).await?;
    if prefers(&headers, http::HTML) {
        return Ok(answer("text/html; charset=utf-8", page(&report).into_bytes()));
    }
    json(StatusCode::OK, &report)
}

fn answer(content_type: &'static str, text: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, content_type)], Body::from(text)).into_response()
}

/// Formats `steps` of `each_s` seconds as CSV.
fn csv_text(each_s: i64, steps: &[Step]) -> Result<Vec<u8>, ApiError> {
    let write = || {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record("at,seconds,claims,units,refused_at_edges,refused_at_core".split(','))?;
        for step in steps {
            let at = Timestamp::from_ms(step.at_s.saturating_mul(1_000)).unwrap_or_default();
            let counts = (step.claims, step.units, step.refused_at_edges, step.refused_at_core);
            writer.serialize((at, each_s, counts))?;
        }
        writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))
    };
    write().map_err(|error| {
        tracing::error!(%error, "cannot write a report");
        Problem::new(Code::Unavailable, "the report could not be written").into()
    })
}
