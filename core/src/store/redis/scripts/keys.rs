//! The names of all keys, built only here.

use claimgate_shared::CampaignId;

use super::layout_number::LAYOUT;
use crate::store::redis::topology::slot::Slot;

/// The consumer group of the relay, the same in every outbox.
pub const RELAY_GROUP: &str = "relay";

/// Key of the random id that identifies this Redis.
pub const STORE: &str = "cg:store";

/// Key of the layout number of this Redis.
pub const LAYOUT_KEY: &str = "cg:layout";

/// Key of the set of campaigns that `drop-foreign` has suspended. Cores that serve these campaigns check them
/// within seconds. The key expires.
pub const CHECKS_REQUESTED: &str = "cg:looks_wanted";

/// A key that is only named when the rights of core's user are checked. It never exists.
pub const RIGHTS: &str = "cg:rights";

/// A campaign's keys. The id in braces is the hash tag that puts all of these keys in one slot.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Hash: register id, fencing token, phase and details of the load.
    pub campaign: String,
    /// Hash: user → record, and `.` → the state (identity, counters and rules).
    pub users: String,
    /// Hash: claims that do not fit into their user's record.
    pub claims: String,
    /// Sorted set: held claims by expiry.
    pub holds: String,
    /// Hash: the codes of claims that may be shown to their owners, in a campaign with codes.
    pub codes: String,
    /// Stream: events not yet relayed to SQL. The name contains the layout: an older core moves entries that
    /// it cannot parse to the dead letters, so it must not find them.
    pub outbox: String,
    /// Stream: events of the earlier layout that are not yet relayed to SQL. Exists until the campaign is
    /// converted.
    pub earlier_outbox: String,
    /// Stream: malformed outbox entries, for an operator to inspect.
    pub dead_letters: String,
    /// The slot of the campaign's keys.
    pub slot: Slot,
}

impl Keys {
    /// Returns the keys of `campaign`.
    pub fn of(campaign: &CampaignId) -> Self {
        let key = |name: &str| format!("cg:{{{campaign}}}:{name}");
        Self {
            campaign: key("campaign"),
            users: key("users"),
            claims: key("claims"),
            holds: key("holds"),
            codes: key("codes"),
            outbox: key(&format!("outbox{LAYOUT}")),
            earlier_outbox: key("outbox"),
            dead_letters: key("dead_letters"),
            slot: Slot::of(&key("campaign")),
        }
    }

    /// Returns the keys in the order in which the scripts declare them.
    pub fn all(&self) -> [&str; 5] {
        [&self.campaign, &self.users, &self.claims, &self.holds, &self.outbox]
    }

    /// Returns the keys in the order of [`Keys::all`], then the codes.
    pub fn with_codes(&self) -> [&str; 6] {
        let [campaign, users, claims, holds, outbox] = self.all();
        [campaign, users, claims, holds, outbox, &self.codes]
    }

    /// Returns the keys in the order of [`Keys::with_codes`], then the key that only the earlier layout has.
    pub fn of_both_layouts(&self) -> [&str; 7] {
        let [campaign, users, claims, holds, outbox, codes] = self.with_codes();
        [campaign, users, claims, holds, outbox, codes, &self.earlier_outbox]
    }
}

/// Returns the two keys of the lease `name`: the lease and the last token issued. A campaign's lease is named
/// by the campaign's id, so it shares the campaign's slot.
pub fn lease(name: &str) -> [String; 2] {
    [format!("cg:lease:{{{name}}}"), format!("cg:lease:{{{name}}}:token")]
}

/// Returns the key of a server's barrier; `tag` is a hash tag of one of the server's slots.
pub fn barrier(tag: &str) -> String {
    format!("cg:{{{tag}}}:barrier")
}

/// Returns a key that never exists. A write to this key shows whether a server accepts writes. `tag` is as
/// for [`barrier`].
pub fn probe(tag: &str) -> String {
    format!("cg:{{{tag}}}:probe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_never_change() {
        assert_eq!(
            Keys::of(&"demo".parse().unwrap()).all(),
            [
                "cg:{demo}:campaign",
                "cg:{demo}:users",
                "cg:{demo}:claims",
                "cg:{demo}:holds",
                "cg:{demo}:outbox7"
            ]
        );
        assert_eq!(Keys::of(&"demo".parse().unwrap()).earlier_outbox, "cg:{demo}:outbox");
        assert_eq!(Keys::of(&"demo".parse().unwrap()).codes, "cg:{demo}:codes");
        assert_eq!(Keys::of(&"demo".parse().unwrap()).dead_letters, "cg:{demo}:dead_letters");
        assert_eq!(lease("demo"), ["cg:lease:{demo}", "cg:lease:{demo}:token"]);
        assert_eq!(barrier("7"), "cg:{7}:barrier");
        assert_eq!(probe("7"), "cg:{7}:probe");
    }
}
