//! `tollkeeper check`: the rule files that it accepts, refuses or warns about.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::support::{
    pages::{blocks, page},
    root, run, run_with_input,
    service::{serve, tollkeeper},
};

/// Runs `tollkeeper check` on one file of this text, and compares its output without warnings.
#[track_caller]
fn check(rules: &str, expected: &str) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let (code, stdout, stderr) =
        run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
    let problems: String = stderr
        .lines()
        .filter(|line| !line.starts_with("warning: "))
        .map(|line| line.to_owned() + "\n")
        .collect();
    assert_eq!(stdout + &problems, expected);
    assert_eq!(code, Some(i32::from(!expected.starts_with("ok"))));
}

/// Compares the warnings of `check` on one file of this text, which is valid.
#[track_caller]
fn check_warnings(rules: &str, expected: &str) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
    assert_eq!((code, stderr.as_str()), (Some(0), expected));
}

#[test]
fn a_probable_mistake_is_a_warning_not_a_problem() {
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
    value: guest
  - key: user
    descriptors:
      - key: role
  - key: plan
    rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: guest }] }
  - key: bucket
    rate_limit: { unit: day, requests_per_unit: 1, algorithm: token_bucket, count_denied: true }
",
        "\
warning: rules.yaml:6:5: never matches: all its values match the pattern `a*` in line 3 first
warning: rules.yaml:8:17: requests_per_unit: 0 denies every call
warning: rules.yaml:11:17: requests_per_unit: missing; it counts as 0, which denies every call
warning: rules.yaml:18:9: this descriptor has no limit and none below it, so it has no effect
warning: rules.yaml:20:71: replaces: no limit in this domain is named `guest`
warning: rules.yaml:22:17: count_denied: on a token_bucket only for calls with a number of hits, or a steady client would be denied for good
",
    );
}

#[test]
fn the_shipped_rules_are_valid() {
    let (code, stdout, _) =
        run(tollkeeper().current_dir(root()).args(["check", "examples/rules.yaml"]));
    assert_eq!((code, stdout.as_str()), (Some(0), "ok: 4 rules in 1 domain\n"));
}

#[test]
fn every_problem_of_a_file_is_reported_at_once_with_its_location() {
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
    rate_limit: { requests_per_unit: 9007199254740992 }
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
rules.yaml:6:13: unit: must be one of: second, minute, hour, day, week, month, year; not `fortnight`
rules.yaml:7:26: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `-1`
rules.yaml:8:5: key: missing
rules.yaml:9:5: `user` is already defined at rules.yaml:3
rules.yaml:10:52: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `1.5`
rules.yaml:11:5: `user` is already defined at rules.yaml:9
rules.yaml:12:17: unit: missing; must be one of: second, minute, hour, day, week, month, year
rules.yaml:12:38: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `9007199254740992`
rules.yaml:14:30: unlimited: must be true or false
rules.yaml:17:41: unit: not allowed with `unlimited: true`
rules.yaml:19:17: unit_multiplier: 101 years exceed 100 years
rules.yaml:21:48: unit_multiplier: must be a whole number from 1 to 4294967295; not `0`
rules.yaml:22:1: unknown key `limits`; allowed here: domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by
",
    );
}

#[test]
fn a_file_that_is_not_a_rule_file_is_refused_with_its_reason() {
    check("", "rules.yaml:1:1: the file is empty; a rule file starts with `domain:`\n");
    check("# nothing\n", "rules.yaml:1:1: the file is empty; a rule file starts with `domain:`\n");
    check(
        "- a\n",
        "rules.yaml:1:1: a rule file must be a mapping with the keys domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by\n",
    );
    check("domain: ''\n", "rules.yaml:1:9: domain: must not be empty\n");
    check("descriptors: []\n", "rules.yaml:1:1: domain: missing\n");
    check("domain: a\ndomain: b\n", "rules.yaml:2:1: domain: duplicate key\n");
    check(
        "domain: a\n---\ndomain: b\n",
        "rules.yaml:2:1: one YAML document per file; move this one into its own file\n",
    );
    check("domain: a\ndescriptors: 5\n", "rules.yaml:2:14: descriptors: must be a list\n");
}

