//! The packed answers of `claim.lua`, one a claim.

use claimgate_shared::{Denial, Timestamp};

use super::{Malformed, Verdict};
use crate::domain::claim_record::{ClaimRecord, be_int, timestamp};
use crate::domain::utc_offsets::TimeZone;

/// The packed answers of `claim.lua`, taken one after another, and what the next of them goes on from.
pub(super) struct Answers<'a> {
    /// The last sequence given before the next claim.
    pub sequence: u64,
    /// Units taken before it.
    pub taken: u64,
    /// Until when claims held here are held.
    pub expires_at: Option<Timestamp>,
    /// The campaign's zone, whose days end.
    pub zone: &'a TimeZone,
    /// The answers that are left.
    pub bytes: &'a [u8],
}

impl Answers<'_> {
    /// The answer to the next claim, which asked for `quantity`.
    pub fn next(&mut self, quantity: u32) -> Result<Verdict, Malformed> {
        let denial = match self.number(1)? {
            1 => {
                self.sequence += 1;
                self.taken += u64::from(quantity);
                let (sequence, expires_at, taken) = (self.sequence, self.expires_at, self.taken);
                return Ok(Verdict::Granted { sequence, expires_at, taken });
            }
            2 => {
                let record = ClaimRecord::read(self.take(ClaimRecord::BYTES)?);
                let claim = record.ok_or_else(|| Malformed("record".to_owned()))?;
                return Ok(Verdict::Replayed { claim, taken: self.taken });
            }
            3 => Denial::IdempotencyKeyReused,
            4 => Denial::Paused,
            5 => Denial::Ended { ends_at: None },
            6 => Denial::NotStarted { starts_at: self.timestamp()? },
            7 => Denial::Ended { ends_at: Some(self.timestamp()?) },
            8 => Denial::QuantityOutOfRange { per_claim: self.units()? },
            9 => {
                let (remaining, day) = (self.units()?, self.number(3)?);
                let resets_at = self.zone.day_end(i64::try_from(day).unwrap_or(i64::MAX));
                Denial::UserDailyLimitReached { remaining, resets_at }
            }
            10 => Denial::UserLimitReached { remaining: self.units()? },
            11 => Denial::SoldOut { remaining: self.units()? },
            12 => return Ok(Verdict::RetryAfterSweep),
            13 => return Ok(Verdict::OutboxFull),
            other => return Err(Malformed(format!("answer {other}"))),
        };
        Ok(Verdict::Denied(denial))
    }

    fn take(&mut self, length: usize) -> Result<&[u8], Malformed> {
        let (taken, rest) =
            self.bytes.split_at_checked(length).ok_or_else(|| Malformed("answers cut short".to_owned()))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<u64, Malformed> {
        self.take(width).map(be_int)
    }

    /// Units left or allowed; more than 32 bits only where a limit is none.
    fn units(&mut self) -> Result<u32, Malformed> {
        Ok(u32::try_from(self.number(5)?).unwrap_or(u32::MAX))
    }

    fn timestamp(&mut self) -> Result<Timestamp, Malformed> {
        let ms = self.number(6)?;
        timestamp(ms).ok_or_else(|| Malformed(format!("time {ms}")))
    }
}
