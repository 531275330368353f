//! The servers that must have a write before it is acknowledged: a named set per primary, like Kafka's
//! in-sync replicas.
//!
//! `WAIT` counts replicas but does not name them, so the replica that is promoted may lack the write. The set
//! is therefore stored in SQL. Each change there is conditional on the set's version: if two cores follow two
//! different primaries, only one core's change succeeds. A primary's own view proves nothing.

use std::collections::{BTreeMap, BTreeSet};

/// A server's address, as reported by other servers: `host:port`.
pub type ServerName = String;

/// The required replicas, as stored in SQL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replication {
    /// The minimum number of replicas that must have a write before it is acknowledged; 0 requires none.
    pub replicas_min: u32,
    /// The set of each primary.
    pub sets: Vec<ReplicaSet>,
}

/// A primary, and the replicas that must have its writes before they are acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSet {
    /// The set's number in SQL.
    pub id: i64,
    /// The primary that core writes to.
    pub primary: ServerName,
    /// Replicas that have all acknowledged writes. Each member may be adopted as the primary after a
    /// promotion.
    pub members: BTreeSet<ServerName>,
    /// Replicas whose confirmation is already required, but which may lack earlier acknowledged writes. They
    /// may not be adopted.
    pub joining: BTreeSet<ServerName>,
    /// The hash tag of the primary's barrier key, in a slot of this primary.
    pub tag: String,
    /// Raised by every change.
    pub version: u64,
}

/// A core's view of a primary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrimaryView {
    /// The primary's name.
    pub primary: ServerName,
    /// A hash tag of one of the primary's slots.
    pub tag: String,
    /// Whether the barrier key of the primary's set is in one of the primary's slots.
    pub holds_tag: bool,
    /// The version of the set for which the primary last passed a barrier.
    pub version: u64,
    /// The primary's replicas, and whether each had all of the primary's writes at the last check.
    pub replicas: BTreeMap<ServerName, bool>,
    /// Members that no longer follow this primary and report that they are primaries: this one may be about
    /// to be demoted.
    pub promoted: BTreeSet<ServerName>,
}

/// A change to be written to SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetChange {
    /// The first set of a primary that was never the replica of a known primary.
    Create(ReplicaSet),
    /// A set that replaces the set with the version `before`.
    Replace {
        /// The only version that it may replace.
        before: u64,
        /// The new set, with a higher version.
        set: ReplicaSet,
    },
}

/// The reason why a primary must not be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotInSet {
    /// A server outside the set was promoted: it may lack acknowledged writes.
    #[error(
        "this server was promoted, but may lack acknowledged writes; \
         see `claimgate replication`"
    )]
    Outsider,
    /// SQL lists the server as a replica: it has not been adopted yet, or another server has replaced it.
    #[error("this server is not the primary that was last adopted")]
    NotAdopted,
    /// The server has no set yet.
    #[error("its replicas are not known yet")]
    Unknown,
    /// The set has fewer members than the minimum.
    #[error("fewer replicas than CLAIMGATE_REDIS_REPLICAS have all of its writes")]
    TooFew,
}

impl Replication {
    /// Returns the set of `primary`, if the primary can be trusted.
    pub fn set_of(&self, primary: &str) -> Result<&ReplicaSet, NotInSet> {
        let Some(set) = self.sets.iter().find(|set| set.primary == primary) else {
            let known = |set: &ReplicaSet| set.members.contains(primary) || set.joining.contains(primary);
            return Err(match self.sets.iter().any(known) {
                true => NotInSet::NotAdopted,
                false if self.sets.is_empty() => NotInSet::Unknown,
                false => NotInSet::Outsider,
            });
        };
        if set.members.len() < self.replicas_min as usize { Err(NotInSet::TooFew) } else { Ok(set) }
    }

    /// Returns the number of required replicas that are missing, according to the `primaries` that answer.
    pub fn missing(&self, primaries: &[PrimaryView]) -> u32 {
        let missing_in = |set: &ReplicaSet| {
            let view = primaries.iter().find(|view| view.primary == set.primary);
            let present =
                view.map_or(0, |view| keeping_up(view).filter(|name| set.members.contains(*name)).count());
            self.replicas_min.saturating_sub(u32::try_from(present).unwrap_or(u32::MAX))
        };
        self.sets.iter().map(missing_in).sum()
    }

    /// Returns the changes to make after a check of all existing `primaries`. A primary that must not be
    /// trusted causes no change.
    pub fn changes(&self, primaries: &[PrimaryView]) -> Vec<SetChange> {
        primaries.iter().filter_map(|view| self.change(view, primaries)).collect()
    }

