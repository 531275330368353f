//! What may happen to a campaign, and how the next thing is chosen: at random, but near edges more often than not.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::reference::{AdminState, Limits, Model, Rules, Transition};
use super::rng::Rng;

const SECOND_MS: i64 = 1000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// Holds that a crowd gathers before they all come due.
const CROWD: usize = 270;

/// Zones with offsets of whole hours and not, ahead and behind, with and without clocks that change.
const ZONES: [&str; 7] = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Kiritimati",
    "America/St_Johns",
    "Pacific/Pago_Pago",
];

/// One claim asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub user: String,
    pub key: String,
    pub quantity: u32,
}

impl Ask {
    /// Of a user who has never claimed.
    pub fn probe() -> Self {
        Self { user: "probe".to_owned(), key: "probe".to_owned(), quantity: 1 }
    }
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Claims that are decided together, in this order.
    Claims(Vec<Ask>),
    /// The same, with Redis killed while they are in flight.
    ClaimsInCrash(Vec<Ask>, u32),
    Transition(Ask, Transition),
    LookUp(Ask),
    /// The clock moves to this instant, forwards or back.
    Clock(i64),
    /// The rules become these; `version` is one higher.
    Change(Rules),
    /// Holds that are due are given back, as the recovery does without any claims.
    Sweep,
    /// The outbox is emptied into SQL, and both are compared.
    Relay,
    /// The relay is cut off somewhere.
    RelayCut(u32),
    /// `kill -9` of Redis, and back on its own files.
    RestartRedis,
    /// Core forgets everything and starts again.
    RestartCore,
    /// Some of the campaign's five keys vanish (bit by bit); the rest is loaded from SQL.
    LoseKeys(u8),
    /// A claim made before, if there is one, while Redis is out of memory; with `true`, the outbox is relayed meanwhile.
    Starve(Vec<Ask>, bool),
    /// Redis is copied, to be brought back by and by.
    Copy,
    /// Redis restarts, on the copy.
    Stale,
    /// The database is copied, to be brought back by and by.
    CopySql,
    /// The copy of the database takes its place; with `true`, core restarts before it notices.
    ForgetSql(bool),
    /// Everything in Redis is compared.
    Compare,
}

impl Operation {
    /// How many operations it counts for.
    pub fn weight(&self) -> u64 {
        match self {
            Self::Claims(asks) | Self::ClaimsInCrash(asks, _) => asks.len() as u64,
            _ => 1,
        }
    }
}

/// What a campaign is played with.
#[derive(Debug)]
pub struct Table {
    users: u32,
    keys: u32,
    batch_max: u32,
    /// Whether claims are made until more holds are due at once than one call gives back.
    crowd: bool,
    /// Where the clock begins.
    pub begins_at: i64,
    /// Claims that have been granted at some time.
    granted: Vec<Ask>,
}

impl Table {
    /// A new campaign's rules, and what it is played with.
    pub fn lay(rng: &mut Rng) -> (Self, Rules) {
        let zone = TimeZone::get(rng.one_of(&ZONES).expect("a zone")).expect("a known zone");
        let begins_at = near_a_clock_change(&zone, rng);
        let crowd = rng.percent(20);
        let table = Self {
            users: if crowd { 300 } else { rng.count(2, 30) },
            keys: if crowd { 12 } else { rng.count(4, 60) },
            crowd,
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
        };
        (table, rules)
    }

    /// Records a claim that was granted, so that later operations come back to it.
    pub fn granted(&mut self, ask: Ask) {
        self.granted.push(ask);
    }

    /// What happens next at `now`.
    pub fn next(&self, rng: &mut Rng, now: i64, model: &Model) -> Operation {
        type Choice = fn(&Table, &mut Rng, i64, &Model) -> Operation;
        let choices: [(u32, Choice); 16] = [
            (420, |table, rng, _, _| Operation::Claims(table.batch(rng))),
            (4, |table, rng, _, _| Operation::ClaimsInCrash(table.batch(rng), rng.count(0, 12))),
            (220, |table, rng, _, _| table.transition(rng)),
            (60, |table, rng, _, _| Operation::LookUp(table.known_or_not(rng))),
            (180, |table, rng, now, model| Operation::Clock(table.clock(rng, now, model))),
            (40, |_, rng, now, model| Operation::Change(patch(rng, now, &model.rules))),
            (12, |_, rng, _, model| Operation::Change(admin_state(rng, &model.rules))),
            (20, |_, _, _, _| Operation::Sweep),
            (14, |_, _, _, _| Operation::Relay),
            (8, |_, rng, _, _| Operation::RelayCut(rng.count(0, 200))),
            (3, |_, _, _, _| Operation::RestartRedis),
            (6, |_, _, _, _| Operation::RestartCore),
            (3, |table, rng, _, _| Operation::Starve(table.starved(rng), rng.percent(50))),
            (4, |_, _, _, _| Operation::Copy),
            (4, |_, _, _, _| Operation::Stale),
            (8, |_, rng, _, _| Operation::LoseKeys(u8::try_from(rng.count(1, 31)).expect("five bits"))),
        ];
        if rng.percent(1) {
            return Operation::Compare;
        }
        // A crowd gathers first.
        if self.crowd && model.holds.len() <= CROWD && rng.percent(60) {
            return Operation::Claims(self.batch(rng));
        }
        rng.weighted(&choices)(self, rng, now, model)
    }