/// Checks a rule with this limit, and compares the first message, without its location.
#[track_caller]
fn check_limit(limit: &str, expected: &str) {
    let folder = TempDir::new().unwrap();
    let rules = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {limit} }}\n");
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let (_, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]));
    let lines = stdout + &stderr;
    let line = lines.lines().find(|line| !line.starts_with("warning: ")).unwrap_or_default();
    let after_line = line.strip_prefix("rules.yaml:4:");
    let message = match after_line.and_then(|after_line| after_line.split_once(": ")) {
        Some((_column, message)) => message,
        None => line,
    };
    assert_eq!(message.replace("ok: 1 rule in 1 domain", "ok").trim_end(), expected, "{limit}");
}

#[test]
fn every_algorithm_refuses_the_keys_of_others_and_bad_values() {
    check_limit("unit: day, algorithm: sliding_log, remember: k", "ok");
    check_limit("unit: day, algorithm: TOKEN_BUCKET, requests_per_unit: 5, burst: 9", "ok");
    check_limit("unit: week, time_zone: europe/berlin", "ok");
    check_limit("unit: day, on_store_failure: local", "ok");
    check_limit(
        "unit: day, algorithm: leaky",
        "algorithm: must be one of: fixed_window, first_hit_window, sliding_log, sliding_window, \
         token_bucket, in_flight; not `leaky`",
    );
    check_limit(
        "unit: day, on_store_failure: maybe",
        "on_store_failure: must be one of: error, deny, allow, local; not `maybe`",
    );
    check_limit("unit: day, burst: 5", "burst: only for algorithm token_bucket, not fixed_window");
    check_limit(
        "unit: day, remember: k",
        "remember: only for algorithm sliding_log or in_flight, not fixed_window",
    );
    check_limit(
        "unit: day, time_zone: UTC, algorithm: sliding_window",
        "time_zone: only for algorithm fixed_window, not sliding_window",
    );
    check_limit(
        "unit: day, algorithm: token_bucket, requests_per_unit: 5, burst: 0",
        "burst: must be a whole number from 1 to 9007199254740991; not `0`",
    );
    check_limit(
        "unit: day, algorithm: token_bucket, burst: 5",
        "burst: needs a requests_per_unit above 0, or the bucket never refills",
    );
    check_limit(
        "unit: day, algorithm: sliding_log, remember: user",
        "remember: no descriptor on the path to this rule has the key `user`",
    );
    for (limit, problem) in [
        (
            "requests_per_unit: 20",
            "hold: missing; in_flight needs the longest time of a call, such as `10m`",
        ),
        ("hold: 10m, unit: day", "unit: not allowed with in_flight, which has no window"),
        (
            "hold: 10m, requests_per_unit: 10001",
            "requests_per_unit: 10001 exceeds 10000, the largest for in_flight",
        ),
        ("hold: 10m, burst: 3", "burst: only for algorithm token_bucket, not in_flight"),
        ("hold: 10m, time_zone: UTC", "time_zone: only for algorithm fixed_window, not in_flight"),
        (
            "hold: 10m, count_denied: true",
            "count_denied: not possible with in_flight, which stores admitted hits only",
        ),
    ] {
        check_limit(&format!("algorithm: in_flight, {limit}"), problem);
    }
    check_limit(
        "unit: day, algorithm: sliding_log, requests_per_unit: 10001",
        "requests_per_unit: 10001 exceeds 10000, the largest for sliding_log",
    );
    check_limit(
        "unit: day, algorithm: sliding_log, count_denied: true",
        "count_denied: not possible with sliding_log, which stores admitted hits only",
    );
}

#[test]
fn limits_that_scripts_cannot_compute_exactly_are_refused() {
    check_limit("unit: year, algorithm: token_bucket, requests_per_unit: 285616", "ok");
    check_limit(
        "unit: year, algorithm: token_bucket, requests_per_unit: 285617",
        "burst: 285617 exceeds 285616, the largest for a token_bucket with this window",
    );
    check_limit(
        "unit: year, algorithm: sliding_window, requests_per_unit: 285617",
        "requests_per_unit: 285617 exceeds 285616, the largest for a sliding_window with this window",
    );
}

#[test]
fn a_name_that_headers_cannot_hold_is_refused() {
    for name in [r#""a\r\nx-admin: 1""#, r#""a\u007f""#, r#""\u0085""#] {
        let limit = format!("unit: day, requests_per_unit: 1, name: {name}");
        check_limit(&limit, "name: must not have control characters");
    }
    check_limit("unit: day, requests_per_unit: 1, name: 'a b é'", "ok");
}

