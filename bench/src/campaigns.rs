//! The campaigns of a load over HTTP.

use crate::client::{TURNS, Template};

/// One campaign, or 1,000 that share every load evenly.
#[derive(Debug)]
pub struct Campaigns {
    /// The request of a claim from the campaigns, round-robin.
    pub request: Template,
    /// Each campaign with its number of granted claims.
    granted: Vec<(String, u64)>,
}

impl Campaigns {
    /// Creates a set of only the campaign `id`.
    pub fn one(id: String) -> Self {
        Self { request: Template::claim(&id), granted: vec![(id, 0)] }
    }

    /// Creates a set of the campaigns `prefix-000` to `prefix-999`.
    pub fn thousand_campaigns(prefix: &str) -> Self {
        let granted = (0..TURNS).map(|turn| (format!("{prefix}-{turn:03}"), 0)).collect();
        Self { request: Template::claim(&format!("{prefix}-{{turn}}")), granted }
    }

    pub fn first(&self) -> &str {
        self.granted.first().map_or("", |(id, _)| id)
    }

    /// Counts the claims of one load, which were all granted.
    pub fn add(&mut self, claims: u64) {
        let campaigns = self.granted.len() as u64;
        for (turn, (_, granted)) in (0..).zip(&mut self.granted) {
            *granted += claims / campaigns + u64::from(turn < claims % campaigns);
        }
    }

    /// Returns the campaigns' ids, each with its number of granted claims.
    pub fn granted(&self) -> impl Iterator<Item = (&str, u64)> {
        self.granted.iter().map(|(id, granted)| (id.as_str(), *granted))
    }
}
