//! Rules: what the operator wrote, checked.

mod notice;
mod priority;
mod tier;

use std::{fmt, sync::Arc, time::Duration};

pub use self::{
    priority::{Priority, Share},
    tier::{Tier, TierHeader, headers_of},
};
/// What a [`Limit`] consists of.
pub use crate::{algorithm::Algorithm, time::Unit};
use crate::{
    algorithm::account::{COUNT_MAX, Terms},
    hold::{HoldBy, HoldPolicy},
    text::named::named,
    time::Timestamp,
    window::Window,
};

/// Most hits of a limit that stores each hit.
pub const STORED_HITS_MAX: u64 = 10_000;

/// A number of requests per window, and how they are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The most hits that one window admits, or a bucket's rate, up to 2^53 - 1; 0 admits none.
    pub requests_per_unit: u64,
    /// The unit of the window.
    pub unit: Unit,
    /// Units per window, at least 1.
    pub unit_multiplier: u32,
    /// The window of `unit_multiplier` units, or a calendar's.
    pub window: Window,
    /// How hits are counted.
    pub algorithm: Algorithm,
    /// What is charged here for a denied call.
    pub when_denied: WhenDenied,
    /// What happens to a check when the limit is exactly used up.
    pub exhausted_checks: ExhaustedChecks,
    /// The answer if the store gives none.
    pub on_store_failure: FailureMode,
    /// Its effect on the decision.
    pub mode: Mode,
    /// The mode in the rule, before `--shadow-mode` or `--quota-mode` changes it.
    pub mode_written: Mode,
    /// The name by which other rules replace it; also in answers.
    pub name: Option<Arc<str>>,
    /// The most hits that a limit in a request may admit in a window of this one.
    pub override_max: Option<u64>,
    /// How it holds hits, if it does; always for `in_flight`.
    pub hold: Option<Arc<HoldPolicy>>,
    /// The body of a denial by this limit; `None` for the body that the settings choose.
    pub denied_body: Option<DeniedBody>,
    /// The classes of calls that share it.
    pub priority: Option<Arc<Priority>>,
    /// The class that it applies to, with its share, if it is the limit of one.
    pub class: Option<(Arc<str>, Share)>,
    /// The most hits at the start of a window, from where it grows evenly to `requests_per_unit` at the end.
    pub opens_from: Option<u64>,
    /// How long the counter is closed after a call did not fit, in milliseconds.
    pub ban_ms: Option<u64>,
    /// Its soft limits.
    pub tiers: Option<Arc<[Tier]>>,
    /// The percentages of it, from 1 to 100, at which operators get a notice.
    pub notify_at: Option<Arc<[u64]>>,
    /// Whether a replica may charge hits in advance while its counter is hot.
    pub lease: Lease,
    /// A lower number that is tried on its counter: calls beyond it pass, and are counted.
    pub shadow: Option<u64>,
}

impl Limit {
    /// A limit on fixed windows of `unit_multiplier` units, with the defaults of everything else;
    /// `None` if there is no such [`Window`].
    pub fn new(requests_per_unit: u64, unit: Unit, unit_multiplier: u32) -> Option<Self> {
        Some(Self {
            requests_per_unit,
            unit,
            unit_multiplier,
            window: Window::new(unit, unit_multiplier)?,
            algorithm: Algorithm::FixedWindow,
            when_denied: WhenDenied::Free,
            exhausted_checks: ExhaustedChecks::Denied,
            on_store_failure: FailureMode::Error,
            mode: Mode::Enforced,
            mode_written: Mode::Enforced,
            name: None,
            override_max: None,
            hold: None,
            denied_body: None,
            priority: None,
            class: None,
            opens_from: None,
            ban_ms: None,
            tiers: None,
            notify_at: None,
            lease: Lease::Off,
            shadow: None,
        })
    }

    /// What a limit in a request counts as where this one has an `override_max`: as it is if it admits no more in any
    /// window of this one, else as `override_max` in such a window.
    pub fn bound(&self, sent: Self) -> Self {
        let Some(requests_per_unit) = self.override_max else { return sent };
        let [own, other] = [self, &sent].map(|limit| u128::from(limit.window.seconds()));
        let most = u128::from(requests_per_unit) * other;
        if u128::from(sent.requests_per_unit) * own.max(other) <= most {
            return sent;
        }
        self.in_own_window(requests_per_unit, sent)
    }

    /// A limit in a request, with another number in the window of this limit.
    fn in_own_window(&self, requests_per_unit: u64, sent: Self) -> Self {
        let (unit, unit_multiplier, window) =
            (self.unit, self.unit_multiplier, self.window.clone());
        Self { requests_per_unit, unit, unit_multiplier, window, ..sent }
    }

