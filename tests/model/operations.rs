//! What may happen to a campaign, and how the next thing is chosen: at random, but near edges more often than not.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::chance::Chance;
use super::reference::{Limits, Model, Rules, Settlement, Switch};

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
    /// The same, with Redis killed while they are under way.
    ClaimsInCrash(Vec<Ask>, u32),
    Settle(Ask, Settlement),
    LookUp(Ask),
    /// The clock moves to this instant, forwards or back.
    Clock(i64),
    /// The rules become these; `version` is one higher.
    Change(Rules),
    /// Holds that are due are given back, as the recovery does when nobody claims.
    Sweep,
    /// The outbox is emptied into SQL, and both are compared.
    Drain,
    /// A drain is cut off somewhere.
    DrainCut(u32),
    /// `kill -9` of Redis, and back on its own files.
    RestartRedis,
    /// Core forgets everything and begins anew.
    RestartCore,
    /// Some of the campaign's five keys vanish (bit by bit); the rest is loaded from SQL.
    LoseKeys(u8),
    /// A claim made before, if there is one, while Redis is out of memory; with `true`, the outbox is drained meanwhile.
    Starve(Vec<Ask>, bool),
    /// Redis is copied, to be brought back by and by.
    Copy,
    /// Redis restarts, on the copy.
    Stale,
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
    /// So many claims that more holds are due at once than one call gives back.
    crowd: bool,
    /// Where the clock begins.
    pub begins_at: i64,
    /// Claims that have been granted at some time.
    granted: Vec<Ask>,
}

impl Table {
    /// A new campaign's rules, and what it is played with.
    pub fn lay(chance: &mut Chance) -> (Self, Rules) {
        let zone = TimeZone::get(chance.one_of(&ZONES).expect("a zone")).expect("a known zone");
        let begins_at = near_a_clock_change(&zone, chance);
        let crowd = chance.percent(20);
        let table = Self {
            users: if crowd { 300 } else { chance.count(2, 30) },
            keys: if crowd { 12 } else { chance.count(4, 60) },
            crowd,
            batch_max: if crowd { 250 } else { chance.count(3, 24) },
            begins_at,
            granted: Vec::new(),
        };
        let limits = if crowd {
            let total = chance.percent(80).then(|| chance.count(500, 900));
            Limits { total, per_user: limit(chance, 80, 20), ..Limits::default() }
        } else {
            Limits {
                total: limit(chance, 40, 900),
                per_user: limit(chance, 60, 60),
                per_user_per_day: limit(chance, 50, 12),
                per_claim: limit(chance, 40, 4),
            }
        };
        let hold_seconds =
            (crowd || chance.percent(60)).then(|| chance.weighted(&[(3, 30), (3, 900), (1, 90_000)]));
        let rules = Rules {
            limits,
            starts_at: begins_at + chance.weighted(&[(6, -DAY_MS), (1, 5 * HOUR_MS)]),
            ends_at: chance.percent(40).then(|| begins_at + chance.within(2, 20) * DAY_MS),
            switch: Switch::On,
            version: 1,
            zone,
            hold_ms: hold_seconds.map(|seconds| seconds * SECOND_MS),
        };
        (table, rules)
    }

    /// Takes note of claims that were granted, to come back to them.
    pub fn granted(&mut self, ask: Ask) {
        self.granted.push(ask);
    }

    /// What happens next at `now`.
    pub fn next(&self, chance: &mut Chance, now: i64, model: &Model) -> Operation {
        type Choice = fn(&Table, &mut Chance, i64, &Model) -> Operation;
        let choices: [(u32, Choice); 16] = [
            (420, |table, chance, _, _| Operation::Claims(table.batch(chance))),
            (4, |table, chance, _, _| Operation::ClaimsInCrash(table.batch(chance), chance.count(0, 12))),
            (220, |table, chance, _, _| table.settle(chance)),
            (60, |table, chance, _, _| Operation::LookUp(table.known_or_not(chance))),
            (180, |table, chance, now, model| Operation::Clock(table.clock(chance, now, model))),
            (40, |_, chance, now, model| Operation::Change(patch(chance, now, &model.rules))),
            (12, |_, chance, _, model| Operation::Change(switch(chance, &model.rules))),
            (20, |_, _, _, _| Operation::Sweep),
            (14, |_, _, _, _| Operation::Drain),
            (8, |_, chance, _, _| Operation::DrainCut(chance.count(0, 200))),
            (3, |_, _, _, _| Operation::RestartRedis),
            (6, |_, _, _, _| Operation::RestartCore),
            (3, |table, chance, _, _| Operation::Starve(table.starved(chance), chance.percent(50))),
            (4, |_, _, _, _| Operation::Copy),
            (4, |_, _, _, _| Operation::Stale),
            (8, |_, chance, _, _| Operation::LoseKeys(u8::try_from(chance.count(1, 31)).expect("five bits"))),
        ];
        if chance.percent(1) {
            return Operation::Compare;
        }
        // A crowd gathers first.
        if self.crowd && model.holds.len() <= CROWD && chance.percent(60) {
            return Operation::Claims(self.batch(chance));
        }
        chance.weighted(&choices)(self, chance, now, model)
    }

