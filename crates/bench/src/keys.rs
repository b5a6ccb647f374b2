//! Draws the numbers of keys. Random numbers are the same in every run, so that runs are comparable.

use std::sync::Arc;

/// How the numbers of keys are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Distribution {
    /// Each as often as any other
    Uniform,
    /// The first most often, the second half as often, the third a third as often (exponent 1)
    Zipf,
    /// One after another
    Sequential,
}

/// Numbers from 0 to below a count.
#[derive(Debug, Clone)]
pub struct Numbers {
    keys: usize,
    draw: Draw,
}

#[derive(Debug, Clone)]
enum Draw {
    Uniform(Random),
    /// The sum of the weights up to each number.
    Zipf(Random, Arc<[f64]>),
    Sequential {
        next: usize,
        step: usize,
    },
}

impl Numbers {
    /// Numbers below `keys`, which is at least 1.
    pub fn new(keys: usize, distribution: Distribution) -> Self {
        let draw = match distribution {
            Distribution::Uniform => Draw::Uniform(Random(0)),
            Distribution::Zipf => Draw::Zipf(Random(0), zipf_sums(keys)),
            Distribution::Sequential => Draw::Sequential { next: 0, step: 1 },
        };
        Self { keys, draw }
    }

    /// For one of several threads: other random numbers, or its share of the sequence.
    pub(super) fn of_thread(&self, index: usize, threads: usize) -> Self {
        // So far apart that no run is long enough to reach the numbers of another thread.
        let random = Random((index as u64) << 48);
        let draw = match &self.draw {
            Draw::Uniform(_) => Draw::Uniform(random),
            Draw::Zipf(_, sums) => Draw::Zipf(random, Arc::clone(sums)),
            Draw::Sequential { .. } => Draw::Sequential { next: index, step: threads },
        };
        Self { keys: self.keys, draw }
    }

    /// The next number.
    pub fn draw(&mut self) -> usize {
        let drawn = match &mut self.draw {
            Draw::Uniform(random) => {
                // The high half of the product is below `keys`.
                let high = (u128::from(random.next()) * self.keys as u128) >> 64;
                usize::try_from(high).unwrap_or(0)
            }
            Draw::Zipf(random, sums) => {
                let whole = sums.last().copied().unwrap_or(0.0);
                let point = random.next() as f64 / u64::MAX as f64 * whole;
                sums.partition_point(|sum| *sum < point)
            }
            Draw::Sequential { next, step } => {
                let number = *next % self.keys;
                *next = number + *step;
                number
            }
        };
        drawn.min(self.keys.saturating_sub(1))
    }
}

/// The sum of the weights up to each number.
fn zipf_sums(keys: usize) -> Arc<[f64]> {
    let mut sum = 0.0;
    let mut sums = Vec::with_capacity(keys);
    for number in 1..=keys {
        sum += 1.0 / number as f64;
        sums.push(sum);
    }
    sums.into()
}

/// SplitMix64, for which every seed is good.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of four numbers is among 10,000.
    fn counts(mut numbers: Numbers) -> [usize; 4] {
        let mut counts = [0; 4];
        (0..10_000).for_each(|_| counts[numbers.draw()] += 1);
        counts
    }

    fn four(mut numbers: Numbers) -> [usize; 4] {
        [(); 4].map(|()| numbers.draw())
    }

    #[track_caller]
    fn near(counts: [usize; 4], expected: [usize; 4]) {
        let near =
            counts.iter().zip(expected).all(|(count, expected)| count.abs_diff(expected) < 200);
        assert!(near, "{counts:?} is not near {expected:?}");
    }

    #[test]
    fn uniform_numbers_are_equally_frequent() {
        near(counts(Numbers::new(4, Distribution::Uniform)), [2500; 4]);
    }

    #[test]
    fn the_second_of_zipf_is_half_as_frequent_as_the_first() {
        near(counts(Numbers::new(4, Distribution::Zipf)), [4800, 2400, 1600, 1200]);
    }

    #[test]
    fn threads_share_a_sequence_and_have_random_numbers_of_their_own() {
        let sequence = Numbers::new(5, Distribution::Sequential);
        assert_eq!(four(sequence.of_thread(0, 2)), [0, 2, 4, 1]);
        assert_eq!(four(sequence.of_thread(1, 2)), [1, 3, 0, 2]);
        let random = Numbers::new(1000, Distribution::Uniform);
        assert_ne!(four(random.of_thread(0, 2)), four(random.of_thread(1, 2)));
    }
}
