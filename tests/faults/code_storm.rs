//! Campaigns with codes while random processes are killed every 300 ms: callers claim, replay, return, and
//! look at their codes at every core, more codes are added, and SQL loses its last transactions, or Redis the campaign.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::client::{Client, Reply, client};
use support::core_client::{API_TOKEN, campaign, claim_body};
use support::heavy;
use support::rng::Rng;
use support::wait::{holds, until_status};
use support::{Core, SOON, eventually};
use tokio::time::sleep;

use crate::extended::unlink;
use crate::fixture::Fixture;
use crate::random_kills::{Addresses, kill_repeatedly};
use crate::tally::{Row, say};

/// Number of rounds unless `ROUNDS` is set; `make soak` sets 20.
const ROUNDS: u32 = 2;
/// Number of codes of all rounds unless `CODES` is set; `make soak` sets a million.
const CODES: u32 = 4_000;
/// Number of callers of a round. Together they claim all codes added so far.
const CALLERS: u32 = 400;
/// Minimum number of claims whose codes are shown in a round, before a store loses data.
const SHOWN_MIN: usize = 200;
/// Maximum number of codes in one file.
const FILE_MAX: u32 = 50_000;
const PAUSE: Duration = Duration::from_millis(200);
const NUMBERED_REVOKED: &str = "SELECT COUNT(*) FROM claims WHERE campaign_id = $1 \
    AND status = 'revoked' AND first_code IS NOT NULL";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_cores_give_no_code_twice_while_processes_are_killed() {
    let row = Row::begin("codes: processes killed under load; two cores, external Redis, PostgreSQL");
    let _turn = heavy().await;
    let Some(fixture) = row.needs(Fixture::two_cores().await) else { return };
    rounds(fixture, row).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_code_is_assigned_twice_by_one_core_with_processes_killed() {
    let row = Row::begin("codes: processes killed under load; one core, managed Redis, SQLite");
    let _turn = heavy().await;
    rounds(Fixture::managed().await, row).await;
}

fn number(variable: &str, otherwise: u32) -> u32 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

async fn rounds(mut fixture: Fixture, row: Row) {
    let (rounds, codes) = (number("ROUNDS", ROUNDS), number("CODES", CODES));
    let mut rng = Rng::seeded("code storm");
    let mut body = campaign("demo", json!({"total": 0}));
    body["codes"] = json!(true);
    fixture.core.create_with(body).await;
    let (winners, portion) = (Winners::default(), codes / rounds);
    let mut operations = 0;
    for round in 0..rounds {
        let added = portion * (round + 1);
        add_codes(&fixture.core, 0, added).await;
        raise_total(&fixture.core, added).await;
        fixture.sql.copy_tables().await;
        let storm = Storm {
            winners: &winners,
            addresses: Addresses::of(&fixture),
            client: client().once(),
            token: fixture.core.admin_token(),
            looks: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        };
        let shown_before = winners.shown.lock().unwrap().len();
        let kills = async {
            let killed = kill_repeatedly(&mut fixture, &storm.addresses, &row, &mut rng).await;
            winners.until_shown(shown_before + SHOWN_MIN).await;
            row.fault();
            if round % 2 == 0 {
                fixture.sql.restore_tables().await;
            } else {
                // A relay that has read entries may write their claims as revoked.
                unlink(&fixture, &["campaign", "users", "claims", "holds", "outbox", "codes"]).await;
            }
            storm.until_looked_again().await;
            storm.over.store(true, Ordering::Relaxed);
            killed
        };
        let units = (portion / CALLERS).max(1);
        let callers = join_all((0..CALLERS).map(|caller| storm.caller(round, caller, units)));
        // The next round's codes are added twice: now, and at its start.
        let adding = storm.add_while_processes_are_killed(added, added + portion);
        let (killed, calls, ()) = tokio::join!(kills, callers, adding);
        let calls: usize = calls.into_iter().sum();
        operations += calls;
        say(&format!(
            "  round {} of {rounds}: killed {killed}; {calls} calls; {} claims were shown codes, {} were returned",
            round + 1,
            winners.shown.lock().unwrap().len(),
            winners.returned.lock().unwrap().len(),
        ));
    }
    let given = judge(&fixture, &winners, codes).await;
    row.passed(
        operations,
        &format!("{given} codes assigned, none twice; each winner kept the codes that were shown"),
    );
}

/// Adds the codes of these numbers, in files; again if SQL has lost some.
async fn add_codes(core: &Core, from: u32, upto: u32) {
    for (from, upto) in files(from, upto) {
        until_status(SOON, &[200], async || core.add_codes("demo", &file(from, upto)).await).await;
    }
}

fn files(from: u32, upto: u32) -> impl Iterator<Item = (u32, u32)> {
    (from..upto).step_by(FILE_MAX as usize).map(move |start| (start, upto.min(start + FILE_MAX)))
}

fn file(from: u32, upto: u32) -> String {
    (from..upto).fold(String::new(), |mut file, number| {
        writeln!(file, "SAVE-{number:07}").unwrap();
        file
    })
}

async fn raise_total(core: &Core, total: u32) {
    until_status(SOON, &[200], async || core.patch("demo", json!({"limits": {"total": total}})).await).await;
}

/// The codes and claims that the callers have seen.
#[derive(Default)]
struct Winners {
    /// The codes shown to each claim's owner.
    shown: Mutex<BTreeMap<String, Vec<String>>>,
    /// The claim that each code was shown for.
    owners: Mutex<HashMap<String, String>>,
    /// Claims whose return was requested.
    returned: Mutex<BTreeSet<String>>,
}

impl Winners {
    /// Waits until so many claims were shown codes.
    async fn until_shown(&self, count: usize) {
        eventually(SOON, || async {
            let shown = self.shown.lock().unwrap().len();
            holds(shown >= count, || format!("{shown} of {count} claims were shown codes"))
        })
        .await;
    }

    /// Records the codes that the owner of a claim sees. Fails if they have changed, or are those of another claim.
    fn saw(&self, id: &str, codes: &[String]) {
        for code in codes {
            let owner = self.owners.lock().unwrap().insert(code.clone(), id.to_owned());
            assert!(
                owner.as_deref().is_none_or(|owner| owner == id),
                "{code} of {owner:?} was shown for {id}"
            );
        }
        let before = self.shown.lock().unwrap().insert(id.to_owned(), codes.to_vec());
        assert!(
            before.as_ref().is_none_or(|before| before == codes),
            "{id}: first {before:?}, then {codes:?}"
        );
    }
}

/// The calls of one round.
struct Storm<'a> {
    winners: &'a Winners,
    addresses: Addresses,
    client: Client,
    token: String,
    /// Number of lookups that found codes.
    looks: AtomicUsize,
    over: AtomicBool,
}

