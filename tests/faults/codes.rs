//! Campaigns with codes: every granted claim has its own codes, no code has two claims, and a code once shown
//! stays that winner's, whatever fails.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::core_client::campaign;
use support::inspect::key;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

/// A claim's codes by the claim's id.
pub type Shown = BTreeMap<String, Vec<String>>;

/// Returns a file with the codes of these numbers.
pub fn file(numbers: std::ops::Range<u32>) -> String {
    numbers.fold(String::new(), |mut file, number| {
        writeln!(file, "SAVE-{number:06}").unwrap();
        file
    })
}

/// Adds codes.
pub async fn add(core: &Core, file: &str) -> Reply {
    core.add_codes("demo", file).await
}

/// Returns the counts of codes and of claims without codes.
pub async fn counts(core: &Core) -> Value {
    core.admin_get("/admin/v1/campaigns/demo/codes").await.expect(200).json()
}

/// Checks the numbers in an upload's response. A repeated upload finds the codes that its first call added.
fn check_added(upload: Reply, added: u32, already: u32) {
    let upload = upload.expect(200);
    let answer = upload.json();
    if upload.repeats == 0 {
        assert_eq!(answer, json!({"added": added, "already": already}));
    }
    let count = |name: &str| answer[name].as_u64().expect("a number");
    assert_eq!(count("added") + count("already"), u64::from(added + already), "{answer}");
}

fn with_codes(limits: Value) -> Value {
    let mut body = campaign("demo", limits);
    body["codes"] = json!(true);
    body
}

/// Creates a campaign with `codes` codes and as many units.
pub async fn create(core: &Core, codes: u32) {
    core.create_with(with_codes(json!({"total": 0}))).await;
    check_added(add(core, &file(0..codes)).await, codes, 0);
    assert_eq!(counts(core).await["added"], codes);
    core.patch("demo", json!({"limits": {"total": codes}})).await.expect(200);
}

/// Makes a claim, and returns its id.
pub async fn won(core: &Core, user: &str, quantity: u32) -> String {
    let won =
        until_status(SOON, &[200, 201], async || core.claim_units("demo", user, "k", quantity).await).await;
    won.json()["claim"]["id"].as_str().expect("an id").to_owned()
}

/// Returns the claim's codes as its owner sees them now.
pub async fn look_up(core: &Core, id: &str) -> Vec<String> {
    let found = until_status(SOON, &[200], async || core.look_up(id).await).await.json();
    let codes = found["claim"]["codes"].as_array().unwrap_or_else(|| panic!("no codes in {found}")).clone();
    codes.iter().map(|code| code.as_str().expect("a code").to_owned()).collect()
}

/// Waits until the claim has `quantity` codes, and returns them.
pub async fn codes_of(core: &Core, id: &str, quantity: usize) -> Vec<String> {
    eventually(SOON, || async {
        let codes = look_up(core, id).await;
        if codes.len() == quantity { Ok(codes) } else { Err(format!("{id} has {} codes", codes.len())) }
    })
    .await
}

/// Returns the codes of all granted claims as an admin reads them, once each unit has one.
async fn all(core: &Core) -> Shown {
    eventually(SOON, || async {
        let page =
            core.admin_get("/admin/v1/campaigns/demo/claims?codes=true&limit=1000&status=granted").await;
        let mut shown = Shown::new();
        for item in page.expect(200).json()["items"].as_array().expect("items") {
            let codes: Vec<String> = serde_json::from_value(item["codes"].clone()).expect("codes");
            let quantity = item["quantity"].as_u64().expect("a number");
            holds(codes.len() as u64 == quantity, || {
                format!("a claim of {quantity} has {} codes", codes.len())
            })?;
            shown.insert(item["id"].as_str().expect("an id").to_owned(), codes);
        }
        Ok(shown)
    })
    .await
}

