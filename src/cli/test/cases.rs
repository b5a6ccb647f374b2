//! Reads tests of rules: calls, their times, and the decisions that are expected.

use std::{
    fs, iter,
    path::{Path, PathBuf},
    time::Duration,
};

use super::keys::{CALL, SUITE, TEST};
use crate::{
    engine::{
        algorithm::account::COUNT_MAX,
        descriptor_syntax,
        parameters::Parameters,
        request::{
            DESCRIPTORS_MAX_DEFAULT, Descriptor, Entry, Hits, Request, check_descriptors,
            check_entries,
        },
        time::Timestamp,
    },
    rules,
    text::{counted, duration::duration},
    yaml::{
        Problem, files,
        origin::Origin,
        problem::Findings,
        reader::{Fields, Reader},
        tree::YamlNode,
    },
};

/// Start of a test without `start`: 1 January 2026, 00:00 UTC, a Thursday.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);

#[derive(Debug)]
pub(crate) struct Suite {
    pub rules: Vec<PathBuf>,
    /// The tests; each starts with empty counters.
    pub cases: Vec<Case>,
}

#[derive(Debug)]
pub(crate) struct Case {
    pub name: String,
    /// Its location: `file:line:column`.
    pub location: String,
    pub calls: Vec<TestCall>,
}

#[derive(Debug)]
pub(crate) struct TestCall {
    /// Its location: `file:line:column`.
    pub location: String,
    /// The time as written, such as `1m`.
    pub at: String,
    pub now: Timestamp,
    pub request: Request,
    pub written: Vec<String>,
    pub hold: Option<String>,
    /// The overall code, `OK` or `OVER_LIMIT`; for a commit what becomes of it.
    pub code: Option<&'static str>,
    pub remaining: Option<Vec<u64>>,
    /// The rule that each descriptor matches, by its path, or `none`.
    pub rules: Option<Vec<String>>,
}

/// Finds test files: each path that is a file and, in folders, every `*.test.yaml` and `*.test.yml`. Also
/// returns the problems: paths that cannot be read, and folders without a test file.
pub(crate) fn find(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<Problem>) {
    let none = "no .test.yaml or .test.yml file in this folder";
    let found = files::find(paths, files::is_tests, none);
    (found.files, found.problems)
}

pub(crate) fn read(path: &Path) -> Result<Suite, Vec<Problem>> {
    let source = files::read(path).map_err(|problem| vec![problem])?;
    let mut findings = Findings::default();
    let origin = Origin::text(&source.name);
    let mut reader = Reader { origin: &origin, findings: &mut findings };
    let root = reader.root(&source.text, "a test file starts with `rules:`", of_rules);
    let folder = path.parent().unwrap_or(Path::new(""));
    let suite = root.and_then(|root| suite(&mut reader, &root, folder));
    // Warnings too: a test with a mistaken number would claim something else.
    findings.problems.append(&mut findings.warnings);
    findings.problems.sort();
    match suite {
        Some(suite) if findings.problems.is_empty() => Ok(suite),
        _ => Err(findings.problems),
    }
}

fn suite(reader: &mut Reader<'_>, root: &YamlNode, folder: &Path) -> Option<Suite> {
    let fields = reader.fields(root, &SUITE)?;
    let rules = reader.texts(&fields, "rules").unwrap_or_default();
    let mut cases = Vec::new();
    for node in reader.list(&fields, "tests") {
        cases.extend(case(reader, node));
    }
    let mut paths = Vec::new();
    for (location, name) in rules {
        let path = folder.join(&name);
        // Here, because the problem is a mistake of this file.
        if let Err(error) = fs::metadata(&path) {
            reader.problem(location, format!("rules: {name}: {error}"));
        }
        paths.push(path);
    }
    Some(Suite { rules: paths, cases })
}

