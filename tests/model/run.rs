//! Runs one campaign on the model and the system in parallel; the first difference ends the run.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug};
use std::ops::RangeInclusive;

use claimgate_core::engine::error::NoDecision;
use claimgate_core::engine::lifecycle::recovery::Recovered;

use super::compare;
use super::operations::{ClaimAttempt, Generator, Operation};
use super::reference::{Answer, Attempt, Model};
use super::rng::Rng;
use super::system::System;

/// Number of operations printed when a run fails.
const HISTORY_MAX: usize = 20;

/// Statistics of one or more runs.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tally {
    pub operations: u64,
    pub granted: u64,
    pub refused: u64,
    pub replayed: u64,
    pub transitions: u64,
    pub relays: u64,
    pub restarts: u64,
    pub crashes_in_flight: u64,
    pub loads: u64,
    pub compared: u64,
    /// Calls that were retried because their answer came too late.
    pub unanswered: u64,
}

impl Tally {
    /// Adds another run's counts.
    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.granted += other.granted;
        self.refused += other.refused;
        self.replayed += other.replayed;
        self.transitions += other.transitions;
        self.relays += other.relays;
        self.restarts += other.restarts;
        self.crashes_in_flight += other.crashes_in_flight;
        self.loads += other.loads;
        self.compared += other.compared;
        self.unanswered += other.unanswered;
    }
}

/// One run: a campaign on the model and the system.
struct Run {
    rng: Rng,
    sql_rng: Rng,
    generator: Generator,
    model: Model,
    system: System,
    /// The state in SQL; exact unless a relay was interrupted since.
    kept: Model,
    kept_exactly: bool,
    /// The highest sequence number that this core has seen.
    seen: u64,
    /// The last sequence number when Redis was copied.
    copied_at: Option<u64>,
    /// The state in SQL when it was copied.
    copied_sql: Option<Model>,
    tally: Tally,
    history: VecDeque<String>,
}

/// Runs the campaign of `seed` for `operations` operations; `Err` describes the difference and the last
/// operations.
pub async fn play(seed: u64, operations: u64) -> Result<Tally, String> {
    play_with_stalls(seed, operations, 0).await
}

/// Runs a campaign like [`play`], and stops Redis before about `stalls` of 100 operations until a call gets
/// no answer.
pub async fn play_with_stalls(seed: u64, operations: u64, stalls: u32) -> Result<Tally, String> {
    let (rng, generator, rules) = Generator::of(seed);
    let system = System::start(&rules, generator.begins_at).await;
    let model = Model::new(rules);
    let mut run = Run {
        rng,
        sql_rng: Rng::of(seed),
        generator,
        kept: model.clone(),
        kept_exactly: true,
        model,
        system,
        seen: 0,
        copied_at: None,
        copied_sql: None,
        tally: Tally::default(),
        history: VecDeque::new(),
    };
    let mut stall_rng = Rng::of(seed);
    while run.tally.operations < operations {
        let stall = stall_rng.percent(stalls);
        run.step(stall).await.map_err(|error| run.failed(seed, &error))?;
    }
    run.relay().await.map_err(|error| run.failed(seed, &error))?;
    run.tally.unanswered = run.system.unanswered();
    Ok(run.tally)
}