/// Checks that no code has two claims, that each claim of `before` still has the codes that were shown, and
/// that no code is in core's log or metrics.
pub async fn judge(core: &Core, before: &Shown) -> Shown {
    let metrics = core.admin_get("/metrics").await.expect(200).text();
    assert!(![core.log(), metrics].concat().contains("SAVE-"), "a code was logged");
    let now = all(core).await;
    let mut codes: Vec<_> = now.values().flatten().collect();
    let count = codes.len();
    codes.sort();
    codes.dedup();
    assert_eq!(codes.len(), count, "a code has two claims");
    for (id, codes) in before {
        assert_eq!(now.get(id), Some(codes), "the codes of {id} differ from the codes shown before");
    }
    now
}

/// Makes a claim for each of `users`, and returns the codes that each was shown.
pub async fn shown_to(core: &Core, users: std::ops::Range<u32>) -> Shown {
    join_all(users.map(|user| async move {
        let quantity = 1 + user % 2;
        let id = won(core, &format!("u{user}"), quantity).await;
        let codes = codes_of(core, &id, quantity as usize).await;
        (id, codes)
    }))
    .await
    .into_iter()
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_granted_claim_has_its_own_codes() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 100).await;
        let shown = shown_to(core, 0..40).await;
        assert_eq!(shown.values().flatten().count(), 60);
        judge(core, &shown).await;
        let (id, codes) = shown.iter().next().expect("a claim");
        let user = id.split('.').nth(1).expect("a user");
        let listed = core.get(&format!("/internal/v1/campaigns/demo/users/{user}")).await.expect(200).json();
        assert_eq!(listed["items"][0]["codes"], json!(codes), "{listed}");
        let replayed = core.claim_units("demo", user, "k", u32::try_from(codes.len()).unwrap()).await;
        assert!(replayed.expect(200).json()["claim"].get("codes").is_none(), "a claim's answer has no codes");
        assert_eq!(counts(core).await, json!({"added": 100, "assigned": 60, "claims_pending": 0}));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_total_is_never_raised_beyond_the_codes() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        let post = async |body: Value| core.admin(Method::POST, "/admin/v1/campaigns", &body).await;
        post(with_codes(json!({"total": 1}))).await.refused(409, "codes_missing");
        post(with_codes(json!({}))).await.refused(400, "invalid_request");
        post(with_codes(json!({"total": 0, "per_claim": 1001}))).await.refused(400, "invalid_request");
        create(core, 3).await;
        assert_eq!(core.campaign("demo").await["limits"]["per_claim"], 1000);
        core.patch("demo", json!({"limits": {"per_claim": 1001}})).await.refused(400, "invalid_request");
        core.patch("demo", json!({"limits": {"total": 4}})).await.refused(409, "codes_missing");
        core.patch("demo", json!({"limits": {"total": null}})).await.refused(400, "invalid_request");
        let more = json!({"units": 1, "idempotency_key": "more"});
        core.admin(Method::POST, "/admin/v1/campaigns/demo/add", &more).await.refused(409, "codes_missing");
        // A code that is in the file twice: nothing is written.
        let twice =
            add(core, &format!("{}SAVE-000101\n", file(100..103))).await.refused(400, "invalid_request");
        assert_eq!(twice.json()["field"], "line 4", "{}", twice.text());
        assert!(!twice.text().contains("SAVE-"), "a problem must not contain a code");
        assert_eq!(counts(core).await["added"], 3);
        // The same file can be sent again.
        check_added(add(core, &file(0..5)).await, 2, 3);
        assert_eq!(counts(core).await["added"], 5);
        assert_eq!(add(core, &file(0..5)).await.expect(200).json(), json!({"added": 0, "already": 5}));
        core.admin(Method::POST, "/admin/v1/campaigns/demo/add", &more).await.expect(200);
        core.create("plain", json!({"total": 1})).await;
        let none = core.admin_get("/admin/v1/campaigns/plain/codes").await.expect(200).json();
        assert_eq!(none, json!({"added": 0, "assigned": 0, "claims_pending": 0}));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_beyond_the_codes_wait_for_new_ones() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 6).await;
        let shown = shown_to(core, 0..4).await;
        // The codes of returned claims are void, so the next claims have numbers without codes.
        for (id, _) in shown.iter().take(2) {
            core.transition(id, "return").await.expect(200);
        }
        let kept: Shown = shown.into_iter().skip(2).collect();
        let first = won(core, "late", 1).await;
        let second = won(core, "later", 2).await;
        fixture.relayed("demo").await;
        assert_eq!(counts(core).await, json!({"added": 6, "assigned": 9, "claims_pending": 2}));
        assert_eq!(look_up(core, &first).await, Vec::<String>::new());
        eventually(SOON, || async {
            let waiting = core.metric::<f64>("claimgate_claims_without_codes").await;
            holds(waiting == Some(2.0), || format!("{waiting:?}"))
        })
        .await;
        // Two codes are enough for the first claim only.
        check_added(add(core, &file(6..8)).await, 2, 0);
        assert_eq!(counts(core).await["added"], 8);
        codes_of(core, &first, 1).await;
        assert_eq!(look_up(core, &second).await, Vec::<String>::new());
        check_added(add(core, &file(8..9)).await, 1, 0);
        assert_eq!(counts(core).await["added"], 9);
        codes_of(core, &second, 2).await;
        judge(core, &kept).await;
        assert_eq!(counts(core).await["claims_pending"], 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_claim_gets_its_codes_when_it_is_confirmed() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        let mut body = with_codes(json!({"total": 0}));
        body["hold_seconds"] = json!(3600);
        core.create_with(body).await;
        add(core, &file(0..2)).await.expect(200);
        core.patch("demo", json!({"limits": {"total": 2}})).await.expect(200);
        let (bought, given_up) = (won(core, "ann", 1).await, won(core, "bob", 1).await);
        fixture.relayed("demo").await;
        let held = core.look_up(&bought).await.expect(200).json();
        assert!(held["claim"].get("codes").is_none(), "{held}");
        core.transition(&bought, "confirm").await.expect(200);
        core.transition(&given_up, "return").await.expect(200);
        codes_of(core, &bought, 1).await;
        assert_eq!(counts(core).await["assigned"], 1, "a claim that was never granted gets no code");
    }
}

