//! The commands, as a person at a terminal meets them.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::fs::symlink,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::support::{
    Process, root,
    service::{Options, Service, serve, tollkeeper},
    tool,
};

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Runs `tollkeeper check` on one file of this text.
#[track_caller]
fn check(rules: &str, expected: &str) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let (code, stdout, stderr) =
        run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
    // Warnings are another matter.
    let problems: String = stderr
        .lines()
        .filter(|line| !line.starts_with("warning: "))
        .map(|line| line.to_owned() + "\n")
        .collect();
    assert_eq!(stdout + &problems, expected);
    assert_eq!(code, Some(i32::from(!expected.starts_with("ok"))));
}

/// Compares the warnings of `check` on one file of this text, which is good.
#[track_caller]
fn check_warnings(rules: &str, expected: &str) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
    assert_eq!((code, stderr.as_str()), (Some(0), expected));
}

#[test]
fn what_is_hardly_meant_is_a_warning_and_no_problem() {
    check_warnings(
        "\
domain: shop
descriptors:
  - key: file
    value: 'a*'
    rate_limit: { unit: day, requests_per_unit: 5 }
  - key: file
    value: 'ab*c'
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: file
    value: 'b*'
    rate_limit: { unit: day }
  - key: file
    value: ab
  - key: user
    value: nobody
  - key: user
    descriptors:
      - key: role
  - key: plan
    rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: nobody }] }
",
        "\
warning: rules.yaml:6:5: never matches: the pattern `a*` in line 3 takes all of its values
warning: rules.yaml:8:17: requests_per_unit: 0 lets nothing pass
warning: rules.yaml:11:17: requests_per_unit: missing, which counts as 0: always over the limit
warning: rules.yaml:18:9: never limits: nothing else here matches its values
warning: rules.yaml:19:5: replaces: no limit of this domain has the name `nobody`
",
    );
}

#[test]
fn a_stdout_that_is_full_is_told_and_one_that_is_closed_is_not() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let explain = ["explain", "--domain", "example", "user=alice"];
    for words in [&["check", "examples/rules.yaml"][..], &["test", "examples"], &explain] {
        let mut command = tollkeeper();
        command.current_dir(root()).args(words);
        let output = command.stdout(full.try_clone().unwrap()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert_eq!(told, "stdout: No space left on device (os error 28)\n");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    }
}

#[test]
fn a_stderr_that_is_full_changes_no_exit_code() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let call = ["call", "--addr", &nobody, "--domain", "x", "a=b"];
    for (words, code) in [
        (&["check", "gone.yaml"][..], 1),
        // Its answer fails first, and then so does the message that says so.
        (&["check", "examples/rules.yaml"], 1),
        (&["test", "gone.test.yaml"], 1),
        (&["explain", "--domain", "example", "user"], 2),
        (&["serve", "--rules", "gone.yaml"], 2),
        (&["counter", "show", "--domain", "x", "a"], 2),
        (&call, 1),
    ] {
        let mut command = tollkeeper();
        command.current_dir(root()).args(words).stdout(full()).stderr(full());
        assert_eq!(command.status().unwrap().code(), Some(code), "for {words:?}");
    }
}

