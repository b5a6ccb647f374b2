//! The verdict on one call: all of its charges, or none of them.
//!
//! This is promise and model at once: the memory store runs it, and the Lua script is its
//! translation, compared with it step by step.

use std::time::Duration;

use crate::engine::{algorithm::fixed_window::Account, key::Counter, request::Hits};

/// What one descriptor asks of one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Where to count.
    pub counter: Counter,
    /// What to do there.
    pub hits: Hits,
    /// The most that the counter's window admits.
    pub limit: u32,
}

/// What came of one charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Whether the charge fits, and how much more would.
    pub verdict: Verdict,
    /// The time until the counter's window ends.
    pub reset: Duration,
}

/// Whether a charge fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does; so many hits would still pass after this call.
    Fits {
        /// Hits that would still pass.
        remaining: u32,
    },
    /// It does not, and the call is denied.
    Over,
}

/// One charge's view of the books: an account number, what to do, and the limit.
#[derive(Debug, Clone, Copy)]
pub struct Posting {
    /// Which of the accounts it meets.
    pub account: usize,
    /// What to do there.
    pub hits: Hits,
    /// The most that the account admits.
    pub limit: u32,
}

/// Judges one call, and changes `accounts` accordingly.
///
/// 1. Refunds apply first and always.
/// 2. Hits on one account are summed; each charge is judged by the sum against its own limit. A look
///    fits if one hit would, and is no part of the sum.
/// 3. If all fit, the sums are charged; else nothing is.
///
/// Every `posting.account` must be an index into `accounts`; others are judged as over.
pub fn judge(postings: &[Posting], accounts: &mut [Account]) -> Vec<Verdict> {
    let mut sums = vec![0_u64; accounts.len()];
    for posting in postings {
        match (posting.hits, accounts.get_mut(posting.account), sums.get_mut(posting.account)) {
            (Hits::GiveBack(hits), Some(account), _) => account.give_back(hits),
            (Hits::Take(hits), _, Some(sum)) => *sum = sum.saturating_add(hits),
            _ => {}
        }
    }

    let before = accounts.to_vec();
    let fits = |posting: &Posting| {
        let (Some(account), Some(&sum)) = (before.get(posting.account), sums.get(posting.account))
        else {
            return false;
        };
        match posting.hits {
            Hits::Take(_) => account.fits(sum, posting.limit),
            Hits::Look => account.fits(1, posting.limit),
            Hits::GiveBack(_) => true,
        }
    };
    if postings.iter().all(fits) {
        for (account, sum) in accounts.iter_mut().zip(&sums) {
            account.charge(*sum);
        }
    }

    let remaining = |posting: &Posting| {
        // A look sees what was there before the call's own charges.
        let books = if posting.hits == Hits::Look { before.as_slice() } else { &*accounts };
        books.get(posting.account).map_or(0, |account| account.remaining(posting.limit))
    };
    let verdict = |posting: &Posting| match fits(posting) {
        true => Verdict::Fits { remaining: remaining(posting) },
        false => Verdict::Over,
    };
    postings.iter().map(verdict).collect()
}
