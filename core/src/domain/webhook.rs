//! Webhooks: a receiver that is told of changed claims, and the events that it is told, by Standard Webhooks.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use claimgate_shared::{CampaignId, Claim, Timestamp};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// How long the secret of before a rotation signs beside the new one.
pub const OLD_SECRET_FOR: Duration = Duration::from_hours(24);
/// So many parked events disable a webhook.
pub const PARKED_MAX: u64 = 5;
/// The wait before an event's second try; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_hours(1);
/// Tries that there are at least before an event is parked, however short the time for them is, and however much of it core was
/// not there.
pub const TRIES_MIN: u32 = 8;

/// A receiver that is told of changed claims.
#[derive(Clone)]
pub struct Webhook {
    /// Its id.
    pub id: String,
    /// Where it is.
    pub url: String,
    /// The campaign whose claims it is told of; `None` for all.
    pub campaign: Option<CampaignId>,
    /// What its events are signed with: `whsec_` and base64.
    pub secret: String,
    /// What they are also signed with, until then.
    pub old_secret: Option<(String, Timestamp)>,
    /// Why it gets nothing; `None` when it does.
    pub disabled_because: Option<String>,
    /// The place in the feed behind which it was told everything, but for what waits.
    pub cursor: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// How many events it has taken.
    pub delivered: u64,
    /// When it took the last one.
    pub delivered_at: Option<Timestamp>,
    /// Events that it did not take yet.
    pub waiting: u64,
    /// Events that it did not take within the time for tries.
    pub parked: u64,
}

impl std::fmt::Debug for Webhook {
    /// Without its secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("id", &self.id).field("url", &self.url).finish_non_exhaustive()
    }
}

impl Webhook {
    /// The secrets that sign at `now`, the new one first.
    pub fn secrets(&self, now: Timestamp) -> impl Iterator<Item = &str> {
        let old = self.old_secret.iter().filter(move |(_, until)| now < *until).map(|(old, _)| old.as_str());
        std::iter::once(self.secret.as_str()).chain(old)
    }
}

/// What a receiver is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookEvent {
    /// The same for every try of it.
    pub id: String,
    /// The claim; empty for a test. Events of one claim are told in their order.
    pub claim_id: String,
    /// The JSON.
    pub body: String,
}

impl WebhookEvent {
    /// That `claim` stands so since `updated_at`, by its change number `revision`. The same change is the same event.
    pub fn of_claim(claim: &Claim, revision: u64, updated_at: Timestamp) -> Self {
        let (claim_id, status) = (claim.id.to_string(), claim.status.as_str());
        let digest = Sha256::digest(format!("{claim_id} {revision} {status}"));
        let body = json!({
            "type": format!("claim.{status}"),
            "timestamp": updated_at,
            "data": {"claim": claim, "revision": revision},
        });
        Self {
            id: format!("evt_{}", URL_SAFE_NO_PAD.encode(&digest[..16])),
            claim_id,
            body: body.to_string(),
        }
    }

    /// A test of the webhook `webhook` at `now`.
    ///
    /// # Errors
    /// When the system has no randomness for its id.
    pub fn test(webhook: &str, now: Timestamp) -> Result<Self, getrandom::Error> {
        let body = json!({"type": "webhook.test", "timestamp": now, "data": {"webhook_id": webhook}});
        Ok(Self { id: format!("evt_{}", random_text()?), claim_id: String::new(), body: body.to_string() })
    }
}

/// An event that was not taken yet.
#[derive(Debug, Clone)]
pub struct WaitingEvent {
    /// Its place among those of its webhook.
    pub number: i64,
    /// The event.
    pub event: WebhookEvent,
    /// Whether it is tried no more.
    pub parked: bool,
    /// How often it was tried.
    pub tries: u32,
    /// When it was tried first.
    pub first_at: Timestamp,
    /// When it is tried again.
    pub next_at: Timestamp,
    /// What went wrong the last time.
    pub last_error: String,
}

/// How long to wait after `tries` tries, where all tries together may take `limit`. `draw`, of 0 to 255, spreads those who
/// wait.
pub fn pause(tries: u32, limit: Duration, draw: u8) -> Duration {
    let longest = PAUSE_MAX.min(limit / TRIES_MIN);
    let pause = PAUSE_MIN.saturating_mul(1 << tries.saturating_sub(1).min(20)).min(longest);
    pause / 2 + pause / 2 * u32::from(draw) / 255
}

/// A new webhook's id.
///
/// # Errors
/// When the system has no randomness.
pub fn new_id() -> Result<String, getrandom::Error> {
    Ok(format!("wh_{}", random_text()?))
}

/// A new secret of 32 bytes, as Standard Webhooks has it.
///
/// # Errors
/// When the system has no randomness.
pub fn new_secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(format!("whsec_{}", STANDARD.encode(bytes)))
}

fn random_text() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_an_hour_and_leave_time_for_eight_tries() {
        let day = Duration::from_hours(24);
        let seconds: Vec<_> = (1..14).map(|tries| pause(tries, day, 255).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]);
        assert_eq!(pause(1, day, 0), Duration::from_millis(2500));
        assert_eq!(pause(9, Duration::from_secs(8), 255), Duration::from_secs(1));
        assert_eq!(pause(u32::MAX, day, 255), PAUSE_MAX);
    }

    #[test]
    fn a_change_is_one_event_however_often_it_is_told() {
        let at = Timestamp::from_ms(1_700_000_000_000).unwrap();
        let mut claim: Claim = serde_json::from_value(json!({
            "id": "demo.alice.aHSIRPhRB6fDKajWWhFLtQ", "campaign_id": "demo", "user_id": "alice", "quantity": 1,
            "status": "held", "sequence": 1, "claimed_at": "2026-01-01T00:00:00Z", "expires_at": null,
        }))
        .unwrap();
        let first = WebhookEvent::of_claim(&claim, 1, at);
        assert_eq!(first, WebhookEvent::of_claim(&claim, 1, at));
        assert_ne!(first.id, WebhookEvent::of_claim(&claim, 2, at).id);
        claim.status = claimgate_shared::ClaimStatus::Revoked;
        let revoked = WebhookEvent::of_claim(&claim, 1, at);
        assert_ne!(first.id, revoked.id);
        assert!(revoked.body.contains("claim.revoked"), "{}", revoked.body);
    }

    #[test]
    fn an_old_secret_signs_until_its_time_is_over() {
        let at = |ms| Timestamp::from_ms(ms).unwrap();
        let webhook = Webhook {
            id: "wh_1".to_owned(),
            url: "https://a/".to_owned(),
            campaign: None,
            secret: "whsec_bmV3".to_owned(),
            old_secret: Some(("whsec_b2xk".to_owned(), at(2000))),
            disabled_because: None,
            cursor: String::new(),
            created_at: at(0),
            delivered: 0,
            delivered_at: None,
            waiting: 0,
            parked: 0,
        };
        assert_eq!(webhook.secrets(at(1999)).collect::<Vec<_>>(), ["whsec_bmV3", "whsec_b2xk"]);
        assert_eq!(webhook.secrets(at(2000)).collect::<Vec<_>>(), ["whsec_bmV3"]);
        assert!(!format!("{webhook:?}").contains("whsec"), "{webhook:?}");
    }
}