#[test]
fn rule_tests_pass_and_a_failed_one_shows_what_was_expected_and_what_happened() {
    let examples = run(tollkeeper().current_dir(root()).args(["test", "examples"]));
    assert_eq!(examples, (Some(0), "ok: 2 passed\n".to_owned(), String::new()));

    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "rules.yaml",
        "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 2, time_zone: Europe/Berlin } }]",
    );
    let test = |calls: &str| {
        let head = "rules: [rules.yaml]\ntests:\n  - name: two a day\n    domain: d\n    start: 2026-03-28T23:00:00Z\n    calls:\n";
        write("rules.test.yaml", &format!("{head}{calls}"));
        run(tollkeeper().current_dir(&folder).args(["test", "."]))
    };
    // The day of 23 hours.
    let day = "      - { call: k=v, hits: 2, expect: OK, remaining: [0] }\n      - { at: 1379m, call: k=v, expect: OVER_LIMIT }\n      - { at: 23h, call: k=v, hits: 0, remaining: [2] }\n      - { at: 23h, call: k=v, hits: -1, expect: OK }\n";
    assert_eq!(test(day), (Some(0), "ok: 1 passed\n".to_owned(), String::new()));

    let (code, stdout, stderr) =
        test("      - { call: [k=v, k=w], hits: 2, expect: OVER_LIMIT, remaining: [1, 0] }\n");
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert_eq!(
        stderr,
        "./rules.test.yaml:7:9: two a day, at 0s: k=v k=w\n  expected: OVER_LIMIT, remaining 1, 0\n  happened: OK, remaining 0, 0\n0 passed, 1 failed\n"
    );

    for (calls, problem) in [
        ("      - { call: k, expect: OK }\n", "7:17: call: an entry is written key=value"),
        ("      - { call: k=v, at: soon }\n", "7:26: at: must be a time such as 500ms"),
        (
            "      - { call: k=v, expect: MAYBE }\n",
            "7:30: expect: `MAYBE` is none of OK, OVER_LIMIT",
        ),
        ("      - { call: k=v, hits: x }\n", "7:28: hits: must be a whole number"),
        ("      - { call: [] }\n", "call: must be a list of at least one"),
        ("      - { cal: k=v }\n", "unknown key `cal`; did you mean `call`?"),
    ] {
        let (code, _, stderr) = test(calls);
        assert!(code == Some(1) && stderr.contains(problem), "{stderr}");
    }
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["test", "gone"]));
    assert!(code == Some(1) && stderr.contains("gone: No such file"), "{stderr}");
}

#[test]
fn the_shipped_rules_are_good() {
    let (code, stdout, _) =
        run(tollkeeper().current_dir(root()).args(["check", "examples/rules.yaml"]));
    assert_eq!((code, stdout.as_str()), (Some(0), "ok: 4 rules in 1 domain\n"));
}

#[test]
fn every_problem_of_a_file_is_told_at_once_with_its_place() {
    check(
        "\
domain: shop
descriptors:
  - key: user
    valu: alice
    rate_limit:
      unit: fortnight
      requests_per_unit: -1
  - value: lost
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 1.5 }
  - key: user
    rate_limit: { requests_per_unit: 4294967296 }
  - key: free
    rate_limit: { unlimited: maybe, unit: day }
  - key: free
    value: yes
    rate_limit: { unlimited: yes, unit: day }
  - key: long
    rate_limit: { unit: year, unit_multiplier: 101 }
  - key: none
    rate_limit: { unit: year, unit_multiplier: 0 }
limits: []
",
        "\
rules.yaml:4:5: unknown key `valu`; did you mean `value`?
rules.yaml:6:13: unit: `fortnight` is none of second, minute, hour, day, week, month, year
rules.yaml:7:26: requests_per_unit: must be a whole number from 0 to 4294967295
rules.yaml:8:5: key: missing
rules.yaml:9:5: `user` is already written at rules.yaml:3
rules.yaml:10:52: requests_per_unit: must be a whole number from 0 to 4294967295
rules.yaml:11:5: `user` is already written at rules.yaml:9
rules.yaml:12:17: unit: missing; one of second, minute, hour, day, week, month, year
rules.yaml:12:38: requests_per_unit: must be a whole number from 0 to 4294967295
rules.yaml:14:30: unlimited: must be true or false
rules.yaml:17:41: unit: an unlimited rule has none
rules.yaml:19:17: unit_multiplier: 101 years are over 100 years
rules.yaml:21:48: unit_multiplier: must be a whole number from 1 to 4294967295
rules.yaml:22:1: unknown key `limits`; known here: domain, descriptors
",
    );
}

