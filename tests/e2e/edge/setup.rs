//! The edge before it is configured, and its root path without a campaign.

use serde_json::json;
use support::client::{Client, client};
use support::edge::{Edge, Runtime, World};
use support::raw::{Raw, status};
use support::wait::holds;
use support::{Reply, SOON, eventually};

use super::{open_world, run};

/// Starts an edge without its two secrets.
async fn unconfigured(name: &str) -> Edge {
    Edge::start(Runtime::from_env(), name, "test", &[("CORE_URL", "http://127.0.0.1:9")]).await
}

async fn get(client: &Client, edge: &Edge, path: &str) -> Reply {
    client.once().try_get(&edge.url(path), "").await.unwrap()
}

/// Returns the head of the response, without following redirects.
async fn head_of(edge: &Edge, method: &str, path: &str) -> String {
    let mut raw = Raw::connect(edge.listen).await;
    raw.send(format!("{method} {path} HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n")).await;
    let answer = String::from_utf8_lossy(&raw.read_to_end().await).into_owned();
    answer.split("\r\n\r\n").next().unwrap().to_owned()
}

#[test]
fn an_unconfigured_edge_answers_503_and_logs_what_is_missing() {
    run(async {
        let edge = unconfigured("edge-unconfigured").await;
        let client = client();
        let _ = get(&client, &edge, "/livez").await.expect(200);
        for path in ["/", "/?campaign=demo"] {
            let page = get(&client, &edge, path).await.expect(503);
            assert!(page.header("content-type").starts_with("text/html"), "{path}: {:?}", page.headers);
            assert!(page.text().contains("page.js"), "{path} is not the page: {}", page.text());
            assert_eq!(page.header("cache-control"), "no-store", "{path}");
            assert!(page.header("content-security-policy").contains("script-src 'self'"), "{path}");
        }
        for _ in 0..50 {
            let _ = get(&client, &edge, "/v1/campaigns/demo").await.refused(503, "not_configured");
        }
        let claim = client.request("POST".parse().unwrap(), &edge.url("/v1/campaigns/demo/claims"));
        let refused = client.once().send(claim.json(&json!({}))).await.unwrap();
        let detail = refused.refused(503, "not_configured").text();
        assert!(!detail.contains("EDGE_KEY"), "callers must not learn about the setup: {detail}");
        let lines = || {
            let log = edge.log();
            log.lines().filter(|line| line.contains("configuration: ")).map(str::to_owned).collect::<Vec<_>>()
        };
        eventually(SOON, || async {
            let named = |line: &String| {
                line.contains("EDGE_KEY is not set") && line.contains("USER_JWT_KEY is not set")
            };
            holds(lines().iter().any(named), || edge.log())
        })
        .await;
        assert!(lines().len() <= 10, "{} lines for about fifty calls", lines().len());
    });
}

#[test]
fn the_root_redirects_only_if_a_default_campaign_is_set() {
    run(async {
        let world = open_world().await;
        let unnamed = world.send(world.request("GET", "/")).await.expect(404);
        assert!(unnamed.header("content-type").starts_with("text/html"), "{:?}", unnamed.headers);
        assert_eq!(unnamed.header("cache-control"), "no-store");
        assert!(unnamed.header("content-security-policy").contains("script-src 'self'"));
        let etag =
            world.send(world.request("GET", "/?campaign=any")).await.expect(200).header("etag").to_owned();
        // A cached copy of the page must not turn the 404 into "not modified".
        let again = world.send(world.request("GET", "/").header("If-None-Match", etag)).await.expect(404);
        assert!(again.text().contains("page.js"), "{}", again.text());
        let head = head_of(&world.edge, "HEAD", "/").await;
        assert_eq!(status(head.as_bytes()), Some(404), "{head}");
        let _ = world.send(world.request("POST", "/")).await.refused(404, "not_found");
        let _ = world.send(world.request("GET", "/nothing")).await.refused(404, "not_found");

        let shown =
            World::start(Runtime::from_env(), "edge-default", "test", &[("DEFAULT_CAMPAIGN", "spring")])
                .await;
        for (path, location) in [
            ("/", "/?campaign=spring"),
            ("/?lang=zh", "/?lang=zh&campaign=spring"),
            ("/?campaigns=x", "/?campaigns=x&campaign=spring"),
        ] {
            let head = head_of(&shown.edge, "GET", path).await.to_lowercase();
            assert_eq!(status(head.to_uppercase().as_bytes()), Some(302), "{path}: {head}");
            assert!(head.contains(&format!("\r\nlocation: {location}\r\n")), "{path}: {head}");
        }
        for path in ["/?campaign=other", "/?lang=zh&campaign=", "/?campaign"] {
            let head = head_of(&shown.edge, "GET", path).await;
            assert_eq!(status(head.as_bytes()), Some(200), "{path}: {head}");
        }
    });
}
