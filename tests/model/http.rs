//! The same operations over HTTP, against a core that is killed repeatedly. Calls are made one at a time,
//! except for concurrent retries of one claim.

use std::collections::BTreeSet;

use futures_util::future::{join, join_all};
use reqwest::Method;
use serde_json::{Value, json};
use support::clock::FrozenClock;
use support::core_client::API_TOKEN;
use support::times::ms;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually};

use super::compare;
use super::operations::{CAMPAIGN, ClaimAttempt, Generator, Operation};
use super::reference::{
    AdminState, Answer, Attempt, HELD_MS_MAX, Left, Model, Pass, Rules, Status, Transition, Transitioned,
    View,
};
use super::rng::Rng;
use super::run::same;

/// Statistics of a run.
#[derive(Debug, Default)]
pub struct Tally {
    pub operations: u64,
    pub calls_cut_off: u64,
    pub core_killed: u64,
    pub redis_killed: u64,
    pub loads: u64,
    pub compared: u64,
}

/// Maximum number of claims in one operation, because over HTTP each claim is a separate call.
const ATTEMPTS_MAX: usize = 10;

struct Run {
    generator: Generator,
    model: Model,
    clock: FrozenClock,
    redis: Servers,
    core: Core,
    tally: Tally,
}

/// Plays the campaign of `seed` for `operations` operations.
pub async fn play(seed: u64, operations: u64) -> Result<Tally, String> {
    let (mut rng, generator, rules) = Generator::of(seed);
    let clock = FrozenClock::at(generator.begins_at);
    let redis = Servers::start_frozen(&clock).await;
    // Core must not evict the campaign when it ends, because the clock may return to a time when the campaign
    // is open.
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1000000000");
    let options = options.with("CLAIMGATE_HOLD_EXTENSION_MAX_S", (HELD_MS_MAX / 1000).to_string());
    let core = options.with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
    core.create_with(campaign(&rules)).await;
    let mut run = Run { generator, model: Model::new(rules), clock, redis, core, tally: Tally::default() };
    while run.tally.operations < operations {
        let now = run.clock.now_ms();
        let mut operation = run.generator.next(&mut rng, now, &run.model);
        if let Operation::Claims(attempts) = &mut operation {
            attempts.truncate(ATTEMPTS_MAX);
        }
        let history =
            format!("SEED={seed} over HTTP, operation {} at {now}: {operation:?}", run.tally.operations);
        run.tally.operations += operation.weight();
        run.step(operation, &mut rng).await.map_err(|error| format!("{history}\n{error}"))?;
    }
    run.relayed().await.map_err(|error| format!("SEED={seed} over HTTP, at the end: {error}"))?;
    Ok(run.tally)
}

impl Run {
    async fn step(&mut self, operation: Operation, rng: &mut Rng) -> Result<(), String> {
        match operation {
            Operation::Claims(attempts) if rng.percent(20) => self.claim_concurrently(&attempts[0]).await,
            Operation::Claims(attempts) if rng.percent(4) => {
                self.claim_in_crash(&attempts[0], rng.percent(50)).await
            }
            Operation::Claims(attempts) => self.claims(&attempts).await,
            Operation::ClaimsInCrash(attempts, _) => self.claim_in_crash(&attempts[0], rng.percent(50)).await,
            Operation::Transition(attempt, transition) => self.transition(&attempt, transition).await,
            Operation::LookUp(attempt) => self.look_up(&attempt).await,
            Operation::Clock(to) => self.move_clock(to).await,
            Operation::Change(rules) => self.change(rules).await,
            Operation::RestartCore | Operation::RelayCut(_) => {
                self.kill_core().await;
                Ok(())
            }
            Operation::RestartRedis | Operation::Sweep => {
                self.tally.redis_killed += 1;
                self.redis.kill_and_restart_frozen(&self.clock).await;
                Ok(())
            }
            Operation::LoseKeys(mask) => self.lose_keys(mask).await,
            Operation::Relay => self.relayed().await,
            Operation::Starve(..)
            | Operation::Copy
            | Operation::Stale
            | Operation::CopySql
            | Operation::ForgetSql(_)
            | Operation::Compare => self.compare().await,
        }
    }

