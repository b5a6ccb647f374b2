//! What identifies a hold.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// Identifies a hold among the holds of a counter: the nonce of a token, or the digest of a caller's id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(u128);

impl HoldId {
    /// Number of bytes of a nonce.
    pub const NONCE_BYTES: usize = 12;

    /// An id with these bits.
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// The id of this nonce.
    pub fn from_nonce(nonce: [u8; Self::NONCE_BYTES]) -> Self {
        Self(nonce.iter().fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }

    /// The nonce that it is, if it is one.
    pub fn nonce(self) -> [u8; Self::NONCE_BYTES] {
        let mut nonce = [0; Self::NONCE_BYTES];
        for (byte, of_id) in nonce.iter_mut().zip(self.0.to_be_bytes().into_iter().skip(4)) {
            *byte = of_id;
        }
        nonce
    }

    /// The nonce that comes this many after it.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        let nonces = u128::MAX >> (128 - 8 * Self::NONCE_BYTES);
        Self(self.0.wrapping_add(count as u128) & nonces)
    }

    /// The id that a caller gives.
    pub fn from_caller(id: &[u8]) -> Self {
        let digest = Sha256::digest(id);
        // As long as a nonce, so that all ids are written with as many digits.
        Self(digest.iter().take(Self::NONCE_BYTES).fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }
}

/// As keys and members in Redis write it.
impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:024x}", self.0)
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
    }
}
