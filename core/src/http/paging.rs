//! Lists by pages.

use std::fmt::Display;
use std::str::FromStr;

use axum::extract::Query;
use axum::http::Uri;
use claimgate_shared::Problem;
use serde::Deserialize;
use serde::de::DeserializeOwned;

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1000;

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
    pub fn parse(uri: &Uri) -> Result<Self, Problem> {
        parse_query(uri)
    }

    /// The page's size, checked.
    pub(super) fn limit(&self) -> Result<u32, Problem> {
        page_size(self.limit)
    }

    /// Where the page begins.
    pub(super) fn after<T: Default + FromStr<Err: Display>>(&self) -> Result<T, Problem> {
        page_begin(self.cursor.as_deref())
    }
}

/// Reads the query of `uri`.
pub(super) fn parse_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let Query(query) =
        Query::<T>::try_from_uri(uri).map_err(|error| Problem::invalid("query", error.body_text()))?;
    Ok(query)
}

/// A page's size, checked: `limit`, or 100 when left out.
pub(super) fn page_size(limit: Option<u32>) -> Result<u32, Problem> {
    match limit.unwrap_or(PAGE_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(Problem::invalid("limit", "must be from 1 to 1000")),
    }
}

/// Where a page begins: behind `cursor`, or with the first item.
pub(super) fn page_begin<T: Default + FromStr<Err: Display>>(cursor: Option<&str>) -> Result<T, Problem> {
    let after = cursor.map(str::parse).transpose().map_err(|why| Problem::invalid("cursor", why))?;
    Ok(after.unwrap_or_default())
}
