//! SQL loses codes or has others than Redis shows: winners keep the codes that they have seen, no code is given twice,
//! and no code is left over while a claim waits.

use serde_json::json;
use support::available::available;
use support::inspect::key;
use support::only_on;
use support::topology::ONE_SERVER;
use support::wait::until_status;
use support::{Core, RedisView, SOON};

use crate::codes::{Shown, add, agrees, codes_of, counts, create, file, judge, shown_to, won};
use crate::fixture::Fixture;
use crate::tally::Row;

/// Creates a campaign with `codes` codes, all of which a returned claim has used up, and a claim that waits for a code.
/// Returns the id of this claim, which has the next code number.
async fn run_out(core: &Core, codes: u32) -> String {
    create(core, codes).await;
    let returned = won(core, "returned", codes).await;
    codes_of(core, &returned, codes as usize).await;
    core.transition(&returned, "return").await.expect(200);
    won(core, "waits", 1).await
}

/// Makes SQL lose the upload of `codes`, the first of which is shown to the claim `waits`; core is down afterwards.
/// Returns what was shown.
async fn lose_an_upload(fixture: &mut Fixture, waits: &str, codes: &str) -> Shown {
    fixture.relayed("demo").await;
    fixture.sql.copy_tables().await;
    until_status(SOON, &[200], async || add(&fixture.core, codes).await).await;
    let shown = Shown::from([(waits.to_owned(), codes_of(&fixture.core, waits, 1).await)]);
    fixture.core.kill();
    fixture.sql.restore_tables().await;
    shown
}

/// Writes these codes to SQL under these numbers, as another upload does.
async fn insert(fixture: &Fixture, codes: &[(u32, u32)]) {
    let row = |(number, code): &(u32, u32)| format!("('demo', {number}, 'SAVE-{code:06}')");
    let rows: Vec<_> = codes.iter().map(row).collect();
    fixture
        .sql
        .run(format!("INSERT INTO codes (campaign_id, number, code) VALUES {}", rows.join(", ")))
        .await;
    fixture.sql.run(format!("UPDATE campaigns SET codes_added = codes_added + {}", codes.len())).await;
}

/// Raises the total to the number of codes.
async fn raise_total(core: &Core) {
    let total = counts(core).await["added"].clone();
    until_status(SOON, &[200], async || core.patch("demo", json!({"limits": {"total": total}})).await).await;
}

/// Lets core's user of Redis use these keys only.
async fn allow_keys(redis: &RedisView, keys: &[&str]) {
    redis.query::<String>(&[&["ACL", "SETUSER", "default", "resetkeys"], keys].concat()).await;
}

/// SQL loses an upload whose codes were shown, and core restarts. Redis does not answer about the campaign when
/// another file arrives: its upload must not take the lost version's number, because the rules of both are equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_while_redis_stalls_gives_no_code_twice() {
    only_on!(ONE_SERVER, "the ACL is one server's");
    let row = Row::begin("codes: SQL loses an upload, and Redis stalls during the next one");
    let mut survived = 0;
    let mut fixtures = vec![Fixture::external().await];
    fixtures.extend(available("on PostgreSQL", Fixture::on_postgres(false).await));
    for mut fixture in fixtures {
        let waits = run_out(&fixture.core, 2).await;
        let shown = lose_an_upload(&mut fixture, &waits, &file(10..14)).await;
        row.fault();
        let redis = fixture.redis().await;
        // All keys but those of the campaign.
        allow_keys(&redis, &["~cg:[^{]*", "~cg:{*}:probe", "~cg:{*}:barrier"]).await;
        fixture.core = fixture.core.restart().await;
        let core = &fixture.core;
        let another = [file(20..22), file(10..11), file(22..23)].concat();
        core.once().add_codes("demo", &another).await.refused(503, "unavailable");
        allow_keys(&redis, &["~*"]).await;
        until_status(SOON, &[200], async || add(core, &another).await).await;
        raise_total(core).await;
        for user in ["ann", "bob", "cleo"] {
            let id = won(core, user, 1).await;
            codes_of(core, &id, 1).await;
        }
        survived += judge(core, &shown).await.len();
        agrees(&fixture).await;
    }
    row.passed(survived, "the winner kept the code that was shown, and no other claim got it");
}

/// SQL has a code that was shown under another number. Once the code has its number again, the number that it leaves
/// gets a code that no winner has seen: one that was displaced, or the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restoring_codes_leaves_no_gap_in_their_numbers() {
    const SHOWN: (u32, u32) = (5, 10);
    let row = Row::begin("codes: SQL has a code that was shown under another number");
    let mut survived = 0;
    for stored in
        [&[(3, 20), (4, 21), SHOWN, (6, 22)][..], &[(4, 21), SHOWN, (6, 22)], &[(4, 21), (5, 22), (6, 10)]]
    {
        for mut fixture in Fixture::on_both_databases().await {
            let waits = run_out(&fixture.core, 2).await;
            let shown = lose_an_upload(&mut fixture, &waits, &file(10..14)).await;
            row.fault();
            insert(&fixture, stored).await;
            fixture.core = fixture.core.restart().await;
            let core = &fixture.core;
            until_status(SOON, &[200], async || add(core, &file(10..11)).await).await;
            let empty = "SELECT MAX(number) - COUNT(*) FROM codes WHERE campaign_id = $1";
            assert_eq!(fixture.sql.number(empty, "demo").await, 0, "{stored:?}");
            raise_total(core).await;
            let codes = u32::try_from(stored.len()).unwrap() - 1;
            let all = won(core, "all", codes).await;
            codes_of(core, &all, codes as usize).await;
            survived += judge(core, &shown).await.len();
            agrees(&fixture).await;
        }
    }
    row.passed(survived, "the winner kept the code that was shown, and each other code was given");
}

