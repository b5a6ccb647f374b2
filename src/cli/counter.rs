//! `tollkeeper counter`: shows or resets counters through a service's admin address.

use std::process::ExitCode;

use hyper::Method;
use serde_json::Value;

use super::{
    admin::{self, AdminServer},
    output::{USAGE, complain},
};
use crate::{engine::descriptor_syntax, settings::Environment, text::printable::printable};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Action {
    /// Print what is used, held and left, when it resets, and the callers that a sliding_log remembers
    Show(CounterFlags),
    /// Set counters to zero, and print what was used until then
    Reset(CounterFlags),
}

#[derive(Debug, clap::Args)]
pub(super) struct CounterFlags {
    /// Admin address of the service [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<String>,
    #[command(flatten)]
    access: admin::AdminAccess,
    /// Domain of the rules
    #[arg(long)]
    domain: String,
    /// Descriptor, such as user=alice or path=/login,user=alice; `\,` is a comma, `\xHH` any byte
    #[arg(value_name = "k=v,k=v")]
    descriptor: String,
}

pub(super) fn main(action: &Action, environment: &Environment) -> ExitCode {
    let (method, path, flags) = match action {
        Action::Show(flags) => (Method::GET, "/counters", flags),
        Action::Reset(flags) => (Method::POST, "/counters/reset", flags),
    };
    if let Err(problem) = descriptor_syntax::parse(&flags.descriptor) {
        complain(format_args!("{}: {problem}", printable(flags.descriptor.as_bytes())));
        return ExitCode::from(USAGE);
    }
    let addr = admin::address(flags.addr.as_deref(), environment);
    let server = match addr.and_then(|addr| AdminServer::new(addr, &flags.access)) {
        Ok(server) => server,
        Err(problem) => {
            complain(problem);
            return ExitCode::from(USAGE);
        }
    };
    match server.ask(method.clone(), &path_and_query(path, flags), String::new()) {
        Ok(answer) => {
            let (text, incomplete) = (describe(&answer, &method), admin::incomplete(&answer));
            server.say(&text, incomplete, ExitCode::SUCCESS)
        }
        Err(problem) => {
            complain(problem);
            ExitCode::FAILURE
        }
    }
}

fn path_and_query(path: &str, flags: &CounterFlags) -> String {
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("domain", &flags.domain)
        .append_pair("descriptor", &flags.descriptor)
        .finish();
    format!("{path}?{query}")
}

fn describe(answer: &Value, method: &Method) -> String {
    let mut text = String::new();
    for counter in list(answer, "counters") {
        text += &describe_counter(counter, method);
    }
    text
}

fn describe_counter(counter: &Value, method: &Method) -> String {
    let (algorithm, limit) = (text(counter, "algorithm"), text(counter, "limit"));
    let (used, remaining) = (number(counter, "used"), number(counter, "remaining"));
    let reset = *method == Method::POST;
    if let Some(error) = counter.get("error").and_then(Value::as_str) {
        return format!("{algorithm} of {limit}: {error}\n");
    }
    if let Some(problem) = counter.get("problem").and_then(Value::as_str) {
        let cleared = if reset { "; now 0" } else { "" };
        return format!("{algorithm} of {limit}: {problem}{cleared}\n");
    }
    if reset {
        return format!("{algorithm}: {used} of {limit} were used; now 0\n");
    }
    let resets_in = number(counter, "reset_ms").div_ceil(1000);
    let held = match counter.get("open_holds").and_then(Value::as_u64) {
        Some(open) => format!(", {} held by {open} open holds", number(counter, "held")),
        None => String::new(),
    };
    let mut lines = format!(
        "{algorithm}: {used} used of {limit}{held}, {remaining} left, resets in {resets_in} s\n"
    );
    for entry in list(counter, "remembered") {
        let hits = number(entry, "hits");
        let at = match entry.get("until_ms") {
            Some(_) => format!("until {}", instant(number(entry, "until_ms"))),
            None => format!("at {}", instant(number(entry, "at_ms"))),
        };
        lines += &match entry.get("caller").and_then(Value::as_str) {
            Some(caller) => format!("  {hits} {at} by {caller}\n"),
            None => format!("  {hits} {at}\n"),
        };
    }
    lines
}

fn list<'value>(value: &'value Value, name: &str) -> &'value [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'value>(value: &'value Value, name: &str) -> &'value str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

fn instant(millis: u64) -> String {
    let instant = i64::try_from(millis)
        .ok()
        .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    instant.map_or_else(|| format!("{millis} ms"), |instant| instant.to_string())
}
