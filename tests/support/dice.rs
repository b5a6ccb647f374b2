//! Pseudo-random numbers, and numbers from the environment.

pub use tollkeeper_sim::dice::number;
use tollkeeper_sim::dice::roll;

/// Pseudo-random numbers from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, sides: u64) -> u64 {
        let (state, number) = roll(self.0);
        self.0 = state;
        number % sides
    }
}