    fn batch(&self, chance: &mut Chance) -> Vec<Ask> {
        let size = chance.count(1, self.batch_max);
        let mut asks: Vec<Ask> = Vec::new();
        for _ in 0..size {
            let ask = match chance.count(1, 10) {
                // The same once more, in the same call.
                1 => chance.one_of(&asks).cloned(),
                2..=3 => chance.one_of(&self.granted).cloned(),
                _ => None,
            };
            let mut ask = ask.unwrap_or_else(|| self.any(chance));
            // Somebody who has claimed before claims anew.
            if let Some(known) = chance.one_of(&self.granted).filter(|_| chance.percent(20)) {
                ask.user.clone_from(&known.user);
            }
            if chance.percent(3) {
                ask.quantity = quantity(chance);
            }
            asks.push(ask);
        }
        asks
    }

    fn starved(&self, chance: &mut Chance) -> Vec<Ask> {
        let known = chance.one_of(&self.granted).cloned();
        known.map_or_else(|| self.batch(chance), |ask| vec![ask])
    }

    fn any(&self, chance: &mut Chance) -> Ask {
        Ask {
            user: format!("u{}", chance.count(1, self.users)),
            key: format!("k{}", chance.count(1, self.keys)),
            quantity: quantity(chance),
        }
    }

    fn known_or_not(&self, chance: &mut Chance) -> Ask {
        let known = chance.one_of(&self.granted).cloned();
        known.filter(|_| chance.percent(95)).unwrap_or_else(|| self.any(chance))
    }

    fn settle(&self, chance: &mut Chance) -> Operation {
        let settlement = if chance.percent(40) { Settlement::Confirm } else { Settlement::Return };
        Operation::Settle(self.known_or_not(chance), settlement)
    }

    /// Where the clock goes: to an edge, just before it or just past it, a little on, or a little back.
    fn clock(&self, chance: &mut Chance, now: i64, model: &Model) -> i64 {
        if self.crowd && model.holds.len() > CROWD {
            return model.holds.last().map_or(now, |(expires_at, _)| expires_at + 1);
        }
        let midnight = || model.midnight_after(now.div_euclid(DAY_MS) - 1);
        let edge = match chance.count(1, 13) {
            1..=4 => model.holds.first().map(|(expires_at, _)| *expires_at),
            5..=6 => Some(midnight() + chance.within(0, 2) * DAY_MS),
            7 => Some(model.rules.starts_at),
            8..=9 => model.rules.ends_at,
            10 => model.holds.last().map(|(expires_at, _)| *expires_at),
            _ => None,
        };
        let near = edge.filter(|edge| (now - 2 * HOUR_MS..now + 3 * DAY_MS).contains(edge));
        let target = match near {
            Some(edge) => edge + chance.within(-1, 1),
            None if chance.percent(25) => now - chance.within(1, 2 * HOUR_MS),
            None => now + chance.weighted(&[(4, 1), (4, 10 * SECOND_MS), (3, HOUR_MS), (1, 14 * HOUR_MS)]),
        };
        // Core lays the days out for 500 days from now on, and for 400 back.
        target.clamp(self.begins_at - DAY_MS, self.begins_at + 60 * DAY_MS)
    }
}

fn quantity(chance: &mut Chance) -> u32 {
    chance.weighted(&[(70, 1), (15, 2), (10, 3), (3, 5), (2, u32::MAX)])
}

/// None `never` times in a hundred.
fn limit(chance: &mut Chance, never: u32, most: u32) -> Option<u32> {
    (!chance.percent(never)).then(|| chance.count(1, most))
}

fn patch(chance: &mut Chance, now: i64, rules: &Rules) -> Rules {
    let mut changed = Rules { version: rules.version + 1, ..rules.clone() };
    let limits = &mut changed.limits;
    match chance.count(1, 8) {
        1..=3 => limits.total = limit(chance, 50, 1200),
        4 => limits.per_user = limit(chance, 60, 80),
        5 => limits.per_user_per_day = limit(chance, 50, 15),
        6 => limits.per_claim = limit(chance, 50, 5),
        7 => changed.starts_at = now + chance.weighted(&[(6, -DAY_MS), (1, HOUR_MS)]),
        _ => {
            let ahead = chance.weighted(&[(3, None), (2, Some(3 * DAY_MS)), (2, Some(HOUR_MS))]);
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
fn switch(chance: &mut Chance, rules: &Rules) -> Rules {
    let switch = match rules.switch {
        Switch::Ended => Switch::Ended,
        _ if chance.percent(3) => Switch::Ended,
        Switch::On if chance.percent(60) => Switch::Paused,
        _ => Switch::On,
    };
    Rules { switch, version: rules.version + 1, ..rules.clone() }
}

/// A day and a half before the zone's clocks change next, or next but one; where they never do, noon of today.
fn near_a_clock_change(zone: &TimeZone, chance: &mut Chance) -> i64 {
    let skip = usize::from(chance.percent(50));
    let now = Timestamp::now();
    let horizon = now + SignedDuration::from_hours(24 * 400);
    let coming = zone.following(now).take_while(|step| step.timestamp() < horizon).nth(skip);
    match coming {
        Some(step) => step.timestamp().as_millisecond() - 36 * HOUR_MS,
        None => now.as_millisecond().div_euclid(DAY_MS) * DAY_MS + DAY_MS / 2,
    }
}
