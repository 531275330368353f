//! Paging of lists.

use std::fmt::Display;
use std::str::FromStr;

use axum::extract::Query;
use axum::http::Uri;
use claimgate_shared::Problem;
use serde::Deserialize;
use serde::de::DeserializeOwned;

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1000;

/// The query parameters of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// The maximum number of items on a page, 1 to 1000; 100 if absent.
    pub(super) limit: Option<u32>,
    /// The `next_cursor` of the previous page.
    pub(super) cursor: Option<String>,
}

/// Parses the query of `uri`.
pub(super) fn parse_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let Query(query) =
        Query::<T>::try_from_uri(uri).map_err(|error| Problem::invalid("query", error.body_text()))?;
    Ok(query)
}

/// Returns the checked page size: `limit`, or 100 if absent.
pub(super) fn page_size(limit: Option<u32>) -> Result<u32, Problem> {
    match limit.unwrap_or(PAGE_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(Problem::invalid("limit", "must be from 1 to 1000")),
    }
}

/// Returns the position where a page begins: after `cursor`, or at the first item.
pub(super) fn page_begin<T: Default + FromStr<Err: Display>>(cursor: Option<&str>) -> Result<T, Problem> {
    Ok(optional("cursor", cursor)?.unwrap_or_default())
}

/// Parses the query's `field`, if it is present.
pub(super) fn optional<T: FromStr<Err: Display>>(
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<T>, Problem> {
    text.map(str::parse).transpose().map_err(|why| Problem::invalid(field, why))
}