#[test]
fn what_is_not_a_rule_file_is_told_in_words() {
    check("", "rules.yaml:1:1: the file is empty: a rule file begins with `domain:`\n");
    check("# nothing\n", "rules.yaml:1:1: the file is empty: a rule file begins with `domain:`\n");
    check("- a\n", "rules.yaml:1:1: a rule file must be a mapping of domain, descriptors\n");
    check("domain: ''\n", "rules.yaml:1:9: domain: must not be empty\n");
    check("descriptors: []\n", "rules.yaml:1:1: domain: missing\n");
    check("domain: a\ndomain: b\n", "rules.yaml:2:1: domain: written twice\n");
    check("domain: a\n---\ndomain: b\n", "rules.yaml:2:1: one document for each file\n");
    check("domain: a\ndescriptors: 5\n", "rules.yaml:2:14: descriptors: must be a list\n");
}

/// Checks a rule of this limit, and compares the message without its place.
#[track_caller]
fn check_limit(limit: &str, expected: &str) {
    let folder = TempDir::new().unwrap();
    let rules = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {limit} }}\n");
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let (_, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
    let lines = stdout + &stderr;
    let told = lines.lines().find(|line| !line.starts_with("warning: ")).unwrap_or_default();
    let place = told.strip_prefix("rules.yaml:4:").and_then(|rest| rest.split_once(": "));
    let told = place.map_or(told, |(_, message)| message);
    assert_eq!(told.replace("ok: 1 rule in 1 domain", "ok").trim_end(), expected, "{limit}");
}

#[test]
fn every_algorithm_is_told_what_it_cannot_be() {
    check_limit("unit: day, algorithm: sliding_log, remember: k", "ok");
    check_limit("unit: day, algorithm: TOKEN_BUCKET, requests_per_unit: 5, burst: 9", "ok");
    check_limit("unit: week, time_zone: europe/berlin", "ok");
    check_limit("unit: day, on_store_failure: local", "ok");
    check_limit(
        "unit: day, algorithm: leaky",
        "algorithm: `leaky` is none of fixed_window, first_hit_window, sliding_log, \
         sliding_window, token_bucket",
    );
    check_limit(
        "unit: day, on_store_failure: maybe",
        "on_store_failure: `maybe` is none of error, deny, allow, local",
    );
    check_limit("unit: day, burst: 5", "burst: only a token_bucket has it, not a fixed_window");
    check_limit(
        "unit: day, remember: k",
        "remember: only a sliding_log has it, not a fixed_window",
    );
    check_limit(
        "unit: day, time_zone: UTC, algorithm: sliding_window",
        "time_zone: only a fixed_window has it, not a sliding_window",
    );
    check_limit(
        "unit: day, algorithm: token_bucket, requests_per_unit: 5, burst: 0",
        "burst: must be a whole number from 1 to 4294967295",
    );
    check_limit(
        "unit: day, algorithm: token_bucket, burst: 5",
        "burst: a bucket with 0 requests_per_unit never refills",
    );
    check_limit(
        "unit: day, algorithm: sliding_log, remember: user",
        "remember: no descriptor on the way to this rule has this key",
    );
    check_limit(
        "unit: day, algorithm: sliding_log, requests_per_unit: 10001",
        "requests_per_unit: 10001 exceeds 10000, the most that a sliding_log remembers",
    );
    check_limit(
        "unit: day, algorithm: sliding_log, count_denied: true",
        "count_denied: a sliding_log remembers what it admitted, and no more",
    );
}

#[test]
fn what_scripts_could_not_reckon_exactly_is_refused() {
    check_limit("unit: year, algorithm: token_bucket, requests_per_unit: 285616", "ok");
    check_limit(
        "unit: year, algorithm: token_bucket, requests_per_unit: 285617",
        "burst: 285617 exceeds 285616, the most of a token_bucket this long",
    );
    check_limit(
        "unit: year, algorithm: sliding_window, requests_per_unit: 285617",
        "requests_per_unit: 285617 exceeds 285616, the most of a sliding_window this long",
    );
}

