//! Lists by pages.

use axum::extract::Query;
use axum::http::Uri;
use claimgate_shared::Problem;
use serde::{Deserialize, Serialize};

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1000;

/// A page of a list.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Page<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// The `cursor` of the next page; `null` on the last.
    pub next_cursor: Option<String>,
}

/// The query of a list: its page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// The most items of a page, 1 to 1000; 100 when left out.
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    pub(super) cursor: Option<String>,
}

impl PageQuery {
    /// Reads the query of `uri`.
    pub(super) fn parse(uri: &Uri) -> Result<Self, Problem> {
        let Query(query) =
            Query::<Self>::try_from_uri(uri).map_err(|error| Problem::invalid("query", error.body_text()))?;
        Ok(query)
    }

    /// The page's size, checked.
    pub(super) fn limit(&self) -> Result<u32, Problem> {
        page_limit(self.limit)
    }
}

/// A page's size, checked.
pub(super) fn page_limit(asked: Option<u32>) -> Result<u32, Problem> {
    match asked.unwrap_or(PAGE_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(Problem::invalid("limit", "must be from 1 to 1000")),
    }
}
