//! The codes of a campaign: the code numbers of claims, and the file in which a seller adds codes.
//!
//! Codes are numbered from 1. A granted claim gets the next code numbers, one for each unit, in the transaction
//! that writes its row. Code numbers may run ahead of the codes that were added.

use std::collections::HashMap;
use std::num::NonZeroU32;

use bytes::Bytes;
use claimgate_shared::{ClaimCode, ClaimDigest, Code, Problem, UserId};
use csv::ByteRecord;

use super::claim_record::{be_int, put_be};

/// Maximum number of units, and so of codes, of a claim; also the default limit.
pub const PER_CLAIM_MAX: NonZeroU32 = NonZeroU32::new(1000).expect("not 0");
/// Maximum number of codes that a relay's transaction or a call reads or writes: about a second of SQL. The codes of a
/// claim are never split, nor are those of an outbox entry, which may have more.
pub const CODES_AT_ONCE: u64 = 100_000;
/// Maximum number of codes in a file.
const CODES_MAX: usize = 5_000_000;
/// The headers that a file may begin with, in any case. If one counted as a code, the first winner would get it.
const HEADERS: [&[u8]; 2] = [b"code", b"codes"];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The number of codes of a campaign, and the number of code numbers assigned to claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CodeStock {
    /// Number of codes added.
    pub added: u64,
    /// The highest assigned code number.
    pub assigned: u64,
    /// Claims with code numbers from here on may be without codes, or Redis may lack their codes; `None` if
    /// there are none.
    pub pending_from: Option<u64>,
}

impl CodeStock {
    /// Assigns the next code numbers to a claim of `quantity` units, and returns the first.
    pub fn assign(&mut self, quantity: u32) -> u64 {
        let first = self.assigned + 1;
        self.assigned += u64::from(quantity);
        first
    }

    /// Checks whether there is a code for each unit of `total`.
    ///
    /// # Errors
    /// `invalid_request` for an unlimited total; `codes_missing`.
    pub fn check_total(&self, total: Option<u32>) -> Result<(), Problem> {
        let total = total.ok_or_else(|| {
            Problem::invalid("limits.total", "must be a number: each unit of this campaign has a code")
        })?;
        if u64::from(total) <= self.added {
            return Ok(());
        }
        let detail = format!("the campaign has {} codes: add more before you raise the total", self.added);
        Err(Problem::new(Code::CodesMissing, detail))
    }
}

/// Returns the limit of units per claim of a campaign with codes, [`PER_CLAIM_MAX`] if none is `given`: the
/// codes of a claim are written, stored and shown together.
///
/// # Errors
/// `invalid_request` for a higher limit.
pub fn per_claim_limit(given: Option<NonZeroU32>) -> Result<NonZeroU32, Problem> {
    let limit = given.unwrap_or(PER_CLAIM_MAX);
    if limit <= PER_CLAIM_MAX {
        return Ok(limit);
    }
    let detail = format!("must be at most {PER_CLAIM_MAX} in a campaign with codes");
    Err(Problem::invalid("limits.per_claim", detail))
}

/// Returns the problem for a campaign without codes.
pub fn no_codes() -> Problem {
    Problem::new(Code::InvalidRequest, "the campaign has no codes: create it with `\"codes\": true`")
}

/// The codes of one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodesOfClaim {
    /// The claim's user.
    pub user: UserId,
    /// The claim's digest.
    pub digest: ClaimDigest,
    /// The first code number; the codes have consecutive code numbers.
    pub first: u64,
    /// The codes, one for each unit.
    pub codes: Vec<ClaimCode>,
}

impl CodesOfClaim {
    /// Returns the value that Redis stores under the claim's digest: the first code number, then user and codes,
    /// separated by spaces.
    pub fn packed(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        put_be(&mut packed, self.first, NUMBER_BYTES);
        packed.extend_from_slice(self.user.as_str().as_bytes());
        for code in &self.codes {
            packed.push(b' ');
            packed.extend_from_slice(code.as_str().as_bytes());
        }
        packed
    }

