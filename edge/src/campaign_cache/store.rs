//! The cache itself: snapshots by campaign, ids that core does not know, and refreshes in flight, each in bounded space.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use claimgate_shared::{CampaignId, Code, Timestamp, Version};

use super::snapshot::{NEGATIVE_TTL_MS, Snapshot};
use crate::clock::age_ms;
use crate::core_client::Summary;
use crate::core_client::circuit_breaker::CallKind;

/// How long a snapshot is used, in milliseconds: no refusal at the edge is based on anything older.
pub const SNAPSHOT_TTL_MS: i64 = 2_000;

const CAMPAIGNS_MAX: usize = 1_024;
const NOT_FOUND_MAX: usize = 1_024;

thread_local! {
    static CACHE: RefCell<CampaignCache> = RefCell::default();
}

/// Applies `access` to this isolate's cache. `access` must not call back into this module.
pub(super) fn with<T>(access: impl FnOnce(&mut CampaignCache) -> T) -> T {
    CACHE.with_borrow_mut(access)
}

/// Looks `id` up in this isolate's cache at `now`.
pub fn lookup(id: &CampaignId, now: Timestamp) -> Lookup {
    with(|cache| cache.lookup(id, now))
}

/// The kind of a call about `id` at `now`: `live` for a campaign that is not over, else one that core may need SQL for.
pub fn call_kind(id: &CampaignId, now: Timestamp, live: CallKind) -> CallKind {
    if with(|cache| cache.is_live(id, now)) { live } else { CallKind::MayNeedSql }
}

/// Updates this isolate's cache by the response to a claim on `id` that was sent at `requested_at`.
pub fn update(id: &CampaignId, response: &Summary, requested_at: Timestamp) {
    with(|cache| cache.update(id, response, requested_at));
}

/// What the cache has of one campaign.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// Nothing that is still valid.
    Miss,
    /// Core did not know the campaign at most [`NEGATIVE_TTL_MS`] ago.
    NotFound,
    /// A snapshot at most [`SNAPSHOT_TTL_MS`] old.
    Hit(Rc<Snapshot>),
}

impl Lookup {
    /// Whether core is to be asked for the campaign at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        match self {
            Self::Miss => true,
            Self::NotFound => false,
            Self::Hit(snapshot) => snapshot.is_due(now),
        }
    }
}

/// The last that core said of a campaign.
#[derive(Debug)]
struct Entry {
    version: Version,
    requested_at: Timestamp,
    /// `None` once a response has shown that it is of an older version.
    snapshot: Option<Rc<Snapshot>>,
}

impl Entry {
    /// Whether `snapshot` would be a step back. A higher version counts only for as long as a response can be in flight: a
    /// database that was restored may state a lower one.
    fn is_newer_than(&self, snapshot: &Snapshot) -> bool {
        self.requested_at > snapshot.requested_at()
            || (self.version > snapshot.view().version
                && age_ms(self.requested_at, snapshot.requested_at()) <= SNAPSHOT_TTL_MS)
    }
}

/// The campaigns that an isolate keeps.
#[derive(Debug, Default)]
pub struct CampaignCache {
    campaigns: HashMap<CampaignId, Entry>,
    /// Ids that core does not know, by when it was asked: made-up ids must not reach core again and again.
    not_found: HashMap<CampaignId, Timestamp>,
    /// Refreshes in flight, by when they began.
    refreshing: HashMap<CampaignId, Timestamp>,
}

impl CampaignCache {
    /// What the cache has of `id` at `now`.
    pub fn lookup(&self, id: &CampaignId, now: Timestamp) -> Lookup {
        if let Some(snapshot) = self.campaigns.get(id).and_then(|entry| entry.snapshot.as_ref())
            && age_ms(snapshot.requested_at(), now) <= SNAPSHOT_TTL_MS
        {
            return Lookup::Hit(Rc::clone(snapshot));
        }
        match self.not_found.get(id) {
            Some(requested_at) if age_ms(*requested_at, now) <= NEGATIVE_TTL_MS => Lookup::NotFound,
            _ => Lookup::Miss,
        }
    }

