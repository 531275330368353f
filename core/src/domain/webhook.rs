//! Webhooks: receivers of changed claims, and their events in the format of Standard Webhooks.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use claimgate_shared::{CampaignId, Claim, Timestamp};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Period after a rotation in which the previous secret also signs.
pub const OLD_SECRET_FOR: Duration = Duration::from_hours(24);
/// Number of parked events that disables a webhook.
pub const PARKED_MAX: u64 = 5;
/// Delay before an event is first retried; it doubles with each further retry.
const DELAY_MIN: Duration = Duration::from_secs(5);
const DELAY_MAX: Duration = Duration::from_hours(1);
/// Minimum number of tries before an event is parked, even if the retry period is short, or core was down for
/// most of it.
pub const TRIES_MIN: u32 = 8;

/// A receiver of changed claims.
#[derive(Clone)]
pub struct Webhook {
    /// The webhook's id.
    pub id: String,
    /// The receiver's URL.
    pub url: String,
    /// The campaign whose claims are reported; `None` for all campaigns.
    pub campaign: Option<CampaignId>,
    /// The secret that signs events: `whsec_` and base64.
    pub secret: String,
    /// The previous secret, and the time until which it also signs.
    pub old_secret: Option<(String, Timestamp)>,
    /// The reason why the webhook is disabled; `None` while it is enabled.
    pub disabled_because: Option<String>,
    /// The feed cursor up to which every event has been delivered or is pending.
    pub cursor: String,
    /// When the webhook was created.
    pub created_at: Timestamp,
    /// Number of delivered events.
    pub delivered: u64,
    /// When the last event was delivered.
    pub delivered_at: Option<Timestamp>,
    /// Number of pending events.
    pub waiting: u64,
    /// Number of events that were not delivered within the retry period.
    pub parked: u64,
}

impl std::fmt::Debug for Webhook {
    /// Omits the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("id", &self.id).field("url", &self.url).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Returns the secrets that sign at `now`, the current one first.
    pub fn secrets(&self, now: Timestamp) -> impl Iterator<Item = &str> {
        let old = self.old_secret.iter().filter(move |(_, until)| now < *until).map(|(old, _)| old.as_str());
        std::iter::once(self.secret.as_str()).chain(old)
    }
}

/// An event to be sent to a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookEvent {
    /// The event's id, which is the same for every try.
    pub id: String,
    /// The claim; empty for a test. Events of one claim are sent in order.
    pub claim_id: String,
    /// The JSON body.
    pub body: String,
}

impl WebhookEvent {
    /// Returns the event for `claim`, which entered its state at `updated_at` with revision `revision`. The
    /// same change always yields the same event.
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

    /// Returns a test event for the webhook `webhook` at `now`.
    pub fn test(webhook: &str, now: Timestamp) -> Result<Self, getrandom::Error> {
        let body = json!({"type": "webhook.test", "timestamp": now, "data": {"webhook_id": webhook}});
        Ok(Self { id: format!("evt_{}", random_text()?), claim_id: String::new(), body: body.to_string() })
    }
}

/// An event that was not delivered yet.
#[derive(Debug, Clone)]
pub struct WaitingEvent {
    /// The number of this event among the webhook's events.
    pub number: i64,
    /// The id and JSON body that are sent, and the claim by which events are ordered.
    pub event: WebhookEvent,
    /// Whether the event is parked, and thus no longer retried.
    pub parked: bool,
    /// Number of tries so far.
    pub tries: u32,
    /// When the event was first tried.
    pub first_at: Timestamp,
    /// The time of the next try.
    pub next_at: Timestamp,
    /// The error of the last try.
    pub last_error: String,
}

/// Returns the delay after `tries` tries, for a retry period of `limit`. `jitter` is a random number from 0
/// to 255.
pub fn retry_delay(tries: u32, limit: Duration, jitter: u8) -> Duration {
    let longest = DELAY_MAX.min(limit / TRIES_MIN);
    let delay = DELAY_MIN.saturating_mul(1 << tries.saturating_sub(1).min(20)).min(longest);
    delay / 2 + delay / 2 * u32::from(jitter) / 255
}

/// Returns an id for a new webhook.
pub fn new_id() -> Result<String, getrandom::Error> {
    Ok(format!("wh_{}", random_text()?))
}

/// Returns a new secret of 32 bytes, in the format of Standard Webhooks.
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
    fn delays_grow_to_an_hour_and_leave_time_for_eight_tries() {
        let day = Duration::from_hours(24);
        let seconds: Vec<_> = (1..14).map(|tries| retry_delay(tries, day, 255).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]);
        assert_eq!(retry_delay(1, day, 0), Duration::from_millis(2500));
        assert_eq!(retry_delay(9, Duration::from_secs(8), 255), Duration::from_secs(1));
        assert_eq!(retry_delay(u32::MAX, day, 255), DELAY_MAX);
    }

    #[test]
    fn the_same_change_always_yields_the_same_event() {
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
    fn an_old_secret_signs_until_it_expires() {
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
