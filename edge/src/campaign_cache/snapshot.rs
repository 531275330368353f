//! A campaign as core described it, and what follows from that a moment later.
//!
//! The edge reads the members that it decides by and passes the rest through: core may be newer, and say more.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::campaign::AdminState;
use claimgate_shared::window::Position;
use claimgate_shared::{CampaignId, CampaignState, Timestamp, Version, Window};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::clock::age_ms;

/// How long a negative result ("sold out", "no such campaign") is used, in milliseconds: short, so that a return of units or
/// a new campaign is soon seen.
pub const NEGATIVE_TTL_MS: i64 = 1_000;
/// When the next snapshot is due, in milliseconds after this one was requested, earliest and latest: before this one
/// expires, and not in all isolates at once.
const REFRESH_AFTER_MS: (i64, i64) = (300, 600);

/// A campaign view of core's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// The campaign's id.
    pub id: CampaignId,
    /// Its state at `server_time`.
    pub state: State,
    /// When it opens and closes.
    #[serde(flatten)]
    pub window: Window,
    /// Units left; `None` when the total is unlimited.
    pub remaining: Option<u32>,
    /// Raised by every change an admin makes.
    pub version: Version,
    /// The clock that decides claims, when core answered.
    pub server_time: Timestamp,
    /// Name, time zone, limits, and members that the edge does not know.
    #[serde(flatten)]
    pub other: OtherMembers,
}

impl View {
    /// An `ETag` over everything except the clock, which differs in every response.
    ///
    /// # Errors
    /// When the view cannot be serialized.
    pub fn etag(&self) -> Result<String, serde_json::Error> {
        let timeless = Self { server_time: self.window.starts_at(), ..self.clone() };
        let digest = Sha256::digest(serde_json::to_vec(&timeless)?);
        Ok(format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..16])))
    }
}

/// A campaign's state, which may be newer than the edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum State {
    /// A state that the edge knows.
    Known(CampaignState),
    /// A state that was added to core later: the edge decides nothing by it.
    Unrecognized(String),
}

/// Extensions that the edge only passes on. All copies of a view share them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OtherMembers(Rc<Map<String, Value>>);

impl Serialize for OtherMembers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OtherMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(|members| Self(Rc::new(members)))
    }
}

/// A campaign as core described it a moment ago, and the difference between core's clock and this one's.
#[derive(Debug, Clone)]
pub struct Snapshot {
    view: View,
    requested_at: Timestamp,
    remaining_at: Timestamp,
    refresh_at: Timestamp,
    core_ahead_ms: i64,
    clock_error_ms: i64,
}

impl Snapshot {
    /// The snapshot of `view`, which was requested at `requested_at` and received at `received_at`, both by the edge's clock.
    /// `jitter`, from 0 to 1, places its refresh within the interval for it.
    pub fn new(view: View, requested_at: Timestamp, received_at: Timestamp, jitter: f64) -> Self {
        // Core read its clock at some time between the two: halfway is off by half at most.
        let half_ms = (received_at.as_ms() - requested_at.as_ms()).max(0) / 2;
        Self {
            core_ahead_ms: view.server_time.as_ms() - requested_at.as_ms() - half_ms,
            clock_error_ms: half_ms + 1,
            refresh_at: requested_at.saturating_add_ms(refresh_after_ms(jitter)),
            remaining_at: requested_at,
            requested_at,
            view,
        }
    }

    /// The view as core sent it, except that [`with_remaining`](Self::with_remaining) may have replaced what is left.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// When it was requested: it is at least as recent as this.
    pub fn requested_at(&self) -> Timestamp {
        self.requested_at
    }

    /// When the number of units left was requested, which responses to claims state too.
    pub fn remaining_at(&self) -> Timestamp {
        self.remaining_at
    }

    /// Whether no units were left at most [`NEGATIVE_TTL_MS`] before `now`.
    pub fn is_sold_out(&self, now: Timestamp) -> bool {
        self.view.remaining == Some(0) && age_ms(self.remaining_at, now) <= NEGATIVE_TTL_MS
    }

    /// Core's clock when the edge's shows `now`.
    pub fn server_time(&self, now: Timestamp) -> Timestamp {
        now.saturating_add_ms(self.core_ahead_ms)
    }

    /// Where core's clock lies in the window at `now`; `None` when it is too close to an edge of the window to tell.
    pub fn position(&self, now: Timestamp) -> Option<Position> {
        let clock = self.server_time(now);
        let earliest = self.view.window.position(clock.saturating_add_ms(-self.clock_error_ms));
        let latest = self.view.window.position(clock.saturating_add_ms(self.clock_error_ms));
        (earliest == latest).then_some(latest)
    }

