//! New users and idempotency keys: UUIDs from a seed.

use anyhow::Context as _;
use claimgate_shared::{ClaimRequest, Quantity};
use support::rng::Rng;

pub const UUID_CHARS: usize = 36;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// An endless sequence of UUIDs, the same for the same seed.
#[derive(Debug, Clone)]
pub struct Uuids(Rng);

impl Uuids {
    pub fn of(seed: u64) -> Self {
        Self(Rng::of(seed))
    }

    /// Writes the next UUID into `target`, which has [`UUID_CHARS`] bytes.
    pub fn write(&mut self, target: &mut [u8]) {
        let mut bytes =
            (u128::from(self.0.next_number()) << 64 | u128::from(self.0.next_number())).to_be_bytes();
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let mut at = 0;
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                target[at] = b'-';
                at += 1;
            }
            target[at] = HEX[usize::from(byte >> 4)];
            target[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
    }

    fn text(&mut self) -> String {
        let mut target = [0; UUID_CHARS];
        self.write(&mut target);
        String::from_utf8_lossy(&target).into_owned()
    }

    /// Returns the next `count` UUIDs.
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.text()).collect()
    }

    /// Returns `count` claims of one unit of `campaign`, each by a new user with a new key.
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
