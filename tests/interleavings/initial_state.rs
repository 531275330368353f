//! The initial states of a campaign.

use serde_json::json;

use axum::http::Method;
use support::inspect::key;
use support::wait::holds;
use support::{SOON, eventually};

use super::node::TestCore;
use super::play::ScheduleRun;

/// The total of a campaign, which is also the limit per user.
const TOTAL: u32 = 6;
const PER_USER: u32 = 2;
/// The limits of a campaign in which one user has more claims than a record holds.
const TOTAL_MANY: u32 = 14;
const PER_USER_MANY: u32 = 12;
const HOLD_S: u32 = 600;
/// The user whose claim only SQL has, without an entry in the feed.
pub const FORKED_USER: &str = "elsewhere";

/// The state of the campaign before the protocols start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InitialState {
    /// The campaign does not exist.
    Absent,
    /// Open with holds. Some claims are in SQL, some only in the outbox, together with an entry that no core
    /// wrote. One claim was returned, one confirmed.
    Live,
    /// Like `Live`, but SQL has everything and Redis has lost everything.
    Lost,
    /// Sold out after a unit was returned and granted again. SQL has neither the return nor the grant, and
    /// Redis has lost the outbox with both.
    Unheard,
    /// Like `Live`, but SQL has a claim with a sequence number that Redis has assigned to a different claim:
    /// Redis was replaced by an older copy.
    Forked,
    /// Like `Live`, but SQL has lost its last commits: the database was replaced by an older copy.
    Behind,
    /// Like `Live`, but on a promoted server that has all data.
    Promoted,
    /// Like `Live`, but a granted claim has no code: there were too few, and more have just been added.
    CodePending,
    /// The campaign's window has closed, everything is in SQL, and Redis still has the campaign.
    Over,
    /// Like `Over`, but no longer in Redis.
    Evicted,
}

pub const INITIAL_STATES: [(InitialState, &str); 10] = [
    (InitialState::Absent, "absent"),
    (InitialState::Live, "live"),
    (InitialState::Lost, "lost"),
    (InitialState::Unheard, "unheard"),
    (InitialState::Forked, "forked"),
    (InitialState::Behind, "behind"),
    (InitialState::Promoted, "promoted"),
    (InitialState::CodePending, "code-pending"),
    (InitialState::Over, "over"),
    (InitialState::Evicted, "evicted"),
];

impl InitialState {
    pub fn name(self) -> &'static str {
        INITIAL_STATES.into_iter().find(|(initial, _)| *initial == self).expect("all are listed").1
    }

    /// Returns whether Redis has the campaign during the whole schedule.
    pub fn is_in_redis(self) -> bool {
        !matches!(self, Self::Absent | Self::Lost | Self::Over | Self::Evicted)
    }

    /// Returns the campaign's total in this state.
    pub fn total(self) -> u32 {
        if self == Self::Lost { TOTAL_MANY } else { TOTAL }
    }

    /// Returns the campaign's version in this state.
    pub fn version(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Live | Self::Lost | Self::Unheard | Self::Forked | Self::Behind | Self::Promoted => 1,
            Self::CodePending => 1,
            Self::Over | Self::Evicted => 2,
        }
    }

    /// Creates this state. Both cores have read the campaign from SQL and called Redis for it.
    pub async fn set(self, play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) {
        let [a, b] = nodes;
        match self {
            Self::Absent => play.copy_database().await,
            Self::Live => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                let outbox = key(&play.id, "outbox");
                let _: String = play.world.redis.query(&["XADD", &outbox, "*", "nonsense", "1"]).await;
            }
            Self::Unheard => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                for user in ["u6", "u7"] {
                    play.settled(a, async || play.claim(a, user).await).await;
                }
                relay_all(play, nodes).await;
                play.settled(a, async || play.transition(a, "u4", "return").await).await;
                // Redis lists u1 before u4: the grant before the return that made room for it.
                one_of_many(play, b, "u1", "again").await;
                play.world.redis.query::<u64>(&["UNLINK", &key(&play.id, "outbox")]).await;
            }
            Self::Forked => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                // The sequence number of the first claim in the outbox.
                let position = play.answers.get().claims["u4"].sequence;
                let id = play.claim_id(FORKED_USER);
                play.world.sql.run(forked_claim(&id, position)).await;
                play.answers.forked(FORKED_USER, id, position);
            }
            Self::Behind => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                relay_and_forget(play, nodes).await;
            }
            Self::Promoted => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                play.promote().await;
                for node in nodes {
                    node.reconnect().await;
                }
            }
            Self::CodePending => {
                open(play, nodes, TOTAL, PER_USER, Some(HOLD_S)).await;
                use_up_codes(play, nodes).await;
                play.settled(a, async || play.add_codes(a, 150..152).await).await;
                b.refresh().await;
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
                let version = play.version(self) - 1;
                let ended = json!({"ends_at": "2021-01-01T00:00:00Z"});
                play.settled(a, async || play.patch(a, ended.clone(), version).await).await;
                if self == Self::Evicted {
                    evict(play, a).await;
                }
                b.refresh().await;
            }
        }
    }
}

