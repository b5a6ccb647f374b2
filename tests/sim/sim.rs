//! The service in a simulated world: each schedule of calls and faults follows from one seed, in virtual time.
//!
//! `cargo test --test sim` runs fresh seeds for `SIM_SECONDS` (10), and prints the seed of a schedule that breaks a promise.
//! `SIM_SEED=7` replays one, with a log of what happened.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "a test that panics has failed, which is its purpose"
)]

mod world;

use std::{
    env,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tollkeeper_sim::redis::scripts::Plant;
use world::{Outcome, Plan};

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a whole number"))
}

/// Panics with the shortest schedule that still breaks a promise.
fn failed(plan: &Plan, broken: &str) -> ! {
    let (plan, outcome) = world::shrink(plan);
    panic!(
        "SIM_SEED={} breaks a promise: {broken}\nThe shortest schedule, {plan:?}, ends so:\n{}\n{}",
        plan.seed,
        outcome.log[outcome.log.len().saturating_sub(100)..].join("\n"),
        outcome.broken.as_deref().unwrap_or("it breaks none in a second run"),
    );
}

#[test]
fn every_promise_holds_on_fresh_seeds() {
    if let Some(seed) = number("SIM_SEED") {
        let outcome = world::run(&Plan::of_seed(seed));
        println!("{}\n{}", outcome.log.join("\n"), outcome.summary());
        assert_eq!(outcome.broken, None, "SIM_SEED={seed}");
        return;
    }
    let (began, runs_for) =
        (Instant::now(), Duration::from_secs(number("SIM_SECONDS").unwrap_or(10)));
    let fresh =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64 % 1_000_000_000;
    let (next, calls) = (AtomicU64::new(fresh), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while began.elapsed() < runs_for {
                    let plan = Plan::of_seed(next.fetch_add(1, Ordering::Relaxed));
                    let outcome = world::run(&plan);
                    if let Some(broken) = &outcome.broken {
                        failed(&plan, broken);
                    }
                    calls.fetch_add(outcome.calls, Ordering::Relaxed);
                }
            });
        }
    });
    let schedules = next.load(Ordering::Relaxed) - fresh;
    println!(
        "{schedules} schedules from seed {fresh} on, {} calls: no promise broken; {:.0?}",
        calls.load(Ordering::Relaxed),
        began.elapsed()
    );
}

#[test]
fn a_seed_replays_its_schedule() {
    for seed in [1, 2, 3] {
        let [first, second] = [0, 1].map(|_| world::run(&Plan::of_seed(seed)));
        let differ = first.log.iter().zip(&second.log).position(|(one, other)| one != other);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(first.log.len(), second.log.len(), "seed {seed}");
        assert_eq!(Outcome::summary(&first), second.summary());
    }
}

/// Faults that are planted in the scripts: what is wrong, and what they say in place of what.
const PLANTS: [(&str, Plant); 7] = [
    ("one hit too many fits", ["limits[charge] - before or", "limits[charge] + 1 - before or"]),
    (
        "a counter never ends",
        ["try('SET', keys[slot], count, 'PXAT', expiry)", "try('SET', keys[slot], count)"],
    ),
    (
        "a denied call is charged",
        ["if absent or problem or admitted < calls then", "if absent or problem then"],
    ),
    (
        "only the last counter decides",
        ["if remaining < asked * admitted then admitted =", "if true then admitted ="],
    ),
    ("any window counts", ["if is_present then", "if true then"]),
    ("a write that was refused counts", ["if created.err then", "if false then"]),
    ("a debit counts twice", ["text(after - before)", "text(2 * (after - before))"]),
];

#[test]
fn each_planted_fault_breaks_a_promise() {
    const SEEDS: u64 = 40;
    for (name, plant) in PLANTS {
        let broken = (1..=SEEDS).find_map(|seed| {
            let plan = Plan { plant: Some(plant), ..Plan::of_seed(seed) };
            Some((seed, world::run(&plan).broken?))
        });
        let (seed, broken) = broken.unwrap_or_else(|| panic!("nothing shows that {name}"));
        println!("{name}: found by seed {seed}: {broken}");
    }
}