    /// Whether both would count on one counter, were they limits of one rule.
    pub fn shares_counter(&self, other: &Self) -> bool {
        let names = [self, other].map(|limit| limit.algorithm.short_name());
        names[0] == names[1] && self.window == other.window
    }

    /// The most hits that an unused counter admits at once.
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket { burst } => burst,
            _ => self.requests_per_unit,
        }
    }

    /// The most hits that its counter can hold at once: scripts multiply the hits of buckets and sliding windows by
    /// milliseconds, and Lua's numbers are exact below 2^53 only; a log stores each hit.
    pub fn capacity_max(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::SlidingWindow => {
                COUNT_MAX / self.window.millis()
            }
            Algorithm::SlidingLog { .. } | Algorithm::InFlight { .. } => STORED_HITS_MAX,
            Algorithm::FixedWindow | Algorithm::FirstHitWindow { .. } => COUNT_MAX,
        }
    }

    /// The largest number for [`with_requests`](Self::with_requests).
    pub fn requests_max(&self) -> u64 {
        let max = self.capacity_max();
        scaled(max, self.requests_per_unit, self.capacity()).min(max)
    }

    /// This limit on the same counter with another number, at most [`requests_max`](Self::requests_max). The burst of a
    /// bucket changes by the same ratio.
    #[must_use]
    pub fn with_requests(&self, requests: u64) -> Self {
        let requests_per_unit = requests.min(self.requests_max());
        let algorithm = match &self.algorithm {
            Algorithm::TokenBucket { burst } => {
                let burst = scaled(requests_per_unit, *burst, self.requests_per_unit);
                Algorithm::TokenBucket { burst: burst.max(requests_per_unit.min(1)) }
            }
            other => other.clone(),
        };
        Self { requests_per_unit, algorithm, ..self.clone() }
    }

    /// Whether the store knows which of its holds are open, beside the hits that it counts.
    pub fn has_open_holds(&self) -> bool {
        let is_in_flight = matches!(self.algorithm, Algorithm::InFlight { .. });
        !is_in_flight && self.hold.as_ref().is_some_and(|policy| policy.by == HoldBy::Counter)
    }

    /// Whether hits of ordinary calls on it may be charged in advance, and spent elsewhere.
    pub fn leases(&self) -> bool {
        self.lease == Lease::Auto && self.has_free_hits()
    }

    /// Whether its hits may be assigned to proxies for seconds: its windows are so long that most of a window is assigned.
    pub fn is_assignable(&self) -> bool {
        self.algorithm == Algorithm::FixedWindow
            && self.window.seconds() >= ASSIGNED_WINDOW_SECONDS_MIN
            && self.shadow.is_none()
            && self.has_free_hits()
    }

    /// Whether only the number of hits decides a call. The counter then holds exactly the hits of the calls that it admitted.
    pub fn has_free_hits(&self) -> bool {
        self.mode == Mode::Enforced
            && self.when_denied == WhenDenied::Free
            && self.hold.is_none()
            && self.ban_ms.is_none()
            && self.priority.is_none()
            && self.class.is_none()
            && self.opens_from.is_none()
    }

    /// Whether its hits are charged for a caller that spends them itself.
    pub fn is_lent(&self) -> bool {
        self.hold.as_ref().is_some_and(|policy| policy.is_lease())
    }

    /// How long hits that were charged in advance at `made` may be spent, counted from before they were asked for. Their
    /// window ends no earlier than this after that, whatever the clocks show and however long the answer took.
    pub fn lease_life(&self, made: Timestamp) -> Duration {
        made.until(self.window.at(made).end).saturating_sub(LEASE_ERROR).min(LEASE_LIFE)
    }

    /// How long after its last charge a first-hit window ends, if before its full length, in milliseconds.
    pub fn idle_ms(&self) -> Option<u64> {
        match self.algorithm {
            Algorithm::FirstHitWindow { idle_ms } => idle_ms,
            _ => None,
        }
    }

    /// The numbers of this limit at `now`.
    pub fn terms(&self, now: Timestamp) -> Terms {
        let (window_ms, span) = (self.window_ms(), self.window.at(now));
        let requests_per_unit = self.requests_at(span, now);
        Terms {
            requests_per_unit,
            capacity: self.capacity(),
            window_ms,
            idle_ms: self.idle_ms().unwrap_or(window_ms),
            counts_ms: self.counts_ms(requests_per_unit),
            now,
            span,
        }
    }

    fn counts_ms(&self, requests_per_unit: u64) -> u64 {
        let fills_ms = self.fills_ms(requests_per_unit);
        fills_ms.map_or(self.window_ms(), |fills_ms| fills_ms.saturating_add(self.window_ms()))
    }

    /// How long an empty bucket takes until it is full.
    fn fills_ms(&self, requests_per_unit: u64) -> Option<u64> {
        let Algorithm::TokenBucket { burst } = self.algorithm else { return None };
        Some(burst.saturating_mul(self.window_ms()).div_ceil(requests_per_unit.max(1)))
    }

    /// Whether it counts calls that have begun and not ended. It has no unit then; [`unit`](Self::unit) and
    /// [`window`](Self::window) only name the counter.
    pub const fn counts_calls(&self) -> bool {
        matches!(self.algorithm, Algorithm::InFlight { .. })
    }

    /// The length of its window in milliseconds; with `in_flight`, the longest time that a call counts.
    pub fn window_ms(&self) -> u64 {
        match (&self.algorithm, &self.hold) {
            (Algorithm::InFlight { .. }, Some(policy)) => policy.lifetime_ms,
            _ => self.window.millis(),
        }
    }

    /// How long hits count that were charged at `made`, at most.
    pub fn remaining_window(&self, made: Timestamp) -> Duration {
        if self.algorithm.is_aligned() {
            return made.until(self.window.at(made).end);
        }
        let fills_ms = self.fills_ms(self.requests_per_unit).unwrap_or(0);
        Duration::from_millis(fills_ms.max(self.window_ms()))
    }

    /// The answer for this limit if its counter gives none. A shadow lets the call pass, and a quota
    /// counts as enforced.
    pub fn failure_mode(&self) -> FailureMode {
        match self.mode {
            Mode::Shadow => FailureMode::Allow,
            Mode::Enforced | Mode::Quota => self.on_store_failure,
        }
    }
}

