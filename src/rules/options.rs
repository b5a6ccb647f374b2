//! What the settings say of all rules.

use crate::engine::rule::Defaults;

/// What the settings say of all rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// What limits do that do not say it themselves.
    pub defaults: Defaults,
    /// Which algorithms the store can run.
    pub algorithms: Algorithms,
}

/// Which algorithms a store can run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithms {
    /// Every one.
    #[default]
    All,
    /// `fixed_window` alone: the store runs no scripts.
    FixedWindow,
}
