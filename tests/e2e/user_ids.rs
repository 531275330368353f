//! One user never gets two allowances: a change of user ids on a live campaign is rejected, and the error names it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::core_client::campaign;
use support::postgres::Postgres;
use support::signing::{Signed, claim_id};
use support::times::from_now;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, Reply, SOON, claim_body, eventually, promised};

use crate::command_line::{run, run_against};

/// Time limit for another core to observe a change: core polls SQL once per second.
const FOLLOWED_MAX: Duration = Duration::from_secs(2);
/// The schemes of edges whose settings differ in one value each, as the tests in `shared/src/user_id.rs` derive them.
const PINNED: &str = "hmac:VR1TK4";
const OTHERS: [(&str, &str); 4] = [
    ("another form", "verbatim:VR1TK4"),
    ("another claim", "hmac:PBjTMm"),
    ("another issuer", "hmac:aaaaaa"),
    ("another key", "hmac:bbbbbb"),
];
/// An id of [`PINNED`].
const ALICE: &str = "VR1TK4_EOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs";
const BOB: &str = "VR1TK4_BOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs";

/// A claim by an edge whose user ids are of `user_ids`; empty for an edge of an earlier version.
async fn edge_claim(core: &Core, user_ids: &str, campaign: &str, user: &str, key: &str) -> Reply {
    let claim = Signed::claim(core, campaign, user, key);
    Signed { user_ids: user_ids.to_owned(), ..claim }.send(core).await
}

async fn edge_read(core: &Core, user_ids: &str, path: &str, user: &str) -> Reply {
    Signed { user_ids: user_ids.to_owned(), ..Signed::get(core, path, user) }.send(core).await
}

/// Starts a core with a live campaign and the scheme [`PINNED`].
async fn pinned() -> Core {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10, "per_user": 1})).await;
    edge_claim(&core, PINNED, "demo", ALICE, "k").await.expect(201);
    core
}

async fn taken(core: &Core) -> u64 {
    core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json()["taken"].as_u64().expect("taken")
}

async fn user_ids(core: &Core) -> Value {
    core.admin_get("/admin/v1/user-ids").await.expect(200).json()
}

async fn set(core: &Core, user_ids: &str) -> Reply {
    core.admin(Method::POST, "/admin/v1/user-ids", &json!({"user_ids": user_ids})).await
}

pub async fn import(core: &Core, campaign: &str, csv: &str) -> Reply {
    let url = core.admin_url(&format!("/admin/v1/campaigns/{campaign}/import"));
    let request = core.client().request(Method::POST, &url).header("Content-Type", "text/csv");
    core.client().send(request.bearer_auth(core.admin_token()).body(csv.to_owned())).await.expect("an answer")
}

#[tokio::test]
async fn an_edge_with_different_settings_gets_an_error_naming_both() {
    let core = pinned().await;
    assert_eq!(user_ids(&core).await["user_ids"], PINNED);
    let own = claim_id("demo", ALICE, "k");
    for (what, scheme) in OTHERS {
        for (user, key) in [(ALICE, "k"), (BOB, "k2"), ("alice", "k3")] {
            edge_claim(&core, scheme, "demo", user, key).await.refused(503, "user_ids_differ");
        }
        let look_up = format!("/internal/v1/claims/{own}");
        let refused = edge_read(&core, scheme, &look_up, ALICE).await.refused(503, "user_ids_differ");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains(scheme) && detail.contains(PINNED), "{what}: {detail}");
        let list = format!("/internal/v1/campaigns/demo/users/{ALICE}");
        edge_read(&core, scheme, &list, ALICE).await.refused(503, "user_ids_differ");
        let ready = core.get("/readyz").await.expect(200).json()["user_ids_differ"].to_string();
        assert!(ready.contains(scheme) && ready.contains(PINNED), "{what}: {ready}");
        core.until_logged(SOON, &["rejected a caller's user ids", scheme, PINNED]).await;
        assert_eq!(user_ids(&core).await["user_ids"], PINNED, "{what}");
    }
    assert_eq!(taken(&core).await, 1);
    edge_claim(&core, PINNED, "demo", ALICE, "k").await.expect(200);
    edge_read(&core, PINNED, &format!("/internal/v1/claims/{own}"), ALICE).await.expect(200);
    let sent = core.log().matches("rejected a caller's user ids").count();
    assert!(sent <= OTHERS.len() + 1, "{sent} lines for {} schemes", OTHERS.len());
}

