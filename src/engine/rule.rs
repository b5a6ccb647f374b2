//! Rules: what the operator wrote, checked.

use std::{fmt, sync::Arc};

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

/// So many requests in each window, and how they are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The most hits that one window admits, or a bucket's rate; 0 admits none.
    pub requests_per_unit: u32,
    /// The unit of the window.
    pub unit: Unit,
    /// How many units make a window, at least 1.
    pub unit_multiplier: u32,
    /// The window that the two make, or a calendar's.
    pub window: Window,
    /// How hits are counted.
    pub algorithm: Algorithm,
    /// What a denied call costs here.
    pub when_denied: WhenDenied,
    /// What is answered where the store gives no answer.
    pub on_store_failure: OnStoreFailure,
    /// What it has to say about the call.
    pub mode: Mode,
    /// The mode that its rule has, before `--shadow-mode` or `--quota-mode` change it.
    pub mode_written: Mode,
    /// What other limits replace it by, and what the answer calls it.
    pub name: Option<Arc<str>>,
}

impl Limit {
    /// A limit on fixed windows of `unit_multiplier` units, with the defaults of everything else;
    /// `None` if there is no such [`Window`].
    pub fn new(requests_per_unit: u32, unit: Unit, unit_multiplier: u32) -> Option<Self> {
        Some(Self {
            requests_per_unit,
            unit,
            unit_multiplier,
            window: Window::new(unit, unit_multiplier)?,
            algorithm: Algorithm::FixedWindow,
            when_denied: WhenDenied::Free,
            on_store_failure: OnStoreFailure::Error,
            mode: Mode::Enforced,
            mode_written: Mode::Enforced,
            name: None,
        })
    }

    /// The most hits that pass at once, from rest.
    pub fn capacity(&self) -> u32 {
        match self.algorithm {
            Algorithm::TokenBucket { burst } => burst,
            _ => self.requests_per_unit,
        }
    }

    /// What answers for this limit where its counter gives no answer. A shadow lets the call pass, and a
    /// quota counts as enforced.
    pub fn failure_mode(&self) -> OnStoreFailure {
        match self.mode {
            Mode::Shadow => OnStoreFailure::Allow,
            Mode::Enforced | Mode::Quota => self.on_store_failure,
        }
    }
}

/// How hits are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Algorithm {
    /// A counter for each clock-aligned window.
    FixedWindow,
    /// A window that opens at the first hit.
    FirstHitWindow,
    /// The time of each hit.
    SlidingLog {
        /// The key of the entry whose value is kept with each hit.
        remember: Option<Arc<str>>,
    },
    /// Two counters, weighed.
    SlidingWindow,
    /// A bucket that refills at an even rate.
    TokenBucket {
        /// The most hits from rest, at least 1 where any pass.
        burst: u32,
    },
}

impl Algorithm {
    /// Every name in rule files.
    pub const NAMES: [&str; 5] =
        ["fixed_window", "first_hit_window", "sliding_log", "sliding_window", "token_bucket"];

    /// The name in rule files.
    pub const fn name(&self) -> &'static str {
        let [fixed_window, first_hit_window, sliding_log, sliding_window, token_bucket] =
            Self::NAMES;
        match self {
            Self::FixedWindow => fixed_window,
            Self::FirstHitWindow => first_hit_window,
            Self::SlidingLog { .. } => sliding_log,
            Self::SlidingWindow => sliding_window,
            Self::TokenBucket { .. } => token_bucket,
        }
    }

    /// Whether its counters begin and end with a span of the clock.
    pub const fn is_aligned(&self) -> bool {
        matches!(self, Self::FixedWindow | Self::SlidingWindow)
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

/// What a limit has to say about a call that does not fit it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// The call is denied.
    #[default]
    Enforced,
    /// Nothing; it is only told.
    Shadow,
    /// The call is denied if no other quota fits. Its hits tell of work that is done, so they count
    /// also where they do not fit.
    Quota,
}

