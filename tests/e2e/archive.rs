//! Archived campaigns: only those that have ended can be archived, and lists leave them out.

use serde_json::{Value, json};
use support::wait::holds;
use support::{Core, CoreOptions, SOON, Sql, eventually};

use crate::command_line::run_against;
use crate::dashboard::{LiveStream, campaign};
use crate::on_postgres::on_postgres;

const EVICTED: &str = "SELECT COUNT(*) FROM campaigns WHERE id = $1 AND evicted_at IS NOT NULL";

/// SQL loses all archivings and issues their numbers to other changes, so core reads no campaign as changed.
const LOSE_ARCHIVING: &str = "UPDATE campaigns SET archived_at = NULL, change_number = change_number - 1";

/// Returns the ids of the listed campaigns.
async fn listed(core: &Core, options: &[&str]) -> Vec<String> {
    let words = [&["campaign", "list", "--json"], options].concat();
    let all = run_against(core, &words).await.ended(0).json();
    all.as_array().unwrap().iter().map(|campaign| campaign["id"].as_str().unwrap().to_owned()).collect()
}

async fn archive(core: &Core, id: &str) -> Value {
    core.admin_post(&format!("/admin/v1/campaigns/{id}/archive")).await.expect(200).json()
}

async fn view(core: &Core, id: &str) -> Value {
    core.admin_get(&format!("/admin/v1/campaigns/{id}")).await.expect(200).json()
}

/// Waits until the view of a campaign says that it is not archived. A store that is slow may delay this.
async fn is_not_archived(core: &Core, id: &str) {
    eventually(SOON, || async {
        let view = view(core, id).await;
        holds(view["archived"] == false, || view.to_string())
    })
    .await;
}

async fn a_campaign_that_is_over_can_be_archived(core: &Core) {
    for id in ["over", "other"] {
        core.create(id, json!({"total": 2})).await;
    }
    core.claim("over", "ann", "k").await.expect(201);
    core.admin_post("/admin/v1/campaigns/over/archive").await.refused(409, "campaign_open");
    core.admin_post("/admin/v1/campaigns/none/archive").await.refused(404, "campaign_not_found");
    core.set_admin_state("over", "end").await.expect(200);
    let version = view(core, "over").await["version"].clone();
    for _ in 0..2 {
        assert_eq!(archive(core, "over").await["archived"], true);
    }
    assert_eq!(listed(core, &[]).await, ["other"]);
    let text = run_against(core, &["campaign", "list"]).await.ended(0);
    text.one_line("archived campaigns not listed: 1; use --all to list them");
    assert_eq!(listed(core, &["--all"]).await, ["other", "over"]);
    let mut stream = LiveStream::open(core, &core.admin_token()).await;
    let snapshot = stream
        .until("without the campaign", |snapshot| {
            snapshot["campaigns"]["total"] == 1 && !campaign(snapshot, "other").is_null()
        })
        .await;
    assert!(campaign(&snapshot, "over").is_null(), "{snapshot}");

    // Nothing is deleted, and the rules are the same.
    let archived = view(core, "over").await;
    assert_eq!((&archived["taken"], &archived["version"]), (&json!(1), &version));
    core.claim("over", "ann", "k").await.expect(200);
    let audit = core.admin_get("/admin/v1/audit?campaign_id=over").await.expect(200).json();
    let last = audit["items"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["what"], &last["who"], &last["version"]),
        (&json!("archive"), &json!("admin"), &Value::Null)
    );
    assert_eq!((&last["before"], &last["after"]), (&json!({"archived": false}), &json!({"archived": true})));

    run_against(core, &["campaign", "unarchive", "over"]).await.ended(0);
    assert_eq!(listed(core, &[]).await, ["other", "over"]);
    let shown = run_against(core, &["campaign", "archive", "over"]).await.ended(0);
    assert!(shown.out.contains("archived"), "{shown:?}");
}

#[tokio::test]
async fn a_campaign_that_is_over_can_be_archived_on_sqlite() {
    a_campaign_that_is_over_can_be_archived(&Core::start().await).await;
}

#[tokio::test]
async fn a_campaign_that_is_over_can_be_archived_on_postgres() {
    if let Some((core, _sql, mut postgres)) =
        on_postgres("archiving on PostgreSQL", CoreOptions::default()).await
    {
        a_campaign_that_is_over_can_be_archived(&core).await;
        postgres.stop_immediately().await;
        assert_eq!(view(&core, "over").await["state"], "ended", "the view must not need SQL");
    }
}

async fn an_archiving_that_sql_lost_is_not_shown(core: &Core, sql: &Sql) {
    core.create("over", json!({"total": 2})).await;
    core.set_admin_state("over", "end").await.expect(200);
    archive(core, "over").await;
    sql.run(LOSE_ARCHIVING.to_owned()).await;
    is_not_archived(core, "over").await;
    let mut stream = LiveStream::open(core, &core.admin_token()).await;
    stream.until("with the campaign", |snapshot| !campaign(snapshot, "over").is_null()).await;
}

#[tokio::test]
async fn an_archiving_that_sql_lost_is_not_shown_on_sqlite() {
    let core = Core::start().await;
    an_archiving_that_sql_lost_is_not_shown(&core, &core.sql()).await;
}

#[tokio::test]
async fn an_archiving_that_sql_lost_is_not_shown_on_postgres() {
    if let Some((core, sql, _postgres)) =
        on_postgres("a lost archiving on PostgreSQL", CoreOptions::default()).await
    {
        an_archiving_that_sql_lost_is_not_shown(&core, &sql).await;
    }
}

#[tokio::test]
async fn a_campaign_that_opens_again_is_listed_again() {
    let core = Core::start().await;
    core.create("again", json!({"total": 2})).await;
    core.end_by_time("again").await;
    archive(&core, "again").await;
    core.patch("again", json!({"name": "Renamed"})).await.expect(200);
    assert_eq!(view(&core, "again").await["archived"], true, "it is still over");
    core.patch("again", json!({"ends_at": null})).await.expect(200);
    assert_eq!(view(&core, "again").await["archived"], false);
    core.end_by_time("again").await;
    assert_eq!(view(&core, "again").await["archived"], false, "the mark is gone");
}

/// An evicted campaign has no handle in a core that has just started.
#[tokio::test]
async fn an_evicted_campaign_can_be_archived() {
    let mut core = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1").start().await;
    core.create("old", json!({"total": 2})).await;
    core.claim("old", "ann", "k").await.expect(201);
    core.end_by_time("old").await;
    let sql = core.sql();
    eventually(SOON, || async {
        let rows = sql.number(EVICTED, "old").await;
        holds(rows == 1, || "not evicted".to_owned())
    })
    .await;
    core.stop().await;
    let core = core.restart().await;
    let archived = archive(&core, "old").await;
    assert_eq!((&archived["archived"], &archived["taken"]), (&json!(true), &json!(1)));
    assert_eq!(listed(&core, &[]).await, Vec::<String>::new());
    let evicted = sql.number(EVICTED, "old").await;
    assert_eq!(evicted, 1, "archiving does not load the campaign");

    // The campaign is in core's memory by now, and core does not read evicted campaigns again.
    sql.run(LOSE_ARCHIVING.to_owned()).await;
    is_not_archived(&core, "old").await;
}