    fn change(&self, view: &PrimaryView, primaries: &[PrimaryView]) -> Option<SetChange> {
        if let Some(set) = self.sets.iter().find(|set| set.primary == view.primary) {
            let next = set.next(view, self.replicas_min)?;
            return Some(SetChange::Replace { before: set.version, set: next });
        }
        if let Some(set) = self.sets.iter().find(|set| set.members.contains(&view.primary)) {
            return Some(SetChange::Replace { before: set.version, set: set.adopt(view) });
        }
        // If another set's primary is gone and none of its members has replaced it, this server may have done
        // so.
        let has_primary = |set: &ReplicaSet| primaries.iter().any(|view| view.primary == set.primary);
        self.sets.iter().all(has_primary).then(|| SetChange::Create(ReplicaSet::first(view)))
    }
}

impl ReplicaSet {
    /// Returns the first set of a primary. No write has been acknowledged under this set yet, so every
    /// replica that keeps up is a member.
    fn first(view: &PrimaryView) -> Self {
        let members = keeping_up(view).cloned().collect();
        Self {
            id: 0,
            primary: view.primary.clone(),
            members,
            joining: BTreeSet::new(),
            tag: view.tag.clone(),
            version: view.version + 1,
        }
    }

    /// Returns the set after the promotion of one of its members.
    fn adopt(&self, view: &PrimaryView) -> Self {
        let mut next = self.clone();
        next.primary.clone_from(&view.primary);
        next.members.remove(&view.primary);
        next.joining.clear();
        next.with_next_version(view)
    }

    /// Returns the set updated by its primary's view; `None` if nothing changes.
    fn next(&self, view: &PrimaryView, replicas_min: u32) -> Option<Self> {
        let mut next = self.clone();
        // Joining replicas that keep up become members. Replicas that lag leave, so that they delay no
        // answer.
        let joined = std::mem::take(&mut next.joining);
        next.members.extend(keeping_up(view).filter(|name| joined.contains(*name)).cloned());
        let kept: BTreeSet<_> =
            keeping_up(view).filter(|name| next.members.contains(*name)).cloned().collect();
        // The set never shrinks below the minimum: until a member is back, no write is acknowledged. A
        // promoted member stays: while its confirmation is required, it certainly has every acknowledged
        // write.
        if kept.len() >= replicas_min as usize {
            next.members.retain(|name| kept.contains(name) || view.promoted.contains(name));
        }
        next.joining = keeping_up(view).filter(|name| !next.members.contains(*name)).cloned().collect();
        let is_unchanged = next == *self && view.holds_tag && view.version <= self.version;
        (!is_unchanged).then(|| next.with_next_version(view))
    }

    /// Returns the replicas that must confirm each write.
    pub fn required(&self) -> impl Iterator<Item = &ServerName> {
        self.members.iter().chain(&self.joining)
    }

    fn with_next_version(mut self, view: &PrimaryView) -> Self {
        self.version = self.version.max(view.version) + 1;
        if !view.holds_tag {
            self.tag.clone_from(&view.tag);
        }
        self
    }
}