#[test]
fn numbers_must_be_whole_and_units_known() {
    let number = "requests_per_unit: must be a whole number from 0 to 9007199254740991";
    for wrong in ["-1", "1.5", "1e9", "'5'", "9007199254740992", "many", "08", "_1", "1:30", ".inf"]
    {
        let not = wrong.replace('\'', "\"");
        check_limit(
            &format!("unit: day, requests_per_unit: {wrong}"),
            &format!("{number}; not `{not}`"),
        );
    }
    check_limit("unit: day, requests_per_unit: []", number);
    for right in ["0", "9007199254740991"] {
        check_limit(&format!("unit: SECOND, requests_per_unit: {right}"), "ok");
    }
    let units = "unit: must be one of: second, minute, hour, day, week, month, year; not";
    for wrong in ["sec", "unknown", "''"] {
        check_limit(&format!("unit: {wrong}"), &format!("{units} `{}`", wrong.trim_matches('\'')));
    }
    check_limit(
        "requests_per_unit: 5",
        "unit: missing; must be one of: second, minute, hour, day, week, month, year",
    );
    let misspelt = "unknown key `request_per_unit`; did you mean `requests_per_unit`?";
    check_limit("unit: day, request_per_unit: 5", misspelt);
    check_limit(
        "unit: day, name: a, replaces: [{ name: a }]",
        "replaces: a limit cannot replace itself",
    );
    check_limit("unit: day, replaces: [{ name: '' }]", "name: must not be empty");
    check_limit("unit: day, replaces: [{ name: ~ }]", "name: missing");
    let item = "`- name: other_limit`";
    check_limit(
        "unit: day, replaces: a",
        &format!("replaces: must be a list of items such as {item}"),
    );
    check_limit("unit: day, replaces: [a]", &format!("replaces: write each item as {item}"));
}

#[test]
fn the_nearest_word_is_suggested_for_a_misspelt_value() {
    let units = "unit: must be one of: second, minute, hour, day, week, month, year; not";
    check_limit("unit: minutes", &format!("{units} `minutes`; did you mean `minute`?"));
    check_limit("unit: DAYS", &format!("{units} `DAYS`; did you mean `day`?"));
    check_limit(
        "unit: day, algorithm: token-bucket",
        "algorithm: must be one of: fixed_window, first_hit_window, sliding_log, sliding_window, \
         token_bucket, in_flight; not `token-bucket`; did you mean `token_bucket`?",
    );
    check_limit(
        "unit: day, on_store_failure: lokal",
        "on_store_failure: must be one of: error, deny, allow, local; not `lokal`; did you mean `local`?",
    );
    check_limit(
        "unit: day, time_zone: Europe/Berln",
        "time_zone: `Europe/Berln` is not in the IANA time zone database; did you mean `Europe/Berlin`?",
    );
    check_warnings(
        "\
domain: d
descriptors:
  - key: a
    rate_limit: { name: free, unit: day, requests_per_unit: 1 }
  - key: b
    rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: fre }] }
",
        "warning: rules.yaml:6:71: replaces: no limit in this domain is named `fre`; did you mean `free`?\n",
    );
}

#[test]
fn slot_by_has_the_one_value_domain() {
    let descriptors =
        "descriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 1 }\n";
    check(&format!("domain: d\nslot_by: domain\n{descriptors}"), "ok: 1 rule in 1 domain\n");
    for (value, shown) in
        [("business_id", "`business_id`"), ("domains", "`domains`; did you mean `domain`?")]
    {
        check(
            &format!("domain: d\nslot_by: {value}\n{descriptors}"),
            &format!("rules.yaml:2:10: slot_by: must be one of: domain; not {shown}\n"),
        );
    }
    check(
        "domain: d\ndescriptors: [{ key: k, slot_by: domain }]\n",
        "rules.yaml:2:25: unknown key `slot_by` here; it belongs at the top of the file\n",
    );
}

