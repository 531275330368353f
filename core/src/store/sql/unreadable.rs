//! Rows that this version cannot read, so that each is logged once.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

/// Campaigns that have been logged as unreadable.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<HashSet<String>>);

impl Unreadable {
    /// Logs that the row of `id` cannot be read, or can be again; nothing while that stays so.
    pub(super) fn note(&self, id: &str, error: Option<&dyn Display>) {
        let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) if named.insert(id.to_owned()) => {
                tracing::error!(campaign = id, %error, "this campaign is left alone; the others go on");
            }
            None if named.remove(id) => tracing::info!(campaign = id, "can be read again"),
            _ => {}
        }
    }
}
