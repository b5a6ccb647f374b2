//! `tollkeeper override`: sets, lists, shows and undoes overrides through a service's admin address.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use hyper::Method;
use serde_json::{Value, json};

use super::{
    admin::{AdminFlags, AdminServer, list, number, path_and_query, text},
    output::{Ended, say, usage},
};
use crate::{
    engine::request::Hits,
    members::{present, set_member},
    settings::{Environment, whole_numbers},
    text::duration::in_words,
};

#[derive(Debug, clap::Subcommand)]
pub(super) enum OverrideAction {
    /// Set an override; first prints its effect on the calls of the last minute, and at a terminal asks to confirm
    Set(SetOverrideFlags),
    /// List the overrides in force
    List(ListOverrideFlags),
    /// Show one override
    Show(IdFlags),
    /// End an override now
    Undo(UndoFlags),
}

#[derive(Debug, clap::Args)]
pub(super) struct SetOverrideFlags {
    #[command(flatten)]
    admin: AdminFlags,
    /// Domain of the rules
    #[arg(short, long)]
    domain: String,
    /// Descriptor, such as user=alice or path=/login,user=a*, or a digest; a star is any text, `\,` a comma, `\xHH` any byte
    #[arg(value_name = "k=v,k=v")]
    descriptor: String,
    #[command(flatten)]
    what: What,
    /// How long, 1s to 30d
    #[arg(long = "for", value_name = "TIME")]
    lasts: String,
    /// Why, such as the name of an incident
    #[arg(long, value_name = "TEXT")]
    because: String,
    /// Print the effect, and set nothing
    #[arg(long)]
    dry_run: bool,
    /// Set it without confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct What {
    /// Another number for the limit of the rule; 0 admits nothing
    #[arg(long, value_name = "N", value_parser = whole_numbers(0, Hits::MAX), allow_negative_numbers = true)]
    limit: Option<u64>,
    /// Multiply the limits of the rule, 2 to 1000000
    #[arg(long, value_name = "N", value_parser = whole_numbers(2_u64, 1_000_000), allow_negative_numbers = true)]
    times: Option<u64>,
    /// Let all calls pass, and charge nothing
    #[arg(long)]
    allow: bool,
    /// Deny all calls, and charge nothing
    #[arg(long)]
    ban: bool,
    /// Count, but deny nothing
    #[arg(long)]
    shadow: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ListOverrideFlags {
    #[command(flatten)]
    admin: AdminFlags,
    /// Show only overrides of this domain
    #[arg(short, long)]
    domain: Option<String>,
    /// Show only overrides whose id, descriptor or reason contains this text
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct IdFlags {
    #[command(flatten)]
    admin: AdminFlags,
    /// Id of the override, as `set` and `list` print it
    id: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct UndoFlags {
    #[command(flatten)]
    of: IdFlags,
    /// Why it ends
    #[arg(long, value_name = "TEXT")]
    because: Option<String>,
}

pub(super) fn main(action: &OverrideAction, environment: &Environment) -> Ended {
    let one = |flags: &IdFlags, method: Method, because: Option<&String>, ended: &str| {
        if flags.id.is_empty() || !flags.id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(usage("ID: must be letters and digits, as `override list` prints it"));
        }
        flags.admin.with_server(environment, |server| {
            let because = because.map(|because| ("because", because.as_str()));
            let path = path_and_query(&format!("/overrides/{}", flags.id), because);
            let answer = server.ask(method, &path, String::new())?;
            let one = answer.get("override").unwrap_or(&answer);
            let again = also(&answer, "in_force_again", "in force again: ");
            Ok(flags.admin.show(server, &answer, |_| ended.to_owned() + &line(one) + &again))
        })
    };
    match action {
        OverrideAction::Set(flags) => {
            flags.admin.with_server(environment, |server| set(server, flags))
        }
        OverrideAction::List(flags) => {
            flags.admin.with_server(environment, |server| list_all(server, flags))
        }
        OverrideAction::Show(flags) => one(flags, Method::GET, None, ""),
        OverrideAction::Undo(UndoFlags { of, because }) => {
            one(of, Method::DELETE, because.as_ref(), "ended: ")
        }
    }
}

fn set(server: &AdminServer<'_>, flags: &SetOverrideFlags) -> Result<ExitCode, String> {
    let SetOverrideFlags { domain, descriptor, lasts, because, .. } = flags;
    let What { limit, times, allow, ban, shadow: _ } = flags.what;
    let (name, what) = match (limit, times) {
        (Some(limit), _) => ("limit", json!(limit)),
        (_, Some(times)) => ("times", json!(times)),
        _ if allow => ("action", json!("allow")),
        _ if ban => ("action", json!("ban")),
        _ => ("action", json!("shadow")),
    };
    let ask = |dry_run: bool| {
        let mut body = json!({
            "domain": domain, "descriptor": descriptor, "for": lasts, "because": because,
            "dry_run": dry_run,
        });
        set_member(&mut body, name, what.clone());
        server.ask(Method::POST, "/overrides", body.to_string())
    };
    let is_asked = !flags.yes && io::stdin().is_terminal() && io::stdout().is_terminal();
    if flags.dry_run || is_asked {
        let answer = ask(true)?;
        let code = flags.admin.show(server, &answer, effect);
        if flags.dry_run {
            return Ok(code);
        }
        if !is_confirmed() {
            return Ok(say("nothing was set\n", ExitCode::FAILURE));
        }
    }
    let answer = ask(false)?;
    Ok(flags.admin.show(server, &answer, |answer| {
        let effect = if is_asked { String::new() } else { effect(answer) };
        effect + "set: " + &line(answer.get("override").unwrap_or(answer))
    }))
}

fn is_confirmed() -> bool {
    let mut answer = String::new();
    let asked =
        write!(io::stderr(), "set it? [y/N] ").and_then(|()| io::stdin().read_line(&mut answer));
    asked.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

fn list_all(server: &AdminServer<'_>, flags: &ListOverrideFlags) -> Result<ExitCode, String> {
    let filters = [("domain", &flags.domain), ("text", &flags.text)];
    let (overrides, last) = server.ask_pages("/overrides", "overrides", filters, None)?;
    let (known, problem) = (last.get("known"), last.get("problem"));
    let unknown = "the overrides are not known: the store has not shown them yet";
    let incomplete = (known == Some(&Value::Bool(false))).then_some(unknown);
    let answer = json!({
        "overrides": overrides, "known": known, "incomplete": incomplete, "problem": problem,
    });
    let answer = present(answer);
    Ok(flags.admin.show(server, &answer, |answer| {
        let lines = match list(answer, "overrides") {
            [] if incomplete.is_some() => String::new(),
            [] if flags.domain.is_none() && flags.text.is_none() => {
                "no override is in force\n".to_owned()
            }
            [] => "no override matches\n".to_owned(),
            overrides => overrides.iter().map(line).collect(),
        };
        match text(answer, "problem") {
            "" => lines,
            problem => format!("{lines}note: {problem}\n"),
        }
    }))
}

/// The other override that an answer names, as a line.
fn also(answer: &Value, name: &str, what: &str) -> String {
    let other = answer.get(name).filter(|other| other.is_object());
    other.map(|other| what.to_owned() + &line(other)).unwrap_or_default()
}

fn line(one: &Value) -> String {
    let [id, action, descriptor, domain, because, by] =
        ["id", "action", "descriptor", "domain", "because", "by"].map(|name| text(one, name));
    let value = one.get("value").map(|value| format!(" {value}")).unwrap_or_default();
    let left = one.get("seconds_left").and_then(Value::as_f64).unwrap_or(0.0);
    let left = in_words(std::time::Duration::from_secs_f64(left.clamp(0.0, 1e9)).as_secs());
    let until = text(one, "until");
    let hidden = one.get("hidden_by").and_then(Value::as_str);
    let hidden = hidden.map(|id| format!(", hidden by {id}")).unwrap_or_default();
    format!(
        "{id}: {action}{value} for {descriptor} in {domain}{hidden}, {left} left, until {until}, by {by}: {because}\n"
    )
}

/// What an override means for the calls of the last minute, in lines.
fn effect(answer: &Value) -> String {
    let effect = answer.get("effect").unwrap_or(&Value::Null);
    let numbers = |value: &Value| {
        let names = ["decisions", "denied", "would_be_denied", "would_be_denied_max"];
        let [decisions, denied, least, most] = names.map(|name| number(value, name));
        let would_be =
            if least < most { format!("{least} to {most}") } else { format!("about {least}") };
        (decisions, denied, would_be)
    };
    let (decisions, denied, would_be) = numbers(effect);
    let seconds = effect.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
    let mut lines = format!(
        "in the last {seconds:.0} s: {decisions} decisions, {denied} denied; with the override, {would_be} denied\n"
    );
    for key in list(effect, "keys") {
        let (decisions, denied, would_be) = numbers(key);
        let [name, limit, then] = ["key", "limit", "limit_then"].map(|name| text(key, name));
        lines += &format!(
            "  {name}: {limit}, then {then}; {decisions} decisions, {denied} denied, then {would_be}\n"
        );
    }
    for name in ["note", "hint"] {
        match text(effect, name) {
            "" => {}
            text => lines += &format!("{name}: {text}\n"),
        }
    }
    lines + &also(answer, "supersedes", "supersedes: ")
}
