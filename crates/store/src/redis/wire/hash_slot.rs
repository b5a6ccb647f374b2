//! Hash slots: a cluster distributes keys over its servers by them.

use tollkeeper_engine::key::Counter;

/// The hash slot of a key: CRC16 of its hash tag, modulo 16,384.
/// <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HashSlot(u16);

/// CRC-16/XMODEM of each byte.
const CRC16: [u16; 256] = {
    let mut table = [0_u16; 256];
    let (mut rest, mut byte) = (table.as_mut_slice(), 0);
    while let Some((entry, others)) = rest.split_first_mut() {
        let mut crc: u16 = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        *entry = crc;
        (rest, byte) = (others, byte + 1);
    }
    table
};

/// Continues a CRC16 with these bytes.
fn crc_after(begun: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(begun, |crc, byte| {
        let [high, low] = crc.to_be_bytes();
        let entry = CRC16.get(usize::from(high ^ byte)).copied().unwrap_or_default();
        u16::from_be_bytes([low, 0]) ^ entry
    })
}

impl HashSlot {
    pub(crate) const COUNT: u16 = 16_384;

    /// The hash slot of this number, below [`COUNT`](Self::COUNT).
    pub(crate) const fn new(number: u16) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number)) } else { None }
    }

    pub(crate) fn of(counter: &Counter) -> Self {
        Self::of_tag(counter.hash_tag().as_bytes())
    }

    pub(crate) fn of_tag(tag: &[u8]) -> Self {
        Self(crc_after(0, tag) % Self::COUNT)
    }

    /// A hash tag of this slot that begins with `name`.
    pub(crate) fn tag(self, name: &str) -> Option<String> {
        let begun = crc_after(crc_after(0, name.as_bytes()), b"-");
        let has_slot = |end: &String| crc_after(begun, end.as_bytes()) % Self::COUNT == self.0;
        let end = (0..1_000_000_u32).map(|number| number.to_string()).find(has_slot)?;
        Some(format!("{name}-{end}"))
    }

    /// The number, below [`COUNT`](Self::COUNT).
    pub(crate) const fn number(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `CLUSTER KEYSLOT` of a real server.
    #[test]
    fn slots_are_those_of_redis() {
        for (tag, slot) in
            [("123456789", 12_739), ("foo", 12_182), ("user1000", 3443), ("a", 15_495)]
        {
            assert_eq!(HashSlot::of_tag(tag.as_bytes()).number(), slot, "{tag}");
        }
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in [0, 1, 8191, 12_182, HashSlot::COUNT - 1].into_iter().filter_map(HashSlot::new)
        {
            assert_eq!(HashSlot::of_tag(slot.tag("probe").unwrap().as_bytes()), slot);
        }
    }
}
