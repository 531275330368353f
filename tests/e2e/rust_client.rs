//! Tests the crate `claimgate-client` against a real core: claims with lost responses are retried and count
//! once.

use std::time::{Duration, Instant};

use claimgate_client::{
    Admin, ChangesFilter, ClaimCall, ClaimsFilter, Error, Internal, NewCampaign, RETRY_TIMEOUT, random_key,
};
use claimgate_shared::admin::codes::CodeCounts;
use claimgate_shared::{CampaignId, ClaimRequest, ClaimStatus, Code, Limits, Quantity};
use serde_json::{Value, json};
use support::lossy_proxy::LossyProxy;
use support::process::free_address;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually, promised};

use crate::command_line::run_against;

fn internal(core: &Core) -> Internal {
    Internal::new(&core.url(""), &core.admin_token()).unwrap()
}

fn admin(core: &Core) -> Admin {
    Admin::new(&core.admin_url(""), &core.admin_token()).unwrap()
}

fn call(campaign: &str, user: &str) -> ClaimCall {
    ClaimCall::new(campaign.parse().unwrap(), user.parse().unwrap(), Quantity::ONE).unwrap()
}

fn new_campaign(id: &CampaignId, total: u32) -> NewCampaign {
    NewCampaign {
        id: id.clone(),
        name: "Tickets".to_owned(),
        starts_at: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        ends_at: None,
        time_zone: "Asia/Shanghai".to_owned(),
        limits: Limits { total: Some(total), ..Limits::default() },
        hold_seconds: None,
        pass: None,
        codes: false,
    }
}

/// The steps of the example in the crate's documentation.
#[tokio::test]
async fn a_claim_is_made_replayed_and_denied_by_code() {
    let core = Core::start().await;
    core.create("tickets", json!({"total": 1})).await;
    let shop = internal(&core);
    let mut alice = call("tickets", "alice");
    let answer = shop.claim(&mut alice).await.unwrap();
    assert!(!answer.replayed);
    let reply = answer.read().unwrap();
    assert_eq!((reply.claim.id.clone(), reply.remaining), (alice.claim_id(), Some(0)));
    let again = shop.claim(&mut ClaimCall::retry(alice.request().clone())).await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.read().unwrap().claim, reply.claim);

    let refused = shop.claim(&mut call("tickets", "bob")).await.unwrap_err();
    assert!(refused.is(Code::SoldOut) && refused.retry_after().is_none(), "{refused}");
    assert_eq!(refused.problem().unwrap().json["limit"], "total");
    let other = ClaimRequest { quantity: Quantity::try_from(2).unwrap(), ..alice.request().clone() };
    assert!(shop.claim(&mut ClaimCall::retry(other)).await.unwrap_err().is(Code::IdempotencyKeyReused));

    let given = shop.return_claim(&alice.claim_id()).await.unwrap().read().unwrap();
    assert_eq!(given.claim.status, ClaimStatus::Returned);
    let left = shop.user_claims(&"tickets".parse().unwrap(), &"bob".parse().unwrap()).await.unwrap();
    assert_eq!(left.read().unwrap().allowance.total, Some(1));
}

#[tokio::test]
async fn a_lost_answer_is_retried_unmarked_for_the_same_claim() {
    let core = Core::start().await;
    core.create("tickets", json!({"total": 10})).await;
    let proxy = LossyProxy::to(core.listen());
    let shop = Internal::new(&format!("http://{}", proxy.listen), &core.admin_token()).unwrap();
    proxy.lose_answers(2);
    let mut alice = call("tickets", "alice");
    let answer = shop.claim(&mut alice).await.unwrap();
    assert!(answer.replayed, "the first try was decided, but its answer was lost");
    assert_eq!(answer.read().unwrap().claim.id, alice.claim_id());
    assert_eq!(core.sql().until("tickets", 1).await.len(), 1);
    let sent: String = proxy.requests_with(alice.request().idempotency_key.as_str()).concat().to_lowercase();
    assert_eq!(sent.matches("claimgate-attempt").count(), 1, "only the first try is marked: {sent}");
    // A slow core may answer 503, which is retried too.
    let count = sent.matches("post /internal/v1/claims").count();
    assert!((3..=4).contains(&count), "sent {count} times: {sent}");
}

