//! The answer to one call.

use std::{sync::Arc, time::Duration};

use crate::engine::rule::{Limit, Rule};

/// The answer to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call may pass.
    pub code: Code,
    /// One for each descriptor, in the request's order.
    pub statuses: Vec<Status>,
}

/// Pass, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// It may pass.
    Ok,
    /// It may not.
    OverLimit,
}

/// What came of one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What it met.
    pub met: Met,
    /// How it was judged.
    pub outcome: Outcome,
}

/// What a descriptor met: the labels of its decision, all from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Met {
    /// A rule of this domain.
    Rule(Arc<str>, Arc<Rule>),
    /// The request's own limit, in this domain.
    Override(Arc<str>),
    /// A place in this domain that sets no limit.
    NoLimit(Arc<str>),
    /// No rule of this domain.
    NoRule(Arc<str>),
    /// A domain that nobody configured.
    NoDomain,
}

/// How one descriptor was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing limits it.
    NoLimit,
    /// Its rule says so in words.
    Unlimited,
    /// Within the limit.
    Within {
        /// The limit that it met; of several, the one with the least left.
        limit: Arc<Limit>,
        /// How many more would pass.
        remaining: u32,
        /// See [`Tally::reset`](crate::engine::ledger::Tally::reset).
        reset: Duration,
    },
    /// Over a limit that is only a shadow: it passes.
    Shadowed {
        /// The limit that it met.
        limit: Arc<Limit>,
        /// See [`Tally::reset`](crate::engine::ledger::Tally::reset).
        reset: Duration,
    },
    /// Over the limit.
    Over {
        /// The limit that it met; of several, the one that takes longest.
        limit: Arc<Limit>,
        /// See [`Tally::reset`](crate::engine::ledger::Tally::reset).
        reset: Duration,
    },
}

impl Outcome {
    /// Pass, or not.
    pub fn code(&self) -> Code {
        match self {
            Self::Over { .. } => Code::OverLimit,
            Self::NoLimit | Self::Unlimited | Self::Within { .. } | Self::Shadowed { .. } => {
                Code::Ok
            }
        }
    }
}
