//! What identifies a hold.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// Identifies a hold among the holds of a counter: the nonce of a token, or the digest of a caller's id. Bytes, since a `u128`
/// would align every charge to 16 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId([u8; Self::NONCE_BYTES]);

impl HoldId {
    /// Number of bytes of a nonce.
    pub const NONCE_BYTES: usize = 12;

    /// An id with the lower of these bits.
    pub const fn new(bits: u128) -> Self {
        let [_, _, _, _, nonce @ ..] = bits.to_be_bytes();
        Self(nonce)
    }

    /// The id of this nonce.
    pub const fn from_nonce(nonce: [u8; Self::NONCE_BYTES]) -> Self {
        Self(nonce)
    }

    /// The nonce that it is.
    pub const fn nonce(self) -> [u8; Self::NONCE_BYTES] {
        self.0
    }

    /// The nonce that comes this many after it.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self::new(bits(&self.0).wrapping_add(count.into()))
    }

    /// The id that a caller gives: as long as a nonce, so that all ids are written with as many digits.
    pub fn from_caller(id: &[u8]) -> Self {
        let digest = Sha256::digest(id);
        Self::new(bits(digest.iter().take(Self::NONCE_BYTES)))
    }
}

fn bits<'bytes>(bytes: impl IntoIterator<Item = &'bytes u8>) -> u128 {
    bytes.into_iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}

/// As keys and members in Redis write it.
impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:024x}", bits(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_survives_as_an_id_and_is_written_with_24_digits() {
        let nonce = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255];
        assert_eq!(HoldId::from_nonce(nonce).nonce(), nonce);
        assert_eq!(HoldId::from_nonce(nonce).to_string(), "000102030405060708090aff");
        assert_eq!(HoldId::from_nonce(nonce).plus(1).to_string(), "000102030405060708090b00");
        assert_eq!(HoldId::new(u128::MAX).plus(2), HoldId::new(1));
    }

    #[test]
    fn the_id_of_a_caller_stays_the_same() {
        assert_eq!(HoldId::from_caller(b"job").to_string(), "5e8c9902207afaeb7120430c");
    }
}
