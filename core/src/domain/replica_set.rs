//! Which servers must have a write before it is acknowledged: a named set for each primary, as Kafka's in-sync replicas.
//!
//! A number of replicas, as `WAIT` counts them, does not say which: the one that is promoted may be another. So the set is
//! kept in SQL. Each of its changes is made there under its version, so that of two cores that believe in two primaries only
//! one can make it; what a primary alone believes counts for nothing.

use std::collections::{BTreeMap, BTreeSet};

/// A server by the address that other servers know it by: `host:port`.
pub type ServerName = String;

/// What is asked of replicas, as SQL has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replication {
    /// The least number of replicas that must have a write before it is acknowledged; with 0 none is waited for.
    pub replicas_min: u32,
    /// The set of each primary.
    pub sets: Vec<ReplicaSet>,
}

/// A primary, and those that must have what it acknowledges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSet {
    /// Its number in SQL.
    pub id: i64,
    /// The primary that core takes writes from.
    pub primary: ServerName,
    /// Replicas that have all that was acknowledged: each may be adopted after its promotion.
    pub members: BTreeSet<ServerName>,
    /// Replicas that are waited for already, but may lack what was acknowledged before: none of them may be adopted.
    pub joining: BTreeSet<ServerName>,
    /// The hash tag of the primary's barrier key: of a slot that is its own.
    pub tag: String,
    /// Raised by every change.
    pub version: u64,
}

/// What a core sees of a primary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrimaryView {
    /// Its name.
    pub primary: ServerName,
    /// A hash tag of one of its slots.
    pub tag: String,
    /// Whether the barrier key of its set is in one of its slots.
    pub holds_tag: bool,
    /// The version of the set that it has passed a barrier for last.
    pub version: u64,
    /// Its replicas, and whether each had all of its writes when it was last asked.
    pub replicas: BTreeMap<ServerName, bool>,
    /// Members that follow it no longer and say that they are primaries: this one may be about to be demoted.
    pub promoted: BTreeSet<ServerName>,
}

/// What has to be written to SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetChange {
    /// The first set of a primary that was never one's replica.
    Create(ReplicaSet),
    /// The set in place of the one of the version `before`.
    Replace {
        /// The version that it replaces, and no other.
        before: u64,
        /// The set with a later version.
        set: ReplicaSet,
    },
}

/// Why a primary is not to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotInSet {
    /// A server outside the set was promoted: it may lack what was acknowledged.
    #[error(
        "this server was promoted, but it is not known to have all that was acknowledged; \
         see `claimgate replication`"
    )]
    Outsider,
    /// It is a replica as far as SQL knows: it was not adopted yet, or another server has taken its place.
    #[error("this server is not the primary that was last adopted")]
    NotAdopted,
    /// It has no set yet.
    #[error("its replicas are not known yet")]
    Unknown,
    /// There are fewer members than the least number.
    #[error("fewer replicas than CLAIMGATE_REDIS_REPLICAS have all of its writes")]
    TooFew,
}

impl Replication {
    /// The set of `primary`.
    ///
    /// # Errors
    /// When nothing that this server says may be acknowledged.
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

    /// How many replicas are missing that must have what is acknowledged, by what the `primaries` say that answer.
    pub fn missing(&self, primaries: &[PrimaryView]) -> u32 {
        let of = |set: &ReplicaSet| {
            let view = primaries.iter().find(|view| view.primary == set.primary);
            let there =
                view.map_or(0, |view| keeping_up(view).filter(|name| set.members.contains(*name)).count());
            self.replicas_min.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX))
        };
        self.sets.iter().map(of).sum()
    }

    /// What is to be changed after looks at all `primaries` that there are; nothing for one that may not be believed.
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
        // Where a primary has gone without one of its members in its place, this one may stand there instead.
        let stands = |set: &ReplicaSet| primaries.iter().any(|view| view.primary == set.primary);
        self.sets.iter().all(stands).then(|| SetChange::Create(ReplicaSet::first(view)))
    }
}

impl ReplicaSet {
    /// The set of a primary that has none: nothing was acknowledged under it yet, so each that keeps up is a member.
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

