//! Thousands of slow or idle connections: callers without credentials take no resources that claims need.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use claimgate_shared::http::BATCH_BYTES_MAX;
use futures_util::future::join_all;
use rustix::net::sockopt;
use serde_json::json;
use support::core_client::API_TOKEN;
use support::events::record;
use support::process::Signal;
use support::raw::{Raw, claim_request, status};
use support::signing::Signed;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, SOON, Snapshot, claim_body, eventually, heavy, promised};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::dashboard::LiveStream;

/// Number of connections that send a head without a body: more than core's limit of concurrent requests.
const CROWD: usize = 4_200;
/// Maximum latency of a response that does not wait for anything.
const IMMEDIATE_MAX: Duration = Duration::from_secs(2);
/// Time for which core reads the rest of a rejected body.
const LINGER: Duration = Duration::from_secs(1);
/// Time limit of closing a connection whose head is not completed within 5 s.
const HEAD_MAX: Duration = Duration::from_secs(6);
/// Time limit of closing an idle connection, which takes 100 s.
const IDLE_MAX: Duration = Duration::from_secs(102);
/// Time limit of closing a connection whose peer does not read, which takes 20 s once the buffers are full.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// Core must end this long after SIGTERM (docs/operations.md).
const STOPPED_MAX: Duration = Duration::from_secs(15);

/// Returns a claim with a known key id and a fresh timestamp, but signed with another key.
fn forged(core: &Core) -> Signed {
    Signed { key: vec![7; 32], ..Signed::claim(core, "demo", "mallory", "k") }
}

/// Returns the heads of requests with a body, none of which has valid credentials.
fn unauthenticated_heads(core: &Core) -> Vec<(&'static str, SocketAddr, String)> {
    let bare = |path: &str, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: core\r\nContent-Type: application/json\r\n{more}Content-Length: 10\r\n\r\n"
        )
    };
    let wrong = "Authorization: Bearer a-token-that-no-caller-has-been-given\r\n";
    let forged = forged(core);
    let file = bare("/admin/v1/campaigns/demo/import", wrong).replacen("application/json", "text/csv", 1);
    vec![
        ("a claim without credentials", core.listen(), bare("/internal/v1/claims", "")),
        ("a claim with a different token", core.listen(), bare("/internal/v1/claims", wrong)),
        ("a claim with a different signature", core.listen(), forged.head(&forged.signature())),
        ("a batch with a different token", core.listen(), bare("/internal/v1/claims/batch", wrong)),
        ("a confirmation", core.listen(), bare("/internal/v1/claims/x/confirm", "")),
        ("a new campaign", core.admin_listen(), bare("/admin/v1/campaigns", "")),
        (
            "units added with a different token",
            core.admin_listen(),
            bare("/admin/v1/campaigns/demo/add", wrong),
        ),
        ("an import", core.admin_listen(), file),
    ]
}

#[tokio::test]
async fn an_unauthenticated_caller_is_rejected_before_its_body() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    for (what, address, head) in unauthenticated_heads(&core) {
        let (mut raw, began) = (Raw::connect(address).await, Instant::now());
        assert!(raw.send(head).await);
        let answer = raw.read_some().await;
        let took = began.elapsed();
        assert_eq!(status(&answer), Some(401), "{what}: {}", String::from_utf8_lossy(&answer));
        assert!(took < promised(IMMEDIATE_MAX), "{what}: answered after {took:?}");
    }
    // A valid token without a role gets 403.
    let viewer = "POST /admin/v1/campaigns HTTP/1.1\r\nHost: core\r\nContent-Type: application/json\r\nContent-Length: 10\r\n";
    let mut raw = Raw::connect(core.admin_listen()).await;
    raw.send(format!("{viewer}Authorization: Bearer {API_TOKEN}\r\n\r\n")).await;
    assert_eq!(status(&raw.read_some().await), Some(403));
}

