//! Invalid campaigns are rejected with 400 and the name of the field.

use serde_json::{Value, json};
use support::core_client::campaign;
use support::times::from_now;
use support::{Core, Snapshot};

#[tokio::test]
async fn the_error_names_an_invalid_field_and_nothing_is_created() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 100})).await;
    let (redis, sql) = (core.redis().await, core.sql());
    let before = Snapshot::take(&redis, &sql, "demo").await;
    let zone = |zone: Value| json!({"time_zone": zone});
    for (change, field) in [
        (json!({"ends_at": from_now(-3600)}), "ends_at"),
        (json!({"starts_at": "2026-01-01T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z"}), "ends_at"),
        (json!({"starts_at": "tomorrow"}), "starts_at"),
        (json!({"starts_at": "2026-01-01T00:00:00"}), "starts_at"),
        (json!({"starts_at": 1_700_000_000}), "starts_at"),
        (json!({"ends_at": "2026-02-30T00:00:00Z"}), "ends_at"),
        (json!({"limits": {"total": -1}}), "limits.total"),
        (json!({"limits": {"per_user": -1}}), "limits.per_user"),
        (json!({"limits": {"per_user_per_day": 4_294_967_296_u64}}), "limits.per_user_per_day"),
        (json!({"limits": {"per_claim": "1"}}), "limits.per_claim"),
        (json!({"limits": {"total": 1.5}}), "limits.total"),
        (json!({"limits": []}), "limits"),
        (json!({"limits": [1, 2, 3, 4]}), "limits"),
        (json!({"limits": null}), "limits"),
        (zone(json!("Mars/Olympus")), "time_zone"),
        (zone(json!("")), "time_zone"),
        (zone(json!("../UTC")), "time_zone"),
        (zone(json!(8)), "time_zone"),
        (json!({"hold_seconds": 0}), "hold_seconds"),
        (json!({"hold_seconds": -5}), "hold_seconds"),
        (json!({"name": ""}), "name"),
        (json!({"name": "n".repeat(201)}), "name"),
        (json!({"name": "a\u{7}b"}), "name"),
        (json!({"name": "a\u{202e}b"}), "name"),
        (json!({"name": "a\u{200b}b"}), "name"),
        (json!({"name": "\u{feff}ab"}), "name"),
        (json!({"name": "a\u{2066}b"}), "name"),
        (json!({"name": " \u{3164}"}), "name"),
        (json!({"id": "a b"}), "id"),
        (json!({"id": "a".repeat(65)}), "id"),
    ] {
        let mut body = campaign("bad", json!({}));
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let answer = core.admin(reqwest::Method::POST, "/admin/v1/campaigns", &body).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid_request"),
            "{change}: {}",
            answer.text()
        );
        assert_eq!(answer.json()["field"], field, "{change}");
    }
    let unknown = json!({"id": "bad", "name": "bad", "starts_at": from_now(0), "limits": {"per_week": 1}});
    core.admin(reqwest::Method::POST, "/admin/v1/campaigns", &unknown).await.refused(400, "invalid_request");
    core.admin_get("/admin/v1/campaigns/bad").await.refused(404, "campaign_not_found");
    for change in [
        json!({"time_zone": "Asia/Shanghai"}),
        json!({"hold_seconds": 0}),
        json!({"id": "other"}),
        json!({"limits": {"total": -1}}),
        json!({"limits": {"per_claim": 0}}),
        json!({"name": "a\u{202e}b"}),
    ] {
        let answer = core.patch("demo", change.clone()).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_request"), "{change}");
    }
    assert_eq!(Snapshot::take(&redis, &sql, "demo").await, before);
    core.claim("demo", "bob", "after").await.expect(201);
    core.create("day-above-user", json!({"per_user": 1, "per_user_per_day": 2})).await;
}
