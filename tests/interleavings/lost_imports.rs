//! An import during which SQL loses it. The same file completes the import, whichever steps had been taken.

use axum::http::Method;
use support::wait::holds;
use support::{SOON, eventually};

use super::explore::{STRIDE, explores_all};
use super::initial_state::InitialState;
use super::judge::judge;
use super::node::TestCore;
use super::play::ScheduleRun;
use super::track::{RunningProtocol, StepPosition};
use super::world::{Database, World};

/// Past claims of these users, one unit each. They and the claims of the initial state take the whole total.
const USERS: [&str; 2] = ["past1", "past2"];
const FILE: &str = "user_id,quantity,idempotency_key\npast1,1,k\npast2,1,k\n";

/// Imports `file` at the last of `nodes` until that succeeds. Before each try, all `nodes` detect what SQL has lost.
pub async fn import_file(play: &ScheduleRun<'_>, nodes: &[TestCore], file: &str) {
    let importer = nodes.last().expect("a core");
    eventually(SOON, || async {
        for node in nodes {
            node.refresh().await;
            node.maintain(&play.campaign_id()).await;
        }
        let reply = importer.import(&play.id, file.to_owned()).await;
        holds(reply.status == 200, || reply.body.to_string())
    })
    .await;
}

/// Imports the file at B, and records its claims as acknowledged.
async fn complete(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) {
    let b = &nodes[1];
    import_file(play, nodes, FILE).await;
    for user in USERS {
        let path = format!("/internal/v1/claims/{}", play.claim_id(user));
        let reply = eventually(SOON, || async {
            let reply = b.internal(Method::GET, &path, None).await;
            holds(reply.status == 200, || reply.body.to_string()).map(|()| reply)
        });
        play.answers.one_of_many(&reply.await);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_import_that_sql_loses_is_completed_by_the_same_file() {
    let world = World::start(Database::Sqlite).await;
    for step in (1..).step_by(if explores_all() { 1 } else { STRIDE }) {
        let play = ScheduleRun::new(&world, true, false);
        let nodes = [world.node(0), world.node(1)];
        let a = &nodes[0];
        InitialState::Live.set(&play, &nodes).await;
        play.settled(a, async || play.set_admin_state(a, "pause").await).await;
        play.copy_database().await;
        let importing = a.import(&play.id, FILE.to_owned());
        let mut import = RunningProtocol::new("A", play.log.clone(), None, importing);
        let ended = import.run(StepPosition::Step(step)).await.expect("A runs");
        play.forget().await;
        let is_last = ended.is_some();
        let reply = match ended {
            Some(reply) => reply,
            None => import.run_to_its_end().await.expect("A ends"),
        };
        drop(import);
        play.log.add(format!("A ends: {}", reply.brief()));
        complete(&play, &nodes).await;
        if let Err(wrong) = judge(&play, &nodes, InitialState::Live).await {
            panic!("lost before step {step}: {wrong}\n{}", play.log.lines().join("\n"));
        }
        world.remove(&play.id).await;
        if is_last {
            break;
        }
    }
}
