//! The operations on a campaign, and their random choice, which favours edge cases.

use claimgate_shared::{ClaimId, ClaimRequest};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::reference::{AdminState, Id, Limits, Model, Pass, Rules, Transition};
use super::rng::Rng;

const SECOND_MS: i64 = 1000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// Number of holds that accumulate before all become due.
const CROWD: usize = 270;

/// The campaign's id.
pub const CAMPAIGN: &str = "model";

/// Time zones with offsets of whole hours and fractions, ahead and behind, with and without daylight saving
/// time.
const ZONES: [&str; 7] = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Kiritimati",
    "America/St_Johns",
    "Pacific/Pago_Pago",
];

/// One attempt to claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimAttempt {
    pub user: String,
    pub key: String,
    pub quantity: u32,
    pub pass: Pass,
}

impl ClaimAttempt {
    /// Creates a claim of one unit, with a pass.
    pub fn of(user: &str, key: &str) -> Self {
        Self { user: user.to_owned(), key: key.to_owned(), quantity: 1, pass: Pass::Shown }
    }

    /// Creates a claim of a user who never claims otherwise.
    pub fn probe() -> Self {
        Self::of("probe", "probe")
    }

    /// Returns the request that core receives.
    pub fn request(&self) -> ClaimRequest {
        ClaimRequest {
            campaign_id: CAMPAIGN.parse().expect("an id"),
            user_id: self.user.parse().expect("an id"),
            quantity: self.quantity.try_into().expect("a quantity"),
            idempotency_key: self.key.parse().expect("a key"),
        }
    }

    /// Returns the claim's id.
    pub fn claim_id(&self) -> ClaimId {
        self.request().claim_id()
    }

    /// Returns the claim's id in the model.
    pub fn model_id(&self) -> Id {
        (self.user.clone(), self.claim_id().digest)
    }
}

/// One operation.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Claims decided together, in this order.
    Claims(Vec<ClaimAttempt>),
    /// Claims during which Redis is killed.
    ClaimsInCrash(Vec<ClaimAttempt>, u32),
    Transition(ClaimAttempt, Transition),
    LookUp(ClaimAttempt),
    /// The clock moves to this instant, forwards or backwards.
    Clock(i64),
    /// The campaign gets these rules, with `version` raised by one.
    Change(Rules),
    /// Due holds are expired, as the recovery does without any claims.
    Sweep,
    /// The outbox is relayed to SQL, and both stores are compared with the model.
    Relay,
    /// The relay is interrupted at a random point.
    RelayCut(u32),
    /// Redis is killed with SIGKILL and restarted on its own files.
    RestartRedis,
    /// Core loses its memory and restarts.
    RestartCore,
    /// Some of the campaign's five keys are lost, one bit per key, and the campaign is reloaded from SQL.
    LoseKeys(u8),
    /// Claims while Redis is out of memory; with `true` the outbox is relayed in the meantime.
    Starve(Vec<ClaimAttempt>, bool),
    /// Redis is copied, to be restored later.
    Copy,
    /// Redis restarts with the copy.
    Stale,
    /// The database is copied, to be restored later.
    CopySql,
    /// The copy replaces the database; with `true`, core restarts before it notices.
    ForgetSql(bool),
    /// Everything in Redis is compared with the model.
    Compare,
}

impl Operation {
    /// Returns how many operations this one counts as.
    pub fn weight(&self) -> u64 {
        match self {
            Self::Claims(attempts) | Self::ClaimsInCrash(attempts, _) => attempts.len() as u64,
            _ => 1,
        }
    }
}

/// Generates the operations on a campaign.
#[derive(Debug)]
pub struct Generator {
    users: u32,
    keys: u32,
    batch_max: u32,
    /// Whether claims are made until more holds become due at the same time than one call expires.
    crowd: bool,
    /// Whether the campaign's rules may require passes.
    has_passes: bool,
    /// Whether holds are extended.
    extends: bool,
    /// The initial time of the clock.
    pub begins_at: i64,
    /// Claims that have been granted.
    granted: Vec<ClaimAttempt>,
}

