//! A claim's binary record, as `lua/prelude.lua` packs it.

use claimgate_shared::{ClaimStatus, Timestamp, UserId};

/// A claim's record in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The digest that identifies the claim among the user's claims.
    pub digest: [u8; 16],
    /// The status.
    pub status: ClaimStatus,
    /// Raised by every change of the claim.
    pub revision: u16,
    /// Units.
    pub quantity: u32,
    /// The sequence number in the campaign.
    pub sequence: u64,
    /// When the claim was decided.
    pub claimed_at: Timestamp,
    /// When a hold expires.
    pub expires_at: Option<Timestamp>,
    /// The calendar day on which the claim counts, in days since 1970.
    pub day: u32,
}

impl ClaimRecord {
    /// Appends the record as the scripts write it.
    pub fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.digest);
        put_be(into, self.sequence, 5);
        into.extend_from_slice(&self.quantity.to_be_bytes());
        into.push(status_number(self.status));
        into.extend_from_slice(&self.revision.to_be_bytes());
        put_be(into, ms(self.claimed_at), 6);
        put_be(into, self.expires_at.map_or(0, ms), 6);
        put_be(into, u64::from(self.day), 3);
    }

    /// Length of a record, in bytes.
    pub const BYTES: usize = 43;

    /// Reads the record at the start of `bytes`; `None` if it is malformed.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::BYTES)?;
        Some(Self {
            digest: bytes[..16].try_into().ok()?,
            sequence: be_int(&bytes[16..21]),
            quantity: u32::try_from(be_int(&bytes[21..25])).ok()?,
            status: status(bytes[25])?,
            revision: u16::from_be_bytes([bytes[26], bytes[27]]),
            claimed_at: timestamp(be_int(&bytes[28..34]))?,
            expires_at: optional_timestamp(be_int(&bytes[34..40])),
            day: u32::try_from(be_int(&bytes[40..43])).ok()?,
        })
    }

    /// Reads consecutive records; `None` if one of them is malformed.
    pub fn read_all(bytes: &[u8]) -> Option<Vec<Self>> {
        bytes.chunks(Self::BYTES).map(Self::read).collect()
    }
}

/// A user's record in Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserRecord {
    /// The user's newest claims, at most 8, oldest first.
    pub claims: Vec<ClaimRecord>,
    /// The totals of all of the user's claims.
    pub counters: UserCounters,
    /// Whether older claims have moved out of the record, to the campaign's hash of claims.
    pub has_moved_out: bool,
}

impl UserRecord {
    /// Reads a user's record, which is empty for a user without claims; `None` if it is malformed. The
    /// [counters](UserCounters) ignore days after `latest`.
    pub fn read(bytes: &[u8], latest: u32) -> Option<Self> {
        let (header, claims) = bytes.split_at(bytes.len() % ClaimRecord::BYTES);
        let claims = ClaimRecord::read_all(claims)?;
        let has_moved_out = !header.is_empty();
        let of_claims = UserCounters::of(&claims, latest);
        let counters =
            if has_moved_out { UserCounters::read(header)?.up_to(latest, of_claims) } else { of_claims };
        Some(Self { claims, counters, has_moved_out })
    }
}

/// Units that a user has taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserCounters {
    /// The last day on which a claim counts, in days since 1970. Days far ahead, which a wrong clock
    /// produced, are ignored.
    pub day: u32,
    /// Units taken on that day.
    pub on_day: u64,
    /// Units taken in the whole campaign.
    pub ever: u64,
}

impl UserCounters {
    /// Length of the counters at the head of a user's record, in bytes.
    pub const BYTES: usize = 13;