    async fn claims(&mut self, attempts: &[ClaimAttempt]) -> Result<(), String> {
        for attempt in attempts {
            let expected = self.expected(attempt, 1);
            same(&expected, &vec![decided(&self.core, attempt).await])?;
        }
        Ok(())
    }

    /// Sends the same claim several times concurrently: exactly one request is granted, and the rest are
    /// replays.
    async fn claim_concurrently(&mut self, attempt: &ClaimAttempt) -> Result<(), String> {
        let expected = self.expected(attempt, 5);
        let found = join_all((0..5).map(|_| decided(&self.core, attempt))).await;
        let sorted =
            |answers: &[Answer]| answers.iter().map(|answer| format!("{answer:?}")).collect::<BTreeSet<_>>();
        let taken =
            |answers: &[Answer]| answers.iter().filter(|answer| matches!(answer, Answer::Taken(..))).count();
        same(&(taken(&expected), sorted(&expected)), &(taken(&found), sorted(&found)))
    }

    /// Kills core or Redis with a claim in flight; a retry with the same key must find the only claim.
    async fn claim_in_crash(&mut self, attempt: &ClaimAttempt, of_core: bool) -> Result<(), String> {
        self.tally.calls_cut_off += 1;
        let mut expected = self.expected(attempt, 2);
        let call = self.core.client().once();
        let request =
            call.request(Method::POST, &self.core.url("/internal/v1/claims")).bearer_auth(API_TOKEN);
        let request =
            request.json(&support::claim_body(CAMPAIGN, &attempt.user, &attempt.key, attempt.quantity));
        let killed = async {
            tokio::task::yield_now().await;
            if of_core {
                self.core.kill();
            } else {
                self.redis.kill();
            }
        };
        let (_, ()) = join(call.send(request), killed).await;
        if of_core {
            self.kill_core().await;
        } else {
            self.tally.redis_killed += 1;
            self.redis.kill_and_restart_frozen(&self.clock).await;
        }
        let found = decided(&self.core, attempt).await;
        if found == expected[1] {
            return Ok(());
        }
        expected.truncate(1);
        same(&expected, &vec![found])
    }

    /// Returns the model's answers to the same claim sent `times` times.
    fn expected(&mut self, attempt: &ClaimAttempt, times: usize) -> Vec<Answer> {
        // A back end's token counts as a pass.
        let sent = Attempt { id: attempt.model_id(), quantity: attempt.quantity, pass: Pass::Shown };
        let sent = vec![sent; times];
        let answers = self.model.claim_all(self.clock.now_ms(), &sent);
        if let Some(Answer::Taken(..)) = answers.first() {
            self.generator.granted(attempt.clone());
        }
        answers
    }

    async fn transition(&mut self, attempt: &ClaimAttempt, transition: Transition) -> Result<(), String> {
        let verb = match transition {
            Transition::Confirm => "confirm",
            Transition::Return => "return",
            Transition::Extend => "extend",
        };
        let expected = self.model.transition(self.clock.now_ms(), &attempt.model_id(), transition);
        let path = format!("/internal/v1/claims/{}/{verb}", attempt.claim_id());
        let reply = answered(&self.core, Method::POST, &path, &Value::Null).await;
        let is_refused = |answer: Transitioned| {
            let is_over = matches!(answer.view.status, Status::Expired | Status::Returned);
            answer.extended_too_often || is_over && transition != Transition::Return
        };
        let status = match expected {
            None => 404,
            Some(answer) if is_refused(answer) => 409,
            Some(_) => 200,
        };
        let body = reply.json();
        let found = body.get("claim").filter(|claim| !claim.is_null()).map(view);
        same(&(status, expected.map(|answer| answer.view)), &(reply.status, found))
    }

    async fn look_up(&mut self, attempt: &ClaimAttempt) -> Result<(), String> {
        let expected = self.model.claims.get(&attempt.model_id()).map(|claim| claim.view);
        let path = format!("/internal/v1/claims/{}", attempt.claim_id());
        let reply = answered(&self.core, Method::GET, &path, &Value::Null).await;
        same(&expected, &(reply.status == 200).then(|| view(&reply.json()["claim"])))
    }

