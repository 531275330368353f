//! Reasons why a store does not work.

use std::fmt;

/// The kind of a fault, with the names that `/readyz` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The store is unreachable, or does not answer in time.
    NoAnswer,
    /// The store is a replica, or is configured as read-only.
    ReadOnly,
    /// The store accepts no connection from core.
    NoConnections,
    /// The store's disk or memory is full.
    NoSpace,
    /// The store is starting or stopping.
    Restarting,
    /// The store has fewer replicas than it requires for writes.
    NoReplicas,
    /// The store refuses calls for another reason.
    Refused,
}

impl FaultKind {
    /// Returns the name in responses and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoAnswer => "no_answer",
            Self::ReadOnly => "read_only",
            Self::NoConnections => "no_connections",
            Self::NoSpace => "no_space",
            Self::Restarting => "restarting",
            Self::NoReplicas => "no_replicas",
            Self::Refused => "refused",
        }
    }
}

/// The reason why a store does not work, with the server's own message if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFault {
    /// The kind.
    pub kind: FaultKind,
    /// The message for logs and doctor. It may name a role, a database or a host.
    pub message: String,
}

impl StoreFault {
    /// Returns the fault of a store that did not answer within `seconds`.
    pub fn silent(seconds: u64) -> Self {
        Self { kind: FaultKind::NoAnswer, message: format!("no answer within {seconds} s") }
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreFault {}
