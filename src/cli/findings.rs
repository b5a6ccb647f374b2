//! Problems and warnings of files, in the forms that CI systems and terminals show.

use std::{fmt, fs};

use serde_json::{Value, json};

use super::output::pretty_json;
use crate::{VERSION, settings::Environment, text::printable::printable, yaml::Problem};

/// The formats of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ReportFormat {
    Text,
    Json,
    /// Annotations of GitHub Actions
    Github,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    Junit,
}

/// The flag that chooses a format.
#[derive(Debug, clap::Args)]
pub(super) struct ReportFlag {
    /// Format of the report [default: text; github where GITHUB_ACTIONS is true]
    #[arg(short, long, alias = "format", value_name = "FORMAT", value_enum)]
    output: Option<ReportFormat>,
}

impl ReportFlag {
    pub(super) fn format(&self, environment: &Environment) -> ReportFormat {
        let of_environment =
            if environment.is_github_actions() { ReportFormat::Github } else { ReportFormat::Text };
        self.output.unwrap_or(of_environment)
    }
}

/// A problem or a warning of a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Finding<'a> {
    Problem(&'a Problem),
    Warning(&'a Problem),
}

impl<'a> Finding<'a> {
    fn parts(self) -> (&'static str, &'a Problem) {
        match self {
            Self::Problem(problem) => ("error", problem),
            Self::Warning(problem) => ("warning", problem),
        }
    }
}

/// The line of a text report.
impl fmt::Display for Finding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Problem(problem) => problem.fmt(f),
            Self::Warning(problem) => write!(f, "warning: {problem}"),
        }
    }
}

/// A problem as every JSON report has it.
pub(super) fn in_json(problem: &Problem) -> Value {
    json!({
        "file": problem.file,
        "line": problem.location.map(|(line, _)| line),
        "column": problem.location.map(|(_, column)| column),
        "message": problem.message,
    })
}

/// Workflow commands, from which GitHub Actions makes annotations of the lines.
/// <https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands>
pub(super) fn github(findings: &[Finding<'_>]) -> String {
    let escaped = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| escaped(text).replace(':', "%3A").replace(',', "%2C");
    let line = |finding: &Finding<'_>| {
        let (level, Problem { file, location, message }) = finding.parts();
        let place = location.map(|(line, column)| format!(",line={line},col={column}"));
        let (file, place) = (property(file), place.unwrap_or_default());
        format!("::{level} file={file}{place}::{}\n", escaped(message))
    };
    findings.iter().map(line).collect()
}

/// <https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>
pub(super) fn sarif(findings: &[Finding<'_>]) -> String {
    let result = |finding: &Finding<'_>| -> Value {
        let (level, Problem { file, location, message }) = finding.parts();
        let mut place = json!({ "artifactLocation": { "uri": uri(file) } });
        if let (Some((line, column)), Some(place)) = (location, place.as_object_mut()) {
            place.insert("region".into(), json!({ "startLine": line, "startColumn": column }));
        }
        json!({
            "ruleId": "rules",
            "level": level,
            "message": { "text": message },
            "locations": [{ "physicalLocation": place }],
        })
    };
    let driver = json!({ "name": "tollkeeper", "version": VERSION, "rules": [{ "id": "rules" }] });
    let report = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": driver },
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    });
    pretty_json(&report)
}

/// A path as a relative or absolute reference.
fn uri(file: &str) -> String {
    let encoded: Vec<String> = file
        .split('/')
        .map(|part| percent_encoding::utf8_percent_encode(part, percent_encoding::NON_ALPHANUMERIC))
        .map(|part| part.to_string().replace("%2E", ".").replace("%2D", "-").replace("%5F", "_"))
        .collect();
    encoded.join("/")
}

/// The finding with its line and a caret below the column.
pub(super) fn snippet(finding: &Finding<'_>, in_color: bool) -> String {
    let (level, problem) = finding.parts();
    let paint = |code: &str, text: &str| match in_color {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let color = if level == "error" { "1;31" } else { "1;33" };
    let message = format!(": {}", printable(problem.message.as_bytes()));
    let (head, arrow) = (paint(color, level) + &paint("1", &message), paint("1;34", "-->"));
    let Some((line, column)) = problem.location else {
        return format!("{head}\n {arrow} {}", problem.file);
    };
    let place = format!("{head}\n {arrow} {}:{line}:{column}", problem.file);
    let text = fs::read_to_string(&problem.file).unwrap_or_default();
    let Some(source) = text.lines().nth(line.saturating_sub(1)) else { return place };
    let before: String = source.chars().take(column.saturating_sub(1)).collect();
    let shown = |text: &str| printable(text.replace('\t', " ").as_bytes());
    let (number, caret) = (line.to_string(), paint(color, "^"));
    let (margin, indent) = (" ".repeat(number.len()), " ".repeat(shown(&before).chars().count()));
    let (bar, gutter) = (paint("1;34", "|"), paint("1;34", &number));
    format!(
        "{place}\n{margin} {bar}\n{gutter} {bar} {}\n{margin} {bar} {indent}{caret}\n",
        shown(source)
    )
}