#[test]
fn a_key_at_the_wrong_level_is_reported_with_the_right_level() {
    check_limit(
        "unit: day, shadow_mode: true",
        "unknown key `shadow_mode` here; it belongs in the descriptor, one level up",
    );
    check_limit(
        "unit: day, descriptors: []",
        "unknown key `descriptors` here; it belongs in the descriptor, one level up",
    );
    check_limit(
        "unit: day, domain: d",
        "unknown key `domain` here; it belongs at the top of the file",
    );
    check(
        "domain: d\nunit: day\nkey: k\ndescriptors: [{ key: k, unit: day, domain: e }]\n",
        "\
rules.yaml:2:1: unknown key `unit` here; it belongs in the `rate_limit` of a descriptor, two levels down
rules.yaml:3:1: unknown key `key` here; it belongs in an item of `descriptors`, one level down
rules.yaml:4:25: unknown key `unit` here; it belongs in `rate_limit`, one level down
rules.yaml:4:36: unknown key `domain` here; it belongs at the top of the file
",
    );
}

#[test]
fn empty_documents_after_the_rules_are_accepted() {
    let rules = "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day } }]\n";
    for end in ["---\n", "---", "---\n---\n# nothing\n", "...\n---\n"] {
        check(&format!("{rules}{end}"), "ok: 1 rule in 1 domain\n");
    }
}

#[test]
fn problems_of_tags_and_merges_are_reported_with_the_others() {
    check(
        "\
domain: !!int 5
descriptors:
  - { key: a, <<: { key: b }, valu: c }
  - { <<: 5, key: b }
---
domain: e
",
        "\
rules.yaml:1:9: the only tag allowed here is `!!str`
rules.yaml:3:15: <<: put it before `key`, which the merged mapping also sets
rules.yaml:3:31: unknown key `valu`; did you mean `value`?
rules.yaml:4:7: <<: must be a mapping, an alias of a mapping, or a list of them
rules.yaml:5:1: one YAML document per file; move this one into its own file
",
    );
}

#[test]
fn kubernetes_objects_are_one_problem_however_many_documents_follow() {
    for (text, kind) in [
        ("kind: ConfigMap\ndata: {}\n---\nkind: Service\n", "ConfigMap"),
        ("kind: List\nitems: []\n", "List"),
    ] {
        check(
            text,
            &format!(
                "rules.yaml:1:1: this is a Kubernetes {kind}, not a rule file; mount it and pass the \
                 folder to --rules, or save the text below `data` as a file of its own\n"
            ),
        );
    }
}

#[test]
fn a_pasted_config_map_is_one_problem_that_says_what_to_do() {
    check(
        "\
apiVersion: v1
kind: ConfigMap
metadata: { name: rules }
data:
  rules.yaml: |
    domain: shop
",
        "rules.yaml:1:1: this is a Kubernetes ConfigMap, not a rule file; mount it and pass the folder \
         to --rules, or save the text below `data` as a file of its own\n",
    );
}

#[test]
fn warnings_fail_the_check_only_with_strict() {
    let folder = TempDir::new().unwrap();
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day }\n";
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let check = |flags: &[&str]| {
        run(tollkeeper().current_dir(&folder).args(["check", "rules.yaml"]).args(flags))
    };
    let warning = "warning: rules.yaml:4:17: requests_per_unit: missing; it counts as 0, which denies every call\n";
    assert_eq!(check(&[]), (Some(0), "ok: 1 rule in 1 domain\n".to_owned(), warning.to_owned()));
    assert_eq!(check(&["--strict"]), (Some(1), String::new(), warning.to_owned()));
}

#[test]
fn the_json_report_lists_problems_and_warnings_with_their_locations() {
    let folder = TempDir::new().unwrap();
    let check = |rules: &str, flags: &[&str]| {
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let (code, stdout, stderr) = run(tollkeeper()
            .current_dir(&folder)
            .args(["check", "--format", "json", "rules.yaml"])
            .args(flags));
        assert_eq!(stderr, "");
        (code, serde_json::from_str::<serde_json::Value>(&stdout).unwrap())
    };
    let missing = serde_json::json!({
        "file": "rules.yaml", "line": 2, "column": 37,
        "message": "requests_per_unit: missing; it counts as 0, which denies every call",
    });
    let mut good = serde_json::json!({
        "ok": true, "rules": 1, "domains": 1, "problems": [], "warnings": [missing],
    });
    let rules = "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day } }]\n";
    assert_eq!(check(rules, &[]), (Some(0), good.clone()));
    good["ok"] = false.into();
    assert_eq!(check(rules, &["--strict"]), (Some(1), good));

    let (code, verdict) = check("domain: ''\n", &[]);
    let problem = serde_json::json!({
        "file": "rules.yaml", "line": 1, "column": 9, "message": "domain: must not be empty",
    });
    assert_eq!((code, &verdict["ok"]), (Some(1), &false.into()));
    assert_eq!(verdict["problems"], serde_json::json!([problem]));
}

