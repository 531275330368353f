//! Parses a CSV file of past claims, and checks it against the campaign's limits and existing claims.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::str::FromStr;

use claimgate_shared::ids::claim_digest;
use claimgate_shared::problem::Limit;
use claimgate_shared::user_id::Scheme;
use claimgate_shared::{
    CampaignId, ClaimDigest, ClaimStatus, Code, IdempotencyKey, Limits, Problem, Quantity, Timestamp, UserId,
};
use csv::ByteRecord;

use super::campaign::{Campaign, Evicted, UNITS_MAX};
use super::claim_record::ClaimRecord;
use super::event::ClaimEvent;
use super::user_ids::UserIdsDiffer;

/// The accepted headers.
const HEADERS: [&[&str]; 4] = [
    &["user_id", "quantity"],
    &["user_id", "quantity", "claimed_at"],
    &["user_id", "quantity", "idempotency_key"],
    &["user_id", "quantity", "claimed_at", "idempotency_key"],
];

/// Maximum number of lines in a file. During an import, each line takes up to 200 bytes of memory. 3 million
/// lines (600 MB) and the 256 MiB file fit the packaged core's memory limit of 1 GiB. Without this maximum, a
/// file of very short lines could have ten times as many.
const LINES_MAX: u32 = 3_000_000;

/// A claim in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastClaim {
    /// The user's number.
    user: u32,
    line: u32,
    /// Units.
    pub quantity: Quantity,
    day: u32,
    digest: ClaimDigest,
    claimed_at: Timestamp,
}

impl PastClaim {
    /// Returns the event of the claim's grant to `user` under the limit `total`, with the sequence number
    /// `sequence` and `taken` units taken afterwards.
    fn granted(&self, user: UserId, sequence: u64, total: Option<u64>, taken: u64) -> ClaimEvent {
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
            user,
            claim,
            updated_at: self.claimed_at,
            limit_at_decision: total,
            cumulative_taken: Some(taken),
        }
    }
}

/// The claims of a file, and the campaign's existing claims.
#[derive(Debug, Default)]
pub struct Import {
    claims: Vec<PastClaim>,
    /// The users of the file, numbered from 0.
    users: HashMap<UserId, u32>,
    /// Indexed by the user's number.
    usage: Vec<Usage>,
    /// Units by the user's number and the day.
    on_days: HashMap<(u32, u32), u64>,
    /// The existing claims of the file's users, with their units.
    known: HashMap<ClaimDigest, u32>,
    taken: u64,
}

/// The units that a user has taken, and the number of the user's lines in the file.
#[derive(Debug, Default)]
struct Usage {
    lines: u32,
    ever: u64,
}

/// The claims of a file that the campaign does not have yet, in file order.
#[derive(Debug)]
pub struct MissingClaims {
    /// Indexed by the user's number.
    users: Vec<UserId>,
    claims: Vec<PastClaim>,
}

impl MissingClaims {
    /// Returns the number of claims.
    pub fn count(&self) -> usize {
        self.claims.len()
    }

    /// Returns the grants of all claims in order, in lists of at most `size`. Their numbers continue the
    /// counters `before`; `total` is the limit.
    pub fn granted(
        &self,
        size: usize,
        before: Evicted,
        total: Option<u64>,
    ) -> impl Iterator<Item = Vec<ClaimEvent>> {
        let Evicted { mut taken, mut sequence } = before;
        self.claims.chunks(size).map(move |claims| {
            let granted = claims.iter().map(|claim| {
                sequence += 1;
                taken += u64::from(claim.quantity.get());
                let user = self.users[claim.user as usize].clone();
                claim.granted(user, sequence, total, taken)
            });
            granted.collect()
        })
    }
}

