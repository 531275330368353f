//! User ids that are changed while a campaign is reopened, or pinned while a back end claims or an admin imports under
//! other ids. If both succeeded, users of the campaign would have a second allowance under their new ids.

use axum::http::Method;
use claimgate_core::engine::EngineError;
use claimgate_shared::{Attempt, ClaimRequest, Outcome};
use serde_json::json;
use support::wait::holds;
use support::{SOON, eventually};

use super::initial_state::InitialState;
use super::node::TestCore;
use super::play::ScheduleRun;
use super::track::{RunningProtocol, StepPosition};
use super::world::{Database, World};

/// The first scheme by HMAC. The campaign has claims under other ids.
const SCHEME: &str = "hmac:VR1TK4";
const USER: &str = "VR1TK4_EOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs";

#[derive(Debug, Clone, Copy)]
enum Change {
    /// An admin reopens the campaign after its end.
    Reopen,
    /// An admin sets the user ids.
    Set,
    /// The first claim by an edge pins its user ids.
    Pin,
}

impl Change {
    /// Makes the change at `node`; returns false if it is rejected because of the other change.
    async fn succeeds(self, play: &ScheduleRun<'_>, node: &TestCore) -> bool {
        let reply = match self {
            Self::Reopen => play.patch(node, json!({"ends_at": null}), InitialState::Over.version()).await,
            Self::Set => {
                node.admin(Method::POST, "/admin/v1/user-ids", Some(json!({"user_ids": SCHEME}))).await
            }
            Self::Pin => {
                let scheme = SCHEME.parse().expect("a scheme");
                let user = USER.parse().expect("an id");
                return node.engine.user_ids.check_claim(Some(scheme), &user).await.is_ok();
            }
        };
        match (reply.status, reply.code()) {
            (200, _) => true,
            (409, "campaign_ended" | "campaign_open") => false,
            _ => panic!("{self:?}: {} {}", reply.status, reply.body),
        }
    }
}

