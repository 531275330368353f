//! What a core may be at when it is held up, or dies.

use serde_json::json;

use super::initial_state::InitialState;
use super::node::Node;
use super::play::Play;

/// One piece of work of one core, or of what is around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// An admin creates the campaign.
    Create,
    /// The recovery makes it ready.
    EnsureReady,
    /// The same, of a campaign that is over: it is evicted.
    Evict,
    /// An admin gives it a future again.
    Reopen,
    /// An admin raises or lowers its total, pauses it, or ends it.
    Raise,
    Lower,
    Pause,
    End,
    /// An admin adds units.
    Add,
    /// The relay's round.
    Relay,
    /// A caller gives a claim back, and the same core relays that.
    ReturnAndRelay,
    /// Callers take all that is left, the same core relays that, and a replica that lacks what was decided last takes the place
    /// of its server, from which a core loads the campaign.
    Overtake,
    /// The same, where SQL refuses what it brings: it suspends the campaign, and the recovery takes it from there.
    Suspend,
    /// The read of SQL every second.
    Refresh,
    /// A caller confirms a claim that is held.
    Confirm,
    /// A caller gives a claim back.
    Return,
    /// An admin has the difference between Redis and SQL repaired.
    Repair,
    /// Three callers, one after another.
    Claims,
    /// Redis loses the campaign's keys.
    KeyLoss,
    /// The server is promoted, with all that was acknowledged.
    Promote,
    /// A replica that lacks what was decided last takes its place, and a core that has not heard of that serves a caller.
    FailOver,
    /// An older copy of the database takes its place, and both cores do what they do by themselves then.
    Forget,
}

pub const PROTOCOLS: [(Protocol, &str); 22] = [
    (Protocol::Create, "create"),
    (Protocol::EnsureReady, "ensure-ready"),
    (Protocol::Evict, "evict"),
    (Protocol::Reopen, "reopen"),
    (Protocol::Raise, "raise"),
    (Protocol::Lower, "lower"),
    (Protocol::Pause, "pause"),
    (Protocol::End, "end"),
    (Protocol::Add, "add"),
    (Protocol::Relay, "relay"),
    (Protocol::ReturnAndRelay, "return-and-relay"),
    (Protocol::Overtake, "overtake"),
    (Protocol::Suspend, "suspend"),
    (Protocol::Refresh, "refresh"),
    (Protocol::Confirm, "confirm"),
    (Protocol::Return, "return"),
    (Protocol::Repair, "repair"),
    (Protocol::Claims, "claims"),
    (Protocol::KeyLoss, "key-loss"),
    (Protocol::Promote, "promote"),
    (Protocol::FailOver, "fail-over"),
    (Protocol::Forget, "forget"),
];

impl Protocol {
    pub fn name(self) -> &'static str {
        PROTOCOLS.into_iter().find(|(protocol, _)| *protocol == self).expect("all are listed").1
    }

    /// Where it has something to do.
    pub fn initial_states(self) -> &'static [InitialState] {
        match self {
            Self::Create => &[InitialState::Absent],
            Self::EnsureReady => &[InitialState::Lost, InitialState::Unheard, InitialState::Promoted],
            Self::Repair => &[InitialState::Behind],
            Self::Suspend => &[InitialState::Forked],
            Self::Evict => &[InitialState::Over],
            Self::Reopen => &[InitialState::Over, InitialState::Evicted],
            Self::Pause | Self::End | Self::Return => &[InitialState::Live, InitialState::Evicted],
            Self::Raise | Self::Lower | Self::Add | Self::Relay | Self::Refresh => &[InitialState::Live],
            Self::ReturnAndRelay | Self::Overtake => &[InitialState::Live],
            Self::Confirm | Self::Claims | Self::KeyLoss => &[InitialState::Live],
            Self::Promote | Self::FailOver => &[InitialState::Live],
            Self::Forget => &[InitialState::Live, InitialState::Over, InitialState::Evicted],
        }
    }

    /// Whether it decides what Redis holds of the campaign as a whole.
    pub fn rewrites(self) -> bool {
        match self {
            Self::Create | Self::EnsureReady | Self::Evict | Self::Reopen | Self::Suspend | Self::Repair => {
                true
            }
            Self::Raise | Self::Lower | Self::Add | Self::Pause | Self::End => false,
            Self::Relay | Self::ReturnAndRelay | Self::Overtake | Self::Refresh => false,
            Self::Confirm | Self::Return | Self::Claims => false,
            Self::KeyLoss | Self::Promote | Self::FailOver | Self::Forget => false,
        }
    }

    /// Whether a protocol shows more beside `other` than those of which it is made, or which it resembles: `raise`, `return`,
    /// `claims`, `relay` and `fail-over` are played beside everything.
    pub fn meets(self, other: Self) -> bool {
        match self {
            Self::Add => [Self::Add, Self::Forget].contains(&other),
            Self::ReturnAndRelay | Self::Overtake => {
                [Self::ReturnAndRelay, Self::Overtake, Self::Relay, Self::Forget].contains(&other)
            }
            _ => true,
        }
    }

    /// Does the work, at `node`; in a few words, what it came to.
    pub async fn run(self, play: &Play<'_>, node: &Node, initial: InitialState) -> String {
        let (version, total) = (initial.version(), initial.total());
        match self {
            Self::Create => play.create(node, total, 2, None).await.brief(),
            Self::EnsureReady | Self::Evict => node.maintain(&play.campaign_id()).await,
            Self::Reopen => play.patch(node, json!({"ends_at": null}), version).await.brief(),
            Self::Raise => play.patch(node, json!({"limits": {"total": total + 2}}), version).await.brief(),
            Self::Lower => play.patch(node, json!({"limits": {"total": total - 1}}), version).await.brief(),
            Self::Add => play.add(node).await.brief(),
            Self::Pause => play.set_admin_state(node, "pause").await.brief(),
            Self::End => play.set_admin_state(node, "end").await.brief(),
            Self::Relay => node.relay().await,
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
                let relayed = node.relay_beside_others().await;
                play.fail_over_unless_evicted(initial).await;
                let new = play.world.node(1);
                new.refresh().await;
                let maintained = new.maintain(&play.campaign_id()).await;
                format!("{said}, then {relayed}; a replica takes over: {maintained}")
            }
            Self::Suspend => {
                let relayed = node.relay().await;
                format!("{relayed}, then {}", node.maintain(&play.campaign_id()).await)
            }
            Self::Refresh => node.refresh().await,
            Self::Confirm => play.transition(node, "u1", "confirm").await.brief(),
            Self::Return => play.transition(node, "u2", "return").await.brief(),
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
                "the keys are gone".to_owned()
            }
            Self::Forget => {
                play.forget().await;
                let refreshed = node.refresh().await;
                format!("SQL has forgotten; {refreshed}, {}", node.maintain(&play.campaign_id()).await)
            }
            Self::Promote => {
                play.promote().await;
                "the server is promoted".to_owned()
            }
            Self::FailOver => {
                play.fail_over_unless_evicted(initial).await;
                let new = play.world.node(1);
                new.refresh().await;
                let maintained = new.maintain(&play.campaign_id()).await;
                let said = play.claim(&new, &play.new_user()).await.brief();
                format!("{maintained}, then a caller hears {said}")
            }
        }
    }
}