impl Import {
    /// Parses a file of claims on `campaign`. No claim may be later than `now`.
    ///
    /// # Errors
    /// `payload_too_large` for more than [`LINES_MAX`] lines; `invalid_request` with the first malformed
    /// line, where the header is line 1.
    pub fn parse(file: &[u8], campaign: &Campaign, now: Timestamp) -> Result<Self, Problem> {
        if line_ends(file) > u64::from(LINES_MAX) {
            return Err(Problem::new(
                Code::PayloadTooLarge,
                format!(
                    "has more than {LINES_MAX} lines: import it in several files, with a key in each line"
                ),
            ));
        }
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
        let mut line = ByteRecord::new();
        // Reading from memory with fields of any length cannot fail.
        let mut read = |line: &mut ByteRecord| reader.read_byte_record(line).unwrap_or(false);
        read(&mut line);
        let Some(columns) = HEADERS.into_iter().find(|columns| line == **columns) else {
            return Err(Problem::invalid("line 1", wrong_header(file, &line)));
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

    /// Checks that all user ids are of the user-id scheme `scheme`.
    ///
    /// # Errors
    /// `user_ids_differ` with the first line whose user id is not.
    pub fn check_user_ids(&self, scheme: &Scheme) -> Result<(), Problem> {
        let others: HashMap<u32, &UserId> = self
            .users
            .iter()
            .filter(|(user, _)| !scheme.admits(user))
            .map(|(user, number)| (*number, user))
            .collect();
        let first = self.claims.iter().find_map(|claim| Some((claim.line, *others.get(&claim.user)?)));
        first.map_or(Ok(()), |(line, user)| {
            let why = UserIdsDiffer::Id { pinned: *scheme };
            Err(rejected(line, user, Code::UserIdsDiffer, &why.to_string()))
        })
    }

    /// Parses the claim of one line. `Err` describes the mistake.
    fn claim(
        &mut self,
        columns: &[&str],
        fields: &ByteRecord,
        line: u32,
        campaign: &Campaign,
        now: Timestamp,
    ) -> Result<PastClaim, String> {
        if fields.len() != columns.len() {
            return Err(format!("must have {} fields, like the header, not {}", columns.len(), fields.len()));
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
        let number = self.number_of(&user);
        let usage = &mut self.usage[number as usize];
        usage.lines += 1;
        let digest = digest(&campaign.id, &user, key, usage.lines);
        let day = campaign.zone.day_of(claimed_at);
        Ok(PastClaim { user: number, line, quantity, day, digest, claimed_at })
    }

    /// Returns the user's number; a new user gets the next one.
    fn number_of(&mut self, user: &UserId) -> u32 {
        if let Some(number) = self.users.get(user) {
            return *number;
        }
        // There are fewer users than lines.
        let number = u32::try_from(self.usage.len()).unwrap_or(u32::MAX);
        self.users.insert(user.clone(), number);
        self.usage.push(Usage::default());
        number
    }

    /// Records an existing claim of the campaign, which must not be revoked.
    pub fn mark_existing(&mut self, user: &UserId, claim: &ClaimRecord) {
        let is_active = matches!(claim.status, ClaimStatus::Granted | ClaimStatus::Held);
        let units = if is_active { u64::from(claim.quantity) } else { 0 };
        self.taken += units;
        if let Some(number) = self.users.get(user) {
            self.usage[*number as usize].ever += units;
            *self.on_days.entry((*number, claim.day)).or_default() += units;
            self.known.insert(claim.digest, claim.quantity);
        }
    }

    /// Returns the claims that the campaign does not have yet, and the number of claims that it has already.
    ///
    /// # Errors
    /// The problem of the first line that repeats a known key with a different quantity, or would exceed one
    /// of `limits`. A claim request would get the same problem.
    pub fn missing(mut self, limits: Limits) -> Result<(MissingClaims, u64), Problem> {
        let names: Vec<UserId> = {
            let mut numbered: Vec<_> = std::mem::take(&mut self.users).into_iter().collect();
            numbered.sort_unstable_by_key(|(_, number)| *number);
            numbered.into_iter().map(|(user, _)| user).collect()
        };
        let (mut claims, mut already, mut rejection) = (std::mem::take(&mut self.claims), 0, None);
        // Filter in place: a second list would double the memory.
        claims.retain(|claim| {
            if rejection.is_some() {
                return false;
            }
            match self.take_unless_known(claim, &names[claim.user as usize], limits) {
                Ok(true) => true,
                Ok(false) => {
                    already += 1;
                    false
                }
                Err(problem) => {
                    rejection = Some(problem);
                    false
                }
            }
        });
        match rejection {
            Some(problem) => Err(problem),
            None => Ok((MissingClaims { users: names, claims }, already)),
        }
    }

    /// Counts the claim of `user` if the limits allow it. Returns `false` if the campaign has the claim
    /// already.
    fn take_unless_known(
        &mut self,
        claim: &PastClaim,
        user: &UserId,
        limits: Limits,
    ) -> Result<bool, Problem> {
        let units = u64::from(claim.quantity.get());
        let rejected = |code, why: String| Err(rejected(claim.line, user, code, &why));
        match self.known.get(&claim.digest) {
            Some(known) if u64::from(*known) == units => return Ok(false),
            Some(known) => {
                let why = format!("the campaign has this claim with {known} units instead of {units}");
                return rejected(Code::IdempotencyKeyReused, why);
            }
            None => {}
        }
        if bound(limits.per_claim).is_some_and(|bound| units > bound) {
            return rejected(Code::QuantityOutOfRange, format!("{units} units exceed the limit per claim"));
        }
        let usage = &mut self.usage[claim.user as usize];
        let on_day = self.on_days.entry((claim.user, claim.day)).or_default();
        for (limit, bound, taken) in [
            (Limit::PerUserPerDay, bound(limits.per_user_per_day), *on_day),
            (Limit::PerUser, bound(limits.per_user), usage.ever),
            (Limit::Total, Some(limits.total.map_or(UNITS_MAX, u64::from)), self.taken),
        ] {
            if let Some(bound) = bound.filter(|bound| taken + units > *bound) {
                return Err(exceeded((claim, user), limit, bound, taken));
            }
        }
        usage.ever += units;
        *on_day += units;
        self.taken += units;
        self.known.insert(claim.digest, claim.quantity.get());
        Ok(true)
    }
}

/// Returns the digest of a user's line. Without a key, it is derived from the line's number among the user's
/// lines, in a form that no caller can choose as a key.
fn digest(campaign: &CampaignId, user: &UserId, key: Option<IdempotencyKey>, number: u32) -> ClaimDigest {
    match key {
        Some(key) => claim_digest(campaign, user, key.as_str()),
        None => claim_digest(campaign, user, &format!("import:{number}")),
    }
}

/// Describes the mistake in an unknown header: most rejected files come from a spreadsheet.
fn wrong_header(file: &[u8], header: &ByteRecord) -> &'static str {
    let is_utf_16 = file.starts_with(b"\xff\xfe")
        || file.starts_with(b"\xfe\xff")
        || file.iter().take(64).any(|byte| *byte == 0);
    let has = |byte: u8| header.iter().flatten().any(|found| *found == byte);
    if is_utf_16 {
        "is UTF-16: save the file as UTF-8"
    } else if header.get(0).is_some_and(|first| first.to_ascii_lowercase().starts_with(b"sep=")) {
        "is a separator note for a spreadsheet (sep=): remove this line, and separate the fields of all others with commas"
    } else if has(b';') {
        "has ';' between the fields: use ',' in all lines"
    } else if has(b'\t') {
        "has tabs between the fields: use ',' in all lines"
    } else {
        "must be the header user_id,quantity, optionally followed by claimed_at, idempotency_key or both"
    }
}

/// Counts the lines of a file, because the CSV reader's own line numbers are too low after empty lines.
struct LineNumbers<'a> {
    file: &'a [u8],
    at: usize,
    line: u32,
}

impl LineNumbers<'_> {
    /// Returns the line on which `record` begins; the header is line 1. Must be called in file order.
    fn of(&mut self, record: &ByteRecord) -> u32 {
        let read_from = record.position().and_then(|position| usize::try_from(position.byte()).ok());
        let rest = &self.file[self.at..];
        let skipped = read_from.map_or(0, |from| from.saturating_sub(self.at)).min(rest.len());
        let ends = rest[skipped..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let passed = &rest[..skipped + ends];
        // The file has at most [`LINES_MAX`] lines.
        self.line += u32::try_from(line_ends(passed)).unwrap_or(u32::MAX);
        self.at += passed.len();
        self.line
    }
}

/// Counts the line endings in `text`: LF, CR LF or CR, as in a record. `text` must not begin between a CR and
/// its LF.
fn line_ends(text: &[u8]) -> u64 {
    let mut before = 0;
    text.iter().fold(0, |ends, byte| {
        let is_end = *byte == b'\r' || (*byte == b'\n' && before != b'\r');
        before = *byte;
        ends + u64::from(is_end)
    })
}

fn bound(limit: Option<NonZeroU32>) -> Option<u64> {
    limit.map(|limit| u64::from(limit.get()))
}

/// Parses a field's value; `Err` names the field.
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

fn rejected(line: u32, user: &UserId, code: Code, why: &str) -> Problem {
    let line = format!("line {line}");
    let mut problem = Problem::new(code, format!("{line}, user {user}: {why}"));
    problem.extensions.field = Some(line);
    problem
}

fn exceeded((claim, user): (&PastClaim, &UserId), limit: Limit, bound: u64, taken: u64) -> Problem {
    let (code, whose) = match limit {
        Limit::Total => (Code::SoldOut, "in total"),
        Limit::PerUser => (Code::UserLimitReached, "for this user"),
        Limit::PerUserPerDay => (Code::UserDailyLimitReached, "for this user on that day"),
    };
    let after = taken + u64::from(claim.quantity.get());
    let mut problem =
        rejected(claim.line, user, code, &format!("{after} units {whose}, but only {bound} are allowed"));
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
        NewCampaign::parse(body.as_bytes()).unwrap().created_at(Timestamp::default()).unwrap()
    }