    /// Returns the counters of one user's claims, ignoring days after `latest`, like `counters` in
    /// `prelude.lua`.
    pub fn of<'a>(claims: impl IntoIterator<Item = &'a ClaimRecord>, latest: u32) -> Self {
        let mut counters = Self::default();
        for claim in claims {
            if claim.day > counters.day && claim.day <= latest {
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

    /// Limits the counters to the day `latest`. If their day is later, uses the units of `newest` on the day
    /// `latest`.
    fn up_to(self, latest: u32, newest: Self) -> Self {
        if self.day <= latest {
            return self;
        }
        let on_day = if newest.day == latest { newest.on_day } else { 0 };
        Self { day: latest, on_day, ever: self.ever }
    }

    /// Reads counters; `None` if `bytes` has a different length.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let day = u32::try_from(be_int(&bytes[..3])).ok()?;
        Some(Self { day, on_day: be_int(&bytes[3..8]), ever: be_int(&bytes[8..]) })
    }

    /// Appends the counters as the scripts write them.
    pub fn write(&self, into: &mut Vec<u8>) {
        put_be(into, self.day.into(), 3);
        put_be(into, self.on_day, 5);
        put_be(into, self.ever, 5);
    }
}

/// Returns the claims in a user's record; none if it is malformed.
pub fn claims_of(user: &[u8], record: &[u8]) -> Vec<(UserId, ClaimRecord)> {
    let Some(user) = std::str::from_utf8(user).ok().and_then(|user| user.parse::<UserId>().ok()) else {
        return Vec::new();
    };
    inline_claims(record).map(|claim| (user.clone(), claim)).collect()
}

/// Returns the claims in a user's record; skips the counters at its start, if any.
fn inline_claims(record: &[u8]) -> impl Iterator<Item = ClaimRecord> {
    record[record.len() % ClaimRecord::BYTES..].chunks_exact(ClaimRecord::BYTES).filter_map(ClaimRecord::read)
}

/// Reads a claim that has moved out of the user's record: the claim's record, followed by the user's id.
pub fn moved_claim(moved: &[u8]) -> Option<(UserId, ClaimRecord)> {
    let user = std::str::from_utf8(moved.get(ClaimRecord::BYTES..)?).ok()?;
    Some((user.parse().ok()?, ClaimRecord::read(moved)?))
}

/// Length of a claim's record in layout 6, whose revision has one byte.
const LAYOUT_6_BYTES: usize = 42;
/// Position of the revision in a claim's record.
const REVISION_AT: usize = 26;

/// Converts records of layout 6: a user's record with or without counters, or consecutive claims. A remainder
/// that is not a claim stays at the start, so malformed records stay malformed.
pub fn from_layout_6(records: &[u8]) -> Vec<u8> {
    let (header, claims) = records.split_at(records.len() % LAYOUT_6_BYTES);
    let mut converted = Vec::with_capacity(records.len() + claims.len() / LAYOUT_6_BYTES);
    converted.extend_from_slice(header);
    for claim in claims.chunks_exact(LAYOUT_6_BYTES) {
        let (before, from_revision) = claim.split_at(REVISION_AT);
        converted.extend_from_slice(before);
        converted.push(0);
        converted.extend_from_slice(from_revision);
    }
    converted
}

/// Converts a claim of layout 6 that has moved out of the user's record, as in [`moved_claim`].
pub fn moved_from_layout_6(moved: &[u8]) -> Vec<u8> {
    let (claim, user) = moved.split_at(moved.len().min(LAYOUT_6_BYTES));
    [&from_layout_6(claim), user].concat()
}

/// Returns the units that a user has taken in the whole campaign; 0 if the record is malformed.
pub fn taken_ever(record: &[u8]) -> u64 {
    match record.len() % ClaimRecord::BYTES {
        0 => UserCounters::of(&inline_claims(record).collect::<Vec<_>>(), u32::MAX).ever,
        UserCounters::BYTES => be_int(&record[8..UserCounters::BYTES]),
        _ => 0,
    }
}

/// Reads a big-endian number of at most 8 bytes.
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

/// Returns the instant `ms` milliseconds after 1970-01-01T00:00:00Z; `None` if a [`Timestamp`] cannot hold
/// it.
pub fn timestamp(ms: u64) -> Option<Timestamp> {
    Timestamp::from_ms(i64::try_from(ms).ok()?).ok()
}

/// Returns the same as [`timestamp`], but `None` for 0.
pub fn optional_timestamp(ms: u64) -> Option<Timestamp> {
    if ms == 0 { None } else { timestamp(ms) }
}

fn status_number(status: ClaimStatus) -> u8 {
    match status {
        ClaimStatus::Granted => 1,
        ClaimStatus::Held => 2,
        ClaimStatus::Returned => 3,
        ClaimStatus::Expired => 4,
        // Revoked claims exist only in SQL; no script reads this value.
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
        let numbers = (any::<u16>(), any::<u32>(), 0..1_u64 << 40, 0..1_u32 << 24);
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
        fn a_written_record_is_read_back(record in any_record(), more in prop::collection::vec(any::<u8>(), 0..9)) {
            let bytes = written(&record);
            prop_assert_eq!(bytes.len(), ClaimRecord::BYTES);
            prop_assert_eq!(ClaimRecord::read(&[bytes, more].concat()), Some(record));
        }

        #[test]
        fn a_truncated_record_is_malformed(record in any_record(), cut in 0..ClaimRecord::BYTES) {
            prop_assert_eq!(ClaimRecord::read(&written(&record)[..cut]), None);
        }

        #[test]
        fn a_claim_outside_the_record_includes_its_user(record in any_record()) {
            let moved = [written(&record), b"alice".to_vec()].concat();
            prop_assert_eq!(moved_claim(&moved), Some(("alice".parse().unwrap(), record)));
            prop_assert_eq!(moved_claim(&moved[..ClaimRecord::BYTES]), None, "a claim without its user");
        }
    }

    /// Packs a claim in layout 6.
    fn in_layout_6(claim: &ClaimRecord) -> Vec<u8> {
        let mut bytes = written(claim);
        assert_eq!(bytes.remove(REVISION_AT), 0, "layout 6 has no such revision");
        bytes
    }

    proptest! {
        #[test]
        fn records_of_layout_6_are_converted(record in any_record(), count in 1_usize..9, revision in any::<u8>()) {
            let claim = ClaimRecord { revision: revision.into(), ..record };
            let claims = in_layout_6(&claim).repeat(count);
            let alice = || "alice".parse::<UserId>().unwrap();
            prop_assert_eq!(ClaimRecord::read_all(&from_layout_6(&claims)), Some(vec![claim; count]));
            let with_counters = [&[7; UserCounters::BYTES], &claims[..]].concat();
            prop_assert_eq!(claims_of(b"alice", &from_layout_6(&with_counters)), vec![(alice(), claim); count]);
            let moved = [in_layout_6(&claim), b"alice".to_vec()].concat();
            prop_assert_eq!(moved_claim(&moved_from_layout_6(&moved)), Some((alice(), claim)));
            prop_assert_eq!(moved_claim(&moved_from_layout_6(&moved[..LAYOUT_6_BYTES - 1])), None);
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
    fn a_users_record_contains_the_claims() {
        let held = claim(19_675, 2, ClaimStatus::Held);
        let record = [written(&held), written(&held)].concat();
        assert_eq!(claims_of(b"alice", &record), vec![("alice".parse().unwrap(), held); 2]);
        assert_eq!(taken_ever(&record), 4);
        assert!(claims_of(b"no user", &record).is_empty(), "no user has such an id");
        assert_eq!(taken_ever(b"short"), 0);
    }

    #[test]
    fn counters_include_claims_that_have_moved_out() {
        let mut record = Vec::new();
        UserCounters { day: 19_675, on_day: 5, ever: 7 }.write(&mut record);
        assert_eq!(record.len(), UserCounters::BYTES);
        let held = claim(19_675, 2, ClaimStatus::Held);
        held.write(&mut record);
        assert_eq!(claims_of(b"alice", &record), [("alice".parse().unwrap(), held)]);
        assert_eq!(taken_ever(&record), 7);
    }

    #[test]
    fn a_users_record_is_read_with_its_counters() {
        let held = claim(19_675, 2, ClaimStatus::Held);
        let claims = [written(&held), written(&held)].concat();
        let read = UserRecord::read(&claims, 19_675).unwrap();
        assert_eq!((&read.claims[..], read.has_moved_out), (&[held, held][..], false));
        assert_eq!(read.counters, UserCounters { day: 19_675, on_day: 4, ever: 4 });
        let counters = UserCounters { day: 19_676, on_day: 0, ever: 7 };
        let mut with_header = Vec::new();
        counters.write(&mut with_header);
        with_header.extend_from_slice(&claims);
        let read = UserRecord::read(&with_header, 19_676).unwrap();
        assert_eq!((read.claims.len(), read.counters, read.has_moved_out), (2, counters, true));
        let before = UserRecord::read(&with_header, 19_675).unwrap().counters;
        assert_eq!(before, UserCounters { day: 19_675, on_day: 4, ever: 7 }, "a day ahead of the latest");
        let long_before = UserRecord::read(&with_header, 19_600).unwrap().counters;
        assert_eq!(long_before, UserCounters { day: 19_600, on_day: 0, ever: 7 });
        assert_eq!(UserRecord::read(b"", 19_675), Some(UserRecord::default()));
        for wrong in [&with_header[1..], &claims[1..], b"short"] {
            assert_eq!(UserRecord::read(wrong, 19_675), None);
        }
    }

    #[test]
    fn counters_cover_granted_and_held_claims_and_the_last_day() {
        use ClaimStatus::{Expired, Granted, Held, Returned};
        let counters = |claims: &[ClaimRecord]| UserCounters::of(claims, 8);
        let of = |day, on_day, ever| UserCounters { day, on_day, ever };
        assert_eq!(counters(&[]), of(0, 0, 0));
        assert_eq!(counters(&[claim(7, 1, Granted), claim(8, 2, Held), claim(8, 4, Granted)]), of(8, 6, 7));
        assert_eq!(counters(&[claim(8, 2, Held), claim(7, 1, Granted)]), of(8, 2, 3), "in any order");
        assert_eq!(
            counters(&[claim(7, 1, Granted), claim(9, 2, Held)]),
            of(7, 1, 3),
            "days far ahead are ignored"
        );
        let returned = [claim(7, 1, Granted), claim(8, 2, Returned), claim(8, 4, Expired)];
        assert_eq!(counters(&returned), of(8, 0, 1), "a returned claim still begins a new day");
    }
}