/// The proxy loses the first response to each call; the call has taken effect.
#[tokio::test]
async fn only_calls_that_are_safe_to_retry_are_retried() {
    let receiver = format!("http://{}", free_address());
    let core = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &receiver).start().await;
    let (proxy, admin_proxy) = (LossyProxy::to(core.listen()), LossyProxy::to(core.admin_listen()));
    let shop = Internal::new(&format!("http://{}", proxy.listen), &core.admin_token()).unwrap();
    let admin = Admin::new(&format!("http://{}", admin_proxy.listen), &core.admin_token()).unwrap();
    let id: CampaignId = "tickets".parse().unwrap();
    let new = new_campaign(&id, 5);
    let key = random_key().unwrap();
    let lose = || admin_proxy.lose_answers(1);

    lose();
    assert_eq!(admin.create(&new).await.unwrap().json["version"], 1);
    lose();
    let added = admin.add(&id, 3, &key).await.unwrap();
    assert_eq!((added.replayed, added.read().unwrap().campaign.limits.total), (true, Some(8)));
    lose();
    assert_eq!(admin.pause(&id).await.unwrap().json["state"], "paused");
    lose();
    let past = b"user_id,quantity\nzoe,1\n".to_vec();
    assert_eq!(admin.import(&id, past).await.unwrap().json, json!({"imported": 0, "already": 1}));
    lose();
    assert_eq!(admin.resume(&id).await.unwrap().json["state"], "open");
    lose();
    assert_eq!(admin.set_replicas(0).await.unwrap().json["replicas_min"], 0);
    let alice = shop.claim(&mut call("tickets", "alice")).await.unwrap().read().unwrap().claim.id;
    proxy.lose_answers(1);
    assert_eq!(shop.confirm(&alice).await.unwrap().read().unwrap().claim.status, ClaimStatus::Granted);
    proxy.lose_answers(1);
    assert_eq!(shop.extend(&alice).await.unwrap().read().unwrap().claim.status, ClaimStatus::Granted);
    proxy.lose_answers(1);
    assert_eq!(shop.return_claim(&alice).await.unwrap().read().unwrap().claim.status, ClaimStatus::Returned);
    lose();
    assert_eq!(admin.repair(&id).await.unwrap().json["agrees"], true);

    lose();
    let error = admin.create_webhook(&receiver, None).await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { sent: true, .. }), "{error}");
    let webhooks = admin.webhooks().await.unwrap().json;
    assert_eq!(webhooks.as_array().map(Vec::len), Some(1), "{webhooks}");
    let webhook = webhooks[0]["id"].as_str().unwrap();
    lose();
    admin.rotate_webhook_secret(webhook).await.unwrap_err();
    lose();
    assert_eq!(admin.end(&id).await.unwrap().json["state"], "ended");
    let times = |call: &str| admin_proxy.requests_with(call).len();
    assert_eq!(times("POST /admin/v1/webhooks HTTP"), 1);
    assert_eq!(times("/rotate-secret HTTP"), 1);
    for repeated in
        ["/campaigns HTTP", "/add HTTP", "/pause HTTP", "/import HTTP", "/resume HTTP", "/end HTTP"]
    {
        // A slow core may answer 503, which is retried too.
        let count = times(repeated);
        assert!((2..=3).contains(&count), "{repeated}: sent {count} times");
    }
}

#[tokio::test]
async fn the_error_for_an_unreachable_core_names_its_address() {
    let nowhere = free_address().to_string();
    let shop = Internal::new(&format!("http://{nowhere}"), "any").unwrap();
    let began = Instant::now();
    let error = shop.claim(&mut call("tickets", "alice")).await.unwrap_err();
    assert!(
        matches!(&error, Error::NoAnswer { address, sent: false, .. } if address.contains(&nowhere)),
        "{error}"
    );
    let took = began.elapsed();
    assert!(took > RETRY_TIMEOUT / 2 && took < promised(RETRY_TIMEOUT + Duration::from_secs(5)), "{took:?}");
}