    fn import(file: &str) -> Result<Import, Problem> {
        Import::parse(file.as_bytes(), &campaign("{}"), "2026-03-01T00:00:00Z".parse().unwrap())
    }

    /// Parsing would take more memory than the packaged core has: see [`LINES_MAX`].
    #[test]
    fn a_file_of_too_many_lines_is_rejected_unparsed() {
        let rejected = |lines: u32| import(&"\n".repeat(lines.try_into().unwrap())).unwrap_err().code;
        assert_eq!(rejected(LINES_MAX + 1), Code::PayloadTooLarge);
        assert_eq!(rejected(LINES_MAX), Code::InvalidRequest, "the header is missing");
        let (file_max, memory_max) = (256 << 20, 1_u64 << 30);
        assert!(u64::from(LINES_MAX) * 200 + file_max < memory_max);
    }

    #[test]
    fn lines_are_counted_with_any_line_ending() {
        for (text, lines) in
            [("", 0), ("a", 0), ("a\n\nb\n", 3), ("a\r\nb\r\n", 2), ("a\rb\r", 2), ("a\r\r\nb\n\r", 4)]
        {
            assert_eq!(line_ends(text.as_bytes()), lines, "{text:?}");
        }
    }

    fn missing(file: &str, limits: &str) -> Result<(Vec<PastClaim>, u64), Problem> {
        missing_of(import(file)?, limits)
    }

