//! Callers of both cores, and a record of every call with its response and times.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use claimgate_shared::ClaimId;
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::checker::Limits;
use support::client::{Client, client};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::rng::Rng;
use support::storm::ClaimAttempt;
use support::wait::{holds, until_status};
use support::{Core, Reply, SOON, claim_body, eventually};
use tokio::time::sleep;

use super::installation::{Installation, Topology};

/// Concurrent callers of each campaign.
const CALLERS: usize = 4;
/// Number of users of each campaign, shared by all callers.
const USERS: u64 = 60;
/// Maximum pause of a caller between two claims.
const PAUSE_MAX_MS: u64 = 40;
/// Pause before a caller without a decision retries.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Longer than any test waits for a hold.
const HOLD_S: u32 = 3600;

/// A caller's call on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A marked claim; only such a claim may be denied from core's cache.
    FirstTry,
    Claim,
    LookUp,
    Confirm,
    Return,
}

/// The state of a claim, in the order in which it may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Held,
    Granted,
    Returned,
}

/// The response that a caller gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Is {
        id: String,
        sequence: u64,
        quantity: u64,
        status: Status,
    },
    Refused(String),
    /// 503, or no response.
    Unknown,
}

/// A call and its response.
#[derive(Debug, Clone)]
pub struct CallRecord {
    pub attempt: ClaimAttempt,
    pub call: Call,
    pub began: Instant,
    pub ended: Instant,
    pub answer: Answer,
}

/// A campaign of one failover.
pub struct Campaign {
    pub id: String,
    pub limits: Limits,
    calls: Mutex<Vec<CallRecord>>,
}

/// The callers of several campaigns.
pub struct Crowd<'a> {
    cores: [&'a Core; 2],
    client: Client,
    campaigns: &'a [Campaign],
    acknowledged: AtomicUsize,
    stop: AtomicBool,
}

impl Status {
    /// Parses a status; returns `None` for a claim that was lost and revoked.
    pub fn of(text: &str) -> Option<Self> {
        match text {
            "held" => Some(Self::Held),
            "granted" => Some(Self::Granted),
            "returned" => Some(Self::Returned),
            _ => None,
        }
    }
}

impl Campaign {
    /// Creates four campaigns for one failover. Three are on the primary that fails: one without limits, one
    /// with few units, and one with holds and few units per user. In a Cluster the fourth is on another
    /// primary.
    pub async fn four(site: &Installation, name: &str) -> Vec<Self> {
        let few = Limits { total: Some(200), per_user: Some(5), per_user_per_day: None };
        let personal = Limits { total: None, per_user: Some(8), per_user_per_day: None };
        let roomy = Self::create(site, format!("{name}-roomy"), Limits::default(), None).await;
        let primary = site.topology.primary_of(&roomy.id).await;
        let near =
            |name: String| async move { name_at(&site.topology, name, |place| place == primary).await };
        let (tight, held) = (near(format!("{name}-few")).await, near(format!("{name}-held")).await);
        let far = match site.topology {
            Topology::Sentinel(_) => format!("{name}-other"),
            Topology::Cluster(_) => {
                name_at(&site.topology, format!("{name}-far"), |place| place != primary).await
            }
        };
        vec![
            roomy,
            Self::create(site, tight, few, None).await,
            Self::create(site, held, personal, Some(HOLD_S)).await,
            Self::create(site, far, Limits { total: Some(400), ..personal }, None).await,
        ]
    }

    async fn create(site: &Installation, id: String, limits: Limits, hold_s: Option<u32>) -> Self {
        let mut body = campaign(&id, limits.json());
        body["hold_seconds"] = json!(hold_s);
        until_status(SOON, &[200, 201], async || {
            site.cores[0].admin(Method::POST, "/admin/v1/campaigns", &body).await
        })
        .await;
        Self { id, limits, calls: Mutex::default() }
    }

