//! A campaign's claims as CSV, streamed.

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use claimgate_shared::CampaignId;

use super::admin::ClaimItem;
use crate::app::App;
use crate::archive::{ArchiveError, ClaimCursor, ClaimRow};

/// Claims that are read at once, and held in memory.
const PAGE: u32 = 10_000;

/// All claims behind `after`, in the order of their sequence, read page by page as the caller takes them: a slow one keeps
/// no connection.
pub(super) fn csv(app: &App, id: CampaignId, after: ClaimCursor) -> Response {
    let archive = app.archive.clone();
    let pages = futures_util::stream::try_unfold(Some((after, true)), move |from| {
        let (archive, id) = (archive.clone(), id.clone());
        async move {
            let Some((after, first)) = from else {
                return Ok::<_, CsvError>(None);
            };
            let page = archive.export_page(&id, &after, PAGE).await?;
            let next = page.next.map(|next| (next, false));
            Ok(Some((csv_text(page.rows, first)?, next)))
        }
    });
    ([(CONTENT_TYPE, "text/csv; charset=utf-8")], Body::from_stream(pages)).into_response()
}

#[derive(Debug, thiserror::Error)]
enum CsvError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
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
        writer.serialize(ClaimItem::from(row))?;
    }
    Ok(writer.into_inner().map_err(Box::new)?.into())
}