#[test]
fn numbers_are_whole_and_written_in_digits_and_units_are_known() {
    let number = "requests_per_unit: must be a whole number from 0 to 4294967295";
    for wrong in ["-1", "1.5", "1e9", "0x10", "'5'", "4294967296", "null", "~", "[]", "many"] {
        check_limit(&format!("unit: day, requests_per_unit: {wrong}"), number);
    }
    for right in ["0", "4294967295"] {
        check_limit(&format!("unit: SECOND, requests_per_unit: {right}"), "ok");
    }
    let units = "is none of second, minute, hour, day, week, month, year";
    for wrong in ["sec", "unknown", "days"] {
        check_limit(&format!("unit: {wrong}"), &format!("unit: `{wrong}` {units}"));
    }
    check_limit(
        "requests_per_unit: 5",
        "unit: missing; one of second, minute, hour, day, week, month, year",
    );
    let misspelt = "unknown key `request_per_unit`; did you mean `requests_per_unit`?";
    check_limit("unit: day, request_per_unit: 5", misspelt);
    check_limit(
        "unit: day, name: a, replaces: [{ name: a }]",
        "replaces: a limit cannot replace itself",
    );
    check_limit("unit: day, replaces: [{ name: '' }]", "name: must not be empty");
    check_limit("unit: day, replaces: a", "replaces: must be a list of `name: …`");
}

#[test]
fn what_a_descriptor_says_is_checked_too() {
    let descriptor = |rest: &str| format!("domain: d\ndescriptors:\n  - {{ key: k, {rest} }}\n");
    let problem = |message: &str| format!("rules.yaml:3:{message}\n");
    let check = |rest: &str, expected: &str| check(&descriptor(rest), &problem(expected));
    check(
        "value: abc, share_threshold: true",
        "5: share_threshold: goes with a value that holds a `*`",
    );
    check("shadow_mode: 1", "28: shadow_mode: must be true or false");
    check("metadata: [1]", "25: metadata: must be a mapping");
    check("metadata: { a: 1, a: 2 }", "33: a: written twice");
    check(
        "quota_mode: true, rate_limit: { unit: day, algorithm: sliding_log }",
        "53: quota_mode: counts also what does not fit, and a sliding_log remembers what it admitted, and no more",
    );
    let long = "x".repeat(257);
    let rules = format!("domain: d\ndescriptors:\n  - key: {long}\n");
    super::commands::check(&rules, "rules.yaml:3:5: key: 257 bytes exceed 256\n");
}

#[test]
fn calendars_have_days_and_longer_of_a_known_zone_one_at_a_time() {
    check_limit(
        "unit: hour, time_zone: UTC",
        "time_zone: a calendar has days and longer; a hour is none",
    );
    check_limit(
        "unit: day, time_zone: Europe/Atlantis",
        "time_zone: no time zone of the IANA database has this name",
    );
    check_limit(
        "unit: day, unit_multiplier: 2, time_zone: UTC",
        "time_zone: goes with a unit_multiplier of 1 only",
    );
}

