//! Conversions between the databases' signed integers and unsigned integers, and the error for unreadable
//! values.

use super::SqlError;

pub(super) fn unreadable(error: impl std::fmt::Display) -> SqlError {
    SqlError::Unreadable(error.to_string())
}

pub(super) fn unsigned(number: i64) -> Result<u64, SqlError> {
    u64::try_from(number).map_err(unreadable)
}

/// Converts a number for SQL, whose integers are signed. All counts stay far below 2^63.
pub(super) fn to_i64(number: impl Into<u64>) -> i64 {
    i64::try_from(number.into()).unwrap_or(i64::MAX)
}