/// A claim's codes are removed from Redis by hand: its owner sees none until the campaign is repaired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reconciliation_finds_codes_that_redis_lacks() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 10).await;
        let shown = shown_to(core, 0..4).await;
        agrees(&fixture).await;
        let (redis, codes) = (fixture.redis().await, key("demo", "codes"));
        let fields: Vec<Vec<u8>> = redis.query(&["HKEYS", &codes]).await;
        let digest = fields.into_iter().find(|field| field != b".");
        let mut remove = redis::cmd("HDEL");
        remove.arg(&codes).arg(digest.expect("a claim with codes"));
        assert_eq!(redis.run::<u64>(&remove).await, 1);
        let compared = fixture.reconciliation("demo").await;
        let found: Vec<_> = compared["differences"].as_array().expect("a list").iter().collect();
        assert!(found.len() == 1 && found[0]["name"] == "codes", "{compared}");
        let repair = "/admin/v1/campaigns/demo/reconciliation";
        until_status(SOON, &[200], async || core.admin_post(repair).await).await;
        agrees(&fixture).await;
        judge(core, &shown).await;
        for (id, codes) in &shown {
            assert_eq!(look_up(core, id).await, *codes);
        }
    }
}

/// A code that only SQL has could still be given to another claim, if SQL loses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codes_are_shown_from_redis_while_it_has_the_campaign() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 1).await;
        let id = won(core, "ann", 1).await;
        let shown = codes_of(core, &id, 1).await;
        fixture.sql.run("UPDATE codes SET code = 'OTHER'".to_owned()).await;
        assert_eq!(look_up(core, &id).await, shown);
    }
}

