//! What was promised, held against what callers were told. A caller's answer was decided at some moment between its call
//! and its arrival: nothing is called wrong here that could have been right at any such moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use support::checker::{Checker, Limits};
use support::sql::SqlClaim;
use support::storm::{Seen, Wish};

use super::crowd::{Answer, Call, Campaign, Status, Told};

/// How old what a core refuses by may be.
const REFUSAL_AGE_MAX: Duration = Duration::from_millis(100);

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Claims that callers were told they have.
    pub acknowledged: usize,
    /// Claims refused by a rule.
    pub denied: usize,
    /// Calls that were left without a decision.
    pub unknown: usize,
    /// Claims that are gone, or fell back behind what a caller was told of them.
    pub lost: usize,
    /// Units granted beyond a limit.
    pub over: u64,
    /// Keys with two claims, and claims that share a place.
    pub double: usize,
    /// Refusals that could not be right.
    pub wrong: usize,
}

impl AddAssign for Verdict {
    fn add_assign(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.denied += other.denied;
        self.unknown += other.unknown;
        self.lost += other.lost;
        self.over += other.over;
        self.double += other.double;
        self.wrong += other.wrong;
    }
}

/// All that callers were told of one claim, in the order of the answers.
struct Claim<'a> {
    user: &'a str,
    units: u64,
    told: Vec<&'a Told>,
    row: Option<&'a SqlClaim>,
}

/// For how long a claim has its units.
#[derive(Clone, Copy)]
struct Span {
    from: Instant,
    /// `None`: to the end.
    upto: Option<Instant>,
    units: u64,
}

impl Verdict {
    /// Of one campaign, once all outcomes are known and SQL holds these rows.
    pub fn of(campaign: &Campaign, rows: &[SqlClaim]) -> Self {
        let told = campaign.told();
        let claims = claims(campaign, &told, rows);
        let count = |wanted: fn(&Told) -> bool| told.iter().filter(|told| wanted(told)).count();
        Self {
            acknowledged: claims.values().filter(|claim| claim.acknowledged().next().is_some()).count(),
            denied: count(|told| told.is_claim() && matches!(told.answer, Answer::Refused(_))),
            unknown: count(|told| told.answer == Answer::Unknown),
            lost: claims.values().filter(|claim| claim.is_lost()).count(),
            over: over(&claims, rows, campaign.limits),
            double: claims.values().filter(|claim| claim.is_double()).count() + shared_places(&claims),
            wrong: told.iter().filter(|told| is_wrong_refusal(told, &claims, campaign.limits)).count(),
        }
    }

    /// Whether all is as promised.
    pub fn is_clean(&self) -> bool {
        (self.lost, self.over, self.double, self.wrong) == (0, 0, 0, 0)
    }
}

/// The general judge, who has been told the same.
pub fn checker(campaign: &Campaign) -> Checker {
    let checker = Checker::new(&campaign.id, campaign.limits);
    for told in campaign.told() {
        match told.answer {
            Answer::Is { id, sequence, status, .. } => {
                if status == Status::Returned {
                    checker.ended(&id);
                }
                let replayed = told.call != Call::Claim;
                checker.keep(&told.wish, Seen::Claimed { id, sequence, replayed, remaining: None });
            }
            Answer::Refused(code) if told.is_claim() => {
                checker.keep(&told.wish, Seen::Denied { code, remaining: None });
            }
            Answer::Refused(_) | Answer::Unknown => {}
        }
    }
    checker
}

