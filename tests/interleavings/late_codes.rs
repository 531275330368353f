//! A core that was stopped before it stored codes in Redis, while another core acknowledged the same entries
//! or reloaded the campaign, or while SQL lost the codes. A core that was stopped before it changed the campaign,
//! while SQL lost codes.

use std::fmt::Debug;
use std::ops::Range;

use claimgate_core::domain::campaign::Campaign;
use claimgate_core::domain::codes::CodesOfClaim;
use claimgate_core::store::redis::outbox::OutboxBatch;
use claimgate_shared::ClaimId;
use serde_json::json;
use support::inspect::key;
use support::wait::holds;
use support::{SOON, eventually};

use super::initial_state::{InitialState, use_up_codes};
use super::node::TestCore;
use super::play::ScheduleRun;
use super::track::{RunningProtocol, StepPosition};
use super::world::{Database, World};

/// Reads the entries in the outbox as a relay does.
async fn read_outbox(play: &ScheduleRun<'_>, node: &TestCore) -> OutboxBatch {
    let handle = node.engine.campaigns.find(&play.campaign_id()).await.expect("the campaign");
    let reader = node.engine.stores.redis.outbox_reader(handle.keys.slot, "late").await;
    reader.expect("a reader").read_new(&handle.keys).await.expect("entries")
}

/// Acknowledges `entries` of a batch, with a code for each of these users.
async fn acknowledge(
    play: &ScheduleRun<'_>,
    node: &TestCore,
    (batch, entries): (&OutboxBatch, Range<usize>),
    codes: &[(&str, &str)],
) {
    let handle = node.engine.campaigns.find(&play.campaign_id()).await.expect("the campaign");
    let redis = &node.engine.stores.redis;
    let mut session = redis.session(handle.keys.slot).await.expect("a session");
    let codes: Vec<_> = codes.iter().map(|(user, code)| code_of(play, user, code)).collect();
    let entries = &batch.entries[entries];
    redis.acknowledge(&mut session, &handle.keys, entries, &codes).await.expect("acknowledged");
}

async fn read(play: &ScheduleRun<'_>, node: &TestCore) -> Campaign {
    node.engine.stores.sql.campaign(&play.campaign_id()).await.expect("SQL").expect("the campaign")
}

/// Gives the user u9 a code, read when SQL had `campaign` and `events`. Returns whether it was stored.
async fn give(play: &ScheduleRun<'_>, node: &TestCore, campaign: &Campaign, events: u64) -> bool {
    let handle = node.engine.campaigns.find(&play.campaign_id()).await.expect("the campaign");
    let claims = [code_of(play, "u9", "LATE9")];
    node.engine.stores.give_codes(&handle, campaign, events, &claims).await.expect("an answer")
}

fn code_of(play: &ScheduleRun<'_>, user: &str, code: &str) -> CodesOfClaim {
    let ClaimId { user, digest, .. } = play.claim_id(user).parse().expect("an id");
    CodesOfClaim { user, digest, first: 1, codes: vec![code.parse().expect("a code")] }
}

/// Runs `work` until it is stopped before its first step `step`.
async fn stopped<'a, T: Debug + 'a>(
    play: &ScheduleRun<'_>,
    who: &'static str,
    step: &'static str,
    work: impl Future<Output = T> + 'a,
) -> RunningProtocol<'a, T> {
    let mut running = RunningProtocol::new(who, play.log.clone(), None, work);
    let ended = running.run(StepPosition::Named(step, 1)).await.expect("stopped");
    assert!(ended.is_none(), "{ended:?}");
    running
}

