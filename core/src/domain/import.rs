//! A file of past claims: read as CSV, numbered by user, and held against the campaign's limits and the claims it has.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::str::FromStr;

use claimgate_shared::ids::claim_digest;
use claimgate_shared::problem::Limit;
use claimgate_shared::{
    CampaignId, ClaimDigest, ClaimStatus, Code, IdempotencyKey, Limits, Problem, Quantity, Timestamp, UserId,
};
use csv::ByteRecord;

use super::campaign::Campaign;
use super::claim_record::ClaimRecord;
use super::event::ClaimEvent;

/// The headers that a file may have.
const HEADERS: [&[&str]; 4] = [
    &["user_id", "quantity"],
    &["user_id", "quantity", "claimed_at"],
    &["user_id", "quantity", "idempotency_key"],
    &["user_id", "quantity", "claimed_at", "idempotency_key"],
];

/// The most lines that a file may have. Shorter ones than usual would let 256 MiB hold ten times as many, and each takes memory
/// of its own while the file is imported.
const LINES_MAX: usize = 5_000_000;

/// A claim of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastClaim {
    /// Who claimed.
    pub user: UserId,
    /// Units.
    pub quantity: Quantity,
    digest: ClaimDigest,
    claimed_at: Timestamp,
    day: u32,
    line: u64,
}

impl PastClaim {
    /// The claim as it was granted in place `sequence`, when `total` was the limit and `taken` units were taken after it.
    pub fn granted(&self, sequence: u64, total: Option<u64>, taken: u64) -> ClaimEvent {
        let claim = ClaimRecord {
            digest: self.digest,
            status: ClaimStatus::Granted,
            revision: 1,
            quantity: self.quantity.get(),
            sequence,
            claimed_at: self.claimed_at,
            expires_at: None,
            day: self.day,
        };
        ClaimEvent {
            user: self.user.clone(),
            claim,
            updated_at: self.claimed_at,
            limit_at_decision: total,
            cumulative_taken: Some(taken),
        }
    }
}

/// The claims of a file, and what the campaign has already.
#[derive(Debug, Default)]
pub struct Import {
    claims: Vec<PastClaim>,
    /// The users of the file.
    users: HashMap<UserId, Usage>,
    /// Claims of these users that the campaign has, with their units.
    known: HashMap<ClaimDigest, u32>,
    taken: u64,
}

/// What a user has taken, and how many lines of the file are the user's.
#[derive(Debug, Default)]
struct Usage {
    lines: u64,
    ever: u64,
    on_days: BTreeMap<u32, u64>,
}

impl Usage {
    fn add(&mut self, day: u32, units: u64) {
        self.ever += units;
        *self.on_days.entry(day).or_default() += units;
    }
}

impl Import {
    /// Reads a file of claims on `campaign`, none of them given as later than `now`.
    ///
    /// # Errors
    /// `payload_too_large` for more than [`LINES_MAX`] lines; `invalid_request`, which names the first line that is wrong, counted
    /// from 1, the header.
    pub fn parse(file: &[u8], campaign: &Campaign, now: Timestamp) -> Result<Self, Problem> {
        if line_ends(file) > LINES_MAX {
            return Err(Problem::new(
                Code::PayloadTooLarge,
                format!(
                    "has more than {LINES_MAX} lines: import it in several files, with a key in each line"
                ),
            ));
        }
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
        let mut line = ByteRecord::new();
        // From memory, and of any length: nothing in it can fail.
        let mut read = |line: &mut ByteRecord| reader.read_byte_record(line).unwrap_or(false);
        read(&mut line);
        let Some(columns) = HEADERS.into_iter().find(|columns| line == **columns) else {
            return Err(Problem::invalid(
                "line 1",
                "must be the header user_id,quantity, then claimed_at, idempotency_key, both or neither",
            ));
        };
        let mut import = Self::default();
        let mut numbers = LineNumbers { file, at: 0, line: 1 };
        while read(&mut line) {
            let number = numbers.of(&line);
            let claim = import.claim(columns, &line, number, campaign, now);
            import.claims.push(claim.map_err(|why| Problem::invalid(format!("line {number}"), why))?);
        }
        Ok(import)
    }

