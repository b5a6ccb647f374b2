//! Metrics of the process, from Linux's `/proc`; elsewhere only its start. The names are the same as in Prometheus's clients.

use std::{fs, path::Path};

use opentelemetry::metrics::Meter;

use crate::{
    process::clock::system_clock,
    telemetry::instrument::{Observe, instruments, observe_together},
};

instruments! {
    CPU = Counter("process.cpu", [], "CPU time of the process") in Seconds;
    RESIDENT_MEMORY = Gauge("process.resident_memory", [], "memory of the process in RAM") in Bytes;
    VIRTUAL_MEMORY = Gauge("process.virtual_memory", [], "address space of the process") in Bytes;
    OPEN_FILES = Gauge("process.open_fds", [], "open file descriptors");
    OPEN_FILES_MAX = Gauge("process.max_fds", [], "maximum number of open file descriptors");
    START_TIME = Gauge("process.start_time", [], "Unix time of the process's start") in Seconds;
}

/// Clock ticks per second in `/proc`: the same on every architecture of Linux.
const TICKS: f64 = 100.0;

pub(in crate::telemetry) fn observe(meter: &Meter) {
    let started = seconds(system_clock().as_millis());
    START_TIME.observe(meter, move |observe| observe(started, &[]));
    CPU.observe(meter, |observe| observe_if(observe, cpu(&read("stat"))));
    observe_together::<String>(
        meter,
        || read("status"),
        &[
            (&RESIDENT_MEMORY, |status, observe| observe_if(observe, bytes(status, "VmRSS:"))),
            (&VIRTUAL_MEMORY, |status, observe| observe_if(observe, bytes(status, "VmSize:"))),
        ],
    );
    OPEN_FILES.observe(meter, |observe| observe_if(observe, open_files()));
    OPEN_FILES_MAX.observe(meter, |observe| observe_if(observe, open_files_max(&read("limits"))));
}

fn observe_if(observe: Observe<'_>, value: Option<f64>) {
    if let Some(value) = value {
        observe(value, &[]);
    }
}

/// Exact: Unix time is far below 2^53 milliseconds.
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

/// Reads a file of `/proc/self`; empty if it does not exist.
fn read(name: &str) -> String {
    fs::read_to_string(Path::new("/proc/self").join(name)).unwrap_or_default()
}

/// User and system time, in seconds. The name of the process, in parentheses, may hold spaces.
fn cpu(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    Some((user + system) / TICKS)
}

/// A line of `status` in KiB, as bytes.
fn bytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0)
}

/// The descriptor by which the folder is read is not counted.
fn open_files() -> Option<f64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u32::try_from(open).ok().map(f64::from)
}

/// The soft limit of open files; `None` if it is unlimited.
fn open_files_max(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_linux_are_read() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 150 0 0 20 0 4 0 9000 1 2";
        assert_eq!(cpu(stat), Some(4.0));
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t    12 kB\n";
        assert_eq!(bytes(status, "VmRSS:"), Some(12_288.0));
        assert_eq!(bytes(status, "VmSize:"), Some(2_097_152.0));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        assert_eq!(open_files_max(limits), Some(1024.0));
        let unlimited = "Max open files  unlimited  unlimited  files\n";
        assert_eq!(open_files_max(unlimited), None);
        for text in ["", "7 (x", "7 (x) S 1", "Max open files", "VmRSS:"] {
            assert_eq!(
                (cpu(text), bytes(text, "VmRSS:"), open_files_max(text)),
                (None, None, None)
            );
        }
    }
}