fn case(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Case> {
    let fields = reader.fields(node, &TEST)?;
    let start = match fields.node("start") {
        None => START,
        Some(node) => start(reader, node)?,
    };
    let domain = fields.text("domain").map(|domain| domain.value).unwrap_or_default();
    let mut calls: Vec<TestCall> = Vec::new();
    for node in reader.list(&fields, "calls") {
        let call = call(reader, node, &domain, start, &calls);
        calls.extend(call);
    }
    let name = fields.text("name")?.value;
    Some(Case { name, location: located(reader, node), calls })
}

fn start(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Timestamp> {
    let instant: Option<jiff::Timestamp> = reader.scalar(node, "start")?.parse().ok();
    let millis = instant.and_then(|instant| u64::try_from(instant.as_millisecond()).ok());
    if millis.is_none() {
        reader.problem(node.location, "start: must be a time such as 2026-03-29T00:30:00Z");
    }
    millis.map(Timestamp::from_millis)
}

/// `before` are the previous calls.
fn call(
    reader: &mut Reader<'_>,
    node: &YamlNode,
    domain: &str,
    start: Timestamp,
    before: &[TestCall],
) -> Option<TestCall> {
    let fields = reader.fields(node, &CALL)?;
    let above = before.last().map(|call| (call.at.clone(), call.now));
    let above = above.unwrap_or_else(|| ("0s".to_owned(), start));
    let (at, now) = match fields.node("at") {
        None => above,
        Some(node) => time(reader, node, start, &above)?,
    };
    let (abandoned, commit) = (fields.text("abandon"), fields.node("commit"));
    let is_commit = abandoned.is_some() || commit.is_some();
    let (written, descriptors) = if is_commit {
        let entries = entries_of_commit(reader, &fields, before)?;
        let written = abandoned.as_ref().map_or("commit", |_| "abandon").to_owned();
        (
            vec![written],
            vec![Descriptor { entries, hits: Hits::Check, states_hits: true, limit: None }],
        )
    } else {
        descriptors_of_call(reader, &fields)?
    };
    let count = descriptors.len();
    let code = fields.word("expect");
    Some(TestCall {
        location: located(reader, node),
        at,
        now,
        request: Request { domain: domain.to_owned(), descriptors },
        written,
        hold: fields.text("hold").map(|hold| hold.value),
        code: abandoned.map_or(code, |_| Some("late")),
        remaining: numbers(reader, &fields, "remaining", count),
        rules: texts_of_each(reader, &fields, "rule", count),
    })
}

/// The entries of a commit, whose token is the name of the hold.
fn entries_of_commit(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    before: &[TestCall],
) -> Option<Vec<Entry>> {
    for name in ["descriptors", "hits", "remaining", "rule"] {
        if let Some(node) = fields.node(name) {
            reader.problem(
                node.location,
                format!("{name}: not part of a commit, which is a step of its own"),
            );
        }
    }
    let mut taken = before.iter().rev().filter_map(|call| call.hold.as_deref());
    let name = fields.text("abandon").or_else(|| fields.text("of"));
    let hold = match &name {
        Some(name) => taken.find(|taken| *taken == name.value),
        None => taken.next(),
    };
    let Some(hold) = hold else {
        let location = name.map_or(fields.location, |name| name.location);
        reader.problem(location, "no call above takes this hold; a take has `hold: NAME`");
        return None;
    };
    let name = Entry { key: "hold.commit".into(), value: hold.to_owned().into() };
    let Some(node) = fields.node("commit") else { return Some(vec![name]) };
    let text = reader.scalar(node, "commit")?;
    let entries = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => descriptor_syntax::parse(format!("hold.used={text}")),
        false => descriptor_syntax::parse(text),
    };
    match entries {
        Ok(entries) if entries.iter().all(Parameters::is_parameter) => {
            Some(iter::once(name).chain(entries).collect())
        }
        _ => {
            let message = "commit: must be a whole number, or entries such as hold.used.output=17,hold.end=200 -";
            reader.problem(node.location, message);
            None
        }
    }
}

/// The descriptors of a call, as written and parsed; those that the service refuses are problems.
fn descriptors_of_call(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
) -> Option<(Vec<String>, Vec<Descriptor>)> {
    if fields.node("descriptors").is_none() {
        reader.problem(fields.location, "descriptors: missing");
    }
    let (hits, states_hits) = match fields.node("hits") {
        None => (Hits::Charge(1), false),
        Some(node) => (hits(reader, node)?, true),
    };
    let nodes = reader.one_or_more(fields, "descriptors").unwrap_or_default();
    let written = reader.texts_in(&nodes, "descriptors");
    if let Err(refusal) = check_descriptors(nodes.len(), DESCRIPTORS_MAX_DEFAULT)
        && let Some(node) = fields.node("descriptors")
    {
        reader.problem(node.location, refusal);
    }
    let mut descriptors = Vec::new();
    for (index, (location, text)) in written.iter().enumerate() {
        // The text is empty: that is reported already.
        if text.is_empty() {
            continue;
        }
        let entries = match descriptor_syntax::parse(text) {
            Ok(entries) => entries,
            Err(problem) => {
                reader.problem(*location, format!("descriptors: {problem}"));
                continue;
            }
        };
        if let Err(refusal) = check_entries(index, entries.len()) {
            reader.problem(*location, refusal);
        }
        descriptors.push(Descriptor { entries, hits, states_hits, limit: None });
    }
    Some((written.into_iter().map(|(_, text)| text).collect(), descriptors))
}

fn time(
    reader: &mut Reader<'_>,
    node: &YamlNode,
    start: Timestamp,
    (above, not_before): &(String, Timestamp),
) -> Option<(String, Timestamp)> {
    let text = reader.scalar(node, "at")?;
    let Ok(since_start) = duration(text, Duration::ZERO, Duration::MAX) else {
        reader.problem(node.location, "at: must be a time such as 500ms, 90s, 15m, 24h or 7d");
        return None;
    };
    let now = start.plus_millis(u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX));
    if now < *not_before {
        let message = format!("at: {text} is before {above}, the time of the call above");
        reader.problem(node.location, message);
    }
    Some((text.to_owned(), now))
}