#[test]
fn the_keys_of_a_descriptor_are_checked_too() {
    let descriptor = |rest: &str| format!("domain: d\ndescriptors:\n  - {{ key: k, {rest} }}\n");
    let problem = |message: &str| format!("rules.yaml:3:{message}\n");
    let check = |rest: &str, expected: &str| check(&descriptor(rest), &problem(expected));
    check("value: abc, share_threshold: true", "5: share_threshold: needs a `value` with a `*`");
    check("shadow_mode: 1", "28: shadow_mode: must be true or false");
    check("metadata: [1]", "25: metadata: must be a mapping");
    check("metadata: { a: 1, a: 2 }", "33: a: duplicate key");
    check(
        "quota_mode: true, rate_limit: { unit: day, algorithm: sliding_log }",
        "45: quota_mode: not possible with sliding_log, which stores admitted hits only",
    );
    let long = "x".repeat(257);
    let rules = format!("domain: d\ndescriptors:\n  - key: {long}\n");
    super::check::check(&rules, "rules.yaml:3:10: key: 257 bytes exceed 256\n");
}

#[test]
fn an_idle_time_is_shorter_than_the_first_hit_window_that_it_ends() {
    let limit = |keys: &str| format!("unit: hour, algorithm: first_hit_window, {keys}");
    check_limit(&limit("idle: 30m"), "ok");
    check_limit(&limit("idle: 59m59s"), "ok");
    check_limit(&limit("idle: 1h"), "idle: must be shorter than the window");
    for wrong in ["30", "soon", "500ms", "''", "-1m"] {
        let hint = if wrong == "30" { "; did you mean 30s?" } else { "" };
        let expected = format!("idle: must be a duration from 1s to 876000h{hint}");
        check_limit(&limit(&format!("idle: {wrong}")), &expected);
    }
    check_limit(
        "unit: hour, idle: 30m",
        "idle: only for algorithm first_hit_window, not fixed_window",
    );
}

#[test]
fn a_start_needs_a_time_zone_and_the_form_of_its_unit() {
    check_limit("unit: month, time_zone: UTC, starts: 15", "ok");
    check_limit("unit: WEEK, time_zone: UTC, starts: Friday", "ok");
    check_limit("unit: month, starts: 15", "starts: needs a `time_zone`");
    for (unit, starts, form) in [
        ("day", "'6:00'", "a time such as \"06:00\""),
        ("week", "fri", "a weekday such as friday"),
        ("month", "32", "a day from 1 to 31"),
        ("year", "'02-30'", "a month and day such as \"04-01\""),
    ] {
        let text = starts.trim_matches('\'');
        let expected = format!("starts: `{text}` is not {form}, for unit {unit}");
        check_limit(&format!("unit: {unit}, time_zone: UTC, starts: {starts}"), &expected);
    }
}

#[test]
fn a_time_zone_needs_a_known_name_and_a_single_unit_of_day_or_longer() {
    check_limit("unit: hour, time_zone: UTC", "time_zone: needs a unit of day or longer, not hour");
    check_limit(
        "unit: day, time_zone: Europe/Atlantis",
        "time_zone: `Europe/Atlantis` is not in the IANA time zone database",
    );
    check_limit(
        "unit: day, unit_multiplier: 2, time_zone: UTC",
        "time_zone: needs a unit_multiplier of 1",
    );
}

#[test]
fn limits_of_one_descriptor_must_not_share_a_counter() {
    let rules =
        |limits: &str| format!("domain: d\ndescriptors:\n  - key: k\n    rate_limits: {limits}\n");
    let both = "[{ unit: second, requests_per_unit: 5 }, { unit: day, requests_per_unit: 9 }]";
    check(&rules(both), "ok: 1 rule in 1 domain\n");
    check(
        &rules("[{ unit: minute }, { unit: second, unit_multiplier: 60 }]"),
        "rules.yaml:4:37: rate_limits: another item has the same algorithm and window, so both \
         would share a counter\n",
    );
    check(
        &rules(
            "[{ unit: day }, { unit: day, algorithm: sliding_window }, { unit: day, time_zone: UTC }]",
        ),
        "ok: 1 rule in 1 domain\n",
    );
    check(&rules("[]"), "rules.yaml:4:18: rate_limits: must have at least one item\n");
    check(&rules("{}"), "rules.yaml:4:18: rate_limits: must be a list\n");
    check(
        &rules("[{ unlimited: true }]"),
        "rules.yaml:4:19: unlimited: not allowed in `rate_limits`\n",
    );
    check(
        &format!("{}    rate_limit: {{ unit: day }}\n", rules("[{ unit: day }]")),
        "rules.yaml:4:18: rate_limits: not allowed beside `rate_limit`\n",
    );
}