    fn missing_of(import: Import, limits: &str) -> Result<(Vec<PastClaim>, u64), Problem> {
        import.missing(campaign(limits).limits).map(|(missing, already)| (missing.claims, already))
    }

    #[test]
    fn omitted_times_and_keys_have_defaults() {
        let (claims, already) =
            missing("user_id,quantity\r\nann,2\r\nbob,1\r\nann,3\r\n", "{\"total\":6}").unwrap();
        assert_eq!((claims.len(), already), (3, 0));
        let start = campaign("{}").window.starts_at();
        assert!(claims.iter().all(|claim| claim.claimed_at == start && claim.day == claims[0].day));
        assert_eq!(crate::domain::days::day_text(claims[0].day.into()), "2026-01-02");
        let again = missing("user_id,quantity,claimed_at,idempotency_key\nbob,1,,\nann,2,,\nann,3,,\n", "{}");
        let again = again.unwrap().0;
        for (one, same) in [(0, 1), (1, 0), (2, 2)] {
            assert_eq!(claims[one].digest, again[same].digest, "in any order of the users");
        }
    }

    #[test]
    fn callers_cannot_use_a_generated_import_key() {
        assert!("import:1".parse::<IdempotencyKey>().is_err());
        let keyed = missing("user_id,quantity,idempotency_key\nann,1,k1\nann,1,\n", "{}").unwrap().0;
        let ann: UserId = "ann".parse().unwrap();
        assert_eq!(keyed[0].digest, claim_digest(&"d".parse().unwrap(), &ann, "k1"));
        assert_eq!(keyed[1].digest, claim_digest(&"d".parse().unwrap(), &ann, "import:2"));
    }

