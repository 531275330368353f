//! The isolate's fetched key set: when it is fresh, when it is fetched again, and how long it is used while
//! its source is unreachable.

use std::cell::RefCell;
use std::rc::Rc;

use claimgate_shared::Timestamp;

use super::key_set::KeySet;
use crate::clock::age_ms;

/// Maximum age of known keys while their source is unavailable.
const KEYS_TTL_MS: i64 = 24 * 3_600_000;
/// Minimum age of a set at which a token with an unknown key causes a fetch.
const UNKNOWN_KEY_MS: i64 = 30_000;
/// Refresh interval of a set, unless the source's `max-age` sets it.
const REFRESH_MS: i64 = 10 * 60_000;
const REFRESH_MS_MIN: i64 = 60_000;
const REFRESH_MS_MAX: i64 = 60 * 60_000;
const BACKOFF_MS: i64 = 1_000;
const BACKOFF_MS_MAX: i64 = 30_000;
/// Age at which a fetch counts as aborted: discovery takes two requests of 2 s.
const FETCH_MS_MAX: i64 = 4_500;

thread_local! {
    static CACHE: RefCell<KeyCache> = const { RefCell::new(KeyCache::new()) };
}

/// Calls `access` with this isolate's key set. `access` must not call back into this module.
pub(super) fn with<T>(access: impl FnOnce(&mut KeyCache) -> T) -> T {
    CACHE.with_borrow_mut(access)
}

/// The right of one request to fetch the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    began_at: Timestamp,
}

/// The fetched key set, and the state of fetching it.
#[derive(Debug)]
pub struct KeyCache {
    fetched: Option<Fetched>,
    /// The latest failure, if the latest fetch failed.
    failed: Option<Failed>,
    fetching_since: Option<Timestamp>,
}

#[derive(Debug)]
struct Fetched {
    keys: Rc<KeySet>,
    at: Timestamp,
    refresh_ms: i64,
}

#[derive(Debug, Clone, Copy)]
struct Failed {
    at: Timestamp,
    backoff_ms: i64,
}

impl KeyCache {
    const fn new() -> Self {
        Self { fetched: None, failed: None, fetching_since: None }
    }

    /// Returns the keys that may be used at `now`.
    pub fn keys(&self, now: Timestamp) -> Option<Rc<KeySet>> {
        let fetched = self.fetched.as_ref().filter(|fetched| age_ms(fetched.at, now) < KEYS_TTL_MS);
        fetched.map(|fetched| Rc::clone(&fetched.keys))
    }

    /// Returns whether a key that the set lacks at `now` does not exist: fetching it again is not yet allowed.
    pub fn is_recent(&self, now: Timestamp) -> bool {
        self.fetched.as_ref().is_some_and(|fetched| age_ms(fetched.at, now) < UNKNOWN_KEY_MS)
    }

    /// Returns whether a fetch is in flight at `now`.
    pub fn is_fetching(&self, now: Timestamp) -> bool {
        self.fetching_since.is_some_and(|since| age_ms(since, now) < FETCH_MS_MAX)
    }

    /// Begins the periodic refresh at `now`, if it is due.
    pub fn begin_refresh(&mut self, now: Timestamp) -> Option<Fetch> {
        let is_due =
            self.fetched.as_ref().is_none_or(|fetched| age_ms(fetched.at, now) >= fetched.refresh_ms);
        if is_due { self.begin(now) } else { None }
    }

    /// Begins a fetch at `now` for a key that the set lacks, if the set is not recent.
    pub fn begin_for_unknown_key(&mut self, now: Timestamp) -> Option<Fetch> {
        if self.is_recent(now) { None } else { self.begin(now) }
    }

    /// Begins a fetch unless one is in flight or the source failed a short time ago.
    fn begin(&mut self, now: Timestamp) -> Option<Fetch> {
        let is_backing_off = self.failed.is_some_and(|failed| age_ms(failed.at, now) < failed.backoff_ms);
        if self.is_fetching(now) || is_backing_off {
            return None;
        }
        self.fetching_since = Some(now);
        Some(Fetch { began_at: now })
    }

    /// Caches the keys that `fetch` returned, with the source's `max-age` in seconds.
    pub fn succeeded(&mut self, fetch: Fetch, keys: KeySet, max_age_s: Option<u32>) {
        self.end(fetch);
        let refresh_ms = max_age_s.map_or(REFRESH_MS, |seconds| i64::from(seconds) * 1_000);
        let refresh_ms = refresh_ms.clamp(REFRESH_MS_MIN, REFRESH_MS_MAX);
        self.fetched = Some(Fetched { keys: Rc::new(keys), at: fetch.began_at, refresh_ms });
        self.failed = None;
    }

    /// Records that `fetch` failed at `now`. Without keys, the next try is in a second.
    pub fn failed(&mut self, fetch: Fetch, now: Timestamp) {
        self.end(fetch);
        let backoff_ms = match self.failed {
            Some(failed) if self.keys(now).is_some() => (failed.backoff_ms * 2).min(BACKOFF_MS_MAX),
            _ => BACKOFF_MS,
        };
        self.failed = Some(Failed { at: now, backoff_ms });
    }

