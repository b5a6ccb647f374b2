//! What a decision costs, beside what it cannot cost less than: `cargo bench --bench compare`.
//!
//! In one run, in turns: an empty gRPC handler, tollkeeper on memory and on Redis, and Redis asked
//! directly. docs/bench.md tells what is measured and against what.

mod baseline;
mod cpu;
mod empty;
mod processes;
mod report;
mod scenarios;
mod targets;
mod trial;

use std::{
    error::Error,
    io::{self, IsTerminal as _},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use clap::Parser as _;
use tollkeeper::shutdown::Signals;

use crate::{
    processes::Subjects,
    report::{Form, Table},
    scenarios::SCENARIOS,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Debug, clap::Parser)]
struct Flags {
    /// One round of short slices: shows that it works, and no more
    #[arg(long)]
    quick: bool,
    /// How often each backend has its turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// How long a turn is, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 800)]
    slice: u64,
    /// Only the scenarios whose name contains this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Prints Markdown
    #[arg(long)]
    markdown: bool,
    /// Is the empty handler: the benchmark starts itself as one
    #[arg(long, hide = true)]
    empty_handler: bool,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let ended = if flags.empty_handler { empty::serve() } else { compare(&flags) };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(flags: &Flags) -> Result<()> {
    let (rounds, slice) = if flags.quick { (1, 200) } else { (flags.rounds, flags.slice) };
    let named = |name: &str| flags.only.is_empty() || flags.only.iter().any(|it| name.contains(it));
    let scenarios: Vec<_> = SCENARIOS.iter().filter(|it| named(it.name)).collect();
    if scenarios.is_empty() {
        let names: Vec<_> = SCENARIOS.iter().map(|it| it.name).collect();
        return Err(format!("--only: none of {}", names.join(", ")).into());
    }
    let interrupted = watch_signals()?;
    let backends = Subjects::start(&scenarios)?;
    let mut table = Table::default();
    for round in 0..rounds {
        for scenario in &scenarios {
            let mut turns = scenario.backends.to_vec();
            // Forth and back, so that none always follows the same one.
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
    let form = if flags.markdown { Form::Markdown } else { Form::Text };
    println!("{}", report::machine());
    println!("\n{}", table.show(form));
    println!("{}", targets::show(&table, form));
    Ok(())
}

/// Set by SIGINT and SIGTERM, which would else end us and not the processes that we have started.
#[expect(clippy::disallowed_methods, reason = "it runs as long as the process")]
fn watch_signals() -> Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::listen() })?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&interrupted);
    thread::spawn(move || {
        runtime.block_on(signals.next());
        told.store(true, Relaxed);
    });
    Ok(interrupted)
}

/// Writes over the line on stderr, if someone looks at it.
fn progress(line: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    }
}
