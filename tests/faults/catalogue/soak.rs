//! A long run with a random fault every 30 seconds.

use super::{
    BUDGET, Counters, Reach, SMALL, Setup, Step, World,
    load::{Answer, Load, MODES},
    outcome::{Process, memory},
    rows::ROWS,
};
use crate::support::prelude::*;

/// `FAULT_SOAK_MINUTES` (60) sets how long it runs, and `FAULT_SEED` the seed. `FAULT_SOAK_SECONDS` is the time between
/// faults. It prints how memory and descriptors develop, and violations.
#[test]
#[ignore = "takes an hour"]
fn soak_with_random_faults() {
    let minutes = number("FAULT_SOAK_MINUTES", 60);
    let pause = Duration::from_secs(number("FAULT_SOAK_SECONDS", 30));
    let seed = number("FAULT_SEED", 1);
    let mut dice = Dice(seed);
    let mut world = World::start(Setup::Proxy, BUDGET, Step::Orders("PING"), seed);
    let rows: Vec<_> = ROWS.iter().filter(|row| row.setup != Setup::Memory).collect();
    let load = Load::start(world.service().grpc, Reach::All);
    let begin = Instant::now();
    let (mut samples, mut violations) = (Vec::new(), Vec::new());
    // Calls that passed on the small limits of `error` and `deny`, and how many may.
    let (mut admitted, mut promised) = ([0; 2], SMALL);
    let (mut calls, mut faults) = (0, 0);
    while begin.elapsed() < Duration::from_secs(minutes * 60) {
        let row = rows[dice.below(rows.len() as u64) as usize];
        std::thread::sleep(pause);
        world.does(row.stage);
        std::thread::sleep(super::HOLD);
        world.does(row.heal);
        faults += 1;
        if let Counters::Lost(times) = row.counters {
            promised += SMALL * times;
        }
        let process = Process::of(world.service.as_mut().unwrap());
        if load.recovered_after(Instant::now(), process.id).is_none() {
            violations.push(format!("{}: full service did not return", row.fault));
        }
        world.admin = world.redis.connect();
        for call in load.take() {
            calls += 1;
            if call.answer == Answer::Other {
                violations.push(format!("{}: no answer for {}", row.fault, MODES[call.mode]));
            }
            if call.mode < 2 && call.is_small && call.answer == Answer::Ok {
                admitted[call.mode] += 1;
            }
        }
        if admitted.iter().any(|admitted| *admitted > promised) {
            violations.push(format!("{}: {admitted:?} admitted of {promised}", row.fault));
        }
        if !world.redis.keys_without_ttl().is_empty() {
            violations.push(format!("{}: a key has no TTL", row.fault));
        }
        samples.push((begin.elapsed().as_secs_f64(), memory(process.id), process.files));
        let (seconds, memory, files) = samples[samples.len() - 1];
        println!("{seconds:.0} s: {} KiB, {} descriptors, after {}", memory, files, row.fault);
    }
    load.stop();
    let files = samples.iter().map(|(_, _, files)| *files);
    println!(
        "{faults} faults, {calls} calls: memory {:+.0} KiB/h, descriptors {} to {}, {} violations",
        slope(&samples) * 3600.0,
        files.clone().min().unwrap_or(0),
        files.max().unwrap_or(0),
        violations.len()
    );
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// The slope of the line through the memory of the second half of the samples, in KiB per second.
fn slope(samples: &[(f64, u64, usize)]) -> f64 {
    let samples = &samples[samples.len() / 2..];
    let count = samples.len() as f64;
    let mean =
        |value: fn(&(f64, u64, usize)) -> f64| samples.iter().map(value).sum::<f64>() / count;
    let (time, memory) = (mean(|sample| sample.0), mean(|sample| sample.1 as f64));
    let (mut above, mut below) = (0.0, 0.0);
    for (at, kib, _) in samples {
        above += (at - time) * (*kib as f64 - memory);
        below += (at - time) * (at - time);
    }
    if below == 0.0 { 0.0 } else { above / below }
}
