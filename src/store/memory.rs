//! Counters in this process: no network, no sharing, gone with the process.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::Clock;
use crate::engine::{
    algorithm::fixed_window::Account,
    ledger::{self, Charge, Posting, Tally},
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

#[derive(Debug, Clone, Copy)]
struct Kept {
    account: Account,
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

    /// How many counters are kept, live or not yet swept.
    pub fn counters(&self) -> usize {
        self.books.lock().unwrap_or_else(PoisonError::into_inner).accounts.len()
    }
}

impl Books {
    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        let mut keys: Vec<(String, Timestamp)> = Vec::with_capacity(charges.len());
        let mut accounts: Vec<Account> = Vec::with_capacity(charges.len());
        let mut postings = Vec::with_capacity(charges.len());
        for charge in charges {
            let span = charge.counter.window.at(now);
            let key = charge.counter.key(span.start);
            let account = keys.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                accounts.push(self.accounts.get(&key).map_or_else(Account::default, |k| k.account));
                keys.push((key, span.end));
                keys.len() - 1
            });
            let Charge { hits, limit, when_denied, .. } = *charge;
            postings.push(Posting { account, hits, limit, when_denied });
        }

        let verdicts = ledger::judge(&postings, &mut accounts);
        for ((key, end), account) in keys.into_iter().zip(accounts) {
            self.keep(key, Kept { account, end }, now);
        }
        let tally = |(verdict, charge): (_, &Charge)| Tally {
            verdict,
            reset: now.until(charge.counter.window.at(now).end),
        };
        verdicts.into_iter().zip(charges).map(tally).collect()
    }

    fn keep(&mut self, key: String, kept: Kept, now: Timestamp) {
        match self.accounts.get_mut(&key) {
            Some(known) => *known = kept,
            // A look, a refund or a denied call makes no counter.
            None if kept.account == Account::default() => {}
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
