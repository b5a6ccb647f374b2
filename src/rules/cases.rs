//! Tests of rules, as written: calls at times, and what is expected of each.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Problem, about_file, file_name,
    schema::{Fields, Reader},
    yaml::{self, Content, Node, Place},
};
use crate::engine::{
    notation,
    request::{Descriptor, Hits, Request},
    time::Timestamp,
};

/// Where time begins if a test does not say it: 1 January 2026, 00:00 UTC, a Thursday.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);

/// One file of tests.
#[derive(Debug)]
pub struct Suite {
    /// The rules that it is about.
    pub rules: Vec<PathBuf>,
    /// What is tried; each begins with counters that are empty.
    pub cases: Vec<Case>,
}

/// One test.
#[derive(Debug)]
pub struct Case {
    /// What it claims.
    pub name: String,
    /// What is asked, one after the other.
    pub calls: Vec<Call>,
}

/// One call, and what is expected.
#[derive(Debug)]
pub struct Call {
    /// Where it is written: `file:line:column`.
    pub place: String,
    /// The time as written, such as `1m`.
    pub at: String,
    /// The same as an instant.
    pub now: Timestamp,
    /// What is asked.
    pub request: Request,
    /// The descriptors as written.
    pub written: Vec<String>,
    /// The overall code: `OK` or `OVER_LIMIT`.
    pub code: Option<String>,
    /// What remains of each descriptor.
    pub remaining: Option<Vec<u32>>,
}

/// Reads a file of tests.
///
/// # Errors
/// Every problem of the file.
pub fn read(file: &Path) -> Result<Suite, Vec<Problem>> {
    let text =
        fs::read_to_string(file).map_err(|error| vec![about_file(file, &error.to_string())])?;
    let mut problems = Vec::new();
    let name = file_name(file);
    let mut reader = Cases { reader: Reader { file: &name, problems: &mut problems }, file };
    let suite = match yaml::parse(&text) {
        Ok(Some(root)) => reader.suite(&root),
        Ok(None) => {
            reader.reader.problem((1, 1), "the file is empty: tests begin with `rules:`");
            None
        }
        Err((place, message)) => {
            reader.reader.problem(place, message);
            None
        }
    };
    match suite {
        Some(suite) if problems.is_empty() => Ok(suite),
        _ => Err(problems),
    }
}

struct Cases<'a> {
    reader: Reader<'a>,
    file: &'a Path,
}

