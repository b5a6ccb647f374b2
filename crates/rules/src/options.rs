//! How rules are loaded, by the settings.

use tollkeeper_engine::rule::Defaults;

#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Values for limits that do not set them.
    pub defaults: Defaults,
    pub algorithms: Algorithms,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithms {
    #[default]
    All,
    /// `fixed_window` alone: the store runs no scripts.
    FixedWindow,
}
