//! Flags and variables: each bad value is tried as both. The service reports it, and exits with 2.

use crate::support::{prelude::*, rows::rows};

const ROWS: &str = include_str!("flags.txt");

/// The name of each case, the flag, its value, and the problem.
fn cases() -> Vec<[String; 4]> {
    let invalid = rows(ROWS, "invalid values").into_iter();
    let invalid = invalid.map(|[name, flag, value, allowed]: [String; 4]| {
        let problem = format!("invalid value `{}`: {allowed}", escaped(&value));
        [name, flag, value, problem]
    });
    invalid.chain(rows(ROWS, "others")).collect()
}

/// A value as a problem shows it.
fn escaped(value: &str) -> String {
    value.replace('\r', "\\x0d").replace('\u{1b}', "\\x1b")
}

/// The problem under the name that was used, as a flag and as a variable.
fn problems(flag: &str, value: &str) -> [String; 2] {
    let variable = format!("TOLLKEEPER_{}", flag.replace('-', "_").to_uppercase());
    let typed = run(serve().arg(format!("--{flag}={value}")));
    let inherited = run(tollkeeper().arg("serve").env(&variable, value));
    [(format!("--{flag}: "), typed), (format!("{variable}: "), inherited)].map(
        |(name, (code, stdout, stderr))| {
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{name}{stderr}");
            stderr.strip_prefix(&name).unwrap_or_else(|| panic!("{name}: {stderr}")).to_owned()
        },
    )
}

#[test]
fn a_bad_value_of_a_setting_is_refused_by_name_with_what_is_allowed() {
    for [name, flag, value, expected] in cases() {
        assert_eq!(problems(&flag, &value), [(); 2].map(|()| format!("{expected}\n")), "{name}");
    }
}

#[test]
fn a_bad_store_url_is_refused_without_its_text() {
    for [name, url] in rows(ROWS, "stores") {
        for problem in problems("store", &url) {
            assert_eq!(problem.lines().count(), 1, "{name}: {problem}");
            assert!(!problem.contains("s3cret"), "{name}: {problem}");
        }
    }
}
