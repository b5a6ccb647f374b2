//! Reads tests of rules: calls, their times, and the decisions that are expected.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::keys::{CALL, SUITE, TEST};
use crate::{
    engine::{
        algorithm::account::COUNT_MAX,
        descriptor_syntax,
        request::{
            DESCRIPTORS_MAX_DEFAULT, Descriptor, Hits, Request, check_descriptors, check_entries,
        },
        time::Timestamp,
    },
    rules,
    yaml::{
        Problem, files,
        origin::Origin,
        problem::Findings,
        reader::{Fields, Reader},
        tree::{Content, Location, YamlNode},
    },
};

/// Start of a test without `start`: 1 January 2026, 00:00 UTC, a Thursday.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);

/// A file of tests.
#[derive(Debug)]
pub(crate) struct Suite {
    /// The rules to test.
    pub rules: Vec<PathBuf>,
    /// The tests; each starts with empty counters.
    pub cases: Vec<Case>,
}

/// One test.
#[derive(Debug)]
pub(crate) struct Case {
    /// The name: what the test claims.
    pub name: String,
    /// Its location: `file:line:column`.
    pub location: String,
    /// Its calls, in order of time.
    pub calls: Vec<TestCall>,
}

/// One call of a test, and the expected decision.
#[derive(Debug)]
pub(crate) struct TestCall {
    /// Its location: `file:line:column`.
    pub location: String,
    /// The time as written, such as `1m`.
    pub at: String,
    /// The time of the call.
    pub now: Timestamp,
    /// The request.
    pub request: Request,
    /// Its descriptors as written.
    pub written: Vec<String>,
    /// The overall code: `OK` or `OVER_LIMIT`.
    pub code: Option<&'static str>,
    /// Remaining hits for each descriptor.
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

/// Reads a file of tests.
///
/// # Errors
/// Every problem of the file.
pub(crate) fn read(path: &Path) -> Result<Suite, Vec<Problem>> {
    let source = files::read(path).map_err(|problem| vec![problem])?;
    let mut findings = Findings::default();
    let origin = Origin::text(&source.name);
    let mut reader = Reader { origin: &origin, findings: &mut findings };
    let root = reader.root(&source.text, "a test file starts with `rules:`", of_rules);
    let folder = path.parent().unwrap_or(Path::new(""));
    let suite = root.and_then(|root| reader.suite(&root, folder));
    // Warnings too: a test with a mistaken number would claim something else.
    findings.problems.append(&mut findings.warnings);
    findings.problems.sort();
    match suite {
        Some(suite) if findings.problems.is_empty() => Ok(suite),
        _ => Err(findings.problems),
    }
}

impl Reader<'_> {
    fn suite(&mut self, root: &YamlNode, folder: &Path) -> Option<Suite> {
        let fields = self.fields(root, &SUITE)?;
        let rules = self.texts(&fields, "rules").unwrap_or_default();
        let mut cases = Vec::new();
        for node in self.list(&fields, "tests") {
            cases.extend(self.case(node));
        }
        let mut paths = Vec::new();
        for (location, name) in rules {
            let path = folder.join(&name);
            // Here, because the problem is a mistake of this file.
            if let Err(error) = fs::metadata(&path) {
                self.problem(location, format!("rules: {name}: {error}"));
            }
            paths.push(path);
        }
        Some(Suite { rules: paths, cases })
    }

    fn case(&mut self, node: &YamlNode) -> Option<Case> {
        let fields = self.fields(node, &TEST)?;
        let start = match fields.node("start") {
            None => START,
            Some(node) => self.start(node)?,
        };
        let domain = fields.text("domain").map(|domain| domain.value).unwrap_or_default();
        let mut calls: Vec<TestCall> = Vec::new();
        for node in self.list(&fields, "calls") {
            let above = calls.last().map(|call| (call.at.clone(), call.now));
            let above = above.unwrap_or_else(|| ("0s".to_owned(), start));
            calls.extend(self.call(node, &domain, start, above));
        }
        let name = fields.text("name")?.value;
        Some(Case { name, location: self.located(node), calls })
    }

    fn start(&mut self, node: &YamlNode) -> Option<Timestamp> {
        let instant: Option<jiff::Timestamp> = self.scalar(node, "start")?.parse().ok();
        let millis = instant.and_then(|instant| u64::try_from(instant.as_millisecond()).ok());
        if millis.is_none() {
            self.problem(node.location, "start: must be a time such as 2026-03-29T00:30:00Z");
        }
        millis.map(Timestamp::from_millis)
    }