impl Generator {
    /// Chooses a new campaign's rules at random, and creates a generator for the campaign.
    pub fn of(seed: u64) -> (Rng, Self, Rules) {
        let mut rng = Rng::of(seed);
        // Other seeds make the choices that they made before there were passes and extensions.
        let has_passes = matches!(seed % 5, 1 | 2);
        let (generator, rules) = Self::new(&mut rng, has_passes);
        if !seed.is_multiple_of(2) {
            return (rng, generator, rules);
        }
        // Such holds last beyond the next step of the clock, but not beyond the maximum.
        let rules = Rules { hold_ms: Some(900 * SECOND_MS), ..rules };
        (rng, Self { extends: true, ..generator }, rules)
    }

    fn new(rng: &mut Rng, has_passes: bool) -> (Self, Rules) {
        let zone = TimeZone::get(rng.one_of(&ZONES).expect("a zone")).expect("a known zone");
        let begins_at = near_a_clock_change(&zone, rng);
        let crowd = rng.percent(20);
        let generator = Self {
            users: if crowd { 300 } else { rng.count(2, 30) },
            keys: if crowd { 12 } else { rng.count(4, 60) },
            crowd,
            has_passes,
            extends: false,
            batch_max: if crowd { 250 } else { rng.count(3, 24) },
            begins_at,
            granted: Vec::new(),
        };
        let limits = if crowd {
            let total = rng.percent(80).then(|| rng.count(500, 900));
            Limits { total, per_user: limit(rng, 80, 20), ..Limits::default() }
        } else {
            Limits {
                total: limit(rng, 40, 900),
                per_user: limit(rng, 60, 60),
                per_user_per_day: limit(rng, 50, 12),
                per_claim: limit(rng, 40, 4),
            }
        };
        let hold_seconds =
            (crowd || rng.percent(60)).then(|| rng.weighted(&[(3, 30), (3, 900), (1, 90_000)]));
        let rules = Rules {
            limits,
            starts_at: begins_at + rng.weighted(&[(6, -DAY_MS), (1, 5 * HOUR_MS)]),
            ends_at: rng.percent(40).then(|| begins_at + rng.within(2, 20) * DAY_MS),
            admin_state: AdminState::On,
            version: 1,
            zone,
            hold_ms: hold_seconds.map(|seconds| seconds * SECOND_MS),
            pass_until: if has_passes { pass_until(rng, begins_at) } else { None },
        };
        (generator, rules)
    }

    /// Records a granted claim, so that later operations reuse it.
    pub fn granted(&mut self, attempt: ClaimAttempt) {
        self.granted.push(attempt);
    }

    /// Chooses the next operation at `now`.
    pub fn next(&self, rng: &mut Rng, now: i64, model: &Model) -> Operation {
        type Choice = fn(&Generator, &mut Rng, i64, &Model) -> Operation;
        let choices: [(u32, Choice); 16] = [
            (420, |generator, rng, _, _| Operation::Claims(generator.batch(rng))),
            (4, |generator, rng, _, _| Operation::ClaimsInCrash(generator.batch(rng), rng.count(0, 12))),
            (220, |generator, rng, _, model| generator.transition(rng, model)),
            (60, |generator, rng, _, _| Operation::LookUp(generator.known_or_not(rng))),
            (180, |generator, rng, now, model| Operation::Clock(generator.clock(rng, now, model))),
            (40, |generator, rng, now, model| Operation::Change(generator.patch(rng, now, &model.rules))),
            (12, |_, rng, _, model| Operation::Change(admin_state(rng, &model.rules))),
            (20, |_, _, _, _| Operation::Sweep),
            (14, |_, _, _, _| Operation::Relay),
            (8, |_, rng, _, _| Operation::RelayCut(rng.count(0, 200))),
            (3, |_, _, _, _| Operation::RestartRedis),
            (6, |_, _, _, _| Operation::RestartCore),
            (3, |generator, rng, _, _| Operation::Starve(generator.starved(rng), rng.percent(50))),
            (4, |_, _, _, _| Operation::Copy),
            (4, |_, _, _, _| Operation::Stale),
            (8, |_, rng, _, _| Operation::LoseKeys(u8::try_from(rng.count(1, 31)).expect("five bits"))),
        ];
        if rng.percent(1) {
            return Operation::Compare;
        }
        // In a crowd, holds accumulate first.
        if self.crowd && model.holds.len() <= CROWD && rng.percent(60) {
            return Operation::Claims(self.batch(rng));
        }
        rng.weighted(&choices)(self, rng, now, model)
    }