/// `number` times a ratio; `number` itself if the ratio is of 0.
fn scaled(number: u64, times: u64, by: u64) -> u64 {
    let product = u128::from(number) * u128::from(times);
    let scaled = product.checked_div(u128::from(by));
    scaled.map_or(number, |scaled| u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// As people write it: `10 per minute`, `100 per 5 minutes`, `20 at once`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, unit) = (self.requests_per_unit, self.unit.name());
        match self.unit_multiplier {
            _ if self.counts_calls() => write!(f, "{requests} at once"),
            1 => write!(f, "{requests} per {unit}"),
            several => write!(f, "{requests} per {several} {unit}s"),
        }
    }
}

/// What is charged for a denied call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenDenied {
    /// Nothing.
    #[default]
    Free,
    /// All of its hits, since they count work that is already done.
    Counted,
}

/// The longest life of hits that are charged in advance: what a reset, an override, or the loss of the store's data makes of
/// them is over then.
pub const LEASE_LIFE: Duration = Duration::from_millis(200);

/// The shortest window whose hits are assigned to proxies, in seconds.
const ASSIGNED_WINDOW_SECONDS_MIN: u64 = 10;

/// How long before their window they end: the store's time is cut to milliseconds, and clocks drift.
const LEASE_ERROR: Duration = Duration::from_millis(2);

named! {
    /// Whether a replica charges hits in advance, as credit that it spends without a round trip.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum Lease {
        /// Never.
        #[default]
        Off = "off",
        /// While it decides many calls on the counter.
        Auto = "auto",
    }
}

/// What happens to a check when its limit is exactly used up, so that a hit would not fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExhaustedChecks {
    /// It is denied, as a hit would be.
    #[default]
    Denied,
    /// It passes: only a limit that is exceeded denies it.
    Allowed,
}

impl ExhaustedChecks {
    /// The hits that must fit for a check to fit.
    pub const fn asked(self) -> u64 {
        match self {
            Self::Denied => 1,
            Self::Allowed => 0,
        }
    }
}

/// What happens to a call that does not fit a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// The call is denied.
    #[default]
    Enforced,
    /// The call passes; only the status and the metrics show it.
    Shadow,
    /// The call is denied if no other quota fits. Its hits are charged even if they do not fit, since they
    /// count work that is already done.
    Quota,
}

named! {
    /// The answer for a limit if the store gives none, or if the counter is corrupt.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum FailureMode {
        /// An error, UNAVAILABLE: the caller decides.
        #[default]
        Error = "error",
        /// The call is over its limit.
        Deny = "deny",
        /// This limit lets the call pass.
        Allow = "allow",
        /// This replica counts in memory, against its share of the limit.
        Local = "local",
    }
}

named! {
    /// The body of a denial, for the client of the proxy that asks.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum DeniedBody {
        /// Empty: the proxy chooses.
        #[default]
        None = "none",
        /// A problem of RFC 9457, of a type that draft-ietf-httpapi-ratelimit-headers-10 registers.
        Problem = "problem",
        /// An error as OpenAI's API has it, which its clients read.
        OpenAi = "openai",
    }
}

