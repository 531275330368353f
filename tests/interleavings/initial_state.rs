//! The states of a campaign that protocols begin in.

use serde_json::json;

use axum::http::Method;
use support::inspect::key;

use super::node::Node;
use super::play::Play;

/// Units of a campaign, and of one user of it.
const TOTAL: u32 = 6;
const PER_USER: u32 = 2;
/// The same of a campaign where one user has more claims than a record holds.
const TOTAL_MANY: u32 = 14;
const PER_USER_MANY: u32 = 12;
const HOLD_S: u32 = 600;

/// What there is of the campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InitialState {
    /// Nothing.
    Absent,
    /// Open, with holds; some claims are in SQL, some in the outbox alone, beside an entry that no core has written; one
    /// has been returned, one is confirmed.
    Live,
    /// As open, all in SQL, and Redis has lost it.
    Lost,
    /// Sold out after a unit has changed hands; SQL has heard of neither, and Redis has lost the outbox that told of it.
    Unheard,
    /// As open, but SQL holds a claim in a place that Redis has given to another: an older Redis has come back.
    Forked,
    /// As open, but SQL has lost the last claims that it had committed: an older copy of it has come back.
    Behind,
    /// As open, on a server that was promoted with all of it.
    Promoted,
    /// Its window has closed, all is in SQL, and Redis still has it.
    Over,
    /// The same, and Redis has it no more.
    Evicted,
}

pub const INITIAL_STATES: [(InitialState, &str); 9] = [
    (InitialState::Absent, "absent"),
    (InitialState::Live, "live"),
    (InitialState::Lost, "lost"),
    (InitialState::Unheard, "unheard"),
    (InitialState::Forked, "forked"),
    (InitialState::Behind, "behind"),
    (InitialState::Promoted, "promoted"),
    (InitialState::Over, "over"),
    (InitialState::Evicted, "evicted"),
];

impl InitialState {
    pub fn name(self) -> &'static str {
        INITIAL_STATES.into_iter().find(|(initial, _)| *initial == self).expect("all are listed").1
    }

    /// Whether Redis has the campaign, all along.
    pub fn is_in_redis(self) -> bool {
        matches!(self, Self::Live | Self::Unheard | Self::Forked | Self::Behind | Self::Promoted)
    }

    /// The campaign's total there.
    pub fn total(self) -> u32 {
        if self == Self::Lost { TOTAL_MANY } else { TOTAL }
    }

    /// The campaign's version there.
    pub fn version(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Live | Self::Lost | Self::Unheard | Self::Forked | Self::Behind | Self::Promoted => 1,
            Self::Over | Self::Evicted => 2,
        }
    }

    /// Brings the campaign there; both cores know it, and have spoken to Redis about it.
    pub async fn set(self, play: &Play<'_>, nodes: &[Node; 2]) {
        let [a, b] = nodes;
        match self {
            Self::Absent => {}
            Self::Live => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                let outbox = key(&play.id, "outbox");
                let _: String = play.world.redis.query(&["XADD", &outbox, "*", "nonsense", "1"]).await;
            }
            Self::Unheard => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                for user in ["u6", "u7"] {
                    assert_eq!(play.claim(a, user).await.status, 201);
                }
                relay_all(play, nodes).await;
                assert_eq!(play.transition(a, "u4", "return").await.status, 200);
                // Redis names u1 before u4: what is granted before what made room for it.
                one_of_many(play, b, "u1", "again").await;
                play.world.redis.query::<u64>(&["UNLINK", &key(&play.id, "outbox")]).await;
            }
            Self::Forked => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                // The place that the first claim in the outbox has.
                let place = play.told.get().claims["u4"].sequence;
                let id = play.claim_id("elsewhere");
                play.world.sql.run(forked_claim(&id, place)).await;
                play.told.forked("elsewhere", id, place);
            }
            Self::Behind => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                let before = "SELECT sequence, events FROM campaigns WHERE id = $1";
                let before = play.world.sql.numbers(before, &play.id).await.expect("the campaign");
                relay_all(play, nodes).await;
                let [Some(sequence), Some(events)] = before[..] else { panic!("two numbers") };
                let id = &play.id;
                for statement in [
                    format!("DELETE FROM claims WHERE campaign_id = '{id}' AND sequence > {sequence}"),
                    format!(
                        "UPDATE campaigns SET sequence = {sequence}, events = {events} WHERE id = '{id}'"
                    ),
                ] {
                    play.world.sql.run(statement).await;
                }
            }
            Self::Promoted => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                play.promote().await;
                for node in nodes {
                    node.reconnect().await;
                }
            }
            Self::Lost => {
                open(play, nodes, TOTAL_MANY, PER_USER_MANY, Some(HOLD_S)).await;
                many_claims_of_one(play, a).await;
                relay_all(play, nodes).await;
                play.lose_keys().await;
            }
            Self::Over | Self::Evicted => {
                open(play, nodes, TOTAL, PER_USER, None).await;
                relay_all(play, nodes).await;
                let over = play.patch(a, json!({"ends_at": "2021-01-01T00:00:00Z"}), 1).await;
                assert_eq!(over.status, 200, "{}", over.body);
                if self == Self::Evicted {
                    a.maintain(&play.campaign_id()).await;
                    assert_eq!(play.keys_there().await, 0, "it is evicted");
                }
                b.refresh().await;
            }
        }
    }
}

