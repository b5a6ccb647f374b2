//! `tollkeeper test`: tests of rules, run by people and by CI systems.

use crate::support::{prelude::*, rows::rows};

const ROWS: &str = include_str!("rule_tests.txt");

const RULES: &str = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 2, time_zone: Europe/Berlin }\n  - { key: k, value: free }\n";

/// Runs `tollkeeper test .` with these calls in one test.
#[track_caller]
fn test_calls(calls: &str) -> (Option<i32>, String, String) {
    test_file("rules.test.yaml", &format!("{HEAD}{calls}"), &[])
}

const HEAD: &str = "rules: [rules.yaml]\ntests:\n  - name: two a day\n    domain: d\n    start: 2026-03-28T23:00:00Z\n    calls:\n";

#[track_caller]
fn test_file(name: &str, text: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    std::fs::write(folder.path().join(name), text).unwrap();
    run(tollkeeper().current_dir(&folder).args(["test", "."]).args(flags))
}

/// Compares stdout, which ends with the summary, and the exit code, which depends on the summary.
#[track_caller]
fn check(calls: &str, expected: &str) {
    let (code, stdout, stderr) = test_calls(calls);
    assert_eq!((stdout.as_str(), stderr.as_str()), (expected, ""));
    let failed = !expected.ends_with(", 0 failed\n");
    assert_eq!(code, Some(i32::from(failed)));
}

#[track_caller]
fn check_failure(calls: &str, failure: &str) {
    check(calls, &format!("./rules.test.yaml\n  FAILED: two a day\n{failure}0 passed, 1 failed\n"));
}

/// Compares the problem of an invalid test file, without the file's name.
#[track_caller]
fn check_problem(calls: &str, problem: &str) {
    let (code, stdout, stderr) = test_calls(calls);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stderr.contains(problem), "{stderr}");
    assert!(stdout.starts_with("no tests run: "), "{stdout}");
}

#[test]
fn the_shipped_tests_pass_and_are_listed() {
    let examples = run(tollkeeper().current_dir(root()).args(["test", "examples"]));
    let expected = "examples/budgets/rules.test.yaml
  ok: what a call holds is taken from the budget until its commit
  ok: a call that reached no upstream costs nothing
  ok: a call whose commit is lost costs its estimate
examples/rules.test.yaml
  ok: ten requests of a user in a minute pass
  ok: a login that is denied costs the user nothing
5 passed, 0 failed
";
    assert_eq!(examples, (Some(0), expected.to_owned(), String::new()));
}

#[test]
fn calls_have_times_hits_and_expectations() {
    let passed = "./rules.test.yaml\n  ok: two a day\n1 passed, 0 failed\n";
    check("      - { call: [k=v, k=w], expect: OK }\n", passed);
    // On this day the clocks in Berlin go forward, so it has 23 hours.
    let day = "      - { descriptors: k=v, hits: 2, expect: OK, remaining: [0], rule: k }
      - { at: 1379m, descriptors: k=v, expect: over_limit }
      - { descriptors: k=v, expect: OVER_LIMIT }
      - { at: 23h, descriptors: k=v, hits: 0, remaining: 2 }
      - { at: 23h, descriptors: k=v, hits: -1, expect: OK }
";
    check(day, passed);
}

/// Runs these calls on a rule that holds hits, and returns stdout.
fn test_holds(calls: &str) -> (Option<i32>, String, String) {
    let folder = TempDir::new().unwrap();
    let rules = "domain: d
descriptors:
  - { key: k, rate_limit: { unit: day, requests_per_unit: 100, hold: { for: 10m, estimate: 60 } } }
  - { key: r, rate_limit: { unit: day, requests_per_unit: 100, hold: { for: 10m, estimate: 60, by: counter } } }
  - { key: i, rate_limit: { unit: day, requests_per_unit: 100, hold: { for: 10m, estimate: 60, by: id } } }
  - { key: w, rate_limit: { unit: day, requests_per_unit: 100, hold: { for: 10m, weights: { out: 5 } } } }
  - key: b
    rate_limits:
      - { unit: day, requests_per_unit: 100, hold: { for: 10s, estimate: 1 } }
      - { unit: hour, requests_per_unit: 100, hold: { for: 1m, estimate: 1 } }
";
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    std::fs::write(folder.path().join("rules.test.yaml"), format!("{HEAD}{calls}")).unwrap();
    run(tollkeeper().current_dir(&folder).args(["test", "."]))
}

