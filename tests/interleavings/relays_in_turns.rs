//! Two cores that read entries of one outbox in turns: each commits what follows the events in SQL, and neither
//! waits for entries that only the other can commit later.

use std::ops::Range;

use super::node::TestCore;
use super::play::ScheduleRun;
use super::track::{RunningProtocol, StepPosition};
use super::world::{Database, World};

/// Number of entries that a core reads in one call.
const READ: usize = 64;

/// Claims one unit each for these users: one entry for each claim.
async fn claim(play: &ScheduleRun<'_>, node: &TestCore, users: Range<usize>) {
    for user in users {
        play.settled(node, async || play.claim(node, &format!("u{user}")).await).await;
    }
}

async fn events_in_sql(play: &ScheduleRun<'_>) -> usize {
    let row = play.world.sql.numbers("SELECT events FROM campaigns WHERE id = $1", &play.id).await;
    row.expect("the campaign")[0].expect("a number").try_into().expect("a count")
}

async fn a_relay_commits_what_it_read_before_a_gap(database: Database) {
    let world = World::start(database).await;
    let play = ScheduleRun::new(&world, false, false);
    let nodes = [world.node(0), world.node(1)];
    let [a, b] = &nodes;
    play.open(a, 1000, 1, None).await;
    b.refresh().await;
    // A core relays campaigns that it has found in Redis.
    b.maintain(&play.campaign_id()).await;
    claim(&play, a, 0..READ + 6).await;

    let mut first = RunningProtocol::new("A", play.log.clone(), None, a.relay_with_others());
    let stopped = first.run(StepPosition::Named("redis:outbox.new", 2)).await.unwrap();
    assert_eq!(stopped, None, "A has read the first entries: {:#?}", play.log.lines());
    let mut second = RunningProtocol::new("B", play.log.clone(), None, b.relay_with_others());
    let refused = second.run_to_its_end().await.unwrap();
    assert!(refused.contains("OutOfOrder"), "B's entries follow those of A: {refused}");
    claim(&play, a, READ + 6..READ + 9).await;
    let refused = first.run_to_its_end().await.unwrap();
    assert!(refused.contains("OutOfOrder"), "A's last entries follow those of B: {refused}");
    assert_eq!(events_in_sql(&play).await, READ, "{:#?}", play.log.lines());

    drop((first, second));
    for node in &nodes {
        node.relay().await;
    }
    assert_eq!(events_in_sql(&play).await, READ + 9);
    assert_eq!(world.redis.outbox_entries(&play.id).await, 1, "the epoch marker");
}

#[tokio::test(flavor = "current_thread")]
async fn a_relay_commits_what_it_read_before_a_gap_to_sqlite() {
    a_relay_commits_what_it_read_before_a_gap(Database::Sqlite).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_relay_commits_what_it_read_before_a_gap_to_postgres() {
    a_relay_commits_what_it_read_before_a_gap(Database::Postgres).await;
}