#[test]
fn several_limits_on_one_descriptor_have_counters_of_their_own() {
    let rules =
        |limits: &str| format!("domain: d\ndescriptors:\n  - key: k\n    rate_limits: {limits}\n");
    let both = "[{ unit: second, requests_per_unit: 5 }, { unit: day, requests_per_unit: 9 }]";
    check(&rules(both), "ok: 1 rule in 1 domain\n");
    check(
        &rules("[{ unit: minute }, { unit: second, unit_multiplier: 60 }]"),
        "rules.yaml:4:37: rate_limits: another item has the same algorithm and window, and so the \
         same counter\n",
    );
    check(
        &rules(
            "[{ unit: day }, { unit: day, algorithm: sliding_window }, { unit: day, time_zone: UTC }]",
        ),
        "ok: 1 rule in 1 domain\n",
    );
    check(&rules("[]"), "rules.yaml:4:18: rate_limits: must hold at least one limit\n");
    check(&rules("{}"), "rules.yaml:4:18: rate_limits: must be a list\n");
    check(
        &rules("[{ unlimited: true }]"),
        "rules.yaml:4:19: unlimited: has no place among several limits\n",
    );
    check(
        &format!("{}    rate_limit: {{ unit: day }}\n", rules("[{ unit: day }]")),
        "rules.yaml:4:18: rate_limits: stands beside `rate_limit`; write one of them\n",
    );
}

#[test]
fn a_log_under_count_denied_must_say_that_it_does_not() {
    let folder = TempDir::new().unwrap();
    let rules =
        "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, algorithm: sliding_log } }]";
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let flags = ["--count-denied", "--rules", "rules.yaml"];
    let (code, _, told) = run(serve().current_dir(&folder).args(flags));
    assert_eq!(code, Some(2));
    assert!(
        told.contains("count_denied: is set for all rules, and a sliding_log cannot"),
        "{told}"
    );
}

#[test]
fn alias_bombs_and_deep_nests_are_refused() {
    let mut bomb = "domain: a\nx0: &x0 [a,a,a,a,a,a,a,a,a,a]\n".to_owned();
    for level in 1..10 {
        let below = format!("*x{},", level - 1).repeat(10);
        bomb += &format!("x{level}: &x{level} [{below}]\n");
    }
    let folder = TempDir::new().unwrap();
    let (open, close) = ("[".repeat(110), "]".repeat(110));
    let mut nest = format!("domain: a\nk0: &k0 {open}x{close}\n");
    for level in 1..200 {
        nest += &format!("k{level}: &k{level} {open}*k{}{close}\n", level - 1);
    }
    let anchors: String = (0..100).map(|it| format!("&b{it} [")).collect();
    let kept = format!("domain: a\nx: {anchors}{}0{}", "0,".repeat(100_000), "]".repeat(100));
    let deep = format!("domain: a\ndescriptors: {}", "[".repeat(10_000));
    for text in [bomb, nest, kept, deep] {
        std::fs::write(folder.path().join("rules.yaml"), text).unwrap();
        let (code, _, stderr) =
            run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
        assert_eq!(code, Some(1));
        let bounds =
            ["more than 1000000 nodes", "recursion limit exceeded", "nested deeper than 128"];
        assert!(bounds.iter().any(|bound| stderr.contains(bound)), "{stderr}");
    }
}

#[test]
fn words_that_yaml_takes_for_something_else_stay_words() {
    check(
        "\u{feff}domain: 1.10\r\ndescriptors:\r\n  - key: no\r\n    value: 0123\r\n    rate_limit: {unit: DAY}\r\n",
        "ok: 1 rule in 1 domain\n",
    );
}

#[test]
fn a_folder_counts_its_yaml_files_and_files_of_one_domain_add_up() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir_all(folder.path().join("..2026/x")).unwrap();
    let rule = |key: &str| {
        format!(
            "domain: shop\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
        )
    };
    write("a.yaml", &rule("a"));
    write("b.yml", &rule("b"));
    write("README.md", "not rules");
    write(".a.yaml.swp", "not rules");
    write("..2026/x/a.yaml", &rule("a"));
    let (code, stdout, stderr) = run(tollkeeper().arg("check").arg(folder.path()));
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (Some(0), "ok: 2 rules in 1 domain\n", "")
    );

    write("c.yaml", &rule("a"));
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "."]));
    assert_eq!(code, Some(1));
    assert_eq!(stderr, "./c.yaml:2:15: `a` is already written at ./a.yaml:2\n");
}

