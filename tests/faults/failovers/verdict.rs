//! Compares the guarantees with the callers' responses. A response was decided at some moment between its call
//! and its arrival. A response counts as wrong only if it was wrong at every such moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use support::checker::{Checker, Limits};
use support::sql::SqlClaim;
use support::storm::{ClaimAttempt, ClaimOutcome};

use super::crowd::{Answer, Call, CallRecord, Campaign, Status};

/// Maximum age of the cached state by which a core denies claims.
const REFUSAL_AGE_MAX: Duration = Duration::from_millis(100);

/// The violations found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Claims that were acknowledged to callers.
    pub acknowledged: usize,
    /// Claims denied by a rule.
    pub denied: usize,
    /// Calls that never got a decision.
    pub unknown: usize,
    /// Claims that are gone, or that returned to an earlier state than acknowledged.
    pub lost: usize,
    /// Units granted beyond a limit.
    pub over: u64,
    /// Keys with two claims, and claims with the same sequence number.
    pub double: usize,
    /// Denials that were wrong at every possible moment.
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

/// All calls on one claim, in the order of their responses.
struct Claim<'a> {
    user: &'a str,
    units: u64,
    calls: Vec<&'a CallRecord>,
    row: Option<&'a SqlClaim>,
}

/// The period in which a claim has its units.
#[derive(Clone, Copy)]
struct Span {
    from: Instant,
    /// The end; `None` if the claim keeps its units.
    upto: Option<Instant>,
    units: u64,
}

impl Verdict {
    /// Checks one campaign, once all outcomes are known and SQL has these rows.
    pub fn of(campaign: &Campaign, rows: &[SqlClaim]) -> Self {
        let calls = campaign.calls();
        let claims = claims(campaign, &calls, rows);
        let count = |wanted: fn(&CallRecord) -> bool| calls.iter().filter(|record| wanted(record)).count();
        Self {
            acknowledged: claims.values().filter(|claim| claim.acknowledged().next().is_some()).count(),
            denied: count(|record| record.is_claim() && matches!(record.answer, Answer::Refused(_))),
            unknown: count(|record| record.answer == Answer::Unknown),
            lost: claims.values().filter(|claim| claim.is_lost()).count(),
            over: over(&claims, rows, campaign.limits),
            double: claims.values().filter(|claim| claim.is_double()).count() + shared_sequences(&claims),
            wrong: calls.iter().filter(|record| is_wrong_refusal(record, &claims, campaign.limits)).count(),
        }
    }

    /// Returns whether no guarantee was violated.
    pub fn is_clean(&self) -> bool {
        (self.lost, self.over, self.double, self.wrong) == (0, 0, 0, 0)
    }
}

/// Creates the general checker with the same responses.
pub fn checker(campaign: &Campaign) -> Checker {
    let checker = Checker::new(&campaign.id, campaign.limits);
    for record in campaign.calls() {
        match record.answer {
            Answer::Is { id, sequence, status, .. } => {
                if status == Status::Returned {
                    checker.ended(&id);
                }
                let replayed = record.call != Call::Claim;
                checker.record(
                    &record.attempt,
                    ClaimOutcome::Claimed { id, sequence, replayed, remaining: None },
                );
            }
            Answer::Refused(code) if record.is_claim() => {
                checker.record(&record.attempt, ClaimOutcome::Denied { code, remaining: None });
            }
            Answer::Refused(_) | Answer::Unknown => {}
        }
    }
    checker
}