#[tokio::test]
async fn the_error_for_a_verbatim_id_names_the_pinned_scheme() {
    let core = pinned().await;
    let refused = core.claim("demo", "alice", "k").await.refused(503, "user_ids_differ");
    assert!(refused.json()["detail"].as_str().unwrap().contains(PINNED));
    assert_eq!(refused.header("retry-after"), "", "a retry cannot help");
    let claims = [
        claim_body("demo", "alice", "b1", 1),
        claim_body("demo", BOB, "b2", 1),
        claim_body("demo", &ALICE[1..], "b3", 1),
    ];
    let results = core.claim_batch(&claims).await.expect(200).json();
    let codes: Vec<_> = (0..3).map(|at| results["results"][at]["body"]["code"].clone()).collect();
    assert_eq!(codes, [json!("user_ids_differ"), Value::Null, json!("user_ids_differ")], "{results}");
    let ports = [core.listen().to_string(), core.admin_listen().to_string()];
    let arguments = ["claim", "demo", "--user", "alice", "--listen", &ports[0], "--admin-listen", &ports[1]];
    let claim = run(&arguments, &[], core.data_dir().parent().unwrap()).await.ended(3);
    claim.one_line("user_ids_differ");
    assert_eq!(taken(&core).await, 2);
}

#[tokio::test]
async fn a_drill_of_core_uses_ids_of_the_pinned_scheme() {
    let core = pinned().await;
    let url = core.url("");
    let drill = run_against(&core, &["drill", &url, "--units", "20", "--users", "60", "--json"]).await;
    let report = drill.ended(0).json();
    assert_eq!((&report["passed"], &report["through"]), (&json!(true), &json!("core")), "{report:#}");
    let path = format!("/admin/v1/campaigns/{}/claims", report["campaign_id"].as_str().unwrap());
    let claims = core.admin_get(&path).await.expect(200).json();
    let user = claims["items"][0]["user_id"].as_str().unwrap();
    assert!(user.starts_with("VR1TK4_0000"), "{user}");
}

#[tokio::test]
async fn an_import_names_the_first_line_with_an_id_of_another_scheme() {
    let core = pinned().await;
    core.create_with(campaign("later", json!({"total": 10}))).await;
    core.set_admin_state("later", "pause").await.expect(200);
    let refused = import(&core, "later", &format!("user_id,quantity\n{ALICE},1\nalice,1\nbob,1\n")).await;
    let refused = refused.refused(503, "user_ids_differ").json();
    assert_eq!(refused["field"], "line 3", "{refused}");
    let imported = import(&core, "later", &format!("user_id,quantity\n{ALICE},1\n{BOB},2\n")).await;
    assert_eq!(imported.expect(200).json()["imported"], 2);
}

#[tokio::test]
async fn the_first_edge_cannot_rename_users_of_a_live_campaign() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10, "per_user": 1})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.sql().until("demo", 1).await;
    for key in ["e1", "e2"] {
        let refused = edge_claim(&core, PINNED, "demo", ALICE, key).await.refused(503, "user_ids_differ");
        assert!(refused.json()["detail"].as_str().unwrap().contains("campaign demo"));
    }
    assert_eq!(user_ids(&core).await["user_ids"], Value::Null);
    edge_claim(&core, "verbatim:VRBHvs", "demo", "bob", "k").await.expect(201);
    assert_eq!(user_ids(&core).await["user_ids"], "verbatim:VRBHvs");
}

