//! What this isolate remembers of campaigns: a snapshot of each, for a moment, in bounded space.
//!
//! No request may wait for what another one has asked: a runtime cuts such waiting off. So whoever finds that a
//! snapshot is due asks for the next one behind its own answer, and everybody makes do with the one that is there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use claimgate_shared::campaign::Switch;
use claimgate_shared::window::Position;
use claimgate_shared::{CampaignId, CampaignState, Code, Problem, Timestamp};
use worker::js_sys::Math;

use crate::core_client::circuit_breaker::Kind;
use crate::clock::{self, age_ms};
use crate::core_client::{self as origin, Answer, Heard, Origin};
use crate::campaign_cache::snapshot::{State, View};

/// For so long "sold out" is believed, so that a return is seen; and for so long a campaign stays unknown.
pub const FRESH_MS: i64 = 1_000;
/// For so long a snapshot serves: no refusal may be older.
pub const USABLE_MS: i64 = 2_000;
/// When the next one is due, earliest and latest: before this one goes stale, and not in all isolates at once.
const DUE_MS: (i64, i64) = (300, 600);

thread_local! {
    static CAMPAIGNS: RefCell<Campaigns> = RefCell::default();
}

const KNOWN_MAX: usize = 1_024;
const UNKNOWN_MAX: usize = 1_024;

/// A campaign as core saw it a moment ago, and how core's clock stood to ours.
#[derive(Debug, Clone)]
pub struct Snapshot {
    view: View,
    /// When it was asked for: it cannot be older than that.
    asked_at: Timestamp,
    /// When what is left was asked for, which answers to claims say, too.
    counted_at: Timestamp,
    due_at: Timestamp,
    clock_ahead_ms: i64,
    clock_error_ms: i64,
}

impl Snapshot {
    /// `view` as asked for at `asked_at` and received at `received_at`, both by our clock. `chance`, from 0 to 1, says
    /// when the next one is due.
    pub fn new(view: View, asked_at: Timestamp, received_at: Timestamp, chance: f64) -> Self {
        // Core read its clock at some time between the two: halfway is off by half at most.
        let half_ms = (received_at.as_ms() - asked_at.as_ms()).max(0) / 2;
        Self {
            clock_ahead_ms: view.server_time.as_ms() - asked_at.as_ms() - half_ms,
            clock_error_ms: half_ms + 1,
            due_at: asked_at.saturating_add_ms(due_after_ms(chance)),
            counted_at: asked_at,
            asked_at,
            view,
        }
    }

    /// What core said, as it said it.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether nothing was left a moment before `now`.
    pub fn is_sold_out(&self, now: Timestamp) -> bool {
        self.view.remaining == Some(0) && age_ms(self.counted_at, now) <= FRESH_MS
    }

    /// Core's clock at `now` by ours.
    pub fn server_time(&self, now: Timestamp) -> Timestamp {
        now.saturating_add_ms(self.clock_ahead_ms)
    }

    /// Where core's clock lies in the window at `now`; `None` when it is too near an edge to tell.
    pub fn position(&self, now: Timestamp) -> Option<Position> {
        let clock = self.server_time(now);
        let earliest = self.view.window.position(clock.saturating_add_ms(-self.clock_error_ms));
        let latest = self.view.window.position(clock.saturating_add_ms(self.clock_error_ms));
        (earliest == latest).then_some(latest)
    }