#[tokio::test(flavor = "current_thread")]
async fn a_late_acknowledgement_changes_no_codes() {
    let world = World::start(Database::Sqlite).await;
    let play = ScheduleRun::new(&world, false, true);
    let nodes = [world.node(0), world.node(1)];
    InitialState::Live.set(&play, &nodes).await;
    let batch = read_outbox(&play, &nodes[0]).await;
    let all = batch.entries.len();
    assert_eq!(all, 2, "the claims of u4 and u5");
    let shown = async || {
        let [a, _] = &nodes;
        (play.codes_of(a, &play.claim_id("u4")).await, play.codes_of(a, &play.claim_id("u5")).await)
    };
    let only = |code: &str| Some(vec![code.to_owned()]);

    acknowledge(&play, &nodes[1], (&batch, 0..1), &[("u4", "OWN4")]).await;
    assert_eq!(shown().await, (only("OWN4"), Some(vec![])));
    acknowledge(&play, &nodes[0], (&batch, 0..all), &[("u4", "LATE4"), ("u5", "OWN5")]).await;
    assert_eq!(shown().await, (only("OWN4"), only("OWN5")), "the other core has acknowledged u4");
    acknowledge(&play, &nodes[1], (&batch, 0..all), &[("u4", "LATE4"), ("u5", "LATE5")]).await;
    assert_eq!(shown().await, (only("OWN4"), only("OWN5")), "everything was acknowledged");
}

#[tokio::test(flavor = "current_thread")]
async fn codes_read_before_a_reload_are_not_given() {
    let world = World::start(Database::Sqlite).await;
    let play = ScheduleRun::new(&world, false, true);
    let nodes = [world.node(0), world.node(1)];
    let [a, b] = &nodes;
    InitialState::Live.set(&play, &nodes).await;
    a.relay().await;
    let campaign = read(&play, a).await;
    play.lose_keys().await;
    b.maintain(&play.campaign_id()).await;
    a.refresh().await;
    let stored = async || world.redis.query::<u64>(&["HLEN", &key(&play.id, "codes")]).await;
    let before = stored().await;
    assert!(!give(&play, a, &campaign, 0).await);
    assert_eq!(stored().await, before);
    assert!(give(&play, a, &read(&play, a).await, 0).await);
    assert_eq!(stored().await, before + 1);
}

