//! Measures what a decision costs against lower bounds of that cost: `cargo bench --bench compare`.
//!
//! One run measures, in turns, an empty gRPC handler, tollkeeper on memory and on Redis, the same
//! served by tonic, and Redis on its own; where it is there, also envoyproxy/ratelimit. docs/internals/benchmark.md describes the scenarios and backends.

mod baseline;
mod batch_load;
mod cpu;
mod empty;
mod process;
mod processes;
mod ratelimit;
mod report;
mod sample;
mod scenarios;
mod servers;
mod targets;
mod tonic_server;
mod tonic_service;
mod trial;

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use clap::Parser as _;
use mimalloc::MiMalloc;
use tollkeeper::{app::shutdown::Signals, process::workers::Workers, settings::HangUp};

use crate::{
    process::Result,
    processes::Backends,
    report::{Table, TableStyle},
    scenarios::{SCENARIOS, Scenario},
};

/// As in the program, for the servers that it is compared with.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[derive(Debug, clap::Parser)]
struct Flags {
    /// Run one round of short turns, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Number of turns of each backend
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Duration of a turn, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 800)]
    slice: u64,
    /// Run only the scenarios whose name contains this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Program of envoyproxy/ratelimit, which is measured only where this is given
    #[arg(long, value_name = "FILE")]
    ratelimit: Option<PathBuf>,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
    /// Be one of the services: the benchmark starts itself with this
    #[arg(long, hide = true)]
    serve: Option<Served>,
    /// Store of the service
    #[arg(long, hide = true, default_value = "memory://")]
    store: String,
    /// Rule files of the service
    #[arg(long, hide = true)]
    rules: Vec<PathBuf>,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The services that are not tollkeeper's own.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Served {
    /// The empty handler, on tokio's usual runtime.
    Empty,
    /// The empty handler, on tollkeeper's workers.
    EmptyOnWorkers,
    /// tollkeeper's limiter and stores behind tonic, on tollkeeper's workers.
    Tonic,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let ended = match flags.serve {
        Some(served) => serve(served, &flags),
        None => compare(&flags),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(served: Served, flags: &Flags) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        match served {
            Served::Empty => tonic_server::on_this_runtime(empty::routes()).await,
            Served::EmptyOnWorkers => {
                let count = thread::available_parallelism()?.get();
                tonic_server::on_workers(empty::routes(), &Workers::start(count)?, count).await
            }
            Served::Tonic => tonic_service::serve(&flags.store, &flags.rules).await,
        }
    })
}

fn compare(flags: &Flags) -> Result<()> {
    let (rounds, slice) = if flags.quick { (1, 200) } else { (flags.rounds, flags.slice) };
    let scenarios = selected(flags)?;
    let interrupted = watch_signals()?;
    let backends = Backends::start(&scenarios, flags.ratelimit.as_deref())?;
    let mut table = Table::default();
    for round in 0..rounds {
        for scenario in &scenarios {
            let mut turns = scenario.backends.to_vec();
            // In alternating order, so that no backend always follows the same one.
            if round % 2 == 1 {
                turns.reverse();
            }
            for backend in turns {
                if interrupted.load(Relaxed) {
                    return Err("interrupted".into());
                }
                progress(&format!("round {} of {rounds}: {}, {backend}", round + 1, scenario.name));
                let sample = trial::measure(
                    scenario,
                    backend,
                    &backends,
                    Duration::from_millis(slice),
                    table.maximum(backend),
                )?;
                table.add(scenario, backend, sample);
            }
        }
    }
    progress("");
    let style = if flags.markdown { TableStyle::Markdown } else { TableStyle::Text };
    println!("{}", report::machine());
    println!("\n{}", table.show(style));
    println!("{}", targets::show(&table, style));
    Ok(())
}

/// The scenarios whose name contains one of `--only`, or all; scenarios of envoyproxy/ratelimit only with its program.
fn selected(flags: &Flags) -> Result<Vec<&'static Scenario>> {
    let mut scenarios: Vec<&Scenario> = SCENARIOS.iter().collect();
    if !flags.only.is_empty() {
        scenarios.retain(|scenario| flags.only.iter().any(|part| scenario.name.contains(part)));
    }
    if scenarios.is_empty() {
        let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        return Err(format!("--only: must be part of one of: {}", names.join(", ")).into());
    }
    if flags.ratelimit.is_none() {
        scenarios.retain(|scenario| !scenario.measures_ratelimit());
    }
    if scenarios.is_empty() {
        return Err("--only: these scenarios need --ratelimit".into());
    }
    Ok(scenarios)
}

/// Set by SIGINT and SIGTERM, which would otherwise end this process and leave its children running.
#[expect(clippy::disallowed_methods, reason = "it runs as long as the process")]
fn watch_signals() -> Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::listen(HangUp::Ignored) })?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    thread::spawn(move || {
        runtime.block_on(signals.next());
        flag.store(true, Relaxed);
    });
    Ok(interrupted)
}

/// Overwrites the line on stderr, if that is a terminal.
fn progress(line: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    }
}
