//! The scheme of user ids that a database is pinned to.

use serde::Serialize;

use crate::Timestamp;
use crate::user_id::Scheme;

/// The scheme of user ids that the database is pinned to.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserIdsView {
    /// The form and the fingerprint; `null` before the first claim by an edge.
    pub user_ids: Option<Scheme>,
    /// When it was pinned.
    pub since: Option<Timestamp>,
    /// Why this core rejected a caller within the last minute; `null` if it rejected none.
    pub refused: Option<String>,
}