/// Defaults of limits that do not set these themselves, including those in requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Defaults {
    /// What is charged for a denied call.
    pub when_denied: WhenDenied,
    /// What happens to a check when a limit is exactly used up.
    pub exhausted_checks: ExhaustedChecks,
    /// The answer if the store gives none.
    pub on_store_failure: FailureMode,
    /// The mode of all limits, whatever their rules set.
    pub mode_override: ModeOverride,
}

impl Defaults {
    /// `limit`, which sets none of these itself, with these defaults.
    pub fn complete(self, limit: Limit) -> Limit {
        let Self { when_denied, exhausted_checks, on_store_failure, mode_override } = self;
        Limit {
            when_denied,
            exhausted_checks,
            on_store_failure,
            mode: mode_override.mode(limit.mode_written),
            ..limit
        }
    }
}

/// How the settings change the modes of all limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModeOverride {
    /// Each limit has the mode of its rule.
    #[default]
    AsWritten,
    /// All are shadows; statuses still show what is over, and the call passes.
    Shadow,
    /// All but shadows are quotas; a descriptor without a limit counts as a quota that fits.
    Quota,
}

impl ModeOverride {
    /// The mode of a limit whose rule sets `written`. A shadow remains a shadow: it never denies.
    pub fn mode(self, written: Mode) -> Mode {
        match (self, written) {
            (Self::AsWritten, _) => written,
            (Self::Shadow, _) | (Self::Quota, Mode::Shadow) => Mode::Shadow,
            (Self::Quota, Mode::Enforced | Mode::Quota) => Mode::Quota,
        }
    }
}

/// What stands for the value of an entry in keys, and so in lists and logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CountedBy {
    /// The value itself.
    #[default]
    Value,
    /// A pattern: all values that match it share the counter.
    Pattern(Arc<str>),
    /// A digest, since the value is a secret.
    Digest,
}

/// A rule of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its path through the configuration, such as `path=/login|user`. It labels metrics, so it holds
    /// configured names and values only.
    pub path: Arc<str>,
    /// Its location in the rule files: `file:line`.
    pub location: String,
    /// Its limits.
    pub policy: Policy,
    /// The names of limits that do not apply in a call that matches this rule.
    pub replaces: Vec<Arc<str>>,
    /// By what each entry of the path is counted; by the values if it is empty.
    pub counted_by: Vec<CountedBy>,
    /// What its metrics show of each entry; `None` for its path, as written.
    pub shown: Option<Vec<Shown>>,
    /// What the answer carries if this rule lets the call pass.
    pub metadata: Option<Arc<Metadata>>,
}

impl Rule {
    /// A rule with this policy and nothing else.
    pub fn new(path: impl Into<Arc<str>>, location: String, policy: Policy) -> Self {
        let path = path.into();
        let (replaces, counted_by, shown, metadata) = (Vec::new(), Vec::new(), None, None);
        Self { path, location, policy, replaces, counted_by, shown, metadata }
    }

    /// Whether its path may have values or patterns, beside keys.
    pub fn names_values(&self) -> bool {
        self.path.contains('=')
    }

    /// The limits that a limit in a request counts as that replaces the limits of this rule: bound by each [`Limit::bound`], and
    /// beside it the bounds in other windows, since each window has a counter of its own.
    pub fn bound(&self, sent: Limit) -> Vec<Limit> {
        let sent = self.limits().iter().fold(sent, |sent, limit| limit.bound(sent));
        let mut bounded = vec![sent.clone()];
        for limit in self.limits().iter().filter(|limit| !limit.counts_calls()) {
            let Some(requests_per_unit) = limit.override_max else { continue };
            match bounded.iter_mut().find(|other| other.window == limit.window) {
                Some(same) => {
                    same.requests_per_unit = same.requests_per_unit.min(requests_per_unit)
                }
                None => bounded.push(limit.in_own_window(requests_per_unit, sent.clone())),
            }
        }
        bounded
    }

    /// By what each entry is counted under a limit in a request: only secrets not by their values.
    pub fn secrets(&self) -> Vec<CountedBy> {
        let is_secret = |by: &CountedBy| *by == CountedBy::Digest;
        let of_each = self.counted_by.iter();
        of_each.map(|by| if is_secret(by) { by.clone() } else { CountedBy::Value }).collect()
    }

    /// Its limits; empty if it is unlimited.
    pub fn limits(&self) -> &[Arc<Limit>] {
        match &self.policy {
            Policy::Limited(limits) => limits,
            Policy::Unlimited => &[],
        }
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

/// A tree of values for the answer, of the types that JSON has.
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

/// YAML has NaN, which is not equal to itself; nothing here depends on that.
impl Eq for Metadata {}

/// The limits of a rule.
#[derive(Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each of these applies; at least one.
    Limited(Vec<Arc<Limit>>),
    /// Everything passes, and nothing is counted.
    Unlimited,
}

#[cfg(test)]
mod tests;
