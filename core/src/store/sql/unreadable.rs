//! The set of rows that this version cannot read, so that each is logged once.

use std::collections::HashSet;
use std::fmt::Display;

use parking_lot::Mutex;

/// Campaigns that have been logged as unreadable.
#[derive(Debug, Default)]
pub(super) struct Unreadable(Mutex<HashSet<String>>);

impl Unreadable {
    /// Logs when the row of `id` becomes unreadable, and when it becomes readable again.
    pub(super) fn log_change(&self, id: &str, error: Option<&dyn Display>) {
        let mut logged = self.0.lock();
        match error {
            Some(error) if logged.insert(id.to_owned()) => {
                tracing::error!(campaign = id, %error, "cannot read this campaign; other campaigns are not affected");
            }
            None if logged.remove(id) => tracing::info!(campaign = id, "this campaign can be read again"),
            _ => {}
        }
    }
}