    #[test]
    fn the_error_names_the_first_bad_line() {
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
            ("user_id,quantity\rann,1\rbob,0\r", "line 3"),
            ("user_id,quantity\rann,1\r\r\rbob,0", "line 5"),
            ("user_id,quantity\nann,1\rbob,1\r\ncid,0\n", "line 4"),
            ("user_id,quantity\r\"ann\",\"1\"\r\"b\rb\",1\r", "line 3"),
        ] {
            let problem = import(file).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest, "{file}");
            assert_eq!(problem.extensions.field.as_deref(), Some(line), "{file}: {}", problem.detail);
        }
        assert!(Import::parse(b"user_id,quantity\n\xff,1\n", &campaign("{}"), Timestamp::default()).is_err());
    }

    #[test]
    fn errors_name_the_defect_of_a_spreadsheet_export() {
        let utf_16 = |text: &str, mark: &[u8]| {
            let units = text.encode_utf16().flat_map(u16::to_le_bytes);
            mark.iter().copied().chain(units).collect::<Vec<u8>>()
        };
        let header = "user_id,quantity\nann,1\n";
        for (file, part) in [
            (b"user_id;quantity\nann;1\n".to_vec(), "';'"),
            (b"user_id;quantity;claimed_at\rann;1;\r".to_vec(), "';'"),
            (b"user_id\tquantity\nann\t1\n".to_vec(), "tabs"),
            (b"sep=,\nuser_id,quantity\nann,1\n".to_vec(), "sep="),
            (b"sep=;\nuser_id;quantity\nann;1\n".to_vec(), "sep="),
            (b"SEP=,\r\nuser_id,quantity\r\n".to_vec(), "sep="),
            (utf_16(header, b"\xff\xfe"), "UTF-16"),
            (utf_16(header, b""), "UTF-16"),
            (b"user,quantity\nann,1\n".to_vec(), "must be the header"),
        ] {
            let problem = Import::parse(&file, &campaign("{}"), Timestamp::default()).unwrap_err();
            assert!(problem.detail.contains(part), "{part}: {}", problem.detail);
            assert_eq!(problem.extensions.field.as_deref(), Some("line 1"), "{part}");
        }
        let with_mark = format!("\u{feff}{header}");
        assert_eq!(
            missing(&with_mark, "{}").unwrap().0.len(),
            1,
            "UTF-8's byte order mark is not part of the header"
        );
    }

    #[test]
    fn an_import_beyond_the_maximum_total_is_rejected() {
        let most = "user_id,quantity\n".to_owned() + &"ann,4294967295\n".repeat(256);
        assert_eq!(missing(&format!("{most}bob,255\n"), "{}").unwrap().0.len(), 257);
        let problem = missing(&format!("{most}bob,256\n"), "{}").unwrap_err();
        assert_eq!((problem.code, problem.extensions.remaining), (Code::SoldOut, Some(255)));
        assert_eq!(problem.extensions.field.as_deref(), Some("line 258"));
    }

    #[test]
    fn the_error_names_the_first_line_that_exceeds_a_limit() {
        let file = "user_id,quantity,claimed_at\nann,1,2026-02-01T00:00:00Z\nann,1,2026-02-01T15:59:59Z\n\
                    ann,1,2026-02-01T16:00:00Z\nbob,2,2026-02-01T00:00:00Z\n";
        for (limits, code, line) in [
            ("{\"total\":4}", Code::SoldOut, "line 5"),
            ("{\"per_user\":2}", Code::UserLimitReached, "line 4"),
            ("{\"per_user_per_day\":1}", Code::UserDailyLimitReached, "line 3"),
            ("{\"per_claim\":1}", Code::QuantityOutOfRange, "line 5"),
        ] {
            let problem = missing(file, limits).unwrap_err();
            assert_eq!((problem.code, problem.extensions.field.as_deref()), (code, Some(line)), "{limits}");
        }
        let (claims, _) =
            missing(file, "{\"total\":5,\"per_user\":3,\"per_user_per_day\":2,\"per_claim\":2}").unwrap();
        assert_eq!(claims.len(), 4);
    }

    #[test]
    fn a_claim_counts_once_unless_it_was_returned() {
        let file = "user_id,quantity,idempotency_key\nann,2,a\nann,2,a\nann,1,b\n";
        let mut again = import(file).unwrap();
        let ann: UserId = "ann".parse().unwrap();
        let (claims, already) = missing(file, "{\"total\":3}").unwrap();
        assert_eq!((claims.len(), already), (2, 1));
        let granted = claims[0].granted(ann.clone(), 1, Some(3), 2).claim;
        again.mark_existing(&ann, &ClaimRecord { status: ClaimStatus::Returned, ..granted });
        let (claims, already) = missing_of(again, "{\"per_user\":1}").unwrap();
        assert_eq!((claims.len(), already), (1, 2), "a returned claim is not claimed again");
        let other = "user_id,quantity,idempotency_key\nann,2,a\nann,1,a\n";
        let problem = missing(other, "{}").unwrap_err();
        assert_eq!(
            (problem.code, problem.extensions.field.as_deref()),
            (Code::IdempotencyKeyReused, Some("line 3"))
        );
        let mut full = import(file).unwrap();
        full.mark_existing(&"bob".parse().unwrap(), &granted);
        let problem = missing_of(full, "{\"total\":3}").unwrap_err();
        assert_eq!((problem.code, problem.extensions.remaining), (Code::SoldOut, Some(1)));
    }
}