    /// The view with its clock moved on to `now`, and the state that goes with that.
    pub fn view_at(&self, now: Timestamp) -> View {
        let server_time = self.server_time(now);
        let by_clock = || CampaignState::at(server_time, Switch::On, self.view.window, self.view.remaining);
        View {
            state: match &self.view.state {
                State::Known(CampaignState::Scheduled | CampaignState::Open | CampaignState::SoldOut) => {
                    State::Known(by_clock())
                }
                by_hand @ State::Known(CampaignState::Paused | CampaignState::Ended) => by_hand.clone(),
                other @ State::Other(_) => other.clone(),
            },
            server_time,
            ..self.view.clone()
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        now >= self.due_at || now < self.asked_at
    }

    /// Whether it has ended, so that Redis may have let it go.
    fn is_over(&self, now: Timestamp) -> bool {
        self.view.state == State::Known(CampaignState::Ended) || self.position(now) == Some(Position::After)
    }

    fn with_count(&self, remaining: Option<u32>, counted_at: Timestamp) -> Self {
        Self { counted_at, view: View { remaining, ..self.view.clone() }, ..self.clone() }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // some hundred milliseconds
fn due_after_ms(chance: f64) -> i64 {
    let (earliest, latest) = DUE_MS;
    earliest + ((latest - earliest) as f64 * chance.clamp(0.0, 1.0)) as i64
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
    fn is_due(&self, now: Timestamp) -> bool {
        match self {
            Self::Nothing => true,
            Self::Unknown => false,
            Self::Snapshot(snapshot) => snapshot.is_due(now),
        }
    }
}

/// What this isolate remembers of `id` at `now`.
pub fn recall(id: &CampaignId, now: Timestamp) -> Memory {
    CAMPAIGNS.with_borrow(|campaigns| campaigns.recall(id, now))
}

/// Which kind a call at `now` about `id` is: `live`, or one that core may need SQL for.
pub fn kind(id: &CampaignId, now: Timestamp, live: Kind) -> Kind {
    if CAMPAIGNS.with_borrow(|campaigns| campaigns.is_live(id, now)) { live } else { Kind::Unsure }
}

/// Remembers what core's answer to a claim, asked for at `asked_at`, says of its campaign.
pub fn hear(id: &CampaignId, heard: &Heard, asked_at: Timestamp) {
    CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.hear(id, heard, asked_at));
}

/// What core said when it was asked for a campaign.
#[derive(Debug)]
pub enum Asked {
    /// How it stands.
    Campaign(Rc<Snapshot>),
    /// A problem, to be passed on as it is.
    Refused(Answer),
}

/// The caller's turn to ask core for a campaign; it ends when this is dropped.
#[derive(Debug)]
pub struct Refresh {
    id: CampaignId,
    began_at: Timestamp,
}

impl Refresh {
    /// The caller's turn, when the next snapshot after what it `recalled` is due and nobody else is asking.
    pub fn begin(id: &CampaignId, recalled: &Memory, now: Timestamp) -> Option<Self> {
        let is_ours =
            recalled.is_due(now) && CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.begin_refresh(id, now));
        is_ours.then(|| Self { id: id.clone(), began_at: now })
    }

    /// Asks core, and remembers what it says.
    pub async fn run(self, origin: &Origin<'_>, request_id: &str) -> Result<Asked, Problem> {
        let asked_at = clock::now()?;
        let path = format!("/internal/v1/campaigns/{}", self.id);
        // The snapshot is for everybody: it is asked in nobody's name.
        let kind = kind(&self.id, asked_at, Kind::Views);
        let answer = origin::Call::new(kind, &path, request_id).send(origin).await?;
        if answer.heard().is(Code::CampaignNotFound) {
            CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.learn_unknown(self.id.clone(), asked_at));
        }
        if answer.heard().refusal.is_some() {
            return Ok(Asked::Refused(answer));
        }
        let view: View = answer.read()?;
        if view.id != self.id {
            return Err(origin::not_understood(&"it is about another campaign"));
        }
        let snapshot = Rc::new(Snapshot::new(view, asked_at, clock::now()?, Math::random()));
        CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.learn(Rc::clone(&snapshot)));
        Ok(Asked::Campaign(snapshot))
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        CAMPAIGNS.with_borrow_mut(|campaigns| campaigns.end_refresh(&self.id, self.began_at));
    }
}

/// What core said last of a campaign.
#[derive(Debug)]
struct Known {
    version: u64,
    asked_at: Timestamp,
    /// None once an answer has shown that it is of an older version.
    snapshot: Option<Rc<Snapshot>>,
}

impl Known {
    /// Whether `snapshot` would be a step back. A version is held against it only as long as an answer can be under
    /// way: a database that was restored may say a lower one.
    fn is_ahead_of(&self, snapshot: &Snapshot) -> bool {
        self.asked_at > snapshot.asked_at
            || (self.version > snapshot.view.version && age_ms(self.asked_at, snapshot.asked_at) <= USABLE_MS)
    }
}

/// The campaigns that an isolate remembers.
#[derive(Debug, Default)]
pub struct Campaigns {
    known: HashMap<CampaignId, Known>,
    /// Ids that core does not know, by when it was asked: made-up ids shall not reach it again and again.
    unknown: HashMap<CampaignId, Timestamp>,
    /// Refreshes under way, by when they began.
    refreshing: HashMap<CampaignId, Timestamp>,
}

impl Campaigns {
    /// What is remembered of `id` at `now`.
    pub fn recall(&self, id: &CampaignId, now: Timestamp) -> Memory {
        if let Some(snapshot) = self.known.get(id).and_then(|known| known.snapshot.as_ref())
            && age_ms(snapshot.asked_at, now) <= USABLE_MS
        {
            return Memory::Snapshot(Rc::clone(snapshot));
        }
        match self.unknown.get(id) {
            Some(asked_at) if age_ms(*asked_at, now) <= FRESH_MS => Memory::Unknown,
            _ => Memory::Nothing,
        }
    }