#[test]
fn holds_are_taken_committed_and_abandoned() {
    for calls in [
        "      - { call: k=v, hold: one, remaining: 40 }
      - { call: k=v, expect: OVER_LIMIT }
      - { at: 1m, commit: 42 }
      - { at: 1m, call: k=v, hits: 0, remaining: 58 }
      - { at: 2m, commit: 7, of: one, expect: repeated }
      - { at: 2m, call: 'k=v,hold.estimate=8', hold: two, remaining: 50 }
      - { at: 3m, commit: 10, of: two, expect: overrun }
      - { at: 3m, call: k=v, hits: 0, remaining: 48 }
      - { at: 10m, abandon: one }
",
        "      - { call: k=v, hold: lost, remaining: 40 }
      - { at: 10m, abandon: lost }
      - { at: 10m, commit: 0, of: lost, expect: late }
      - { at: 10m, call: k=v, hits: 0, remaining: 40 }
",
        "      - { call: 'w=v,hold.estimate.out=9', hold: one, remaining: 55 }
      - { commit: 'hold.used.out=3,hold.end=200 -', expect: committed }
      - { call: w=v, hits: 0, remaining: 85 }
",
        // Of several limits, one is enough for a commit to have an effect.
        "      - { call: b=v, hold: one, remaining: 99 }
      - { at: 30s, commit: 5 }
      - { at: 30s, call: b=v, hits: 0, remaining: 95 }
      - { at: 30s, commit: 5, expect: late }
      - { at: 1m, commit: 5, expect: late }
",
        // Without tokens: a call with hits is the commit, or the second with the same id.
        "      - { call: r=v, hits: 0, remaining: 40 }
      - { call: r=v, hits: 0, expect: OVER_LIMIT }
      - { call: r=v, hits: 42, remaining: 58 }
      - { call: 'i=v,hold.id=x', remaining: 40 }
      - { call: 'i=v,hold.id=x', hits: 42 }
      - { call: i=v, hits: 0, remaining: 58 }
",
    ] {
        let passed = "./rules.test.yaml\n  ok: two a day\n1 passed, 0 failed\n";
        assert_eq!(test_holds(calls), (Some(0), passed.to_owned(), String::new()), "{calls}");
    }
}

#[test]
fn a_hold_that_is_not_taken_or_a_commit_without_effect_fails_the_test() {
    for [calls, failure] in rows(ROWS, "failed holds") {
        let (code, stdout, stderr) = test_holds(&format!("      - {{ {calls} }}\n"));
        assert_eq!((code, stderr.as_str()), (Some(1), ""), "{stdout}");
        assert!(stdout.contains(&format!("{failure}\n")), "{stdout}");
    }
    for [calls, problem] in rows(ROWS, "holds") {
        let (code, stdout, stderr) = test_holds(&format!("      - {{ {calls} }}\n"));
        assert_eq!(code, Some(1), "{stdout}");
        assert!(stderr.contains(&problem), "{stderr}");
    }
}

#[test]
fn a_failed_test_shows_the_expected_and_the_actual_decision() {
    check_failure(
        "      - { descriptors: [k=v, k=w], hits: 2, expect: OVER_LIMIT, remaining: [1, 0], rule: [k, j] }\n",
        "    ./rules.test.yaml:7:9, at 0s: k=v k=w
      expected: OVER_LIMIT, remaining 1, 0, rule k, j
      actual:   OK, remaining 0, 0, rule k, k
",
    );
}

