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
}

/// Length of the counters at the head of a user's record, in bytes.
const USER_HEADER_BYTES: usize = 14;

/// The claims in a user's record; none when it is no record.
pub fn claims_of(user: &[u8], record: &[u8]) -> Vec<(UserId, ClaimRecord)> {
    let Some(user) = std::str::from_utf8(user).ok().and_then(|user| user.parse::<UserId>().ok()) else {
        return Vec::new();
    };
    let claims = record.get(USER_HEADER_BYTES..).unwrap_or_default().chunks_exact(ClaimRecord::BYTES);
    claims.filter_map(ClaimRecord::read).map(|claim| (user.clone(), claim)).collect()
}

/// A claim that has moved out of its user's record: the record, followed by the user's id.
pub fn moved_claim(moved: &[u8]) -> Option<(UserId, ClaimRecord)> {
    let user = std::str::from_utf8(moved.get(ClaimRecord::BYTES..)?).ok()?;
    Some((user.parse().ok()?, ClaimRecord::read(moved)?))
}

/// Units a user has ever taken, from the user's record; 0 when it is no record.
pub fn taken_ever(record: &[u8]) -> u64 {
    record.get(8..13).map_or(0, be_int)
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

    #[test]
    fn a_users_claims_stand_behind_the_counters() {
        let mut user = vec![0; USER_HEADER_BYTES];
        user[12] = 7;
        assert_eq!(taken_ever(&user), 7);
        assert!(claims_of(b"alice", &user).is_empty());
        let claim = ClaimRecord {
            digest: [9; 16],
            status: ClaimStatus::Held,
            revision: 1,
            quantity: 2,
            sequence: 3,
            claimed_at: timestamp(1_700_000_000_000).unwrap(),
            expires_at: timestamp(1_700_000_060_000),
            day: 19_675,
        };
        claim.write(&mut user);
        claim.write(&mut user);
        assert_eq!(claims_of(b"alice", &user), vec![("alice".parse().unwrap(), claim); 2]);
        assert!(claims_of(b"no user", &user).is_empty(), "a blank is in no user id");
        assert_eq!(taken_ever(b"short"), 0);
    }
}