    /// Whether `id` is not over by what core said of it last, however long ago that is.
    pub fn is_live(&self, id: &CampaignId, now: Timestamp) -> bool {
        let known = self.known.get(id);
        known.is_some_and(|known| known.snapshot.as_ref().is_none_or(|last| !last.is_over(now)))
    }

    /// Whether the caller is to ask core for `id`: one at a time. A request that is cut off never ends its refresh,
    /// so one that takes longer than a call to core can is forgotten.
    pub fn begin_refresh(&mut self, id: &CampaignId, now: Timestamp) -> bool {
        self.refreshing.retain(|_, began_at| age_ms(*began_at, now) <= USABLE_MS);
        // Made-up ids may fill the space, but keep no campaign that there is from being asked for.
        let is_crowded = self.refreshing.len() >= UNKNOWN_MAX && !self.known.contains_key(id);
        if self.refreshing.contains_key(id) || is_crowded {
            return false;
        }
        self.refreshing.insert(id.clone(), now);
        true
    }

    /// Ends the refresh of `id` that began at `began_at`, whatever came of it; not its successor.
    pub fn end_refresh(&mut self, id: &CampaignId, began_at: Timestamp) {
        if self.refreshing.get(id) == Some(&began_at) {
            self.refreshing.remove(id);
        }
    }

    /// Remembers what core said, unless something newer is known already.
    pub fn learn(&mut self, snapshot: Rc<Snapshot>) {
        let id = snapshot.view.id.clone();
        self.unknown.remove(&id);
        let known = self.known.get(&id);
        if known.is_some_and(|known| known.is_ahead_of(&snapshot)) {
            return;
        }
        let counted = known.and_then(|known| known.snapshot.as_ref()).filter(|counted| {
            counted.view.version == snapshot.view.version && counted.counted_at > snapshot.counted_at
        });
        let snapshot = match counted {
            Some(counted) => Rc::new(snapshot.with_count(counted.view.remaining, counted.counted_at)),
            None => snapshot,
        };
        if known.is_none()
            && self.known.len() >= KNOWN_MAX
            && let Some(oldest) = self.oldest()
        {
            self.known.remove(&oldest);
        }
        let known =
            Known { version: snapshot.view.version, asked_at: snapshot.asked_at, snapshot: Some(snapshot) };
        self.known.insert(id, known);
    }

