//! The JSON Schemas of rule files and test files agree with the program and with the manual.

use crate::support::prelude::*;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Whether each `*.yaml` of a folder satisfies a schema, by an independent validator, as in an editor.
fn satisfied(schema: &str, folder: &Path) -> Vec<bool> {
    let script = "import json, sys, pathlib, yaml, jsonschema\n\
                  schema = json.load(open(sys.argv[1]))\n\
                  jsonschema.Draft202012Validator.check_schema(schema)\n\
                  validator = jsonschema.Draft202012Validator(schema)\n\
                  for file in sorted(pathlib.Path(sys.argv[2]).glob('*.yaml')):\n\
                  \x20 print(validator.is_valid(yaml.safe_load(file.read_text())))";
    let mut python = Command::new(tool("python"));
    let (code, stdout, stderr) =
        run(python.args(["-c", script]).arg(root().join(schema)).arg(folder));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    stdout.lines().map(|line| line == "True").collect()
}

#[test]
fn the_schemas_in_docs_are_those_that_the_program_prints() {
    for (flags, file) in [
        (&["schema"][..], "docs/rules.schema.json"),
        (&["schema", "--tests"], "docs/tests.schema.json"),
    ] {
        let (_, printed, _) = run(tollkeeper().args(flags));
        assert!(read(file) == printed, "`tollkeeper {} > {file}` writes another", flags.join(" "));
    }
}

/// On files that try every key.
#[test]
fn the_schema_and_the_check_agree_but_on_keys_that_do_not_fit_together() {
    let folder = TempDir::new().unwrap();
    let pages = read("docs/rules.md") + &read("docs/algorithms.md");
    let mut files: Vec<String> = blocks(&pages, "yaml").into_iter().map(str::to_owned).collect();
    files.push(read("examples/rules.yaml"));
    files.extend(TOP.map(str::to_owned));
    let head = "domain: d\ndescriptors:\n";
    let descriptor = |keys: &str| format!("{head}- {{ {keys} }}\n");
    let limit = |keys: &str| format!("{head}- {{ key: k, rate_limit: {{ {keys} }} }}\n");
    files.extend(DESCRIPTORS.map(descriptor));
    files.extend(LIMITS.map(limit));
    let for_the_check = files.len();
    files.extend(DESCRIPTORS_THAT_DO_NOT_FIT.map(descriptor));
    files.extend(LIMITS_THAT_DO_NOT_FIT.map(limit));
    for (index, text) in files.iter().enumerate() {
        fs::write(folder.path().join(format!("{index:03}.yaml")), text).unwrap();
    }
    let satisfied = satisfied("docs/rules.schema.json", folder.path());
    assert_eq!(satisfied.len(), files.len());
    let (mut good, mut bad) = (0, 0);
    for (index, text) in files.iter().enumerate() {
        let file = format!("{index:03}.yaml");
        let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["check", &file]));
        let is_good = code == Some(0);
        let do_keys_fit = index < for_the_check;
        assert_eq!(satisfied[index], is_good || !do_keys_fit, "{text}{stderr}");
        assert!(do_keys_fit || !is_good, "{text}");
        *(if is_good { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 40 && bad > 60, "{good} good files, {bad} bad ones");
}

const TOP: [&str; 29] = [
    "{}",
    "domain: a",
    "domain: 5",
    "domain: ''",
    "domain: ~",
    "domain: a\ndescriptors: ~",
    "domain: a\ndescriptors: []",
    "domain: a\ndescriptors: {}",
    "domain: a\ndescriptors: [a]",
    "domain: a\nlimits: []",
    "domain: a\nunit: day",
    "domain: a\nslot_by: domain",
    "domain: a\nslot_by: Domain",
    "domain: a\nslot_by: ~",
    "domain: a\nslot_by: business_id",
    "domain: a\ndefaults: { algorithm: sliding_window, count_denied: true, scale: 7 }",
    "domain: a\ndefaults:",
    "domain: a\ndefaults: 5",
    "domain: a\ndefaults: { unit: day }",
    "domain: a\ndefaults: { burst: 0 }",
    "domain: a\ndefaults: { name: a }",
    "domain: a\nrequire: [user, 5]",
    "domain: a\nrequire: user",
    "domain: a\nrequire: []",
    "domain: a\nrequire: ['']",
    "domain: a\nrequire: { user: 1 }",
    "domain: a\nrequire: [a]\nrequire_mode: REPORT\nquota_group: [a, b]",
    "domain: a\nrequire: [a]\nrequire_mode: allow",
    "[]",
];

