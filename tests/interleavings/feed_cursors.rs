//! A reader of the feed whose cursor points to a change that SQL has lost.

use claimgate_core::engine::EngineError;
use support::{SOON, eventually};

use super::initial_state::InitialState;
use super::play::ScheduleRun;
use super::world::{Database, World};

/// The number of items on a page of the feed.
const PAGE: u32 = 100;

/// The first row of the feed that lists a claim of the user `new`.
const ROW_OF_NEW: &str = "SELECT MIN(number) FROM feed WHERE campaign_id = $1 AND claims LIKE '%new.%'";

/// The lost row ends with the claim of u5. The next row lists the claim of `new` before a return of u5: a reader that
/// continued after u5 would miss both.
async fn a_cursor_to_a_lost_change_is_rejected(database: Database) {
    let world = World::start(database).await;
    let play = ScheduleRun::new(&world, true, false);
    let nodes = [world.node(0), world.node(1)];
    let [a, b] = &nodes;
    InitialState::Live.set(&play, &nodes).await;
    a.relay().await;
    let cursor = a.engine.feed.read(None, None, PAGE).await.expect("a page").next;
    let text = cursor.to_string();
    let fields: Vec<_> = text.split('.').collect();
    assert_eq!(fields[3], "u5", "{text}");
    play.forget().await;
    play.settled(b, async || play.claim(b, "new").await).await;
    play.settled(b, async || play.transition(b, "u5", "return").await).await;
    let row = eventually(SOON, || async {
        let (relayed, maintained) = (a.relay().await, a.maintain(&play.campaign_id()).await);
        let row = world.sql.numbers(ROW_OF_NEW, &play.id).await.and_then(|row| row[0]);
        row.ok_or_else(|| format!("relay {relayed}, maintain {maintained}"))
    })
    .await;
    let lost = fields[2].parse::<i64>().expect("a number");
    assert!(row > lost, "the row after {text} has the number {row}");
    let refused = a.engine.feed.read(None, Some(&cursor), PAGE).await;
    assert!(matches!(refused, Err(EngineError::CursorInvalid)), "{refused:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_cursor_to_a_lost_change_is_rejected_on_sqlite() {
    a_cursor_to_a_lost_change_is_rejected(Database::Sqlite).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_cursor_to_a_lost_change_is_rejected_on_postgres() {
    a_cursor_to_a_lost_change_is_rejected(Database::Postgres).await;
}