    /// Reads the value that Redis stores under `digest`; `None` if it is malformed.
    pub fn unpack(digest: &[u8], packed: &[u8]) -> Option<Self> {
        let digest = digest.try_into().ok()?;
        let (first, texts) = packed.split_at_checked(NUMBER_BYTES)?;
        let mut texts = std::str::from_utf8(texts).ok()?.split(' ');
        let user = texts.next()?.parse().ok()?;
        let codes = texts.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { user, digest, first: be_int(first), codes })
    }
}

/// Length of a packed code number, in bytes.
const NUMBER_BYTES: usize = 6;

/// The codes of a file, in file order. Each is in it once.
pub struct CodesFile {
    file: Bytes,
    /// Start and end of each code in the file.
    ranges: Vec<(u32, u32)>,
}

impl std::fmt::Debug for CodesFile {
    /// Leaves out the codes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CodesFile").field("codes", &self.ranges.len()).finish_non_exhaustive()
    }
}

impl CodesFile {
    /// Parses a file with one code per line, with or without the header `code` or `codes`. Blank lines are skipped.
    ///
    /// # Errors
    /// `payload_too_large` for more than [`CODES_MAX`] codes; `invalid_request` with the first line that is
    /// not a code or repeats one, counted from 1. The problem does not contain the code.
    pub fn parse(file: Bytes) -> Result<Self, Problem> {
        let text = file.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&file);
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
        let (mut fields, mut ranges) = (ByteRecord::new(), Vec::new());
        let mut lines: HashMap<&[u8], u64> = HashMap::new();
        let skipped = file.len() - text.len();
        let mut is_first = true;
        // Reading from memory with fields of any length cannot fail.
        while reader.read_byte_record(&mut fields).unwrap_or(false) {
            let (start, line) = code_start(text, &fields);
            if std::mem::take(&mut is_first) && is_header(&fields) {
                continue;
            }
            let wrong = |why: String| Problem::invalid(format!("line {line}"), why);
            if fields.len() != 1 {
                return Err(wrong(format!("must have one field, not {}", fields.len())));
            }
            ClaimCode::check(&fields[0]).map_err(|error| wrong(error.to_string()))?;
            let code = text.get(start..start + fields[0].len()).unwrap_or_default();
            // Such as text after closing quotes, which the reader takes for a part of the field.
            if code != &fields[0] {
                return Err(wrong("must be a code alone, or a code in double quotes".to_owned()));
            }
            if let Some(before) = lines.insert(code, line) {
                return Err(wrong(format!("repeats the code of line {before}")));
            }
            if lines.len() > CODES_MAX {
                let detail = format!("has more than {CODES_MAX} codes: add them in several files");
                return Err(Problem::new(Code::PayloadTooLarge, detail));
            }
            let start = start + skipped;
            // A file is far smaller than 4 GiB.
            let at = |byte: usize| u32::try_from(byte).unwrap_or(u32::MAX);
            ranges.push((at(start), at(start + code.len())));
        }
        drop(lines);
        if ranges.is_empty() {
            return Err(Problem::invalid("body", "has no codes"));
        }
        Ok(Self { file, ranges })
    }

    /// Returns the number of codes.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the codes in order, in lists of at most `size`.
    pub fn chunks(&self, size: usize) -> impl Iterator<Item = Vec<&str>> {
        self.ranges.chunks(size).map(|ranges| {
            let text = |(start, end): &(u32, u32)| {
                std::str::from_utf8(&self.file[*start as usize..*end as usize]).unwrap_or_default()
            };
            ranges.iter().map(text).collect()
        })
    }
}

fn is_header(fields: &ByteRecord) -> bool {
    fields.len() == 1 && HEADERS.iter().any(|header| fields[0].eq_ignore_ascii_case(header))
}

