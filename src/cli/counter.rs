//! `tollkeeper counter`: shows, lists or resets counters through a service's admin address.

use std::process::ExitCode;

use hyper::Method;
use serde_json::Value;

use super::{
    admin::{self, AdminServer},
    output::{USAGE, complain},
};
use crate::{
    engine::descriptor_syntax,
    settings::Environment,
    text::{duration::in_words, printable::printable},
};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Action {
    /// Print what is used, held and left, when it resets, and the callers that a sliding_log remembers
    Show(CounterFlags),
    /// List the counters of a domain, in the order of their descriptors
    List(ListFlags),
    /// Set counters to zero, and print what was used until then
    Reset(ResetFlags),
}

#[derive(Debug, clap::Args)]
pub(super) struct ListFlags {
    #[command(flatten)]
    server: ServerFlags,
    /// Descriptor with patterns, such as user=* or path=/login,user=a*; without it, all
    #[arg(value_name = "k=v,k=v")]
    pattern: Option<String>,
    /// List only counters without remaining hits
    #[arg(long)]
    over: bool,
    /// Maximum number of descriptors to list, 1 to 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: u32,
}

#[derive(Debug, clap::Args)]
pub(super) struct ResetFlags {
    #[command(flatten)]
    counter: CounterFlags,
    /// Reset all counters whose descriptors match: a star is any text, as in user=*
    #[arg(long)]
    matching: bool,
    /// With --matching: reset them; without it, they are only listed
    #[arg(long, requires = "matching")]
    yes: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct CounterFlags {
    #[command(flatten)]
    server: ServerFlags,
    /// Descriptor, such as user=alice or path=/login,user=alice; `\,` is a comma, `\xHH` any byte
    #[arg(value_name = "k=v,k=v")]
    descriptor: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct ServerFlags {
    /// Admin address of the service [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<String>,
    #[command(flatten)]
    access: admin::AdminAccess,
    /// Domain of the rules
    #[arg(long)]
    domain: String,
}

pub(super) fn main(action: &Action, environment: &Environment) -> ExitCode {
    let (flags, descriptor) = match action {
        Action::Show(flags) => (&flags.server, Some(&flags.descriptor)),
        Action::List(flags) => (&flags.server, flags.pattern.as_ref()),
        Action::Reset(flags) => (&flags.counter.server, Some(&flags.counter.descriptor)),
    };
    if let Some(descriptor) = descriptor
        && let Err(problem) = descriptor_syntax::parse(descriptor)
    {
        complain(format_args!("{}: {problem}", printable(descriptor.as_bytes())));
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
    let domain = &flags.domain;
    let done = match action {
        Action::Show(flags) => one(&server, &Method::GET, domain, &flags.descriptor),
        Action::List(flags) => list_counters(&server, domain, flags),
        Action::Reset(ResetFlags { counter, matching: false, .. }) => {
            one(&server, &Method::POST, domain, &counter.descriptor)
        }
        Action::Reset(flags) => reset_matching(&server, domain, flags),
    };
    done.unwrap_or_else(|problem| {
        complain(problem);
        ExitCode::FAILURE
    })
}

/// Shows the counters of one descriptor, or resets them.
fn one(
    server: &AdminServer<'_>,
    method: &Method,
    domain: &str,
    descriptor: &str,
) -> Result<ExitCode, String> {
    let path = if *method == Method::POST { "/counters/reset" } else { "/counters" };
    let parameters = [("domain", domain), ("descriptor", descriptor)];
    let answer = server.ask(method.clone(), &path_and_query(path, parameters), String::new())?;
    let text = describe(&answer, method);
    Ok(server.say(&text, admin::incomplete(&answer), ExitCode::SUCCESS))
}

fn list_counters(
    server: &AdminServer<'_>,
    domain: &str,
    flags: &ListFlags,
) -> Result<ExitCode, String> {
    let (over, limit) = (flags.over.to_string(), flags.limit.to_string());
    let mut parameters = vec![("domain", domain), ("over", &over), ("limit", &limit)];
    parameters.extend(flags.pattern.as_deref().map(|pattern| ("descriptor", pattern)));
    let answer = server.ask(Method::GET, &path_and_query(LIST, parameters), String::new())?;
    let text = describe(&answer, &Method::GET) + &left_out(&answer);
    Ok(server.say(&text, admin::incomplete(&answer), ExitCode::SUCCESS))
}

/// Resets the counters of all descriptors that match, up to the most that a listing shows.
fn reset_matching(
    server: &AdminServer<'_>,
    domain: &str,
    flags: &ResetFlags,
) -> Result<ExitCode, String> {
    let parameters =
        [("domain", domain), ("descriptor", &flags.counter.descriptor), ("limit", "1000")];
    let answer = server.ask(Method::GET, &path_and_query(LIST, parameters), String::new())?;
    let mut output = String::new();
    if !flags.yes {
        output = describe(&answer, &Method::GET) + &left_out(&answer);
        output += "nothing was reset; to reset these, add --yes\n";
        return Ok(server.say(&output, admin::incomplete(&answer), ExitCode::SUCCESS));
    }
    let mut descriptors: Vec<&str> =
        list(&answer, "counters").iter().map(|counter| text(counter, "descriptor")).collect();
    descriptors.dedup();
    let mut incomplete = None;
    for descriptor in descriptors {
        let parameters = [("domain", domain), ("descriptor", descriptor)];
        let path = path_and_query("/counters/reset", parameters);
        let answer = server.ask(Method::POST, &path, String::new())?;
        for counter in list(&answer, "counters") {
            output += &format!("{descriptor}: {}", describe_counter(counter, &Method::POST));
        }
        incomplete = incomplete.or(admin::incomplete(&answer).map(str::to_owned));
    }
    output += &left_out(&answer);
    Ok(server.say(&output, incomplete.as_deref(), ExitCode::SUCCESS))
}

const LIST: &str = "/counters/list";

fn path_and_query<'a>(
    path: &str,
    parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    format!("{path}?{}", query.extend_pairs(parameters).finish())
}

/// What a listing does not show, in lines.
fn left_out(answer: &Value) -> String {
    let mut lines = String::new();
    if answer.get("more").and_then(Value::as_bool) == Some(true) {
        lines += "there are more\n";
    }
    match number(answer, "digests") {
        0 => {}
        keys => lines += &format!("not shown: {keys} keys with values over 128 bytes\n"),
    }
    lines
}

fn describe(answer: &Value, method: &Method) -> String {
    let mut text = String::new();
    for counter in list(answer, "counters") {
        if let Some(descriptor) = counter.get("descriptor").and_then(Value::as_str) {
            text += &format!("{descriptor}: ");
        }
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
    let resets_in = in_words(number(counter, "reset_ms").div_ceil(1000));
    let held = match counter.get("open_holds").and_then(Value::as_u64) {
        Some(open) => format!(", {} held by {open} open holds", number(counter, "held")),
        None => String::new(),
    };
    let mut lines = format!(
        "{algorithm}: {used} used of {limit}{held}, {remaining} left, resets in {resets_in}\n"
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
