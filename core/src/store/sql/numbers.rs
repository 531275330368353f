//! Numbers as the databases keep them, and what of a row cannot be read.

use super::SqlError;

pub(super) fn unreadable(error: impl std::fmt::Display) -> SqlError {
    SqlError::Unreadable(error.to_string())
}

pub(super) fn unsigned(number: i64) -> Result<u64, SqlError> {
    u64::try_from(number).map_err(unreadable)
}

/// SQL's integers are signed; what is counted here stays far below 2^63.
pub(super) fn big(number: impl Into<u64>) -> i64 {
    i64::try_from(number.into()).unwrap_or(i64::MAX)
}