/// A caller that sends its whole body before it reads must also get the response.
#[tokio::test]
async fn a_large_rejected_body_does_not_break_the_connection() {
    let core = Core::start().await;
    let body = "x".repeat(BATCH_BYTES_MAX);
    let head = format!(
        "POST /internal/v1/claims/batch HTTP/1.1\r\nHost: core\r\nContent-Type: application/json\r\n\
         Authorization: Bearer a-token-that-no-caller-has-been-given\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let (first_half, second_half) = body.split_at(body.len() / 2);
    let (mut raw, mut previous) = (Raw::connect(core.listen()).await, Instant::now());
    let (mut round, mut reconnects) = (0, 0);
    while round < 20 {
        let began = Instant::now();
        let is_sent = raw.send(&head).await && raw.send(first_half).await;
        let answer = raw.read_some().await;
        let is_open = is_sent && raw.send(second_half).await;
        let is_complete = is_open && status(&answer) == Some(401);
        let may_be_stall = previous.elapsed() > LINGER && matches!(status(&answer), None | Some(401));
        if !is_complete && may_be_stall {
            // A stall delayed the rest of this body or the previous one, so core closed the connection.
            reconnects += 1;
            assert!(reconnects <= 20, "core closes each connection: {reconnects}, in round {round}");
            (raw, previous) = (Raw::connect(core.listen()).await, Instant::now());
            continue;
        }
        assert_eq!(status(&answer), Some(401), "in round {round}");
        assert!(is_open, "in round {round}");
        (round, previous) = (round + 1, began);
    }
}

/// Opens `count` connections that each send `head`, and nothing after it.
async fn crowd(address: SocketAddr, head: &str, count: usize) -> Vec<Raw> {
    let mut crowd = Vec::with_capacity(count);
    for _ in 0..count {
        let mut raw = Raw::connect(address).await;
        raw.send(head).await;
        crowd.push(raw);
    }
    crowd
}

/// Checks that claims with a token and with a signature are granted, the former without `overloaded`.
async fn assert_claims_continue(core: &Core, what: &str) {
    for number in 0..20 {
        let (user, began) = (format!("u{number}"), Instant::now());
        let reply = core.claim_once_available("demo", &user, what).await;
        assert!(reply.is_created(), "{what}: {}", reply.text());
        let reply = Signed::claim(core, "demo", &user, &format!("{what}-signed")).send(core).await;
        assert!(reply.is_created(), "{what}, signed: {}", reply.text());
        let took = began.elapsed();
        assert!(took < promised(2 * IMMEDIATE_MAX), "{what}: two claims took {took:?}");
    }
}

#[tokio::test]
async fn slow_unauthenticated_bodies_do_not_take_permits() {
    let core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "32").start().await;
    core.create("demo", json!({})).await;
    for (at, (_, address, head)) in unauthenticated_heads(&core).into_iter().enumerate() {
        let _crowd = crowd(address, &head, 100).await;
        assert_claims_continue(&core, &format!("k{at}")).await;
        core.admin_get("/admin/v1/campaigns/demo").await.expect(200);
    }
}

#[tokio::test]
async fn claims_continue_despite_thousands_of_slow_bodies() {
    let _turn = heavy().await;
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    let forged = forged(&core);
    let _crowd = crowd(core.listen(), &forged.head(&forged.signature()), CROWD).await;
    assert_claims_continue(&core, "k").await;
}

#[tokio::test]
async fn a_body_that_differs_from_the_signed_one_is_rejected() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let (redis, sql) = (core.redis().await, core.sql());
    let before = Snapshot::take(&redis, &sql, "demo").await;
    let signed = Signed::claim(&core, "demo", "alice", "k");
    let (signature, hash) = (signed.signature(), signed.body_hash());
    let more = Signed { body: signed.body.replace("\"quantity\":1", "\"quantity\":9"), ..signed.clone() };
    assert_ne!(more.body, signed.body);
    let other_key = Signed { idempotency_key: "other".to_owned(), ..signed.clone() };
    let none = Signed { body: String::new(), ..signed.clone() };
    let no_json = Signed { body: "{".repeat(signed.body.len()), ..signed.clone() };
    for (what, sent, signature, hash) in [
        ("a different body", &more, &signature, hash.clone()),
        ("a different body with its own hash", &more, &signature, more.body_hash()),
        ("no body", &none, &signature, hash.clone()),
        ("no JSON", &no_json, &signature, hash.clone()),
        ("a different key, signed", &other_key, &other_key.signature(), hash.clone()),
        ("a different key, not signed", &other_key, &signature, hash.clone()),
        ("an invalid hash", &signed, &signature, "AAAA".to_owned()),
        ("a hash in hexadecimal", &signed, &signature, "a".repeat(64)),
    ] {
        let reply = sent.send_with_hash(&core, signature, &hash).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (401, "unauthenticated"),
            "{what}: {}",
            reply.text()
        );
    }
    assert_eq!(Snapshot::take(&redis, &sql, "demo").await, before);
    signed.send(&core).await.expect(201);
}