    /// Moves the clock, and waits until core has expired the due holds.
    async fn move_clock(&mut self, to: i64) -> Result<(), String> {
        self.redis.set_frozen_clock(&mut self.clock, to).await;
        // Runs the maintenance job now instead of within a second, and drops the cached denial.
        self.core.admin_post(&format!("/admin/v1/campaigns/{CAMPAIGN}/warm-up")).await;
        if self.model.expire(to) == 0 {
            return Ok(());
        }
        while self.model.expire(to) > 0 {}
        let (redis, held) = (self.redis.view().await, self.model.holds.len());
        eventually(SOON, || async {
            let found: usize = redis.query(&["ZCARD", &support::inspect::key(CAMPAIGN, "holds")]).await;
            holds(found == held + 1, || format!("{found} holds, not {held} and the epoch marker"))
        })
        .await;
        Ok(())
    }

    async fn change(&mut self, mut rules: Rules) -> Result<(), String> {
        let before = self.model.rules.version;
        let has_effect = Rules { version: before, ..rules.clone() } != self.model.rules;
        let path = format!("/admin/v1/campaigns/{CAMPAIGN}");
        let reply = if rules.admin_state == self.model.rules.admin_state {
            let mut body = campaign(&rules);
            for fixed in ["id", "time_zone", "hold_seconds"] {
                body.as_object_mut().expect("an object").remove(fixed);
            }
            body["version"] = rules.version.into();
            self.core.admin(Method::PATCH, &path, &body).await.refused(409, "version_conflict");
            body["version"] = before.into();
            self.core.admin(Method::PATCH, &path, &body).await
        } else {
            let verb = match rules.admin_state {
                AdminState::On => "resume",
                AdminState::Paused => "pause",
                AdminState::Ended => "end",
            };
            let path = format!("{path}/{verb}");
            until_decided(async || self.core.once().admin(Method::POST, &path, &Value::Null).await).await
        };
        // A change without effect creates no version.
        rules.version = if has_effect { rules.version } else { before };
        // Once written to SQL, a change comes into force as soon as Redis is available.
        let version = rules.version;
        self.model.rules = rules;
        if reply.status != 503 {
            return same(&(200, version), &(reply.status, reply.json()["version"].as_u64().unwrap_or(0)));
        }
        self.in_force(version).await;
        Ok(())
    }

    async fn in_force(&self, version: u64) {
        let redis = self.redis.view().await;
        eventually(SOON, || async {
            let found = redis.counter(CAMPAIGN, "version").await;
            holds(found == version, || format!("version {found} is in force, not {version}"))
        })
        .await;
    }

    async fn kill_core(&mut self) {
        self.tally.core_killed += 1;
        self.core.kill();
        self.core = self.core.restart().await;
    }

    async fn lose_keys(&mut self, mask: u8) -> Result<(), String> {
        self.relayed().await?;
        self.tally.loads += 1;
        let redis = self.redis.view().await;
        for (at, what) in ["campaign", "users", "claims", "holds", "outbox"].iter().enumerate() {
            if mask >> at & 1 == 1 {
                redis.query::<u64>(&["UNLINK", &support::inspect::key(CAMPAIGN, what)]).await;
            }
        }
        let path = format!("/internal/v1/claims/{}", ClaimAttempt::probe().claim_id());
        answered(&self.core, Method::GET, &path, &Value::Null).await.expect(404);
        self.compare().await
    }

    /// Waits until SQL has everything, and compares it with the model.
    async fn relayed(&mut self) -> Result<(), String> {
        let redis = self.redis.view().await;
        eventually(SOON, || async {
            let (entries, backlog) =
                (redis.outbox_entries(CAMPAIGN).await, redis.counter(CAMPAIGN, "backlog").await);
            holds((entries, backlog) == (1, 0), || {
                format!("{entries} entries, {backlog} events in the outbox")
            })
        })
        .await;
        let rows = self.core.sql().claims(CAMPAIGN).await;
        let found: BTreeSet<_> = rows
            .into_iter()
            .map(|row| {
                (row.sequence, row.id, row.quantity, row.status, row.day.cast_signed(), row.claimed_at)
            })
            .collect();
        let expected = self.model.claims.iter().map(|((user, digest), claim)| {
            let id = format!("{CAMPAIGN}.{user}.{}", base64_url(digest));
            let view = claim.view;
            (
                view.sequence,
                id,
                view.quantity.into(),
                status_text(view.status).to_owned(),
                claim.day,
                view.claimed_at,
            )
        });
        same(&expected.collect::<BTreeSet<_>>(), &found)?;
        let path = format!("/admin/v1/campaigns/{CAMPAIGN}/reconciliation");
        let compared = until_decided(async || self.core.once().admin_get(&path).await).await.json();
        // Only sequence numbers of lost claims may differ, and nothing is lost here.
        same(&json!([]), &compared["differences"])?;
        self.compare().await
    }

