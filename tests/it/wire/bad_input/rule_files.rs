//! Rule files: each bad text, and every problem that `tollkeeper check` reports, with its location.

use crate::support::{prelude::*, rows::*};

const ROWS: &str = include_str!("rule_files.txt");

fn descriptor(keys: &str) -> String {
    format!("domain: d\ndescriptors:\n  - {{ {keys} }}\n")
}

fn limit(keys: &str) -> String {
    descriptor(&format!("key: k, rate_limit: {{ {keys} }}"))
}

/// Checks a file of this text; returns the exit code, the output, and the problems without the name of the file.
fn check(rules: &str) -> (Option<i32>, String, String) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let mut check = tollkeeper();
    let (code, stdout, stderr) = run(check.current_dir(&folder).args(["check", "rules.yaml"]));
    let problems = stderr.lines().map(|line| line.strip_prefix("rules.yaml:").unwrap_or(line));
    (code, stdout, problems.collect::<Vec<_>>().join("\n"))
}

#[test]
fn a_bad_rule_file_is_refused_with_each_location_and_problem() {
    let forms: [(_, Form); 3] =
        [("files", str::to_owned), ("one descriptor", descriptor), ("one limit", limit)];
    for (section, form) in forms {
        for [name, text, expected] in rows(ROWS, section) {
            assert_eq!(check(&form(&text)), (Some(1), String::new(), expected), "{name}");
        }
    }
}

#[test]
fn a_rule_file_of_any_form_that_means_one_rule_is_accepted() {
    let files = rows(ROWS, "accepted files").into_iter().map(|[text]| text);
    let limits = rows(ROWS, "accepted limits").into_iter().map(|[text]| limit(&text));
    for text in files.chain(limits) {
        let (code, stdout, warnings) = check(&text);
        assert_eq!((code, &*stdout), (Some(0), "ok: 1 rule in 1 domain\n"), "{text}: {warnings}");
    }
}
