//! `tollkeeper record import`: the calls that a proxy would have made, from the lines of its access log.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::PathBuf,
    process::ExitCode,
};

use serde_json::{Map, Value};

use crate::{
    cli::{
        output::{Ended, complain, failure, say, usage},
        recorded::{NewRecording, time},
    },
    engine::{
        descriptor_syntax,
        request::{Entry, check_entries},
        time::Timestamp,
    },
    text::{counted, printable::printable},
};

/// Numbers from here on are milliseconds: as seconds, they would be in the year 5138.
const MILLIS_FROM: f64 = 1e11;

/// Most bad lines that are named.
const NAMED_MAX: usize = 10;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ImportFlags {
    /// Access log; `-` is standard input
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Domain of the calls
    #[arg(short, long, value_name = "NAME")]
    domain: String,
    /// Descriptor of each call, such as user={x_user},path={path}: braces stand for fields of the line. It is left out where
    /// one is missing, as Envoy does
    #[arg(long, required = true, value_name = "KEY=VALUE,…")]
    descriptor: Vec<String>,
    /// Field with the time of a call: a time with its zone, or a number of seconds or milliseconds since 1970
    #[arg(long, value_name = "FIELD", default_value = "start_time")]
    time: String,
    /// File of the recording; must not exist
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// What became of the lines.
#[derive(Default)]
struct Lines {
    calls: usize,
    /// Without a descriptor.
    empty: usize,
    bad: usize,
}

pub(super) fn main(flags: &ImportFlags) -> Ended {
    let templates = flags.descriptor.iter().map(descriptor_syntax::parse);
    let templates: Vec<Vec<Entry>> = templates
        .collect::<Result<_, _>>()
        .map_err(|problem| usage(format_args!("--descriptor: {problem}")))?;
    let name = flags.log.display();
    let log: Box<dyn BufRead> = match flags.log.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => {
            let file = File::open(&flags.log);
            Box::new(BufReader::new(
                file.map_err(|error| failure(format_args!("{name}: {error}")))?,
            ))
        }
    };
    if flags.to.exists() {
        return Err(failure(format_args!(
            "{}: already exists; --to must name a new file",
            flags.to.display()
        )));
    }
    if flags.domain.is_empty() {
        return Err(usage("--domain: must not be empty"));
    }
    for (index, template) in templates.iter().enumerate() {
        check_entries(index, template.len()).map_err(usage)?;
        for entry in template {
            let problem = match std::str::from_utf8(&entry.value) {
                Err(_) => "the value is not UTF-8",
                Ok(value) if !has_pairs(value) => "a brace is not closed",
                Ok(_) => continue,
            };
            let key = printable(&entry.key);
            return Err(usage(format_args!("--descriptor: {key}: {problem}")));
        }
    }
    let (mut recording, mut lines) = (NewRecording::default(), Lines::default());
    for (line, number) in log.split(b'\n').zip(1_u64..) {
        let line = line.map_err(|error| failure(format_args!("{name}: {error}")))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let added = call(&line, &templates, &flags.time).and_then(|(at, descriptors)| {
            let has_any = !descriptors.is_empty();
            if has_any {
                recording.add(at, &flags.domain, descriptors)?;
            }
            Ok(has_any)
        });
        match added {
            Ok(true) => lines.calls += 1,
            Ok(false) => lines.empty += 1,
            Err(problem) => {
                lines.bad += 1;
                if lines.bad <= NAMED_MAX {
                    complain(format_args!("{name}:{number}: {problem}"));
                }
            }
        }
    }
    let written = if lines.calls > 0 { recording.write(&flags.to) } else { Ok(()) };
    written.map_err(|error| failure(format_args!("{}: {error}", flags.to.display())))?;
    let Lines { calls, empty, bad } = lines;
    let code = if bad == 0 && calls > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if bad > NAMED_MAX {
        complain(format_args!("{} in all", counted(bad, "bad line")));
    }
    let (calls, empty) = (counted(calls, "call"), counted(empty, "line"));
    Ok(say(&format!("{calls}, {empty} without a descriptor\n"), code))
}

/// The call of a line: its time, and the descriptors whose fields the line has.
fn call(
    line: &[u8],
    templates: &[Vec<Entry>],
    time_field: &str,
) -> Result<(Timestamp, Vec<Vec<Entry>>), String> {
    let fields: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|error| format!("the line must be a JSON object: {error}"))?;
    let at = fields.get(time_field).ok_or_else(|| {
        format!("the line must have the field {time_field}, or --time must name its time")
    })?;
    let at = instant(at).ok_or_else(|| format!("{time_field}: {at} is no time"))?;
    Ok((at, templates.iter().filter_map(|template| filled(template, &fields)).collect()))
}

fn instant(value: &Value) -> Option<Timestamp> {
    let number = match value {
        Value::String(text) => match text.parse::<jiff::Timestamp>() {
            Ok(instant) => return time(instant.as_millisecond()),
            Err(_) => text.parse().ok()?,
        },
        number => number.as_f64()?,
    };
    let seconds = if number < MILLIS_FROM { number } else { number / 1000.0 };
    time(jiff::SignedDuration::try_from_secs_f64(seconds).ok()?.as_millis())
}

/// Whether each brace that opens is closed.
fn has_pairs(value: &str) -> bool {
    let mut rest = value;
    while let Some((_, inner)) = rest.split_once('{') {
        let Some((_, after)) = inner.split_once('}') else { return false };
        rest = after;
    }
    true
}

/// The entries with the fields of a line; `None` if one is missing or empty.
fn filled(template: &[Entry], fields: &Map<String, Value>) -> Option<Vec<Entry>> {
    let entry = |entry: &Entry| {
        let mut value = String::new();
        let mut rest = std::str::from_utf8(&entry.value).ok()?;
        while let Some((before, after)) = rest.split_once('{') {
            let (field, after) = after.split_once('}')?;
            value += before;
            value += &match fields.get(field)? {
                Value::String(text) if !text.is_empty() && text != "-" => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(is_so) => is_so.to_string(),
                _ => return None,
            };
            rest = after;
        }
        value += rest;
        Some(Entry { key: entry.key.clone(), value: value.into() })
    };
    template.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_the_descriptors_whose_fields_it_has() {
        let templates = ["user={x_user}", "path={path},method=m-{method}"]
            .map(|text| descriptor_syntax::parse(text).unwrap());
        let descriptors = |line: &str| {
            let (at, descriptors) = call(line.as_bytes(), &templates, "start_time").unwrap();
            let texts: Vec<String> =
                descriptors.iter().map(|one| descriptor_syntax::write(one)).collect();
            (at.as_millis(), texts)
        };
        let line = r#"{"start_time": "2026-03-01T00:00:00.5Z", "x_user": "alice", "path": "/a", "method": "GET"}"#;
        assert_eq!(
            descriptors(line),
            (1_772_323_200_500, vec!["user=alice".to_owned(), "path=/a,method=m-GET".to_owned()])
        );
        let line = r#"{"start_time": 1772323200.5, "x_user": null, "path": "-", "method": "GET"}"#;
        assert_eq!(descriptors(line), (1_772_323_200_500, vec![]));
        let line = r#"{"start_time": "1772323200500", "x_user": 7}"#;
        assert_eq!(descriptors(line), (1_772_323_200_500, vec!["user=7".to_owned()]));
        for bad in ["[1]", "{}", r#"{"start_time": "soon"}"#, r#"{"start_time": -1e300}"#] {
            assert!(call(bad.as_bytes(), &templates, "start_time").is_err(), "{bad}");
        }
    }
}
