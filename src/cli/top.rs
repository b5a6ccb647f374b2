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
    admin::{self, AdminServer},
    output::{USAGE, complain, say},
};
use crate::{
    settings::Environment,
    text::{duration, printable::printable_lines},
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
    duration::duration(text, Duration::from_millis(100), Duration::from_secs(3600))
}

pub(super) fn main(flags: &TopFlags, environment: &Environment) -> ExitCode {
    let addr = admin::address(flags.addr.as_deref(), environment);
    let server = match addr.and_then(|addr| AdminServer::new(addr, &flags.access)) {
        Ok(server) => server,
        Err(problem) => {
            complain(problem);
            return ExitCode::from(USAGE);
        }
    };
    let is_live = !flags.once && !flags.json && io::stdout().is_terminal();
    let shown = if is_live { follow(&server, flags) } else { show_once(&server, flags) };
    shown.unwrap_or_else(|problem| {
        complain(problem);
        ExitCode::FAILURE
    })
}

fn show_once(server: &AdminServer<'_>, flags: &TopFlags) -> Result<ExitCode, String> {
    let answer = ask(server)?;
    if flags.json {
        return Ok(say(&format!("{answer:#}\n"), ExitCode::SUCCESS));
    }
    let text = describe(&report(server, answer)?, usize::from(flags.rows), TextWidth::Whole);
    Ok(say(&text, ExitCode::SUCCESS))
}

/// Renews the view until it is interrupted. A service that was reached once is queried again after a failure, and the
/// last keys remain.
fn follow(server: &AdminServer<'_>, flags: &TopFlags) -> Result<ExitCode, String> {
    let mut last = report(server, ask(server)?)?;
    let mut problem = None;
    loop {
        let keys = describe(&last, usize::from(flags.rows), TextWidth::Cut);
        let head = match &problem {
            None => format!("{}, every {:?}\n\n", server.addr, flags.interval),
            Some(problem) => format!("NOT CURRENT: {problem}\n\n"),
        };
        if draw(&(head + &keys)).is_err() {
            return Ok(ExitCode::FAILURE);
        }
        thread::sleep(flags.interval);
        match ask(server).and_then(|answer| report(server, answer)) {
            Ok(report) => (last, problem) = (report, None),
            Err(failure) => problem = Some(failure),
        }
    }
}

fn ask(server: &AdminServer<'_>) -> Result<Value, String> {
    server.ask(Method::GET, "/top", String::new())
}

fn report(server: &AdminServer<'_>, answer: Value) -> Result<TopReport, String> {
    serde_json::from_value(answer).map_err(|_| server.not_tollkeeper())
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