    /// Whether `id` is known, and not over at `now` by what core said of it last, however long ago that was.
    pub fn is_live(&self, id: &CampaignId, now: Timestamp) -> bool {
        let entry = self.campaigns.get(id);
        entry.is_some_and(|entry| entry.snapshot.as_ref().is_none_or(|last| !last.is_over(now)))
    }

    /// Begins a refresh of `id` at `now`, if none is in flight. Returns whether the caller is to ask core. A request that is
    /// cut off never ends its refresh, so one that takes longer than a call to core can is dropped.
    pub fn begin_refresh(&mut self, id: &CampaignId, now: Timestamp) -> bool {
        self.refreshing.retain(|_, began_at| age_ms(*began_at, now) <= SNAPSHOT_TTL_MS);
        // Made-up ids may fill the space, but must not keep an existing campaign from being refreshed.
        let is_full = self.refreshing.len() >= NOT_FOUND_MAX && !self.campaigns.contains_key(id);
        if self.refreshing.contains_key(id) || is_full {
            return false;
        }
        self.refreshing.insert(id.clone(), now);
        true
    }

    /// Ends the refresh of `id` that began at `began_at`; a later one stays in flight.
    pub fn end_refresh(&mut self, id: &CampaignId, began_at: Timestamp) {
        if self.refreshing.get(id) == Some(&began_at) {
            self.refreshing.remove(id);
        }
    }

    /// Stores `snapshot`, unless the cache has a newer one. When the cache is full, the oldest campaign makes room.
    pub fn insert(&mut self, snapshot: Rc<Snapshot>) {
        let id = snapshot.view().id.clone();
        self.not_found.remove(&id);
        let entry = self.campaigns.get(&id);
        if entry.is_some_and(|entry| entry.is_newer_than(&snapshot)) {
            return;
        }
        let counted = entry.and_then(|entry| entry.snapshot.as_ref()).filter(|counted| {
            counted.view().version == snapshot.view().version
                && counted.remaining_at() > snapshot.remaining_at()
        });
        let snapshot = match counted {
            Some(counted) => {
                Rc::new(snapshot.with_remaining(counted.view().remaining, counted.remaining_at()))
            }
            None => snapshot,
        };
        if entry.is_none()
            && self.campaigns.len() >= CAMPAIGNS_MAX
            && let Some(oldest) = self.oldest()
        {
            self.campaigns.remove(&oldest);
        }
        let entry = Entry {
            version: snapshot.view().version,
            requested_at: snapshot.requested_at(),
            snapshot: Some(snapshot),
        };
        self.campaigns.insert(id, entry);
    }

    /// Stores what the response to a claim says of `id`: that its rules have changed, that it does not exist, or how many
    /// units are left. The claim was sent at `requested_at`.
    pub fn update(&mut self, id: &CampaignId, response: &Summary, requested_at: Timestamp) {
        if response.is_problem(Code::CampaignNotFound) {
            self.insert_not_found(id.clone(), requested_at);
            return;
        }
        let (Some(entry), Some(version)) = (self.campaigns.get_mut(id), response.version) else {
            return;
        };
        if version > entry.version {
            *entry = Entry { version, requested_at, snapshot: None };
        } else if version == entry.version
            && let Some(remaining) = response.campaign_remaining()
            && let Some(snapshot) = &mut entry.snapshot
            && requested_at >= snapshot.remaining_at()
            // Claims decided together are answered in any order: the least is the last. Returned units appear in the next
            // snapshot.
            && snapshot.view().remaining.is_none_or(|cached| remaining <= cached)
        {
            *snapshot = Rc::new(snapshot.with_remaining(Some(remaining), requested_at));
        }
    }

    /// Stores that core, asked at `requested_at`, does not know `id`.
    pub fn insert_not_found(&mut self, id: CampaignId, requested_at: Timestamp) {
        self.campaigns.remove(&id);
        if self.not_found.len() >= NOT_FOUND_MAX {
            self.not_found.retain(|_, other| age_ms(*other, requested_at) <= NEGATIVE_TTL_MS);
        }
        // Still full of valid ones: each that is dropped costs core one request.
        if self.not_found.len() >= NOT_FOUND_MAX {
            self.not_found.clear();
        }
        self.not_found.insert(id, requested_at);
    }

