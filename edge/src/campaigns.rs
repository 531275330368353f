//! What this isolate remembers of campaigns: a snapshot of each, for a moment, in bounded space.
//!
//! No request may wait for what another one has asked: a runtime cuts such waiting off. So whoever finds a snapshot
//! stale refreshes it, and everybody else makes do with the stale one while it is usable.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::campaign::Switch;
use claimgate_shared::window::Position;
use claimgate_shared::{CampaignId, CampaignState, CampaignView, Code, Problem, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::config::Config;
use crate::{clock, gate, origin};

/// For so long a snapshot is as good as core's own word.
pub const FRESH_MS: i64 = 1_000;
/// For so long it still serves while a newer one is on its way: no refusal may be older.
pub const USABLE_MS: i64 = 2_000;

thread_local! {
    static CAMPAIGNS: RefCell<Campaigns> = RefCell::default();
}

const KNOWN_MAX: usize = 64;
const UNKNOWN_MAX: usize = 1_024;

/// A campaign as core saw it a moment ago, and how core's clock stood to ours.
#[derive(Debug, Clone)]
pub struct Snapshot {
    view: CampaignView,
    /// When it was asked for: it cannot be older than that.
    asked_at: Timestamp,
    clock_ahead_ms: i64,
    clock_error_ms: i64,
}

impl Snapshot {
    /// `view` as asked for at `asked_at` and received at `received_at`, both by our clock.
    pub fn new(view: CampaignView, asked_at: Timestamp, received_at: Timestamp) -> Self {
        // Core read its clock at some time between the two: halfway is off by half at most.
        let half_ms = (received_at.as_ms() - asked_at.as_ms()).max(0) / 2;
        Self {
            clock_ahead_ms: view.server_time.as_ms() - asked_at.as_ms() - half_ms,
            clock_error_ms: half_ms + 1,
            asked_at,
            view,
        }
    }

    /// What core said, as it said it.
    pub fn view(&self) -> &CampaignView {
        &self.view
    }

    /// Whether it still counts as core's own word at `now`.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        age_ms(self.asked_at, now) <= FRESH_MS
    }

    /// Where core's clock lies in the window at `now`; `None` when it is too near an edge to tell.
    pub fn position(&self, now: Timestamp) -> Option<Position> {
        let clock = now.saturating_add_ms(self.clock_ahead_ms);
        let earliest = self.view.window.position(clock.saturating_add_ms(-self.clock_error_ms));
        let latest = self.view.window.position(clock.saturating_add_ms(self.clock_error_ms));
        (earliest == latest).then_some(latest)
    }

    /// The view with its clock moved on to `now`, and the state that goes with that.
    pub fn view_at(&self, now: Timestamp) -> CampaignView {
        let server_time = now.saturating_add_ms(self.clock_ahead_ms);
        let by_clock = || CampaignState::at(server_time, Switch::On, self.view.window, self.view.remaining);
        CampaignView {
            state: match self.view.state {
                by_hand @ (CampaignState::Paused | CampaignState::Ended) => by_hand,
                CampaignState::Scheduled | CampaignState::Open | CampaignState::SoldOut => by_clock(),
            },
            server_time,
            ..self.view.clone()
        }
    }
}

/// An `ETag` for everything in `view` but its clock, which is another one every time.
pub fn etag(view: &CampaignView) -> Result<String, serde_json::Error> {
    let timeless = CampaignView { server_time: view.window.starts_at(), ..view.clone() };
    let digest = Sha256::digest(serde_json::to_vec(&timeless)?);
    Ok(format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..16])))
}

/// What is remembered of one campaign.
#[derive(Debug, Clone)]
pub enum Memory {
    /// Nothing that is still of use.
    Nothing,
    /// Core did not know it a moment ago.
    Unknown,
    /// A snapshot no older than [`USABLE_MS`].
    Snapshot(Rc<Snapshot>),
}

impl Memory {
    fn is_fresh(&self, now: Timestamp) -> bool {
        match self {
            Self::Nothing => false,
            Self::Unknown => true,
            Self::Snapshot(snapshot) => snapshot.is_fresh(now),
        }
    }
}

/// What this isolate remembers of `id` at `now`.
pub fn recall(id: &CampaignId, now: Timestamp) -> Memory {
    CAMPAIGNS.with_borrow(|campaigns| campaigns.recall(id, now))
}

/// The caller's turn to ask core for a campaign; it ends when this is dropped.
#[derive(Debug)]
pub struct Refresh {
    id: CampaignId,
}

impl Refresh {
    /// The caller's turn, when what it `recalled` is not fresh and nobody else is asking.
    pub fn begin(id: &CampaignId, recalled: &Memory, now: Timestamp) -> Option<Self> {
        let is_ours = !recalled.is_fresh(now)
            && CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.begin_refresh(id, now));
        is_ours.then(|| Self { id: id.clone() })
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.end_refresh(&self.id));
    }
}

