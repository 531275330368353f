//! The cache: snapshots by campaign, ids of missing campaigns, and refreshes in flight, each bounded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use claimgate_shared::{CampaignId, Code, Timestamp, Version};

use super::snapshot::{NEGATIVE_TTL_MS, Snapshot};
use crate::clock::age_ms;
use crate::core_client::circuit_breaker::CallKind;
use crate::core_client::response::Summary;

/// TTL of a snapshot, in milliseconds. The edge rejects nothing based on older data.
pub const SNAPSHOT_TTL_MS: i64 = 2_000;

const CAMPAIGNS_MAX: usize = 1_024;
const NOT_FOUND_MAX: usize = 1_024;

thread_local! {
    static CACHE: RefCell<CampaignCache> = RefCell::default();
}

/// Calls `access` with this isolate's cache. `access` must not call back into this module.
pub(super) fn with<T>(access: impl FnOnce(&mut CampaignCache) -> T) -> T {
    CACHE.with_borrow_mut(access)
}

/// Looks up `id` in this isolate's cache at `now`.
pub fn lookup(id: &CampaignId, now: Timestamp) -> Lookup {
    with(|cache| cache.lookup(id, now))
}

/// Returns whether core has described the campaign `id` to this isolate.
pub fn is_known(id: &CampaignId) -> bool {
    with(|cache| cache.campaigns.contains_key(id))
}

/// Returns the kind of a call about `id` at `now`: `live` if the campaign is known and has not ended, otherwise
/// [`CallKind::MayNeedSql`].
pub fn call_kind(id: &CampaignId, now: Timestamp, live: CallKind) -> CallKind {
    if with(|cache| cache.is_live(id, now)) { live } else { CallKind::MayNeedSql }
}

/// Updates this isolate's cache from the response to a claim on `id`, sent at `requested_at`.
pub fn update(id: &CampaignId, response: &Summary, requested_at: Timestamp) {
    with(|cache| cache.update(id, response, requested_at));
}

/// The result of a cache lookup.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// Nothing valid is cached.
    Miss,
    /// The campaign did not exist, as of at most [`NEGATIVE_TTL_MS`] ago.
    NotFound,
    /// A snapshot at most [`SNAPSHOT_TTL_MS`] old.
    Hit(Rc<Snapshot>),
}

impl Lookup {
    /// Returns whether the campaign is due for a refresh at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        match self {
            Self::Miss => true,
            Self::NotFound => false,
            Self::Hit(snapshot) => snapshot.is_due(now),
        }
    }

    /// Returns whether a claim's pass may matter. A core that is older than passes has no rule about them, and would
    /// reject a request that mentions a pass.
    pub fn may_need_pass(&self) -> bool {
        match self {
            Self::Miss => true,
            Self::NotFound => false,
            Self::Hit(snapshot) => snapshot.has_pass_rule(),
        }
    }
}

/// The latest response about a campaign.
#[derive(Debug)]
struct Entry {
    version: Version,
    requested_at: Timestamp,
    /// `None` once a response with a newer version has made it obsolete.
    snapshot: Option<Rc<Snapshot>>,
}

impl Entry {
    /// Returns whether the entry is newer than `snapshot`. A higher version counts only as long as a response
    /// can be in flight, because a restored database may have a lower version.
    fn is_newer_than(&self, snapshot: &Snapshot) -> bool {
        self.requested_at > snapshot.requested_at()
            || (self.version > snapshot.view().version
                && age_ms(self.requested_at, snapshot.requested_at()) <= SNAPSHOT_TTL_MS)
    }
}

/// An isolate's cache of campaigns.
#[derive(Debug, Default)]
pub struct CampaignCache {
    campaigns: HashMap<CampaignId, Entry>,
    /// Ids of missing campaigns, with the time of the request. Requests for made-up ids must not all reach core.
    not_found: HashMap<CampaignId, Timestamp>,
    /// Refreshes in flight, with the time they began.
    refreshing: HashMap<CampaignId, Timestamp>,
}

impl CampaignCache {
    /// Looks up `id` at `now`.
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

    /// Returns whether `id` is known and has not ended at `now`, judging by core's latest response, however old.
    pub fn is_live(&self, id: &CampaignId, now: Timestamp) -> bool {
        let entry = self.campaigns.get(id);
        entry.is_some_and(|entry| entry.snapshot.as_ref().is_none_or(|last| !last.is_over(now)))
    }

    /// Begins a refresh of `id` at `now`, unless one is in flight. Returns whether the caller must fetch it.
    /// A refresh older than a call to core can take is dropped: its request was aborted and cannot end it.
    pub fn begin_refresh(&mut self, id: &CampaignId, now: Timestamp) -> bool {
        self.refreshing.retain(|_, began_at| age_ms(*began_at, now) <= SNAPSHOT_TTL_MS);
        // Made-up ids may fill the map, but must not block refreshes of cached campaigns.
        let is_full = self.refreshing.len() >= NOT_FOUND_MAX && !self.campaigns.contains_key(id);
        if self.refreshing.contains_key(id) || is_full {
            return false;
        }
        self.refreshing.insert(id.clone(), now);
        true
    }

    /// Ends the refresh of `id` that began at `began_at`. A later one stays in flight.
    pub fn end_refresh(&mut self, id: &CampaignId, began_at: Timestamp) {
        if self.refreshing.get(id) == Some(&began_at) {
            self.refreshing.remove(id);
        }
    }

