//! Reads core's own metrics.

/// Totals of batches so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchTotals {
    claims: f64,
    batches: f64,
}

impl BatchTotals {
    /// Returns the mean number of claims per batch since `before`.
    pub fn mean_since(self, before: Self) -> f64 {
        (self.claims - before.claims) / (self.batches - before.batches).max(1.0)
    }
}

/// Reads the totals from the text of `/metrics`.
pub fn batches(text: &str) -> BatchTotals {
    BatchTotals {
        claims: value(text, "claimgate_batch_claims_sum"),
        batches: value(text, "claimgate_batch_claims_count"),
    }
}

/// Returns the value of a metric without labels; 0 if it is missing.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0.0)
}
