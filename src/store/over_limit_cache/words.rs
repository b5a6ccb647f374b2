//! What a store last said of some counters, as many as there is room for. To lose a word costs a
//! question, and nothing else.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::engine::{
    key::Counter,
    ledger::{Tally, Verdict},
    rule::Limit,
};

/// No word counts for longer.
pub(super) const LIFE_MAX: Duration = Duration::from_secs(1);

/// Stores tell resets from a clock that they cut to milliseconds: so much too long, at most.
const CUT: Duration = Duration::from_millis(1);

/// No counter with a longer business ID is kept, so that the number of words bounds the memory.
const ID_BYTES_MAX: usize = 1024;

/// What the store said of one counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    said: Said,
    /// From `sent` on: the store said it later, so it comes no sooner than that.
    reset: Duration,
    /// When the store was sent the question, or earlier.
    pub(super) sent: Instant,
}

#[derive(Debug, Clone, Copy)]
enum Said {
    Fits {
        remaining: u32,
    },
    /// At most so many were left. Until the reset no more are, whatever the algorithm: the reset is
    /// when what did not fit will.
    Over {
        left: u64,
    },
}

impl Word {
    /// The word on a counter that was asked for so many hits.
    pub(super) fn new(
        Tally { verdict, reset }: Tally,
        asked: impl FnOnce() -> u64,
        sent: Instant,
    ) -> Self {
        let said = match verdict {
            Verdict::Fits { remaining } => Said::Fits { remaining },
            // All that is known is that those were too many.
            Verdict::Over => Said::Over { left: asked().saturating_sub(1) },
        };
        Self { said, reset, sent }
    }

    /// What it tells of so many hits now.
    pub(super) fn tally(&self, asked: impl FnOnce() -> u64, limit: &Limit, now: Instant) -> Tally {
        let verdict = match self.said {
            Said::Fits { remaining } => Verdict::Fits { remaining },
            Said::Over { left } if asked() > left => Verdict::Over,
            Said::Over { left } => {
                let most = limit.most();
                Verdict::Fits { remaining: u32::try_from(left).map_or(most, |left| left.min(most)) }
            }
        };
        Tally { verdict, reset: self.reset.saturating_sub(self.age(now)) }
    }

    fn counts_at(&self, now: Instant) -> bool {
        self.age(now) < self.reset.saturating_sub(CUT).min(LIFE_MAX)
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.sent)
    }

    /// Whether it takes the place of `known`: the later word does, unless it tells less.
    fn replaces(&self, known: &Self) -> bool {
        match (self.said, known.said) {
            _ if self.sent < known.sent => false,
            (Said::Over { left }, Said::Over { left: known_left }) => {
                left < known_left || !known.counts_at(self.sent)
            }
            _ => true,
        }
    }
}

/// Words on some counters, each under its own limit: another may not be over.
#[derive(Debug)]
pub(super) struct Words {
    of: HashMap<Counter, Word>,
    max: usize,
}

impl Words {
    /// No more than `max` of them, and at least one.
    pub(super) fn new(max: usize) -> Self {
        Self { of: HashMap::new(), max }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// The word on this counter that counts.
    pub(super) fn find(&self, counter: &Counter, now: Instant) -> Option<Word> {
        self.of.get(counter).filter(|word| word.counts_at(now)).copied()
    }

    /// Takes a word on a counter of which something is known, and says whether it is such a one.
    pub(super) fn correct(&mut self, counter: &Counter, word: Word) -> bool {
        let known = self.of.get_mut(counter);
        let is_known = known.is_some();
        if let Some(known) = known.filter(|known| word.replaces(known)) {
            *known = word;
        }
        is_known
    }

    /// Takes a word on any counter.
    pub(super) fn keep(&mut self, counter: &Counter, word: Word) {
        if counter.id_bytes() <= ID_BYTES_MAX && !self.correct(counter, word) {
            self.make_room(word.sent);
            self.of.insert(counter.clone(), word);
        }
    }

    /// Those that count no more go first. Where many still count all go, so that a sweep is paid for
    /// by as many new words.
    fn make_room(&mut self, now: Instant) {
        if self.of.len() >= self.max {
            self.of.retain(|_, word| word.counts_at(now));
            if self.of.len() > self.max / 2 {
                self.of.clear();
            }
        }
    }
}