    /// The claim of one line; `Err` says what is wrong with it.
    fn claim(
        &mut self,
        columns: &[&str],
        fields: &ByteRecord,
        line: u64,
        campaign: &Campaign,
        now: Timestamp,
    ) -> Result<PastClaim, String> {
        if fields.len() != columns.len() {
            return Err(format!("must have {} fields, as the header, not {}", columns.len(), fields.len()));
        }
        let field = |name: &str| {
            let at = columns.iter().position(|column| *column == name);
            at.and_then(|at| fields.get(at)).filter(|text| !text.is_empty() || name == "user_id")
        };
        let user: UserId = parse("user_id", field("user_id").unwrap_or_default())?;
        let quantity = quantity(field("quantity").unwrap_or_default())?;
        let claimed_at = match field("claimed_at") {
            Some(text) => parse("claimed_at", text)?,
            None => campaign.window.starts_at(),
        };
        if field("claimed_at").is_some() && claimed_at > now {
            return Err("claimed_at: must not be in the future".to_owned());
        }
        let key = field("idempotency_key").map(|text| parse("idempotency_key", text)).transpose()?;
        let digest = self.digest(&campaign.id, &user, key);
        Ok(PastClaim { user, quantity, digest, claimed_at, day: campaign.zone.day_of(claimed_at), line })
    }

    /// The digest of a user's next line. Without a key it is that of the line's number among the user's, by a text that no
    /// caller can choose as a key.
    fn digest(&mut self, campaign: &CampaignId, user: &UserId, key: Option<IdempotencyKey>) -> ClaimDigest {
        if !self.users.contains_key(user) {
            self.users.insert(user.clone(), Usage::default());
        }
        let number = self.users.get_mut(user).map_or(0, |usage| {
            usage.lines += 1;
            usage.lines
        });
        match key {
            Some(key) => claim_digest(campaign, user, key.as_str()),
            None => claim_digest(campaign, user, &format!("import:{number}")),
        }
    }

    /// Records a claim that the campaign has, but no revoked one.
    pub fn has(&mut self, user: &UserId, claim: &ClaimRecord) {
        let stands = matches!(claim.status, ClaimStatus::Granted | ClaimStatus::Held);
        let units = if stands { u64::from(claim.quantity) } else { 0 };
        self.taken += units;
        if let Some(usage) = self.users.get_mut(user) {
            usage.add(claim.day, units);
            self.known.insert(claim.digest, claim.quantity);
        }
    }

    /// The claims that the campaign lacks, in the file's order, and how many it has already.
    ///
    /// # Errors
    /// The first line with a known key and another quantity, or that would exceed one of `limits`, as a claim would be
    /// refused.
    pub fn lacking(mut self, limits: Limits) -> Result<(Vec<PastClaim>, u64), Problem> {
        let mut lacking = Vec::new();
        let mut already = 0;
        for claim in std::mem::take(&mut self.claims) {
            match self.known.get(&claim.digest) {
                Some(quantity) if *quantity == claim.quantity.get() => already += 1,
                Some(quantity) => return Err(reused(&claim, *quantity)),
                None => {
                    self.take(&claim, limits)?;
                    lacking.push(claim);
                }
            }
        }
        Ok((lacking, already))
    }

    /// Counts a claim, if the limits allow it.
    fn take(&mut self, claim: &PastClaim, limits: Limits) -> Result<(), Problem> {
        let units = u64::from(claim.quantity.get());
        if bound(limits.per_claim).is_some_and(|bound| units > bound) {
            let why = format!("{units} units are more than a claim may have");
            return Err(refused(claim, Code::QuantityOutOfRange, &why));
        }
        let usage = self.users.entry(claim.user.clone()).or_default();
        let on_day = usage.on_days.get(&claim.day).copied().unwrap_or_default();
        for (limit, bound, taken) in [
            (Limit::PerUserPerDay, bound(limits.per_user_per_day), on_day),
            (Limit::PerUser, bound(limits.per_user), usage.ever),
            (Limit::Total, limits.total.map(u64::from), self.taken),
        ] {
            if let Some(bound) = bound.filter(|bound| taken + units > *bound) {
                return Err(exceeded(claim, limit, bound, taken));
            }
        }
        usage.add(claim.day, units);
        self.taken += units;
        self.known.insert(claim.digest, claim.quantity.get());
        Ok(())
    }
}

/// Numbers the lines of a file: the reader's own numbers are behind after empty lines.
struct LineNumbers<'a> {
    file: &'a [u8],
    at: usize,
    line: u64,
}

impl LineNumbers<'_> {
    /// The line on which `record` begins, the header's being 1; of records in the file's order.
    fn of(&mut self, record: &ByteRecord) -> u64 {
        let read_from = record.position().and_then(|position| usize::try_from(position.byte()).ok());
        let rest = &self.file[self.at..];
        let skipped = read_from.map_or(0, |from| from.saturating_sub(self.at)).min(rest.len());
        let ends = rest[skipped..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let passed = &rest[..skipped + ends];
        self.line += passed.split(|byte| *byte == b'\n').skip(1).count() as u64;
        self.at += passed.len();
        self.line
    }
}