const DESCRIPTORS: [&str; 43] = [
    "key: k",
    "value: v",
    "key: ''",
    "key: 5",
    "key: ~",
    "key: []",
    "key: k, value: 5",
    "key: k, value: yes",
    "key: k, value: ''",
    "key: k, value: ~",
    "key: k, value: {}",
    "key: k, rate_limit: ~",
    "key: k, rate_limit: []",
    "key: k, rate_limit: 5",
    "key: k, rate_limits: ~",
    "key: k, rate_limits: []",
    "key: k, rate_limits: {}",
    "key: k, rate_limits: [{ unit: day }]",
    "key: k, rate_limits: [{ unlimited: true }]",
    "key: k, rate_limits: [{ unlimited: false, unit: day }]",
    "key: k, rate_limits: [~]",
    "key: k, rate_limit: ~, rate_limits: [{ unit: hour }]",
    "key: k, rate_limit: { unit: hour }, rate_limits: ~",
    "key: k, descriptors: ~",
    "key: k, descriptors: [{ key: l }]",
    "key: k, descriptors: [{ value: l }]",
    "key: k, descriptors: 5",
    "key: k, shadow_mode: true, quota_mode: false, detailed_metric: ~, value_to_metric: true",
    "key: k, shadow_mode: 1",
    "key: k, shadow_mode: 'true'",
    "key: k, quota_mode: maybe",
    "key: k, quota_mode: true, rate_limit: { unit: day, algorithm: token_bucket }",
    "key: k, quota_mode: false, rate_limit: { unit: day, algorithm: sliding_log }",
    "key: k, share_threshold: true, value: 'v*'",
    "key: k, share_threshold: false, value: v",
    "key: k, metadata: {}",
    "key: k, metadata: ~",
    "key: k, metadata: []",
    "key: k, metadata: { a: { b: [1, x, ~] } }",
    "key: k, metadata: text",
    "key: k, unit: day",
    "key: k, valu: v",
    "key: k, domain: d",
];

/// The check alone refuses these.
const DESCRIPTORS_THAT_DO_NOT_FIT: [&str; 6] = [
    "key: k, rate_limit: { unit: day }, rate_limits: [{ unit: hour }]",
    "key: k, quota_mode: true, rate_limit: { unit: day, algorithm: sliding_log }",
    "key: k, quota_mode: true, rate_limits: [{ unit: day, algorithm: Sliding_Log }]",
    "key: k, quota_mode: true, rate_limit: { algorithm: in_flight, hold: 10m }",
    "key: k, share_threshold: true",
    "key: k, share_threshold: true, value: v",
];

