//! Hash slots: the unit by which a cluster distributes keys.

/// Number of slots in a cluster.
pub const SLOTS: u16 = 16384;

/// A key's slot. Keys with the same hash tag share a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// Returns the slot of `key`, or of its hash tag (the text between the first `{` and the next `}`) if it
    /// has one.
    pub fn of(key: &str) -> Self {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
        let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
        Self(crc16(hashed.as_bytes()) % SLOTS)
    }

    /// The first slot.
    pub const FIRST: Self = Self(0);

    /// Returns the slot with this number; `None` if the number is too high.
    pub fn new(number: u16) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }

    /// Returns the smallest number whose text is a hash tag of this slot.
    pub fn tag(self) -> String {
        (0..u32::MAX).map(|number| number.to_string()).find(|tag| Self::of(tag) == self).unwrap_or_default()
    }

    /// Returns the slot's number, from 0.
    pub fn get(self) -> u16 {
        self.0
    }
}

/// Computes CRC-16/XMODEM, which Redis uses to hash keys.
fn crc16(bytes: &[u8]) -> u16 {
    let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(*byte) << 8), shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_those_of_redis() {
        // As returned by `CLUSTER KEYSLOT`.
        for (key, slot) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("cg:{foo}:users", 12182),
            ("{foo}{bar}", 12182),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("", 0),
        ] {
            assert_eq!(Slot::of(key).get(), slot, "{key}");
        }
        for slot in [Slot::FIRST, Slot(8191), Slot(SLOTS - 1)] {
            assert_eq!(Slot::of(&format!("cg:{{{}}}:barrier", slot.tag())), slot);
        }
    }
}
