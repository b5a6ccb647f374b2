//! Pauses between attempts.

use std::{
    cell::Cell,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// This time, or up to an eighth longer, so that replicas do not all try at once.
pub fn jittered(time: Duration) -> Duration {
    between(time, time + time / 8)
}

pub fn between(min: Duration, max: Duration) -> Duration {
    min + max.saturating_sub(min).mul_f64(f64::from(random()) / f64::from(u32::MAX))
}

thread_local! {
    /// What the random numbers of this thread follow from, if it is known.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's random numbers follow from a seed: a simulated world can be replayed.
pub fn begin_with(seed: u64) {
    SEED.set(Some(seed));
}

/// A random number, no secret.
pub fn random() -> u32 {
    let hash = match SEED.get() {
        // SplitMix64, <https://doi.org/10.1145/2660193.2660195>.
        Some(seed) => {
            let next = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            SEED.set(Some(next));
            let mixed = (next ^ next >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
        }
        None => RandomState::new().hash_one(0),
    };
    let [a, b, c, d, ..] = hash.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// A pause that doubles with each failure.
#[derive(Debug)]
pub struct Pause {
    present: Duration,
    range: (Duration, Duration),
}

impl Pause {
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { present: min, range: (min, max) }
    }

    pub fn time(&self) -> Duration {
        jittered(self.present)
    }

    pub fn longer(&mut self) {
        self.present = (2 * self.present).min(self.range.1);
    }

    pub const fn shortest(&mut self) {
        self.present = self.range.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_time_is_in_its_range_and_another_each_time() {
        let range = (Duration::from_secs(90), Duration::from_secs(110));
        let random = || between(range.0, range.1);
        assert_ne!(random(), random());
        assert!((0..1000).all(|_| (range.0..=range.1).contains(&random())));
    }
}