/// What is answered where the store gives no answer, or a counter is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// An error, UNAVAILABLE: the caller decides.
    #[default]
    Error,
    /// The call is over its limit.
    Deny,
    /// The call passes, as far as this rule goes.
    Allow,
    /// Memory counts for this replica alone, on its share of the limit.
    Local,
}

impl OnStoreFailure {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Error, Self::Deny, Self::Allow, Self::Local];

    /// The name in rule files and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Local => "local",
        }
    }
}

/// What limits do that do not say it themselves, those that requests bring included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Defaults {
    /// What a denied call costs.
    pub when_denied: WhenDenied,
    /// What is answered where the store gives no answer.
    pub on_store_failure: OnStoreFailure,
    /// What all limits are, whatever they say.
    pub mode_override: ModeOverride,
}

impl Defaults {
    /// A limit that says nothing of itself, with these defaults.
    pub fn complete(self, limit: Limit) -> Limit {
        let Self { when_denied, on_store_failure, mode_override } = self;
        Limit {
            when_denied,
            on_store_failure,
            mode: mode_override.mode(limit.mode_written),
            ..limit
        }
    }
}

impl ModeOverride {
    /// The mode of a limit whose rule says this. A shadow stays one: it denies nobody.
    pub fn mode(self, written: Mode) -> Mode {
        match (self, written) {
            (Self::AsWritten, _) => written,
            (Self::Shadow, _) | (Self::Quota, Mode::Shadow) => Mode::Shadow,
            (Self::Quota, Mode::Enforced | Mode::Quota) => Mode::Quota,
        }
    }
}

/// What the settings make of all limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModeOverride {
    /// What each says itself.
    #[default]
    AsWritten,
    /// Shadows; statuses still say what is over, and the call passes.
    Shadow,
    /// Quotas, but for shadows; a descriptor without a limit counts as a quota that fits.
    Quota,
}

/// A rule of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// The path that leads to it, such as `path=/login|user`. It labels metrics, so it holds
    /// configured names and values only.
    pub path: Arc<str>,
    /// Where it is written: `file:line`.
    pub location: String,
    /// What it says.
    pub policy: Policy,
    /// The names of limits that do not count in a call that meets this rule.
    pub replaces: Vec<Arc<str>>,
    /// For each entry of the path, the pattern that it is counted by in place of its value.
    pub shared: Vec<Option<Arc<str>>>,
    /// What its metrics show of each entry; `None` for its path, as it is written.
    pub shown: Option<Vec<Shown>>,
    /// What the answer carries along where the call may pass, as far as this rule goes.
    pub metadata: Option<Arc<Metadata>>,
}

impl Rule {
    /// A rule that says this and nothing else.
    pub fn new(path: impl Into<Arc<str>>, location: String, policy: Policy) -> Self {
        let path = path.into();
        let (replaces, shared, shown, metadata) = (Vec::new(), Vec::new(), None, None);
        Self { path, location, policy, replaces, shared, shown, metadata }
    }
}

/// Identifies a rule across reloads: its line number changes with every edit above it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// The configured domain.
    pub domain: Arc<str>,
    /// [`Rule::path`]. Two rules whose paths are spelled alike (key `a=b`; key `a` with value `b`)
    /// share one label, and so one identity.
    pub path: Arc<str>,
}

/// What metrics show of one entry of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// What is configured: the key, and perhaps a value or a pattern.
    AsWritten(Box<str>),
    /// The key and the value of the request.
    Value,
}

/// A tree of values for the answer, as JSON knows them.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Metadata {
    Null,
    Truth(bool),
    Number(f64),
    Text(String),
    List(Vec<Metadata>),
    Map(Vec<(String, Metadata)>),
}

/// Numbers come from YAML, which knows what is no number; such a tree is still equal to itself.
impl Eq for Metadata {}

/// What a rule says.
#[derive(Debug, PartialEq, Eq)]
pub enum Policy {
    /// So many and no more, by each of these; at least one.
    Limited(Vec<Arc<Limit>>),
    /// As many as they like; nothing is counted.
    Unlimited,
}
