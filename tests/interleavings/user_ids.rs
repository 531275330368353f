//! A change of user ids while a campaign is reopened. If both succeeded, users of the campaign would have a
//! second allowance under their new ids.

use axum::http::Method;
use serde_json::json;

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
