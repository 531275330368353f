//! Codes appear in no log, metric, trace, URL or event of a webhook, whatever happens to their claims.

use reqwest::Method;
use serde_json::json;
use support::core_client::campaign;
use support::edge::{Runtime, World};
use support::topology::Topology;
use support::wait::{holds, until_status};
use support::{SOON, eventually};

use crate::edge::run;
use crate::traces::{Collector, traced};
use crate::webhooks::{Receiver, options_for, webhook};

const CODES: &str = "SAVE-7F3A\nSAVE-91KQ\nSAVE-M2XD\n";

#[test]
fn codes_are_in_no_log_metric_trace_or_url() {
    run(async {
        let (collector, url) = Collector::start().await;
        let core = traced(&url, "1").start().await;
        let variables = [("OTLP_URL", url.as_str()), ("TRACE_RATIO", "1")];
        let world = World::before(core, Runtime::from_env(), "secret-codes", "test", &variables).await;
        let core = &world.core;
        let mut rules = campaign("demo", json!({"total": 0, "per_user": 5}));
        rules["codes"] = json!(true);
        core.create_with(rules).await;
        for wrong in ["SAVE-7F3A\nSAVE-7F3A\n", "SAVE-7F3A,SAVE-91KQ\n", "SAVE\u{7}7F3A\n"] {
            let refused = core.add_codes("demo", wrong).await.refused(400, "invalid_request");
            assert!(!refused.text().contains("SAVE"), "{}", refused.text());
        }
        core.add_codes("demo", CODES).await.expect(200);
        core.patch("demo", json!({"limits": {"total": 3}})).await.expect(200);

        let won = world.claim("demo", "ann", "k").await.expect(201).json();
        let claim = won["claim"]["id"].as_str().expect("an id");
        let shown = eventually(SOON, || async {
            let found = world.look_up(claim, "ann").await.expect(200).json();
            holds(found["claim"]["codes"] == json!(["SAVE-7F3A"]), || found.to_string()).map(|()| found)
        })
        .await;
        for path in ["/admin/v1/campaigns/demo/claims?codes=true", "/admin/v1/changes?codes=true"] {
            for kind in ["application/json", "text/csv"] {
                let request =
                    core.client().request(Method::GET, &core.admin_url(path)).header("Accept", kind);
                let list = core.client().send(request.bearer_auth(core.admin_token())).await.unwrap();
                assert!(list.expect(200).text().contains("SAVE-7F3A"), "{path} as {kind}");
            }
        }
        // The keys with the codes are lost, and restored from SQL.
        let redis = core.redis().await;
        redis.query::<u64>(&["DEL", &support::inspect::key("demo", "codes")]).await;
        let again = until_status(SOON, &[200], async || core.look_up(claim).await).await.json();
        assert_eq!(again["claim"]["codes"], shown["claim"]["codes"]);
        core.transition(claim, "return").await.expect(200);
        if Topology::from_env() == Topology::Own {
            // The log of slow calls keeps their arguments.
            let slow: Vec<String> = redis.query(&["CONFIG", "GET", "slowlog-log-slower-than"]).await;
            assert_eq!(slow, ["slowlog-log-slower-than", "-1"]);
            // The same for large calls, in a Valkey that has such a log.
            let large: Vec<String> = redis.query(&["CONFIG", "GET", "commandlog-request-larger-than"]).await;
            assert!(large.is_empty() || large[1] == "-1", "{large:?}");
            let log = std::fs::read_to_string(core.data_dir().join("redis/redis.log")).expect("Redis' log");
            assert!(!log.is_empty() && !log.contains("SAVE"), "a code is in Redis' log");
        }

        let spans = eventually(SOON, || async {
            let spans = collector.spans();
            let services = ["claimgate-core", "claimgate-edge"];
            let is_there = |service: &str| spans.iter().any(|span| span.service == service);
            holds(services.into_iter().all(is_there), || format!("{spans:#?}")).map(|()| spans)
        })
        .await;
        // So that the edge logs something.
        let rejected = world.request("GET", &format!("/v1/claims/{claim}")).bearer_auth("not.a.token");
        let _ = world.send(rejected).await.refused(401, "unauthenticated");
        eventually(SOON, || async { holds(!world.edge.log().is_empty(), || "no log".to_owned()) }).await;

        let urls = world.proxy.requests_with("/v1/").into_iter();
        let urls: Vec<_> = urls.filter_map(|request| request.lines().next().map(str::to_owned)).collect();
        assert!(!urls.is_empty(), "the edge called core");
        let metrics = core.admin_get("/metrics").await.expect(200).text();
        for (what, text) in [
            ("core's log", core.log()),
            ("the edge's log", world.edge.log()),
            ("the metrics", metrics),
            ("the traces", format!("{spans:?}")),
            ("the edge's calls", urls.join("\n")),
        ] {
            assert!(!text.is_empty(), "{what} is empty");
            assert!(!text.contains("SAVE"), "a code is in {what}");
        }
    });
}

/// The event is sent only after the winner was shown the code.
#[tokio::test]
async fn an_event_of_a_webhook_has_no_codes() {
    let receiver = Receiver::start().await;
    let core = options_for(&[&receiver]).start().await;
    let waits = core.run_out_of_codes("demo").await;
    webhook(&core, &receiver).await;
    let sql = core.sql();
    sql.run("UPDATE webhooks SET enabled = 0, disabled_because = 'test'".to_owned()).await;
    core.transition(&waits, "return").await.expect(200);
    core.add_codes("demo", CODES).await.expect(200);
    let won = core.claim("demo", "ann", "k").await.expect(201).json();
    let claim = won["claim"]["id"].as_str().expect("an id");
    eventually(SOON, || async {
        let found = core.look_up(claim).await.expect(200).json();
        holds(found["claim"]["codes"][0].is_string(), || found.to_string())
    })
    .await;
    sql.run("UPDATE webhooks SET enabled = 1, disabled_because = NULL".to_owned()).await;
    eventually(SOON, || async {
        let events = receiver.received();
        let is_there = events.iter().any(|event| event.summary() == "ann granted");
        holds(is_there, || format!("{events:#?}"))
    })
    .await;
    for event in receiver.received() {
        assert!(!event.body.contains("SAVE") && !event.body.contains("codes"), "{}", event.body);
    }
}
