//! Challenges: what a user's browser solves for a pass.

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::altcha::AltchaChallenge;

/// The response to `GET /v1/campaigns/{id}/challenge`. Its one member names the kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Challenge {
    /// A proof of work.
    Altcha(AltchaChallenge),
    /// Cloudflare's widget.
    Turnstile(TurnstileWidget),
}

/// The body of `POST /v1/campaigns/{id}/pass`, with the member of the challenge's kind.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SolvedChallenge {
    /// ALTCHA's payload: the challenge as it was issued, and its solution, as JSON in base64.
    pub altcha: Option<String>,
    /// The token of Cloudflare's widget.
    pub turnstile: Option<String>,
}

/// The response to a solved challenge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PassReply {
    /// The pass of this user for this campaign, to send in `Claimgate-Pass`.
    pub pass: String,
    /// The first instant at which the pass is not valid.
    pub expires_at: Timestamp,
}

/// The settings with which a page shows Cloudflare's widget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TurnstileWidget {
    /// The widget's site key.
    pub site_key: String,
    /// The `action` to render the widget with.
    pub action: String,
    /// The URL of the widget's script.
    pub script: String,
}