    /// Whether the database is copied now, or a copy comes back. Drawn from a separate generator, so that older seeds play what
    /// they played.
    pub fn next_of_sql(rng: &mut Rng) -> Option<Operation> {
        if !rng.percent(1) {
            return None;
        }
        Some(if rng.percent(50) { Operation::CopySql } else { Operation::ForgetSql(rng.percent(50)) })
    }

    fn batch(&self, rng: &mut Rng) -> Vec<Ask> {
        let size = rng.count(1, self.batch_max);
        let mut asks: Vec<Ask> = Vec::new();
        for _ in 0..size {
            let ask = match rng.count(1, 10) {
                // The same once more, in the same call.
                1 => rng.one_of(&asks).cloned(),
                2..=3 => rng.one_of(&self.granted).cloned(),
                _ => None,
            };
            let mut ask = ask.unwrap_or_else(|| self.any(rng));
            // A user who has claimed before claims again.
            if let Some(known) = rng.one_of(&self.granted).filter(|_| rng.percent(20)) {
                ask.user.clone_from(&known.user);
            }
            if rng.percent(3) {
                ask.quantity = quantity(rng);
            }
            asks.push(ask);
        }
        asks
    }

    fn starved(&self, rng: &mut Rng) -> Vec<Ask> {
        let known = rng.one_of(&self.granted).cloned();
        known.map_or_else(|| self.batch(rng), |ask| vec![ask])
    }

    fn any(&self, rng: &mut Rng) -> Ask {
        Ask {
            user: format!("u{}", rng.count(1, self.users)),
            key: format!("k{}", rng.count(1, self.keys)),
            quantity: quantity(rng),
        }
    }

    fn known_or_not(&self, rng: &mut Rng) -> Ask {
        let known = rng.one_of(&self.granted).cloned();
        known.filter(|_| rng.percent(95)).unwrap_or_else(|| self.any(rng))
    }

    fn transition(&self, rng: &mut Rng) -> Operation {
        let transition = if rng.percent(40) { Transition::Confirm } else { Transition::Return };
        Operation::Transition(self.known_or_not(rng), transition)
    }

    /// Where the clock goes: to an edge, just before it or just past it, a little on, or a little back.
    fn clock(&self, rng: &mut Rng, now: i64, model: &Model) -> i64 {
        if self.crowd && model.holds.len() > CROWD {
            return model.holds.last().map_or(now, |(expires_at, _)| expires_at + 1);
        }
        let midnight = || model.midnight_after(now.div_euclid(DAY_MS) - 1);
        let edge = match rng.count(1, 13) {
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
        // Core lays the days out for 500 days from now on, and for 400 back.
        target.clamp(self.begins_at - DAY_MS, self.begins_at + 60 * DAY_MS)
    }
}

fn quantity(rng: &mut Rng) -> u32 {
    rng.weighted(&[(70, 1), (15, 2), (10, 3), (3, 5), (2, u32::MAX)])
}

/// None `never` times in a hundred.
fn limit(rng: &mut Rng, never: u32, most: u32) -> Option<u32> {
    (!rng.percent(never)).then(|| rng.count(1, most))
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
    // A window runs forwards.
    if changed.ends_at.is_some_and(|end| end <= changed.starts_at) {
        changed.starts_at = changed.ends_at.unwrap_or(now) - HOUR_MS;
    }
    changed
}

/// Paused and resumed in turn; ended once in a long while.
fn admin_state(rng: &mut Rng, rules: &Rules) -> Rules {
    let admin_state = match rules.admin_state {
        AdminState::Ended => AdminState::Ended,
        _ if rng.percent(3) => AdminState::Ended,
        AdminState::On if rng.percent(60) => AdminState::Paused,
        _ => AdminState::On,
    };
    Rules { admin_state, version: rules.version + 1, ..rules.clone() }
}

/// A day and a half before the zone's clocks change next, or next but one; where they never do, noon of today.
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