/// SQL loses the claims after their codes were shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_code_is_assigned_twice_if_sql_loses_claims() {
    let row = Row::begin("codes: SQL loses claims whose codes were shown");
    let mut survived = 0;
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 60).await;
        let before = shown_to(core, 0..5).await;
        fixture.sql.copy_tables().await;
        let mut shown = shown_to(core, 5..15).await;
        shown.extend(before);
        row.fault();
        fixture.sql.restore_tables().await;
        // Both a new claim and a new file meet the database that has lost them.
        let late = won(core, "late", 1).await;
        until_status(SOON, &[200], async || add(core, &file(50..70)).await).await;
        codes_of(core, &late, 1).await;
        survived += judge(core, &shown).await.len();
        agrees(&fixture).await;
    }
    row.passed(survived, "each winner kept the codes that were shown");
}

/// SQL loses an upload whose codes were shown to claims that had waited for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_code_is_assigned_twice_if_sql_loses_an_upload() {
    let row = Row::begin("codes: SQL loses an upload whose codes were shown");
    let mut survived = 0;
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 2).await;
        let first = won(core, "first", 2).await;
        codes_of(core, &first, 2).await;
        core.transition(&first, "return").await.expect(200);
        let waits = won(core, "waits", 1).await;
        fixture.relayed("demo").await;
        fixture.sql.copy_tables().await;
        until_status(SOON, &[200], async || add(core, &file(10..14)).await).await;
        let shown = Shown::from([(waits.clone(), codes_of(core, &waits, 1).await)]);
        row.fault();
        fixture.sql.restore_tables().await;
        // Upload another file to the database that lost the first upload, then repeat the first upload.
        until_status(SOON, &[200], async || add(core, &file(20..23)).await).await;
        until_status(SOON, &[200], async || add(core, &file(10..14)).await).await;
        until_status(SOON, &[200], async || core.patch("demo", json!({"limits": {"total": 6}})).await).await;
        for user in ["ann", "bob", "cleo", "dan"] {
            let id = won(core, user, 1).await;
            codes_of(core, &id, 1).await;
        }
        survived += judge(core, &shown).await.len();
        assert_eq!(counts(core).await["added"], 9);
    }
    row.passed(survived, "the winner kept the code that was shown, and no other claim got it");
}

/// Uploads `codes` while SQL loses the first part of them; returns the upload's response.
async fn upload_that_sql_forgets(row: &Row, fixture: &Fixture, codes: &str) -> Reply {
    let core = &fixture.core;
    create(core, 1).await;
    fixture.sql.copy_tables().await;
    let once = core.once();
    let upload = once.add_codes("demo", codes);
    let forget = async {
        eventually(SOON, || async {
            let added = counts(core).await["added"].as_u64().expect("a number");
            holds(added > 1, || "no part is added yet".to_owned())
        })
        .await;
        row.fault();
        fixture.sql.restore_tables().await;
    };
    let (reply, ()) = tokio::join!(upload, forget);
    reply
}

/// Checks that SQL has lost every part of an acknowledged upload: only the copied codes and those that were
/// shown are left, together at most `codes`. If SQL lost only some parts, core acknowledged an incomplete
/// upload.
async fn assert_lost_as_a_whole(core: &Core, codes: u64) {
    let counts = counts(core).await;
    let added = counts["added"].as_u64().expect("a number");
    assert!(added <= codes, "SQL lost only a part of an acknowledged upload: {counts}");
}

/// SQL loses the first part of a file while the rest is added. The upload must not be answered as complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_which_sql_forgets_a_part_is_not_acknowledged() {
    const UPLOADED: u32 = 200_000;
    let row = Row::begin("codes: SQL loses a part of a file while it is added");
    let codes = file(0..UPLOADED);
    // On a machine that stalls, an upload may be complete before SQL loses a part. A core that acknowledges
    // incomplete uploads does so in each of these rounds.
    for _ in 0..5 {
        let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
        let core = &fixture.core;
        let reply = upload_that_sql_forgets(&row, &fixture, &codes).await;
        if reply.status != 200 {
            reply.refused(503, "campaign_not_ready");
            assert!(counts(core).await["added"].as_u64().expect("a number") < u64::from(UPLOADED));
            let again = until_status(SOON, &[200], async || add(core, &codes).await).await.json();
            assert_eq!(counts(core).await["added"], UPLOADED, "{again}");
            return row.passed(2, "the upload was not acknowledged, and could be repeated");
        }
        assert_lost_as_a_whole(core, 1).await;
    }
    panic!("each upload was acknowledged");
}

