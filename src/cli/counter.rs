//! `tollkeeper counter`: asks a service's admin address how counters stand, or to reset them.

use std::process::ExitCode;

use hyper::Method;
use serde_json::Value;

use super::{USAGE, admin, complain, say};
use crate::{engine::notation, settings::Environment};

const ADDR_DEFAULT: &str = "127.0.0.1:6070";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Action {
    /// Tells what is used and left, until when, and who a log remembers
    Show(Flags),
    /// Begins anew, and tells what was used until then
    Reset(Flags),
}

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// The admin address to ask [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<String>,
    /// The domain of the rules
    #[arg(long)]
    domain: String,
    /// The descriptor, such as user=alice or path=/login,user=alice; `\,` is a comma, `\xHH` any byte
    #[arg(value_name = "k=v,k=v")]
    descriptor: String,
}

pub(super) fn main(action: &Action, environment: &Environment) -> ExitCode {
    let (method, path, flags) = match action {
        Action::Show(flags) => (Method::GET, "/counters", flags),
        Action::Reset(flags) => (Method::POST, "/counters/reset", flags),
    };
    if let Err(problem) = notation::parse(&flags.descriptor) {
        complain(format_args!("{}: {problem}", flags.descriptor));
        return ExitCode::from(USAGE);
    }
    let addr = flags.addr.as_deref().or(environment.admin_addr()).unwrap_or(ADDR_DEFAULT);
    match admin::ask(addr, method.clone(), &path_and_query(path, flags), String::new()) {
        Ok(answer) => say(&describe(&answer, &method), ExitCode::SUCCESS),
        Err(problem) => {
            complain(format_args!("{addr}: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn path_and_query(path: &str, flags: &Flags) -> String {
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("domain", &flags.domain)
        .append_pair("descriptor", &flags.descriptor)
        .finish();
    format!("{path}?{query}")
}

fn describe(answer: &Value, method: &Method) -> String {
    let counters = answer.get("counters").and_then(Value::as_array);
    counters.into_iter().flatten().map(|counter| line(counter, method)).collect()
}

fn line(counter: &Value, method: &Method) -> String {
    let text = |name: &str| counter.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(0);
    let (algorithm, limit) = (text("algorithm"), text("limit"));
    if let Some(problem) = counter.get("problem").and_then(Value::as_str) {
        let cleared = if *method == Method::POST { "; now 0" } else { "" };
        return format!("{algorithm} of {limit}: {problem}{cleared}\n");
    }
    let (used, left) = (number(counter, "used"), number(counter, "left"));
    if *method == Method::POST {
        return format!("{algorithm}: {used} of {limit} were used; now 0\n");
    }
    let reset = number(counter, "reset_ms").div_ceil(1000);
    let head = format!("{algorithm}: {used} used of {limit}, {left} left, resets in {reset} s\n");
    let remembered = counter.get("remembered").and_then(Value::as_array);
    let entry = |it: &Value| {
        let (at, hits) = (number(it, "at_ms"), number(it, "hits"));
        let caller = it.get("caller").and_then(Value::as_str).map(|caller| format!(" by {caller}"));
        format!("  {hits} at {}{}\n", instant(at), caller.unwrap_or_default())
    };
    head + &remembered.into_iter().flatten().map(entry).collect::<String>()
}

fn instant(millis: u64) -> String {
    let instant =
        i64::try_from(millis).ok().and_then(|it| jiff::Timestamp::from_millisecond(it).ok());
    instant.map_or_else(|| format!("{millis} ms"), |instant| instant.to_string())
}
