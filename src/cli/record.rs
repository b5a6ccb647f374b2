//! `tollkeeper record`: shows recorded calls, and makes recordings of access logs.

mod import;

use std::{path::PathBuf, process::ExitCode};

use serde_json::{Value, json};

use super::{
    admin::instant,
    output::{Ended, OutputFlag, printable_json, say, usage},
    recorded::{self, Call, Over, Recording},
};
use crate::{
    engine::{
        descriptor_syntax,
        request::{Descriptor, Entry, Hits, HitsMeaning},
        time::Timestamp,
    },
    members::present,
    text::printable::printable,
};

/// Output is written in parts of about this size.
const PART_BYTES: usize = 1 << 20;

#[derive(Debug, clap::Subcommand)]
pub(super) enum RecordAction {
    /// Print recorded calls in the order in which they were decided
    Show(ShowFlags),
    /// Make a recording of an access log whose lines are JSON objects, such as Envoy's
    Import(import::ImportFlags),
}

#[derive(Debug, clap::Args)]
pub(super) struct ShowFlags {
    /// Recorded files, or folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show only denied calls
    #[arg(long)]
    denied: bool,
    /// Show only calls from this time on, such as 2026-03-01T02:30:00Z
    #[arg(long, value_name = "TIME", value_parser = instant_of)]
    since: Option<Timestamp>,
    /// Show only calls before this time
    #[arg(long, value_name = "TIME", value_parser = instant_of)]
    until: Option<Timestamp>,
    /// Show only calls that were over a limit of this rule
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    /// Show only calls with an entry like this
    #[arg(long, value_name = "KEY=VALUE")]
    entry: Option<String>,
    #[command(flatten)]
    output: OutputFlag,
}

fn instant_of(text: &str) -> Result<Timestamp, &'static str> {
    let instant: Option<jiff::Timestamp> = text.parse().ok();
    let instant = instant.and_then(|instant| recorded::time(instant.as_millisecond()));
    instant.ok_or("must be a time with its zone, such as 2026-03-01T02:30:00Z")
}

pub(super) fn main(action: RecordAction) -> Ended {
    match action {
        RecordAction::Show(flags) => show(&flags),
        RecordAction::Import(flags) => import::main(&flags),
    }
}

fn show(flags: &ShowFlags) -> Ended {
    let entry = flags.entry.as_deref().map(descriptor_syntax::parse).transpose();
    let entry = entry.map_err(|problem| usage(format_args!("--entry: {problem}")))?;
    let mut recording = Recording::open(&flags.paths)?;
    let mut part = String::new();
    for call in recording.by_ref().filter(|call| flags.shows(call, entry.as_deref())) {
        part += &if flags.output.is_json() { json(&call) } else { text(&call) };
        if part.len() >= PART_BYTES {
            let code = say(&part, ExitCode::SUCCESS);
            if code != ExitCode::SUCCESS {
                return Ok(code);
            }
            part.clear();
        }
    }
    Ok(say(&part, recording.end()))
}

impl ShowFlags {
    fn shows(&self, call: &Call, entries: Option<&[Entry]>) -> bool {
        let has = |rule: &String| call.over.iter().any(|over| over.rule == *rule);
        let has_entries = |entries: &[Entry]| {
            let mut descriptors = call.request.descriptors.iter();
            descriptors.any(|one| entries.iter().all(|entry| one.entries.contains(entry)))
        };
        (!self.denied || call.denied)
            && self.since.is_none_or(|since| call.at >= since)
            && self.until.is_none_or(|until| call.at < until)
            && self.rule.as_ref().is_none_or(has)
            && entries.is_none_or(has_entries)
    }
}

fn json(call: &Call) -> String {
    let shown = |descriptor: &Descriptor| {
        let entries = descriptor_syntax::write(&descriptor.entries);
        json!({ "entries": entries, "hits": signed(descriptor.hits) })
    };
    let shown = present(json!({
        "at": instant(call.at.as_millis()),
        "domain": call.request.domain,
        "descriptors": call.request.descriptors.iter().map(shown).collect::<Value>(),
        "mode": mode(call.meaning),
        "denied": call.denied,
        "over": call.over,
        "hold": Some(&call.hold).filter(|hold| !hold.is_empty()),
        "without_store": call.without_store,
        "overridden": call.overridden,
    }));
    printable_json(&shown.to_string()) + "\n"
}

fn text(call: &Call) -> String {
    let descriptors = call.request.descriptors.iter().map(|descriptor| {
        let hits = signed(descriptor.hits);
        let hits = if hits == 1 { String::new() } else { format!(" ({hits} hits)") };
        descriptor_syntax::write(&descriptor.entries) + &hits
    });
    let descriptors: Vec<String> = descriptors.collect();
    let at = instant(call.at.as_millis());
    let domain = &call.request.domain;
    let mode = mode(call.meaning).map_or_else(String::new, |mode| mode.to_owned() + "  ");
    let verdict = if call.denied { "OVER_LIMIT" } else { "OK" };
    let mut line = format!("{at}  {domain}  {}  {mode}{verdict}", descriptors.join(" "));
    if call.denied && call.over.iter().all(|over| over.shadow) {
        line += "; by no limit, but by what its domain requires";
    }
    for Over { rule, limit, reset_ms, shadow, .. } in &call.over {
        let over = if *shadow { "over the shadow limit" } else { "over" };
        line += &format!("; {over} {limit} of {rule}, for {} s", reset_ms.div_ceil(1000));
    }
    if !call.hold.is_empty() {
        line += &format!("; holds {}", call.hold);
    }
    if call.without_store {
        line += "; without the store";
    }
    if call.overridden {
        line += "; under an override";
    }
    // A file from elsewhere may have line ends in any of it.
    printable(line.as_bytes()) + "\n"
}

/// The mode of a call of the API of our own, unless it takes hits.
const fn mode(meaning: HitsMeaning) -> Option<&'static str> {
    match meaning {
        HitsMeaning::Charged | HitsMeaning::Expected => None,
        HitsMeaning::Done => Some("DEBIT"),
        HitsMeaning::Part => Some("PART"),
        HitsMeaning::Lease => Some("LEASE"),
        HitsMeaning::Assigned => Some("ASSIGNED"),
        HitsMeaning::Checked => Some("CHECK"),
        HitsMeaning::Read => Some("READ"),
    }
}

/// Hits as the wire has them: negative ones are given back.
fn signed(hits: Hits) -> i64 {
    let number = |hits| i64::try_from(hits).unwrap_or(i64::MAX);
    match hits {
        Hits::Charge(hits) => number(hits),
        Hits::Refund(hits) => -number(hits),
        Hits::Check | Hits::Commit => 0,
    }
}