async fn open(play: &Play<'_>, nodes: &[Node; 2], total: u32, per_user: u32, hold_s: Option<u32>) {
    let [a, b] = nodes;
    assert_eq!(play.create(a, total, per_user, hold_s).await.status, 201);
    b.refresh().await;
    for (node, user) in [(a, "u1"), (b, "u2"), (a, "u3")] {
        assert_eq!(play.claim(node, user).await.status, 201);
    }
    assert_eq!(play.transition(a, "u3", "return").await.status, 200);
    if hold_s.is_some() {
        assert_eq!(play.transition(b, "u2", "confirm").await.status, 200);
    }
    relay_all(play, nodes).await;
    assert_eq!(play.claim(b, "u4").await.status, 201);
    play.leave_a_replica_behind().await;
    play.leave_a_database_behind().await;
    assert_eq!(play.claim(a, "u5").await.status, 201);
}

/// A claim that SQL heard of from a Redis that is no more.
fn forked_claim(id: &str, place: u64) -> String {
    let columns = id.split('.').map(|part| format!("'{part}'")).collect::<Vec<_>>().join(", ");
    format!(
        "INSERT INTO claims (campaign_id, user_id, digest, quantity, status, epoch, revision, sequence, day, \
         claimed_at, updated_at) VALUES ({columns}, 1, 'granted', 1, 1, {place}, 20000, 1, 1)"
    )
}

async fn relay_all(play: &Play<'_>, nodes: &[Node; 2]) {
    for node in nodes {
        node.maintain(&play.campaign_id()).await;
        node.relay().await;
    }
    assert_eq!(play.world.redis.outbox_entries(&play.id).await, 1, "all is in SQL");
}

/// Nine claims of one user, each by a key of its own.
async fn many_claims_of_one(play: &Play<'_>, node: &Node) {
    let keys: Vec<String> = (0..9).map(|key| format!("k{key}")).collect();
    futures_util::future::join_all(keys.iter().map(|key| one_of_many(play, node, "many", key))).await;
}

async fn one_of_many(play: &Play<'_>, node: &Node, user: &str, key: &str) {
    let body = json!({"campaign_id": play.id, "user_id": user, "idempotency_key": key});
    let reply = node.internal(Method::POST, "/internal/v1/claims", Some(body)).await;
    assert_eq!(reply.status, 201);
    play.told.one_of_many(&reply);
}