impl Run {
    /// Plays the next operation. With `stall`, Redis is stopped before it, if its first call is one to Redis by core.
    async fn step(&mut self, stall: bool) -> Result<(), String> {
        let now = self.system.clock.now_ms();
        let operation = Generator::next_sql_operation(&mut self.sql_rng)
            .unwrap_or_else(|| self.generator.next(&mut self.rng, now, &self.model));
        self.log_operation(&operation);
        self.tally.operations += operation.weight();
        let calls_redis = matches!(
            operation,
            Operation::Claims(_) | Operation::Transition(..) | Operation::LookUp(_) | Operation::Sweep
        );
        if stall && calls_redis {
            self.system.stop_redis();
        }
        match operation {
            Operation::Claims(attempts) => self.claims(&attempts).await,
            Operation::ClaimsInCrash(attempts, yields) => self.claims_in_crash(&attempts, yields).await,
            Operation::Transition(attempt, transition) => {
                self.tally.transitions += 1;
                let expected = self.model.transition(now, &attempt.model_id(), transition);
                same(&expected, &self.system.transition(&attempt, transition).await?)
            }
            Operation::LookUp(attempt) => self.look_up(&attempt).await,
            Operation::Clock(to) => {
                self.system.set_clock(to).await;
                Ok(())
            }
            Operation::Change(rules) => {
                self.model.rules = rules;
                Ok(self.system.change(&self.model.rules).await?)
            }
            Operation::Sweep => self.sweep(Recovered::Ready).await,
            Operation::Relay => self.relay().await,
            Operation::RelayCut(reads) => {
                self.sweep(Recovered::Ready).await?;
                self.kept_exactly = false;
                Ok(self.system.relay_cut(reads).await?)
            }
            Operation::RestartRedis => {
                self.tally.restarts += 1;
                self.system.restart_redis().await;
                Ok(())
            }
            Operation::RestartCore => {
                self.tally.restarts += 1;
                self.system.restart_core().await;
                self.seen = last_sequence(&self.kept);
                Ok(())
            }
            Operation::LoseKeys(mask) => self.lose_keys(mask).await,
            Operation::Starve(attempts, relays) => self.starve(&attempts, relays).await,
            Operation::Copy => {
                self.copied_at = Some(self.model.sequence);
                self.system.copy().await;
                Ok(())
            }
            Operation::Stale => self.stale().await,
            Operation::CopySql => {
                self.relay().await?;
                self.copied_sql = Some(self.kept.clone());
                self.system.copy_sql().await;
                Ok(())
            }
            Operation::ForgetSql(restarts) => self.forget_sql(restarts).await,
            Operation::Compare => self.compare().await,
        }
    }

    async fn claims(&mut self, attempts: &[ClaimAttempt]) -> Result<(), String> {
        let now = self.system.clock.now_ms();
        let due = self.model.holds.first().is_some_and(|(expires_at, _)| *expires_at <= now);
        let answers = match self.system.claims(attempts).await {
            Err(failure) if failure.is_unavailable() => return self.retry(attempts, None).await,
            answers => answers?,
        };
        let expected = decide(&mut self.model, now, &listed(attempts));
        self.record(attempts, &expected);
        same_each(&expected, &answers)?;
        // Compare the states if this call also expired holds, because one may have affected the other.
        if due { self.compare().await } else { Ok(()) }
    }

    /// Kills Redis with claims in flight.
    async fn claims_in_crash(&mut self, attempts: &[ClaimAttempt], yields: u32) -> Result<(), String> {
        self.tally.crashes_in_flight += 1;
        let first = self.system.claims_in_crash(attempts, yields).await;
        self.retry(attempts, first.ok()).await
    }

    /// Sends claims again whose answers may be missing. The first claim was decided or not; of the remaining
    /// claims, all or none were decided. The retry shows which.
    async fn retry(&mut self, attempts: &[ClaimAttempt], first: Option<Vec<Answer>>) -> Result<(), String> {
        let (now, listed) = (self.system.clock.now_ms(), listed(attempts));
        let before = self.model.clone();
        let expected = decide(&mut self.model, now, &listed);
        if first.as_ref() == Some(&expected) {
            self.record(attempts, &expected);
        }
        let answers = self.system.claims_until_decided(attempts).await;
        let (one, rest) = listed.split_at(1);
        let possible: &[(&str, &[Attempt])] = if first.is_some() {
            &[("all", &listed)]
        } else {
            &[("all", &listed), ("the first", one), ("all but the first", rest), ("none", &[])]
        };
        let mut differences = Vec::new();
        for (decided, claims) in possible {
            self.model = before.clone();
            match *decided {
                "all" => drop(decide(&mut self.model, now, claims)),
                _ => drop(self.model.claim_all(now, claims)),
            }
            let expected = decide(&mut self.model, now, &listed);
            match same_each(&expected, &answers) {
                Ok(()) => {
                    self.record(attempts, &expected);
                    return Ok(());
                }
                Err(difference) => {
                    differences.push(format!("if {decided} were decided before: {difference}"));
                }
            }
        }
        Err(differences.join("\n"))
    }

