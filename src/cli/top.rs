//! `tollkeeper top`: the keys that lead now, once or as a view that refreshes itself.

mod fleet;
mod table;

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    thread,
    time::Duration,
};

use self::{
    fleet::Fleet,
    table::{NEAR, OVER, TextWidth, describe},
};
use super::{
    admin::{self, AdminServer, ReplicaFlags},
    output::{Ended, OutputFlag, failure, say, usage},
    status::ReplicaStatus,
};
use crate::{
    settings::{Environment, whole_numbers},
    text::{duration, printable::printable_lines},
};

#[derive(Debug, clap::Args)]
pub(super) struct TopFlags {
    #[command(flatten)]
    replicas: ReplicaFlags,
    /// Print the keys once; also if stdout is not a terminal
    #[arg(long)]
    once: bool,
    /// Time between two readings, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Keys of each list, 1 to 20
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole_numbers(1_u8, 20), allow_negative_numbers = true)]
    rows: u8,
    /// Show only keys of which the domain, rule, key or limit contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    #[command(flatten)]
    output: OutputFlag,
}

fn interval(text: &str) -> Result<Duration, String> {
    duration::duration(text, Duration::from_millis(100), Duration::from_secs(3600))
}

pub(super) fn main(flags: &TopFlags, environment: &Environment) -> Ended {
    let servers = flags.replicas.servers(environment).map_err(usage)?;
    if flags.output.is_json() {
        let (answers, code) = admin::answers(&servers, "/top")?;
        return Ok(say(&admin::json_of(&servers, answers), code));
    }
    let shown = if flags.once || !io::stdout().is_terminal() {
        show_once(&servers, flags)
    } else {
        follow(&servers, flags, environment.wants_color())
    };
    shown.map_err(failure)
}

/// The exit code is a failure's if a replica gave no answer.
fn show_once(servers: &[AdminServer<'_>], flags: &TopFlags) -> Result<ExitCode, String> {
    let fleet = read(servers)?;
    let code = if fleet.replicas == servers.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    Ok(say(&view(&fleet, flags, TextWidth::Whole), code))
}

/// Renews the view until it is interrupted. A service that was reached once is queried again after a failure, and the
/// last keys remain.
fn follow(
    servers: &[AdminServer<'_>],
    flags: &TopFlags,
    in_color: bool,
) -> Result<ExitCode, String> {
    let mut last = read(servers)?;
    let mut problem = None;
    let addrs: Vec<&str> = servers.iter().map(|server| &*server.addr).collect();
    let addrs = addrs.join(", ");
    loop {
        let head = match &problem {
            None => format!("{addrs}, every {:?}\n", flags.interval),
            Some(problem) => format!("NOT CURRENT: {problem}\n"),
        };
        if draw(&(head + &view(&last, flags, TextWidth::Cut)), in_color).is_err() {
            return Ok(ExitCode::FAILURE);
        }
        thread::sleep(flags.interval);
        match read(servers) {
            Ok(fleet) => (last, problem) = (fleet, None),
            Err(failure) => problem = Some(failure),
        }
    }
}

fn read(servers: &[AdminServer<'_>]) -> Result<Fleet, String> {
    Fleet::read(ReplicaStatus::of_each(servers))
}

/// The totals of the replicas, and their keys.
fn view(fleet: &Fleet, flags: &TopFlags, width: TextWidth) -> String {
    let head = fleet.head();
    let Some(top) = &fleet.top else {
        return format!("{head}\nkeys are not counted: --top-keys is off\n");
    };
    let mut top = top.clone();
    if let Some(text) = &flags.filter {
        let text = text.to_lowercase();
        for list in top.lists_mut() {
            list.retain(|key| {
                let texts = [&key.domain, &key.rule, &key.key, &key.limit];
                texts.iter().any(|one| one.to_lowercase().contains(&text))
            });
        }
    }
    format!("{head}\n{}", describe(&top, fleet.replicas, usize::from(flags.rows), width))
}

/// Overwrites the screen from its upper left corner, line by line, so that it does not flicker.
fn draw(text: &str, in_color: bool) -> io::Result<()> {
    const UPPER_LEFT: &str = "\x1b[H";
    const CLEAR_TO_END_OF_LINE: &str = "\x1b[K\r\n";
    const CLEAR_BELOW: &str = "\x1b[J";
    let text = printable_lines(text);
    let shown = |line: &str| if in_color { coloured(line) } else { line.to_owned() };
    let text = text.lines().map(shown).collect::<Vec<_>>().join(CLEAR_TO_END_OF_LINE);
    let mut out = io::stdout().lock();
    out.write_all(format!("{UPPER_LEFT}{text}{CLEAR_TO_END_OF_LINE}{CLEAR_BELOW}").as_bytes())?;
    out.flush()
}

/// The line in the colour of what it reports.
fn coloured(line: &str) -> String {
    let colour = match line.split_once(':').map_or(line, |(start, _)| start) {
        "red" | "NOT CURRENT" => 31,
        "amber" => 33,
        _ if line.starts_with(OVER) => 31,
        _ if line.starts_with(NEAR) => 33,
        _ if line.ends_with("keys") || line.starts_with("keys") => 1,
        _ => return line.to_owned(),
    };
    format!("\x1b[{colour}m{line}\x1b[0m")
}
