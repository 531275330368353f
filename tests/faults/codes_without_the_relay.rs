//! Claims that get their codes without the relay: from an import, from a confirmation in SQL, or from codes that are
//! added after the eviction.

use serde_json::json;
use support::wait::{holds, until_status};
use support::{CoreOptions, SOON, eventually};

use crate::codes::{Shown, add, agrees, codes_of, counts, create, file, judge, shown_to};
use crate::evicted::held;
use crate::fixture::Fixture;
use crate::import::import;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_claims_get_their_codes() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 10).await;
        let shown = shown_to(core, 0..2).await;
        core.set_admin_state("demo", "pause").await.expect(200);
        for _ in 0..2 {
            import(core, "demo", "user_id,quantity\nann,1\nbob,2\n").await.expect(200);
        }
        core.set_admin_state("demo", "resume").await.expect(200);
        let mut shown = judge(core, &shown).await;
        assert_eq!(shown.values().flatten().count(), 6);
        shown.extend(shown_to(core, 2..4).await);
        judge(core, &shown).await;
        assert_eq!(counts(core).await, json!({"added": 10, "assigned": 9, "claims_pending": 0}));
        agrees(&fixture).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_confirmed_after_the_eviction_gets_its_codes() {
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let fixture = Fixture::managed_with(options).await;
    let core = &fixture.core;
    create(core, 4).await;
    let shown = shown_to(core, 0..2).await;
    fixture.relayed("demo").await;
    core.end_by_time("demo").await;
    core.redis().await.evicted("demo").await;
    held(&fixture, "u0", 3600).await;
    fixture.sql.run("UPDATE claims SET first_code = NULL WHERE user_id = 'u0'".to_owned()).await;
    let (mut of_u0, others): (Shown, Shown) = shown.into_iter().partition(|(id, _)| id.contains(".u0."));
    let (id, _) = of_u0.pop_first().expect("a claim");
    until_status(SOON, &[200], async || core.transition(&id, "confirm").await).await;
    assert_eq!(codes_of(core, &id, 1).await, ["SAVE-000003"], "the first code that no claim has");
    assert_eq!(counts(core).await, json!({"added": 4, "assigned": 4, "claims_pending": 0}));
    judge(core, &others).await;
}

/// A campaign is evicted while claims are without codes: they are counted, and get the codes that are added
/// later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_an_evicted_campaign_get_codes_added_later() {
    let core =
        Fixture::managed_with(CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1")).await.core;
    let waits = core.run_out_of_codes("demo").await;
    core.end_by_time("demo").await;
    core.redis().await.evicted("demo").await;
    let waiting = async |count: u32| {
        eventually(SOON, || async {
            let metric = core.metric::<f64>("claimgate_claims_without_codes").await;
            let counted = &counts(&core).await["claims_pending"];
            holds(metric == Some(count.into()) && *counted == count, || format!("{metric:?} {counted}"))
        })
        .await;
    };
    waiting(1).await;
    add(&core, &file(1..2)).await.expect(200);
    codes_of(&core, &waits, 1).await;
    waiting(0).await;
}
