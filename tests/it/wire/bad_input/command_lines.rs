//! Command lines that exit with 2, and the first line of what each prints.

use super::Table;
use crate::support::{root, run, service::tollkeeper};

/// The name of the case, the words after `tollkeeper`, and the line.
const CASES: &[(&str, &str, &str)] = &[
    ("an_unknown_command", "bogus", "error: unrecognized subcommand 'bogus'"),
    ("an_unknown_flag", "--bogus", "error: unexpected argument '--bogus' found"),
    (
        "an_unknown_flag_of_serve",
        "serve --grpc-port 1",
        "error: unexpected argument '--grpc-port' found",
    ),
    (
        "a_flag_without_its_value",
        "serve --grpc-addr",
        "error: a value is required for '--grpc-addr <IP:PORT>' but none was supplied",
    ),
    (
        "a_flag_with_an_empty_value",
        "serve --drain=",
        "--drain: invalid value ``: must be a duration from 0s to 10m",
    ),
    ("an_argument_of_serve", "serve rules.yaml", "error: unexpected argument `rules.yaml`"),
    (
        "a_space_before_a_unit",
        "serve --decision-budget 15 ms",
        "error: unexpected argument `ms`; write a number and its unit without a space, such as 15ms",
    ),
    (
        "yes_behind_a_switch",
        "serve --shadow-mode yes",
        "error: unexpected argument `yes`; a flag that needs no value takes on or off after `=`: --FLAG=on",
    ),
    (
        "grpc_and_http_on_one_address",
        "serve --grpc-addr 127.0.0.1:7 --http-addr 127.0.0.1:7",
        "--http-addr: same address as --grpc-addr",
    ),
    (
        "the_admin_address_on_the_default_of_http",
        "serve --admin-addr 127.0.0.1:8080",
        "--admin-addr: same address as --http-addr",
    ),
    (
        "a_rule_file_as_settings",
        "serve --config examples/rules.yaml",
        "examples/rules.yaml:1:1: this is a rule file, not a file of settings; give it by --rules",
    ),
    (
        "two_files_of_settings",
        "serve --config /dev/null --config /dev/null",
        "--config: given twice; write all settings into one file",
    ),
    ("an_empty_path_of_settings", "serve --config=", "--config: must not be empty"),
    (
        "rules_from_standard_input",
        "serve --rules -",
        "--rules: must be a path; standard input is not supported here",
    ),
    (
        "a_key_twice_in_the_order",
        "import limitador - --order user,path,user",
        "--order: `user` is given twice",
    ),
    (
        "an_empty_key_in_the_order",
        "import limitador - --order user,,path",
        "--order: a key is empty",
    ),
    (
        "rules_of_another_scheme",
        "serve --rules http://h:1",
        "--rules: the scheme must be xds or xds+tls: xds://host:port?node=ID",
    ),
    ("an_empty_path_of_rules", "serve --rules=", "--rules: must not be empty"),
    (
        "a_missing_rule_file",
        "serve --rules gone.yaml",
        "gone.yaml: No such file or directory (os error 2)",
    ),
    ("no_path_to_check", "check", "error: the following required arguments were not provided:"),
    (
        "an_unknown_format",
        "check --format xml a",
        "error: invalid value 'xml' for '--output <FORMAT>'",
    ),
    ("no_arguments_of_call", "call", "error: the following required arguments were not provided:"),
    (
        "no_descriptor",
        "call --domain d",
        "error: the following required arguments were not provided:",
    ),
    (
        "hits_in_words",
        "call --domain d --hits many a=b",
        "--hits: invalid value `many`: must be a whole number from -9223372036854775808 to 9223372036854775807",
    ),
    (
        "a_fraction_of_hits",
        "call --domain d --hits 1.5 a=b",
        "--hits: invalid value `1.5`: must be a whole number from -9223372036854775808 to 9223372036854775807",
    ),
    (
        "hits_over_64_bits",
        "call --domain d --hits 99999999999999999999 a=b",
        "--hits: invalid value `99999999999999999999`: must be a whole number from -9223372036854775808 to 9223372036854775807",
    ),
    ("a_descriptor_without_a_value", "call --domain d a", "a: must be key=value"),
    ("a_descriptor_without_a_key", "call --domain d =b", "=b: an entry needs a key before its `=`"),
    (
        "a_bad_escape_in_a_descriptor",
        "call --domain d a=\\q",
        "a=\\q: after a backslash, only `,`, `\\` or `xHH` is allowed",
    ),
    (
        "a_bare_comma_in_a_value",
        "call --domain d user=a,b",
        "user=a,b: `b` must be key=value; a comma in a value is `\\,`",
    ),
    (
        "a_comma_at_the_end",
        "call --domain d a=b,",
        "a=b,: `` must be key=value; a comma in a value is `\\,`",
    ),
    (
        "an_address_without_a_port",
        "call --addr nowhere --domain d a=b",
        "--addr: `nowhere` is not HOST:PORT; did you mean nowhere:8081?",
    ),
    (
        "a_port_over_65535",
        "call --addr 127.0.0.1:99999 --domain d a=b",
        "--addr: `127.0.0.1:99999` is not HOST:PORT, such as 127.0.0.1:8081",
    ),
    (
        "no_descriptor_to_explain",
        "explain --domain d",
        "error: the following required arguments were not provided:",
    ),
    (
        "no_counter_command",
        "counter reset",
        "error: the following required arguments were not provided:",
    ),
    (
        "two_descriptors_of_a_counter",
        "counter show --domain d a=b c=d",
        "error: unexpected argument 'c=d' found",
    ),
    (
        "a_rate_of_0",
        "bench --domain d --rate 0 a=b",
        "error: invalid value '0' for '--rate <N>': must be a whole number from 1 to 1000000",
    ),
    (
        "a_rate_beside_a_concurrency",
        "bench --domain d --rate 1 --concurrency 1 a=b",
        "error: the argument '--rate <N>' cannot be used with '--concurrency <N>'",
    ),
    (
        "1001_connections",
        "bench --domain d --connections 1001 a=b",
        "error: invalid value '1001' for '--connections <N>': must be a whole number from 1 to 1000",
    ),
    (
        "no_keys",
        "bench --domain d --keys 0 a=b",
        "error: invalid value '0' for '--keys <N>': must be a whole number from 1 to 1000000",
    ),
    (
        "a_duration_without_a_unit",
        "bench --domain d --duration 5 a=b",
        "error: invalid value '5' for '--duration <TIME>': must be a duration from 10ms to 1h; did you mean 5s?",
    ),
    (
        "an_unknown_distribution",
        "bench --domain d --distribution gauss a=b",
        "error: invalid value 'gauss' for '--distribution <HOW>'",
    ),
    ("no_path_to_test", "test", "error: the following required arguments were not provided:"),
    ("an_unknown_flag_of_schema", "schema --bogus", "error: unexpected argument '--bogus' found"),
];

