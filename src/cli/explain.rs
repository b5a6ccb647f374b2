//! `tollkeeper explain`: which rules a call would meet, and why. It asks no service and touches no
//! counter.

use std::{path::PathBuf, process::ExitCode};

use serde_json::Value;

use crate::{
    engine::{
        notation,
        request::{Descriptor, Hits, Request},
    },
    explain,
    printable::printable,
    rules::{self, Basis},
    store::system_clock,
};

use super::{USAGE, complain, say};

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// A file or folder of rules; may be repeated [default: the shipped example]
    #[arg(long, value_name = "PATH")]
    rules: Vec<PathBuf>,
    /// The domain of the rules
    #[arg(long)]
    domain: String,
    /// Hits for each descriptor: 0 looks without counting
    #[arg(long, value_name = "N", default_value_t = 1)]
    hits: u64,
    /// Descriptors, such as user=alice or path=/login,user=alice; `\,` is a comma, `\xHH` any byte
    #[arg(required = true, value_name = "k=v,k=v")]
    descriptors: Vec<String>,
}

pub(super) fn main(flags: &Flags) -> ExitCode {
    let rules = match rules::load(&flags.rules, Basis::default()) {
        Ok(rules) => rules.rules,
        Err(problems) => {
            problems.iter().for_each(complain);
            return ExitCode::FAILURE;
        }
    };
    match request(flags) {
        Ok(request) => {
            let told = explain::describe(&rules, &request, None, system_clock());
            say(&text(&told), ExitCode::SUCCESS)
        }
        Err(problem) => {
            complain(problem);
            ExitCode::from(USAGE)
        }
    }
}

fn request(flags: &Flags) -> Result<Request, String> {
    let hits = match flags.hits.min(Hits::MAX) {
        0 => Hits::Look,
        hits => Hits::Take(hits),
    };
    let descriptor = |text: &String| {
        let entries = notation::parse(text)
            .map_err(|problem| format!("{}: {problem}", printable(text.as_bytes())))?;
        Ok(Descriptor { entries, hits, limit: None })
    };
    let descriptors = flags.descriptors.iter().map(descriptor).collect::<Result<_, String>>()?;
    Ok(Request { domain: flags.domain.clone(), descriptors })
}

fn text(told: &Value) -> String {
    let word = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let items = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let mut text = String::new();
    let descriptors = items(told, "descriptors");
    if descriptors.is_empty() {
        text += &format!("domain {}\n", word(told, "domain"));
    }
    for descriptor in descriptors {
        text += &format!("{}\n", word(&descriptor, "descriptor"));
        for step in items(&descriptor, "steps") {
            text += &format!("  {}: {}", word(&step, "entry"), word(&step, "taken"));
            let passed_over = items(&step, "passed_over");
            if !passed_over.is_empty() {
                let names: Vec<&str> = passed_over.iter().filter_map(Value::as_str).collect();
                text += &format!("; passed over: {}", names.join(", "));
            }
            text.push('\n');
        }
        text += &format!("  meets {}", word(&descriptor, "met"));
        if descriptor.get("rule").is_some() {
            let (rule, place) = (word(&descriptor, "rule"), word(&descriptor, "written_at"));
            text += &format!(": {rule}, written at {place}");
        }
        text.push('\n');
        for charge in items(&descriptor, "charges") {
            let [limit, algorithm, says] =
                ["limit", "algorithm", "says"].map(|it| word(&charge, it));
            text += &format!("  {limit} by {algorithm} ({says})\n");
            text +=
                &format!("    charges {} at {}\n", word(&charge, "charges"), word(&charge, "key"));
        }
    }
    text
}