    /// Decides at random whether the database is copied or restored now. A separate generator keeps older
    /// seeds unchanged.
    pub fn next_sql_operation(rng: &mut Rng) -> Option<Operation> {
        if !rng.percent(1) {
            return None;
        }
        Some(if rng.percent(50) { Operation::CopySql } else { Operation::ForgetSql(rng.percent(50)) })
    }

    fn batch(&self, rng: &mut Rng) -> Vec<ClaimAttempt> {
        let size = rng.count(1, self.batch_max);
        let mut attempts: Vec<ClaimAttempt> = Vec::new();
        for _ in 0..size {
            let attempt = match rng.count(1, 10) {
                // Repeat a claim in the same call.
                1 => rng.one_of(&attempts).cloned(),
                2..=3 => rng.one_of(&self.granted).cloned(),
                _ => None,
            };
            let mut attempt = attempt.unwrap_or_else(|| self.any(rng));
            // A user who already has a claim makes another.
            if let Some(known) = rng.one_of(&self.granted).filter(|_| rng.percent(20)) {
                attempt.user.clone_from(&known.user);
            }
            if rng.percent(3) {
                attempt.quantity = quantity(rng);
            }
            attempt.pass = self.pass(rng);
            attempts.push(attempt);
        }
        attempts
    }

    fn starved(&self, rng: &mut Rng) -> Vec<ClaimAttempt> {
        let known = rng.one_of(&self.granted).cloned();
        known.map_or_else(|| self.batch(rng), |attempt| vec![attempt])
    }

    fn any(&self, rng: &mut Rng) -> ClaimAttempt {
        ClaimAttempt {
            user: format!("u{}", rng.count(1, self.users)),
            key: format!("k{}", rng.count(1, self.keys)),
            quantity: quantity(rng),
            pass: self.pass(rng),
        }
    }

    /// Chooses the pass to send with a claim. A retry may have a different one, or none.
    fn pass(&self, rng: &mut Rng) -> Pass {
        if !self.has_passes {
            return Pass::Missing;
        }
        match rng.count(1, 10) {
            1..=3 => Pass::Missing,
            4..=8 => Pass::Shown,
            _ => Pass::Units(rng.count(1, 6)),
        }
    }

    fn patch(&self, rng: &mut Rng, now: i64, rules: &Rules) -> Rules {
        if self.has_passes && rng.percent(30) {
            return Rules { pass_until: pass_until(rng, now), version: rules.version + 1, ..rules.clone() };
        }
        patch(rng, now, rules)
    }

    fn known_or_not(&self, rng: &mut Rng) -> ClaimAttempt {
        let known = rng.one_of(&self.granted).cloned();
        known.filter(|_| rng.percent(95)).unwrap_or_else(|| self.any(rng))
    }

    fn transition(&self, rng: &mut Rng, model: &Model) -> Operation {
        if self.extends && rng.percent(40) {
            return Operation::Transition(self.held_or_not(rng, model), Transition::Extend);
        }
        let transition = if rng.percent(40) { Transition::Confirm } else { Transition::Return };
        Operation::Transition(self.known_or_not(rng), transition)
    }

    /// Chooses a claim for an extension: a held one, if one of ten is held.
    fn held_or_not(&self, rng: &mut Rng, model: &Model) -> ClaimAttempt {
        let held = (0..10)
            .filter_map(|_| rng.one_of(&self.granted))
            .find(|attempt| model.is_held(&attempt.model_id()))
            .cloned();
        held.unwrap_or_else(|| self.known_or_not(rng))
    }

