//! A claim's record, byte by byte, as `lua/prelude.lua` packs it.

use claimgate_shared::{ClaimStatus, Timestamp, UserId};

/// A claim's record as Redis keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRecord {
    /// Tells a user's claims apart.
    pub digest: [u8; 16],
    /// Where it stands.
    pub status: ClaimStatus,
    /// Raised by every change of it.
    pub revision: u8,
    /// Units.
    pub quantity: u32,
    /// Its place in the campaign.
    pub sequence: u64,
    /// When it was decided.
    pub claimed_at: Timestamp,
    /// Until when a hold can be confirmed.
    pub expires_at: Option<Timestamp>,
    /// The calendar day it counts on, in days since 1970.
    pub day: u32,
}

impl ClaimRecord {
    /// Writes the record as the scripts do.
    pub fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.digest);
        put_be(into, self.sequence, 5);
        into.extend_from_slice(&self.quantity.to_be_bytes());
        into.extend_from_slice(&[status_number(self.status), self.revision]);
        put_be(into, ms(self.claimed_at), 6);
        put_be(into, self.expires_at.map_or(0, ms), 6);
        put_be(into, u64::from(self.day), 3);
    }

    /// Length of a record, in bytes.
    pub const BYTES: usize = 42;

    /// Reads the record at the head of `bytes`; `None` when it is no record.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::BYTES)?;
        Some(Self {
            digest: bytes[..16].try_into().ok()?,
            sequence: be_int(&bytes[16..21]),
            quantity: u32::try_from(be_int(&bytes[21..25])).ok()?,
            status: status(bytes[25])?,
            revision: bytes[26],
            claimed_at: timestamp(be_int(&bytes[27..33]))?,
            expires_at: optional_timestamp(be_int(&bytes[33..39])),
            day: u32::try_from(be_int(&bytes[39..42])).ok()?,
        })
    }

    /// Reads records that stand one behind the other; `None` when one of them is none.
    pub fn read_all(bytes: &[u8]) -> Option<Vec<Self>> {
        bytes.chunks(Self::BYTES).map(Self::read).collect()
    }
}

/// A user's record as Redis keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserRecord {
    /// The user's newest claims, 8 at most, oldest first.
    pub claims: Vec<ClaimRecord>,
    /// What all of the user's claims come to.
    pub counters: UserCounters,
    /// Whether older claims have moved out of the record.
    pub has_moved_out: bool,
}

impl UserRecord {
    /// Reads a user's record, empty for a user without claims; `None` when it is no record.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (header, claims) = bytes.split_at(bytes.len() % ClaimRecord::BYTES);
        let claims = ClaimRecord::read_all(claims)?;
        let has_moved_out = !header.is_empty();
        let counters = if has_moved_out { UserCounters::read(header)? } else { UserCounters::of(&claims) };
        Some(Self { claims, counters, has_moved_out })
    }
}

/// What a user has taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserCounters {
    /// The last day that a claim counts on, in days since 1970; it never goes backwards.
    pub day: u32,
    /// Units taken on that day.
    pub on_day: u64,
    /// Units taken over the campaign.
    pub ever: u64,
}

impl UserCounters {
    /// Length of the counters at the head of a user's record, in bytes.
    pub const BYTES: usize = 13;

    /// What these claims, all of one user, come to.
    pub fn of<'a>(claims: impl IntoIterator<Item = &'a ClaimRecord>) -> Self {
        let mut counters = Self::default();
        for claim in claims {
            if claim.day > counters.day {
                (counters.day, counters.on_day) = (claim.day, 0);
            }
            if matches!(claim.status, ClaimStatus::Granted | ClaimStatus::Held) {
                let units = u64::from(claim.quantity);
                counters.ever += units;
                counters.on_day += if claim.day == counters.day { units } else { 0 };
            }
        }
        counters
    }

    /// Reads the counters that `bytes` are; `None` when they are of another length.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let day = u32::try_from(be_int(&bytes[..3])).ok()?;
        Some(Self { day, on_day: be_int(&bytes[3..8]), ever: be_int(&bytes[8..]) })
    }

    /// Writes the counters as the scripts do.
    pub fn write(&self, into: &mut Vec<u8>) {
        put_be(into, self.day.into(), 3);
        put_be(into, self.on_day, 5);
        put_be(into, self.ever, 5);
    }
}