#[test]
fn a_descriptor_that_matches_no_rule_fails_unless_the_test_says_so() {
    let unmatched = |call: &str, problem: &str| {
        check_failure(
            &format!("      - {{ descriptors: {call}, expect: OK }}\n"),
            &format!(
                "    ./rules.test.yaml:7:9, at 0s: {call}\n      {problem}\n      if this is intended, write `rule: none`\n"
            ),
        );
    };
    unmatched("j=v", "j=v matches no rule");
    unmatched("k=free", "k=free matches no rule");
    check(
        "      - { descriptors: j=v, expect: OK, rule: none }\n      - { descriptors: [k=free, k=v], rule: [none, k] }\n",
        "./rules.test.yaml\n  ok: two a day\n1 passed, 0 failed\n",
    );
    check_failure(
        "      - { descriptors: k=v, rule: none }\n",
        "    ./rules.test.yaml:7:9, at 0s: k=v\n      expected: rule none\n      actual:   rule k\n",
    );

    let text =
        "rules: rules.yaml\ntests: [{ name: a, domain: shop, calls: [{ descriptors: a=b }] }]\n";
    let (code, stdout, _) = test_file("a.test.yaml", &text.replace("shop", "dd"), &[]);
    assert_eq!(code, Some(1));
    let problem = "no rule file has the domain `dd`; did you mean `d`?";
    assert!(stdout.contains(problem), "{stdout}");
    for expected in ["remaining: 3", "rule: k"] {
        let text = text.replace("shop", "dd").replace("a=b", &format!("a=b, {expected}"));
        let (code, stdout, _) = test_file("a.test.yaml", &text, &[]);
        assert_eq!(code, Some(1));
        let [difference, named] = ["actual: ", problem].map(|part| stdout.find(part).unwrap());
        assert!(difference < named, "{stdout}");
    }
    let meant = text.replace("a=b", "a=b, rule: none");
    assert_eq!(test_file("a.test.yaml", &meant, &[]).0, Some(0));
}

#[test]
fn a_mistake_in_a_test_file_is_a_problem_with_its_location() {
    for [call, problem] in rows(ROWS, "calls") {
        let (code, stdout, stderr) = test_calls(&format!("      - {{ {call} }}\n"));
        let expected =
            (Some(1), "no tests run: 1 problem\n", format!("./rules.test.yaml:{problem}\n"));
        assert_eq!((code, &*stdout, stderr), expected, "{call}");
    }
    for [file, problem] in rows(ROWS, "files") {
        let (code, _, stderr) = test_file("a.test.yaml", &file, &[]);
        let problems = stderr.replace("./a.test.yaml:", "");
        assert_eq!((code, problems.trim_end()), (Some(1), &*problem), "{file}");
    }
}

#[test]
fn a_call_that_the_service_refuses_is_a_problem() {
    let call =
        |descriptors: &str| format!("      - {{ descriptors: [{descriptors}], rule: none }}\n");
    let entries = |count: usize| format!("'{}'", vec!["j=v"; count].join(","));
    let passed = "./rules.test.yaml\n  ok: two a day\n1 passed, 0 failed\n";
    check(&call(&entries(32)), passed);
    check_problem(&call(&entries(33)), "7:25: descriptors[0].entries: 33 exceeds 32");
    let calls = vec!["k=v"; 65].join(", ");
    let calls = format!("      - {{ descriptors: [{calls}] }}\n");
    check_problem(&calls, "7:24: descriptors: 65 exceeds 64");
    let text =
        "rules: rules.yaml\ntests: [{ name: a, domain: '', calls: [{ descriptors: k=v }] }]\n";
    let (code, _, stderr) = test_file("a.test.yaml", text, &[]);
    let expected = "./a.test.yaml:2:28: domain: must not be empty\n";
    assert_eq!((code, stderr.as_str()), (Some(1), expected));
}

#[test]
fn a_rule_file_in_place_of_a_test_file_is_one_problem() {
    let (code, _, stderr) = test_file("a.test.yaml", RULES, &[]);
    let message = "this is a rule file; a test file has rules: and tests:";
    assert_eq!((code, stderr), (Some(1), format!("./a.test.yaml:1:1: {message}\n")));
}