#[tokio::test]
async fn an_admin_creates_changes_lists_and_ends_campaigns() {
    let core = Core::start().await;
    let admin = admin(&core);
    let id: CampaignId = "tickets".parse().unwrap();
    let new = new_campaign(&id, 2);
    let made = admin.create(&new).await.unwrap().read().unwrap();
    assert_eq!((made.campaign.time_zone.as_str(), made.campaign.limits), ("Asia/Shanghai", new.limits));
    let key = random_key().unwrap();
    for replayed in [false, true] {
        let added = admin.add(&id, 3, &key).await.unwrap();
        assert_eq!((added.replayed, added.read().unwrap().campaign.limits.total), (replayed, Some(5)));
    }
    let stale = admin.change(&id, &json!({"version": 1, "name": "Late"})).await.unwrap_err();
    assert!(stale.is(Code::VersionConflict), "{stale}");
    let named = admin.change(&id, &json!({"version": 2, "name": "New"})).await.unwrap().read().unwrap();
    assert_eq!(named.campaign.name, "New");

    for user in ["alice", "bob"] {
        internal(&core).claim(&mut call("tickets", user)).await.unwrap();
    }
    core.sql().until("tickets", 2).await;
    assert_eq!(admin.claims(&id, ClaimsFilter::default()).await.unwrap().read().unwrap().len(), 2);
    let bob = "bob".parse().unwrap();
    let granted = ClaimsFilter { user: Some(&bob), status: Some(ClaimStatus::Granted), codes: false };
    let bobs = admin.claims(&id, granted).await.unwrap();
    assert_eq!(bobs.read().unwrap()[0].user_id, "bob");
    assert_eq!(admin.campaigns().await.unwrap().read().unwrap().len(), 1);
    let audit = admin.audit(Some(&id)).await.unwrap().json;
    let what: Vec<_> = audit.as_array().unwrap().iter().map(|item| item["what"].clone()).collect();
    assert_eq!(what, ["create", "add", "update"]);
    assert_eq!(admin.end(&id).await.unwrap().json["state"], "ended");
    assert!(admin.campaign(&"none".parse().unwrap()).await.unwrap_err().is(Code::CampaignNotFound));
}

/// The feed has codes only on request: through the client, and on the command line.
#[tokio::test]
async fn codes_are_added_counted_looked_up_listed_and_followed() {
    let core = Core::start().await;
    let (admin, shop) = (admin(&core), internal(&core));
    let id: CampaignId = "coupons".parse().unwrap();
    admin.create(&NewCampaign { codes: true, ..new_campaign(&id, 0) }).await.unwrap();
    let added = admin.add_codes(&id, b"SAVE-1\nSAVE-2\n".to_vec()).await.unwrap().read().unwrap();
    // A slow core may answer 503, and the retry finds the codes.
    assert_eq!(added.added + added.already, 2);
    let version = admin.campaign(&id).await.unwrap().read().unwrap().campaign.version;
    admin.change(&id, &json!({"version": version, "limits": {"total": 2}})).await.unwrap();

    let alice = shop.claim(&mut call("coupons", "alice")).await.unwrap().read().unwrap().claim.id;
    let expected = json!(["SAVE-1"]);
    eventually(SOON, || async {
        let found = shop.look_up(&alice).await.unwrap().json;
        holds(found["claim"]["codes"] == expected, || found.to_string())
    })
    .await;
    let counts = admin.codes(&id).await.unwrap().read().unwrap();
    assert_eq!(counts, CodeCounts { added: 2, assigned: 1, claims_pending: 0 });
    for codes in [true, false] {
        let wanted = if codes { expected.clone() } else { Value::Null };
        let claims = admin.claims(&id, ClaimsFilter { codes, ..ClaimsFilter::default() }).await.unwrap().json;
        assert_eq!(claims[0]["codes"], wanted, "{claims}");
        let filter = ChangesFilter { campaign: Some(&id), codes, ..ChangesFilter::default() };
        let changes = admin.changes(None, filter).await.unwrap().json;
        assert_eq!(changes["items"][0]["claim"]["codes"], wanted, "{changes}");
        // A change may be delivered more than once.
        let words = ["changes", "--limit", "1", "--codes"];
        let words = if codes { &words[..] } else { &words[..3] };
        let line = run_against(&core, words).await.ended(0).json();
        assert_eq!(line["claim"]["codes"], wanted, "{line}");
    }
}