/// The claim under the other id may still be in the outbox when the edge claims.
#[tokio::test]
async fn no_edge_claims_beside_claims_that_sql_may_lack() {
    let core = Core::start().await;
    for campaign in ["first", "second"] {
        core.create(campaign, json!({"total": 10, "per_user": 1})).await;
        core.claim(campaign, "alice", "k").await.expect(201);
        eventually(SOON, || async {
            let reply = edge_claim(&core, PINNED, campaign, ALICE, "k").await;
            assert_eq!(reply.status, 503, "{}", reply.text());
            holds(reply.code() == "user_ids_differ" && reply.text().contains(campaign), || reply.text())
        })
        .await;
        let shown = core.admin_get(&format!("/admin/v1/campaigns/{campaign}")).await.expect(200).json();
        assert_eq!(shown["taken"], 1, "{shown}");
        core.set_admin_state(campaign, "end").await.expect(200);
        if user_ids(&core).await["user_ids"] == PINNED {
            break;
        }
    }
    core.create("next", json!({"total": 10})).await;
    eventually(SOON, || async {
        let reply = edge_claim(&core, PINNED, "next", ALICE, "k").await;
        holds([200, 201].contains(&reply.status), || reply.text())
    })
    .await;
}

/// Repeated claims do not prolong the rejection.
#[tokio::test]
async fn an_edge_may_claim_once_campaigns_with_other_ids_have_ended() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    core.create("next", json!({"total": 10})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.sql().until("demo", 1).await;
    edge_claim(&core, PINNED, "next", ALICE, "k").await.refused(503, "user_ids_differ");
    core.set_admin_state("demo", "end").await.expect(200);
    eventually(SOON, || async {
        let reply = edge_claim(&core, PINNED, "next", ALICE, "k").await;
        holds([200, 201].contains(&reply.status), || reply.text())
    })
    .await;
}

#[tokio::test]
async fn edges_that_send_no_scheme_keep_working() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 10})).await;
    edge_claim(&core, "", "demo", "alice", "k").await.expect(201);
    assert_eq!(user_ids(&core).await["user_ids"], Value::Null, "it pins nothing");
    edge_claim(&core, "verbatim:VRBHvs", "demo", "bob", "k").await.expect(201);
    edge_claim(&core, "", "demo", "alice", "k").await.expect(200);
    let own = claim_id("demo", "alice", "k");
    edge_read(&core, "", &format!("/internal/v1/claims/{own}"), "alice").await.expect(200);
    edge_claim(&core, "verbatim:other1", "demo", "bob", "k").await.refused(503, "user_ids_differ");
    let pinned = pinned().await;
    edge_claim(&pinned, "", "demo", "alice", "k").await.refused(503, "user_ids_differ");
}

#[tokio::test]
async fn user_ids_change_only_while_all_campaigns_are_over() {
    let mut core = pinned().await;
    let mut soon_over = campaign("short", json!({"total": 10}));
    soon_over["ends_at"] = json!(from_now(3600));
    core.create_with(soon_over).await;
    set(&core, "hmac:PBjTMm").await.refused(409, "campaign_open");
    core.set_admin_state("demo", "end").await.expect(200);
    let refused = set(&core, "hmac:PBjTMm").await.refused(409, "campaign_open");
    assert!(refused.json()["detail"].as_str().unwrap().contains("short"));
    core.patch("short", json!({"ends_at": from_now(-1)})).await.expect(200);
    let changed = set(&core, "hmac:PBjTMm").await.expect(200).json();
    assert_eq!((&changed["user_ids"], &changed["refused"]), (&json!("hmac:PBjTMm"), &Value::Null));
    let reopened = core.patch("short", json!({"ends_at": from_now(3600)})).await;
    reopened.refused(409, "campaign_ended");
    // A claim of an earlier campaign is found under its former id only.
    let own = claim_id("demo", ALICE, "k");
    edge_read(&core, PINNED, &format!("/internal/v1/claims/{own}"), ALICE)
        .await
        .refused(503, "user_ids_differ");
    core.look_up(&own).await.expect(200);
    core.create("next", json!({"total": 10})).await;
    edge_claim(&core, PINNED, "next", ALICE, "k").await.refused(503, "user_ids_differ");
    core.claim("next", ALICE, "k").await.refused(503, "user_ids_differ");
    core.stop().await;
    let core = core.restart().await;
    edge_claim(&core, PINNED, "next", ALICE, "k").await.refused(503, "user_ids_differ");
    edge_claim(&core, "hmac:PBjTMm", "next", &ALICE.replace("VR1TK4", "PBjTMm"), "k").await.expect(201);
    let audit = core.admin_get("/admin/v1/audit").await.expect(200).json();
    let items: Vec<_> = audit["items"].as_array().unwrap().iter().collect();
    let of = |what: &str| {
        items.iter().find(|item| item["what"] == what).map(|item| (*item).clone()).expect("an entry")
    };
    let (pin, set) = (of("user_ids_pin"), of("user_ids_set"));
    assert_eq!((&pin["who"], &pin["after"]), (&json!("edge"), &json!({"user_ids": PINNED})));
    assert_eq!((&set["who"], &set["before"]), (&json!("admin"), &json!({"user_ids": PINNED})));
    assert_eq!(set["campaign_id"], Value::Null);
}