async fn open(play: &ScheduleRun<'_>, nodes: &[TestCore; 2], total: u32, per_user: u32, hold_s: Option<u32>) {
    let [a, b] = nodes;
    play.open(a, total, per_user, hold_s).await;
    b.refresh().await;
    for (node, user) in [(a, "u1"), (b, "u2"), (a, "u3")] {
        play.settled(node, async || play.claim(node, user).await).await;
    }
    play.settled(a, async || play.transition(a, "u3", "return").await).await;
    if hold_s.is_some() {
        play.settled(b, async || play.transition(b, "u2", "confirm").await).await;
    }
    relay_all(play, nodes).await;
    if play.codes && hold_s.is_some() {
        // Later claims get codes immediately.
        play.settled(a, async || play.patch(a, json!({"hold_seconds": null}), 3).await).await;
        b.refresh().await;
    }
    play.settled(b, async || play.claim(b, "u4").await).await;
    play.copy_to_stale_replica().await;
    play.copy_database().await;
    play.settled(a, async || play.claim(a, "u5").await).await;
}

/// Relays everything, and takes it out of SQL again.
async fn relay_and_forget(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) {
    let before = "SELECT sequence, events, codes_assigned FROM campaigns WHERE id = $1";
    let before = play.world.sql.numbers(before, &play.id).await.expect("the campaign");
    relay_all(play, nodes).await;
    let [Some(sequence), Some(events), Some(codes)] = before[..] else { panic!("three numbers") };
    let id = &play.id;
    for statement in [
        format!("DELETE FROM claims WHERE campaign_id = '{id}' AND sequence > {sequence}"),
        format!(
            "UPDATE campaigns SET sequence = {sequence}, events = {events}, codes_assigned = {codes} WHERE id = '{id}'"
        ),
    ] {
        play.world.sql.run(statement).await;
    }
}

/// Returns units and claims them again, each time with a new code, until a claim has none.
pub async fn use_up_codes(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) {
    let a = &nodes[0];
    for (returns, claims) in [(None, "u6"), (None, "u7"), (Some("u4"), "u8"), (Some("u6"), "u9")] {
        relay_all(play, nodes).await;
        if let Some(user) = returns {
            play.settled(a, async || play.transition(a, user, "return").await).await;
        }
        play.settled(a, async || play.claim(a, claims).await).await;
    }
    relay_all(play, nodes).await;
}

async fn evict(play: &ScheduleRun<'_>, node: &TestCore) {
    eventually(SOON, || async {
        let done = node.maintain(&play.campaign_id()).await;
        let left = play.keys_in_redis().await;
        holds(left == 0, || format!("{left} keys of the evicted campaign are left: {done}"))
    })
    .await;
}

/// Returns a claim that SQL got from a Redis that no longer exists.
fn forked_claim(id: &str, position: u64) -> String {
    let columns = id.split('.').map(|part| format!("'{part}'")).collect::<Vec<_>>().join(", ");
    format!(
        "INSERT INTO claims (campaign_id, user_id, digest, quantity, status, epoch, revision, sequence, day, \
         claimed_at, updated_at) VALUES ({columns}, 1, 'granted', 1, 1, {position}, 20000, 1, 1)"
    )
}

async fn relay_all(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) {
    for node in nodes {
        node.maintain(&play.campaign_id()).await;
        node.relay().await;
    }
    assert_eq!(play.world.redis.outbox_entries(&play.id).await, 1, "everything must be in SQL");
}

/// Makes nine claims of one user, each with its own key.
async fn many_claims_of_one(play: &ScheduleRun<'_>, node: &TestCore) {
    let keys: Vec<String> = (0..9).map(|key| format!("k{key}")).collect();
    futures_util::future::join_all(keys.iter().map(|key| one_of_many(play, node, "many", key))).await;
}

async fn one_of_many(play: &ScheduleRun<'_>, node: &TestCore, user: &str, key: &str) {
    let body = json!({"campaign_id": play.id, "user_id": user, "idempotency_key": key});
    let reply = play
        .until_in_time(async || node.internal(Method::POST, "/internal/v1/claims", Some(body.clone())).await)
        .await;
    assert!([200, 201].contains(&reply.status), "{}", reply.body);
    play.answers.one_of_many(&reply);
}