/// Returns the longest time without an acknowledgement between the first and the last.
pub fn outage(campaign: &Campaign) -> Duration {
    let mut moments: Vec<_> =
        campaign.calls().iter().filter(|record| record.is().is_some()).map(|record| record.ended).collect();
    moments.sort_unstable();
    moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

type Claims<'a> = BTreeMap<&'a ClaimAttempt, Claim<'a>>;

fn claims<'a>(campaign: &Campaign, calls: &'a [CallRecord], rows: &'a [SqlClaim]) -> Claims<'a> {
    let rows: BTreeMap<_, _> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut claims = BTreeMap::new();
    for record in calls {
        let attempt = &record.attempt;
        let claim = claims.entry(attempt).or_insert_with(|| Claim {
            user: &attempt.user,
            units: attempt.units.into(),
            calls: Vec::new(),
            row: rows.get(campaign.claim_id(attempt).as_str()).copied(),
        });
        claim.calls.push(record);
    }
    claims
}

impl CallRecord {
    fn is_claim(&self) -> bool {
        matches!(self.call, Call::FirstTry | Call::Claim)
    }

    /// Returns the claim's id, sequence number, units and status if the response acknowledged it.
    fn is(&self) -> Option<(&str, u64, u64, Status)> {
        match &self.answer {
            Answer::Is { id, sequence, quantity, status } => Some((id, *sequence, *quantity, *status)),
            _ => None,
        }
    }
}

impl<'a> Claim<'a> {
    fn acknowledged(&self) -> impl Iterator<Item = (&'a CallRecord, Status)> {
        self.calls.iter().filter_map(|record| Some((*record, record.is()?.3)))
    }

    /// Returns whether SQL lacks the claim or differs from the acknowledgement, or a response reported an
    /// earlier state than a previous one.
    fn is_lost(&self) -> bool {
        let Some(furthest) = self.acknowledged().map(|(_, status)| status).max() else { return false };
        let is_acknowledged = self.row.is_some_and(|row| {
            let same = self.calls.iter().filter_map(|record| record.is());
            let mut same = same.map(|(_, sequence, units, _)| (sequence, units));
            Status::of(&row.status) >= Some(furthest)
                && same.all(|record| record == (row.sequence, row.quantity))
        });
        let falls_back = |(later, status): (&CallRecord, Status)| {
            self.acknowledged().any(|(earlier, was)| earlier.ended <= later.began && status < was)
        };
        !is_acknowledged || self.acknowledged().any(falls_back)
    }

    /// Returns whether two responses report different claims.
    fn is_double(&self) -> bool {
        let known: BTreeSet<_> =
            self.calls.iter().filter_map(|record| record.is()).map(|is| (is.0, is.1, is.2)).collect();
        known.len() > 1
    }

    /// Returns the time during which the claim certainly counted: from its acknowledgement until its return
    /// was requested.
    fn certain(&self) -> Option<Span> {
        let counting = self.acknowledged().filter(|(_, status)| *status != Status::Returned);
        let from = counting.map(|(record, _)| record.ended).min()?;
        let upto =
            self.calls.iter().filter(|record| record.call == Call::Return).map(|record| record.began).min();
        (upto.is_none_or(|upto| from < upto)).then_some(Span { from, upto, units: self.units })
    }

    /// Returns the time during which the claim may have counted: from the first call until its return was
    /// acknowledged.
    fn possible(&self) -> Option<Span> {
        self.row?;
        let from = self.calls.iter().map(|record| record.began).min()?;
        let returned = self.acknowledged().filter(|(_, status)| *status == Status::Returned);
        let upto = returned.map(|(record, _)| record.ended).min();
        Some(Span { from, upto, units: self.units })
    }
}

impl Span {
    fn overlaps(&self, from: Instant, upto: Instant) -> bool {
        self.from <= upto && self.upto.is_none_or(|end| end >= from)
    }
}

/// Returns the number of claims with different keys that were reported with the same sequence number.
fn shared_sequences(claims: &Claims<'_>) -> usize {
    let sequences = claims.values().filter_map(|claim| claim.calls.iter().find_map(|record| record.is()));
    let sequences: Vec<_> = sequences.map(|is| is.1).collect();
    sequences.len() - sequences.iter().collect::<BTreeSet<_>>().len()
}

/// Returns the units by which a limit was exceeded, either in SQL at the end or with certainty at an earlier
/// moment.
fn over(claims: &Claims<'_>, rows: &[SqlClaim], limits: Limits) -> u64 {
    let in_sql: Vec<_> =
        rows.iter().filter(|row| row.is_active()).map(|row| (row.user_id.as_str(), row.quantity)).collect();
    let certain: Vec<_> = claims.values().filter_map(|claim| Some((claim.user, claim.certain()?))).collect();
    let beyond = |user: Option<&str>, limit: Option<u64>| {
        let of_them = |other: &str| user.is_none_or(|user| user == other);
        let at_the_end: u64 = in_sql.iter().filter(|(user, _)| of_them(user)).map(|(_, units)| units).sum();
        let spans = certain.iter().filter(|(user, _)| of_them(user)).map(|(_, span)| *span);
        at_the_end.max(maximum_of(spans)).saturating_sub(limit.unwrap_or(u64::MAX))
    };
    let users: BTreeSet<_> =
        in_sql.iter().map(|(user, _)| *user).chain(certain.iter().map(|(user, _)| *user)).collect();
    let of_users = users.into_iter().map(|user| beyond(Some(user), limits.per_user)).max();
    beyond(None, limits.total).max(of_users.unwrap_or(0))
}

/// Returns the maximum number of units that counted at the same moment.
fn maximum_of(spans: impl Iterator<Item = Span>) -> u64 {
    let mut steps = Vec::new();
    for span in spans {
        steps.push((span.from, true, span.units));
        steps.extend(span.upto.map(|upto| (upto, false, span.units)));
    }
    // If units are returned and taken at the same moment, the returned units are subtracted first.
    steps.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, taken, units) in steps {
        now = if taken { now + units } else { now - units };
        most = most.max(now);
    }
    most
}

/// Returns whether this response is a denial that nothing can have justified.
fn is_wrong_refusal(record: &CallRecord, claims: &Claims<'_>, limits: Limits) -> bool {
    let Answer::Refused(code) = &record.answer else { return false };
    let own = &claims[&record.attempt];
    // A user who has the claim must get a replay.
    if own.acknowledged().any(|(earlier, _)| earlier.ended <= record.began) {
        return true;
    }
    let (user, limit) = match code.as_str() {
        "sold_out" => (None, limits.total),
        "user_limit_reached" => (Some(own.user), limits.per_user),
        // The claim may not exist yet.
        "claim_not_found" => return record.call != Call::LookUp,
        _ => return true,
    };
    let Some(limit) = limit else { return true };
    let from = record.began.checked_sub(REFUSAL_AGE_MAX).unwrap_or(record.began);
    let others = claims.iter().filter(|(attempt, _)| **attempt != &record.attempt).map(|(_, claim)| claim);
    let others = others.filter(|claim| user.is_none_or(|user| user == claim.user));
    let spans = others.filter_map(Claim::possible).filter(|span| span.overlaps(from, record.ended));
    let possibly_taken: u64 = spans.map(|span| span.units).sum();
    possibly_taken + u64::from(record.attempt.units) <= limit
}
