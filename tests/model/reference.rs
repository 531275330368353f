//! The reference model: a campaign and its claims without Redis, SQL, keys or layouts. Times are milliseconds
//! since 1970, days are days since 1970.
//!
//! Nothing is counted that can be computed: a user's units are summed over the claims each time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// A claim's user, and the digest that distinguishes this user's claims.
pub type Id = (String, [u8; 16]);

/// Number of claims in a user's record; older claims move to their own field.
const INLINE_MAX: usize = 8;

/// Maximum number of holds expired before one list of claims is decided; while more are due, no limit denies
/// a claim.
pub const DUE_MAX: usize = 256;

/// Maximum time for which a claim is held in total: core's setting in all runs.
pub const HELD_MS_MAX: i64 = 3_600_000;
/// The shortest extension of a hold, and the maximum number of extensions.
const EXTENSION_MS_MIN: i64 = 10_000;
const EXTENSIONS_MAX: u16 = 64;

/// The status of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Granted,
    Held,
    Returned,
    Expired,
}

/// The state that an admin has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminState {
    On,
    Paused,
    Ended,
}

/// A caller's transition of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    Confirm,
    Return,
    Extend,
}

/// The answer to a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transitioned {
    /// The claim as it is now.
    pub view: View,
    /// Whether the hold was extended too often to be extended again.
    pub extended_too_often: bool,
}

/// The pass sent with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    Missing,
    Shown,
    /// A pass that allows its user only this many units in total.
    Units(u32),
}

/// A claim to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub id: Id,
    pub quantity: u32,
    pub pass: Pass,
}

/// The limits; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub total: Option<u32>,
    pub per_user: Option<u32>,
    pub per_user_per_day: Option<u32>,
    pub per_claim: Option<u32>,
}

/// The rules of one version of a campaign.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub limits: Limits,
    pub starts_at: i64,
    pub ends_at: Option<i64>,
    pub admin_state: AdminState,
    pub version: u64,
    /// Fixed for the campaign's lifetime.
    pub zone: TimeZone,
    pub hold_ms: Option<i64>,
    /// Until when claims need a pass; `i64::MAX` is always, `None` never.
    pub pass_until: Option<i64>,
}

impl Rules {
    /// Rules of a campaign with `total` units that are held for `hold_ms` each.
    pub fn held(total: u32, hold_ms: i64, starts_at: i64) -> Self {
        Self {
            limits: Limits { total: Some(total), ..Limits::default() },
            starts_at,
            ends_at: None,
            admin_state: AdminState::On,
            version: 1,
            zone: TimeZone::UTC,
            hold_ms: Some(hold_ms),
            pass_until: None,
        }
    }
}

/// A claim as callers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub quantity: u32,
    pub status: Status,
    pub sequence: u64,
    pub claimed_at: i64,
    pub expires_at: Option<i64>,
}

/// A claim as SQL stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub view: View,
    /// The day on which the claim counts.
    pub day: i64,
    pub revision: u16,
    pub updated_at: i64,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Taken(View, Left),
    Replayed(View, Left),
    Refused {
        code: &'static str,
        /// Units that the named limit still allows this user.
        remaining: Option<u32>,
        /// Time at which the window opens or closed, or the next day begins.
        at: Option<i64>,
        version: u64,
    },
}

/// The campaign's part of the answer to an existing claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub remaining: Option<u32>,
    pub version: u64,
}

const DAILY: &str = "user_daily_limit_reached";
const USER: &str = "user_limit_reached";
const TOTAL: &str = "sold_out";

/// A campaign and its claims.
#[derive(Debug, Clone)]
pub struct Model {
    pub rules: Rules,
    pub claims: BTreeMap<Id, Claim>,
    /// The held claims by expiry.
    pub holds: BTreeSet<(i64, Id)>,
    /// Units granted or held, and the last sequence number.
    pub taken: u64,
    pub sequence: u64,
}

impl Model {
    pub fn new(rules: Rules) -> Self {
        Self { rules, claims: BTreeMap::new(), holds: BTreeSet::new(), taken: 0, sequence: 0 }
    }