#[test]
fn files_that_cannot_be_read_are_told_with_their_names() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("latin1.yaml"), b"domain: \xe9").unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args([
        "check",
        "gone.yaml",
        "latin1.yaml",
        "empty",
        "/dev/null",
    ]));
    assert_eq!(code, Some(1));
    assert_eq!(
        stderr,
        "/dev/null: not a regular file\n\
         empty: no .yaml or .yml file in this folder\n\
         gone.yaml: No such file or directory (os error 2)\n\
         latin1.yaml: not UTF-8 text\n"
    );
}

#[test]
fn an_entry_of_a_folder_that_cannot_be_read_is_told_under_its_path_and_hides_no_other() {
    let folder = TempDir::new().unwrap();
    let rules = folder.path().join("rules");
    std::fs::create_dir_all(rules.join("more")).unwrap();
    for (target, link) in
        [("gone", "a.yaml"), ("gone", "more/b.yaml"), (".", "c"), ("..", "more/d"), ("e", "e")]
    {
        symlink(target, rules.join(link)).unwrap();
    }
    std::fs::write(rules.join("z.yaml"), "domain: ''\n").unwrap();
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "rules"]));
    assert_eq!(code, Some(1));
    assert_eq!(
        stderr,
        "rules/a.yaml: No such file or directory (os error 2)\n\
         rules/c: a link to a folder that it is in\n\
         rules/e: Too many levels of symbolic links (os error 40)\n\
         rules/more/b.yaml: No such file or directory (os error 2)\n\
         rules/more/d: a link to a folder that it is in\n\
         rules/z.yaml:1:9: domain: must not be empty\n"
    );
}

#[test]
fn serve_tells_problems_of_settings_and_rules_together_and_exits_with_2() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), "domain: a\nx: 1\n").unwrap();
    let flags = ["serve", "--grpc-addr", "here", "--drain", "5", "--rules", "rules.yaml"];
    let (code, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(flags));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert_eq!(
        stderr,
        "--grpc-addr: `here` is no IP address and port, such as 127.0.0.1:8081\n\
         --drain: `5` is no time from 0ns to 600s, such as 15ms, 5s or 2m\n\
         rules.yaml:2:1: unknown key `x`; known here: domain, descriptors\n"
    );
}

#[test]
fn unknown_flags_exit_with_2() {
    for flags in [&["serve", "--grpc-port", "1"][..], &["bogus"], &["check"], &["call"]] {
        assert_eq!(run(tollkeeper().args(flags)).0, Some(2), "for {flags:?}");
    }
}

#[test]
fn an_address_in_use_ends_the_program_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--grpc-addr", "--http-addr", "--admin-addr"] {
        // The later of two flags wins.
        let (code, stdout, stderr) = run(serve().args([flag, &address]));
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(stderr.contains(&format!("{flag} {address}: Address already in use")), "{stderr}");
    }
}

#[test]
fn when_ready_one_line_tells_addresses_store_rules_and_a_call_to_try() {
    let mut command = serve();
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process::spawn(&mut command);
    let mut line = String::new();
    let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let middle = ", store memory://, rules examples/rules.yaml (built in); try: tollkeeper ";
    let (addresses, call) = line.trim_end().split_once(middle).unwrap_or_else(|| panic!("{line}"));
    assert!(addresses.starts_with("tollkeeper ready: grpc 127.0.0.1:"), "{line}");
    let (code, stdout, stderr) = run(tollkeeper().args(call.split(' ')));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("left of 3 per minute"), "the call meets a rule: {stdout}");
}

#[test]
fn a_closed_stdout_is_no_reason_to_stop() {
    // Nobody reads the ready line: `Service` gives the program no stdout to speak of, and here the
    // reader goes away before it is written.
    let mut command = serve();
    command.args(["--drain", "0s"]).stdout(Stdio::piped());
    let mut process = {
        command.stderr(Stdio::null());
        Process::spawn(&mut command)
    };
    drop(process.0.stdout.take());
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        assert!(process.0.try_wait().unwrap().is_none(), "it has stopped");
        std::thread::yield_now();
    }
}

