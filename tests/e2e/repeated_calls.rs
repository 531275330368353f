//! The tests' own client retries only what docs/api.md permits.

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use support::Reply;
use support::client::{Client, client};
use support::stand_in::{Canned, StandIn};

/// Starts a fake core that answers a call marked as a first try with 503, and any other call with 200.
fn core() -> StandIn {
    let core = StandIn::start();
    core.answers("HTTP/1.1", Canned::json(200, &json!({})));
    core.answers("claimgate-attempt: 1", Canned::problem(503, &json!({"code": "unavailable"})));
    core
}

async fn marked(client: &Client, core: &StandIn, method: Method, path: &str) -> Reply {
    let request = client.request(method, &format!("http://{}{path}", core.listen));
    sent(client, request.header("Claimgate-Attempt", "1")).await
}

async fn sent(client: &Client, request: RequestBuilder) -> Reply {
    client.send(request).await.expect("an answer")
}

#[tokio::test]
async fn a_503_is_retried_without_the_mark_and_counted() {
    let (core, client) = (core(), client());
    let reply = marked(&client, &core, Method::POST, "/internal/v1/claims").await;
    assert_eq!((reply.status, reply.repeats), (200, 1));
    // A 200 counts as 201 here, because an earlier try of the call may have made the claim.
    reply.expect(201);
    marked(&client.once(), &core, Method::POST, "/internal/v1/claims").await.refused(503, "unavailable");
}

#[tokio::test]
async fn a_call_that_could_count_twice_is_not_retried() {
    let (core, client) = (core(), client());
    for (method, path) in [
        (Method::POST, "/v1/campaigns/demo/claims"), // no key
        (Method::POST, "/admin/v1/webhooks"),
        (Method::PATCH, "/admin/v1/campaigns/demo"),
        (Method::DELETE, "/admin/v1/webhooks/wh_1"),
        (Method::GET, "/readyz"),
    ] {
        let reply = marked(&client, &core, method, path).await;
        assert_eq!((reply.status, reply.repeats), (503, 0), "{path}");
    }
}

#[tokio::test]
#[should_panic(expected = "200, not 201")]
async fn a_first_answer_must_have_the_expected_status() {
    let (core, client) = (core(), client());
    let claim = client.request(Method::POST, &format!("http://{}/internal/v1/claims", core.listen));
    sent(&client, claim).await.expect(201);
}