/// Another core acknowledges a later entry first.
#[tokio::test(flavor = "current_thread")]
async fn codes_are_not_given_while_the_claims_entry_is_in_the_outbox() {
    let world = World::start(Database::Sqlite).await;
    let play = ScheduleRun::new(&world, false, true);
    let nodes = [world.node(0), world.node(1)];
    let [a, b] = &nodes;
    InitialState::Live.set(&play, &nodes).await;
    let batch = read_outbox(&play, b).await;
    let [first, second] = &batch.entries[..] else { panic!("{} entries", batch.entries.len()) };
    let (events, both) = (first.count, second.count);
    let campaign = read(&play, a).await;
    acknowledge(&play, b, (&batch, 1..2), &[]).await;
    assert!(
        !give(&play, a, &campaign, events).await,
        "one of two events was acknowledged, but not the first"
    );
    acknowledge(&play, b, (&batch, 0..1), &[]).await;
    a.relay().await;
    assert!(give(&play, a, &campaign, both).await);
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_returned_before_it_is_relayed_gets_no_code() {
    let world = World::start(Database::Sqlite).await;
    let play = ScheduleRun::new(&world, false, true);
    let nodes = [world.node(0), world.node(1)];
    let [a, _] = &nodes;
    InitialState::Live.set(&play, &nodes).await;
    let assigned = async || read(&play, a).await.codes.expect("codes").assigned;
    let before = assigned().await;
    // The claims of u4 and u5 are in the outbox.
    play.settled(a, async || play.transition(a, "u5", "return").await).await;
    eventually(SOON, || async {
        let relayed = a.relay().await;
        let entries = world.redis.outbox_entries(&play.id).await;
        holds(entries == 1, || format!("{entries} entries are left: {relayed}"))
    })
    .await;
    assert_eq!(assigned().await, before + 1, "only u4 has a code");
    assert_eq!(play.codes_of(a, &play.claim_id("u4")).await.map(|codes| codes.len()), Some(1));
}

/// A core dies after SQL has stored an upload, and before Redis has its version. While another core is about to give a
/// code of this upload to a claim, SQL loses the upload, and the next upload takes the number of its version.
#[tokio::test(flavor = "current_thread")]
async fn codes_of_a_replaced_upload_are_not_given() {
    let world = World::start(Database::Sqlite).await;
    let play = ScheduleRun::new(&world, false, true);
    let nodes = [world.node(0), world.node(1)];
    let [a, b] = &nodes;
    InitialState::Live.set(&play, &nodes).await;
    use_up_codes(&play, &nodes).await;
    world.sql.copy_tables().await;
    drop(stopped(&play, "A", "redis:set_rules", play.add_codes(a, 100..104)).await);
    let give = b.engine.claims.give_pending_codes();
    let mut late = stopped(&play, "B", "redis:set_rules", give).await;
    world.sql.restore_tables().await;
    let next = world.node(0);
    play.settled(&next, async || play.add_codes(&next, 200..204).await).await;
    let ended = late.run_to_its_end().await.expect("an end");

    let waits = play.claim_id("u9");
    eventually(SOON, || async {
        let given = next.engine.claims.give_pending_codes().await;
        let codes = play.codes_of(&next, &waits).await.unwrap_or_default();
        holds(codes == ["C200"], || format!("{ended:?}, then {given:?}: {codes:?}"))
    })
    .await;
}

/// SQL loses an upload whose code was shown, while a change is about to begin its transaction. If the change took the
/// number of the lost version, nothing would show the loss.
#[tokio::test(flavor = "current_thread")]
async fn no_change_takes_the_version_of_a_lost_upload() {
    let world = World::start(Database::Sqlite).await;
    for step in ["sql:add_codes", "sql:add", "sql:change", "sql:set_admin_state"] {
        let play = ScheduleRun::new(&world, false, true);
        let nodes = [world.node(0), world.node(1)];
        let [a, b] = &nodes;
        InitialState::Live.set(&play, &nodes).await;
        use_up_codes(&play, &nodes).await;
        // There must be codes for the units that are added.
        let (lower, version) = (json!({"limits": {"total": 4}}), read(&play, a).await.version.get());
        play.settled(a, async || play.patch(a, lower.clone(), version).await).await;
        world.sql.copy_tables().await;
        let version = read(&play, a).await.version.get();
        let change = async {
            match step {
                "sql:add_codes" => play.add_codes(a, 300..304).await,
                "sql:add" => play.add(a).await,
                "sql:change" => play.patch(a, json!({"name": "Renamed"}), version).await,
                _ => play.set_admin_state(a, "pause").await,
            }
        };
        let mut late = stopped(&play, "A", step, change).await;

        play.settled(b, async || play.add_codes(b, 100..104).await).await;
        let waits = play.claim_id("u9");
        eventually(SOON, || async {
            let given = b.engine.claims.give_pending_codes().await;
            let codes = play.codes_of(b, &waits).await.unwrap_or_default();
            holds(codes == ["C100"], || format!("{given:?}: {codes:?}"))
        })
        .await;
        world.sql.restore_tables().await;
        let reply = late.run_to_its_end().await.expect("an answer");
        assert_eq!(reply.status, 503, "{step}: {}", reply.brief());
        assert_eq!(read(&play, a).await.version.get(), version, "{step}");

        play.settled(a, async || play.add_codes(a, 200..204).await).await;
        for node in &nodes {
            eventually(SOON, || async {
                node.refresh().await;
                let maintained = node.maintain(&play.campaign_id()).await;
                let codes = play.codes_of(node, &waits).await.unwrap_or_default();
                holds(codes == ["C100"], || format!("{step}: {maintained}, {codes:?}"))
            })
            .await;
        }
        let own_number = "SELECT COUNT(*) FROM codes JOIN claims ON claims.campaign_id = codes.campaign_id \
            AND claims.first_code = codes.number \
            WHERE codes.campaign_id = $1 AND codes.code = 'C100' AND claims.user_id = 'u9'";
        assert_eq!(world.sql.number(own_number, &play.id).await, 1, "{step}");
        world.remove(&play.id).await;
    }
}
