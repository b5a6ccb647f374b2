//! Rules: what the operator wrote, checked.

use std::fmt;

use crate::engine::time::Window;

/// The unit of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    /// Every unit, by ascending length.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The length in seconds; a month has 30 days and a year 365.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }

    /// The name in rule files, such as `minute`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

/// So many requests in each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The most hits that one window admits; 0 admits none.
    pub requests_per_unit: u32,
    /// The unit of the window.
    pub unit: Unit,
    /// How many units make a window, at least 1.
    pub unit_multiplier: u32,
    /// The window that the two make.
    pub window: Window,
}

impl Limit {
    /// A limit on windows of `unit_multiplier` units; `None` if there is no such [`Window`].
    pub fn new(requests_per_unit: u32, unit: Unit, unit_multiplier: u32) -> Option<Self> {
        let window = Window::new(unit, unit_multiplier)?;
        Some(Self { requests_per_unit, unit, unit_multiplier, window })
    }
}

/// As a person says it: `10 per minute`, `100 per 5 minutes`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, unit) = (self.requests_per_unit, self.unit.name());
        match self.unit_multiplier {
            1 => write!(f, "{requests} per {unit}"),
            several => write!(f, "{requests} per {several} {unit}s"),
        }
    }
}

/// What a denied call costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenDenied {
    /// Nothing.
    #[default]
    Free,
    /// Its hits, all the same: they count work that is already done.
    Counted,
}

/// A rule of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// The path that leads to it, such as `path=/login|user`. It labels metrics, so it holds
    /// configured names and values only.
    pub path: String,
    /// Where it is written: `file:line`.
    pub place: String,
    /// What it says.
    pub policy: Policy,
    /// What a denied call costs here.
    pub when_denied: WhenDenied,
}

/// What a rule says.
#[derive(Debug, PartialEq, Eq)]
pub enum Policy {
    /// So many and no more.
    Limited(Limit),
    /// As many as they like; nothing is counted.
    Unlimited,
}