/// A change that leaves a campaign over must not make a later one possible that opens it.
#[tokio::test]
async fn a_campaign_of_a_former_scheme_cannot_be_reopened() {
    let core = pinned().await;
    core.patch("demo", json!({"ends_at": from_now(-2)})).await.expect(200);
    set(&core, "hmac:PBjTMm").await.expect(200);
    let open = json!({"ends_at": from_now(3600)});
    core.patch("demo", open.clone()).await.refused(409, "campaign_ended");
    core.patch("demo", json!({"name": "renamed"})).await.expect(200);
    core.patch("demo", open.clone()).await.refused(409, "campaign_ended");
    core.set_admin_state("demo", "pause").await.expect(200);
    core.patch("demo", open.clone()).await.refused(409, "campaign_ended");
    core.set_admin_state("demo", "resume").await.expect(200);
    let body = json!({"units": 5, "idempotency_key": "more"});
    core.admin(Method::POST, "/admin/v1/campaigns/demo/add", &body).await.expect(200);
    core.patch("demo", json!({"ends_at": null})).await.refused(409, "campaign_ended");
    core.patch("demo", json!({"starts_at": from_now(-9), "ends_at": from_now(-3)})).await.expect(200);
    let refused = core.patch("demo", open).await.refused(409, "campaign_ended");
    assert!(refused.json()["detail"].as_str().unwrap().contains("create a new campaign"));
    assert_eq!(core.campaign("demo").await["state"], "ended");
}

#[tokio::test]
async fn a_malformed_or_altered_scheme_is_rejected() {
    let core = pinned().await;
    for bad in ["hmac:VR1TK", "VR1TK4", "HMAC:VR1TK4", "pass:shown"] {
        edge_claim(&core, bad, "demo", ALICE, "k").await.refused(401, "unauthenticated");
    }
    // Removed or changed in transit.
    let signed = Signed { user_ids: PINNED.to_owned(), ..Signed::claim(&core, "demo", ALICE, "k") };
    for user_ids in ["", "hmac:PBjTMm"] {
        let sent = Signed { user_ids: user_ids.to_owned(), ..signed.clone() };
        sent.send_signed(&core, &signed.signature()).await.refused(401, "unauthenticated");
    }
}