/// Asks core for a campaign, and remembers what it says.
pub async fn ask_core(config: &Config, id: &CampaignId, request_id: &str) -> Result<Rc<Snapshot>, Problem> {
    let asked_at = clock::now()?;
    let call = origin::Call {
        path: &format!("/internal/v1/campaigns/{id}"),
        body: None,
        user: "",
        // The snapshot is for everybody: it is asked in nobody's name.
        client_ip: "",
        idempotency_key: "",
        request_id,
    };
    let answer = call.send(config).await?;
    if answer.is_not_found() {
        CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.learn_unknown(id.clone(), asked_at));
        return Err(gate::campaign_not_found());
    }
    let view: CampaignView = answer.read()?;
    if view.id != *id {
        return Err(Problem::new(Code::Unavailable, "core answered for another campaign"));
    }
    let snapshot = Rc::new(Snapshot::new(view, asked_at, clock::now()?));
    CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.learn(Rc::clone(&snapshot)));
    Ok(snapshot)
}

/// The campaigns that an isolate remembers.
#[derive(Debug, Default)]
pub struct Campaigns {
    known: HashMap<CampaignId, Rc<Snapshot>>,
    /// Ids that core does not know, by when it was asked: made-up ids shall not reach it again and again.
    unknown: HashMap<CampaignId, Timestamp>,
    /// Refreshes under way, by when they began.
    refreshing: HashMap<CampaignId, Timestamp>,
}

impl Campaigns {
    /// What is remembered of `id` at `now`.
    pub fn recall(&self, id: &CampaignId, now: Timestamp) -> Memory {
        if let Some(snapshot) = self.known.get(id)
            && age_ms(snapshot.asked_at, now) <= USABLE_MS
        {
            return Memory::Snapshot(Rc::clone(snapshot));
        }
        match self.unknown.get(id) {
            Some(asked_at) if age_ms(*asked_at, now) <= FRESH_MS => Memory::Unknown,
            _ => Memory::Nothing,
        }
    }

    /// Whether the caller is to ask core for `id`: one at a time. A request that is cut off never ends its refresh,
    /// so one that takes longer than a call to core can is forgotten.
    pub fn begin_refresh(&mut self, id: &CampaignId, now: Timestamp) -> bool {
        self.refreshing.retain(|_, began_at| age_ms(*began_at, now) <= USABLE_MS);
        if self.refreshing.contains_key(id) || self.refreshing.len() >= UNKNOWN_MAX {
            return false;
        }
        self.refreshing.insert(id.clone(), now);
        true
    }

    /// Ends the refresh of `id`, whatever came of it.
    pub fn end_refresh(&mut self, id: &CampaignId) {
        self.refreshing.remove(id);
    }

    /// Remembers what core said, unless something newer is known already.
    pub fn learn(&mut self, snapshot: Rc<Snapshot>) {
        let id = &snapshot.view.id;
        self.unknown.remove(id);
        if let Some(known) = self.known.get(id)
            && known.asked_at > snapshot.asked_at
        {
            return;
        }
        if !self.known.contains_key(id)
            && self.known.len() >= KNOWN_MAX
            && let Some(oldest) = self.oldest()
        {
            self.known.remove(&oldest);
        }
        self.known.insert(id.clone(), snapshot);
    }

    /// Remembers that core, asked at `asked_at`, does not know `id`.
    pub fn learn_unknown(&mut self, id: CampaignId, asked_at: Timestamp) {
        self.known.remove(&id);
        if self.unknown.len() >= UNKNOWN_MAX {
            self.unknown.retain(|_, other| age_ms(*other, asked_at) <= FRESH_MS);
        }
        // Still full of fresh ones: forgetting a few costs core one question each.
        if self.unknown.len() >= UNKNOWN_MAX {
            self.unknown.clear();
        }
        self.unknown.insert(id, asked_at);
    }

    fn oldest(&self) -> Option<CampaignId> {
        let oldest = self.known.iter().min_by_key(|(_, snapshot)| snapshot.asked_at);
        oldest.map(|(id, _)| id.clone())
    }
}