    fn oldest(&self) -> Option<CampaignId> {
        let oldest = self.campaigns.iter().min_by_key(|(_, entry)| entry.requested_at);
        oldest.map(|(id, _)| id.clone())
    }
}

#[cfg(test)]
mod tests {
    use claimgate_shared::CampaignState;

    use super::*;
    use crate::campaign_cache::snapshot::View;
    use crate::campaign_cache::snapshot::tests::{at, view};
    use crate::core_client::ProblemCode;

    fn named(id: &str, requested_ms: i64) -> Rc<Snapshot> {
        let view = View { id: id.parse().unwrap(), ..view(CampaignState::Open, None, 15_000) };
        Rc::new(Snapshot::new(view, at(requested_ms), at(requested_ms), 0.0))
    }

    fn id(text: &str) -> CampaignId {
        text.parse().unwrap()
    }

    fn seen(version: u64, remaining: u32, requested_ms: i64) -> Rc<Snapshot> {
        let view =
            View { version: Version::new(version), ..view(CampaignState::Open, Some(remaining), 15_000) };
        Rc::new(Snapshot::new(view, at(requested_ms), at(requested_ms), 0.0))
    }

    fn found(cache: &CampaignCache, now_ms: i64) -> Option<Rc<Snapshot>> {
        match cache.lookup(&id("demo"), at(now_ms)) {
            Lookup::Hit(snapshot) => Some(snapshot),
            Lookup::Miss | Lookup::NotFound => None,
        }
    }

    fn granted(version: u64, remaining: u32) -> Summary {
        Summary { version: Some(Version::new(version)), remaining: Some(remaining), ..Summary::default() }
    }

    fn denied(code: Code, version: u64, remaining: u32) -> Summary {
        Summary { problem: Some(ProblemCode::Known(code)), ..granted(version, remaining) }
    }

    #[test]
    fn a_snapshot_is_usable_for_two_seconds_and_sold_out_for_one() {
        let mut cache = CampaignCache::default();
        cache.insert(seen(3, 0, 1_000));
        assert!(found(&cache, 2_000).unwrap().is_sold_out(at(2_000)));
        assert!(!found(&cache, 2_001).unwrap().is_sold_out(at(2_001)));
        assert!(found(&cache, 3_000).is_some());
        assert!(found(&cache, 3_001).is_none());
        assert!(found(&cache, 999).is_none());
    }

    #[test]
    fn a_late_response_does_not_replace_a_newer_one() {
        let mut cache = CampaignCache::default();
        cache.insert(named("demo", 1_500));
        cache.insert(named("demo", 1_000));
        assert_eq!(found(&cache, 1_600).unwrap().requested_at(), at(1_500));
    }

    #[test]
    fn a_response_of_a_newer_version_invalidates_the_snapshot() {
        let mut cache = CampaignCache::default();
        cache.insert(seen(3, 0, 1_000));
        cache.update(&id("demo"), &granted(4, 9), at(1_100));
        assert!(found(&cache, 1_200).is_none());
        cache.insert(seen(3, 0, 1_050));
        cache.insert(seen(3, 0, 1_150));
        assert!(found(&cache, 1_200).is_none(), "the old version came back");
        cache.insert(seen(4, 8, 1_250));
        assert_eq!(found(&cache, 1_300).unwrap().view().remaining, Some(8));
        cache.insert(seen(2, 7, 3_251));
        assert!(found(&cache, 3_300).is_some(), "a database was restored");
    }