#[test]
fn a_sliding_log_under_count_denied_must_set_it_to_false() {
    let folder = TempDir::new().unwrap();
    let rules =
        "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, algorithm: sliding_log } }]";
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    let flags = ["--count-denied", "--rules", "rules.yaml"];
    let (code, _, stderr) = run(serve().current_dir(&folder).args(flags));
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("count_denied: is on for all rules, but not possible with sliding_log"),
        "{stderr}"
    );
}

#[test]
fn alias_bombs_and_deep_nesting_are_refused() {
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
    let anchors: String = (0..100).map(|level| format!("&b{level} [")).collect();
    let kept = format!("domain: a\nx: {anchors}{}0{}", "0,".repeat(100_000), "]".repeat(100));
    let deep = format!("domain: a\ndescriptors: {}", "[".repeat(10_000));
    let long = format!("domain: a\nx: &x {}\ny: [{}]", "x".repeat(1 << 20), "*x,".repeat(1000));
    for text in [bomb, nest, kept, deep, long] {
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
fn numbers_and_booleans_are_read_as_written_where_text_is_expected() {
    check(
        "\u{feff}domain: 1.10\r\ndescriptors:\r\n  - key: no\r\n    value: 0123\r\n    rate_limit: {unit: DAY}\r\n",
        "ok: 1 rule in 1 domain\n",
    );
}

#[test]
fn only_the_yaml_files_of_a_folder_are_read_and_files_of_one_domain_add_up() {
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
    write("payments", &rule("c"));
    write("a.test.yaml", "not rules");
    write(".a.yaml.swp", "not rules");
    write("..2026/x/a.yaml", &rule("a"));
    let (code, stdout, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "."]));
    assert_eq!((code, stdout.as_str()), (Some(0), "ok: 2 rules in 1 domain\n"));
    let skipped = ["README.md", "payments"].map(|name| {
        format!("warning: ./{name}: not read: the name of a rule file ends in .yaml or .yml\n")
    });
    assert_eq!(stderr, skipped.concat());

    write("c.yaml", &rule("a"));
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "."]));
    assert_eq!(code, Some(1));
    assert_eq!(stderr, "./c.yaml:2:15: `a` is already defined at ./a.yaml:2\n");
}

#[test]
fn files_that_cannot_be_read_are_reported_by_name() {
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
fn an_unreadable_entry_of_a_folder_is_reported_by_path_and_the_others_are_read() {
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
         rules/c: a link to one of its parent folders\n\
         rules/e: Too many levels of symbolic links (os error 40)\n\
         rules/more/b.yaml: No such file or directory (os error 2)\n\
         rules/more/d: a link to one of its parent folders\n\
         rules/z.yaml:1:9: domain: must not be empty\n"
    );
}

#[test]
fn rules_are_read_from_standard_input() {
    let rules = "domain: d\ndescriptors:\n  - { key: k, rate_limit: { unit: day } }\n";
    let run = |words: &[&str], text: &str| run_with_input(tollkeeper().args(words), text);
    let (code, stdout, stderr) = run(&["check", "-"], rules);
    assert_eq!((code, stdout.as_str()), (Some(0), "ok: 1 rule in 1 domain\n"), "{stderr}");
    let (code, stdout, stderr) = run(&["explain", "--rules", "-", "--domain", "d", "k=v"], rules);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("matches rule k, written at standard input:3\n"), "{stdout}");
    let tests = "rules: [examples/rules.yaml]\ntests:\n  - { name: a, domain: x, calls: [{ descriptors: k=v, rule: none }] }\n";
    let (code, stdout, stderr) =
        run_with_input(tollkeeper().current_dir(root()).args(["test", "-"]), tests);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, "standard input\n  ok: a\n1 passed, 0 failed\n");

    for (text, expected) in [
        ("domain: ''", "standard input:1:9: domain: must not be empty\n"),
        ("", "standard input:1:1: the file is empty; a rule file starts with `domain:`\n"),
    ] {
        let (code, stdout, stderr) = run(&["check", "-"], text);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(1), "", expected));
    }
    let mut long = tollkeeper();
    long.args(["check", "-"]).stdin(std::fs::File::open("/dev/zero").unwrap());
    let expected = "standard input: more than 8388608 bytes (8 MiB); split a rule file into several of the same domain\n";
    assert_eq!(crate::support::run(&mut long), (Some(1), String::new(), expected.to_owned()));
}

