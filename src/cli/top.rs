//! `tollkeeper top`: the keys that lead now, once or as a view that refreshes itself.

mod table;

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::value_parser;
use hyper::Method;
use serde_json::Value;

use self::table::{TextWidth, describe};
use super::{
    admin,
    output::{USAGE, complain, say},
};
use crate::{
    printable::printable_lines,
    settings::{self, Environment},
    top_keys::TopReport,
};

#[derive(Debug, clap::Args)]
pub(super) struct TopFlags {
    /// Admin address of the service [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<String>,
    #[command(flatten)]
    access: admin::AdminAccess,
    /// Print the keys once; also if stdout is not a terminal
    #[arg(long)]
    once: bool,
    /// Time between two readings, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Keys of each list, 1 to 20
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u8).range(1..=20))]
    rows: u8,
    /// Print the JSON of `/top` once
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    settings::duration(text, Duration::from_millis(100), Duration::from_secs(3600))
}

pub(super) fn main(flags: &TopFlags, environment: &Environment) -> ExitCode {
    let addr = match admin::address(flags.addr.as_deref(), environment) {
        Ok(addr) => addr,
        Err(problem) => {
            complain(problem);
            return ExitCode::from(USAGE);
        }
    };
    let is_live = !flags.once && !flags.json && io::stdout().is_terminal();
    let shown = if is_live { follow(addr, flags) } else { show_once(addr, flags) };
    shown.unwrap_or_else(|problem| {
        complain(problem);
        ExitCode::FAILURE
    })
}

fn show_once(addr: &str, flags: &TopFlags) -> Result<ExitCode, String> {
    let answer = ask(addr, flags)?;
    if flags.json {
        return Ok(say(&format!("{answer:#}\n"), ExitCode::SUCCESS));
    }
    let text = describe(&report(addr, answer)?, usize::from(flags.rows), TextWidth::Whole);
    Ok(say(&text, ExitCode::SUCCESS))
}

/// Renews the view until it is interrupted. A service that was reached once is asked again after a failure, and the
/// last keys remain.
fn follow(addr: &str, flags: &TopFlags) -> Result<ExitCode, String> {
    let mut last = report(addr, ask(addr, flags)?)?;
    let mut problem = None;
    loop {
        let keys = describe(&last, usize::from(flags.rows), TextWidth::Cut);
        let head = match &problem {
            None => format!("{addr}, every {:?}\n\n", flags.interval),
            Some(problem) => format!("NOT CURRENT: {problem}\n\n"),
        };
        if draw(&(head + &keys)).is_err() {
            return Ok(ExitCode::FAILURE);
        }
        thread::sleep(flags.interval);
        match ask(addr, flags).and_then(|answer| report(addr, answer)) {
            Ok(report) => (last, problem) = (report, None),
            Err(failure) => problem = Some(failure),
        }
    }
}

fn ask(addr: &str, flags: &TopFlags) -> Result<Value, String> {
    admin::ask(addr, &flags.access, Method::GET, "/top", String::new())
}

fn report(addr: &str, answer: Value) -> Result<TopReport, String> {
    serde_json::from_value(answer).map_err(|_| admin::not_tollkeeper(addr))
}

/// Overwrites the screen from its upper left corner, line by line, so that it does not flicker.
fn draw(text: &str) -> io::Result<()> {
    const UPPER_LEFT: &str = "\x1b[H";
    const CLEAR_TO_END_OF_LINE: &str = "\x1b[K\r\n";
    const CLEAR_BELOW: &str = "\x1b[J";
    let text = printable_lines(text).replace('\n', CLEAR_TO_END_OF_LINE);
    let mut out = io::stdout().lock();
    out.write_all(format!("{UPPER_LEFT}{text}{CLEAR_BELOW}").as_bytes())?;
    out.flush()
}
