//! A reader of the feed whose cursor points to a change that SQL has lost.

use claimgate_core::engine::EngineError;
use claimgate_core::store::sql::FeedCursor;
use support::{SOON, eventually};

use super::initial_state::InitialState;
use super::lost_imports::import_file;
use super::node::TestCore;
use super::play::ScheduleRun;
use super::world::{Database, World};

/// The number of items on a page of the feed.
const PAGE: u32 = 100;

/// The first row of the feed that lists a claim of the user `new`.
const ROW_OF_NEW: &str = "SELECT MIN(number) FROM feed WHERE campaign_id = $1 AND claims LIKE '%new.%'";

/// Returns the position after the last change of the claim of `user`.
async fn cursor_after(node: &TestCore, user: &str) -> FeedCursor {
    let page = node.engine.feed.read(None, None, PAGE).await.expect("a page");
    let mut cursors = page.items.into_iter().map(|item| item.cursor);
    cursors.find(|cursor| cursor.to_string().contains(&format!(".{user}."))).expect("a claim of the user")
}

async fn is_rejected(node: &TestCore, cursor: &FeedCursor) {
    let read = node.engine.feed.read(None, Some(cursor), PAGE).await;
    assert!(matches!(read, Err(EngineError::CursorInvalid)), "{cursor}: {read:?}");
}

/// Waits until `node` has noticed that SQL has lost the claim of the user `new`, and has written it again.
async fn new_is_restored(play: &ScheduleRun<'_>, node: &TestCore) {
    eventually(SOON, || async {
        let (relayed, refreshed) = (node.relay().await, node.refresh().await);
        let maintained = node.maintain(&play.campaign_id()).await;
        let row = play.world.sql.numbers(ROW_OF_NEW, &play.id).await.and_then(|row| row[0]);
        row.ok_or_else(|| format!("relay {relayed}, refresh {refreshed}, maintain {maintained}"))
    })
    .await;
}

/// The lost row ends with the claim of u5. The next row lists the claim of `new` before a return of u5: a reader that
/// continued after u5 would miss both. Then SQL loses this row too, together with the skipped numbers.
async fn a_cursor_to_a_lost_change_is_rejected(database: Database) {
    let world = World::start(database).await;
    let play = ScheduleRun::new(&world, true, false);
    let nodes = [world.node(0), world.node(1)];
    let [a, b] = &nodes;
    InitialState::Live.set(&play, &nodes).await;
    a.relay().await;
    let cursor = cursor_after(a, "u5").await;
    play.forget().await;
    play.settled(b, async || play.claim(b, "new").await).await;
    play.settled(b, async || play.transition(b, "u5", "return").await).await;
    new_is_restored(&play, a).await;
    is_rejected(a, &cursor).await;

    let cursor = cursor_after(a, "u5").await;
    play.forget().await;
    new_is_restored(&play, a).await;
    is_rejected(a, &cursor).await;
}

/// SQL loses an import, and possibly the campaign too, while Redis does not have the campaign. The row of the corrected
/// file lists the claim of u5 before the claim of u6: a reader that continued after u6 would miss the claim of u5.
async fn a_cursor_to_a_lost_import_is_rejected(database: Database, campaign_is_lost: bool) {
    let world = World::start(database).await;
    let play = ScheduleRun::new(&world, true, false);
    let nodes = [world.node(0)];
    let [a] = &nodes;
    if campaign_is_lost {
        play.copy_database().await;
    }
    play.open(a, 6, 2, None).await;
    play.settled(a, async || play.set_admin_state(a, "pause").await).await;
    if !campaign_is_lost {
        play.copy_database().await;
    }
    import_file(&play, &nodes, "user_id,quantity,idempotency_key\nu6,1,k\n").await;
    let cursor = cursor_after(a, "u6").await;
    play.lose_keys().await;
    play.forget().await;
    import_file(&play, &nodes, "user_id,quantity,idempotency_key\nu5,1,k\nu6,1,k\n").await;
    is_rejected(a, &cursor).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_cursor_to_a_lost_import_is_rejected_on_sqlite() {
    for campaign_is_lost in [false, true] {
        a_cursor_to_a_lost_import_is_rejected(Database::Sqlite, campaign_is_lost).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_cursor_to_a_lost_import_is_rejected_on_postgres() {
    for campaign_is_lost in [false, true] {
        a_cursor_to_a_lost_import_is_rejected(Database::Postgres, campaign_is_lost).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_cursor_to_a_lost_change_is_rejected_on_sqlite() {
    a_cursor_to_a_lost_change_is_rejected(Database::Sqlite).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_cursor_to_a_lost_change_is_rejected_on_postgres() {
    a_cursor_to_a_lost_change_is_rejected(Database::Postgres).await;
}