    async fn compare(&mut self) -> Result<(), String> {
        self.tally.compared += 1;
        compare::redis(&self.model, &self.redis.view().await).await
    }
}

fn base64_url(digest: &[u8; 16]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest)
}

/// Retries until there is a decision: a failed connection or a 503 means an unknown outcome.
async fn until_decided(mut attempt: impl AsyncFnMut() -> Reply) -> Reply {
    let started = tokio::time::Instant::now();
    loop {
        let reply = attempt().await;
        if reply.status != 503 || started.elapsed() > SOON {
            return reply;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn answered(core: &Core, method: Method, path: &str, body: &Value) -> Reply {
    until_decided(async || core.client().once().call(method.clone(), &core.url(path), API_TOKEN, body).await)
        .await
}

async fn decided(core: &Core, attempt: &ClaimAttempt) -> Answer {
    let body = support::claim_body(CAMPAIGN, &attempt.user, &attempt.key, attempt.quantity);
    answer(&answered(core, Method::POST, "/internal/v1/claims", &body).await)
}

const CODES: [&str; 10] = [
    "idempotency_key_reused",
    "paused",
    "ended",
    "not_started",
    "pass_required",
    "quantity_out_of_range",
    "user_daily_limit_reached",
    "user_limit_reached",
    "sold_out",
    "",
];

fn answer(reply: &Reply) -> Answer {
    let body = reply.json();
    let number = |name: &str| body[name].as_u64().and_then(|number| u32::try_from(number).ok());
    let version = body["version"].as_u64().unwrap_or(0);
    let left = Left { remaining: number("remaining"), version };
    match reply.status {
        201 => Answer::Taken(view(&body["claim"]), left),
        200 => Answer::Replayed(view(&body["claim"]), left),
        _ => Answer::Refused {
            code: CODES
                .iter()
                .find(|code| **code == reply.code())
                .unwrap_or_else(|| panic!("{}", reply.text())),
            remaining: left.remaining,
            at: ["starts_at", "ends_at", "resets_at", "until"]
                .iter()
                .find_map(|name| body[name].as_str().map(ms)),
            version,
        },
    }
}

fn view(claim: &Value) -> View {
    let number = |name: &str| claim[name].as_u64().unwrap_or_else(|| panic!("no {name} in {claim}"));
    let status = [Status::Granted, Status::Held, Status::Returned, Status::Expired]
        .into_iter()
        .find(|status| claim["status"] == status_text(*status));
    View {
        quantity: u32::try_from(number("quantity")).expect("32 bits"),
        status: status.unwrap_or_else(|| panic!("{claim}")),
        sequence: number("sequence"),
        claimed_at: ms(claim["claimed_at"].as_str().expect("a time")),
        expires_at: claim["expires_at"].as_str().map(ms),
    }
}

fn status_text(status: Status) -> &'static str {
    match status {
        Status::Granted => "granted",
        Status::Held => "held",
        Status::Returned => "returned",
        Status::Expired => "expired",
    }
}

fn campaign(rules: &Rules) -> Value {
    let time = |ms: i64| jiff::Timestamp::from_millisecond(ms).expect("an instant").to_string();
    let limits = rules.limits;
    let pass = rules.pass_until.map(|until| match until {
        i64::MAX => json!({"required": "always"}),
        until => json!({"required": "until", "until": time(until)}),
    });
    json!({
        "id": CAMPAIGN, "name": "model", "starts_at": time(rules.starts_at), "ends_at": rules.ends_at.map(time),
        "time_zone": rules.zone.iana_name(), "hold_seconds": rules.hold_ms.map(|ms| ms / 1000),
        "pass": pass,
        "limits": {
            "total": limits.total, "per_user": limits.per_user,
            "per_user_per_day": limits.per_user_per_day, "per_claim": limits.per_claim,
        },
    })
}