    /// Chooses the clock's next time: at, just before or just after an edge, a little later, or a little
    /// earlier.
    fn clock(&self, rng: &mut Rng, now: i64, model: &Model) -> i64 {
        if self.crowd && model.holds.len() > CROWD {
            return model.holds.last().map_or(now, |(expires_at, _)| expires_at + 1);
        }
        let midnight = || model.midnight_after(now.div_euclid(DAY_MS) - 1);
        let pass_until = model.rules.pass_until.filter(|until| *until < i64::MAX);
        let edge = match rng.count(1, 13) {
            11..=13 if self.has_passes => pass_until,
            1..=4 => model.holds.first().map(|(expires_at, _)| *expires_at),
            5..=6 => Some(midnight() + rng.within(0, 2) * DAY_MS),
            7 => Some(model.rules.starts_at),
            8..=9 => model.rules.ends_at,
            10 => model.holds.last().map(|(expires_at, _)| *expires_at),
            _ => None,
        };
        let near = edge.filter(|edge| (now - 2 * HOUR_MS..now + 3 * DAY_MS).contains(edge));
        let target = match near {
            Some(edge) => edge + rng.within(-1, 1),
            None if rng.percent(25) => now - rng.within(1, 2 * HOUR_MS),
            None => now + rng.weighted(&[(4, 1), (4, 10 * SECOND_MS), (3, HOUR_MS), (1, 14 * HOUR_MS)]),
        };
        // Core computes the days from 400 days ago to 500 days ahead.
        target.clamp(self.begins_at - DAY_MS, self.begins_at + 60 * DAY_MS)
    }
}

fn quantity(rng: &mut Rng) -> u32 {
    rng.weighted(&[(70, 1), (15, 2), (10, 3), (3, 5), (2, u32::MAX)])
}

/// Chooses a limit; `None` in `never` of a hundred cases.
fn limit(rng: &mut Rng, never: u32, most: u32) -> Option<u32> {
    (!rng.percent(never)).then(|| rng.count(1, most))
}

/// Chooses the time until which claims need a pass.
fn pass_until(rng: &mut Rng, now: i64) -> Option<i64> {
    rng.weighted(&[
        (3, None),
        (3, Some(i64::MAX)),
        (2, Some(now + 10 * SECOND_MS)),
        (2, Some(now + 5 * HOUR_MS)),
        (1, Some(now - 1)),
    ])
}

fn patch(rng: &mut Rng, now: i64, rules: &Rules) -> Rules {
    let mut changed = Rules { version: rules.version + 1, ..rules.clone() };
    let limits = &mut changed.limits;
    match rng.count(1, 8) {
        1..=3 => limits.total = limit(rng, 50, 1200),
        4 => limits.per_user = limit(rng, 60, 80),
        5 => limits.per_user_per_day = limit(rng, 50, 15),
        6 => limits.per_claim = limit(rng, 50, 5),
        7 => changed.starts_at = now + rng.weighted(&[(6, -DAY_MS), (1, HOUR_MS)]),
        _ => {
            let ahead = rng.weighted(&[(3, None), (2, Some(3 * DAY_MS)), (2, Some(HOUR_MS))]);
            changed.ends_at = ahead.map(|ahead| now + ahead);
        }
    }
    // A window must end after it starts.
    if changed.ends_at.is_some_and(|end| end <= changed.starts_at) {
        changed.starts_at = changed.ends_at.unwrap_or(now) - HOUR_MS;
    }
    changed
}

/// Pauses and resumes alternately; rarely ends the campaign.
fn admin_state(rng: &mut Rng, rules: &Rules) -> Rules {
    let admin_state = match rules.admin_state {
        AdminState::Ended => AdminState::Ended,
        _ if rng.percent(3) => AdminState::Ended,
        AdminState::On if rng.percent(60) => AdminState::Paused,
        _ => AdminState::On,
    };
    Rules { admin_state, version: rules.version + 1, ..rules.clone() }
}

/// Returns an instant 36 hours before one of the zone's next two clock changes; in a zone without them, noon
/// of today.
fn near_a_clock_change(zone: &TimeZone, rng: &mut Rng) -> i64 {
    let skip = usize::from(rng.percent(50));
    let now = Timestamp::now();
    let horizon = now + SignedDuration::from_hours(24 * 400);
    let coming = zone.following(now).take_while(|step| step.timestamp() < horizon).nth(skip);
    match coming {
        Some(step) => step.timestamp().as_millisecond() - 36 * HOUR_MS,
        None => now.as_millisecond().div_euclid(DAY_MS) * DAY_MS + DAY_MS / 2,
    }
}