/// How many lines of a file end, by whichever of the two characters it ends them.
fn line_ends(file: &[u8]) -> usize {
    let count = |end: u8| file.split(|byte| *byte == end).skip(1).count();
    count(b'\n').max(count(b'\r'))
}

fn bound(limit: Option<NonZeroU32>) -> Option<u64> {
    limit.map(|limit| u64::from(limit.get()))
}

/// A field's value; `Err` names the field.
fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str, field: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(field).map_err(|_| format!("{name}: is not UTF-8"))?;
    text.parse().map_err(|why| format!("{name}: {why}"))
}

fn quantity(field: &[u8]) -> Result<Quantity, String> {
    let digits = Some(field).filter(|field| field.iter().all(u8::is_ascii_digit));
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    number
        .and_then(|number| Quantity::try_from(number).ok())
        .ok_or_else(|| "quantity: must be from 1 to 4294967295".to_owned())
}

fn refused(claim: &PastClaim, code: Code, why: &str) -> Problem {
    let line = format!("line {}", claim.line);
    let mut problem = Problem::new(code, format!("{line}, user {}: {why}", claim.user));
    problem.extensions.field = Some(line);
    problem
}

fn reused(claim: &PastClaim, quantity: u32) -> Problem {
    let why = format!("the campaign has this claim with {quantity} units, not {}", claim.quantity.get());
    refused(claim, Code::IdempotencyKeyReused, &why)
}