    /// Drops the keys: the source publishes none that may be used any more.
    pub fn withdraw(&mut self) {
        self.fetched = None;
    }

    /// Ends `fetch`. One that began later stays in flight.
    fn end(&mut self, fetch: Fetch) {
        if self.fetching_since == Some(fetch.began_at) {
            self.fetching_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000 + ms).unwrap()
    }

    /// A cache whose set was fetched at 0 with this `max-age`.
    fn fetched(max_age_s: Option<u32>) -> KeyCache {
        let mut cache = KeyCache::new();
        let fetch = cache.begin_refresh(at(0)).unwrap();
        cache.succeeded(fetch, KeySet::default(), max_age_s);
        cache
    }

    #[test]
    fn a_set_is_refreshed_after_ten_minutes_or_its_max_age() {
        for (max_age_s, due_ms) in [
            (None, 600_000),
            (Some(0), 60_000),
            (Some(300), 300_000),
            (Some(86_400), 3_600_000),
            (Some(u32::MAX), 3_600_000),
        ] {
            let mut cache = fetched(max_age_s);
            assert_eq!(cache.begin_refresh(at(due_ms - 1)), None, "{max_age_s:?}");
            assert!(cache.begin_refresh(at(due_ms)).is_some(), "{max_age_s:?}");
            assert_eq!(cache.begin_refresh(at(due_ms + 1)), None, "one is in flight");
        }
    }

    #[test]
    fn an_unknown_key_causes_one_fetch_in_thirty_seconds() {
        let mut cache = fetched(None);
        assert!(cache.is_recent(at(29_999)));
        assert_eq!(cache.begin_for_unknown_key(at(29_999)), None);
        let fetch = cache.begin_for_unknown_key(at(30_000)).unwrap();
        assert_eq!(cache.begin_for_unknown_key(at(30_001)), None, "one is in flight");
        cache.succeeded(fetch, KeySet::default(), None);
        assert_eq!(cache.begin_for_unknown_key(at(59_999)), None);
        assert!(cache.begin_for_unknown_key(at(60_000)).is_some());
    }

    #[test]
    fn failures_are_retried_with_backoff_while_there_are_keys() {
        let mut cache = fetched(None);
        let mut now = 600_000;
        for backoff_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            let fetch = cache.begin_refresh(at(now)).unwrap();
            cache.failed(fetch, at(now));
            assert!(cache.keys(at(now)).is_some());
            assert_eq!(cache.begin_for_unknown_key(at(now + backoff_ms - 1)), None, "{backoff_ms}");
            now += backoff_ms;
        }
        let fetch = cache.begin_refresh(at(now)).unwrap();
        cache.succeeded(fetch, KeySet::default(), None);
        let fetch = cache.begin_for_unknown_key(at(now + 30_000)).unwrap();
        cache.failed(fetch, at(now + 30_000));
        assert!(cache.begin_for_unknown_key(at(now + 31_000)).is_some(), "the backoff starts again");
    }

    #[test]
    fn without_keys_a_fetch_is_tried_every_second() {
        let mut cache = KeyCache::new();
        for now in [0, 1_000, 2_000, 3_000, 4_000] {
            let fetch = cache.begin_for_unknown_key(at(now)).unwrap();
            cache.failed(fetch, at(now));
            assert_eq!(cache.begin_for_unknown_key(at(now + 999)), None);
        }
    }

    #[test]
    fn withdrawn_keys_are_not_used() {
        let mut cache = fetched(None);
        let fetch = cache.begin_refresh(at(600_000)).unwrap();
        cache.withdraw();
        cache.failed(fetch, at(600_000));
        assert!(cache.keys(at(600_000)).is_none());
        assert!(cache.begin_refresh(at(601_000)).is_some());
    }

    #[test]
    fn known_keys_are_used_for_a_day_without_their_source() {
        let cache = fetched(None);
        assert!(cache.keys(at(KEYS_TTL_MS - 1)).is_some());
        assert!(cache.keys(at(KEYS_TTL_MS)).is_none());
    }

    #[test]
    fn a_fetch_that_was_aborted_blocks_no_other() {
        let mut cache = KeyCache::new();
        let cut_off = cache.begin_refresh(at(0)).unwrap();
        assert!(cache.is_fetching(at(FETCH_MS_MAX - 1)));
        let next = cache.begin_refresh(at(FETCH_MS_MAX)).unwrap();
        cache.failed(cut_off, at(FETCH_MS_MAX + 1));
        assert!(cache.is_fetching(at(FETCH_MS_MAX + 1)), "the next one is still in flight");
        cache.succeeded(next, KeySet::default(), None);
        assert!(!cache.is_fetching(at(FETCH_MS_MAX + 2)));
    }

    #[test]
    fn a_clock_that_was_set_back_makes_keys_stale() {
        let mut cache = fetched(None);
        assert!(cache.keys(at(-1)).is_none());
        assert!(cache.begin_for_unknown_key(at(-1)).is_some());
    }
}
