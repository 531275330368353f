//! The names of a campaign's keys, built here and nowhere else.

use claimgate_shared::CampaignId;

/// The consumer group that drains every outbox.
pub const DRAIN_GROUP: &str = "drain";

/// A campaign's five keys. The id in braces is the hash tag that keeps them in one slot.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Hash: rules, counters, version, epoch.
    pub campaign: String,
    /// Hash: user → record.
    pub users: String,
    /// Hash: claims that no longer fit into their user's record.
    pub claims: String,
    /// Sorted set: held claims by expiry.
    pub holds: String,
    /// Stream: what SQL has yet to hear.
    pub outbox: String,
}

impl Keys {
    /// The keys of `campaign`.
    pub fn of(campaign: &CampaignId) -> Self {
        let key = |what: &str| format!("cg:{{{campaign}}}:{what}");
        Self {
            campaign: key("campaign"),
            users: key("users"),
            claims: key("claims"),
            holds: key("holds"),
            outbox: key("outbox"),
        }
    }

    /// In the order in which every script declares them.
    pub fn all(&self) -> [&str; 5] {
        [
            &self.campaign,
            &self.users,
            &self.claims,
            &self.holds,
            &self.outbox,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strings_are_pinned() {
        assert_eq!(
            Keys::of(&"demo".parse().unwrap()).all(),
            [
                "cg:{demo}:campaign",
                "cg:{demo}:users",
                "cg:{demo}:claims",
                "cg:{demo}:holds",
                "cg:{demo}:outbox"
            ]
        );
    }
}
