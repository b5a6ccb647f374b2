//! The report as JUnit XML, which most CI systems display.

use super::report::{CaseReport, TestReport};

pub(in crate::cli) fn xml(report: &TestReport) -> String {
    let (tests, failures, errors) = (report.tests.len(), report.failed(), report.problems.len());
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    xml +=
        &format!("<testsuites name=\"tollkeeper\" {}>\n", counts(tests + errors, failures, errors));
    for of_file in report.tests.chunk_by(|one, other| one.file == other.file) {
        let failures = of_file.iter().filter(|test| test.failure.is_some()).count();
        let file = of_file.first().map_or("", |test| &test.file);
        let counts = counts(of_file.len(), failures, 0);
        xml += &format!("  <testsuite name=\"{}\" {counts}>\n", escaped(file));
        for test in of_file {
            push_case(&mut xml, test);
        }
        xml += "  </testsuite>\n";
    }
    if errors > 0 {
        xml += &format!("  <testsuite name=\"problems\" {}>\n", counts(errors, 0, errors));
        for (index, problem) in report.problems.iter().enumerate() {
            let (file, message) = (escaped(&problem.file), escaped(&problem.to_string()));
            let case = format!("<testcase classname=\"{file}\" name=\"problem {}\">", index + 1);
            xml += &format!("    {case}<error message=\"{message}\"/></testcase>\n");
        }
        xml += "  </testsuite>\n";
    }
    xml + "</testsuites>\n"
}

fn counts(tests: usize, failures: usize, errors: usize) -> String {
    format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\"")
}

fn push_case(xml: &mut String, test: &CaseReport) {
    let (file, name) = (escaped(&test.file), escaped(&test.name));
    let case = format!("    <testcase classname=\"{file}\" name=\"{name}\"");
    *xml += &match &test.failure {
        None => format!("{case}/>\n"),
        Some(failure) => {
            let first = escaped(failure.lines().next().unwrap_or_default());
            let all = escaped(failure);
            format!("{case}><failure message=\"{first}\">{all}</failure></testcase>\n")
        }
    };
}

/// Escapes text and attributes. XML cannot represent most control characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_xml_reserves_or_forbids_are_escaped() {
        assert_eq!(escaped("a<b>&\"c\"\n\u{1}"), "a&lt;b&gt;&amp;&quot;c&quot;\n\u{fffd}");
    }
}
