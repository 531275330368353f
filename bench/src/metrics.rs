//! What core's own metrics say.

/// Batches so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batches {
    claims: f64,
    batches: f64,
}

impl Batches {
    /// Claims a batch since `before`.
    pub fn mean_since(self, before: Self) -> f64 {
        (self.claims - before.claims) / (self.batches - before.batches).max(1.0)
    }
}

/// The batches that a text of metrics tells of.
pub fn batches(text: &str) -> Batches {
    Batches {
        claims: value(text, "claimgate_batch_claims_sum"),
        batches: value(text, "claimgate_batch_claims_count"),
    }
}

/// The value of a line without labels; 0 when it is not there.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0.0)
}