/// Plays `slow`, once for each of its steps, stopped before that step, while `other` runs to its end.
async fn only_one_succeeds(database: Database, slow: Change, other: Change) {
    let world = World::start(database).await;
    let mut won = [0, 0];
    for step in 1.. {
        let play = ScheduleRun::new(&world, false, false);
        let nodes = [world.node(0), world.node(1)];
        InitialState::Over.set(&play, &nodes).await;
        let stop = StepPosition::Step(step);
        let mut a = RunningProtocol::new("A", play.log.clone(), None, slow.succeeds(&play, &nodes[0]));
        let mut b = RunningProtocol::new("B", play.log.clone(), None, other.succeeds(&play, &nodes[1]));
        let ended = a.run(stop).await.expect("A runs");
        let b = b.run_to_its_end().await.expect("B ends");
        let a_succeeded = match ended {
            Some(succeeded) => succeeded,
            None => a.run_to_its_end().await.expect("A ends"),
        };
        let lines = play.log.lines().join("\n");
        assert!(a_succeeded != b, "{slow:?}: {a_succeeded}, {other:?}: {b}, {database:?}\n{lines}");
        won[usize::from(b)] += 1;
        for table in ["user_ids", "user_ids_audit"] {
            world.sql.run(format!("DELETE FROM {table}")).await;
        }
        world.remove(&play.id).await;
        if ended.is_some() {
            break;
        }
    }
    assert!(won.iter().all(|times| *times > 0), "each change must come first in some schedule: {won:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn user_ids_are_never_set_while_a_campaign_opens_again() {
    for database in [Database::Sqlite, Database::Postgres] {
        only_one_succeeds(database, Change::Reopen, Change::Set).await;
        only_one_succeeds(database, Change::Set, Change::Reopen).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn user_ids_are_never_pinned_while_a_campaign_opens_again() {
    for database in [Database::Sqlite, Database::Postgres] {
        only_one_succeeds(database, Change::Reopen, Change::Pin).await;
        only_one_succeeds(database, Change::Pin, Change::Reopen).await;
    }
}

/// A caller who claims for the same user under that caller's user ids.
#[derive(Debug, Clone, Copy)]
enum Claimant {
    /// An edge with the ids of [`SCHEME`]. Its first claim pins the scheme.
    Edge,
    /// A back end with other ids.
    BackEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Granted,
    /// The error names the user ids.
    Rejected,
    /// The caller asks again.
    Undecided,
}

impl Claimant {
    async fn claim(self, play: &ScheduleRun<'_>, node: &TestCore) -> Answer {
        let Self::Edge = self else {
            let reply = play.claim(node, "alice").await;
            return match (reply.status, reply.code()) {
                (200 | 201, _) => Answer::Granted,
                (503, "user_ids_differ") => Answer::Rejected,
                _ => Answer::Undecided,
            };
        };
        let request = ClaimRequest {
            campaign_id: play.campaign_id(),
            user_id: USER.parse().expect("an id"),
            quantity: 1.try_into().expect("a quantity"),
            idempotency_key: "k".parse().expect("a key"),
        };
        let scheme = Some(SCHEME.parse().expect("a scheme"));
        match node
            .engine
            .claims
            .claim(&request, Attempt::Unknown, None, scheme)
            .await
            .map(|made| made.outcome)
        {
            Ok(Outcome::Granted(_) | Outcome::Replayed(_)) => Answer::Granted,
            Err(EngineError::UserIdsDiffer(_)) => Answer::Rejected,
            _ => Answer::Undecided,
        }
    }

    /// Claims until the answer is final. Before each try, the core reads what has changed.
    async fn settled(self, play: &ScheduleRun<'_>, node: &TestCore) -> Answer {
        eventually(SOON, || async {
            node.refresh().await;
            node.maintain(&play.campaign_id()).await;
            let answer = self.claim(play, node).await;
            holds(answer != Answer::Undecided, || format!("{self:?} is undecided")).map(|()| answer)
        })
        .await
    }
}

/// Removes the campaign and the pinned scheme, after checking that one of two callers got one unit.
async fn one_got_a_unit(play: &ScheduleRun<'_>, got: [bool; 2], won: &mut [u32; 2]) {
    let taken = play.world.redis.counter(&play.id, "taken").await;
    let lines = play.log.lines().join("\n");
    assert!(taken == 1 && got != [true, true], "{taken} taken, {got:?}\n{lines}");
    for (won, got) in won.iter_mut().zip(got) {
        *won += u32::from(got);
    }
    for table in ["user_ids", "user_ids_audit"] {
        play.world.sql.run(format!("DELETE FROM {table}")).await;
    }
    play.world.remove(&play.id).await;
}

/// Plays `slow` at A, once for each of its steps, stopped before that step, while `other` claims at B. Neither core
/// knows a pinned scheme, and SQL does not have the claims yet.
async fn only_one_is_granted(database: Database, slow: Claimant, other: Claimant) {
    let world = World::start(database).await;
    let mut won = [0, 0];
    for step in 1.. {
        let play = ScheduleRun::new(&world, false, false);
        let nodes = [world.node(0), world.node(1)];
        play.open(&nodes[0], 6, 2, None).await;
        nodes[1].refresh().await;
        let mut a = RunningProtocol::new("A", play.log.clone(), None, slow.claim(&play, &nodes[0]));
        let mut b = RunningProtocol::new("B", play.log.clone(), None, other.claim(&play, &nodes[1]));
        let ended = a.run(StepPosition::Step(step)).await.expect("A runs");
        let of_b = b.run_to_its_end().await.expect("B ends");
        let of_a = match ended {
            Some(answer) => answer,
            None => a.run_to_its_end().await.expect("A ends"),
        };
        let later = [slow.settled(&play, &nodes[0]).await, other.settled(&play, &nodes[1]).await];
        let got = [0, 1].map(|at| [[of_a, of_b][at], later[at]].contains(&Answer::Granted));
        one_got_a_unit(&play, got, &mut won).await;
        if ended.is_some() {
            break;
        }
    }
    assert!(won.iter().all(|times| *times > 0), "each caller must win in some schedule: {won:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn one_caller_is_granted_a_unit_while_user_ids_are_pinned() {
    for database in [Database::Sqlite, Database::Postgres] {
        only_one_is_granted(database, Claimant::Edge, Claimant::BackEnd).await;
        only_one_is_granted(database, Claimant::BackEnd, Claimant::Edge).await;
    }
}

/// Pauses the campaign, and imports a claim under another id at B until the answer is final. Returns whether the claim
/// was imported.
async fn imports(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) -> bool {
    eventually(SOON, || async {
        for node in nodes {
            node.refresh().await;
            node.maintain(&play.campaign_id()).await;
        }
        play.set_admin_state(&nodes[0], "pause").await;
        let reply = nodes[1].import(&play.id, PAST_CLAIM.to_owned()).await;
        let is_done = reply.status == 200;
        holds(is_done || reply.code() == "user_ids_differ", || reply.body.to_string()).map(|()| is_done)
    })
    .await
}

const PAST_CLAIM: &str = "user_id,quantity\nalice,1\n";

/// The import is stopped before each of its steps, while an edge claims from the opened campaign.
#[tokio::test(flavor = "current_thread")]
async fn no_edge_claims_beside_an_import_of_other_user_ids() {
    for database in [Database::Sqlite, Database::Postgres] {
        let world = World::start(database).await;
        let mut won = [0, 0];
        for step in 1.. {
            let play = ScheduleRun::new(&world, false, false);
            let nodes = [world.node(0), world.node(1)];
            let [a, b] = &nodes;
            play.open(a, 6, 2, None).await;
            play.settled(a, async || play.set_admin_state(a, "pause").await).await;
            b.refresh().await;
            let importing = b.import(&play.id, PAST_CLAIM.to_owned());
            let mut import = RunningProtocol::new("B", play.log.clone(), None, importing);
            let ended = import.run(StepPosition::Step(step)).await.expect("B runs");
            play.expire_leases().await;
            // These calls fail while the import is unfinished.
            play.set_admin_state(a, "resume").await;
            let first = Claimant::Edge.claim(&play, a).await;
            play.set_admin_state(a, "pause").await;
            let is_last = ended.is_some();
            let reply = match ended {
                Some(reply) => reply,
                None => import.run_to_its_end().await.expect("B ends"),
            };
            play.log.add(format!("the edge: {first:?}, the import: {}", reply.brief()));
            let has_imported = imports(&play, &nodes).await || reply.status == 200;
            play.settled(a, async || play.set_admin_state(a, "resume").await).await;
            let later = Claimant::Edge.settled(&play, a).await;
            let has_claimed = [first, later].contains(&Answer::Granted);
            one_got_a_unit(&play, [has_claimed, has_imported], &mut won).await;
            if is_last {
                break;
            }
        }
        assert!(won.iter().all(|times| *times > 0), "each must succeed in some schedule: {won:?}");
    }
}