#[test]
fn an_overlay_is_checked_with_the_rules_and_alone() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "rules.yaml",
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]",
    );
    write("over.yaml", "domain: d\ndescriptors: [{ key: b }]");
    write("bad.yaml", "domain: d\ndefaults: { hold_on: 1 }");
    let check = |args: &[&str]| run(tollkeeper().current_dir(&folder).arg("check").args(args));
    let (code, stdout, stderr) = check(&["rules.yaml", "--rules-overlay", "over.yaml"]);
    let warning = "warning: over.yaml:2:15: no rule matches this descriptor, so it has no effect\n";
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (Some(0), "ok: 1 rule in 1 domain\n", warning)
    );
    let (code, stdout, stderr) = check(&["--rules-overlay", "over.yaml"]);
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (Some(0), "ok: 0 rules in 0 domains\n", "")
    );
    let (code, _, stderr) = check(&["--rules-overlay", "bad.yaml"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.starts_with("bad.yaml:2:13: unknown key `hold_on`"), "{stderr}");
    let (code, ..) = check(&[]);
    assert_eq!(code, Some(2));
}

#[test]
fn explain_knows_overlays() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "rules.yaml",
        "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]",
    );
    write("over.yaml", "domain: d\ndefaults: { on_store_failure: local }");
    let (code, stdout, stderr) = run(tollkeeper().current_dir(&folder).args([
        "explain",
        "--rules",
        "rules.yaml",
        "--rules-overlay",
        "over.yaml",
        "--domain",
        "d",
        "a=b",
    ]));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("local"), "{stdout}");
}

#[test]
fn the_overlays_of_the_pages_match_rules_as_the_gateways_send_them() {
    let quota = "domain: ai-gateway-quota\ndescriptors: [{ key: backend_name, value: default/openai, descriptors: [{ key: model_name_override, value: gpt, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 5000 } }] }]";
    let route = "httproute/default/backend/rule/0/match/0/*";
    let policy = format!(
        "domain: default/eg/http\ndescriptors: [{{ key: '{route}', value: '{route}', descriptors: [{{ key: rule-0-match-0, rate_limit: {{ unit: hour, requests_per_unit: 3 }} }}] }}]"
    );
    let quota_path = "backend_name=default/openai,model_name_override=gpt";
    let policy_path = format!("{route}={route},rule-0-match-0=alice");
    for (name, rules, domain, path, expected) in [
        (
            "ai-gateway.md",
            quota,
            "ai-gateway-quota",
            quota_path,
            "5000000 per day by fixed_window (quota, on_store_failure local",
        ),
        (
            "rules.md",
            quota,
            "ai-gateway-quota",
            quota_path,
            "5000000 per day by sliding_window (quota",
        ),
        (
            "envoy-gateway.md",
            &policy,
            "default/eg/http",
            &policy_path,
            "3 per hour by first_hit_window (enforced, on_store_failure deny",
        ),
    ] {
        let (folder, page) = (TempDir::new().unwrap(), page(name));
        let overlay = blocks(&page, "text").into_iter().find(|block| block.starts_with("domain:"));
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        std::fs::write(folder.path().join("overlay.yaml"), overlay.unwrap()).unwrap();
        let run = |args: &[&str]| {
            run(tollkeeper()
                .current_dir(&folder)
                .args(args)
                .args(["--rules-overlay", "overlay.yaml"]))
        };
        let (code, _, warnings) = run(&["check", "rules.yaml"]);
        assert_eq!((code, warnings.as_str()), (Some(0), ""), "{name}");
        let (_, explained, _) =
            run(&["explain", "--rules", "rules.yaml", "--domain", domain, path]);
        assert!(explained.contains(expected), "{name}: {explained}");
    }
}
