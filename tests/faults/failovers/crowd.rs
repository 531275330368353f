//! Callers of both cores, and all that they were told, with the moments between which they were.

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
use support::storm::Wish;
use support::wait::holds;
use support::{Core, Reply, SOON, claim_body, eventually};
use tokio::time::sleep;

use super::installation::{Installation, Topology};

/// Callers of each campaign at once.
const CALLERS: usize = 4;
/// Users of each campaign: callers meet on them.
const USERS: u64 = 60;
/// How long a caller thinks at most.
const THINKS_MAX_MS: u64 = 40;
/// How soon one asks again that has got no decision.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Longer than any hold is waited for.
const HOLD_S: u32 = 3600;

/// What a caller asks for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Marked as such: only this may be refused from what core remembers.
    FirstTry,
    Claim,
    LookUp,
    Confirm,
    Return,
}

/// How far a claim has come; the order in which that may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Held,
    Granted,
    Returned,
}

/// What a caller is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Is {
        id: String,
        sequence: u64,
        quantity: u64,
        status: Status,
    },
    Refused(String),
    /// 503, or none.
    Unknown,
}

/// One call and its answer.
#[derive(Debug, Clone)]
pub struct Told {
    pub wish: Wish,
    pub call: Call,
    pub began: Instant,
    pub ended: Instant,
    pub answer: Answer,
}

/// A campaign of one failover.
pub struct Campaign {
    pub id: String,
    pub limits: Limits,
    told: Mutex<Vec<Told>>,
}

/// The callers of some campaigns.
pub struct Crowd<'a> {
    cores: [&'a Core; 2],
    client: Client,
    campaigns: &'a [Campaign],
    acknowledged: AtomicUsize,
    over: AtomicBool,
}

impl Status {
    /// `None` for a claim that was lost and revoked.
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
    /// Makes four for one failover: three on the primary that will be hit (without limits, with few units, and one that
    /// holds with few units a user), and one that in a Cluster is on another primary.
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
        eventually(SOON, || async {
            let made = site.cores[0].admin(Method::POST, "/admin/v1/campaigns", &body).await;
            holds([200, 201].contains(&made.status), || made.text())
        })
        .await;
        Self { id, limits, told: Mutex::default() }
    }

    /// All calls and answers so far.
    pub fn told(&self) -> Vec<Told> {
        self.told.lock().expect("what was told").clone()
    }

    /// The id that this wish's claim has or would have.
    pub fn claim_id(&self, wish: &Wish) -> String {
        claim_id(&self.id, &wish.user, &wish.key)
    }
}

/// The id that this user's key leads to.
pub fn claim_id(campaign: &str, user: &str, key: &str) -> String {
    let campaign = campaign.parse().expect("a campaign's id");
    ClaimId::derive(campaign, user.parse().expect("a user's id"), &key.parse().expect("a key")).to_string()
}

/// The first of the names that begin so whose campaign is on such a server.
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
    /// Of these campaigns.
    pub fn of(cores: &'a [Core; 2], campaigns: &'a [Campaign]) -> Self {
        let (acknowledged, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { cores: [&cores[0], &cores[1]], client: client().once(), campaigns, acknowledged, over }
    }

    /// Claims are made until it is over, and all that was begun is brought to an end.
    pub async fn gather(&self, seed: u64) {
        let callers = self.campaigns.iter().enumerate().flat_map(|(at, campaign)| {
            (0..CALLERS).map(move |caller| {
                let me = at * CALLERS + caller;
                let rng = Rng::of(seed ^ u64::try_from(me).expect("few callers"));
                self.caller(campaign, me, rng)
            })
        });
        join_all(callers).await;
    }

    /// No further claims.
    pub fn over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits until so many claims were acknowledged.
    pub async fn until_acknowledged(&self, count: usize) {
        eventually(SOON, || async {
            let acknowledged = self.acknowledged.load(Ordering::Relaxed);
            holds(acknowledged >= count, || format!("{acknowledged} of {count} claims acknowledged"))
        })
        .await;
    }

    /// Waits until of each campaign something was decided that was asked from now on.
    pub async fn all_decide(&self) {
        let now = Instant::now();
        let decided = |told: &Told| told.began > now && told.answer != Answer::Unknown;
        for campaign in self.campaigns {
            eventually(2 * SOON, || async {
                let is_decided = campaign.told.lock().expect("what was told").iter().rev().any(decided);
                let logs = || self.cores.map(Core::log).concat();
                holds(is_decided, || format!("{} is not decided\n{}", campaign.id, logs()))
            })
            .await;
        }
    }

    async fn caller(&self, campaign: &Campaign, me: usize, mut rng: Rng) {
        let mut turn = 0;
        while !self.over.load(Ordering::Relaxed) {
            turn += 1;
            let wish = Wish {
                user: format!("u{}", rng.within(1, USERS)),
                key: format!("{me}-{turn}"),
                units: u32::try_from(rng.within(1, 2)).expect("a small number"),
            };
            if let Answer::Is { .. } = self.until_told(campaign, &wish, Call::FirstTry, &mut rng).await {
                for call in afterwards(&mut rng) {
                    self.until_told(campaign, &wish, *call, &mut rng).await;
                }
            }
            sleep(Duration::from_millis(rng.within(0, THINKS_MAX_MS))).await;
        }
    }

    /// Asks, through whichever core, until there is a decision. Between two tries the claim may be looked up: what is told
    /// of it then holds, too.
    async fn until_told(&self, campaign: &Campaign, wish: &Wish, call: Call, rng: &mut Rng) -> Answer {
        let deadline = Instant::now() + 4 * SOON;
        let mut call = call;
        loop {
            let core = self.cores[usize::from(rng.within(0, 1) == 1)];
            let answer = self.ask(core, campaign, wish, call).await;
            if answer != Answer::Unknown {
                return answer;
            }
            assert!(Instant::now() < deadline, "no decision on {call:?} of {wish:?}\n{}", core.log());
            sleep(ASK_AGAIN).await;
            if call == Call::FirstTry {
                call = Call::Claim;
            }
            if call == Call::Claim && rng.within(0, 3) == 0 {
                self.ask(core, campaign, wish, Call::LookUp).await;
            }
        }
    }

    async fn ask(&self, core: &Core, campaign: &Campaign, wish: &Wish, call: Call) -> Answer {
        let claim = || core.url(&format!("/internal/v1/claims/{}", campaign.claim_id(wish)));
        let body = claim_body(&campaign.id, &wish.user, &wish.key, wish.units);
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
        let answer = reply.map_or(Answer::Unknown, |reply| read(&reply, wish));
        if matches!(answer, Answer::Is { .. }) {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        let told = Told { wish: wish.clone(), call, began, ended, answer: answer.clone() };
        campaign.told.lock().expect("what was told").push(told);
        answer
    }
}

/// What a caller asks of a claim that it has got.
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

fn read(reply: &Reply, wish: &Wish) -> Answer {
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
        other => panic!("{other} for {wish:?}: {}", reply.text()),
    }
}