impl Cases<'_> {
    fn suite(&mut self, root: &Node) -> Option<Suite> {
        let fields = self.reader.fields(root, "a file of tests", &["rules", "tests"])?;
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let rules = self.texts(&fields, "rules");
        let rules = rules.into_iter().map(|(_, path)| folder.join(path)).collect();
        let tests = self.list(&fields, "tests");
        let cases = tests.into_iter().filter_map(|node| self.case(node)).collect();
        Some(Suite { rules, cases })
    }

    fn case(&mut self, node: &Node) -> Option<Case> {
        let fields = self.reader.fields(node, "a test", &["name", "domain", "start", "calls"])?;
        let name = self.reader.required_text(&fields, "name")?;
        let domain = self.reader.required_text(&fields, "domain")?;
        let start = match fields.get("start") {
            None => START,
            Some(node) => self.start(node)?,
        };
        let calls = self.list(&fields, "calls");
        let calls = calls.into_iter().filter_map(|node| self.call(node, &domain, start)).collect();
        Some(Case { name, calls })
    }

    fn start(&mut self, node: &Node) -> Option<Timestamp> {
        let text = self.reader.text(node, "start")?;
        let millis = text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond);
        let start =
            millis.and_then(|millis| u64::try_from(millis).ok()).map(Timestamp::from_millis);
        if start.is_none() {
            self.reader
                .problem(node.place, "start: must be an instant such as 2026-03-29T00:30:00Z");
        }
        start
    }

    fn call(&mut self, node: &Node, domain: &str, start: Timestamp) -> Option<Call> {
        let known = ["at", "call", "hits", "expect", "remaining"];
        let fields = self.reader.fields(node, "a call", &known)?;
        let (at, after_ms) = match fields.get("at") {
            None => ("0s".to_owned(), 0),
            Some(node) => self.time(node)?,
        };
        let hits = match fields.get("hits") {
            None => Hits::Take(1),
            Some(node) => self.hits(node)?,
        };
        let written = self.texts(&fields, "call");
        let descriptors = written.iter().filter_map(|(place, text)| {
            let entries = notation::parse(text);
            let entries =
                entries.map_err(|problem| self.reader.problem(*place, format!("call: {problem}")));
            Some(Descriptor { entries: entries.ok()?, hits, limit: None })
        });
        let request = Request { domain: domain.to_owned(), descriptors: descriptors.collect() };
        let (line, column) = node.place;
        Some(Call {
            place: format!("{}:{line}:{column}", file_name(self.file)),
            at,
            now: start.plus_millis(after_ms),
            request,
            written: written.into_iter().map(|(_, text)| text).collect(),
            code: self.reader.one_of(&fields, "expect", &["OK", "OVER_LIMIT"]).map(str::to_owned),
            remaining: fields.get("remaining").map(|_| self.numbers(&fields, "remaining")),
        })
    }

    /// `90s`, `15m`, `24h`, `7d` or `1500ms` after the start.
    fn time(&mut self, node: &Node) -> Option<(String, u64)> {
        let text = self.reader.text(node, "at")?;
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let millis = match unit {
            "ms" => Some(1),
            "s" => Some(1000),
            "m" => Some(60_000),
            "h" => Some(3_600_000),
            "d" => Some(86_400_000),
            _ => None,
        };
        let time =
            millis.zip(number.parse().ok()).and_then(|(unit, it): (u64, u64)| unit.checked_mul(it));
        if time.is_none() {
            self.reader
                .problem(node.place, "at: must be a time such as 500ms, 90s, 15m, 24h or 7d");
        }
        time.map(|time| (text, time))
    }

    fn hits(&mut self, node: &Node) -> Option<Hits> {
        let hits: Option<i64> = self.reader.text(node, "hits")?.parse().ok();
        if hits.is_none() {
            self.reader
                .problem(node.place, "hits: must be a whole number; 0 looks, and less gives back");
        }
        hits.map(|hits| match hits {
            0 => Hits::Look,
            1.. => Hits::Take(hits.unsigned_abs().min(Hits::MAX)),
            _ => Hits::GiveBack(hits.unsigned_abs().min(Hits::MAX)),
        })
    }

    /// A text, or a list of them; at least one.
    fn texts(&mut self, fields: &Fields<'_>, name: &str) -> Vec<(Place, String)> {
        if let Some(node) = fields.get(name)
            && !matches!(node.content, Content::List(_))
        {
            let text = self.reader.required_text(fields, name);
            return text.map(|text| (node.place, text)).into_iter().collect();
        }
        let items = self.list(fields, name);
        items
            .into_iter()
            .filter_map(|node| Some((node.place, self.reader.text(node, name)?)))
            .collect()
    }

    fn numbers(&mut self, fields: &Fields<'_>, name: &str) -> Vec<u32> {
        let mut numbers = Vec::new();
        for (place, text) in self.texts(fields, name) {
            match text.parse() {
                Ok(number) => numbers.push(number),
                Err(_) => self.reader.problem(place, format!("{name}: must be a whole number")),
            }
        }
        numbers
    }

    fn list<'node>(&mut self, fields: &Fields<'node>, name: &str) -> Vec<&'node Node> {
        match fields.get(name).map(|node| (node.place, &node.content)) {
            Some((_, Content::List(items))) if !items.is_empty() => items.iter().collect(),
            found => {
                let place = found.map_or(fields.place, |(place, _)| place);
                self.reader.problem(place, format!("{name}: must be a list of at least one"));
                Vec::new()
            }
        }
    }
}