#[test]
fn tests_are_found_in_folders_by_their_names() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("deep")).unwrap();
    let text =
        "rules: rules.yaml\ntests: [{ name: NAME, domain: d, calls: [{ descriptors: k=v }] }]\n";
    write("rules.yaml", RULES);
    write("a.test.yml", &text.replace("NAME", "first"));
    write(
        "deep/b.test.yaml",
        &text.replace("rules.yaml", "../rules.yaml").replace("NAME", "second"),
    );
    write("test.yaml", "no test");
    let (code, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(["test", "."]));
    let expected =
        "./a.test.yml\n  ok: first\n./deep/b.test.yaml\n  ok: second\n2 passed, 0 failed\n";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), expected, ""));
    // With either ending, test files are not rule files.
    let checked = run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml", "deep"]));
    assert_eq!(
        (checked.0, checked.2.as_str()),
        (Some(1), "deep: no .yaml or .yml file in this folder\n")
    );

    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let (code, stdout, stderr) =
        run(tollkeeper().current_dir(&folder).args(["test", "gone", "empty", "a.test.yml"]));
    assert_eq!(code, Some(1));
    assert_eq!(stdout, "a.test.yml\n  ok: first\n1 passed, 0 failed, 2 problems\n");
    assert!(stderr.contains("gone: No such file"), "{stderr}");
    assert!(stderr.contains("empty: no .test.yaml or .test.yml file in this folder"), "{stderr}");
}

const MIXED: &str = "rules: rules.yaml
tests:
  - { name: good, domain: d, calls: [{ descriptors: k=v }] }
  - { name: 'bad & <worse>', domain: d, calls: [{ descriptors: k=v, expect: OVER_LIMIT }] }
";

#[test]
fn the_json_report_lists_every_test() {
    let (code, stdout, stderr) = test_file("a.test.yaml", MIXED, &["--format", "json"]);
    assert_eq!((code, stderr.as_str()), (Some(1), ""));
    let failure = "./a.test.yaml:4:49, at 0s: k=v\n  expected: OVER_LIMIT\n  actual:   OK";
    let (file, good, bad) = ("./a.test.yaml", "./a.test.yaml:3:5", "./a.test.yaml:4:5");
    let expected = json!({
        "passed": 1, "failed": 1, "problems": [],
        "tests": [
            { "file": file, "name": "good", "location": good, "status": "passed" },
            { "file": file, "name": "bad & <worse>", "location": bad, "status": "failed", "failure": failure },
        ],
    });
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), expected);

    let (code, stdout, stderr) = test_file("a.test.yaml", "{}", &["--format", "json"]);
    assert_eq!((code, stderr.as_str()), (Some(1), ""));
    let problems = ["rules: missing", "tests: missing"]
        .map(|message| json!({ "file": file, "line": 1, "column": 1, "message": message }));
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["problems"], json!(problems));
}

/// Another program reads the report, as a CI system would.
#[test]
fn the_junit_report_has_a_case_for_every_test_and_every_problem() {
    assert_eq!(
        cases(MIXED),
        "./a.test.yaml good []\n./a.test.yaml bad & <worse> [('failure', './a.test.yaml:4:49, at 0s: k=v')]\n"
    );
    let missing = |name| format!("./a.test.yaml:1:1: {name}: missing");
    let (rules, tests) = (missing("rules"), missing("tests"));
    let expected = format!(
        "./a.test.yaml problem 1 [('error', '{rules}')]\n\
         ./a.test.yaml problem 2 [('error', '{tests}')]\n"
    );
    assert_eq!(cases("{}"), expected);
}

/// The cases of the JUnit report on this test file, which fails: their names, failures and errors.
fn cases(text: &str) -> String {
    let read = "import sys, xml.etree.ElementTree as tree\n\
                for case in tree.fromstring(sys.stdin.buffer.read()).iter('testcase'):\n\
                \x20 inner = [(child.tag, child.get('message')) for child in case]\n\
                \x20 print(case.get('classname'), case.get('name'), inner)";
    let (code, stdout, stderr) = test_file("a.test.yaml", text, &["--format", "junit"]);
    assert_eq!((code, stderr.as_str()), (Some(1), ""));
    let file = TextFile::new("report.xml", stdout);
    let report = std::fs::File::open(&*file).unwrap();
    run(std::process::Command::new(tool("python")).args(["-c", read]).stdin(report)).1
}