#[tokio::test]
async fn edges_without_a_body_hash_use_separate_permits() {
    let core = CoreOptions::default().with("CLAIMGATE_CONCURRENCY_MAX", "32").start().await;
    core.create("demo", json!({})).await;
    Signed::claim(&core, "demo", "alice", "k").send_as_before(&core).await.expect(201);
    forged(&core).send_as_before(&core).await.refused(401, "unauthenticated");
    let forged = forged(&core);
    let hash = format!("X-Claimgate-Content-SHA256: {}\r\n", forged.body_hash());
    let head = forged.head(&forged.signature()).replacen(&hash, "", 1);
    // An unauthenticated caller can take only these permits, for 2 s; connecting may take a slow machine longer.
    let crowded = until_status(SOON, &[503], async || {
        let _crowd = crowd(core.listen(), &head, 100).await;
        Signed::claim(&core, "demo", "bob", "k").send_as_before(&core).await
    });
    crowded.await.refused(503, "overloaded");
    let _crowd = crowd(core.listen(), &head, 100).await;
    assert_claims_continue(&core, "k2").await;
    until_status(SOON, &[200, 201], async || {
        Signed::claim(&core, "demo", "bob", "k").send_as_before(&core).await
    })
    .await;
}

/// Claims on new connections until the response is not `unavailable`, which a slow core may give to any claim.
async fn claim_on_new_connection(core: &Core, user: &str) -> Option<u16> {
    eventually(SOON, || async {
        let mut raw = Raw::connect(core.listen()).await;
        raw.send(claim_request(&claim_body("demo", user, "k", 1).to_string())).await;
        let answer = raw.read_to_end().await;
        let text = String::from_utf8_lossy(&answer);
        let is_unavailable = text.contains(r#""code":"unavailable""#);
        if is_unavailable {
            record("/internal/v1/claims 503 unavailable");
        }
        holds(!is_unavailable, || text.to_string()).map(|()| status(&answer))
    })
    .await
}

/// Holds one connection open without credentials, and reopens it whenever it is closed, until the test ends.
async fn hold_connections_open(address: SocketAddr, head: String, number: usize) {
    loop {
        let mut raw = Raw::connect(address).await;
        match number % 3 {
            // Silent from the start, silent after one response, or half a head.
            0 => {}
            1 => {
                raw.send("GET /livez HTTP/1.1\r\nHost: core\r\n\r\n").await;
            }
            _ => {
                raw.send(&head[..head.len() / 2]).await;
            }
        }
        while !raw.read_some().await.is_empty() {}
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn claims_continue_with_more_connections_than_descriptors() {
    let _turn = heavy().await;
    let core = CoreOptions::default().with_descriptors(1024).start().await;
    core.create("demo", json!({})).await;
    let forged = forged(&core);
    let head = forged.head(&forged.signature());
    let besiegers: Vec<_> = (0..1500)
        .map(|number| tokio::spawn(hold_connections_open(core.listen(), head.clone(), number)))
        .collect();
    let until = Instant::now() + Duration::from_secs(6);
    let mut round = 0;
    while Instant::now() < until {
        let claims = (0..10).map(|number| {
            let (core, user) = (&core, format!("u{round}-{number}"));
            async move {
                let began = Instant::now();
                (claim_on_new_connection(core, &user).await, began.elapsed())
            }
        });
        for (status, took) in join_all(claims).await {
            assert!(matches!(status, Some(200 | 201)), "{status:?} in round {round}");
            assert!(took < promised(2 * IMMEDIATE_MAX), "a claim took {took:?} in round {round}");
        }
        round += 1;
    }
    for besieger in besiegers {
        besieger.abort();
    }
    assert!(!core.log().contains("cannot accept a connection"), "{}", core.log());
}

#[tokio::test]
async fn idle_connections_outlast_the_timeouts_of_clients() {
    let core = Core::start().await;
    let request = "GET /livez HTTP/1.1\r\nHost: core\r\n\r\n";
    let both = [core.listen(), core.admin_listen()].map(|address| async move {
        let mut raw = Raw::connect(address).await;
        // The connection is silent at first: client pools open some that they do not need immediately.
        for pause in [6, 0, 76] {
            sleep(Duration::from_secs(pause)).await;
            raw.send(request).await;
            let answer = raw.read_some().await;
            assert_eq!(status(&answer), Some(200), "after {pause} s");
        }
        // A partial head times out after 5 s, even on a reused connection.
        let began = Instant::now();
        raw.send(&request[..20]).await;
        raw.read_to_end().await;
        let took = began.elapsed();
        assert!(took.as_secs() >= 4 && took < promised(HEAD_MAX), "timed out after {took:?}, not 5 s");
    });
    let idle = [core.listen(), core.admin_listen()].into_iter().flat_map(|address| {
        ["", request].map(|request| async move {
            let began = Instant::now();
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            if !request.is_empty() {
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            }
            let read = timeout(promised(IDLE_MAX), stream.read(&mut [0; 4096])).await;
            let took = began.elapsed();
            assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?} after {took:?}");
            assert!(took.as_secs() >= 95, "closed after {took:?}, not 100 s");
        })
    });
    tokio::join!(join_all(both), join_all(idle));
}

/// Opens an event stream and never reads from it, like a watcher whose machine has vanished.
async fn stalled_watcher(core: &Core) -> TcpStream {
    let token = core.admin_token();
    let head = format!("GET /admin/v1/live HTTP/1.1\r\nHost: core\r\nAuthorization: Bearer {token}\r\n\r\n");
    stalled_caller(core, &head).await
}

/// Sends `requests` to the admin API on a connection with a small buffer, and reads the first status.
async fn stalled_caller(core: &Core, requests: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 1024).unwrap();
    let mut stream = socket.connect(core.admin_listen()).await.unwrap();
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

#[tokio::test]
async fn stalled_watchers_lose_their_slots() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    let mut stalled = Vec::new();
    for _ in 0..32 {
        stalled.push(stalled_watcher(&core).await);
    }
    let token = core.admin_token();
    let watch = async || LiveStream::request(&core, &token).await.status().as_u16();
    eventually(SOON, || async {
        let status = watch().await;
        holds(status == 503, || status.to_string())
    })
    .await;
    eventually(promised(STALLED_MAX), || async {
        let status = watch().await;
        holds(status == 200, || status.to_string())
    })
    .await;
}

/// As a Prometheus that is stopped, or whose network vanishes.
#[tokio::test]
async fn stalled_scrapers_stop_neither_claims_nor_a_shutdown() {
    let mut core = Core::start().await;
    core.create("demo", json!({})).await;
    // The responses are larger than all buffers between core and a scraper.
    let requests = "GET /metrics HTTP/1.1\r\nHost: core\r\n\r\n".repeat(1000);
    let mut stalled = Vec::new();
    for _ in 0..8 {
        stalled.push(stalled_caller(&core, &requests).await);
    }
    for user in 0..50 {
        core.claim("demo", &format!("u{user}"), "k").await.expect(201);
    }
    assert!(
        core.metric::<f64>("claimgate_up{part=\"redis\"}").await.is_some(),
        "another scraper gets an answer"
    );
    core.process().signal(Signal::TERM);
    let status = core.process().wait(promised(STOPPED_MAX)).await;
    assert!(status.success(), "core ended with {status} on SIGTERM:\n{}", core.log());
}