    /// `above` is the time of the previous call.
    fn call(
        &mut self,
        node: &YamlNode,
        domain: &str,
        start: Timestamp,
        above: (String, Timestamp),
    ) -> Option<TestCall> {
        let fields = self.fields(node, &CALL)?;
        let (at, now) = match fields.node("at") {
            None => above,
            Some(node) => self.time(node, start, &above)?,
        };
        let hits = match fields.node("hits") {
            None => Hits::Charge(1),
            Some(node) => self.hits(node)?,
        };
        let nodes = self.one_or_more(&fields, "descriptors").unwrap_or_default();
        let count = nodes.len();
        let written = self.texts_in(&nodes, "descriptors");
        let descriptors = self.descriptors_of_call(&written, hits);
        if let Err(refusal) = check_descriptors(count, DESCRIPTORS_MAX_DEFAULT)
            && let Some(node) = fields.node("descriptors")
        {
            self.problem(node.location, refusal);
        }
        Some(TestCall {
            location: self.located(node),
            at,
            now,
            request: Request { domain: domain.to_owned(), descriptors },
            written: written.into_iter().map(|(_, text)| text).collect(),
            code: fields.word("expect").map(|word| word.value),
            remaining: self.numbers(&fields, "remaining", count),
            rules: self.texts_of_each(&fields, "rule", count),
        })
    }

    /// Parses descriptors, and refuses those that the service refuses.
    fn descriptors_of_call(
        &mut self,
        written: &[(Location, String)],
        hits: Hits,
    ) -> Vec<Descriptor> {
        let mut descriptors = Vec::new();
        for (index, (location, text)) in written.iter().enumerate() {
            // The text is empty: that is reported already.
            if text.is_empty() {
                continue;
            }
            let entries = match descriptor_syntax::parse(text) {
                Ok(entries) => entries,
                Err(problem) => {
                    self.problem(*location, format!("descriptors: {problem}"));
                    continue;
                }
            };
            if let Err(refusal) = check_entries(index, entries.len()) {
                self.problem(*location, refusal);
            }
            descriptors.push(Descriptor { entries, hits, states_hits: false, limit: None });
        }
        descriptors
    }

    /// `90s`, `15m`, `24h`, `7d` or `1500ms` after the start.
    fn time(
        &mut self,
        node: &YamlNode,
        start: Timestamp,
        (above, not_before): &(String, Timestamp),
    ) -> Option<(String, Timestamp)> {
        let text = self.scalar(node, "at")?;
        let Some(millis) = millis(text) else {
            self.problem(node.location, "at: must be a time such as 500ms, 90s, 15m, 24h or 7d");
            return None;
        };
        let now = start.plus_millis(millis);
        if now < *not_before {
            let message = format!("at: {text} is before {above}, the time of the call above");
            self.problem(node.location, message);
        }
        Some((text.to_owned(), now))
    }

    fn hits(&mut self, node: &YamlNode) -> Option<Hits> {
        let hits = self.integer(node, "hits").and_then(|hits| i64::try_from(hits).ok());
        match hits {
            None => {
                let message = "hits: must be a whole number; 0 checks without counting, a negative number refunds";
                self.problem(node.location, message);
                None
            }
            Some(0) => Some(Hits::Check),
            Some(hits @ 1..) => Some(Hits::Charge(hits.unsigned_abs().min(Hits::MAX))),
            Some(hits) => Some(Hits::Refund(hits.unsigned_abs().min(Hits::MAX))),
        }
    }

    /// One text for each of `count` descriptors.
    fn texts_of_each(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        count: usize,
    ) -> Option<Vec<String>> {
        let nodes = self.one_or_more(fields, name)?;
        self.check_count(fields, name, (nodes.len(), "rule"), count);
        let texts = self.texts_in(&nodes, name);
        Some(texts.into_iter().map(|(_, text)| text).collect())
    }

    /// One number for each of `count` descriptors.
    fn numbers(&mut self, fields: &Fields<'_>, name: &str, count: usize) -> Option<Vec<u64>> {
        let nodes = self.one_or_more(fields, name)?;
        self.check_count(fields, name, (nodes.len(), "number"), count);
        let mut numbers = Vec::new();
        for node in nodes {
            numbers.extend(self.whole(node, name, 0, COUNT_MAX));
        }
        Some(numbers)
    }

    /// `found` is a number and the word for what was counted. `expected` is 0 if the call has a problem, which
    /// is reported already.
    fn check_count(
        &mut self,
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
            self.problem(node.location, message);
        }
    }

    /// A location as `file:line:column`.
    fn located(&self, node: &YamlNode) -> String {
        let (line, column) = node.location;
        format!("{}:{line}:{column}", self.origin.name)
    }
}

fn counted(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

/// The message for a rule file in place of a test file.
fn of_rules(root: &YamlNode) -> Option<String> {
    let Content::Map(pairs) = &root.content else { return None };
    let mut names = Vec::new();
    for (key, _) in pairs {
        names.extend(key.name());
    }
    let is_suite = names.iter().any(|name| SUITE.find(name).is_some());
    let is_rules = names.iter().any(|name| rules::FILE.find(name).is_some());
    let message = "this is a rule file; a test file has rules: and tests:";
    (is_rules && !is_suite).then(|| message.to_owned())
}

/// A duration such as `90s`, in milliseconds.
fn millis(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    unit_ms.checked_mul(number.parse().ok()?)
}