const LIMITS: [&str; 64] = [
    "unit: day",
    "unit: DAY",
    "unit: days",
    "unit: 5",
    "unit: []",
    "unit: day, requests_per_unit: 0",
    "unit: day, requests_per_unit: 010",
    "unit: day, requests_per_unit: 9007199254740991",
    "unit: day, requests_per_unit: 9007199254740992",
    "unit: day, requests_per_unit: -1",
    "unit: day, requests_per_unit: 1.5",
    "unit: day, requests_per_unit: '5'",
    "unit: day, requests_per_unit: ~",
    "unit: day, unit_multiplier: 0",
    "unit: day, unit_multiplier: 36500",
    "unit: year, unit_multiplier: 100",
    "unit: second, unit_multiplier: 3153600000",
    "unlimited: true",
    "unlimited: true, unit: odd",
    "unlimited: true, unit: ~",
    "unlimited: true, requests_per_unit: 5, name: n, burst: 5",
    "unlimited: ~, unit: day",
    "unlimited: 1, unit: day",
    "unit: day, algorithm: ~",
    "unit: day, algorithm: TOKEN_BUCKET",
    "unit: day, algorithm: leaky",
    "unit: day, algorithm: token_bucket, requests_per_unit: 5, burst: 9",
    "unit: day, algorithm: token_bucket, requests_per_unit: 5, burst: 0",
    "unit: day, algorithm: token_bucket, requests_per_unit: 5, burst: ~",
    "unit: year, algorithm: token_bucket, requests_per_unit: 285616",
    "unit: year, algorithm: token_bucket, requests_per_unit: 285617, burst: 1",
    "unit: year, algorithm: sliding_window, requests_per_unit: 285616",
    "unit: minute, algorithm: sliding_window, requests_per_unit: 150119987579",
    "unit: second, algorithm: token_bucket, requests_per_unit: 1, burst: 9007199254740",
    "unit: day, algorithm: sliding_log, requests_per_unit: 10000, remember: k",
    "unit: day, algorithm: sliding_log, count_denied: false",
    "unit: day, remember: ~",
    "unit: day, time_zone: Europe/Berlin",
    "unit: day, unit_multiplier: 1, algorithm: fixed_window, time_zone: UTC",
    "unit: day, time_zone: []",
    "algorithm: in_flight, requests_per_unit: 20, hold: 10m",
    "algorithm: IN_FLIGHT, requests_per_unit: 10000, hold: { for: 10m }, remember: k",
    "algorithm: in_flight, hold: 10m, unit: ~, unit_multiplier: ~, count_denied: false",
    "unit: day, algorithm: first_hit_window, idle: 30m",
    "unit: day, algorithm: first_hit_window, idle: 1h30m",
    "unit: day, algorithm: first_hit_window, idle: ~",
    "unit: day, algorithm: first_hit_window, idle: 30",
    "unit: day, algorithm: first_hit_window, idle: ''",
    "unit: day, algorithm: first_hit_window, idle: 1m1h",
    "unit: day, time_zone: UTC, starts: '06:00'",
    "unit: day, time_zone: UTC, starts: '23:59'",
    "unit: day, time_zone: UTC, starts: ~",
    "unit: Week, time_zone: UTC, starts: FRIDAY",
    "unit: month, time_zone: UTC, starts: 31",
    "unit: month, time_zone: UTC, starts: '01'",
    "unit: year, time_zone: UTC, starts: '02-29'",
    "unit: year, time_zone: UTC, starts: '12-31'",
    "unit: month, time_zone: UTC, starts: [1]",
    "unit: day, on_store_failure: LOCAL",
    "unit: day, on_store_failure: maybe",
    "unit: day, replaces: [{ name: a }]",
    "unit: day, replaces: [{ name: '' }]",
    "unit: day, replaces: [a]",
    "unit: day, replaces: { name: a }",
];

/// The check alone refuses these.
const LIMITS_THAT_DO_NOT_FIT: [&str; 42] = [
    "",
    "unit: ~",
    "requests_per_unit: 5",
    "unit: day, unit_multiplier: 36501",
    "unit: YEAR, unit_multiplier: 101",
    "unit: second, unit_multiplier: 3153600001",
    "unlimited: true, unit: day",
    "unlimited: true, unit: DAY",
    "unlimited: false",
    "unit: day, algorithm: token_bucket, burst: 9",
    "unit: day, algorithm: token_bucket, requests_per_unit: 0, burst: 9",
    "unit: day, requests_per_unit: 5, burst: 9",
    "unit: year, algorithm: token_bucket, requests_per_unit: 285617",
    "unit: year, algorithm: token_bucket, requests_per_unit: 1, burst: 285617",
    "unit: year, algorithm: sliding_window, requests_per_unit: 285617",
    "unit: minute, algorithm: sliding_window, requests_per_unit: 150119987580",
    "unit: second, algorithm: token_bucket, requests_per_unit: 1, burst: 9007199254741",
    "unit: day, algorithm: sliding_log, requests_per_unit: 10001",
    "unit: day, algorithm: sliding_log, count_denied: true",
    "unit: day, remember: k",
    "unit: hour, time_zone: Europe/Berlin",
    "unit: day, unit_multiplier: 2, time_zone: UTC",
    "unit: day, algorithm: sliding_window, time_zone: UTC",
    "algorithm: in_flight, requests_per_unit: 20",
    "algorithm: in_flight, hold: 10m, requests_per_unit: 10001",
    "algorithm: in_flight, hold: 10m, unit: day",
    "algorithm: in_flight, hold: 10m, unit_multiplier: 2",
    "algorithm: in_flight, hold: 10m, time_zone: UTC",
    "algorithm: in_flight, hold: 10m, requests_per_unit: 5, burst: 9",
    "algorithm: in_flight, hold: 10m, count_denied: true",
    "unit: day, algorithm: fixed_window, remember: k",
    "unit: day, idle: 30m",
    "unit: day, starts: '06:00'",
    "unit: day, time_zone: UTC, starts: '24:00'",
    "unit: day, time_zone: UTC, starts: monday",
    "unit: week, time_zone: UTC, starts: fri",
    "unit: week, time_zone: UTC, starts: 5",
    "unit: month, time_zone: UTC, starts: 0",
    "unit: month, time_zone: UTC, starts: 32",
    "unit: year, time_zone: UTC, starts: '02-30'",
    "unit: year, time_zone: UTC, starts: '4-1'",
    "unit: year, time_zone: UTC, starts: '06:00'",
];