fn hits(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Hits> {
    let hits = reader.integer(node, "hits").and_then(|hits| i64::try_from(hits).ok());
    match hits {
        None => {
            let message = "hits: must be a whole number; 0 checks without counting, a negative number refunds";
            reader.problem(node.location, message);
            None
        }
        Some(0) => Some(Hits::Check),
        Some(hits @ 1..) => Some(Hits::Charge(hits.unsigned_abs().min(Hits::MAX))),
        Some(hits) => Some(Hits::Refund(hits.unsigned_abs().min(Hits::MAX))),
    }
}

/// One text for each of `count` descriptors.
fn texts_of_each(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    name: &str,
    count: usize,
) -> Option<Vec<String>> {
    let nodes = reader.one_or_more(fields, name)?;
    check_count(reader, fields, name, (nodes.len(), "rule"), count);
    let texts = reader.texts_in(&nodes, name);
    Some(texts.into_iter().map(|(_, text)| text).collect())
}

/// One number for each of `count` descriptors.
fn numbers(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    name: &str,
    count: usize,
) -> Option<Vec<u64>> {
    let nodes = reader.one_or_more(fields, name)?;
    check_count(reader, fields, name, (nodes.len(), "number"), count);
    let mut numbers = Vec::new();
    for node in nodes {
        numbers.extend(reader.whole(node, name, 0, COUNT_MAX));
    }
    Some(numbers)
}

/// `found` is a number and the word for what was counted. `expected` is 0 if the call has a problem, which
/// is reported already.
fn check_count(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    name: &str,
    (found, word): (usize, &str),
    expected: usize,
) {
    if found != expected
        && expected > 0
        && let Some(node) = fields.node(name)
    {
        let descriptors = counted(expected, "descriptor");
        let verb = if found == 1 { "is" } else { "are" };
        let found = counted(found, word);
        let message = format!(
            "{name}: the call has {descriptors}, but there {verb} {found}; list one for each"
        );
        reader.problem(node.location, message);
    }
}

fn located(reader: &Reader<'_>, node: &YamlNode) -> String {
    let (line, column) = node.location;
    format!("{}:{line}:{column}", reader.origin.name)
}

/// The message for a rule file in place of a test file.
fn of_rules(root: &YamlNode) -> Option<String> {
    let names: Vec<_> = root.pairs().iter().filter_map(|(key, _)| key.name()).collect();
    let is_suite = names.iter().any(|name| SUITE.find(name).is_some());
    let is_rules = names.iter().any(|name| rules::FILE.find(name).is_some());
    let message = "this is a rule file; a test file has rules: and tests:";
    (is_rules && !is_suite).then(|| message.to_owned())
}