/// The claims in a user's record; none when it is no record.
pub fn claims_of(user: &[u8], record: &[u8]) -> Vec<(UserId, ClaimRecord)> {
    let Some(user) = std::str::from_utf8(user).ok().and_then(|user| user.parse::<UserId>().ok()) else {
        return Vec::new();
    };
    inline_claims(record).map(|claim| (user.clone(), claim)).collect()
}

/// The claims of a user's record, behind the counters if it has some.
fn inline_claims(record: &[u8]) -> impl Iterator<Item = ClaimRecord> {
    record[record.len() % ClaimRecord::BYTES..].chunks_exact(ClaimRecord::BYTES).filter_map(ClaimRecord::read)
}

/// A claim that has moved out of its user's record: the record, followed by the user's id.
pub fn moved_claim(moved: &[u8]) -> Option<(UserId, ClaimRecord)> {
    let user = std::str::from_utf8(moved.get(ClaimRecord::BYTES..)?).ok()?;
    Some((user.parse().ok()?, ClaimRecord::read(moved)?))
}

/// Units a user has ever taken, from the user's record; 0 when it is no record.
pub fn taken_ever(record: &[u8]) -> u64 {
    match record.len() % ClaimRecord::BYTES {
        0 => UserCounters::of(&inline_claims(record).collect::<Vec<_>>()).ever,
        UserCounters::BYTES => be_int(&record[8..UserCounters::BYTES]),
        _ => 0,
    }
}

