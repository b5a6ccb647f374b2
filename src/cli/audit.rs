//! `tollkeeper audit`: who changed what on a service's admin address.

use serde_json::{Value, json};

use super::{
    admin::{AdminFlags, instant, list, more_exist, number, text},
    output::Ended,
};
use crate::settings::{Environment, whole_numbers};

#[derive(Debug, clap::Args)]
pub(super) struct AuditFlags {
    #[command(flatten)]
    admin: AdminFlags,
    /// Maximum number of entries, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole_numbers(1_usize, 10_000), allow_negative_numbers = true)]
    limit: usize,
    /// Show only entries of clients whose name contains this text
    #[arg(long, value_name = "TEXT")]
    who: Option<String>,
    /// Show only entries that contain this text
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
}

pub(super) fn main(flags: &AuditFlags, environment: &Environment) -> Ended {
    flags.admin.with_server(environment, |server| {
        let filters = [("who", &flags.who), ("text", &flags.text)];
        let (entries, last) = server.ask_pages("/audit", "entries", filters, Some(flags.limit))?;
        let answer = json!({ "entries": entries, "more": last.get("more") });
        Ok(flags.admin.show(server, &answer, |answer| {
            let lines = list(answer, "entries").iter().map(line).collect::<String>();
            let more = match text(answer, "more") {
                "" => String::new(),
                _ => more_exist("raise --limit"),
            };
            if lines.is_empty() { "no entry\n".to_owned() } else { lines + &more }
        }))
    })
}

fn line(entry: &Value) -> String {
    let (at, [who, action, outcome]) = (
        instant(number(entry, "at_ms")),
        ["who", "action", "outcome"].map(|name| text(entry, name)),
    );
    let mut details = Vec::new();
    for (name, value) in entry.as_object().into_iter().flatten() {
        match &**name {
            "id" | "at_ms" | "who" | "action" | "outcome" => {}
            "until_ms" => details.push(format!("until {}", instant(number(entry, "until_ms")))),
            _ => match value {
                Value::Null => {}
                Value::String(text) => details.push(format!("{name} {text}")),
                other => details.push(format!("{name} {other}")),
            },
        }
    }
    let details =
        if details.is_empty() { String::new() } else { "; ".to_owned() + &details.join(", ") };
    format!("{at}  {who}  {action}: {outcome}{details}\n")
}
