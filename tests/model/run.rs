//! One campaign, played on the model and on the system at once; whatever differs ends the run.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug};
use std::ops::RangeInclusive;

use claimgate_core::engine::recovery::Recovered;

use super::compare;
use super::operations::{Ask, Operation, Table};
use super::reference::{Answer, Id, Model};
use super::rng::Rng;
use super::system::{System, model_id};

/// Operations told of when a run fails.
const TOLD_MAX: usize = 20;

/// What has happened in one or more runs.
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
}

impl Tally {
    /// Adds another run's.
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
    }
}

/// One campaign being played.
struct Run {
    rng: Rng,
    rng_of_sql: Rng,
    table: Table,
    model: Model,
    system: System,
    /// What SQL holds; exact unless the relay was cut off since.
    kept: Model,
    kept_exactly: bool,
    /// The highest sequence that this core has been told.
    seen: u64,
    /// The last sequence when Redis was copied.
    copied_at: Option<u64>,
    /// What SQL held when it was copied.
    copied_sql: Option<Model>,
    tally: Tally,
    told: VecDeque<String>,
}

/// Plays the campaign of `seed` for `operations` operations; `Err` says what differed, and after what.
pub async fn play(seed: u64, operations: u64) -> Result<Tally, String> {
    let mut rng = Rng::of(seed);
    let (table, rules) = Table::lay(&mut rng);
    let system = System::start(&rules, table.begins_at).await;
    let model = Model::new(rules);
    let mut run = Run {
        rng,
        rng_of_sql: Rng::of(seed),
        table,
        kept: model.clone(),
        kept_exactly: true,
        model,
        system,
        seen: 0,
        copied_at: None,
        copied_sql: None,
        tally: Tally::default(),
        told: VecDeque::new(),
    };
    while run.tally.operations < operations {
        run.turn().await.map_err(|error| run.failed(seed, &error))?;
    }
    run.relay().await.map_err(|error| run.failed(seed, &error))?;
    Ok(run.tally)
}