fn keeping_up(view: &PrimaryView) -> impl Iterator<Item = &ServerName> {
    view.replicas.iter().filter(|(_, keeps_up)| **keeps_up).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(primary: &str, replicas: &[(&str, bool)]) -> PrimaryView {
        let replicas = replicas.iter().map(|(name, keeps_up)| ((*name).to_owned(), *keeps_up)).collect();
        PrimaryView {
            primary: primary.to_owned(),
            tag: "t".to_owned(),
            holds_tag: true,
            version: 3,
            replicas,
            promoted: names(&[]),
        }
    }

    fn names(names: &[&str]) -> BTreeSet<ServerName> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn set(primary: &str, members: &[&str], joining: &[&str]) -> ReplicaSet {
        ReplicaSet {
            id: 7,
            primary: primary.to_owned(),
            members: names(members),
            joining: names(joining),
            tag: "t".to_owned(),
            version: 3,
        }
    }

    /// Returns the primary, the members and the joining replicas after one check; `None` if nothing changes.
    fn next(set: ReplicaSet, view: &PrimaryView) -> Option<(ServerName, BTreeSet<String>, BTreeSet<String>)> {
        let replication = Replication { replicas_min: 1, sets: vec![set] };
        match replication.changes(std::slice::from_ref(view)).pop()? {
            SetChange::Create(set) => panic!("{set:?}"),
            SetChange::Replace { before, set } => {
                assert_eq!((before, set.version), (3, 4));
                Some((set.primary, set.members, set.joining))
            }
        }
    }

    #[test]
    fn a_replica_joins_before_it_becomes_a_member() {
        let seen = view("a", &[("b", true), ("c", true)]);
        assert_eq!(next(set("a", &["b"], &[]), &seen), Some(("a".into(), names(&["b"]), names(&["c"]))));
        assert_eq!(next(set("a", &["b"], &["c"]), &seen), Some(("a".into(), names(&["b", "c"]), names(&[]))));
        assert_eq!(next(set("a", &["b", "c"], &[]), &seen), None);
    }

    #[test]
    fn a_lagging_member_leaves_unless_too_few_would_remain() {
        let seen = view("a", &[("b", false), ("c", true)]);
        assert_eq!(next(set("a", &["b", "c"], &[]), &seen), Some(("a".into(), names(&["c"]), names(&[]))));
        assert_eq!(next(set("a", &["b"], &[]), &view("a", &[])), None, "partitioned");
        // The replacement must join first.
        assert_eq!(next(set("a", &["b"], &[]), &seen), Some(("a".into(), names(&["b"]), names(&["c"]))));
    }

    /// The primary has passed a barrier of a later set, so SQL has lost changes.
    #[test]
    fn a_set_that_is_older_than_its_primarys_barrier_is_replaced() {
        let replaced = |members: &[&str], replicas: &[(&str, bool)]| {
            let replication = Replication { replicas_min: 1, sets: vec![set("a", members, &[])] };
            replication.changes(&[PrimaryView { version: 5, ..view("a", replicas) }])
        };
        let next = ReplicaSet { version: 6, ..set("a", &["c"], &[]) };
        let changes = [SetChange::Replace { before: 3, set: next }];
        assert_eq!(replaced(&["c"], &[("c", true)]), changes);
        assert_eq!(
            replaced(&["b", "c"], &[("b", false), ("c", true)]),
            changes,
            "`b` has left the later set"
        );
    }

    #[test]
    fn a_promoted_member_stays_in_the_set() {
        let seen = PrimaryView { promoted: names(&["b"]), ..view("a", &[("c", true)]) };
        assert_eq!(next(set("a", &["b", "c"], &[]), &seen), None);
    }

    #[test]
    fn only_a_member_is_adopted() {
        let promoted = view("b", &[("c", true)]);
        let adopted = Some(("b".into(), names(&["c"]), names(&[])));
        assert_eq!(next(set("a", &["b", "c"], &[]), &promoted), adopted);
        assert_eq!(next(set("a", &["c"], &["b"]), &promoted), None, "it only began to join");
        assert_eq!(next(set("a", &["c"], &[]), &promoted), None);
    }

    #[test]
    fn lagging_replicas_and_those_of_silent_primaries_are_missing() {
        let replication =
            Replication { replicas_min: 1, sets: vec![set("a", &["b", "c"], &[]), set("d", &["e"], &[])] };
        let both = [view("a", &[("b", true), ("c", false)]), view("d", &[("e", true)])];
        assert_eq!(replication.missing(&both), 0, "one of two is enough");
        assert_eq!(replication.missing(&[view("a", &[("b", false), ("x", true)]), both[1].clone()]), 1);
        assert_eq!(replication.missing(&both[..1]), 1, "a primary that does not answer");
        assert_eq!(replication.missing(&[]), 2);
        assert_eq!(Replication::default().missing(&both), 0);
    }

    #[test]
    fn a_set_is_created_only_if_every_other_has_its_primary() {
        let replication = Replication { replicas_min: 1, sets: vec![set("a", &["b"], &[])] };
        let new = view("x", &[("y", true), ("z", false)]);
        let both = replication.changes(&[view("a", &[("b", true)]), new.clone()]);
        let first = ReplicaSet { id: 0, version: 4, ..set("x", &["y"], &[]) };
        assert_eq!(both, [SetChange::Create(first)]);
        assert_eq!(replication.changes(&[new]), [], "it may have replaced `a`");
    }

    #[test]
    fn only_the_primary_of_a_large_enough_set_is_accepted() {
        let of = |sets: &[ReplicaSet], name: &str| {
            let replication = Replication { replicas_min: 1, sets: sets.to_vec() };
            replication.set_of(name).map(|set| set.id)
        };
        assert_eq!(of(&[], "a"), Err(NotInSet::Unknown));
        let sets = [set("a", &["b"], &[])];
        assert_eq!(
            ["a", "b", "c"].map(|name| of(&sets, name)),
            [Ok(7), Err(NotInSet::NotAdopted), Err(NotInSet::Outsider)]
        );
        assert_eq!(of(&[set("a", &[], &["b"])], "a"), Err(NotInSet::TooFew));
    }
}
