//! Command lines that exit with 2, and the first line of what each prints.

use crate::support::{prelude::*, rows::rows};

const ROWS: &str = include_str!("command_lines.txt");

#[test]
fn a_bad_command_line_exits_with_2_and_says_what_is_wrong() {
    for [name, words, expected] in rows(ROWS, "cases") {
        let (code, stdout, stderr) = run(tollkeeper().current_dir(root()).args(words.split(' ')));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{name}: {stderr}");
        assert_eq!(stderr.lines().next(), Some(&*expected), "{name}");
    }
}

#[test]
fn a_tip_says_what_an_unknown_name_means_and_none_says_to_write_dashes_before_a_flag() {
    for [words, expected] in rows(ROWS, "tips") {
        let (code, _, stderr) = run(tollkeeper().args(words.split(' ')));
        assert_eq!(code, Some(2), "{words}: {stderr}");
        let tip = stderr.lines().find_map(|line| line.strip_prefix("  tip: "));
        assert_eq!(tip.unwrap_or("none"), expected, "{words}: {stderr}");
    }
}

#[test]
fn a_rule_file_that_is_given_twice_is_named_as_that() {
    for (words, file) in [
        ("check examples/rules.yaml ./examples/rules.yaml", "./examples/rules.yaml"),
        ("check examples/budgets examples/budgets/rules.yaml", "examples/budgets/rules.yaml"),
    ] {
        let (code, _, stderr) = run(tollkeeper().current_dir(root()).args(words.split(' ')));
        assert_eq!((code, stderr), (Some(1), format!("{file}: given twice\n")));
    }
}