/// Unknown commands and flags, and the tip of each; none for a flag that is like no other.
const TIPS: &[(&str, Option<&str>)] = &[
    ("reset user=alice", Some("did you mean `tollkeeper counter reset`?")),
    ("list", Some("did you mean `tollkeeper counter list`?")),
    ("validate rules", Some("did you mean `tollkeeper check`?")),
    ("lint rules", Some("did you mean `tollkeeper check`?")),
    ("rules", Some("did you mean `tollkeeper check`, or `tollkeeper serve --rules`?")),
    ("chekc rules", Some("some similar subcommands exist: 'schema', 'check'")),
    ("call --domain d --bogus a=b", None),
];

pub const TABLE: Table = Table { name: "command lines", cases: CASES.len() + TIPS.len() };

#[test]
fn a_bad_command_line_exits_with_2_and_says_what_is_wrong() {
    for (name, words, expected) in CASES {
        let (code, stdout, stderr) = run(tollkeeper().current_dir(root()).args(words.split(' ')));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{name}: {stderr}");
        assert_eq!(stderr.lines().next(), Some(*expected), "{name}");
    }
}

#[test]
fn a_tip_says_what_an_unknown_name_means_and_none_says_to_write_dashes_before_a_flag() {
    for (words, expected) in TIPS {
        let (code, _, stderr) = run(tollkeeper().args(words.split(' ')));
        assert_eq!(code, Some(2), "{words}: {stderr}");
        let tip = stderr.lines().find_map(|line| line.strip_prefix("  tip: "));
        assert_eq!(tip, *expected, "{words}: {stderr}");
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
