//! The protocols: units of work during which a core may be stopped or die.

use serde_json::json;
use support::core_client::HOLD_S_PROLONGED;

use super::initial_state::InitialState;
use super::node::TestCore;
use super::play::ScheduleRun;

/// One unit of work of a core or its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// An admin creates the campaign.
    Create,
    /// The recovery makes the campaign ready.
    EnsureReady,
    /// The recovery evicts an ended campaign.
    Evict,
    /// An admin reopens the campaign.
    Reopen,
    /// An admin raises or lowers the total, or pauses or ends the campaign.
    Raise,
    Lower,
    Pause,
    End,
    /// An admin requires passes, and visitors without one claim at both cores.
    RequirePass,
    /// An admin adds units.
    Add,
    /// An admin adds codes.
    Upload,
    /// A core assigns codes to claims granted before their codes were added.
    GiveCodes,
    /// One round of the relay.
    Relay,
    /// One round of the relay, then the same core delivers events to a webhook.
    Webhook,
    /// A caller returns a claim, and the same core relays the return.
    ReturnAndRelay,
    /// Callers claim all remaining units, and the same core relays these claims. Then a replica without the
    /// latest decisions replaces the server, and a core loads the campaign.
    Overtake,
    /// The relay writes entries that SQL refuses, and therefore suspends the campaign. The recovery continues
    /// from this state.
    Suspend,
    /// A core reads changes from SQL, as every core does once a second.
    Refresh,
    /// A caller confirms a held claim.
    Confirm,
    /// A caller returns a claim.
    Return,
    /// An admin prolongs the campaign's holds, and a caller extends those of two claims. Between the protocols'
    /// steps, a caller returns one of them.
    Extend,
    /// An admin repairs the differences between Redis and SQL.
    Repair,
    /// Three callers claim, one after another.
    Claims,
    /// Redis loses the campaign's keys.
    KeyLoss,
    /// A server with all acknowledged data is promoted.
    Promote,
    /// A replica without the latest decisions replaces the server, and a core that has not noticed the
    /// failover serves a caller.
    FailOver,
    /// An older copy of the database replaces it, and both cores do their background work.
    Forget,
}

pub const PROTOCOLS: [(Protocol, &str); 27] = [
    (Protocol::Create, "create"),
    (Protocol::EnsureReady, "ensure-ready"),
    (Protocol::Evict, "evict"),
    (Protocol::Reopen, "reopen"),
    (Protocol::Raise, "raise"),
    (Protocol::Lower, "lower"),
    (Protocol::Pause, "pause"),
    (Protocol::End, "end"),
    (Protocol::RequirePass, "require-pass"),
    (Protocol::Add, "add"),
    (Protocol::Upload, "upload"),
    (Protocol::GiveCodes, "give-codes"),
    (Protocol::Relay, "relay"),
    (Protocol::Webhook, "webhook"),
    (Protocol::ReturnAndRelay, "return-and-relay"),
    (Protocol::Overtake, "overtake"),
    (Protocol::Suspend, "suspend"),
    (Protocol::Refresh, "refresh"),
    (Protocol::Confirm, "confirm"),
    (Protocol::Return, "return"),
    (Protocol::Extend, "extend"),
    (Protocol::Repair, "repair"),
    (Protocol::Claims, "claims"),
    (Protocol::KeyLoss, "key-loss"),
    (Protocol::Promote, "promote"),
    (Protocol::FailOver, "fail-over"),
    (Protocol::Forget, "forget"),
];