    /// Returns all calls and responses so far.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.calls.lock().expect("the calls").clone()
    }

    /// Returns the id that the claim of this attempt has or would have.
    pub fn claim_id(&self, attempt: &ClaimAttempt) -> String {
        claim_id(&self.id, &attempt.user, &attempt.key)
    }
}

/// Returns the id of the claim for a user and a key.
pub fn claim_id(campaign: &str, user: &str, key: &str) -> String {
    let campaign = campaign.parse().expect("a campaign's id");
    ClaimId::derive(campaign, user.parse().expect("a user's id"), &key.parse().expect("a key")).to_string()
}

/// Returns the first name with this prefix whose campaign is on a matching server.
async fn name_at(topology: &Topology, begin: String, fits: impl Fn(usize) -> bool) -> String {
    for number in 0.. {
        let name = format!("{begin}{number}");
        if fits(topology.primary_of(&name).await) {
            return name;
        }
    }
    unreachable!("one of the names fits")
}

impl<'a> Crowd<'a> {
    /// Creates the callers of these campaigns.
    pub fn of(cores: &'a [Core; 2], campaigns: &'a [Campaign]) -> Self {
        let (acknowledged, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { cores: [&cores[0], &cores[1]], client: client().once(), campaigns, acknowledged, stop }
    }

    /// Makes claims until [`Self::stop`] is called, and finishes every call that was started.
    pub async fn run(&self, seed: u64) {
        let callers = self.campaigns.iter().enumerate().flat_map(|(at, campaign)| {
            (0..CALLERS).map(move |caller| {
                let me = at * CALLERS + caller;
                let rng = Rng::of(seed ^ u64::try_from(me).expect("few callers"));
                self.caller(campaign, me, rng)
            })
        });
        join_all(callers).await;
    }

    /// Stops the callers.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until this number of claims has been acknowledged.
    pub async fn until_acknowledged(&self, count: usize) {
        eventually(SOON, || async {
            let acknowledged = self.acknowledged.load(Ordering::Relaxed);
            holds(acknowledged >= count, || format!("{acknowledged} of {count} claims acknowledged"))
        })
        .await;
    }

    /// Waits until each campaign has decided a call sent from now on. If a server outside the set was
    /// promoted, accepts its loss as an operator does; returns whether that happened.
    pub async fn all_decide(&self) -> bool {
        let (now, accepted) = (Instant::now(), AtomicBool::new(false));
        let decided =
            |call_record: &CallRecord| call_record.began > now && call_record.answer != Answer::Unknown;
        for campaign in self.campaigns {
            eventually(SOON, || async {
                if campaign.calls.lock().expect("the calls").iter().rev().any(decided) {
                    return Ok(());
                }
                let replication = self.cores[0].admin_get("/admin/v1/replication").await.json();
                if has_outsider(&replication) {
                    self.cores[0].admin_post("/admin/v1/replication/accept-loss").await;
                    accepted.store(true, Ordering::Relaxed);
                }
                let logs = self.cores.map(Core::log).concat();
                Err(format!("{} has no decision\n{replication:#}\n{logs}", campaign.id))
            })
            .await;
        }
        accepted.into_inner()
    }

    async fn caller(&self, campaign: &Campaign, me: usize, mut rng: Rng) {
        let mut turn = 0;
        while !self.stop.load(Ordering::Relaxed) {
            turn += 1;
            let attempt = ClaimAttempt {
                user: format!("u{}", rng.within(1, USERS)),
                key: format!("{me}-{turn}"),
                units: u32::try_from(rng.within(1, 2)).expect("a small number"),
            };
            if let Answer::Is { .. } = self.until_decided(campaign, &attempt, Call::FirstTry, &mut rng).await
            {
                for call in afterwards(&mut rng) {
                    self.until_decided(campaign, &attempt, *call, &mut rng).await;
                }
            }
            sleep(Duration::from_millis(rng.within(0, PAUSE_MAX_MS))).await;
        }
    }

    /// Retries through random cores until there is a decision. Between two tries the claim may be looked up;
    /// the recorded response is checked like any other.
    async fn until_decided(
        &self,
        campaign: &Campaign,
        attempt: &ClaimAttempt,
        call: Call,
        rng: &mut Rng,
    ) -> Answer {
        let deadline = Instant::now() + 4 * SOON;
        let mut call = call;
        loop {
            let core = self.cores[usize::from(rng.within(0, 1) == 1)];
            let answer = self.send(core, campaign, attempt, call).await;
            if answer != Answer::Unknown {
                return answer;
            }
            assert!(Instant::now() < deadline, "no decision on {call:?} of {attempt:?}\n{}", core.log());
            sleep(RETRY_PAUSE).await;
            if call == Call::FirstTry {
                call = Call::Claim;
            }
            if call == Call::Claim && rng.within(0, 3) == 0 {
                self.send(core, campaign, attempt, Call::LookUp).await;
            }
        }
    }

    async fn send(&self, core: &Core, campaign: &Campaign, attempt: &ClaimAttempt, call: Call) -> Answer {
        let claim = || core.url(&format!("/internal/v1/claims/{}", campaign.claim_id(attempt)));
        let body = claim_body(&campaign.id, &attempt.user, &attempt.key, attempt.units);
        let claims = || self.client.request(Method::POST, &core.url("/internal/v1/claims")).json(&body);
        let request = match call {
            Call::FirstTry => claims().header("Claimgate-Attempt", "1"),
            Call::Claim => claims(),
            Call::LookUp => self.client.request(Method::GET, &claim()),
            Call::Confirm => self.client.request(Method::POST, &(claim() + "/confirm")),
            Call::Return => self.client.request(Method::POST, &(claim() + "/return")),
        };
        let began = Instant::now();
        let reply = self.client.send(request.bearer_auth(API_TOKEN)).await;
        let ended = Instant::now();
        let answer = reply.map_or(Answer::Unknown, |reply| read(&reply, attempt));
        if matches!(answer, Answer::Is { .. }) {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        let call_record = CallRecord { attempt: attempt.clone(), call, began, ended, answer: answer.clone() };
        campaign.calls.lock().expect("the calls").push(call_record);
        answer
    }
}

/// Returns whether core reports a primary that is neither the primary nor a member of any set: it was
/// promoted although it lagged behind, and stays closed.
fn has_outsider(replication: &Value) -> bool {
    let list = |of: &Value, name: &str| of[name].as_array().cloned().unwrap_or_default();
    let primaries = list(replication, "primaries");
    let sets: Vec<_> = primaries.iter().map(|primary| primary["set"].clone()).collect();
    let sets = [sets, list(replication, "orphans")].concat();
    primaries.iter().any(|primary| {
        let name = &primary["primary"];
        !sets.iter().any(|set| set["primary"] == *name || list(set, "members").contains(name))
    })
}

/// Returns the follow-up calls of a caller whose claim was granted.
fn afterwards(rng: &mut Rng) -> &'static [Call] {
    match rng.within(0, 9) {
        0 | 1 => &[Call::Claim],
        2 | 3 => &[Call::LookUp],
        4 => &[Call::Confirm, Call::LookUp],
        5 => &[Call::Confirm, Call::Return],
        6 => &[Call::Return, Call::Claim],
        _ => &[],
    }
}

fn read(reply: &Reply, attempt: &ClaimAttempt) -> Answer {
    match reply.status {
        200 | 201 => {
            let claim: Value = reply.json()["claim"].clone();
            let status = claim["status"].as_str().and_then(Status::of);
            match status {
                Some(status) => Answer::Is {
                    id: claim["id"].as_str().expect("an id").to_owned(),
                    sequence: claim["sequence"].as_u64().expect("a sequence"),
                    quantity: claim["quantity"].as_u64().expect("a quantity"),
                    status,
                },
                None => Answer::Refused(format!("status {}", claim["status"])),
            }
        }
        503 => Answer::Unknown,
        403 | 404 | 409 | 422 => Answer::Refused(reply.code()),
        other => panic!("{other} for {attempt:?}: {}", reply.text()),
    }
}