#[tokio::test]
async fn the_command_line_shows_sets_and_computes_user_ids() {
    let core = pinned().await;
    let directory = core.data_dir();
    let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
    let environment = [
        ("CLAIMGATE_LISTEN", listen.as_str()),
        ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
        ("CLAIMGATE_DATA_DIR", directory.to_str().unwrap()),
    ];
    let shown = run(&["user-ids"], &environment, &directory).await.ended(0);
    assert!(shown.out.contains(PINNED), "{shown:?}");
    run(&["user-ids", "set", "hmac:PBjTMm"], &environment, &directory).await.ended(2).one_line("--yes");
    let live = run(&["user-ids", "set", "hmac:PBjTMm", "--yes"], &environment, &directory).await.ended(1);
    live.one_line("campaign_open");
    run(&["user-ids", "set", "PBjTMm", "--yes"], &environment, &directory).await.ended(2);
    core.set_admin_state("demo", "end").await.expect(200);
    let set =
        run(&["user-ids", "set", "hmac:PBjTMm", "--yes", "--json"], &environment, &directory).await.ended(0);
    assert_eq!(set.json()["user_ids"], "hmac:PBjTMm");

    let secret = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
    let file = directory.join("user-id.key");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let id = ["user-id", "auth0|6512ab", "--issuer", "https://example.eu.auth0.com/"];
    for key in [("CLAIMGATE_USER_ID_KEY", secret), ("CLAIMGATE_USER_ID_KEY_FILE", file.to_str().unwrap())] {
        assert_eq!(run(&id, &[key], &directory).await.ended(0).out.trim(), ALICE);
    }
    run(&id, &[], &directory).await.ended(2).one_line("CLAIMGATE_USER_ID_KEY");
    let verbatim = run(&["user-id", "alice", "--form", "verbatim", "--json"], &[], &directory).await.ended(0);
    assert_eq!(verbatim.json(), json!({"user_id": "alice", "user_ids": "verbatim:VRBHvs"}));
    let bad = run(&["user-id", "auth0|6512ab", "--form", "verbatim"], &[], &directory).await.ended(2);
    bad.one_line("must be 1 to 64 characters");
}

/// A crowd's first claims, with two concurrent schemes, pin one of them.
#[tokio::test]
async fn concurrent_first_claims_pin_one_scheme() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 100})).await;
    let core = &core;
    let claims = (0..40).map(|number| async move {
        let scheme = if number % 2 == 0 { PINNED } else { "hmac:PBjTMm" };
        let user = format!("{}_{:043}", &scheme[5..], number);
        (scheme, edge_claim(core, scheme, "demo", &user, "k").await)
    });
    let replies = futures_util::future::join_all(claims).await;
    let pinned = user_ids(core).await["user_ids"].clone();
    for (scheme, reply) in replies {
        if json!(scheme) == pinned {
            reply.expect(201);
        } else {
            reply.refused(503, "user_ids_differ");
        }
    }
    assert_eq!(taken(core).await, 20);
}

/// A core never takes a claim on a campaign by user ids that were changed before the campaign was created.
#[tokio::test]
async fn another_core_follows_a_change_before_new_campaigns() {
    const TEST: &str = "another_core_follows_a_change_before_new_campaigns";
    let Some(postgres) = available(TEST, Postgres::start().await) else { return };
    let (url, redis) = (postgres.database("claimgate").await, RedisServer::start().await);
    let options =
        CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url).with("CLAIMGATE_REDIS_URL", redis.url());
    let [first, second] = [options.clone().start().await, options.start().await];
    first.create("demo", json!({"total": 10})).await;
    edge_claim(&first, PINNED, "demo", ALICE, "k").await.expect(201);
    // Until then, the other core decides no claim for an id of another form.
    eventually(promised(FOLLOWED_MAX), || async {
        let reply = second.once().claim("demo", "bob", "k").await;
        assert_eq!(reply.status, 503, "{}", reply.text());
        holds(reply.code() == "user_ids_differ", || reply.text())
    })
    .await;
    assert_eq!(user_ids(&second).await["user_ids"], PINNED);
    edge_claim(&second, "hmac:PBjTMm", "demo", ALICE, "k").await.refused(503, "user_ids_differ");
    first.set_admin_state("demo", "end").await.expect(200);
    let schemes = ["hmac:PBjTMm", PINNED];
    for round in 0..10 {
        let (now, before) = (schemes[round % 2], schemes[(round + 1) % 2]);
        set(&first, now).await.expect(200);
        let campaign = format!("round-{round}");
        first.create(&campaign, json!({"total": 10})).await;
        let id = |scheme: &str| ALICE.replace("VR1TK4", &scheme["hmac:".len()..]);
        let other = edge_claim(&second, before, &campaign, &id(before), "k").await;
        other.refused(503, "user_ids_differ");
        edge_claim(&second, now, &campaign, &id(now), "k").await.expect(201);
        first.set_admin_state(&campaign, "end").await.expect(200);
    }
}