    #[test]
    fn responses_to_claims_say_what_is_left() {
        let mut cache = CampaignCache::default();
        cache.insert(seen(3, 5, 1_000));
        let left = |cache: &CampaignCache| found(cache, 1_500).unwrap().view().remaining.unwrap();
        cache.update(&id("demo"), &granted(3, 1), at(1_100));
        assert_eq!(left(&cache), 1);
        for ignored in [
            denied(Code::SoldOut, 3, 2),
            denied(Code::UserLimitReached, 3, 0),
            denied(Code::SoldOut, 2, 0),
            Summary { version: Some(Version::new(3)), ..Summary::default() },
        ] {
            cache.update(&id("demo"), &ignored, at(1_150));
            assert_eq!(left(&cache), 1, "{ignored:?}");
        }
        cache.update(&id("demo"), &denied(Code::SoldOut, 3, 0), at(1_200));
        assert!(found(&cache, 2_200).unwrap().is_sold_out(at(2_200)));
        assert!(!found(&cache, 2_201).unwrap().is_sold_out(at(2_201)), "longer than a second");
        cache.insert(seen(3, 4, 1_150));
        assert_eq!(left(&cache), 0, "requested before");
        cache.update(&id("demo"), &granted(3, 6), at(1_199));
        assert_eq!(left(&cache), 0, "requested before");
        cache.update(&id("demo"), &granted(3, 1), at(1_200));
        assert_eq!(left(&cache), 0, "granted beside the last one, and answered after it");
        cache.insert(seen(3, 4, 1_300));
        assert_eq!(left(&cache), 4);
    }

    #[test]
    fn a_campaign_is_live_from_the_first_response_about_it_until_it_is_over() {
        // Seen at 1,000 when core's clock read 15,000; its window ends at 20,000.
        let is_live = |cache: &CampaignCache, now_ms: i64| cache.is_live(&id("demo"), at(now_ms));
        let mut cache = CampaignCache::default();
        assert!(!is_live(&cache, 1_000));
        cache.insert(seen(3, 0, 1_000));
        assert!(is_live(&cache, 1_000) && is_live(&cache, 5_990), "also when its snapshot has expired");
        assert!(!is_live(&cache, 6_010));
        cache.update(&id("demo"), &granted(4, 9), at(1_100));
        assert!(is_live(&cache, 1_200));
        let ended = View { version: Version::new(5), ..view(CampaignState::Ended, None, 15_000) };
        cache.insert(Rc::new(Snapshot::new(ended, at(1_300), at(1_300), 0.0)));
        assert!(!is_live(&cache, 1_300));
        cache.insert(seen(6, 1, 1_400));
        cache.insert_not_found(id("demo"), at(1_500));
        assert!(!is_live(&cache, 1_500));
    }

    #[test]
    fn an_unknown_campaign_is_cached_for_a_second_or_until_it_exists() {
        let mut cache = CampaignCache::default();
        cache.insert_not_found(id("demo"), at(1_000));
        assert!(matches!(cache.lookup(&id("demo"), at(2_000)), Lookup::NotFound));
        assert!(matches!(cache.lookup(&id("demo"), at(2_001)), Lookup::Miss));
        cache.insert(named("demo", 1_500));
        assert!(found(&cache, 1_600).is_some());
        let gone =
            Summary { problem: Some(ProblemCode::Known(Code::CampaignNotFound)), ..Summary::default() };
        cache.update(&id("demo"), &gone, at(1_700));
        assert!(matches!(cache.lookup(&id("demo"), at(1_800)), Lookup::NotFound));
    }

    #[test]
    fn one_refresh_at_a_time_and_none_for_ever() {
        let mut cache = CampaignCache::default();
        assert!(cache.begin_refresh(&id("demo"), at(1_000)));
        assert!(!cache.begin_refresh(&id("demo"), at(3_000)));
        assert!(cache.begin_refresh(&id("other"), at(3_000)));
        assert!(cache.begin_refresh(&id("demo"), at(3_001)));
        cache.end_refresh(&id("demo"), at(1_000));
        assert!(!cache.begin_refresh(&id("demo"), at(3_001)), "ended by one that was dropped");
        cache.end_refresh(&id("demo"), at(3_001));
        assert!(cache.begin_refresh(&id("demo"), at(3_001)));
    }

    #[test]
    fn the_space_is_bounded() {
        let mut cache = CampaignCache::default();
        for n in 0..5_000 {
            cache.insert(named(&format!("c{n}"), 1_000 + n));
            cache.insert_not_found(id(&format!("u{n}")), at(1_000));
            cache.begin_refresh(&id(&format!("r{n}")), at(1_000));
        }
        assert_eq!(cache.campaigns.len(), CAMPAIGNS_MAX);
        assert!(cache.campaigns.contains_key(&id("c4999")));
        assert!(cache.not_found.len() <= NOT_FOUND_MAX);
        assert_eq!(cache.refreshing.len(), NOT_FOUND_MAX);
    }
}
