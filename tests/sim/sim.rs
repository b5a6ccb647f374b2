//! The service in a simulated world: each schedule of calls and faults follows from one seed, in virtual time.
//!
//! `cargo test --test sim` runs the kept seeds, or `SIM_SCHEDULES` from the first or `SIM_FIRST` on, and for `SIM_SECONDS` fresh
//! ones. It prints the seed of a schedule that breaks a promise: `SIM_SEED=7` replays one, with a log of what happened.

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
    ops::Range,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use mimalloc::MiMalloc;
use tollkeeper_sim::{dice::number, redis::scripts::Plant};
use world::{Audit, Outcome, Plan};

/// As in the service.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The seeds that each run tries: the same on every machine.
const KEPT: Range<u64> = 1..17;

/// The seeds that have found a fault of the service: a reset that happened twice, since its first half ran while its slot moved;
/// a master that was tried only every 3 s, since the packets of each handshake were lost; a breaker that stayed closed, twice,
/// since readings of the overrides had used up the connections to a Redis that stood still; a call on a slot that moves that was
/// too late, since it waited for the answer to ASKING; a debit in another hour, since a replica whose clock was an hour ahead dated
/// it while Redis loaded.
const FOUND: [u64; 6] = [155, 2054, 4617, 6055, 14_510, 105_179];

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

/// Runs the schedules of these seeds, on two threads, as long as `goes_on`. Returns how many there were, and their calls.
fn run_all(seeds: Range<u64>, goes_on: impl Fn() -> bool + Sync) -> (u64, u64) {
    let (next, schedules, calls) =
        (AtomicU64::new(seeds.start), AtomicU64::new(0), AtomicU64::new(0));
    let has_failed = AtomicBool::new(false);
    let run_some = || {
        while goes_on() && !has_failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let plan = Plan::of_seed(seed);
            let outcome = world::run(&plan);
            if let Some(broken) = &outcome.broken {
                has_failed.store(true, Ordering::Relaxed);
                failed(&plan, broken);
            }
            schedules.fetch_add(1, Ordering::Relaxed);
            calls.fetch_add(outcome.calls, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(run_some))));
    (schedules.into_inner(), calls.into_inner())
}

#[test]
fn every_promise_holds_in_each_schedule() {
    let (seed, seconds) = (number("SIM_SEED", 0), number("SIM_SECONDS", 0));
    if seed > 0 {
        let outcome = world::run(&Plan { is_logged: true, ..Plan::of_seed(seed) });
        println!("{}\n{}", outcome.log.join("\n"), outcome.summary());
        assert_eq!(outcome.broken, None, "SIM_SEED={seed}");
        return;
    }
    let (first, schedules) = (number("SIM_FIRST", 1), number("SIM_SCHEDULES", 0));
    let seeds = if schedules > 0 { first..first + schedules } else { KEPT };
    let (schedules, calls) = run_all(seeds, || true);
    println!("{schedules} schedules, {calls} calls: no promise broken");
    for seed in FOUND {
        run_all(seed..seed + 1, || true);
    }
    if seconds > 0 {
        let (began, runs_for) = (Instant::now(), Duration::from_secs(seconds));
        let fresh = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        let (schedules, calls) = run_all(fresh..u64::MAX, || began.elapsed() < runs_for);
        println!("{schedules} schedules from seed {fresh} on, {calls} calls: no promise broken");
    }
}

#[test]
fn a_seed_replays_its_schedule() {
    for seed in [1, 2, 3] {
        let [first, second] =
            [0, 1].map(|_| world::run(&Plan { is_logged: true, ..Plan::of_seed(seed) }));
        let differ = first.log.iter().zip(&second.log).position(|(one, other)| one != other);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(first.log.len(), second.log.len(), "seed {seed}");
        assert_eq!(Outcome::summary(&first), second.summary());
    }
}

/// Faults that are planted in the scripts: what is wrong, and what they say in place of what.
const PLANTS: [(&str, Plant); 15] = [
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
    ("a refund does nothing", ["account.refunded = (account.refunded or 0) + charge.hits", ""]),
    (
        "a commit leaves no record",
        [
            "local written = try('SET', keys[charges + charge], deadline, 'NX', 'PXAT', deadline)",
            "local written = {}",
        ],
    ),
    (
        "a repeated commit counts",
        ["if known.is_known then return REPEATED end", "if false then return REPEATED end"],
    ),
    (
        "there is one slot too many",
        ["return set.used + hits <= charge.limit", "return set.used + hits <= charge.limit + 1"],
    ),
    (
        "a slot is not freed by its commit",
        ["remove_call(set, call)\n  set.changed = true\n  return call.hits", "return call.hits"],
    ),
    (
        "a slot is not freed at its deadline",
        ["local expired = set.stored and", "local expired = false and"],
    ),
    (
        "the key of slots never ends",
        ["redis.pcall('PEXPIREAT', set.key,", "redis.pcall('ZSCORE', set.key,"],
    ),
    (
        "a check shows a hit that does not remain",
        ["charge.commit or math.max(0, remaining)", "charge.commit or math.max(0, remaining) + 1"],
    ),
];

/// The self-audit counts by what replicas have answered, and knows nothing of the ledger of this world.
#[test]
fn the_self_audit_shows_planted_faults_and_lost_data_as_what_they_are_and_nothing_without_them() {
    let audited = |seed, plant, audit| {
        let plan = Plan {
            faults_max: 0,
            clients: 20,
            leases: false,
            processes: 0,
            proxies: 0,
            watchers: 0,
            ..Plan::of_seed(seed)
        };
        let audited = world::run(&Plan { plant, audit, ..plan }).audited;
        move |outcome: &str| audited.get(outcome).copied().unwrap_or(0)
    };
    const SEEDS: Range<u64> = 1..6;
    for seed in SEEDS {
        let found = audited(seed, None, Audit::On);
        assert!(found("exact") > 0, "seed {seed}");
        assert_eq!((found("over"), found("denied_early")), (0, 0), "seed {seed}");
    }
    let plants = |name: &str| PLANTS.into_iter().find(|(known, _)| *known == name).unwrap().1;
    for (plant, audit, outcome) in [
        (Some(plants("one hit too many fits")), Audit::On, "over"),
        (None, Audit::OfLostData, "over"),
    ] {
        let found = SEEDS.into_iter().any(|seed| audited(seed, plant, audit)(outcome) > 0);
        assert!(found, "no window is {outcome} with {plant:?}, {audit:?}");
    }
}

/// `tests/sim/plants` takes too long for each run, and would not be missed if the code moved on.
#[test]
fn each_fault_that_the_script_plants_in_rust_still_has_its_place() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim/plants");
    let check = Command::new(script).arg("--check").output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

#[test]
fn each_planted_fault_breaks_a_promise() {
    const SEEDS: u64 = 100;
    for (name, plant) in PLANTS {
        let broken = (1..=SEEDS).find_map(|seed| {
            let plan = Plan { plant: Some(plant), ..Plan::of_seed(seed) };
            Some((seed, world::run(&plan).broken?))
        });
        let (seed, broken) = broken.unwrap_or_else(|| panic!("nothing shows that {name}"));
        println!("{name}: found by seed {seed}: {broken}");
    }
}
