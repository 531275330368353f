//! The slot of a key: the part of a cluster that it belongs to.

/// How many slots a cluster has.
pub const SLOTS: u16 = 16384;

/// A key's slot. Keys of the same hash tag have the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The slot of `key`: of its hash tag, what is between the first `{` and the `}` after it, where it has one.
    pub fn of(key: &str) -> Self {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
        let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
        Self(crc16(hashed.as_bytes()) % SLOTS)
    }

    /// The first slot.
    pub const FIRST: Self = Self(0);

    /// The slot of that number; `None` when there are not as many.
    pub fn new(number: u16) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }

    /// The least number that is a hash tag of this slot, as text.
    pub fn tag(self) -> String {
        (0..u32::MAX).map(|number| number.to_string()).find(|tag| Self::of(tag) == self).unwrap_or_default()
    }

    /// Its number, from 0.
    pub fn get(self) -> u16 {
        self.0
    }
}

/// CRC-16/XMODEM, by which Redis hashes keys.
fn crc16(bytes: &[u8]) -> u16 {
    let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(*byte) << 8), shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // `CLUSTER KEYSLOT` of each.
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
