//! The age at which a connection is asked to end, so that its client connects again, perhaps to a newer replica.

use std::{
    collections::hash_map::RandomState, future::pending, hash::BuildHasher as _, time::Duration,
};

use tokio::time;

/// How long a connection may go on after it was asked to end: its calls take less.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// Ends when a connection that begins now has reached its age, which is within a tenth of `age`. Without the
/// difference all connections of a deployment would end at once.
pub(crate) async fn reached(age: Option<Duration>) {
    match age {
        Some(age) => time::sleep(jittered(age, RandomState::new().hash_one(()))).await,
        None => pending().await,
    }
}

/// From nine to eleven tenths of `age`.
fn jittered(age: Duration, random: u64) -> Duration {
    let part = (random & 0xffff) as f64 / 65_535.0;
    age.mul_f64(0.9 + part / 5.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_differs_by_a_tenth_at_most() {
        let age = Duration::from_secs(100);
        for (random, expected) in [(0, 90.0), (0x7fff, 100.0), (0xffff, 110.0), (u64::MAX, 110.0)] {
            let secs = jittered(age, random).as_secs_f64();
            assert!((secs - expected).abs() < 0.01, "{secs} for {random:x}");
        }
    }

    #[test]
    fn two_connections_differ() {
        let random = || RandomState::new().hash_one(());
        assert_ne!(random(), random());
    }
}