impl Run {
    async fn turn(&mut self) -> Result<(), String> {
        let now = self.system.clock.now_ms();
        let operation = Table::next_of_sql(&mut self.rng_of_sql)
            .unwrap_or_else(|| self.table.next(&mut self.rng, now, &self.model));
        self.tell(&operation);
        self.tally.operations += operation.weight();
        match operation {
            Operation::Claims(asks) => self.claims(&asks).await,
            Operation::ClaimsInCrash(asks, yields) => self.claims_in_crash(&asks, yields).await,
            Operation::Transition(ask, transition) => {
                self.tally.transitions += 1;
                let expected = self.model.transition(now, &model_id(&ask), transition);
                same(&expected, &self.system.transition(&ask, transition).await?)
            }
            Operation::LookUp(ask) => self.look_up(&ask).await,
            Operation::Clock(to) => {
                self.system.set_clock(to).await;
                Ok(())
            }
            Operation::Change(rules) => {
                self.model.rules = rules;
                self.system.change(&self.model.rules).await
            }
            Operation::Sweep => self.sweep(Recovered::Ready).await,
            Operation::Relay => self.relay().await,
            Operation::RelayCut(looks) => {
                self.sweep(Recovered::Ready).await?;
                self.kept_exactly = false;
                self.system.relay_cut(looks).await
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
            Operation::Starve(asks, relays) => self.starve(&asks, relays).await,
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

    async fn claims(&mut self, asks: &[Ask]) -> Result<(), String> {
        let now = self.system.clock.now_ms();
        let due = self.model.holds.first().is_some_and(|(expires_at, _)| *expires_at <= now);
        let expected = decide(&mut self.model, now, &listed(asks));
        let answers = self.system.claims(asks).await?;
        self.record(asks, &expected);
        same_each(&expected, &answers)?;
        // Where two things happened in one call, one may have left its mark on the other.
        if due { self.compare().await } else { Ok(()) }
    }

    /// Redis died while claims were in flight: the first was decided or not, and the rest all or none. Asking again tells
    /// which.
    async fn claims_in_crash(&mut self, asks: &[Ask], yields: u32) -> Result<(), String> {
        self.tally.crashes_in_flight += 1;
        let (now, listed) = (self.system.clock.now_ms(), listed(asks));
        let first = self.system.claims_in_crash(asks, yields).await;
        let before = self.model.clone();
        let expected = decide(&mut self.model, now, &listed);
        if let Ok(answers) = &first
            && answers == &expected
        {
            self.record(asks, &expected);
        }
        let again = decide(&mut self.model, now, &listed);
        let answers = self.ask_until_decided(asks).await?;
        if answers == again {
            self.record(asks, &again);
            return Ok(());
        }
        if first.is_ok() {
            return same_each(&again, &answers);
        }
        let (one, rest) = listed.split_at(1);
        for decided in [one, rest] {
            self.model = before.clone();
            self.model.claim_all(now, decided);
            let expected = decide(&mut self.model, now, &listed);
            if answers == expected {
                self.record(asks, &expected);
                return Ok(());
            }
        }
        self.model = before;
        let expected = decide(&mut self.model, now, &listed);
        self.record(asks, &expected);
        same_each(&expected, &answers)
    }

    async fn ask_until_decided(&self, asks: &[Ask]) -> Result<Vec<Answer>, String> {
        let started = tokio::time::Instant::now();
        loop {
            match self.system.claims(asks).await {
                Err(error) if started.elapsed() > support::SOON => return Err(error),
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                decided => return decided,
            }
        }
    }

    fn record(&mut self, asks: &[Ask], answers: &[Answer]) {
        for (ask, answer) in asks.iter().zip(answers) {
            match answer {
                Answer::Taken(view, _) => {
                    self.tally.granted += 1;
                    self.seen = self.seen.max(view.sequence);
                    self.table.granted(ask.clone());
                }
                Answer::Replayed(view, _) => {
                    self.tally.replayed += 1;
                    self.seen = self.seen.max(view.sequence);
                }
                Answer::Refused { .. } => self.tally.refused += 1,
            }
        }
    }

    async fn look_up(&mut self, ask: &Ask) -> Result<(), String> {
        let (counters, view) = self.system.look_up(ask).await?;
        let found = (counters.now.as_ms(), counters.version.get(), counters.taken, counters.sequence, view);
        let model = &self.model;
        let expected = model.claims.get(&model_id(ask)).map(|claim| claim.view);
        let now = self.system.clock.now_ms();
        same(&(now, model.rules.version, model.taken, model.sequence, expected), &found)
    }

    async fn sweep(&mut self, expected: Recovered) -> Result<(), String> {
        let now = self.system.clock.now_ms();
        if self.model.rules.hold_ms.is_some() {
            while self.model.expire(now) > 0 {}
        }
        same(&expected, &self.system.maintain().await?)
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

    /// Keys vanish. With the outbox goes what SQL has not heard yet; all else comes back from SQL.
    async fn lose_keys(&mut self, mask: u8) -> Result<(), String> {
        if !self.kept_exactly {
            self.relay().await?;
        }
        self.tally.loads += 1;
        let before = self.model.sequence;
        if self.system.lose_keys(mask).await {
            self.model.lose(&self.kept);
        } else if mask >> 4 & 1 == 1 {
            // Read back from their users, claims do not tell when they last changed.
            for (id, claim) in &mut self.model.claims {
                if self.kept.claims.get(id) != Some(claim) {
                    claim.updated_at = claim.view.claimed_at;
                }
            }
        }
        // Before the load, what is left of the outbox goes to SQL; holds that are due come back only after it.
        self.kept = self.model.clone();
        // What was copied may be of a time that has never been.
        self.copied_at = None;
        self.loaded(last_sequence(&self.kept).max(self.seen)..=before).await
    }

    /// Redis comes back as it was a while ago. What SQL has heard since then tells.
    async fn stale(&mut self) -> Result<(), String> {
        // A copy that lacks no grant cannot be told from the real thing: nothing is promised then.
        let Some(_) = self.copied_at.take_if(|at| *at < last_sequence(&self.model)) else { return Ok(()) };
        self.relay().await?;
        self.tally.loads += 1;
        self.system.restart_redis_on_copy().await;
        self.loaded(last_sequence(&self.kept).max(self.seen)..=self.model.sequence).await
    }

    /// SQL comes back as it was a while ago: all that it lacks is written again from Redis.
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
        // An epoch may be all that was lost.
        if is_behind || recovered != Recovered::Ready {
            self.tally.loads += 1;
            same(&Recovered::Loaded(rows), &recovered)?;
        }
        self.relay().await
    }

    /// Redis has lost something: nothing is decided until all has been loaded from SQL.
    async fn loaded(&mut self, sequences: RangeInclusive<u64>) -> Result<(), String> {
        let refused = self.system.claims(&[Ask::probe()]).await;
        if !matches!(&refused, Err(why) if why.starts_with("campaign not ready")) {
            return Err(format!("when Redis had lost something, a claim was answered {refused:?}"));
        }
        let rows = u64::try_from(self.model.claims.len()).expect("a count");
        self.sweep(Recovered::Loaded(rows)).await?;
        let (counters, _) = self.system.look_up(&Ask::probe()).await?;
        if !sequences.contains(&counters.sequence) {
            return Err(format!("sequences go on from {}, not from {sequences:?}", counters.sequence));
        }
        (self.model.sequence, self.kept.sequence) = (counters.sequence, counters.sequence);
        self.compare().await
    }

    /// Out of memory, Redis refuses before it writes anything, and the relay goes on all the same.
    async fn starve(&mut self, asks: &[Ask], relays: bool) -> Result<(), String> {
        self.sweep(Recovered::Ready).await?;
        self.system.starve(true).await;
        let refused = self.system.claims(asks).await;
        if relays && self.rng.percent(50) {
            self.tally.restarts += 1;
            self.system.restart_core().await;
            self.seen = last_sequence(&self.kept);
            // The sweep is refused; that the campaign is ready, it finds out before.
            let _ = self.system.maintain().await;
        }
        let relayed = if relays { self.system.relay_starved().await } else { Ok(()) };
        self.system.starve(false).await;
        if !matches!(&refused, Err(why) if why.contains("out of memory")) {
            return Err(format!("without memory, a claim was answered {refused:?}"));
        }
        relayed?;
        self.relay().await
    }

    fn tell(&mut self, operation: &Operation) {
        let number = self.tally.operations;
        let now = self.system.clock.now_ms();
        self.told.push_back(format!("{number} at {now}: {}", Short(operation)));
        if self.told.len() > TOLD_MAX {
            self.told.pop_front();
        }
    }

    fn failed(&self, seed: u64, error: &str) -> String {
        let told: Vec<_> = self.told.iter().map(String::as_str).collect();
        format!(
            "SEED={seed} fails at operation {}:\n{error}\nThe rules then: {:?}\nThe last operations:\n{}",
            self.tally.operations,
            self.model.rules,
            told.join("\n")
        )
    }
}

/// The last sequence that a model's claims have: all that SQL can know of.
fn last_sequence(model: &Model) -> u64 {
    model.claims.values().map(|claim| claim.view.sequence).max().unwrap_or(0)
}

/// An operation on one line of bounded length.
struct Short<'a>(&'a Operation);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.0);
        let text =
            text.replace("Ask { user: ", "").replace("key: ", "").replace("quantity: ", "×").replace('"', "");
        write!(f, "{}", text.chars().take(1500).collect::<String>())
    }
}

/// Claims that are made together: the first, which finds nothing in flight, goes alone, and the rest once it is decided.
fn decide(model: &mut Model, now: i64, listed: &[(Id, u32)]) -> Vec<Answer> {
    let (first, rest) = listed.split_at(1);
    [model.claim_all(now, first), model.claim_all(now, rest)].concat()
}

fn listed(asks: &[Ask]) -> Vec<(Id, u32)> {
    asks.iter().map(|ask| (model_id(ask), ask.quantity)).collect()
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

/// `Err` when what was found is not what was expected.
pub fn same<T: PartialEq + Debug>(expected: &T, found: &T) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("expected {expected:?}\nfound    {found:?}")) }
}
