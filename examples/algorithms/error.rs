//! Measures the error of the sliding window against the log, which is exact, on several kinds of traffic.

use std::{collections::VecDeque, sync::Arc};

use tollkeeper::{
    engine::{
        key::Counter,
        ledger::{Charge, Fit},
        request::{Entry, Hits},
        rule::{Algorithm, Limit, Unit},
        time::Timestamp,
    },
    store::memory::MemoryStore,
};

/// Hits per minute of each user.
const LIMIT: u64 = 100;
const WINDOW_MS: u64 = 60_000;

/// One call: its time in milliseconds, and its user.
type Call = (u64, u64);

/// Prints the table of docs/algorithms.md.
pub(crate) fn measure() {
    println!("| traffic | calls | log admits | sliding window admits | most in any minute |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, calls) in traffic() {
        let log = run(&calls, Algorithm::SlidingLog { remember: None });
        let window = run(&calls, Algorithm::SlidingWindow);
        let difference = 100.0 * (f64::from(window.admitted) / f64::from(log.admitted) - 1.0);
        println!(
            "| {name} | {} | {} | {} ({difference:+.2} %) | {:.2} x the limit |",
            calls.len(),
            log.admitted,
            window.admitted,
            f64::from(window.most) / LIMIT as f64,
        );
    }
}

/// The result for one kind of traffic.
struct Outcome {
    admitted: u32,
    /// The most hits admitted for one user in any span as long as the window.
    most: u32,
}

fn run(calls: &[Call], algorithm: Algorithm) -> Outcome {
    let limit = Limit::new(LIMIT, Unit::Minute, 1).map(|limit| Limit { algorithm, ..limit });
    let limit = Arc::new(limit.expect("a minute is a window"));
    let store = MemoryStore::new(|| Timestamp::from_millis(0));
    let mut recent: Vec<VecDeque<u64>> = vec![VecDeque::new(); 1000];
    let mut outcome = Outcome { admitted: 0, most: 0 };
    for &(ms, user) in calls {
        let entries = [Entry { key: "user".into(), value: user.to_string().into() }];
        let counter = Counter::new("shop", &entries, Arc::clone(&limit));
        let charge = Charge::new(counter, Hits::Charge(1));
        let now = Timestamp::from_secs(1_795_215_600).plus_millis(ms);
        let tallies = store.charge_at(&[charge], now).tallies;
        if tallies.first().is_none_or(|tally| tally.fit == Fit::Over) {
            continue;
        }
        outcome.admitted += 1;
        let Some(recent) = usize::try_from(user).ok().and_then(|user| recent.get_mut(user)) else {
            continue;
        };
        recent.push_back(ms);
        while recent.front().is_some_and(|first| first + WINDOW_MS <= ms) {
            recent.pop_front();
        }
        outcome.most = outcome.most.max(u32::try_from(recent.len()).unwrap_or(u32::MAX));
    }
    outcome
}

/// One hour of each kind of traffic.
fn traffic() -> [(&'static str, Vec<Call>); 4] {
    const HOUR_MS: u64 = 3_600_000;
    let mut dice = Dice(7);
    // User n makes 1/n of the calls of user 1: 1,000 users, 300 calls a second.
    let weights: Vec<f64> = (1..=1000).map(|rank| 1.0 / f64::from(rank)).collect();
    let zipf =
        (0..1_080_000_u64).map(|number| (number * HOUR_MS / 1_080_000, dice.weighed(&weights)));
    let zipf = zipf.collect();
    // One user, steadily at twice the limit.
    let steady = (0..12_000).map(|number| (number * 300, 1)).collect();
    // Ten users, each with a burst of 150 calls within a second, at random two times a minute.
    let mut bursts: Vec<Call> = Vec::new();
    for user in 1..=10 {
        for _ in 0..120 {
            let begin = dice.below(HOUR_MS);
            bursts.extend((0..150).map(|number| (begin + number * 6, user)));
        }
    }
    bursts.sort_unstable();
    // The worst case: all hits at the end of a window, and as many as pass in the next one.
    let mut adversary: Vec<Call> = Vec::new();
    for minute in (0..60).step_by(3) {
        let end = minute * WINDOW_MS + WINDOW_MS;
        adversary.extend((0..LIMIT).map(|_| (end - 1, 1)));
        adversary.extend((end..end + WINDOW_MS - 1).step_by(50).map(|ms| (ms, 1)));
    }
    [
        ("Zipf, 1,000 users", zipf),
        ("steady, twice the limit", steady),
        ("bursts", bursts),
        ("adversarial", adversary),
    ]
}

/// Pseudo-random numbers, the same in every run: xorshift64*.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
    }

    fn below(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }

    fn weighed(&mut self, weights: &[f64]) -> u64 {
        let total: f64 = weights.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "31 bits")]
        let mut point = self.next() as f64 / f64::from(1_u32 << 31) * total;
        let mut user = 0;
        for weight in weights {
            point -= weight;
            if point < 0.0 {
                break;
            }
            user += 1;
        }
        user.min(999)
    }
}
