//! A campaign as core says it: the edge reads what it decides by, and shows the rest as it is. A newer core may say more.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::{CampaignId, CampaignState, Timestamp, Window};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

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
    /// Units left; `None` when that is unlimited.
    pub remaining: Option<u32>,
    /// Raised by every change an admin makes.
    pub version: u64,
    /// The deciding clock.
    pub server_time: Timestamp,
    /// Name, time zone, limits, and what the edge does not know of.
    #[serde(flatten)]
    pub rest: Rest,
}

impl View {
    /// An `ETag` for everything but the clock, which is another one every time.
    pub fn etag(&self) -> Result<String, serde_json::Error> {
        let timeless = Self { server_time: self.window.starts_at(), ..self.clone() };
        let digest = Sha256::digest(serde_json::to_vec(&timeless)?);
        Ok(format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..16])))
    }
}

/// A campaign's state, in core's word for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum State {
    /// One whose meaning the edge knows.
    Known(CampaignState),
    /// One that core has learnt since: nothing follows from it here.
    Other(String),
}

/// Members that the edge does not look at. They do not change while a view is remembered, so all copies share them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rest(Rc<Map<String, Value>>);

impl Serialize for Rest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(|members| Self(Rc::new(members)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said() -> Value {
        json!({
            "id": "demo", "name": "Demo", "state": "open", "starts_at": "2026-01-01T00:00:00.000Z", "ends_at": null,
            "time_zone": "UTC", "limits": {"total": 0, "per_week": 2}, "remaining": null, "version": 3,
            "server_time": "2026-01-02T00:00:00.000Z", "more": {"of": "tomorrow"},
        })
    }

    fn read(said: &Value) -> View {
        serde_json::from_slice(&serde_json::to_vec(said).unwrap()).unwrap()
    }

    #[test]
    fn what_core_says_is_shown_whole() {
        for state in ["open", "sold_out", "lottery"] {
            let mut said = said();
            said["state"] = json!(state);
            let view = read(&said);
            assert_eq!(matches!(view.state, State::Other(_)), state == "lottery");
            assert_eq!(serde_json::to_value(&view).unwrap(), said);
        }
    }

    #[test]
    fn the_etag_is_of_everything_but_the_clock() {
        let (first, mut later, mut fewer, mut other) = (said(), said(), said(), said());
        later["server_time"] = json!("2026-01-02T00:00:01.000Z");
        fewer["remaining"] = json!(4);
        other["more"]["of"] = json!("today");
        let etag = |said: &Value| read(said).etag().unwrap();
        assert_eq!(etag(&first), etag(&later));
        assert_ne!(etag(&first), etag(&fewer));
        assert_ne!(etag(&first), etag(&other));
    }
}