impl Storm<'_> {
    /// Waits until each caller may have looked at its codes again.
    async fn until_looked_again(&self) {
        let before = self.looks.load(Ordering::Relaxed);
        eventually(SOON, || async {
            let looks = self.looks.load(Ordering::Relaxed) - before;
            holds(looks >= CALLERS as usize, || format!("{looks} lookups"))
        })
        .await;
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Makes one call at one of the cores; `None` without a response, which the contract permits here.
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Option<Reply> {
        let request = self.client.request(method, &self.addresses.url(path)).bearer_auth(API_TOKEN);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let reply = self.client.send(request).await.ok();
        reply.filter(|reply| reply.status < 500)
    }

    /// Claims up to `2 * units` units, replays the claim, and looks at its codes until the kills end. Every
    /// tenth caller then returns the claim. Returns the number of calls.
    async fn caller(&self, round: u32, caller: u32, units: u32) -> usize {
        let body = claim_body("demo", &format!("u{round}-{caller}"), "k", 1 + caller % (2 * units));
        let mut calls = 0;
        let mut id = None;
        while !self.is_over() {
            sleep(PAUSE).await;
            calls += 1;
            let Some(known) = id.as_deref().filter(|_| calls % 4 > 0) else {
                let reply = self.call(Method::POST, "/internal/v1/claims", Some(body.clone())).await;
                if let Some(reply) = reply.filter(|reply| [200, 201].contains(&reply.status)) {
                    id = reply.json()["claim"]["id"].as_str().map(str::to_owned);
                }
                continue;
            };
            self.look(known).await;
        }
        if let Some(id) = id.filter(|_| caller.is_multiple_of(10)) {
            self.winners.returned.lock().unwrap().insert(id.clone());
            calls += 1;
            self.call(Method::POST, &format!("/internal/v1/claims/{id}/return"), None).await;
        }
        calls
    }

    async fn look(&self, id: &str) {
        let Some(reply) = self.call(Method::GET, &format!("/internal/v1/claims/{id}"), None).await else {
            return;
        };
        // A claim that a store has just lost may be unknown until it is restored from the other.
        let codes: Vec<String> =
            serde_json::from_value(reply.json()["claim"]["codes"].clone()).unwrap_or_default();
        if !codes.is_empty() {
            self.winners.saw(id, &codes);
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn add_while_processes_are_killed(&self, from: u32, upto: u32) {
        for (from, upto) in files(from, upto) {
            let text = file(from, upto);
            while !self.is_over() {
                let url = self.addresses.url("/admin/v1/campaigns/demo/codes");
                let request = self.client.request(Method::POST, &url).bearer_auth(&self.token);
                let request = request.header("content-type", "text/csv").body(text.clone());
                if self.client.send(request).await.is_ok_and(|reply| reply.status == 200) {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Adds codes until no claim lacks any, and checks every claim and code. Returns the number of codes assigned
/// to active claims.
async fn judge(fixture: &Fixture, winners: &Winners, total: u32) -> usize {
    let cores: Vec<&Core> = std::iter::once(&fixture.core).chain(&fixture.others).collect();
    for core in &cores {
        core.ready().await;
    }
    let core = &fixture.core;
    fixture.relayed("demo").await;
    add_codes(core, 0, total).await;
    let counts = core.admin_get("/admin/v1/campaigns/demo/codes").await.expect(200).json();
    let number = |name: &str| u32::try_from(counts[name].as_u64().expect("a number")).expect("a number");
    add_codes(core, total, total + number("assigned").saturating_sub(number("added"))).await;
    eventually(SOON, || async {
        let counts = core.admin_get("/admin/v1/campaigns/demo/codes").await.expect(200).json();
        holds(counts["claims_pending"] == 0, || counts.to_string())
    })
    .await;
    eventually(SOON, || async {
        let compared = fixture.reconciliation("demo").await;
        holds(compared["agrees"] == true, || compared.to_string())
    })
    .await;
    for core in &cores {
        let logged = [core.log(), core.admin_get("/metrics").await.expect(200).text()].concat();
        assert!(!logged.contains("SAVE-"), "a code was logged");
    }
    let claims = granted(core).await;
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for (id, (quantity, codes)) in &claims {
        assert_eq!(codes.len() as u64, *quantity, "{id} has {codes:?}");
        for code in codes {
            let other = owners.insert(code, id);
            assert!(other.is_none(), "{code} has two claims: {id} and {other:?}");
            let seen = winners.owners.lock().unwrap().get(code).cloned();
            assert!(seen.as_ref().is_none_or(|seen| seen == id), "{code} of {id} was shown for {seen:?}");
        }
    }
    let returned = winners.returned.lock().unwrap().clone();
    for (id, codes) in winners.shown.lock().unwrap().iter().filter(|(id, _)| !returned.contains(*id)) {
        assert_eq!(
            claims.get(id).map(|(_, codes)| codes),
            Some(codes),
            "the codes of {id} differ from the codes shown before"
        );
    }
    assert!(owners.len() <= total as usize, "{} units of {total} are granted", owners.len());
    assert_eq!(fixture.sql.number(NUMBERED_REVOKED, "demo").await, 0, "revoked claims with code numbers");
    owners.len()
}

/// Returns the quantity and codes of all granted claims.
async fn granted(core: &Core) -> BTreeMap<String, (u64, Vec<String>)> {
    let mut claims = BTreeMap::new();
    let mut more = String::new();
    loop {
        let path = format!("/admin/v1/campaigns/demo/claims?codes=true&limit=1000&status=granted{more}");
        let page = core.admin_get(&path).await.expect(200).json();
        for item in page["items"].as_array().expect("items") {
            let codes = serde_json::from_value(item["codes"].clone()).expect("codes");
            let quantity = item["quantity"].as_u64().expect("a number");
            claims.insert(item["id"].as_str().expect("an id").to_owned(), (quantity, codes));
        }
        let Some(cursor) = page["next_cursor"].as_str() else { return claims };
        more = format!("&cursor={cursor}");
    }
}