/// A big-endian number of at most 8 bytes.
pub fn be_int(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Appends the low `width` bytes of `number`, big endian.
pub fn put_be(into: &mut Vec<u8>, number: u64, width: usize) {
    into.extend_from_slice(&number.to_be_bytes()[8 - width..]);
}

fn ms(at: Timestamp) -> u64 {
    at.as_ms().unsigned_abs()
}

/// The instant `ms` milliseconds after 1970-01-01T00:00:00Z; `None` when no [`Timestamp`] can hold it.
pub fn timestamp(ms: u64) -> Option<Timestamp> {
    Timestamp::from_ms(i64::try_from(ms).ok()?).ok()
}

/// The same, with 0 for none.
pub fn optional_timestamp(ms: u64) -> Option<Timestamp> {
    if ms == 0 { None } else { timestamp(ms) }
}

fn status_number(status: ClaimStatus) -> u8 {
    match status {
        ClaimStatus::Granted => 1,
        ClaimStatus::Held => 2,
        ClaimStatus::Returned => 3,
        ClaimStatus::Expired => 4,
        // Only SQL keeps revoked claims; no script would read one.
        ClaimStatus::Revoked => 0,
    }
}

fn status(number: u8) -> Option<ClaimStatus> {
    Some(match number {
        1 => ClaimStatus::Granted,
        2 => ClaimStatus::Held,
        3 => ClaimStatus::Returned,
        4 => ClaimStatus::Expired,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_record() -> impl Strategy<Value = ClaimRecord> {
        let status = prop::sample::select(vec![
            ClaimStatus::Granted,
            ClaimStatus::Held,
            ClaimStatus::Returned,
            ClaimStatus::Expired,
        ]);
        let at = 0..4_102_444_800_000_u64;
        let numbers = (any::<u8>(), any::<u32>(), 0..1_u64 << 40, 0..1_u32 << 24);
        (any::<[u8; 16]>(), status, numbers, at.clone(), at).prop_map(
            |(digest, status, (revision, quantity, sequence, day), claimed_at, expires_at)| ClaimRecord {
                digest,
                status,
                revision,
                quantity,
                sequence,
                claimed_at: timestamp(claimed_at).unwrap(),
                expires_at: optional_timestamp(expires_at),
                day,
            },
        )
    }

    fn written(record: &ClaimRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(record in any_record(), more in prop::collection::vec(any::<u8>(), 0..9)) {
            let bytes = written(&record);
            prop_assert_eq!(bytes.len(), ClaimRecord::BYTES);
            prop_assert_eq!(ClaimRecord::read(&[bytes, more].concat()), Some(record));
        }

        #[test]
        fn a_record_that_is_cut_short_is_none(record in any_record(), cut in 0..ClaimRecord::BYTES) {
            prop_assert_eq!(ClaimRecord::read(&written(&record)[..cut]), None);
        }

        #[test]
        fn a_moved_claim_carries_its_user(record in any_record()) {
            let moved = [written(&record), b"alice".to_vec()].concat();
            prop_assert_eq!(moved_claim(&moved), Some(("alice".parse().unwrap(), record)));
            prop_assert_eq!(moved_claim(&moved[..ClaimRecord::BYTES]), None, "a claim without its user");
        }
    }

    fn claim(day: u32, quantity: u32, status: ClaimStatus) -> ClaimRecord {
        ClaimRecord {
            digest: [9; 16],
            status,
            revision: 1,
            quantity,
            sequence: 3,
            claimed_at: timestamp(1_700_000_000_000).unwrap(),
            expires_at: timestamp(1_700_000_060_000),
            day,
        }
    }

    #[test]
    fn a_users_record_is_the_claims() {
        let held = claim(19_675, 2, ClaimStatus::Held);
        let record = [written(&held), written(&held)].concat();
        assert_eq!(claims_of(b"alice", &record), vec![("alice".parse().unwrap(), held); 2]);
        assert_eq!(taken_ever(&record), 4);
        assert!(claims_of(b"no user", &record).is_empty(), "no user has such an id");
        assert_eq!(taken_ever(b"short"), 0);
    }

    #[test]
    fn counters_before_the_claims_count_those_that_have_moved_out_too() {
        let mut record = Vec::new();
        UserCounters { day: 19_675, on_day: 5, ever: 7 }.write(&mut record);
        assert_eq!(record.len(), UserCounters::BYTES);
        let held = claim(19_675, 2, ClaimStatus::Held);
        held.write(&mut record);
        assert_eq!(claims_of(b"alice", &record), [("alice".parse().unwrap(), held)]);
        assert_eq!(taken_ever(&record), 7);
    }

    #[test]
    fn a_users_record_is_read_with_what_all_claims_come_to() {
        let held = claim(19_675, 2, ClaimStatus::Held);
        let claims = [written(&held), written(&held)].concat();
        let read = UserRecord::read(&claims).unwrap();
        assert_eq!((&read.claims[..], read.has_moved_out), (&[held, held][..], false));
        assert_eq!(read.counters, UserCounters { day: 19_675, on_day: 4, ever: 4 });
        let counters = UserCounters { day: 19_676, on_day: 0, ever: 7 };
        let mut with_header = Vec::new();
        counters.write(&mut with_header);
        with_header.extend_from_slice(&claims);
        let read = UserRecord::read(&with_header).unwrap();
        assert_eq!((read.claims.len(), read.counters, read.has_moved_out), (2, counters, true));
        assert_eq!(UserRecord::read(b""), Some(UserRecord::default()));
        for wrong in [&with_header[1..], &claims[1..], b"short"] {
            assert_eq!(UserRecord::read(wrong), None);
        }
    }

    #[test]
    fn what_stands_counts_and_the_last_day_is_the_current_one() {
        use ClaimStatus::{Expired, Granted, Held, Returned};
        let counters = |claims: &[ClaimRecord]| UserCounters::of(claims);
        let of = |day, on_day, ever| UserCounters { day, on_day, ever };
        assert_eq!(counters(&[]), of(0, 0, 0));
        assert_eq!(counters(&[claim(7, 1, Granted), claim(8, 2, Held), claim(8, 4, Granted)]), of(8, 6, 7));
        assert_eq!(counters(&[claim(8, 2, Held), claim(7, 1, Granted)]), of(8, 2, 3), "in whatever order");
        let given_back = [claim(7, 1, Granted), claim(8, 2, Returned), claim(8, 4, Expired)];
        assert_eq!(counters(&given_back), of(8, 0, 1), "a claim that was given back has turned the day");
    }
}
