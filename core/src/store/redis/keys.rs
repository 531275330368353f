//! The names of a campaign's keys, built here and nowhere else.

use claimgate_shared::CampaignId;

use super::slot::Slot;

/// The consumer group that relays every outbox.
pub const RELAY_GROUP: &str = "relay";

/// The random id of this Redis itself.
pub const STORE: &str = "cg:store";

/// The layout of the keys in this Redis.
pub const LAYOUT: &str = "cg:layout";

/// Campaigns that were suspended by something else than the cores that serve them, which look at them within seconds: a set,
/// which expires.
pub const LOOKS_WANTED: &str = "cg:looks_wanted";

/// A campaign's keys. The id in braces is the hash tag that keeps them in one slot.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Hash: whose it is, its fencing token and its phase.
    pub campaign: String,
    /// Hash: user → record, and `.` → the state: whose it is, its counters and its rules.
    pub users: String,
    /// Hash: claims that no longer fit into their user's record.
    pub claims: String,
    /// Sorted set: held claims by expiry.
    pub holds: String,
    /// Stream: events not yet relayed to SQL.
    pub outbox: String,
    /// Stream: malformed outbox entries, for an operator to inspect.
    pub dead_letters: String,
    /// The slot of all of them.
    pub slot: Slot,
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
            dead_letters: key("dead_letters"),
            slot: Slot::of(&key("campaign")),
        }
    }

    /// In the order in which every script declares them.
    pub fn all(&self) -> [&str; 5] {
        [&self.campaign, &self.users, &self.claims, &self.holds, &self.outbox]
    }
}

/// The two keys of the lease `name`: the lease itself, and the last token given. That of a campaign has its id for a name, and
/// so its slot.
pub fn lease(name: &str) -> [String; 2] {
    [format!("cg:lease:{{{name}}}"), format!("cg:lease:{{{name}}}:token")]
}

/// The key of a server's barrier; `tag` is a hash tag of one of its slots.
pub fn barrier(tag: &str) -> String {
    format!("cg:{{{tag}}}:barrier")
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
        assert_eq!(Keys::of(&"demo".parse().unwrap()).dead_letters, "cg:{demo}:dead_letters");
        assert_eq!(lease("demo"), ["cg:lease:{demo}", "cg:lease:{demo}:token"]);
        assert_eq!(barrier("7"), "cg:{7}:barrier");
    }
}