    fn record(&mut self, attempts: &[ClaimAttempt], answers: &[Answer]) {
        for (attempt, answer) in attempts.iter().zip(answers) {
            match answer {
                Answer::Taken(view, _) => {
                    self.tally.granted += 1;
                    self.seen = self.seen.max(view.sequence);
                    self.generator.granted(attempt.clone());
                }
                Answer::Replayed(view, _) => {
                    self.tally.replayed += 1;
                    self.seen = self.seen.max(view.sequence);
                }
                Answer::Refused { .. } => self.tally.refused += 1,
            }
        }
    }

    async fn look_up(&mut self, attempt: &ClaimAttempt) -> Result<(), String> {
        let (counters, view) = self.system.look_up(attempt).await?;
        let found = (counters.now.as_ms(), counters.version.get(), counters.taken, counters.sequence, view);
        let model = &self.model;
        let expected = model.claims.get(&attempt.model_id()).map(|claim| claim.view);
        let now = self.system.clock.now_ms();
        same(&(now, model.rules.version, model.taken, model.sequence, expected), &found)
    }

    async fn sweep(&mut self, expected: Recovered) -> Result<(), String> {
        let now = self.system.clock.now_ms();
        if self.model.rules.hold_ms.is_some() {
            while self.model.expire(now) > 0 {}
        }
        let unanswered = self.system.unanswered();
        let found = self.system.maintain().await?;
        // A run without an answer may have loaded the campaign.
        if found == Recovered::Ready && self.system.unanswered() > unanswered {
            return Ok(());
        }
        same(&expected, &found)
    }

    async fn relay(&mut self) -> Result<(), String> {
        self.tally.relays += 1;
        self.sweep(Recovered::Ready).await?;
        self.system.relay().await?;
        self.kept = self.model.clone();
        self.kept_exactly = true;
        let (rows, taken) = self.system.rows().await;
        compare::sql(&self.model, &rows, taken)?;
        self.compare().await
    }

    async fn compare(&mut self) -> Result<(), String> {
        self.tally.compared += 1;
        compare::redis(&self.model, &self.system.redis().await).await
    }

    /// Loses keys. Without the outbox, events that SQL does not have are lost; everything else is loaded from
    /// SQL.
    async fn lose_keys(&mut self, mask: u8) -> Result<(), String> {
        if !self.kept_exactly {
            self.relay().await?;
        }
        self.tally.loads += 1;
        let before = self.model.sequence;
        if self.system.lose_keys(mask).await {
            self.model.lose(&self.kept);
        } else if mask >> 4 & 1 == 1 {
            // Claims read back from their users' records lack the time of their last change.
            for (id, claim) in &mut self.model.claims {
                if self.kept.claims.get(id) != Some(claim) {
                    claim.updated_at = claim.view.claimed_at;
                }
            }
        }
        // Before the load the rest of the outbox is relayed to SQL; due holds expire only afterwards.
        self.kept = self.model.clone();
        // The copy may now be of a state that never existed.
        self.copied_at = None;
        self.loaded(last_sequence(&self.kept).max(self.seen)..=before).await
    }

    /// Restores the copy of Redis. Later events in SQL reveal that.
    async fn stale(&mut self) -> Result<(), String> {
        // A copy that lacks no grant cannot be detected, so nothing is guaranteed.
        let Some(_) = self.copied_at.take_if(|at| *at < last_sequence(&self.model)) else { return Ok(()) };
        self.relay().await?;
        self.tally.loads += 1;
        self.system.restart_redis_on_copy().await;
        self.loaded(last_sequence(&self.kept).max(self.seen)..=self.model.sequence).await
    }

    /// Restores the copy of SQL: Redis must restore everything that the copy lacks.
    async fn forget_sql(&mut self, restarts: bool) -> Result<(), String> {
        let Some(copied) = self.copied_sql.take() else { return Ok(()) };
        self.relay().await?;
        self.system.forget_sql(restarts).await;
        let is_behind = copied.claims != self.kept.claims || copied.rules.version != self.model.rules.version;
        for (id, claim) in &mut self.model.claims {
            if copied.claims.get(id) != Some(claim) {
                claim.updated_at = claim.view.claimed_at;
            }
        }
        let rows = u64::try_from(self.model.claims.len()).expect("a count");
        let recovered = self.system.maintain().await?;
        // Only an epoch may have been lost.
        if is_behind || recovered != Recovered::Ready {
            self.tally.loads += 1;
            same(&Recovered::Loaded(rows), &recovered)?;
        }
        self.relay().await
    }

