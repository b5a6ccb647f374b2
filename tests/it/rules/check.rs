//! `tollkeeper check`: what it warns about, reads and reports. `wire/bad_input/rule_files.txt` has the texts that it refuses.

use crate::support::{prelude::*, run_with_input};

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
  - key: Authorization
    rate_limit: { unit: day, requests_per_unit: 1 }
  - { key: api_key, secret: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - key: hot
    rate_limit: { unit: day, requests_per_unit: 1, lease: auto, ban_for: 1m }
",
        "\
warning: rules.yaml:6:5: never matches: all its values match the pattern `a*` in line 3 first
warning: rules.yaml:8:17: requests_per_unit: 0 denies every call
warning: rules.yaml:11:17: requests_per_unit: missing; it counts as 0, which denies every call
warning: rules.yaml:18:9: this descriptor has no limit and none below it, so it has no effect
warning: rules.yaml:20:71: replaces: no limit in this domain is named `guest`
warning: rules.yaml:22:17: count_denied: on a token_bucket only for calls with a number of hits, or a steady client would be denied for good
warning: rules.yaml:23:5: key: its values look like credentials, which everybody who reads the store sees; set `secret: true`
warning: rules.yaml:27:59: lease: has no effect on a limit with hold, priority, count_denied, ban_for, shadow_mode or quota_mode
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
rules.yaml:22:1: unknown key `limits`; allowed here: domain, name, descriptors, defaults, require, require_mode, quota_group, draw, slot_by
",
    );
}

#[test]
fn the_nearest_name_is_suggested_for_a_misspelt_limit() {
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