fn exceeded(claim: &PastClaim, limit: Limit, bound: u64, taken: u64) -> Problem {
    let (code, whose) = match limit {
        Limit::Total => (Code::SoldOut, "in total"),
        Limit::PerUser => (Code::UserLimitReached, "for this user"),
        Limit::PerUserPerDay => (Code::UserDailyLimitReached, "for this user on that day"),
    };
    let after = taken + u64::from(claim.quantity.get());
    let mut problem = refused(claim, code, &format!("{after} units {whose}, where {bound} are allowed"));
    problem.extensions.limit = Some(limit);
    problem.extensions.remaining = u32::try_from(bound.saturating_sub(taken)).ok();
    problem
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::campaign_change::NewCampaign;

    fn campaign(limits: &str) -> Campaign {
        let body = format!(
            r#"{{"id":"d","name":"D","starts_at":"2026-01-01T20:00:00Z","time_zone":"Asia/Shanghai","limits":{limits}}}"#
        );
        NewCampaign::parse(body.as_bytes(), Timestamp::default()).unwrap()
    }

    fn import(file: &str) -> Result<Import, Problem> {
        Import::parse(file.as_bytes(), &campaign("{}"), "2026-03-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn lines_are_counted_by_whatever_ends_them() {
        for (text, lines) in [("", 0), ("a", 0), ("a\n\nb\n", 3), ("a\r\nb\r\n", 2), ("a\rb\r", 2)] {
            assert_eq!(line_ends(text.as_bytes()), lines, "{text:?}");
        }
    }

    fn lacking(file: &str, limits: &str) -> Result<(Vec<PastClaim>, u64), Problem> {
        import(file)?.lacking(campaign(limits).limits)
    }

    #[test]
    fn what_a_line_leaves_out_is_the_start_and_its_place_among_the_users() {
        let (claims, already) =
            lacking("user_id,quantity\r\nann,2\r\nbob,1\r\nann,3\r\n", "{\"total\":6}").unwrap();
        assert_eq!((claims.len(), already), (3, 0));
        let start = campaign("{}").window.starts_at();
        assert!(claims.iter().all(|claim| claim.claimed_at == start && claim.day == claims[0].day));
        assert_eq!(crate::domain::utc_offsets::day_text(claims[0].day.into()), "2026-01-02");
        let again = lacking("user_id,quantity,claimed_at,idempotency_key\nbob,1,,\nann,2,,\nann,3,,\n", "{}");
        let again = again.unwrap().0;
        for (one, same) in [(0, 1), (1, 0), (2, 2)] {
            assert_eq!(claims[one].digest, again[same].digest, "whatever the order of the users");
        }
    }

    #[test]
    fn no_key_that_a_caller_can_choose_is_that_of_a_line() {
        assert!("import:1".parse::<IdempotencyKey>().is_err());
        let keyed = lacking("user_id,quantity,idempotency_key\nann,1,k1\nann,1,\n", "{}").unwrap().0;
        let ann: UserId = "ann".parse().unwrap();
        assert_eq!(keyed[0].digest, claim_digest(&"d".parse().unwrap(), &ann, "k1"));
        assert_eq!(keyed[1].digest, claim_digest(&"d".parse().unwrap(), &ann, "import:2"));
    }

    #[test]
    fn the_first_bad_line_is_named() {
        for (file, line) in [
            ("", "line 1"),
            ("ann,1\n", "line 1"),
            ("quantity,user_id\n1,ann\n", "line 1"),
            ("user_id,quantity,claimed_at,extra\n", "line 1"),
            ("user_id,quantity\nann,1\nbob\n", "line 3"),
            ("user_id,quantity\nann,1,2\n", "line 2"),
            ("user_id,quantity\n,1\n", "line 2"),
            ("user_id,quantity\na b,1\n", "line 2"),
            ("user_id,quantity\nann,\n", "line 2"),
            ("user_id,quantity\nann,0\n", "line 2"),
            ("user_id,quantity\nann,+1\n", "line 2"),
            ("user_id,quantity\nann,1.0\n", "line 2"),
            ("user_id,quantity\nann,4294967296\n", "line 2"),
            ("user_id,quantity,claimed_at\nann,1,2026-01-01\n", "line 2"),
            ("user_id,quantity,claimed_at\nann,1,2026-03-01T00:00:00.001Z\n", "line 2"),
            ("user_id,quantity,idempotency_key\nann,1,a key\n", "line 2"),
            ("user_id,quantity\n\nann,1\n\"bob\n,1", "line 4"),
            ("user_id,quantity\r\nann,1\r\n\r\n\r\nbob,0\r\n", "line 5"),
        ] {
            let problem = import(file).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest, "{file}");
            assert_eq!(problem.extensions.field.as_deref(), Some(line), "{file}: {}", problem.detail);
        }
        assert!(Import::parse(b"user_id,quantity\n\xff,1\n", &campaign("{}"), Timestamp::default()).is_err());
    }

    #[test]
    fn the_first_line_that_exceeds_a_limit_is_named() {
        let file = "user_id,quantity,claimed_at\nann,1,2026-02-01T00:00:00Z\nann,1,2026-02-01T15:59:59Z\n\
                    ann,1,2026-02-01T16:00:00Z\nbob,2,2026-02-01T00:00:00Z\n";
        for (limits, code, line) in [
            ("{\"total\":4}", Code::SoldOut, "line 5"),
            ("{\"per_user\":2}", Code::UserLimitReached, "line 4"),
            ("{\"per_user_per_day\":1}", Code::UserDailyLimitReached, "line 3"),
            ("{\"per_claim\":1}", Code::QuantityOutOfRange, "line 5"),
        ] {
            let problem = lacking(file, limits).unwrap_err();
            assert_eq!((problem.code, problem.extensions.field.as_deref()), (code, Some(line)), "{limits}");
        }
        let (claims, _) =
            lacking(file, "{\"total\":5,\"per_user\":3,\"per_user_per_day\":2,\"per_claim\":2}").unwrap();
        assert_eq!(claims.len(), 4);
    }

    #[test]
    fn a_claim_counts_once_and_what_was_given_back_not_at_all() {
        let file = "user_id,quantity,idempotency_key\nann,2,a\nann,2,a\nann,1,b\n";
        let mut again = import(file).unwrap();
        let ann: UserId = "ann".parse().unwrap();
        let (claims, already) = lacking(file, "{\"total\":3}").unwrap();
        assert_eq!((claims.len(), already), (2, 1));
        let granted = claims[0].granted(1, Some(3), 2).claim;
        again.has(&ann, &ClaimRecord { status: ClaimStatus::Returned, ..granted });
        let (claims, already) = again.lacking(campaign("{\"per_user\":1}").limits).unwrap();
        assert_eq!((claims.len(), already), (1, 2), "what was returned is not claimed again");
        let other = "user_id,quantity,idempotency_key\nann,2,a\nann,1,a\n";
        let problem = lacking(other, "{}").unwrap_err();
        assert_eq!(
            (problem.code, problem.extensions.field.as_deref()),
            (Code::IdempotencyKeyReused, Some("line 3"))
        );
        let mut full = import(file).unwrap();
        full.has(&"bob".parse().unwrap(), &granted);
        let problem = full.lacking(campaign("{\"total\":3}").limits).unwrap_err();
        assert_eq!((problem.code, problem.extensions.remaining), (Code::SoldOut, Some(1)));
    }
}
