//! Pseudo-random numbers: all that is random in the world comes from one seed. And numbers from the environment.

use std::{cell::Cell, env, ops::Range, time::Duration};

/// The state after this one, and a number below 2^31: xorshift64*, <https://doi.org/10.1145/2845077>.
pub const fn roll(mut state: u64) -> (u64, u64) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    (state, state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33)
}

/// The value of an environment variable, which makes a test longer.
pub fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}

pub struct Dice(Cell<u64>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        let dice = Self(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        for _ in 0..8 {
            dice.below(2);
        }
        dice
    }

    pub fn below(&self, sides: u64) -> u64 {
        let (state, number) = roll(self.0.get());
        self.0.set(state);
        number % sides
    }

    pub fn within(&self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// A time in microseconds.
    pub fn micros(&self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.within(range))
    }

    /// Whether one of a thousand, `share` of which are hits, is a hit.
    pub fn hits(&self, share: u64) -> bool {
        self.below(1000) < share
    }

    pub fn one_of<'a, T>(&self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    /// Another source, which this one begins.
    pub fn another(&self) -> Self {
        Self::new(self.below(1 << 31) << 31 | self.below(1 << 31))
    }
}