    /// Remembers what core's answer to a claim says: that the campaign is another by now, does not exist, or how much
    /// is left of it.
    pub fn hear(&mut self, id: &CampaignId, heard: &Heard, asked_at: Timestamp) {
        if heard.is(Code::CampaignNotFound) {
            self.learn_unknown(id.clone(), asked_at);
            return;
        }
        let (Some(known), Some(version)) = (self.known.get_mut(id), heard.version) else {
            return;
        };
        if version > known.version {
            *known = Known { version, asked_at, snapshot: None };
        } else if version == known.version
            && let Some(remaining) = heard.left()
            && let Some(snapshot) = &mut known.snapshot
            && asked_at >= snapshot.counted_at
            // Claims decided together are answered in any order: the least is the last. What was given back is in the
            // next snapshot.
            && snapshot.view.remaining.is_none_or(|known| remaining <= known)
        {
            *snapshot = Rc::new(snapshot.with_count(Some(remaining), asked_at));
        }
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
        let oldest = self.known.iter().min_by_key(|(_, known)| known.asked_at);
        oldest.map(|(id, _)| id.clone())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use claimgate_shared::Window;

    use super::*;
    use crate::core_client::Refusal;
    use crate::campaign_cache::snapshot::Rest;

    pub(crate) fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms).unwrap()
    }

    /// Open from 10,000 to 20,000 by core's clock, seen at `server_ms`.
    pub(crate) fn view(state: CampaignState, remaining: Option<u32>, server_ms: i64) -> View {
        View {
            id: "demo".parse().unwrap(),
            state: State::Known(state),
            window: Window::new(at(10_000), Some(at(20_000))).unwrap(),
            remaining,
            version: 3,
            server_time: at(server_ms),
            rest: Rest::default(),
        }
    }

    fn named(id: &str, asked_ms: i64) -> Rc<Snapshot> {
        let view = View { id: id.parse().unwrap(), ..view(CampaignState::Open, None, 15_000) };
        Rc::new(Snapshot::new(view, at(asked_ms), at(asked_ms), 0.0))
    }

    fn id(text: &str) -> CampaignId {
        text.parse().unwrap()
    }

    #[test]
    fn the_window_is_judged_by_cores_clock_and_only_when_sure() {
        // Asked at 1,000 and answered at 1,100 with 9,000: core is 7,950 ahead, give or take 51.
        let snapshot = Snapshot::new(view(CampaignState::Scheduled, None, 9_000), at(1_000), at(1_100), 0.0);
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
        let snapshot =
            Snapshot::new(view(CampaignState::Scheduled, Some(5), 9_500), at(1_000), at(1_000), 0.0);
        assert_eq!(snapshot.view_at(at(1_499)).state, State::Known(CampaignState::Scheduled));
        let opened = snapshot.view_at(at(1_500));
        assert_eq!((opened.state, opened.server_time), (State::Known(CampaignState::Open), at(10_000)));
        for stays in [State::Known(CampaignState::Paused), State::Other("lottery".to_owned())] {
            let view = View { state: stays.clone(), ..view(CampaignState::Open, Some(5), 9_500) };
            let snapshot = Snapshot::new(view, at(1_000), at(1_000), 0.0);
            assert_eq!(snapshot.view_at(at(1_500)).state, stays);
        }
    }

    fn seen(version: u64, remaining: u32, asked_ms: i64) -> Rc<Snapshot> {
        let view = View { version, ..view(CampaignState::Open, Some(remaining), 15_000) };
        Rc::new(Snapshot::new(view, at(asked_ms), at(asked_ms), 0.0))
    }

    fn recalled(campaigns: &Campaigns, now_ms: i64) -> Option<Rc<Snapshot>> {
        match campaigns.recall(&id("demo"), at(now_ms)) {
            Memory::Snapshot(snapshot) => Some(snapshot),
            Memory::Nothing | Memory::Unknown => None,
        }
    }

    fn granted(version: u64, remaining: u32) -> Heard {
        Heard { version: Some(version), remaining: Some(remaining), ..Heard::default() }
    }

    fn denied(code: Code, version: u64, remaining: u32) -> Heard {
        Heard { refusal: Some(Refusal::Known(code)), ..granted(version, remaining) }
    }

    #[test]
    fn a_snapshot_is_usable_for_two_seconds_and_sold_out_for_one() {
        let mut campaigns = Campaigns::default();
        campaigns.learn(seen(3, 0, 1_000));
        assert!(recalled(&campaigns, 2_000).unwrap().is_sold_out(at(2_000)));
        assert!(!recalled(&campaigns, 2_001).unwrap().is_sold_out(at(2_001)));
        assert!(recalled(&campaigns, 3_000).is_some());
        assert!(recalled(&campaigns, 3_001).is_none());
        assert!(recalled(&campaigns, 999).is_none());
    }

    #[test]
    fn the_next_snapshot_is_due_before_this_one_is_stale_and_by_chance() {
        for (chance, due_ms) in [(0.0, 300), (0.5, 450), (1.0, 600)] {
            let view = view(CampaignState::Open, None, 15_000);
            let snapshot = Snapshot::new(view, at(1_000), at(1_000), chance);
            assert!(!snapshot.is_due(at(1_000 + due_ms - 1)) && snapshot.is_due(at(1_000 + due_ms)));
            assert!(snapshot.is_due(at(999)), "a clock that was set back");
        }
    }

    #[test]
    fn a_late_answer_does_not_replace_a_newer_one() {
        let mut campaigns = Campaigns::default();
        campaigns.learn(named("demo", 1_500));
        campaigns.learn(named("demo", 1_000));
        assert_eq!(recalled(&campaigns, 1_600).unwrap().asked_at, at(1_500));
    }

    #[test]
    fn an_answer_of_a_newer_version_ends_what_was_remembered() {
        let mut campaigns = Campaigns::default();
        campaigns.learn(seen(3, 0, 1_000));
        campaigns.hear(&id("demo"), &granted(4, 9), at(1_100));
        assert!(recalled(&campaigns, 1_200).is_none());
        campaigns.learn(seen(3, 0, 1_050));
        campaigns.learn(seen(3, 0, 1_150));
        assert!(recalled(&campaigns, 1_200).is_none(), "the old version came back");
        campaigns.learn(seen(4, 8, 1_250));
        assert_eq!(recalled(&campaigns, 1_300).unwrap().view.remaining, Some(8));
        campaigns.learn(seen(2, 7, 3_251));
        assert!(recalled(&campaigns, 3_300).is_some(), "a database was restored");
    }

    #[test]
    fn answers_to_claims_say_what_is_left() {
        let mut campaigns = Campaigns::default();
        campaigns.learn(seen(3, 5, 1_000));
        let left = |campaigns: &Campaigns| recalled(campaigns, 1_500).unwrap().view.remaining.unwrap();
        campaigns.hear(&id("demo"), &granted(3, 1), at(1_100));
        assert_eq!(left(&campaigns), 1);
        for unheard in [
            denied(Code::SoldOut, 3, 2),
            denied(Code::UserLimitReached, 3, 0),
            denied(Code::SoldOut, 2, 0),
            Heard { version: Some(3), ..Heard::default() },
        ] {
            campaigns.hear(&id("demo"), &unheard, at(1_150));
            assert_eq!(left(&campaigns), 1, "{unheard:?}");
        }
        campaigns.hear(&id("demo"), &denied(Code::SoldOut, 3, 0), at(1_200));
        assert!(recalled(&campaigns, 2_200).unwrap().is_sold_out(at(2_200)));
        assert!(!recalled(&campaigns, 2_201).unwrap().is_sold_out(at(2_201)), "longer than a second");
        campaigns.learn(seen(3, 4, 1_150));
        assert_eq!(left(&campaigns), 0, "asked before");
        campaigns.hear(&id("demo"), &granted(3, 6), at(1_199));
        assert_eq!(left(&campaigns), 0, "asked before");
        campaigns.hear(&id("demo"), &granted(3, 1), at(1_200));
        assert_eq!(left(&campaigns), 0, "granted beside the last one, and answered after it");
        campaigns.learn(seen(3, 4, 1_300));
        assert_eq!(left(&campaigns), 4);
    }

    #[test]
    fn a_campaign_is_live_from_cores_first_word_of_it_until_it_is_over() {
        // Seen at 1,000 when core's clock read 15,000; its window ends at 20,000.
        let is_live = |campaigns: &Campaigns, now_ms: i64| campaigns.is_live(&id("demo"), at(now_ms));
        let mut campaigns = Campaigns::default();
        assert!(!is_live(&campaigns, 1_000));
        campaigns.learn(seen(3, 0, 1_000));
        assert!(
            is_live(&campaigns, 1_000) && is_live(&campaigns, 5_990),
            "also when its snapshot is of no use"
        );
        assert!(!is_live(&campaigns, 6_010));
        campaigns.hear(&id("demo"), &granted(4, 9), at(1_100));
        assert!(is_live(&campaigns, 1_200));
        let ended = View { version: 5, ..view(CampaignState::Ended, None, 15_000) };
        campaigns.learn(Rc::new(Snapshot::new(ended, at(1_300), at(1_300), 0.0)));
        assert!(!is_live(&campaigns, 1_300));
        campaigns.learn(seen(6, 1, 1_400));
        campaigns.learn_unknown(id("demo"), at(1_500));
        assert!(!is_live(&campaigns, 1_500));
    }

    #[test]
    fn an_unknown_campaign_is_remembered_for_a_second_or_until_it_exists() {
        let mut campaigns = Campaigns::default();
        campaigns.learn_unknown(id("demo"), at(1_000));
        assert!(matches!(campaigns.recall(&id("demo"), at(2_000)), Memory::Unknown));
        assert!(matches!(campaigns.recall(&id("demo"), at(2_001)), Memory::Nothing));
        campaigns.learn(named("demo", 1_500));
        assert!(recalled(&campaigns, 1_600).is_some());
        let gone = Heard { refusal: Some(Refusal::Known(Code::CampaignNotFound)), ..Heard::default() };
        campaigns.hear(&id("demo"), &gone, at(1_700));
        assert!(matches!(campaigns.recall(&id("demo"), at(1_800)), Memory::Unknown));
    }

    #[test]
    fn one_refresh_at_a_time_and_none_for_ever() {
        let mut campaigns = Campaigns::default();
        assert!(campaigns.begin_refresh(&id("demo"), at(1_000)));
        assert!(!campaigns.begin_refresh(&id("demo"), at(3_000)));
        assert!(campaigns.begin_refresh(&id("other"), at(3_000)));
        assert!(campaigns.begin_refresh(&id("demo"), at(3_001)));
        campaigns.end_refresh(&id("demo"), at(1_000));
        assert!(!campaigns.begin_refresh(&id("demo"), at(3_001)), "ended by one that was forgotten");
        campaigns.end_refresh(&id("demo"), at(3_001));
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