/// SQL loses two claims and has the codes of both. Only the later claim's code was shown: core died before it had
/// acknowledged the earlier claim. The earlier claim gets another number, and the code that it did not show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_lost_claims_leave_no_code_over() {
    let row = Row::begin("codes: SQL loses two claims, of which one was shown its code");
    let mut survived = 0;
    for mut fixture in Fixture::on_both_databases().await {
        create(&fixture.core, 5).await;
        won(&fixture.core, "before", 3).await;
        fixture.relayed("demo").await;
        fixture.sql.copy_tables().await;
        let earlier = won(&fixture.core, "earlier", 1).await;
        assert_eq!(codes_of(&fixture.core, &earlier, 1).await, ["SAVE-000003"]);
        let later = won(&fixture.core, "later", 1).await;
        let shown = Shown::from([(later.clone(), codes_of(&fixture.core, &later, 1).await)]);
        let redis = fixture.redis().await;
        let codes = key("demo", "codes");
        let not_shown = "for _, digest in ipairs(redis.call('HKEYS', KEYS[1])) do \
            if string.find(redis.call('HGET', KEYS[1], digest), ARGV[1], 1, true) then \
            return redis.call('HDEL', KEYS[1], digest) end end";
        assert_eq!(redis.query::<u64>(&["EVAL", not_shown, "1", &codes, "SAVE-000003"]).await, 1);
        fixture.core.kill();
        fixture.sql.restore_tables().await;
        row.fault();
        fixture.core = fixture.core.restart().await;
        until_status(SOON, &[200], async || add(&fixture.core, &file(0..5)).await).await;
        assert_eq!(codes_of(&fixture.core, &earlier, 1).await, ["SAVE-000003"]);
        assert_eq!(counts(&fixture.core).await, json!({"added": 5, "assigned": 6, "claims_pending": 0}));
        survived += judge(&fixture.core, &shown).await.len();
        agrees(&fixture).await;
    }
    row.passed(survived, "each claim got a code, and the code that was shown stayed its winner's");
}

/// As before, but the number that the code leaves belongs to a claim, and no other code is left. The claim waits for
/// one code in the middle of its numbers: it is counted, and gets the next code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_lacks_one_code_of_several_is_counted() {
    let row = Row::begin("codes: a restored code leaves a number of a claim");
    let mut survived = 0;
    for mut fixture in Fixture::on_both_databases().await {
        let waits = run_out(&fixture.core, 4).await;
        let several = won(&fixture.core, "several", 3).await;
        let shown = lose_an_upload(&mut fixture, &waits, &file(10..11)).await;
        row.fault();
        insert(&fixture, &[(6, 20), (7, 10), (8, 21)]).await;
        fixture.core = fixture.core.restart().await;
        let core = &fixture.core;
        until_status(SOON, &[200], async || add(core, &file(10..11)).await).await;
        assert_eq!(counts(core).await, json!({"added": 7, "assigned": 8, "claims_pending": 1}));
        add(core, &file(30..31)).await.expect(200);
        let codes = codes_of(core, &several, 3).await;
        assert_eq!(codes, ["SAVE-000020", "SAVE-000030", "SAVE-000021"]);
        survived += judge(core, &shown).await.len();
        agrees(&fixture).await;
    }
    row.passed(survived, "the claim was counted until it had all of its codes");
}

/// A code in SQL differs from the code that Redis shows: after the eviction, the winner would read another code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reconciliation_finds_codes_that_differ() {
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        create(core, 10).await;
        let shown = shown_to(core, 0..4).await;
        agrees(&fixture).await;
        fixture.sql.run("UPDATE codes SET code = 'OTHER' WHERE number = 2".to_owned()).await;
        let compared = fixture.reconciliation("demo").await;
        let found: Vec<_> = compared["differences"].as_array().expect("a list").iter().collect();
        assert!(found.len() == 1 && found[0]["name"] == "codes", "{compared}");
        let repair = "/admin/v1/campaigns/demo/reconciliation";
        until_status(SOON, &[200], async || core.admin_post(repair).await).await;
        agrees(&fixture).await;
        let restored = "SELECT number FROM codes WHERE campaign_id = $1 AND code = 'SAVE-000001'";
        assert_eq!(fixture.sql.number(restored, "demo").await, 2);
        judge(core, &shown).await;
    }
}
