//! Entries of the audit.

use claimgate_shared::{CampaignId, ClaimId, Timestamp, Version};
use serde::Serialize;
use serde_json::Value;

/// One change to a campaign, a claim, a webhook or the user ids.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AuditItem {
    /// Sequence number in the audit log. It increases with each change; gaps are possible.
    pub number: u64,
    /// When the change was made.
    pub at: Timestamp,
    /// The name of the admin's or back end's token; `admin` for the token without a name.
    pub who: String,
    /// `create`, `update`, `add`, `codes`, `pause`, `resume`, `end` or `import`, or without a change of its rules
    /// `codes_read`, `archive` or `unarchive`; for a claim `confirm`, `return` or `extend`; for a webhook
    /// `webhook_create`, `webhook_delete`, `webhook_enable`, `webhook_disable` or `webhook_rotate_secret`; for the user ids `user_ids_pin` or `user_ids_set`.
    pub what: String,
    /// The campaign that was changed, or to which the claim or webhook belongs; `null` for a webhook that
    /// covers all campaigns, and for the user ids.
    pub campaign_id: Option<CampaignId>,
    /// The claim that was confirmed, returned or extended; otherwise `null`.
    pub claim_id: Option<ClaimId>,
    /// The webhook that was changed; otherwise `null`.
    pub webhook_id: Option<String>,
    /// The campaign's version after the change; `null` for other changes.
    #[schema(value_type = Option<u64>)]
    pub version: Option<Version>,
    /// Why the caller returned the claim; `null` without a reason, and for other changes.
    pub reason: Option<String>,
    /// The state before the change: the campaign's rules, the claim's `status` (and for `extend` its `expires_at`),
    /// the webhook or the user ids. `null` for a creation.
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The state after the change.
    #[schema(value_type = Object)]
    pub after: Value,
}