    /// Decides a list of claims in order, after expiring due holds. If a limit would deny a claim while more
    /// holds are due, the claim is decided again after these holds expire.
    pub fn claim_all(&mut self, now: i64, attempts: &[Attempt]) -> Vec<Answer> {
        let mut answers = vec![None; attempts.len()];
        while answers.contains(&None) {
            let more_due = self.expire(now) == DUE_MAX;
            for (answer, attempt) in answers.iter_mut().zip(attempts) {
                if answer.is_none() {
                    let decided = self.claim(now, attempt);
                    let by_limit = matches!(decided, Answer::Refused { code, .. } if [DAILY, USER, TOTAL].contains(&code));
                    *answer = Some(decided).filter(|_| !(more_due && by_limit));
                }
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// Expires due holds, earliest first, at most [`DUE_MAX`]; returns their number.
    pub fn expire(&mut self, now: i64) -> usize {
        let due = self.holds.iter().take_while(|(expires_at, _)| *expires_at <= now);
        let due: Vec<Id> = due.take(DUE_MAX).map(|(_, id)| id.clone()).collect();
        for id in &due {
            self.update(now, id, Status::Expired);
        }
        due.len()
    }

    /// Decides one claim. An existing claim is replayed in its current state. Otherwise the first rule that
    /// denies it is named, and a denial changes nothing.
    fn claim(&mut self, now: i64, attempt: &Attempt) -> Answer {
        let Attempt { id, quantity, pass } = attempt;
        let quantity = *quantity;
        if let Some(claim) = self.claims.get(id) {
            return if claim.view.quantity == quantity {
                Answer::Replayed(claim.view, self.left())
            } else {
                self.refused("idempotency_key_reused", None, None)
            };
        }
        match self.refusal(now, &id.0, quantity, *pass) {
            Some(refusal) => refusal,
            None => Answer::Taken(self.grant(now, id, quantity), self.left()),
        }
    }

    fn refusal(&self, now: i64, user: &str, quantity: u32, pass: Pass) -> Option<Answer> {
        let Rules { admin_state, starts_at, ends_at, mut limits, pass_until, .. } = self.rules;
        let day = self.day_of(now, user);
        let exceeds = |limit: Option<u32>, taken: u64| {
            let left = u64::from(limit?).saturating_sub(taken);
            (u64::from(quantity) > left).then(|| u32::try_from(left).unwrap_or(u32::MAX))
        };
        if admin_state == AdminState::Paused {
            return Some(self.refused("paused", None, None));
        }
        if admin_state == AdminState::Ended {
            return Some(self.refused("ended", None, None));
        }
        if now < starts_at {
            return Some(self.refused("not_started", None, Some(starts_at)));
        }
        if ends_at.is_some_and(|end| end <= now) {
            return Some(self.refused("ended", None, ends_at));
        }
        if let Some(until) = pass_until.filter(|until| now < *until) {
            match pass {
                Pass::Missing => {
                    let at = Some(until).filter(|until| *until < i64::MAX);
                    return Some(self.refused("pass_required", None, at));
                }
                Pass::Shown => {}
                Pass::Units(units) => {
                    limits.per_user = Some(limits.per_user.map_or(units, |most| most.min(units)));
                }
            }
        }
        if limits.per_claim.is_some_and(|most| quantity > most) {
            return Some(self.refused("quantity_out_of_range", None, None));
        }
        if let Some(left) = exceeds(limits.per_user_per_day, self.taken_by(user, Some(day))) {
            return Some(self.refused(DAILY, Some(left), Some(self.midnight_after(day))));
        }
        if let Some(left) = exceeds(limits.per_user, self.taken_by(user, None)) {
            return Some(self.refused(USER, Some(left), None));
        }
        let left = exceeds(limits.total, self.taken)?;
        Some(self.refused(TOTAL, Some(left), None))
    }

    fn grant(&mut self, now: i64, id: &Id, quantity: u32) -> View {
        let day = self.day_of(now, &id.0);
        self.sequence += 1;
        self.taken += u64::from(quantity);
        let expires_at = self.rules.hold_ms.map(|length| now + length);
        let view = View {
            quantity,
            status: if expires_at.is_some() { Status::Held } else { Status::Granted },
            sequence: self.sequence,
            claimed_at: now,
            expires_at,
        };
        let claim = Claim { view, day, revision: 1, updated_at: now };
        self.claims.insert(id.clone(), claim);
        self.holds.extend(expires_at.map(|expires_at| (expires_at, id.clone())));
        view
    }

    /// Confirms or returns a claim once, or extends its hold, regardless of the window and the campaign's state.
    /// A due hold expires instead.
    pub fn transition(&mut self, now: i64, id: &Id, transition: Transition) -> Option<Transitioned> {
        let view = self.claims.get(id)?.view;
        let due = view.expires_at.is_some_and(|expires_at| expires_at <= now);
        let mut extended_too_often = false;
        match (view.status, transition) {
            (Status::Held, _) if due => self.update(now, id, Status::Expired),
            (Status::Held, Transition::Confirm) => self.update(now, id, Status::Granted),
            (Status::Held | Status::Granted, Transition::Return) => self.update(now, id, Status::Returned),
            (Status::Held, Transition::Extend) => extended_too_often = !self.extend(now, id),
            _ => {}
        }
        self.claims.get(id).map(|claim| Transitioned { view: claim.view, extended_too_often })
    }

    /// Extends the hold of a held claim, unless that gains too little. Returns false if it was extended too often.
    fn extend(&mut self, now: i64, id: &Id) -> bool {
        let claim = self.claims.get_mut(id).expect("a claim that was found");
        let before = claim.view.expires_at.expect("a held claim");
        let hold_ms = self.rules.hold_ms.unwrap_or(0);
        let expires_at = (now + hold_ms).min(claim.view.claimed_at + HELD_MS_MAX);
        if expires_at - before < EXTENSION_MS_MIN {
            return true;
        }
        // The revision of a held claim was raised only by extensions.
        if claim.revision > EXTENSIONS_MAX {
            return false;
        }
        claim.view.expires_at = Some(expires_at);
        claim.revision += 1;
        claim.updated_at = now;
        self.holds.remove(&(before, id.clone()));
        self.holds.insert((expires_at, id.clone()));
        true
    }

    /// Returns whether the claim `id` is held.
    pub fn is_held(&self, id: &Id) -> bool {
        self.claims.get(id).is_some_and(|claim| claim.view.status == Status::Held)
    }

    /// Changes a claim's status; unless it becomes granted, its units are returned.
    fn update(&mut self, now: i64, id: &Id, status: Status) {
        let claim = self.claims.get_mut(id).expect("a claim that was found");
        if let Some(expires_at) = claim.view.expires_at {
            self.holds.remove(&(expires_at, id.clone()));
        }
        if status == Status::Granted {
            claim.view.expires_at = None;
        } else {
            self.taken -= u64::from(claim.view.quantity);
        }
        claim.view.status = status;
        claim.revision += 1;
        claim.updated_at = now;
    }

    /// Models the loss of Redis when SQL has the state `kept`: the rules are in SQL, and no sequence number
    /// is reused.
    pub fn lose(&mut self, kept: &Self) {
        *self = Self { rules: self.rules.clone(), sequence: self.sequence, ..kept.clone() };
    }

    /// Returns the day on which this user's next claim counts: today, or a later day on which the user has
    /// claimed, but at most tomorrow. Later days come from a wrong clock; if some claims are no longer in the
    /// record, the day is then tomorrow.
    fn day_of(&self, now: i64, user: &str) -> i64 {
        let instant = Timestamp::from_millisecond(now).expect("an instant");
        let today = instant.to_zoned(self.rules.zone.clone()).date() - date(1970, 1, 1);
        let today = i64::from(today.get_days());
        let days: Vec<i64> = self.claims_of(user).map(|claim| claim.day).collect();
        if days.len() > INLINE_MAX && days.iter().any(|day| *day > today + 1) {
            return today + 1;
        }
        let claimed_on = days.into_iter().filter(|day| *day <= today + 1).max();
        claimed_on.unwrap_or(0).max(today)
    }

    fn taken_by(&self, user: &str, day: Option<i64>) -> u64 {
        let is_active = |claim: &&Claim| matches!(claim.view.status, Status::Granted | Status::Held);
        let claims = self.claims_of(user).filter(is_active);
        let counted = claims.filter(|claim| day.is_none_or(|day| claim.day == day));
        counted.map(|claim| u64::from(claim.view.quantity)).sum()
    }

    /// Returns a user's current day, units on that day, and units in total.
    pub fn counters_of(&self, user: &str) -> (u64, u64, u64) {
        let day = self.claims_of(user).map(|claim| claim.day).max().unwrap_or(0);
        let today = self.taken_by(user, Some(day));
        (day.unsigned_abs(), today, self.taken_by(user, None))
    }

    /// Returns the claims of one user.
    pub fn claims_of(&self, user: &str) -> impl Iterator<Item = &Claim> {
        let range = (user.to_owned(), [0; 16])..=(user.to_owned(), [u8::MAX; 16]);
        self.claims.range(range).map(|(_, claim)| claim)
    }

    /// Returns when the day after `day` begins in the campaign's time zone.
    pub fn midnight_after(&self, day: i64) -> i64 {
        let next = date(1970, 1, 1).checked_add(Span::new().days(day + 1));
        let midnight = next.and_then(|date| date.to_zoned(self.rules.zone.clone()));
        midnight.expect("a day before the year 9999").timestamp().as_millisecond()
    }

    fn left(&self) -> Left {
        let left = |total| u32::try_from(u64::from(total).saturating_sub(self.taken)).unwrap_or(0);
        Left { remaining: self.rules.limits.total.map(left), version: self.rules.version }
    }

    fn refused(&self, code: &'static str, remaining: Option<u32>, at: Option<i64>) -> Answer {
        Answer::Refused { code, remaining, at, version: self.rules.version }
    }
}