    /// The view with its clock moved on to `now`, and the state that follows from that.
    pub fn view_at(&self, now: Timestamp) -> View {
        let server_time = self.server_time(now);
        let by_clock =
            || CampaignState::at(server_time, AdminState::On, self.view.window, self.view.remaining);
        View {
            state: match &self.view.state {
                State::Known(CampaignState::Scheduled | CampaignState::Open | CampaignState::SoldOut) => {
                    State::Known(by_clock())
                }
                by_admin @ State::Known(CampaignState::Paused | CampaignState::Ended) => by_admin.clone(),
                other @ State::Unrecognized(_) => other.clone(),
            },
            server_time,
            ..self.view.clone()
        }
    }

    /// Whether the next snapshot is to be fetched at `now`; a clock that was set back makes it due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.refresh_at || now < self.requested_at
    }

    /// Whether the campaign is over, so that Redis may have evicted it.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.view.state == State::Known(CampaignState::Ended) || self.position(now) == Some(Position::After)
    }

    /// The same snapshot with `remaining` units left, requested at `remaining_at`.
    #[must_use]
    pub fn with_remaining(&self, remaining: Option<u32>, remaining_at: Timestamp) -> Self {
        Self { remaining_at, view: View { remaining, ..self.view.clone() }, ..self.clone() }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // some hundred milliseconds
fn refresh_after_ms(jitter: f64) -> i64 {
    let (earliest, latest) = REFRESH_AFTER_MS;
    earliest + ((latest - earliest) as f64 * jitter.clamp(0.0, 1.0)) as i64
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms).unwrap()
    }

    /// A campaign with a window from 10,000 to 20,000 by core's clock, which read `server_ms`.
    pub(crate) fn view(state: CampaignState, remaining: Option<u32>, server_ms: i64) -> View {
        View {
            id: "demo".parse().unwrap(),
            state: State::Known(state),
            window: Window::new(at(10_000), Some(at(20_000))).unwrap(),
            remaining,
            version: Version::new(3),
            server_time: at(server_ms),
            other: OtherMembers::default(),
        }
    }

    fn sent() -> Value {
        json!({
            "id": "demo", "name": "Demo", "state": "open", "starts_at": "2026-01-01T00:00:00.000Z", "ends_at": null,
            "time_zone": "UTC", "limits": {"total": 0, "per_week": 2}, "remaining": null, "version": 3,
            "server_time": "2026-01-02T00:00:00.000Z", "more": {"of": "tomorrow"},
        })
    }

    fn read(sent: &Value) -> View {
        serde_json::from_slice(&serde_json::to_vec(sent).unwrap()).unwrap()
    }

    #[test]
    fn what_core_sends_is_shown_whole() {
        for state in ["open", "sold_out", "lottery"] {
            let mut sent = sent();
            sent["state"] = json!(state);
            let view = read(&sent);
            assert_eq!(matches!(view.state, State::Unrecognized(_)), state == "lottery");
            assert_eq!(serde_json::to_value(&view).unwrap(), sent);
        }
    }

    #[test]
    fn the_etag_is_of_everything_but_the_clock() {
        let (first, mut later, mut fewer, mut other) = (sent(), sent(), sent(), sent());
        later["server_time"] = json!("2026-01-02T00:00:01.000Z");
        fewer["remaining"] = json!(4);
        other["more"]["of"] = json!("today");
        let etag = |sent: &Value| read(sent).etag().unwrap();
        assert_eq!(etag(&first), etag(&later));
        assert_ne!(etag(&first), etag(&fewer));
        assert_ne!(etag(&first), etag(&other));
    }

    #[test]
    fn the_window_is_judged_by_cores_clock_and_only_when_sure() {
        // Requested at 1,000 and answered at 1,100 with 9,000: core is 7,950 ahead, give or take 51.
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
        for stays in [State::Known(CampaignState::Paused), State::Unrecognized("lottery".to_owned())] {
            let view = View { state: stays.clone(), ..view(CampaignState::Open, Some(5), 9_500) };
            let snapshot = Snapshot::new(view, at(1_000), at(1_000), 0.0);
            assert_eq!(snapshot.view_at(at(1_500)).state, stays);
        }
    }

    #[test]
    fn the_next_snapshot_is_due_before_this_one_expires_and_at_random() {
        for (jitter, due_ms) in [(0.0, 300), (0.5, 450), (1.0, 600)] {
            let view = view(CampaignState::Open, None, 15_000);
            let snapshot = Snapshot::new(view, at(1_000), at(1_000), jitter);
            assert!(!snapshot.is_due(at(1_000 + due_ms - 1)) && snapshot.is_due(at(1_000 + due_ms)));
            assert!(snapshot.is_due(at(999)), "a clock that was set back");
        }
    }
}
