//! Addresses of the shared servers.

/// Addresses of Redis and PostgreSQL.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// URL of Redis.
    pub redis: String,
    /// URL of PostgreSQL.
    pub sql: String,
}