/// What remains of an upload of which SQL has lost the first part.
struct ForgottenUpload {
    reply: Reply,
    /// The claim of which SQL has lost a code that was shown, and this code.
    first: (String, Vec<String>),
    shown: Shown,
}

/// Uploads codes while SQL loses the first part of them, after two claims that waited were shown their codes.
async fn upload_that_sql_forgets_once_shown(row: &Row, fixture: &Fixture) -> ForgottenUpload {
    let core = &fixture.core;
    create(core, 2).await;
    let returned = won(core, "returned", 2).await;
    codes_of(core, &returned, 2).await;
    core.transition(&returned, "return").await.expect(200);
    let waiting = [won(core, "first", 1).await, won(core, "second", 1).await];
    fixture.relayed("demo").await;
    fixture.sql.copy_tables().await;
    let (once, codes) = (core.once(), file(10..400_010));
    let upload = once.add_codes("demo", &codes);
    let forget = async {
        let [first, second] = &waiting;
        let first = codes_of(core, first, 1).await;
        let second = (second.clone(), codes_of(core, second, 1).await);
        row.fault();
        fixture.sql.restore_tables().await;
        (first, Shown::from([second]))
    };
    let (reply, (void, shown)) = tokio::join!(upload, forget);
    let [first, _] = waiting;
    ForgottenUpload { reply, first: (first, void), shown }
}

/// SQL loses the first part of a file while the rest is added, after claims that waited were shown its codes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_code_is_assigned_twice_if_sql_loses_part_of_an_upload() {
    let row = Row::begin("codes: SQL loses a part of a file whose codes were shown");
    // On a machine that stalls, an upload may be complete before SQL loses a part.
    for _ in 0..5 {
        let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
        let core = &fixture.core;
        let ForgottenUpload { reply, first: (first, void), shown } =
            upload_that_sql_forgets_once_shown(&row, &fixture).await;
        if reply.status != 200 {
            reply.refused(503, "campaign_not_ready");
            until_status(SOON, &[200], async || core.transition(&first, "return").await).await;
            fixture.relayed("demo").await;
            until_status(SOON, &[200], async || add(core, &file(10..20)).await).await;
            // The unit that was returned is claimed again.
            let third = won(core, "third", 1).await;
            assert_ne!(codes_of(core, &third, 1).await, void, "a code that was shown has a second claim");
            return row.passed(judge(core, &shown).await.len(), "the winner kept the code that was shown");
        }
        // Core restores the two codes that were shown.
        assert_lost_as_a_whole(core, 2 + 2).await;
    }
    panic!("each upload was acknowledged");
}

/// Waits until the reconciliation finds no difference.
pub async fn agrees(fixture: &Fixture) {
    eventually(SOON, || async {
        let compared = fixture.reconciliation("demo").await;
        holds(compared["agrees"] == true, || compared.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codes_survive_lost_keys_evictions_and_reopening() {
    let row = Row::begin("codes: lost keys, an eviction and a reopened campaign");
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let Some(fixture) = available("two cores", Fixture::two_cores_with(options).await) else { return };
    let (core, redis) = (&fixture.core, fixture.redis().await);
    create(core, 60).await;
    let mut shown = shown_to(core, 0..20).await;
    for lost in ["codes", "users"] {
        row.fault();
        let _: u64 = redis.query(&["DEL", &key("demo", lost)]).await;
        shown = judge(fixture.other(), &shown).await;
        shown.extend(shown_to(core, if lost == "codes" { 20..23 } else { 23..26 }).await);
    }
    row.fault();
    core.end_by_time("demo").await;
    redis.evicted("demo").await;
    for core in [core, fixture.other()] {
        judge(core, &shown).await;
    }
    until_status(SOON, &[200], async || core.patch("demo", json!({"ends_at": null})).await).await;
    shown.extend(shown_to(fixture.other(), 26..30).await);
    row.passed(judge(core, &shown).await.len(), "each winner kept the codes");
}
