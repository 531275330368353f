//! Snapshots of campaigns, and the conclusions that remain valid a moment later.
//!
//! The edge parses the members that it uses and passes the rest through: a newer core may send more.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::campaign::AdminState;
use claimgate_shared::window::Position;
use claimgate_shared::{CampaignId, CampaignState, PassRule, Timestamp, Version, Window};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::clock::age_ms;

/// TTL of a negative result ("sold out", "no such campaign"), in milliseconds. It is short, so that returned
/// units and new campaigns are noticed soon.
pub const NEGATIVE_TTL_MS: i64 = 1_000;
/// The earliest and the latest time for a refresh, in milliseconds after the request for the current
/// snapshot. A refresh is due before the snapshot expires, and jittered so that isolates do not refresh at
/// once.
const REFRESH_AFTER_MS: (i64, i64) = (300, 600);

/// A campaign view as core sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// The campaign's id.
    pub id: CampaignId,
    /// The state at `server_time`.
    pub state: State,
    /// When the campaign opens and closes.
    #[serde(flatten)]
    pub window: Window,
    /// Units left; `None` if the total is unlimited.
    pub remaining: Option<u32>,
    /// Incremented by every change an admin makes.
    pub version: Version,
    /// The time of core's response, by the clock that decides claims.
    pub server_time: Timestamp,
    /// Name, time zone, limits and unknown members.
    #[serde(flatten)]
    pub other: OtherMembers,
}

impl View {
    /// Computes an `ETag` over everything except the time, which differs in every response.
    pub fn etag(&self) -> Result<String, serde_json::Error> {
        let timeless = Self { server_time: self.window.starts_at(), ..self.clone() };
        let digest = Sha256::digest(serde_json::to_vec(&timeless)?);
        Ok(format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..16])))
    }
}

/// A campaign's state, possibly one that is unknown to this edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum State {
    /// A state known to this edge.
    Known(CampaignState),
    /// A state added by a newer core. The edge makes no decision based on such a state.
    Unrecognized(String),
}

/// A campaign's rule about passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passes {
    /// None, or a core that is older than passes.
    NotRequired,
    /// A rule known to this edge.
    Rule(PassRule),
    /// A rule added by a newer core. The edge makes no decision based on such a rule.
    Unrecognized,
}

impl Passes {
    fn of(member: Option<&Value>) -> Self {
        match member {
            None | Some(Value::Null) => Self::NotRequired,
            Some(rule) => PassRule::deserialize(rule).map_or(Self::Unrecognized, Self::Rule),
        }
    }
}

/// Members that the edge passes through. All copies of a view share them.
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

/// A campaign view, with the time of its request and the offset of core's clock from the edge's.
#[derive(Debug, Clone)]
pub struct Snapshot {
    view: View,
    passes: Passes,
    requested_at: Timestamp,
    remaining_at: Timestamp,
    refresh_at: Timestamp,
    core_ahead_ms: i64,
    clock_error_ms: i64,
}

impl Snapshot {
    /// Creates a snapshot of a `view` requested at `requested_at` and received at `received_at`, by the edge's
    /// clock. `jitter`, from 0 to 1, chooses the refresh time within its interval.
    pub fn new(view: View, requested_at: Timestamp, received_at: Timestamp, jitter: f64) -> Self {
        // Core read its clock between the request and the response. The midpoint is off by at most half the interval.
        let half_ms = (received_at.as_ms() - requested_at.as_ms()).max(0) / 2;
        Self {
            core_ahead_ms: view.server_time.as_ms() - requested_at.as_ms() - half_ms,
            clock_error_ms: half_ms + 1,
            refresh_at: requested_at.saturating_add_ms(refresh_after_ms(jitter)),
            remaining_at: requested_at,
            requested_at,
            passes: Passes::of(view.other.0.get("pass")),
            view,
        }
    }

    /// Returns the view as core sent it, except that [`with_remaining`](Self::with_remaining) may have
    /// updated `remaining`.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns when the snapshot was requested. Its data is at least that recent.
    pub fn requested_at(&self) -> Timestamp {
        self.requested_at
    }

    /// Returns when `remaining` was requested. Responses to claims also update `remaining`.
    pub fn remaining_at(&self) -> Timestamp {
        self.remaining_at
    }

    /// Returns whether no units were left, as of at most [`NEGATIVE_TTL_MS`] before `now`.
    pub fn is_sold_out(&self, now: Timestamp) -> bool {
        self.view.remaining == Some(0) && age_ms(self.remaining_at, now) <= NEGATIVE_TTL_MS
    }

    /// Returns core's time when the edge's clock reads `now`.
    pub fn server_time(&self, now: Timestamp) -> Timestamp {
        now.saturating_add_ms(self.core_ahead_ms)
    }

    /// Returns core's position in the window at `now`; `None` if it is too close to a boundary to be certain.
    pub fn position(&self, now: Timestamp) -> Option<Position> {
        let clock = self.server_time(now);
        let earliest = self.view.window.position(clock.saturating_add_ms(-self.clock_error_ms));
        let latest = self.view.window.position(clock.saturating_add_ms(self.clock_error_ms));
        (earliest == latest).then_some(latest)
    }

    /// Returns whether a pass may matter to a claim. Only then does core know what a pass is.
    pub fn has_pass_rule(&self) -> bool {
        self.passes != Passes::NotRequired
    }

    /// Returns the rule by which a claim at `now` needs a pass; `None` if it needs none, or if `now` is too close to
    /// the rule's end to be certain.
    pub fn required_pass(&self, now: Timestamp) -> Option<PassRule> {
        let latest = self.server_time(now).saturating_add_ms(self.clock_error_ms);
        match self.passes {
            Passes::Rule(rule) if rule.requires_at(latest) => Some(rule),
            Passes::Rule(_) | Passes::NotRequired | Passes::Unrecognized => None,
        }
    }

    /// Returns the view with `server_time` advanced to `now`, and the state at that time.
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

    /// Returns whether a refresh is due at `now`. A clock that was set back also makes it due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.refresh_at || now < self.requested_at
    }

    /// Returns whether the campaign has ended and may therefore have been evicted from Redis.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.view.state == State::Known(CampaignState::Ended) || self.position(now) == Some(Position::After)
    }

    /// Returns the snapshot with `remaining` units left, as requested at `remaining_at`.
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

    /// Returns a campaign with a window from 10,000 to 20,000 by core's clock, which reads `server_ms`.
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
    fn all_members_that_core_sends_are_passed_through() {
        for state in ["open", "sold_out", "lottery"] {
            let mut sent = sent();
            sent["state"] = json!(state);
            let view = read(&sent);
            assert_eq!(matches!(view.state, State::Unrecognized(_)), state == "lottery");
            assert_eq!(serde_json::to_value(&view).unwrap(), sent);
        }
    }

    #[test]
    fn the_etag_covers_everything_but_the_server_time() {
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
    fn the_window_is_judged_by_cores_clock_only_if_certain() {
        // Requested at 1,000, received at 1,100 with the time 9,000: core is 7,950 ahead, give or take 51.
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
    fn a_views_time_and_state_advance() {
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
    fn a_refresh_is_due_at_a_jittered_time() {
        for (jitter, due_ms) in [(0.0, 300), (0.5, 450), (1.0, 600)] {
            let view = view(CampaignState::Open, None, 15_000);
            let snapshot = Snapshot::new(view, at(1_000), at(1_000), jitter);
            assert!(!snapshot.is_due(at(1_000 + due_ms - 1)) && snapshot.is_due(at(1_000 + due_ms)));
            assert!(snapshot.is_due(at(999)), "a clock that was set back");
        }
    }
}