/// Whether a protocol runs on campaigns with codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codes {
    /// Only on these.
    Needed,
    /// On both kinds of campaigns.
    Played,
    /// Only on campaigns without codes.
    NotPlayed,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        PROTOCOLS.into_iter().find(|(protocol, _)| *protocol == self).expect("all are listed").1
    }

    /// Returns the initial states in which the protocol has something to do.
    pub fn initial_states(self) -> &'static [InitialState] {
        match self {
            Self::Create => &[InitialState::Absent],
            Self::EnsureReady => &[InitialState::Lost, InitialState::Unheard, InitialState::Promoted],
            Self::Repair => &[InitialState::Behind],
            Self::Suspend => &[InitialState::Forked],
            Self::Evict => &[InitialState::Over],
            Self::Reopen => &[InitialState::Over, InitialState::Evicted],
            Self::Pause | Self::End | Self::Return => &[InitialState::Live, InitialState::Evicted],
            Self::Raise | Self::Lower | Self::Add => &[InitialState::Live],
            Self::Relay | Self::Webhook | Self::Refresh => &[InitialState::Live],
            Self::Upload => &[InitialState::Live, InitialState::Evicted],
            Self::GiveCodes => &[InitialState::CodePending],
            Self::ReturnAndRelay | Self::Overtake | Self::RequirePass => &[InitialState::Live],
            Self::Confirm | Self::Extend | Self::Claims | Self::KeyLoss => &[InitialState::Live],
            Self::Promote | Self::FailOver => &[InitialState::Live],
            Self::Forget => &[InitialState::Live, InitialState::Over, InitialState::Evicted],
        }
    }

    /// Returns whether the protocol rewrites the whole campaign in Redis.
    pub fn rewrites(self) -> bool {
        match self {
            Self::Create | Self::EnsureReady | Self::Evict | Self::Reopen | Self::Suspend | Self::Repair => {
                true
            }
            Self::Raise | Self::Lower | Self::Add | Self::Pause | Self::End | Self::RequirePass => false,
            Self::Upload | Self::GiveCodes => false,
            Self::Relay | Self::Webhook | Self::ReturnAndRelay | Self::Overtake | Self::Refresh => false,
            Self::Confirm | Self::Return | Self::Extend | Self::Claims => false,
            Self::KeyLoss | Self::Promote | Self::FailOver | Self::Forget => false,
        }
    }

    /// Returns whether the protocol runs concurrently with `other`. Composed protocols, and protocols that
    /// resemble a different one, run only with their parts, with `forget` and with `webhook`; `raise`, `return`,
    /// `claims`, `relay` and `fail-over` run with everything.
    pub fn runs_with(self, other: Self) -> bool {
        if [Self::Forget, Self::Webhook].contains(&other) {
            return true;
        }
        match self {
            Self::Add => other == Self::Add,
            Self::RequirePass => [Self::RequirePass, Self::Pause, Self::FailOver].contains(&other),
            Self::ReturnAndRelay | Self::Overtake => {
                [Self::ReturnAndRelay, Self::Overtake, Self::Relay].contains(&other)
            }
            Self::Extend => {
                let played = [Self::Extend, Self::EnsureReady, Self::Confirm, Self::Relay];
                played.contains(&other) || [Self::KeyLoss, Self::FailOver].contains(&other)
            }
            _ => true,
        }
    }

    /// Returns whether the protocol also runs on a campaign with codes, and whether it runs only there.
    pub fn codes(self) -> Codes {
        match self {
            Self::Upload | Self::GiveCodes => Codes::Needed,
            Self::Relay | Self::Webhook | Self::Repair | Self::EnsureReady => Codes::Played,
            Self::Confirm | Self::Return => Codes::Played,
            Self::Claims | Self::KeyLoss | Self::Forget | Self::Evict | Self::Reopen => Codes::Played,
            _ => Codes::NotPlayed,
        }
    }

    /// Returns whether the protocol may change which claim has which code: it assigns codes, adds them, confirms or
    /// returns a claim, restores what SQL has lost, or makes a core load the campaign.
    pub fn changes_codes(self) -> bool {
        let changes = [Self::Relay, Self::GiveCodes, Self::Upload, Self::Confirm, Self::Return];
        let restores = [Self::Repair, Self::Forget, Self::EnsureReady, Self::KeyLoss];
        changes.contains(&self) || restores.contains(&self)
    }

    /// Does the work at `node`; returns a short description of the result.
    pub async fn run(self, play: &ScheduleRun<'_>, node: &TestCore, initial: InitialState) -> String {
        let (version, total) = (play.version(initial), initial.total());
        match self {
            Self::Create => play.create(node, total, 2, None).await.brief(),
            Self::EnsureReady | Self::Evict => node.maintain(&play.campaign_id()).await,
            Self::Reopen => play.patch(node, json!({"ends_at": null}), version).await.brief(),
            Self::Raise => play.patch(node, json!({"limits": {"total": total + 2}}), version).await.brief(),
            Self::Lower => play.patch(node, json!({"limits": {"total": total - 1}}), version).await.brief(),
            Self::Add => play.add(node).await.brief(),
            Self::Upload => play.upload(node).await.brief(),
            Self::GiveCodes => format!("{:?}", node.engine.claims.give_pending_codes().await),
            Self::Pause => play.set_admin_state(node, "pause").await.brief(),
            Self::End => play.set_admin_state(node, "end").await.brief(),
            Self::RequirePass => play.require_pass(node, version).await,
            Self::Relay => node.relay().await,
            Self::Webhook => {
                let relayed = node.relay().await;
                format!("{relayed}, then {}", play.deliver(node).await)
            }
            Self::ReturnAndRelay => {
                let returned = play.transition(node, "u2", "return").await.brief();
                format!("{returned}, then {}", node.relay().await)
            }
            Self::Overtake => {
                let mut said = play.claim(node, &play.new_user()).await;
                while said.status == 201 {
                    said = play.claim(node, &play.new_user()).await;
                }
                let said = said.brief();
                let relayed = node.relay_with_others().await;
                let (_, maintained) = fail_over(play, initial).await;
                format!("{said}, then {relayed}; a replica takes over: {maintained}")
            }
            Self::Suspend => {
                let relayed = node.relay().await;
                format!("{relayed}, then {}", node.maintain(&play.campaign_id()).await)
            }
            Self::Refresh => node.refresh().await,
            Self::Confirm => play.transition(node, "u1", "confirm").await.brief(),
            Self::Return => play.transition(node, "u2", "return").await.brief(),
            Self::Extend => extend(play, node, version).await,
            Self::Repair => play.repair(node).await,
            Self::Claims => {
                let mut said = Vec::new();
                for _ in 0..3 {
                    claimgate_core::step::before("claims").await;
                    said.push(play.claim(node, &play.new_user()).await.brief());
                }
                said.join(", ")
            }
            Self::KeyLoss => {
                play.lose_keys().await;
                "the keys are lost".to_owned()
            }
            Self::Forget => {
                play.forget().await;
                let refreshed = node.refresh().await;
                format!("SQL went back; {refreshed}, {}", node.maintain(&play.campaign_id()).await)
            }
            Self::Promote => {
                play.promote().await;
                "the server is promoted".to_owned()
            }
            Self::FailOver => {
                let (new, maintained) = fail_over(play, initial).await;
                let said = play.claim(&new, &play.new_user()).await.brief();
                format!("{maintained}, then a caller gets {said}")
            }
        }
    }
}

/// Prolongs the campaign's holds, and extends the holds of two users.
async fn extend(play: &ScheduleRun<'_>, node: &TestCore, version: u64) -> String {
    let prolonged = play.patch(node, json!({"hold_seconds": HOLD_S_PROLONGED}), version).await.brief();
    let one = play.transition(node, "u1", "extend").await.brief();
    let other = play.transition(node, "u5", "extend").await.brief();
    format!("{prolonged}, then {one} and {other}")
}

/// Promotes the stale replica, and starts a core that loads the campaign. Returns this core, and what its
/// maintenance did.
async fn fail_over(play: &ScheduleRun<'_>, initial: InitialState) -> (TestCore, String) {
    play.fail_over_unless_evicted(initial).await;
    let new = play.world.node(1);
    new.refresh().await;
    let maintained = new.maintain(&play.campaign_id()).await;
    (new, maintained)
}