/// Returns where the first field of a record begins in `text`, and its line, from 1. A record begins after the one
/// before, so there may be blank lines before the field. A code has no quotes, so its text in the file is the
/// field itself, perhaps between quotes.
fn code_start(text: &[u8], fields: &ByteRecord) -> (usize, u64) {
    let (from, line) = fields.position().map_or((0, 1), |record| (record.byte(), record.line()));
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(text.len());
    let is_skipped = |byte: &&u8| matches!(byte, b'"' | b'\r' | b'\n');
    let skipped = text[from..].iter().take_while(is_skipped);
    let newlines = skipped.clone().filter(|byte| **byte == b'\n').count() as u64;
    (from + skipped.count(), line + newlines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(file: &str) -> Result<Vec<String>, (Code, Option<String>)> {
        let file = CodesFile::parse(Bytes::copy_from_slice(file.as_bytes()));
        let file = file.map_err(|problem| (problem.code, problem.extensions.field))?;
        Ok(file.chunks(2).flatten().map(str::to_owned).collect())
    }

    #[test]
    fn a_file_has_one_code_a_line() {
        for file in [
            "A1\nB2\nC3\n",
            "code\nA1\nB2\nC3",
            "A1\r\nB2\r\nC3\r\n",
            "\u{feff}Code\nA1\n\n\nB2\n\"C3\"\n",
            "\"CODES\"\r\nA1\nB2\nC3",
        ] {
            assert_eq!(parsed(file).unwrap(), ["A1", "B2", "C3"], "{file:?}");
        }
        for (file, codes) in [("A1\ncode\n", ["A1", "code"]), ("code\nCode\nA1\n", ["Code", "A1"])] {
            assert_eq!(parsed(file).unwrap(), codes, "only the first line is a header");
        }
    }

    #[test]
    fn the_error_names_the_first_wrong_line() {
        let line = |number: u32| Err((Code::InvalidRequest, Some(format!("line {number}"))));
        assert_eq!(parsed("A1\nB2\nA1\n"), line(3), "repeated");
        assert_eq!(parsed("code\nA1\n\"A1\"\n"), line(3), "repeated in quotes");
        assert_eq!(parsed("A1,2026\n"), line(1));
        assert_eq!(parsed("A1\nB 2\n"), line(2));
        assert_eq!(parsed("A1\n\"B\"\"2\"\n"), line(2));
        assert_eq!(parsed("A1\nÄ\n"), line(2));
        for partly_quoted in ["\"A1\";100\n", "\"SAVE\"-1\n", "\u{feff}\u{feff}A1\n"] {
            assert_eq!(parsed(partly_quoted), line(1), "{partly_quoted:?}");
        }
        for empty in ["", "code\n", "\n\n"] {
            assert_eq!(parsed(empty), Err((Code::InvalidRequest, Some("body".to_owned()))), "{empty:?}");
        }
    }

    #[test]
    fn packed_codes_round_trip() {
        let codes = ["A1", "B2"].map(|code| code.parse().unwrap()).to_vec();
        let claim = CodesOfClaim { user: "ann".parse().unwrap(), digest: [7; 16], first: 70_000, codes };
        assert_eq!(CodesOfClaim::unpack(&[7; 16], &claim.packed()), Some(claim.clone()));
        assert_eq!(CodesOfClaim::unpack(&[7; 15], &claim.packed()), None);
        assert_eq!(CodesOfClaim::unpack(&[7; 16], b"abc"), None);
        assert_eq!(CodesOfClaim::unpack(&[7; 16], b"abcdef\xff"), None);
    }

    #[test]
    fn a_claim_has_at_most_a_thousand_codes() {
        let limit = |given| per_claim_limit(NonZeroU32::new(given)).map(NonZeroU32::get);
        assert_eq!([limit(0), limit(1), limit(1000)], [Ok(1000), Ok(1), Ok(1000)]);
        assert_eq!(limit(1001).unwrap_err().code, Code::InvalidRequest);
    }

    #[test]
    fn a_total_needs_as_many_codes() {
        let stock = CodeStock { added: 10, ..CodeStock::default() };
        assert_eq!(stock.check_total(Some(10)), Ok(()));
        assert_eq!(stock.check_total(Some(11)).unwrap_err().code, Code::CodesMissing);
        assert_eq!(stock.check_total(None).unwrap_err().code, Code::InvalidRequest);
        assert_eq!(CodeStock::default().check_total(Some(0)), Ok(()));
    }
}
