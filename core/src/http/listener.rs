//! The listeners of an installation and the paths that belong to them.

use claimgate_shared::{Code, Problem};

use super::error::ApiError;

/// The path of claims, the only one that bypasses the router.
pub const CLAIM_PATH: &str = "/internal/v1/claims";

/// A listener of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// Core's listener for the edge and back ends: accepts the edge's signatures and tokens.
    Internal,
    /// Core's listener for admins and monitoring: accepts tokens only.
    Admin,
    /// The edge's listener, in another program.
    Edge,
}

impl Listener {
    /// Returns the listener that serves paths with the prefix of `path`.
    fn of(path: &str) -> Option<Self> {
        let begins = |start: &str| {
            path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match path {
            "/" | "/metrics" | "/openapi.json" => Some(Self::Admin),
            _ if begins("/admin/v1") => Some(Self::Admin),
            _ if begins("/internal/v1") => Some(Self::Internal),
            _ if begins("/v1") => Some(Self::Edge),
            _ => None,
        }
    }

    /// Returns the listener's name as used in the documents, with the variable that sets its address.
    fn name(self) -> &'static str {
        match self {
            Self::Internal => "core's internal listener (CLAIMGATE_LISTEN)",
            Self::Admin => "core's admin listener (CLAIMGATE_ADMIN_LISTEN)",
            Self::Edge => "the edge",
        }
    }

    /// Returns the problem for a path without a route here. For a path of a different listener, the problem
    /// names that listener.
    pub fn not_found(self, path: &str) -> ApiError {
        let here = self.name();
        let detail = match Self::of(path) {
            Some(there) if there != self => {
                format!("no such path on {here}; call {} instead", there.name())
            }
            _ => format!("no such path on {here}"),
        };
        Problem::new(Code::NotFound, detail).into()
    }
}
