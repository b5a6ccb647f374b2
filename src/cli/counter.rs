//! `tollkeeper counter`: shows, lists, resets or sets counters through a service's admin address.

use std::collections::HashSet;

use hyper::Method;
use serde_json::{Value, json};

use super::{
    admin::{AdminFlags, incomplete, instant, list, more_exist, number, path_and_query, text},
    output::{Ended, complain, usage},
};
use crate::{
    engine::{
        descriptor_syntax::{self, is_digest},
        request::Hits,
    },
    members::set_member,
    settings::{Environment, whole_numbers},
    text::{counted, duration::in_words, printable::printable},
};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Action {
    /// Print used, held and remaining hits, the reset, and the callers that a sliding_log remembers
    Show(CounterFlags),
    /// List the counters of a domain, in the order of their descriptors
    List(ListFlags),
    /// Set counters to zero, and print what was used until then
    Reset(ResetFlags),
    /// Set the used hits of one counter
    Set(SetFlags),
}

#[derive(Debug, clap::Args)]
pub(super) struct ListFlags {
    #[command(flatten)]
    server: ServerFlags,
    /// Descriptor with patterns, such as user=* or path=/login,user=a*; without it, all
    #[arg(value_name = "k=v,k=v")]
    pattern: Option<String>,
    /// List only counters that have used this part of their limit, such as --over=80; without a number, all of it
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "100", value_parser = whole_numbers(1_u64, 100))]
    over: Option<u64>,
    /// Maximum number of descriptors to list, 1 to 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = whole_numbers(1_u32, 1000), allow_negative_numbers = true)]
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
    /// Why, such as the name of an incident, for the audit
    #[arg(long, value_name = "TEXT")]
    because: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct SetFlags {
    #[command(flatten)]
    counter: CounterFlags,
    /// Number of used hits; may exceed the limit
    #[arg(long, value_name = "N", value_parser = whole_numbers(0, Hits::MAX), allow_negative_numbers = true)]
    used: u64,
    /// Which of several limits: its name, its algorithm, or a text such as "10 per minute"
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,
    /// Why, such as the name of an incident, for the audit
    #[arg(long, value_name = "TEXT")]
    because: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct CounterFlags {
    #[command(flatten)]
    server: ServerFlags,
    /// Descriptor, such as user=alice or path=/login,user=alice, or its digest; `\,` is a comma, `\xHH` any byte
    #[arg(value_name = "k=v,k=v")]
    descriptor: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct ServerFlags {
    #[command(flatten)]
    admin: AdminFlags,
    /// Domain of the rules
    #[arg(short, long)]
    domain: String,
}

pub(super) fn main(action: &Action, environment: &Environment) -> Ended {
    let (flags, descriptor) = match action {
        Action::Show(flags) => (&flags.server, Some(&flags.descriptor)),
        Action::List(flags) => (&flags.server, flags.pattern.as_ref()),
        Action::Reset(flags) => (&flags.counter.server, Some(&flags.counter.descriptor)),
        Action::Set(flags) => (&flags.counter.server, Some(&flags.counter.descriptor)),
    };
    if let Some(descriptor) = descriptor.filter(|text| !is_digest(text)) {
        let problem = |problem| format!("{}: {problem}", printable(descriptor.as_bytes()));
        descriptor_syntax::parse(descriptor).map_err(|error| usage(problem(error)))?;
    }
    if let Action::Reset(ResetFlags { matching: true, counter, .. }) = action
        && is_digest(&counter.descriptor)
    {
        return Err(usage("a digest is of one descriptor; leave out --matching"));
    }
    let because = match action {
        Action::Reset(ResetFlags { because, .. }) | Action::Set(SetFlags { because, .. }) => {
            because
        }
        Action::Show(_) | Action::List(_) => &None,
    };
    let domain = &*flags.domain;
    flags.admin.with_server(environment, |server| {
        let ask = |method: Method, path, parameters: &[(&str, &str)]| {
            let because = because.as_ref().filter(|_| method == Method::POST);
            let because = because.map(|because| ("because", because.as_str()));
            let parameters = [("domain", domain)].into_iter().chain(parameters.iter().copied());
            let parameters = parameters.chain(because);
            server.ask(method, &path_and_query(path, parameters), String::new())
        };
        let descriptor = descriptor.map(|descriptor| ("descriptor", descriptor.as_str()));
        let mut parameters: Vec<_> = descriptor.into_iter().collect();
        let (answer, method, remedy) = match action {
            Action::Show(_) => (ask(Method::GET, "/counters", &parameters)?, Method::GET, ""),
            Action::List(ListFlags { over, limit, .. }) => {
                let over = over.map_or("false".to_owned(), |percent| percent.to_string());
                let limit = limit.to_string();
                parameters.extend([("over", &*over), ("limit", &limit)]);
                (ask(Method::GET, LIST, &parameters)?, Method::GET, "raise --limit")
            }
            Action::Reset(ResetFlags { matching: false, counter, .. }) => {
                if counter.descriptor.contains('*') {
                    complain("`*` is a literal star without --matching");
                }
                (ask(Method::POST, "/counters/reset", &parameters)?, Method::POST, "")
            }
            Action::Reset(ResetFlags { yes, .. }) => {
                parameters.extend([("whole", "true"), ("limit", "1000")]);
                let matching = || ask(Method::GET, LIST, &parameters);
                if !yes {
                    return Ok(flags.admin.show(server, &matching()?, |listed| {
                        let hint = match list(listed, "counters") {
                            [] => "",
                            _ => "nothing was reset; to reset these, add --yes\n",
                        };
                        describe(listed, &Method::GET, "--yes resets them too") + hint
                    }));
                }
                let reset =
                    |parameters: &[(&str, &str)]| ask(Method::POST, "/counters/reset", parameters);
                (reset_all(matching, reset)?, Method::POST, "repeat the command")
            }
            Action::Set(SetFlags { used, limit, .. }) => {
                let used = used.to_string();
                parameters.push(("used", &used));
                parameters.extend(limit.as_ref().map(|limit| ("limit", limit.as_str())));
                (ask(Method::POST, "/counters/set", &parameters)?, Method::GET, "")
            }
        };
        Ok(flags.admin.show(server, &answer, |answer| describe(answer, &method, remedy)))
    })
}

const LIST: &str = "/counters/list";

/// Resets the counters of all descriptors that match, after the first also beyond failures. A listing shows some of them,
/// so there is another as long as one has others.
fn reset_all(
    matching: impl Fn() -> Result<Value, String>,
    reset: impl Fn(&[(&str, &str)]) -> Result<Value, String>,
) -> Result<Value, String> {
    let (mut tried, mut counters, mut incomplete) = (HashSet::new(), Vec::new(), None);
    loop {
        let mut listed = match matching() {
            Ok(listed) => listed,
            Err(problem) if counters.is_empty() => return Err(problem),
            Err(problem) => json!({ "incomplete": format!("not all are reset: {problem}") }),
        };
        incomplete = incomplete.or_else(|| listed.get("incomplete").cloned());
        let before = tried.len();
        for counter in list(&listed, "counters") {
            let descriptor = text(counter, "descriptor");
            if !tried.insert(descriptor.to_owned()) {
                continue;
            }
            let mut answer = match reset(&[("descriptor", descriptor)]) {
                Ok(answer) => answer,
                Err(problem) if counters.is_empty() => return Err(problem),
                Err(problem) => {
                    json!({ "incomplete": format!("not all are reset: {descriptor}: {problem}") })
                }
            };
            incomplete = incomplete.or_else(|| answer.get("incomplete").cloned());
            if let Some(Value::Array(of_descriptor)) = answer.get_mut("counters") {
                for mut counter in of_descriptor.drain(..) {
                    set_member(&mut counter, "descriptor", descriptor);
                    counters.push(counter);
                }
            }
        }
        if has_more(&listed) && incomplete.is_none() {
            if tried.len() > before {
                continue;
            }
            incomplete = Some("not all are reset: a listing shows no others".into());
        }
        set_member(&mut listed, "counters", counters);
        if let Some(incomplete) = incomplete {
            set_member(&mut listed, "incomplete", incomplete);
        }
        return Ok(listed);
    }
}

/// Whether a listing may lack some.
fn has_more(listed: &Value) -> bool {
    listed.get("more").and_then(Value::as_bool) == Some(true)
}

/// What a listing does not show, in lines.
fn left_out(answer: &Value, remedy: &str) -> String {
    let mut lines = String::new();
    if has_more(answer) {
        lines += &more_exist(remedy);
    }
    match number(answer, "digests") {
        0 => {}
        keys => {
            lines +=
                &format!("not shown: {keys} keys with values that are secret or over 128 bytes\n")
        }
    }
    lines
}

fn describe(answer: &Value, method: &Method, remedy: &str) -> String {
    let counters = list(answer, "counters");
    let mut text = String::new();
    if counters.is_empty() && !has_more(answer) && incomplete(answer).is_none() {
        text += "no counter matches\n";
    }
    for counter in counters {
        if let Some(descriptor) = counter.get("descriptor").and_then(Value::as_str) {
            text += &format!("{descriptor}: ");
        }
        text += &describe_counter(counter, method);
    }
    text + &left_out(answer, remedy)
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
    let held = match number(counter, "open_holds") {
        0 => String::new(),
        open => {
            let holds = counted(usize::try_from(open).unwrap_or(usize::MAX), "open hold");
            format!(", {} held by {holds}", number(counter, "held"))
        }
    };
    let was = counter.get("was").map(|was| format!(" (was {was})")).unwrap_or_default();
    let until = match (counter.get("closed"), number(counter, "reset_ms").div_ceil(1000)) {
        (Some(_), seconds) => format!(", closed by `ban_for`, opens in {}", in_words(seconds)),
        (None, 0) => String::new(),
        (None, seconds) => format!(", resets in {}", in_words(seconds)),
    };
    let leased = match counter.get("credit").and_then(Value::as_u64) {
        Some(credit) => format!(", with the credit of replicas ({credit} of this one)"),
        None => String::new(),
    };
    let assigned = match counter.get("assigned").and_then(Value::as_u64) {
        Some(assigned) => format!(", {assigned} assigned to proxies and not used yet"),
        None => String::new(),
    };
    let mut lines = format!(
        "{algorithm}: {used} used{was} of {limit}{held}{leased}{assigned}, {remaining} left{until}\n"
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_reset_of_several_goes_on_after_a_failure_and_says_what_it_has_reset() {
        let listed = |names: &[&str]| {
            let counters = names.iter().map(|name| json!({ "descriptor": name }));
            json!({ "counters": counters.collect::<Vec<_>>() })
        };
        let reset = |parameters: &[(&str, &str)]| match parameters[0].1 {
            bad if bad.starts_with('b') => Err("no limit applies".to_owned()),
            _ => Ok(json!({ "counters": [{ "used": 1 }] })),
        };
        let answer = reset_all(|| Ok(listed(&["a", "b", "c"])), reset).unwrap();
        let incomplete = "not all are reset: b: no limit applies";
        let counters = json!([{ "used": 1, "descriptor": "a" }, { "used": 1, "descriptor": "c" }]);
        assert_eq!(answer, json!({ "counters": counters, "incomplete": incomplete }));
        assert_eq!(reset_all(|| Ok(listed(&["b"])), reset), Err("no limit applies".to_owned()));
    }

    #[test]
    fn a_reset_of_several_ends_when_none_is_left_or_only_those_that_count_again() {
        let listed =
            |name: &str, more| json!({ "counters": [{ "descriptor": name }], "more": more });
        let check = |listings: &[Value], reset: usize, incomplete: Option<&str>| {
            let next = Cell::new(0);
            let matching = || {
                let index = next.replace(next.get() + 1);
                listings.get(index).cloned().ok_or_else(|| "gone".to_owned())
            };
            let answer =
                reset_all(matching, |_| Ok(json!({ "counters": [{ "used": 1 }] }))).unwrap();
            assert_eq!(list(&answer, "counters").len(), reset, "{answer}");
            assert_eq!(super::incomplete(&answer), incomplete);
        };
        let (a, b) = (listed("a", true), listed("b", true));
        check(&[a.clone(), b.clone(), listed("c", false)], 3, None);
        check(&[a.clone(), b, a.clone()], 2, Some("not all are reset: a listing shows no others"));
        check(&[a], 1, Some("not all are reset: gone"));
    }
}