    /// Caches `snapshot`, unless a newer one is cached. If the cache is full, evicts the oldest campaign.
    pub fn insert(&mut self, snapshot: Rc<Snapshot>) {
        let id = snapshot.view().id.clone();
        self.not_found.remove(&id);
        let entry = self.campaigns.get(&id);
        if entry.is_some_and(|entry| entry.is_newer_than(&snapshot)) {
            return;
        }
        let fresher_count = entry.and_then(|entry| entry.snapshot.as_ref()).filter(|cached| {
            cached.view().version == snapshot.view().version
                && cached.remaining_at() > snapshot.remaining_at()
        });
        let snapshot = match fresher_count {
            Some(cached) => Rc::new(snapshot.with_remaining(cached.view().remaining, cached.remaining_at())),
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

    /// Updates `id` from the response to a claim sent at `requested_at`: the rules have changed, the campaign
    /// does not exist, or fewer units are left.
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
            // Responses to claims of one batch arrive in any order; the lowest count is the latest. The next
            // snapshot includes returned units.
            && snapshot.view().remaining.is_none_or(|cached| remaining <= cached)
        {
            *snapshot = Rc::new(snapshot.with_remaining(Some(remaining), requested_at));
        }
    }

    /// Records that core had no campaign `id` at `requested_at`.
    pub fn insert_not_found(&mut self, id: CampaignId, requested_at: Timestamp) {
        self.campaigns.remove(&id);
        if self.not_found.len() >= NOT_FOUND_MAX {
            self.not_found.retain(|_, other| age_ms(*other, requested_at) <= NEGATIVE_TTL_MS);
        }
        // Still full of valid entries. Each one dropped costs core at most one request.
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
    use crate::core_client::response::ProblemCode;

    fn named(id: &str, requested_ms: i64) -> Rc<Snapshot> {
        let view = View { id: id.parse().unwrap(), ..view(CampaignState::Open, None, 15_000) };
        Rc::new(Snapshot::new(view, at(requested_ms), at(requested_ms), 0.0))
    }

    fn id(text: &str) -> CampaignId {
        text.parse().unwrap()
    }

    fn with_remaining(version: u64, remaining: u32, requested_ms: i64) -> Rc<Snapshot> {
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
    fn a_snapshot_lasts_two_seconds_its_sold_out_state_one() {
        let mut cache = CampaignCache::default();
        cache.insert(with_remaining(3, 0, 1_000));
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
    fn a_response_with_a_newer_version_invalidates_the_snapshot() {
        let mut cache = CampaignCache::default();
        cache.insert(with_remaining(3, 0, 1_000));
        cache.update(&id("demo"), &granted(4, 9), at(1_100));
        assert!(found(&cache, 1_200).is_none());
        cache.insert(with_remaining(3, 0, 1_050));
        cache.insert(with_remaining(3, 0, 1_150));
        assert!(found(&cache, 1_200).is_none(), "the old version came back");
        cache.insert(with_remaining(4, 8, 1_250));
        assert_eq!(found(&cache, 1_300).unwrap().view().remaining, Some(8));
        cache.insert(with_remaining(2, 7, 3_251));
        assert!(found(&cache, 3_300).is_some(), "a database was restored");
    }

    #[test]
    fn responses_to_claims_update_the_remaining_units() {
        let mut cache = CampaignCache::default();
        cache.insert(with_remaining(3, 5, 1_000));
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
        cache.insert(with_remaining(3, 4, 1_150));
        assert_eq!(left(&cache), 0, "requested before");
        cache.update(&id("demo"), &granted(3, 6), at(1_199));
        assert_eq!(left(&cache), 0, "requested before");
        cache.update(&id("demo"), &granted(3, 1), at(1_200));
        assert_eq!(left(&cache), 0, "granted in the same batch, received later");
        cache.insert(with_remaining(3, 4, 1_300));
        assert_eq!(left(&cache), 4);
    }

    #[test]
    fn a_known_campaign_is_live_until_it_is_over() {
        // Requested at 1,000, when core's clock read 15,000; the window ends at 20,000.
        let is_live = |cache: &CampaignCache, now_ms: i64| cache.is_live(&id("demo"), at(now_ms));
        let mut cache = CampaignCache::default();
        assert!(!is_live(&cache, 1_000));
        cache.insert(with_remaining(3, 0, 1_000));
        assert!(is_live(&cache, 1_000) && is_live(&cache, 5_990), "even after its snapshot has expired");
        assert!(!is_live(&cache, 6_010));
        cache.update(&id("demo"), &granted(4, 9), at(1_100));
        assert!(is_live(&cache, 1_200));
        let ended = View { version: Version::new(5), ..view(CampaignState::Ended, None, 15_000) };
        cache.insert(Rc::new(Snapshot::new(ended, at(1_300), at(1_300), 0.0)));
        assert!(!is_live(&cache, 1_300));
        cache.insert(with_remaining(6, 1, 1_400));
        cache.insert_not_found(id("demo"), at(1_500));
        assert!(!is_live(&cache, 1_500));
    }

    #[test]
    fn an_unknown_id_is_cached_for_a_second_or_until_it_exists() {
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
    fn refreshes_do_not_overlap_and_expire() {
        let mut cache = CampaignCache::default();
        assert!(cache.begin_refresh(&id("demo"), at(1_000)));
        assert!(!cache.begin_refresh(&id("demo"), at(3_000)));
        assert!(cache.begin_refresh(&id("other"), at(3_000)));
        assert!(cache.begin_refresh(&id("demo"), at(3_001)));
        cache.end_refresh(&id("demo"), at(1_000));
        assert!(!cache.begin_refresh(&id("demo"), at(3_001)), "a dropped refresh does not end a later one");
        cache.end_refresh(&id("demo"), at(3_001));
        assert!(cache.begin_refresh(&id("demo"), at(3_001)));
    }

    #[test]
    fn the_cache_is_bounded() {
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
