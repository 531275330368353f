//! Measures how late the machine is while a test runs, as the control for guarantees about time.
//!
//! A cheap request that does not involve the code under test is repeated all the time. If even the response to
//! this request is late, a late response from the code under test is not a defect.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::client::{Client, client};

/// Interval between requests.
const PAUSE: Duration = Duration::from_millis(50);
/// Response time above which a response is late; it usually takes a few milliseconds.
const LATE_AFTER: Duration = Duration::from_millis(250);

/// Repeats a request until dropped.
#[derive(Debug)]
pub struct MachineProbe {
    late: Arc<Mutex<Vec<Probe>>>,
    task: JoinHandle<()>,
}

/// A request whose response was late or has not arrived yet.
#[derive(Debug, Clone, Copy)]
struct Probe {
    sent_at: Instant,
    answered_at: Option<Instant>,
}

impl MachineProbe {
    /// Requests `url`, such as a health check.
    pub fn of(url: String) -> Self {
        let late = Arc::default();
        let task = tokio::spawn(probe_until_dropped(client().once(), url, Arc::clone(&late)));
        Self { late, task }
    }

    /// Returns whether the machine was late at any time from `since` until now.
    pub fn was_late_since(&self, since: Instant) -> bool {
        let probes = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        probes.iter().any(|probe| {
            let end = probe.answered_at.unwrap_or_else(Instant::now);
            end >= since && end - probe.sent_at >= LATE_AFTER
        })
    }
}

impl Drop for MachineProbe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn probe_until_dropped(client: Client, url: String, late: Arc<Mutex<Vec<Probe>>>) {
    let probes = || late.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let sent_at = Instant::now();
        probes().push(Probe { sent_at, answered_at: None });
        let _ = client.try_get(&url, "").await;
        let in_time = sent_at.elapsed() < LATE_AFTER;
        if in_time {
            probes().pop();
        } else if let Some(probe) = probes().last_mut() {
            probe.answered_at = Some(Instant::now());
        }
        sleep(PAUSE).await;
    }
}