    /// Checks that after a loss in Redis nothing is decided until everything is loaded from SQL.
    async fn loaded(&mut self, sequences: RangeInclusive<u64>) -> Result<(), String> {
        let refused = self.system.refusal(&[ClaimAttempt::probe()]).await;
        if !matches!(refused, Ok(NoDecision::NotReady(_))) {
            return Err(format!("after a loss in Redis a claim was answered {refused:?}"));
        }
        let rows = u64::try_from(self.model.claims.len()).expect("a count");
        self.sweep(Recovered::Loaded(rows)).await?;
        let (counters, _) = self.system.look_up(&ClaimAttempt::probe()).await?;
        if !sequences.contains(&counters.sequence) {
            return Err(format!(
                "sequence numbers continue from {}, not from {sequences:?}",
                counters.sequence
            ));
        }
        (self.model.sequence, self.kept.sequence) = (counters.sequence, counters.sequence);
        self.compare().await
    }

    /// Checks that Redis without free memory rejects claims before it writes anything, and that the relay
    /// continues.
    async fn starve(&mut self, attempts: &[ClaimAttempt], relays: bool) -> Result<(), String> {
        self.sweep(Recovered::Ready).await?;
        self.system.starve(true).await;
        let refused = self.system.refusal(attempts).await;
        if relays && self.rng.percent(50) {
            self.tally.restarts += 1;
            self.system.restart_core().await;
            self.seen = last_sequence(&self.kept);
            // The sweep fails, but before that the recovery finds the campaign ready.
            let _ = self.system.maintain().await;
        }
        let relayed = if relays { self.system.relay_starved().await } else { Ok(()) };
        self.system.starve(false).await;
        if refused != Ok(NoDecision::OutOfMemory) {
            return Err(format!("without memory, a claim was answered {refused:?}"));
        }
        relayed?;
        self.relay().await
    }

    fn log_operation(&mut self, operation: &Operation) {
        let number = self.tally.operations;
        let now = self.system.clock.now_ms();
        self.history.push_back(format!("{number} at {now}: {}", Short(operation)));
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
    }

    fn failed(&self, seed: u64, error: &str) -> String {
        let history: Vec<_> = self.history.iter().map(String::as_str).collect();
        format!(
            "SEED={seed} fails at operation {}:\n{error}\nThe rules then: {:?}\nThe last operations:\n{}",
            self.tally.operations,
            self.model.rules,
            history.join("\n")
        )
    }
}

/// Returns the last sequence number of a model's claims: the highest that SQL can have.
fn last_sequence(model: &Model) -> u64 {
    model.claims.values().map(|claim| claim.view.sequence).max().unwrap_or(0)
}

/// Prints an operation on one line of limited length.
struct Short<'a>(&'a Operation);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        let text = text
            .replace("ClaimAttempt { user: ", "")
            .replace("key: ", "")
            .replace("quantity: ", "×")
            .replace('"', "");
        write!(f, "{}", text.chars().take(1500).collect::<String>())
    }
}

/// Decides concurrent claims: the first finds no claim in flight and is sent separately; the remaining claims
/// follow once it has been decided.
fn decide(model: &mut Model, now: i64, listed: &[Attempt]) -> Vec<Answer> {
    let (first, rest) = listed.split_at(1);
    [model.claim_all(now, first), model.claim_all(now, rest)].concat()
}

fn listed(attempts: &[ClaimAttempt]) -> Vec<Attempt> {
    let listed = attempts.iter().map(|attempt| Attempt {
        id: attempt.model_id(),
        quantity: attempt.quantity,
        pass: attempt.pass,
    });
    listed.collect()
}

fn same_each(expected: &[Answer], found: &[Answer]) -> Result<(), String> {
    let differ: BTreeMap<_, _> =
        expected.iter().zip(found).enumerate().filter(|(_, (a, b))| a != b).collect();
    match differ.first_key_value() {
        None => same(&expected.len(), &found.len()),
        Some((at, (expected, found))) => {
            Err(format!("claim {at} of the list: expected {expected:?}\nfound {found:?}"))
        }
    }
}

/// Returns `Err` if `found` differs from `expected`.
pub fn same<T: PartialEq + Debug>(expected: &T, found: &T) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("expected {expected:?}\nfound    {found:?}")) }
}
