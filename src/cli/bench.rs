//! `tollkeeper bench`: measures the throughput and latency of a rate-limit service.

mod show;

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Duration,
};

use clap::ArgGroup;

use super::{
    call, channel,
    output::{Ended, OutputFlag, complain, failure, say, usage},
    tls::uses_tls,
};
use crate::{
    bench::{self, BenchError, Calls, Distribution, Load, Pace},
    engine::request::Hits,
    settings::{Environment, whole_numbers},
    text::{duration, printable::printable},
};

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("pace").args(["concurrency", "rate"]))]
pub(super) struct BenchFlags {
    #[command(flatten)]
    call: call::RequestFlags,
    /// Number of different keys for `{}`, 1 to 1000000
    #[arg(allow_negative_numbers = true, long, value_name = "N", default_value_t = 1, value_parser = whole_numbers(1_u64, 1_000_000))]
    keys: u64,
    /// Distribution of the keys over the calls
    #[arg(long, value_name = "HOW", default_value = "uniform")]
    distribution: Distribution,
    /// Concurrent calls (closed loop), 1 to 10000 [default: 64]
    #[arg(allow_negative_numbers = true, long, value_name = "N", value_parser = whole_numbers(1_u64, 10_000))]
    concurrency: Option<u64>,
    /// Calls per second (open loop), 1 to 1000000; latency is measured from when a call was due
    #[arg(allow_negative_numbers = true, long, value_name = "N", value_parser = whole_numbers(1_u32, 1_000_000))]
    rate: Option<u32>,
    /// Number of connections, 1 to 1000
    #[arg(allow_negative_numbers = true, long, value_name = "N", default_value_t = 4, value_parser = whole_numbers(1_u64, 1000))]
    connections: u64,
    /// Number of client threads, 1 to 64, each with connections of its own
    #[arg(allow_negative_numbers = true, long, value_name = "N", default_value_t = 1, value_parser = whole_numbers(1_u64, 64))]
    threads: u64,
    /// Duration of the measurement, 10ms to 1h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Duration of the calls before the measurement, 0s to 1h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = warmup)]
    warmup: Duration,
    /// Maximum number of measured calls, 1 or more
    #[arg(allow_negative_numbers = true, long, value_name = "N", value_parser = whole_numbers(1, u64::MAX))]
    calls: Option<u64>,
    /// Commit each hold by token that a call takes, with this number of hits used
    #[arg(allow_negative_numbers = true, long, value_name = "USED", value_parser = whole_numbers(0, Hits::MAX))]
    commit: Option<u64>,
    #[command(flatten)]
    output: OutputFlag,
    /// Descriptors as in `call`; `{}` in a value becomes the number of a key, drawn per descriptor
    #[arg(required = true, value_name = "k=v,k=v")]
    descriptors: Vec<String>,
}

pub(super) fn main(flags: &BenchFlags, environment: &Environment) -> Ended {
    let load = load(flags, environment).map_err(usage)?;
    let bar = io::stderr().is_terminal();
    let measured = bench::run(&load, interrupt(), |progress| {
        if bar {
            show::progress(progress);
        }
    });
    if bar {
        show::no_progress();
    }
    let report = measured.map_err(|problem| {
        let problem = match problem {
            BenchError::Unreachable(error) => {
                channel::target(uses_tls(load.tls.as_ref())).advise(&error)
            }
            BenchError::System(error) => error.to_string(),
        };
        failure(format_args!("{}: {problem}", printable(load.addr.as_bytes())))
    })?;
    let code = if report.decisions() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let text = if flags.output.is_json() { show::json(&report) } else { show::text(&report) };
    let ended = say(&text, code);
    if call::lacks_limit_in(&report.sample) {
        complain(call::NO_LIMIT);
    }
    Ok(ended)
}

fn load(flags: &BenchFlags, environment: &Environment) -> Result<Load, String> {
    let template = flags.call.request(&flags.descriptors)?;
    let pace = match (flags.rate, flags.concurrency) {
        (Some(rate), _) => Pace::Open(f64::from(rate)),
        (None, concurrency) => Pace::Closed(size(concurrency.unwrap_or(64))),
    };
    if flags.threads > flags.connections {
        let BenchFlags { threads, connections, .. } = flags;
        return Err(format!("--threads: {threads} exceeds --connections, {connections}"));
    }
    Ok(Load {
        addr: flags.call.addr(environment)?.to_owned(),
        tls: flags.call.tls()?,
        calls: Calls::new(&template, size(flags.keys), flags.distribution).committing(flags.commit),
        pace,
        connections: size(flags.connections),
        threads: size(flags.threads),
        warmup: flags.warmup,
        duration: flags.duration,
        calls_max: flags.calls,
    })
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

const HOUR: Duration = Duration::from_secs(3600);

fn duration(text: &str) -> Result<Duration, String> {
    duration::duration(text, Duration::from_millis(10), HOUR)
}

fn warmup(text: &str) -> Result<Duration, String> {
    duration::duration(text, Duration::ZERO, HOUR)
}

/// Waits for Ctrl-C; without end if the system cannot report it.
async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
