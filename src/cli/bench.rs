//! `tollkeeper bench`: asks a service for many decisions, and shows how many it made and how fast.

mod show;

use std::{
    io::{self, IsTerminal as _},
    num::NonZeroU64,
    process::ExitCode,
    time::Duration,
};

use clap::{ArgGroup, value_parser};

use super::{USAGE, call, complain, say};
use crate::{
    bench::{self, Calls, Distribution, Load, Pace},
    settings::{self, Environment},
};

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("pace").args(["concurrency", "rate"]))]
pub(super) struct Flags {
    #[command(flatten)]
    question: call::Question,
    /// How many keys `{}` stands for, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// How their numbers are drawn
    #[arg(long, value_name = "HOW", default_value = "uniform")]
    distribution: Distribution,
    /// So many calls under way at any time, 1 to 10000: the next is made when one is answered
    /// [default: 64]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=10_000))]
    concurrency: Option<u64>,
    /// So many calls a second, 1 to 1000000, answered or not; latency is counted from when a call
    /// was due
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// How many connections, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u64).range(1..=1000))]
    connections: u64,
    /// How many threads make calls, 1 to 64, each on connections of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=64))]
    threads: u64,
    /// How long calls are made that count, 10ms to 1h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// How long calls are made before they count, 0s to 1h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = warmup)]
    warmup: Duration,
    /// Ends after so many calls that count
    #[arg(long, value_name = "N")]
    calls: Option<NonZeroU64>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    /// Descriptors as in `call`; `{}` in a value is the number of a key, drawn for each descriptor
    #[arg(required = true, value_name = "k=v,k=v")]
    descriptors: Vec<String>,
}

pub(super) fn main(flags: &Flags, environment: &Environment) -> ExitCode {
    let load = match load(flags, environment) {
        Ok(load) => load,
        Err(problem) => {
            complain(problem);
            return ExitCode::from(USAGE);
        }
    };
    let bar = io::stderr().is_terminal();
    let measured = bench::run(&load, interrupt(), |progress| {
        if bar {
            show::progress(progress);
        }
    });
    if bar {
        show::no_progress();
    }
    match measured {
        Ok(report) => {
            let code = if report.decisions() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            say(&if flags.json { show::json(&report) } else { show::text(&report) }, code)
        }
        Err(problem) => {
            complain(format_args!("{}: {problem}", load.addr));
            ExitCode::FAILURE
        }
    }
}

fn load(flags: &Flags, environment: &Environment) -> Result<Load, String> {
    let template = flags.question.request(&flags.descriptors)?;
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let pace = match (flags.rate, flags.concurrency) {
        (Some(rate), _) => Pace::Open(f64::from(rate)),
        (None, concurrency) => Pace::Closed(size(concurrency.unwrap_or(64))),
    };
    if flags.threads > flags.connections {
        let Flags { threads, connections, .. } = flags;
        return Err(format!("--threads: {threads} exceeds {connections}, the --connections"));
    }
    Ok(Load {
        addr: flags.question.addr(environment).to_owned(),
        calls: Calls::new(&template, size(flags.keys), flags.distribution),
        pace,
        connections: size(flags.connections),
        threads: size(flags.threads),
        warmup: flags.warmup,
        duration: flags.duration,
        calls_max: flags.calls.map(NonZeroU64::get),
    })
}

const HOUR: Duration = Duration::from_secs(3600);

fn duration(text: &str) -> Result<Duration, String> {
    settings::duration(text, Duration::from_millis(10), HOUR)
}

fn warmup(text: &str) -> Result<Duration, String> {
    settings::duration(text, Duration::ZERO, HOUR)
}

/// Ctrl-C, where the system lets us know of it.
async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
