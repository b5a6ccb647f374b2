//! Pseudo-random numbers, and numbers from the environment.

use std::env;

/// Pseudo-random numbers from a seed: xorshift64*, <https://doi.org/10.1145/2845077>.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

/// The value of an environment variable, which makes a test longer.
pub fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}
