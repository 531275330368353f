//! Users and idempotency keys that were never used before: UUIDs from a seed.

use anyhow::Context as _;
use claimgate_shared::{ClaimRequest, Quantity};
use support::rng::Rng;

/// Characters of a UUID.
pub const UUID_CHARS: usize = 36;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// An endless list of UUIDs, the same for the same seed.
#[derive(Debug, Clone)]
pub struct Uuids(Rng);

impl Uuids {
    /// From a seed.
    pub fn of(seed: u64) -> Self {
        Self(Rng::of(seed))
    }

    /// Writes the next one into `place`, which has [`UUID_CHARS`] bytes.
    pub fn write(&mut self, place: &mut [u8]) {
        let mut bytes = (u128::from(self.0.draw()) << 64 | u128::from(self.0.draw())).to_be_bytes();
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let mut at = 0;
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                place[at] = b'-';
                at += 1;
            }
            place[at] = HEX[usize::from(byte >> 4)];
            place[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
    }

    fn text(&mut self) -> String {
        let mut place = [0; UUID_CHARS];
        self.write(&mut place);
        String::from_utf8_lossy(&place).into_owned()
    }

    /// The next `count` of them.
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.text()).collect()
    }

    /// `count` claims of one unit of `campaign`, each by a new user with a new key.
    pub fn requests(&mut self, campaign: &str, count: usize) -> anyhow::Result<Vec<ClaimRequest>> {
        let campaign_id: claimgate_shared::CampaignId = campaign.parse().context("a campaign's id")?;
        let request = |_| {
            Ok(ClaimRequest {
                campaign_id: campaign_id.clone(),
                user_id: self.text().parse()?,
                quantity: Quantity::ONE,
                idempotency_key: self.text().parse()?,
            })
        };
        (0..count).map(request).collect()
    }
}