#[test]
fn the_schema_of_tests_and_the_test_command_agree() {
    let folder = TempDir::new().unwrap();
    let rules =
        "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 9 } }]\n";
    fs::create_dir(folder.path().join("rules")).unwrap();
    fs::write(folder.path().join("rules/rules.yaml"), rules).unwrap();
    let mut files = Vec::new();
    for call in CALLS {
        files.push(format!(
            "rules: rules\ntests: [{{ name: n, domain: d, calls: [{{ {call} }}] }}]\n"
        ));
    }
    files.extend(SUITES.map(str::to_owned));
    for (index, text) in files.iter().enumerate() {
        fs::write(folder.path().join(format!("{index:03}.yaml")), text).unwrap();
    }
    let satisfied = satisfied("docs/tests.schema.json", folder.path());
    for (index, text) in files.iter().enumerate() {
        let file = format!("{index:03}.yaml");
        let flags = ["test", "--format", "json", &file];
        let (_, stdout, _) = run(tollkeeper().current_dir(&folder).args(flags));
        let report: Value = serde_json::from_str(&stdout).unwrap();
        let is_read = report["problems"].as_array().unwrap().is_empty();
        assert_eq!(satisfied[index], is_read, "{text}{stdout}");
    }
}

const CALLS: [&str; 27] = [
    "descriptors: k=v",
    "descriptors: [k=v, k=w], hits: 2, expect: OK, remaining: [5, 5], rule: [k, k]",
    "descriptors: k=v, at: 90s, hits: 0, expect: over_limit, remaining: 3, rule: none",
    "descriptors: k=v, at: ~, hits: ~, expect: ~, remaining: ~, rule: ~",
    "descriptors: k=v, at: 500ms, hits: -1",
    "at: 0s",
    "descriptors: k=v, hold: one",
    "commit: []",
    "commit: 1, hold: {}",
    "abandon: []",
    "of: one",
    "descriptors: ''",
    "descriptors: []",
    "descriptors: {}",
    "descriptors: k=v, at: soon",
    "descriptors: k=v, at: 5",
    "descriptors: k=v, hits: x",
    "descriptors: k=v, hits: 1.5",
    "descriptors: k=v, expect: MAYBE",
    "descriptors: k=v, remaining: []",
    "descriptors: k=v, remaining: -1",
    "descriptors: k=v, remaining: x",
    "descriptors: k=v, rule: []",
    "descriptors: k=v, rule: {}",
    "descriptors: k=v, rule: ''",
    "descriptors: k=v, rules: k",
    "cal: k=v",
];

const SUITES: [&str; 11] = [
    "{}",
    "[]",
    "rules: rules",
    "tests: [{ name: n, domain: d, calls: [{ descriptors: k=v }] }]",
    "rules: [rules]\ntests: [{ name: n, domain: d, calls: [{ descriptors: k=v }] }]",
    "rules: []\ntests: [{ name: n, domain: d, calls: [{ descriptors: k=v }] }]",
    "rules: rules\ntests: []",
    "rules: rules\ntests: [{ name: '', domain: d, calls: [{ descriptors: k=v }] }]",
    "rules: rules\ntests: [{ name: n, calls: [{ descriptors: k=v }] }]",
    "rules: rules\ntests: [{ name: n, domain: d, calls: [] }]",
    "rules: rules\ntests: [{ name: n, domain: d, calls: [{ descriptors: k=v }], begin: now }]",
];

/// The page has a row for each key, with the schema's own description.
#[test]
fn every_key_and_its_description_are_in_the_page() {
    let page = read("docs/rules.md");
    for file in ["docs/rules.schema.json", "docs/tests.schema.json"] {
        let schema: Value = serde_json::from_str(&read(file)).unwrap();
        let definitions = schema["$defs"].as_object().unwrap();
        let mut keys = 0;
        for level in definitions.values().chain([&schema]) {
            for (key, value) in level["properties"].as_object().unwrap() {
                let description = value["description"].as_str().unwrap();
                let row = page.lines().find(|line| {
                    line.starts_with(&format!("| `{key}` | "))
                        && line.ends_with(&format!(" | {description} |"))
                });
                assert!(row.is_some(), "docs/rules.md: | `{key}` | … | {description} |");
                keys += 1;
            }
        }
        assert!(keys > 10, "{keys} keys in {file}");
    }
}