    /// The set once a member of it was promoted.
    fn adopt(&self, view: &PrimaryView) -> Self {
        let mut next = self.clone();
        next.primary.clone_from(&view.primary);
        next.members.remove(&view.primary);
        next.joining.clear();
        next.renewed(view)
    }

    /// The set by what its primary says; `None` when it stays as it is.
    fn next(&self, view: &PrimaryView, replicas_min: u32) -> Option<Self> {
        let mut next = self.clone();
        // Those that were waited for and have all by now are members; one that does not keep up holds up no answer.
        let joined = std::mem::take(&mut next.joining);
        next.members.extend(keeping_up(view).filter(|name| joined.contains(*name)).cloned());
        let kept: BTreeSet<_> =
            keeping_up(view).filter(|name| next.members.contains(*name)).cloned().collect();
        // Never below the least number: until one is back, nothing is acknowledged. One that was promoted stays: as long as it
        // is waited for, it is certain to have all.
        if kept.len() >= replicas_min as usize {
            next.members.retain(|name| kept.contains(name) || view.promoted.contains(name));
        }
        next.joining = keeping_up(view).filter(|name| !next.members.contains(*name)).cloned().collect();
        let stays = next == *self && view.holds_tag && view.version <= self.version;
        (!stays).then(|| next.renewed(view))
    }

    /// Those that must confirm what the primary acknowledges.
    pub fn required(&self) -> impl Iterator<Item = &ServerName> {
        self.members.iter().chain(&self.joining)
    }

    fn renewed(mut self, view: &PrimaryView) -> Self {
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

    /// The members and those that join after a look at one primary; `None` when nothing changes.
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
    fn a_replica_that_keeps_up_joins_and_is_a_member_only_once_it_was_waited_for() {
        let seen = view("a", &[("b", true), ("c", true)]);
        assert_eq!(next(set("a", &["b"], &[]), &seen), Some(("a".into(), names(&["b"]), names(&["c"]))));
        assert_eq!(next(set("a", &["b"], &["c"]), &seen), Some(("a".into(), names(&["b", "c"]), names(&[]))));
        assert_eq!(next(set("a", &["b", "c"], &[]), &seen), None);
    }

    #[test]
    fn a_member_that_is_behind_leaves_unless_too_few_would_stay() {
        let seen = view("a", &[("b", false), ("c", true)]);
        assert_eq!(next(set("a", &["b", "c"], &[]), &seen), Some(("a".into(), names(&["c"]), names(&[]))));
        assert_eq!(next(set("a", &["b"], &[]), &view("a", &[])), None, "cut off");
        // The one that may replace it has to be waited for first.
        assert_eq!(next(set("a", &["b"], &[]), &seen), Some(("a".into(), names(&["b"]), names(&["c"]))));
    }

    #[test]
    fn a_member_that_was_promoted_stays_though_it_follows_no_longer() {
        let seen = PrimaryView { promoted: names(&["b"]), ..view("a", &[("c", true)]) };
        assert_eq!(next(set("a", &["b", "c"], &[]), &seen), None);
    }

    #[test]
    fn a_member_is_adopted_and_no_other_server() {
        let promoted = view("b", &[("c", true)]);
        let adopted = Some(("b".into(), names(&["c"]), names(&[])));
        assert_eq!(next(set("a", &["b", "c"], &[]), &promoted), adopted);
        assert_eq!(next(set("a", &["c"], &["b"]), &promoted), None, "it only began to join");
        assert_eq!(next(set("a", &["c"], &[]), &promoted), None);
    }

    #[test]
    fn replicas_that_do_not_keep_up_or_whose_primary_is_silent_are_missing() {
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
    fn a_primary_gets_a_set_while_every_other_set_has_its_own() {
        let replication = Replication { replicas_min: 1, sets: vec![set("a", &["b"], &[])] };
        let new = view("x", &[("y", true), ("z", false)]);
        let both = replication.changes(&[view("a", &[("b", true)]), new.clone()]);
        let first = ReplicaSet { id: 0, version: 4, ..set("x", &["y"], &[]) };
        assert_eq!(both, [SetChange::Create(first)]);
        assert_eq!(replication.changes(&[new]), [], "it may stand where `a` was");
    }

    #[test]
    fn nothing_of_a_server_counts_that_is_no_primary_of_a_set_with_enough_members() {
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
