//! The campaigns that a load over HTTP claims from.

use crate::client::{TURNS, Template};

/// One campaign, or 1,000 among which every load is spread evenly.
#[derive(Debug)]
pub struct Campaigns {
    /// A claim from each of them in turn.
    pub request: Template,
    /// Each with the number of claims it has granted.
    granted: Vec<(String, u64)>,
}

impl Campaigns {
    /// The campaign `id` alone.
    pub fn one(id: String) -> Self {
        Self { request: Template::claim(&id), granted: vec![(id, 0)] }
    }

    /// `prefix-000` to `prefix-999`.
    pub fn thousand(prefix: &str) -> Self {
        let granted = (0..TURNS).map(|turn| (format!("{prefix}-{turn:03}"), 0)).collect();
        Self { request: Template::claim(&format!("{prefix}-{{turn}}")), granted }
    }

    /// The id of the first.
    pub fn first(&self) -> &str {
        self.granted.first().map_or("", |(id, _)| id)
    }

    /// Counts the claims of one load, all granted.
    pub fn add(&mut self, claims: u64) {
        let campaigns = self.granted.len() as u64;
        for (turn, (_, granted)) in (0..).zip(&mut self.granted) {
            *granted += claims / campaigns + u64::from(turn < claims % campaigns);
        }
    }

    /// Their ids, each with the number of claims it has granted.
    pub fn granted(&self) -> impl Iterator<Item = (&str, u64)> {
        self.granted.iter().map(|(id, granted)| (id.as_str(), *granted))
    }
}
