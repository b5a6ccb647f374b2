//! The algorithms, in one table. Each has a file here (how its account is read, charged and refunded), and
//! a script of the same name and shape in `store/redis/lua/`.

pub mod account;
pub mod first_hit_window;
pub mod fixed_window;
pub mod hold_record;
pub mod in_flight;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

use std::sync::Arc;

use self::{
    account::Account, first_hit_window::FirstHitWindow, fixed_window::FixedWindow,
    hold_record::HoldRecord, in_flight::InFlight, sliding_log::SlidingLog,
    sliding_window::SlidingWindow, token_bucket::TokenBucket,
};

/// How hits are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Algorithm {
    /// A counter for each clock-aligned window.
    FixedWindow,
    /// A window that opens at the first hit.
    FirstHitWindow {
        /// It ends when nothing was charged for this long, shorter than the window; in milliseconds.
        idle_ms: Option<u64>,
    },
    /// The time of each hit.
    SlidingLog {
        /// The key of the entry whose value is stored with each hit.
        remember: Option<Arc<str>>,
    },
    /// The counters of two windows, weighted.
    SlidingWindow,
    /// A bucket that refills at an even rate.
    TokenBucket {
        /// The most hits that an unused counter admits at once, at least 1 unless the limit admits none.
        burst: u64,
    },
    /// Calls that have begun and not ended.
    InFlight {
        /// The key of the entry whose value is stored with each call.
        remember: Option<Arc<str>>,
    },
}

/// What distinguishes an algorithm outside of its own file.
struct AlgorithmRow {
    /// In rule files; also the stem of its files.
    name: &'static str,
    /// In keys and in the scripts' arguments.
    short_name: &'static str,
    /// Whether each clock-aligned window has a counter, and a key, of its own.
    is_aligned: bool,
    new_account: fn() -> AnyAccount,
}

impl Algorithm {
    /// Every algorithm, with these parameters where it takes them, and no optional ones.
    pub fn all(burst: u64, remember: Option<Arc<str>>) -> [Self; 6] {
        let in_flight = Self::InFlight { remember: remember.clone() };
        let [one, two, three, four, five] = Self::of_time(burst, remember);
        [one, two, three, four, five, in_flight]
    }

    /// The algorithms whose hits cease to count with time alone.
    pub fn of_time(burst: u64, remember: Option<Arc<str>>) -> [Self; 5] {
        [
            Self::FixedWindow,
            Self::FirstHitWindow { idle_ms: None },
            Self::SlidingLog { remember },
            Self::SlidingWindow,
            Self::TokenBucket { burst },
        ]
    }

    const fn row(&self) -> AlgorithmRow {
        match self {
            Self::FixedWindow => AlgorithmRow {
                name: "fixed_window",
                short_name: "fw",
                is_aligned: true,
                new_account: || AnyAccount::FixedWindow(FixedWindow::default()),
            },
            Self::FirstHitWindow { .. } => AlgorithmRow {
                name: "first_hit_window",
                short_name: "fh",
                is_aligned: false,
                new_account: || AnyAccount::FirstHitWindow(Box::default()),
            },
            Self::SlidingLog { .. } => AlgorithmRow {
                name: "sliding_log",
                short_name: "sl",
                is_aligned: false,
                new_account: || AnyAccount::SlidingLog(Box::default()),
            },
            Self::SlidingWindow => AlgorithmRow {
                name: "sliding_window",
                short_name: "sw",
                is_aligned: true,
                new_account: || AnyAccount::SlidingWindow(SlidingWindow::default()),
            },
            Self::TokenBucket { .. } => AlgorithmRow {
                name: "token_bucket",
                short_name: "tb",
                is_aligned: false,
                new_account: || AnyAccount::TokenBucket(TokenBucket::default()),
            },
            Self::InFlight { .. } => AlgorithmRow {
                name: "in_flight",
                short_name: "fl2",
                is_aligned: false,
                new_account: || AnyAccount::InFlight(Box::default()),
            },
        }
    }

    /// The names of all algorithms in rule files.
    pub fn names() -> Vec<&'static str> {
        Self::all(0, None).iter().map(Self::name).collect()
    }

    /// The name in rule files.
    pub const fn name(&self) -> &'static str {
        self.row().name
    }

    /// The name in keys and in the scripts' arguments.
    pub const fn short_name(&self) -> &'static str {
        self.row().short_name
    }

    /// Whether each clock-aligned window has a counter, and a key, of its own.
    pub const fn is_aligned(&self) -> bool {
        self.row().is_aligned
    }

    /// Whether hits beyond the limit deny calls longer than a window, so that a steady client whose denied calls are charged
    /// is never admitted again.
    pub const fn carries_over(&self) -> bool {
        matches!(self, Self::SlidingWindow | Self::TokenBucket { .. })
    }

    /// An account without hits.
    pub fn new_account(&self) -> AnyAccount {
        self.new_account_of()()
    }

    /// What makes an account without hits.
    pub const fn new_account_of(&self) -> fn() -> AnyAccount {
        self.row().new_account
    }
}

/// An account of any algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum AnyAccount {
    FixedWindow(FixedWindow),
    /// In a box, as the log: the others are smaller, and more common.
    FirstHitWindow(Box<FirstHitWindow>),
    SlidingLog(Box<SlidingLog>),
    SlidingWindow(SlidingWindow),
    TokenBucket(TokenBucket),
    InFlight(Box<InFlight>),
    /// In a box: it is larger than the others.
    HoldRecord(Box<HoldRecord>),
}

impl AnyAccount {
    /// The account, to read it.
    pub fn read(&self) -> &dyn Account {
        match self {
            Self::FixedWindow(account) => account,
            Self::FirstHitWindow(account) => account.as_ref(),
            Self::SlidingLog(account) => account.as_ref(),
            Self::SlidingWindow(account) => account,
            Self::TokenBucket(account) => account,
            Self::InFlight(account) => account.as_ref(),
            Self::HoldRecord(account) => account.as_ref(),
        }
    }

    /// About the bytes that it takes beside its own size.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::TokenBucket(_) => 0,
            Self::FirstHitWindow(account) => size_of_val(&**account),
            Self::SlidingLog(account) => size_of_val(&**account) + account.heap_bytes(),
            Self::InFlight(account) => size_of_val(&**account) + account.heap_bytes(),
            Self::HoldRecord(account) => size_of_val(&**account),
        }
    }

    /// The account, to change it.
    pub fn write(&mut self) -> &mut dyn Account {
        match self {
            Self::FixedWindow(account) => account,
            Self::FirstHitWindow(account) => account.as_mut(),
            Self::SlidingLog(account) => account.as_mut(),
            Self::SlidingWindow(account) => account,
            Self::TokenBucket(account) => account,
            Self::InFlight(account) => account.as_mut(),
            Self::HoldRecord(account) => account.as_mut(),
        }
    }
}

#[cfg(test)]
mod tests;
