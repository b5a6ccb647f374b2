//! Pauses between attempts.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// This time, or up to an eighth longer, so that replicas do not all ask at once.
pub(crate) fn jittered(time: Duration) -> Duration {
    time + time * u32::from(random_byte()) / 2048
}

/// A random number. Nothing depends on how random it is.
pub(crate) fn random_byte() -> u8 {
    let [byte, ..] = RandomState::new().hash_one(0).to_be_bytes();
    byte
}

/// A pause that doubles with each failure.
#[derive(Debug)]
pub(crate) struct Pause {
    present: Duration,
    range: (Duration, Duration),
}

impl Pause {
    pub(crate) const fn new(min: Duration, max: Duration) -> Self {
        Self { present: min, range: (min, max) }
    }

    /// How long to wait now.
    pub(crate) fn time(&self) -> Duration {
        jittered(self.present)
    }

    pub(crate) fn longer(&mut self) {
        self.present = (2 * self.present).min(self.range.1);
    }

    pub(crate) const fn shortest(&mut self) {
        self.present = self.range.0;
    }
}
