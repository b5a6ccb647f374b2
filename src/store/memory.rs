//! Counters in this process: no network, no sharing, gone with the process.

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, PoisonError},
};

use super::{Clear, Clock};
use crate::engine::{
    algorithm::{AnyAccount, Terms},
    key::Counter,
    ledger::{self, Charge, Posting, Standing, Tally},
    time::Timestamp,
};

/// The first sweep waits for this many counters.
const SWEEP_FROM: usize = 1024;

/// Counters in a map.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    accounts: HashMap<String, Kept>,
    /// How many accounts it takes for the next sweep: twice what the last one left, so that a
    /// sweep costs a constant time for each new counter.
    sweep_at: usize,
}

#[derive(Debug)]
struct Kept {
    account: AnyAccount,
    /// When it counts no more.
    end: Timestamp,
}

impl MemoryStore {
    /// An empty store that tells the time by `clock`.
    pub fn new(clock: Clock) -> Self {
        let books = Books { accounts: HashMap::new(), sweep_at: SWEEP_FROM };
        Self { clock, books: Mutex::new(books) }
    }

    /// Makes all charges of one call, or none.
    pub fn charge(&self, charges: &[Charge]) -> Vec<Tally> {
        self.charge_at(charges, (self.clock)())
    }

    /// The same at a given time.
    pub fn charge_at(&self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        // Nothing panics while the lock is held, and if it did, the books would still be whole.
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.charge(charges, now)
    }

    /// How a counter stands; `clear` resets it, with no hit in between.
    pub fn look(&self, counter: &Counter, clear: Clear) -> Standing {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.look(counter, clear, (self.clock)())
    }

    /// How many counters are kept, live or not yet swept.
    pub fn counters(&self) -> usize {
        self.books.lock().unwrap_or_else(PoisonError::into_inner).accounts.len()
    }
}

impl Books {
    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        let mut keys: Vec<(String, Terms<'_>)> = Vec::with_capacity(charges.len());
        let mut accounts: Vec<AnyAccount> = Vec::with_capacity(charges.len());
        let mut postings = Vec::with_capacity(charges.len());
        for Charge { counter, hits, caller } in charges {
            let terms = Terms::new(&counter.limit, now);
            let key = counter.key(terms.span.start);
            let account = keys.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                accounts.push(self.take(counter, &key, &terms));
                keys.push((key, terms));
                keys.len() - 1
            });
            postings.push(Posting { account, hits: *hits, caller: caller.as_deref(), terms });
        }

        let tallies = ledger::judge(&postings, &mut accounts);
        for ((key, terms), account) in keys.into_iter().zip(accounts) {
            let end = account.read().keep_until(&terms);
            self.keep(key, Kept { account, end }, now);
        }
        tallies
    }

    fn look(&mut self, counter: &Counter, clear: Clear, now: Timestamp) -> Standing {
        let terms = Terms::new(&counter.limit, now);
        let key = counter.key(terms.span.start);
        let account = self.take(counter, &key, &terms);
        let standing = Standing::of(&account, &terms);
        match clear {
            Clear::No => {
                let end = account.read().keep_until(&terms);
                self.keep(key, Kept { account, end }, now);
            }
            Clear::Yes => {
                self.accounts.remove(&key);
                self.accounts.remove(&counter.key(terms.span.before().start));
            }
        }
        standing
    }

    /// The account at a key, which stays empty until it is kept again.
    fn take(&mut self, counter: &Counter, key: &str, terms: &Terms<'_>) -> AnyAccount {
        let unused = AnyAccount::new(&counter.limit.algorithm);
        let mut account = match self.accounts.get_mut(key) {
            Some(kept) => mem::replace(&mut kept.account, unused),
            None => unused,
        };
        if let AnyAccount::SlidingWindow(account) = &mut account {
            account.previous = self.current(&counter.key(terms.span.before().start));
        }
        account
    }

    /// What a sliding window has counted in one window of the clock.
    fn current(&self, key: &str) -> u64 {
        match self.accounts.get(key) {
            Some(Kept { account: AnyAccount::SlidingWindow(account), .. }) => account.current,
            _ => 0,
        }
    }

    fn keep(&mut self, key: String, kept: Kept, now: Timestamp) {
        match self.accounts.get_mut(&key) {
            Some(known) => *known = kept,
            // A look, a refund or a denied call makes no counter.
            None if kept.account.read().is_unused() => {}
            None => {
                self.sweep(now);
                self.accounts.insert(key, kept);
            }
        }
    }

    fn sweep(&mut self, now: Timestamp) {
        if self.accounts.len() >= self.sweep_at {
            self.accounts.retain(|_, kept| kept.end > now);
            self.sweep_at = SWEEP_FROM.max(2 * self.accounts.len());
        }
    }
}