/// A clock that was set back makes nothing young again.
fn age_ms(then: Timestamp, now: Timestamp) -> i64 {
    match now.as_ms() - then.as_ms() {
        age_ms if age_ms < 0 => i64::MAX,
        age_ms => age_ms,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use claimgate_shared::{Limits, Window};

    use super::*;

    pub(crate) fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms).unwrap()
    }

    /// Open from 10,000 to 20,000 by core's clock, seen at `server_ms`.
    pub(crate) fn view(state: CampaignState, remaining: Option<u32>, server_ms: i64) -> CampaignView {
        CampaignView {
            id: "demo".parse().unwrap(),
            name: "Demo".to_owned(),
            state,
            window: Window::new(at(10_000), Some(at(20_000))).unwrap(),
            time_zone: "UTC".to_owned(),
            limits: Limits::default(),
            remaining,
            version: 3,
            server_time: at(server_ms),
        }
    }

    fn named(id: &str, asked_ms: i64) -> Rc<Snapshot> {
        let view = CampaignView { id: id.parse().unwrap(), ..view(CampaignState::Open, None, 15_000) };
        Rc::new(Snapshot::new(view, at(asked_ms), at(asked_ms)))
    }

    fn id(text: &str) -> CampaignId {
        text.parse().unwrap()
    }

    #[test]
    fn the_window_is_judged_by_cores_clock_and_only_when_sure() {
        // Asked at 1,000 and answered at 1,100 with 9,000: core is 7,950 ahead, give or take 51.
        let snapshot = Snapshot::new(view(CampaignState::Scheduled, None, 9_000), at(1_000), at(1_100));
        for (now, position) in [
            (1_100, Some(Position::Before)),
            (1_998, Some(Position::Before)),
            (1_999, None),
            (2_050, None),
            (2_101, Some(Position::Inside)),
            (12_102, Some(Position::After)),
        ] {
            assert_eq!(snapshot.position(at(now)), position, "{now}");
        }
    }

    #[test]
    fn a_views_clock_moves_on_and_its_state_with_it() {
        let snapshot = Snapshot::new(view(CampaignState::Scheduled, Some(5), 9_500), at(1_000), at(1_000));
        assert_eq!(snapshot.view_at(at(1_499)).state, CampaignState::Scheduled);
        let opened = snapshot.view_at(at(1_500));
        assert_eq!((opened.state, opened.server_time), (CampaignState::Open, at(10_000)));
        let paused = Snapshot::new(view(CampaignState::Paused, Some(5), 9_500), at(1_000), at(1_000));
        assert_eq!(paused.view_at(at(1_500)).state, CampaignState::Paused);
    }

    #[test]
    fn the_etag_knows_everything_but_the_clock() {
        let earlier = view(CampaignState::Open, Some(5), 11_000);
        let later = view(CampaignState::Open, Some(5), 12_000);
        assert_eq!(etag(&earlier).unwrap(), etag(&later).unwrap());
        let fewer = view(CampaignState::Open, Some(4), 12_000);
        assert_ne!(etag(&earlier).unwrap(), etag(&fewer).unwrap());
    }

    #[test]
    fn a_snapshot_is_usable_for_two_seconds() {
        let mut campaigns = Campaigns::default();
        campaigns.learn(named("demo", 1_000));
        assert!(
            matches!(campaigns.recall(&id("demo"), at(3_000)), Memory::Snapshot(s) if !s.is_fresh(at(3_000)))
        );
        assert!(matches!(campaigns.recall(&id("demo"), at(3_001)), Memory::Nothing));
        assert!(matches!(campaigns.recall(&id("demo"), at(999)), Memory::Nothing));
        assert!(named("demo", 1_000).is_fresh(at(2_000)));
        assert!(!named("demo", 1_000).is_fresh(at(2_001)));
    }

    #[test]
    fn a_late_answer_does_not_replace_a_newer_one() {
        let mut campaigns = Campaigns::default();
        campaigns.learn(named("demo", 1_500));
        campaigns.learn(named("demo", 1_000));
        let Memory::Snapshot(kept) = campaigns.recall(&id("demo"), at(1_600)) else {
            panic!("nothing kept");
        };
        assert_eq!(kept.asked_at, at(1_500));
    }

    #[test]
    fn an_unknown_campaign_is_remembered_for_a_second_or_until_it_exists() {
        let mut campaigns = Campaigns::default();
        campaigns.learn_unknown(id("demo"), at(1_000));
        assert!(matches!(campaigns.recall(&id("demo"), at(2_000)), Memory::Unknown));
        assert!(matches!(campaigns.recall(&id("demo"), at(2_001)), Memory::Nothing));
        campaigns.learn(named("demo", 1_500));
        assert!(matches!(campaigns.recall(&id("demo"), at(1_600)), Memory::Snapshot(_)));
    }

    #[test]
    fn one_refresh_at_a_time_and_none_for_ever() {
        let mut campaigns = Campaigns::default();
        assert!(campaigns.begin_refresh(&id("demo"), at(1_000)));
        assert!(!campaigns.begin_refresh(&id("demo"), at(3_000)));
        assert!(campaigns.begin_refresh(&id("other"), at(3_000)));
        assert!(campaigns.begin_refresh(&id("demo"), at(3_001)));
        campaigns.end_refresh(&id("demo"));
        assert!(campaigns.begin_refresh(&id("demo"), at(3_001)));
    }

    #[test]
    fn the_space_is_bounded() {
        let mut campaigns = Campaigns::default();
        for n in 0..5_000 {
            campaigns.learn(named(&format!("c{n}"), 1_000 + n));
            campaigns.learn_unknown(id(&format!("u{n}")), at(1_000));
            campaigns.begin_refresh(&id(&format!("r{n}")), at(1_000));
        }
        assert_eq!(campaigns.known.len(), KNOWN_MAX);
        assert!(campaigns.known.contains_key(&id("c4999")));
        assert!(campaigns.unknown.len() <= UNKNOWN_MAX);
        assert_eq!(campaigns.refreshing.len(), UNKNOWN_MAX);
    }
}
