//! `GET /readyz` of the edge.

use serde_json::{Value, json};
use support::Reply;
use support::edge::{Edge, Runtime, World};
use support::issuer::Issuer;
use support::process::Signal;
use support::wait::holds;
use support::{SOON, client::client, eventually};

use super::key_server::{Answer, JWKS, KeyServer};
use super::run;

async fn ready(edge: &Edge) -> Reply {
    client().once().try_get(&edge.url("/readyz"), "").await.unwrap()
}

async fn until(edge: &Edge, status: u16) -> Reply {
    eventually(SOON, || async {
        let reply = ready(edge).await;
        holds(reply.status == status, || reply.text()).map(|()| reply)
    })
    .await
}

/// wrangler passes log lines on with a delay.
async fn until_logged(edge: &Edge, line: &str) {
    eventually(SOON, || async { holds(edge.log().contains(line), || edge.log()) }).await;
}

fn detail(reply: &Reply) -> String {
    reply.json()["detail"].as_str().unwrap().to_owned()
}

#[test]
fn an_edge_without_settings_names_the_variables() {
    run(async {
        let variables = [("CORE_URL", "http://127.0.0.1:9"), ("EDGE_KEY", "k1:short")];
        let edge = Edge::start(Runtime::from_env(), "edge-ready-none", "test", &variables).await;
        let refused = ready(&edge).await.refused(503, "not_configured");
        assert_eq!(detail(&refused), "not ready: EDGE_KEY, USER_JWT_KEY");
        assert!(!refused.text().contains("short"), "{}", refused.text());
        until_logged(&edge, "configuration: EDGE_KEY must be").await;
    });
}

#[test]
fn an_edge_is_ready_while_one_core_is() {
    run(async {
        let mut world = World::start(Runtime::from_env(), "edge-ready", "test", &[]).await;
        let core = format!("http://{},http://127.0.0.1:9", world.core.listen());
        let (edge_key, key) = (world.core.data_file("edge.key"), world.core.data_file("user-jwt.key"));
        let variables = [("CORE_URL", core.as_str()), ("EDGE_KEY", &edge_key), ("USER_JWT_KEY", &key)];
        let edge = Edge::start(Runtime::from_env(), "edge-ready-two", "test", &variables).await;
        let states: Value = json!({"cores": [{"core": 1, "state": "up"}, {"core": 2, "state": "down"}]});
        assert_eq!(until(&edge, 200).await.json(), states);
        until_logged(&edge, "core 2 is not ready").await;
        world.core.process().signal(Signal::STOP);
        let refused = until(&edge, 503).await;
        assert_eq!(detail(&refused), "not ready: core 1, core 2");
        assert!(!refused.text().contains("127.0.0"), "{}", refused.text());
        until_logged(&edge, "core 1 is not ready").await;
        world.core.process().signal(Signal::CONT);
        let _ = until(&edge, 200).await;
    });
}

#[test]
fn an_edge_without_keys_is_not_ready() {
    run(async {
        let server = KeyServer::start(Answer::Closed);
        let url = server.url(JWKS);
        let variables = [("USER_JWT_KEY", ""), ("USER_JWT_JWKS_URL", url.as_str())];
        let world = World::start(Runtime::from_env(), "edge-ready-keys", "test", &variables).await;
        let refused = ready(&world.edge).await.refused(503, "unavailable");
        assert_eq!(detail(&refused), "not ready: USER_JWT_JWKS_URL gives no keys");
        assert!(!refused.text().contains("127.0.0"), "{}", refused.text());
        until_logged(&world.edge, "user keys not fetched").await;
        server.answer(JWKS, Answer::keys(&[Issuer::p256().jwk(&json!({}))]));
        // The check itself fetches the keys: no token has arrived yet.
        let _ = until(&world.edge, 200).await;
    });
}

#[test]
fn a_flood_of_checks_calls_core_once_a_second() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-ready-flood", "test", &[]).await;
        let _ = until(&world.edge, 200).await;
        let began = std::time::Instant::now();
        futures_util::future::join_all((0..100).map(|_| ready(&world.edge))).await;
        let calls = world.proxy.requests_with("GET /readyz").len() as u64;
        assert!((1..=3 + began.elapsed().as_secs()).contains(&calls), "{calls} calls for 100 checks");
    });
}