#[test]
fn call_tells_the_decision_by_its_exit_code() {
    let service = Service::start(Options::default());
    let addr = service.grpc.to_string();
    let call = |flags: &[&str]| {
        let flags = [&["call", "--addr", &addr, "--domain", "shop"], flags].concat();
        let (code, stdout, stderr) = run(tollkeeper().args(flags));
        // Only the year knows how many seconds are left of it.
        let words = stdout
            .split(' ')
            .map(|word| if word.parse::<u64>().is_ok_and(|it| it > 1000) { "N" } else { word });
        (code, words.collect::<Vec<_>>().join(" ") + &stderr)
    };
    let ok = |left: &str| {
        (Some(0), format!("OK\n  user=two: OK, {left} left of 2 per year, resets in N s\n"))
    };
    assert_eq!(call(&["user=two"]), ok("1"));
    assert_eq!(call(&["user=two", "--hits", "0"]), ok("1"));
    assert_eq!(call(&["user=two"]), ok("0"));
    let over = "OVER_LIMIT\n  user=two: OVER_LIMIT, 0 left of 2 per year, resets in N s\n";
    assert_eq!(call(&["user=two"]), (Some(3), over.to_owned()));
    assert_eq!(call(&["user=two", "--hits", "-2"]), ok("2"));
    assert_eq!(call(&["free=x"]), (Some(0), "OK\n  free=x: OK, unlimited\n".to_owned()));
    assert_eq!(call(&["x=y"]), (Some(0), "OK\n  x=y: OK, no limit\n".to_owned()));
    let problem = "user: an entry is written key=value\n";
    assert_eq!(call(&["user"]), (Some(2), problem.to_owned()));
}

#[test]
fn call_tells_an_error_by_its_exit_code() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let flags = ["call", "--addr", &nobody, "--domain", "shop", "user=a"];
    let (code, stdout, stderr) = run(tollkeeper().args(flags));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("refused"), "{stderr}");

    let service = Service::start(Options::default());
    let flags = ["call", "--addr", &service.grpc.to_string(), "--domain", "", "user=a"];
    let (code, _, stderr) = run(tollkeeper().args(flags));
    assert_eq!(code, Some(1));
    assert!(stderr.ends_with(": INVALID_ARGUMENT: domain: must not be empty\n"), "{stderr}");
}

#[test]
fn log_lines_are_coloured_only_on_a_terminal_and_never_with_no_color() {
    // It logs a warning and ends, for the address is taken. Python gives it a terminal of its own.
    const IN_TERMINAL: &str = "import pty, sys; pty.spawn(sys.argv[1:])";
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let flags = ["serve", "--grpc-addr", &taken.local_addr().unwrap().to_string()];
    let log = |command: &mut Command| {
        let (_, stdout, stderr) =
            run(command.args(flags).env("TOLLKEEPER_BOGUS", "1").env_remove("NO_COLOR"));
        let log = stdout + &stderr;
        assert!(log.contains("TOLLKEEPER_BOGUS: no such setting"), "{log}");
        log
    };
    let plain = log(&mut tollkeeper());
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let mut in_terminal = Command::new(tool("python"));
    in_terminal.args(["-c", IN_TERMINAL]).arg(tollkeeper().get_program());
    let coloured = log(&mut in_terminal);
    assert!(coloured.contains('\x1b'), "{coloured:?}");
    let mut in_terminal = Command::new(tool("python"));
    in_terminal.args(["-c", IN_TERMINAL, "env", "NO_COLOR=1"]).arg(tollkeeper().get_program());
    let asked = log(&mut in_terminal);
    assert!(!asked.contains('\x1b'), "{asked:?}");
}