/// The longest time without an acknowledgement from the first one to the last.
pub fn outage(campaign: &Campaign) -> Duration {
    let mut moments: Vec<_> =
        campaign.told().iter().filter(|told| told.is().is_some()).map(|told| told.ended).collect();
    moments.sort_unstable();
    moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

type Claims<'a> = BTreeMap<&'a Wish, Claim<'a>>;

fn claims<'a>(campaign: &Campaign, told: &'a [Told], rows: &'a [SqlClaim]) -> Claims<'a> {
    let rows: BTreeMap<_, _> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut claims = BTreeMap::new();
    for told in told {
        let wish = &told.wish;
        let claim = claims.entry(wish).or_insert_with(|| Claim {
            user: &wish.user,
            units: wish.units.into(),
            told: Vec::new(),
            row: rows.get(campaign.claim_id(wish).as_str()).copied(),
        });
        claim.told.push(told);
    }
    claims
}

impl Told {
    fn is_claim(&self) -> bool {
        matches!(self.call, Call::FirstTry | Call::Claim)
    }

    /// Its claim's id, place, units and status, if the caller was told so.
    fn is(&self) -> Option<(&str, u64, u64, Status)> {
        match &self.answer {
            Answer::Is { id, sequence, quantity, status } => Some((id, *sequence, *quantity, *status)),
            _ => None,
        }
    }
}

impl<'a> Claim<'a> {
    fn acknowledged(&self) -> impl Iterator<Item = (&'a Told, Status)> {
        self.told.iter().filter_map(|told| Some((*told, told.is()?.3)))
    }

    /// SQL lacks it or has it otherwise than acknowledged, or it was told to be less far than an earlier answer said.
    fn is_lost(&self) -> bool {
        let Some(furthest) = self.acknowledged().map(|(_, status)| status).max() else { return false };
        let stands = self.row.is_some_and(|row| {
            let same = self.told.iter().filter_map(|told| told.is());
            let mut same = same.map(|(_, sequence, units, _)| (sequence, units));
            Status::of(&row.status) >= Some(furthest) && same.all(|told| told == (row.sequence, row.quantity))
        });
        let falls_back = |(later, status): (&Told, Status)| {
            self.acknowledged().any(|(earlier, was)| earlier.ended <= later.began && status < was)
        };
        !stands || self.acknowledged().any(falls_back)
    }

    /// Two answers tell of two claims.
    fn is_double(&self) -> bool {
        let known: BTreeSet<_> =
            self.told.iter().filter_map(|told| told.is()).map(|is| (is.0, is.1, is.2)).collect();
        known.len() > 1
    }

    /// When it stood for certain: acknowledged, and its return not yet asked for.
    fn certain(&self) -> Option<Span> {
        let standing = self.acknowledged().filter(|(_, status)| *status != Status::Returned);
        let from = standing.map(|(told, _)| told.ended).min()?;
        let upto = self.told.iter().filter(|told| told.call == Call::Return).map(|told| told.began).min();
        (upto.is_none_or(|upto| from < upto)).then_some(Span { from, upto, units: self.units })
    }

    /// When it may have stood: from the first time it was asked for until its return was acknowledged.
    fn possible(&self) -> Option<Span> {
        self.row?;
        let from = self.told.iter().map(|told| told.began).min()?;
        let returned = self.acknowledged().filter(|(_, status)| *status == Status::Returned);
        let upto = returned.map(|(told, _)| told.ended).min();
        Some(Span { from, upto, units: self.units })
    }
}

impl Span {
    fn meets(&self, from: Instant, upto: Instant) -> bool {
        self.from <= upto && self.upto.is_none_or(|end| end >= from)
    }
}

/// Claims of different keys that were told to have the same place.
fn shared_places(claims: &Claims<'_>) -> usize {
    let places = claims.values().filter_map(|claim| claim.told.iter().find_map(|told| told.is()));
    let places: Vec<_> = places.map(|is| is.1).collect();
    places.len() - places.iter().collect::<BTreeSet<_>>().len()
}

/// By how many units a limit was exceeded, at the end in SQL or for certain at any moment before.
fn over(claims: &Claims<'_>, rows: &[SqlClaim], limits: Limits) -> u64 {
    let in_sql: Vec<_> =
        rows.iter().filter(|row| row.stands()).map(|row| (row.user_id.as_str(), row.quantity)).collect();
    let certain: Vec<_> = claims.values().filter_map(|claim| Some((claim.user, claim.certain()?))).collect();
    let beyond = |user: Option<&str>, limit: Option<u64>| {
        let of_them = |other: &str| user.is_none_or(|user| user == other);
        let at_the_end: u64 = in_sql.iter().filter(|(user, _)| of_them(user)).map(|(_, units)| units).sum();
        let spans = certain.iter().filter(|(user, _)| of_them(user)).map(|(_, span)| *span);
        at_the_end.max(most_at_once(spans)).saturating_sub(limit.unwrap_or(u64::MAX))
    };
    let users: BTreeSet<_> =
        in_sql.iter().map(|(user, _)| *user).chain(certain.iter().map(|(user, _)| *user)).collect();
    let of_users = users.into_iter().map(|user| beyond(Some(user), limits.per_user)).max();
    beyond(None, limits.total).max(of_users.unwrap_or(0))
}

/// The most units that stood at the same moment.
fn most_at_once(spans: impl Iterator<Item = Span>) -> u64 {
    let mut steps = Vec::new();
    for span in spans {
        steps.push((span.from, true, span.units));
        steps.extend(span.upto.map(|upto| (upto, false, span.units)));
    }
    // What goes back at the moment at which other units are taken goes first.
    steps.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, taken, units) in steps {
        now = if taken { now + units } else { now - units };
        most = most.max(now);
    }
    most
}

/// Whether this answer is a refusal that nothing can have justified.
fn is_wrong_refusal(told: &Told, claims: &Claims<'_>, limits: Limits) -> bool {
    let Answer::Refused(code) = &told.answer else { return false };
    let own = &claims[&told.wish];
    // Who has the claim meets it.
    if own.acknowledged().any(|(earlier, _)| earlier.ended <= told.began) {
        return true;
    }
    let (user, limit) = match code.as_str() {
        "sold_out" => (None, limits.total),
        "user_limit_reached" => (Some(own.user), limits.per_user),
        // Of a claim that no caller was told of yet.
        "claim_not_found" => return told.call != Call::LookUp,
        _ => return true,
    };
    let Some(limit) = limit else { return true };
    let from = told.began.checked_sub(REFUSAL_AGE_MAX).unwrap_or(told.began);
    let others = claims.iter().filter(|(wish, _)| **wish != &told.wish).map(|(_, claim)| claim);
    let others = others.filter(|claim| user.is_none_or(|user| user == claim.user));
    let spans = others.filter_map(Claim::possible).filter(|span| span.meets(from, told.ended));
    let possibly_taken: u64 = spans.map(|span| span.units).sum();
    possibly_taken + u64::from(told.wish.units) <= limit
}
