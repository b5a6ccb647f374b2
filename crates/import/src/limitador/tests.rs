use tollkeeper_engine::{request, rule::Policy, rule_set::Found};

use super::*;

fn import(limits: &str, order: &[&str]) -> LimitadorRules {
    let order = order.iter().map(|key| (*key).to_owned()).collect();
    import_text("limits.yaml", limits, &LimitadorOptions { namespace: None, order }).unwrap()
}

/// Compares the rules after the sentence that begins each file.
#[track_caller]
fn check(limits: &str, expected: &str) {
    let rules = import(limits, &[]);
    assert_eq!(rules.refused, []);
    assert_eq!(rules.warnings, []);
    let (_, text) = rules.text.split_once("in this order:\n").unwrap();
    assert_eq!(text, expected.trim_start());
}

/// The problems of a file that gives no rules.
fn problems(limits: &str, namespace: Option<&str>) -> Vec<String> {
    let namespace = namespace.map(str::to_owned);
    let options = LimitadorOptions { namespace, order: Vec::new() };
    let problems = import_text("limits.yaml", limits, &options).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

const GOOD: &str = "- { namespace: shop, max_value: 1, seconds: 1, conditions: [], variables: ['descriptors[0].ok'] }\n";

/// Compares what is refused of a limit with these conditions and variables.
#[track_caller]
fn refused(conditions: &str, variables: &str, expected: &str) {
    let limit = format!(
        "- namespace: shop\n  max_value: 1\n  seconds: 60\n  conditions: {conditions}\n  variables: {variables}\n"
    );
    let rules = import(&(limit + GOOD), &[]);
    let [problem] = rules.refused.as_slice() else { panic!("{:?}", rules.refused) };
    assert_eq!(problem.to_string(), expected);
    assert!(rules.text.ends_with(&format!("# Not imported:\n#   {problem}\n")));
}

#[test]
fn conditions_become_values_and_variables_keys_without_a_value() {
    check(
        r#"
- namespace: shop
  max_value: 5
  seconds: 60
  name: posts
  conditions: ["descriptors[0]['req.method'] == 'POST'"]
  variables: ["descriptors[0].user_id"]
- namespace: shop
  max_value: 100
  seconds: 7200
  conditions: ["descriptors[0]['req.method'] == 'GET' && descriptors[0].user_id == 'no'"]
  variables: ["descriptors[0].user_id"]
"#,
        r#"
#   req.method, user_id
domain: shop
descriptors:
  - key: req.method
    value: POST
    descriptors:
      - key: user_id
        # line 2
        rate_limit: { unit: minute, requests_per_unit: 5, algorithm: first_hit_window, name: posts }
  - key: req.method
    value: GET
    descriptors:
      - key: user_id
        value: "no"
        # line 8
        rate_limit: { unit: hour, unit_multiplier: 2, requests_per_unit: 100, algorithm: first_hit_window }
"#,
    );
}

#[test]
fn limits_of_one_descriptor_are_one_rule_and_of_each_window_the_smallest_counts() {
    check(
        r#"
- { namespace: shop, max_value: 5, seconds: 1, variables: ["descriptors[0].user"], conditions: }
- { namespace: shop, max_value: 90, seconds: 60, variables: ["descriptors[0].user"], conditions: }
- namespace: shop
  max_value: 70
  seconds: 60
  conditions: ["descriptors[0].user != 'probe'"]
  variables: ["descriptors[0]['user']"]
"#,
        r#"
#   user
domain: shop
descriptors:
  - key: user
    value: probe
    rate_limits:
      # line 2
      - { unit: second, requests_per_unit: 5, algorithm: first_hit_window }
      # line 3
      - { unit: minute, requests_per_unit: 90, algorithm: first_hit_window }
  - key: user
    rate_limits:
      # line 2
      - { unit: second, requests_per_unit: 5, algorithm: first_hit_window }
      # the smallest of lines 3, 4
      - { unit: minute, requests_per_unit: 70, algorithm: first_hit_window }
"#,
    );
}

#[test]
fn a_limit_for_any_value_also_applies_to_values_that_other_limits_name() {
    check(
        r#"
- namespace: shop
  max_value: 10
  seconds: 60
  conditions: []
  variables: ["descriptors[0].user", "descriptors[0].path"]
- namespace: shop
  max_value: 2
  seconds: 60
  conditions: ["descriptors[0].user == 'eve'"]
  variables: []
"#,
        r#"
#   user, path
#   user
domain: shop
descriptors:
  - key: user
    value: eve
    # line 7
    rate_limit: { unit: minute, requests_per_unit: 2, algorithm: first_hit_window }
    descriptors:
      - key: path
        # line 2
        rate_limit: { unit: minute, requests_per_unit: 10, algorithm: first_hit_window }
  - key: user
    descriptors:
      - key: path
        # line 2
        rate_limit: { unit: minute, requests_per_unit: 10, algorithm: first_hit_window }
"#,
    );
}

#[test]
fn other_values_than_an_excluded_one_share_a_counter() {
    check(
        r#"
- namespace: shop
  max_value: 10
  seconds: 60
  conditions: ["descriptors[0].path != '/json'", "descriptors[0].path != '/health'"]
  variables: []
- namespace: shop
  max_value: 50000
  seconds: 10
  conditions: ["descriptors[0].path == '/json'"]
  variables: []
"#,
        r#"
#   path
domain: shop
descriptors:
  - key: path
    value: /health
    # no limit
  - key: path
    value: /json
    # line 7
    rate_limit: { unit: second, unit_multiplier: 10, requests_per_unit: 50000, algorithm: first_hit_window }
  - key: path
    value: "*"
    share_threshold: true
    # line 2
    rate_limit: { unit: minute, requests_per_unit: 10, algorithm: first_hit_window }
"#,
    );
}

#[test]
fn a_limit_for_every_call_gets_an_entry_that_envoy_can_always_send() {
    check(
        "- { namespace: shop, max_value: 10, seconds: 60, conditions: , variables: }",
        "
#   generic_key
domain: shop
descriptors:
  - key: generic_key
    value: every_call
    # line 1
    rate_limit: { unit: minute, requests_per_unit: 10, algorithm: first_hit_window }
",
    );
    let rules = import(
        "
- { namespace: shop, max_value: 10, seconds: 60, conditions: , variables: }
- { namespace: shop, max_value: 10, seconds: 60, conditions: , variables: ['descriptors[0].generic_key'] }
",
        &[],
    );
    assert_eq!(
        rules.refused[0].to_string(),
        "limits.yaml:2:3: applies to every call, and so needs an entry generic_key=every_call, but the limit in line 3 \
         names generic_key too; let Envoy send another entry with every call, and compare it in this limit"
    );
}

#[test]
fn the_order_of_entries_is_the_named_one_and_else_that_of_the_first_limit_with_these_keys() {
    let limits = "
- { namespace: shop, max_value: 1, seconds: 1, conditions: , variables: ['descriptors[0].b', 'descriptors[0].a'] }
- { namespace: shop, max_value: 1, seconds: 9, conditions: , variables: ['descriptors[0].a', 'descriptors[0].b'] }
- { namespace: shop, max_value: 1, seconds: 1, conditions: , variables: ['descriptors[0].c', 'descriptors[0].a'] }
";
    let lists = |order: &[&str]| {
        let text = import(limits, order).text;
        text.lines().filter_map(|line| line.strip_prefix("#   ")).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(lists(&[]), "b, a; c, a");
    assert_eq!(lists(&["a"]), "a, b; a, c");
    assert_eq!(lists(&["c", "b", "x"]), "b, a; c, a");
    let warnings = import(limits, &["c", "user", "b"]).warnings;
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["--order: no translated limit has the key `user`"]);
    let warnings = import(GOOD, &["okk"]).warnings;
    let expected = "--order: no translated limit has the key `okk`; did you mean `ok`?";
    assert_eq!(warnings[0].to_string(), expected);
}

#[test]
fn any_text_is_written_so_that_it_is_read_again() {
    for text in [
        "yes",
        "010",
        "1e3",
        "~",
        "a: b",
        "# x",
        "ü",
        "a\u{1}\u{7f}\u{85}\u{2028}\u{feff}",
        "😀\"",
        " x ",
        "-",
    ] {
        let name = text.replace(char::is_control, "");
        let limits = serde_json::json!([{
            "namespace": text, "max_value": 7, "seconds": 60, "name": name,
            "conditions": [format!("descriptors[0]['key'] == '{text}'")], "variables": [],
        }]);
        // JSON is YAML.
        let rules = import(&limits.to_string(), &[]);
        assert_eq!(rules.refused, []);
        let loaded = tollkeeper_rules::parse("r", &rules.text, LoadOptions::default()).unwrap();
        let domain = loaded.rules.domain(text).unwrap();
        let entry = request::Entry { key: "key".into(), value: text.to_owned().into() };
        let Found::Rule(rule) = domain.find(&[entry]) else { panic!("{text}") };
        let Policy::Limited(limits) = &rule.policy else { panic!("{text}") };
        assert_eq!(limits[0].name.as_deref(), Some(&*name));
        assert!(rules.text.chars().all(|character| character == '\n' || !character.is_control()));
    }
}

#[test]
fn what_rules_would_count_otherwise_is_refused_with_its_location_and_a_way_out() {
    refused(
        "[\"descriptors[0].path.startsWith('/api')\"]",
        "[]",
        "limits.yaml:4:16: `descriptors[0].path.startsWith('/api')` is more than comparisons of entries with texts \
         (==, != and &&); let Envoy decide it, send the result as an entry, and compare that",
    );
    refused(
        "[]",
        "[user_id]",
        "limits.yaml:5:15: `user_id`: limitador has matched no name alone since version 2; write \
         descriptors[0]['user_id']",
    );
    refused(
        "[]",
        "['descriptors[1].user']",
        "limits.yaml:5:15: descriptors[1]: a rule sees one descriptor, wherever it is in the call; let Envoy put the \
         entries of this limit into one descriptor, and write descriptors[0]",
    );
    refused(
        "[\"descriptors[0].path == '/a*'\"]",
        "[]",
        "limits.yaml:4:16: `/a*`: in a rule, `*` matches any text; let Envoy send another word for this value",
    );
    refused(
        "[\"descriptors[0].path != ''\"]",
        "[]",
        "limits.yaml:4:16: rules cannot compare with an empty text; let Envoy leave out an empty entry, or send a word \
         for it",
    );
    refused(
        "[\"descriptors[0].path == 'a'\", \"descriptors[0].path != 'a'\"]",
        "[]",
        "limits.yaml:1:3: never applies: its conditions on `path` contradict each other",
    );
    refused(
        "[\"descriptors[0][''] == 'a'\"]",
        "[]",
        "limits.yaml:4:16: the key of an entry must not be empty",
    );
    refused("yes", "[]", "limits.yaml:4:15: conditions: must be a list of expressions");
    let long = "k".repeat(257);
    refused(
        "[]",
        &format!("['descriptors[0].{long}']"),
        "limits.yaml:5:15: a key of 257 bytes exceeds 256",
    );
    let many: Vec<String> = (0..33).map(|number| format!("'descriptors[0].k{number}'")).collect();
    refused(
        "[]",
        &format!("[{}]", many.join(", ")),
        "limits.yaml:1:3: 33 entries exceed 32, the most of a descriptor",
    );
    refused(
        "[]",
        "[\"descriptors[0]['hold.id']\"]",
        "limits.yaml:5:15: no rule has keys that begin with `hold.`, which are parameters of holds; let Envoy send another key",
    );
}

#[test]
fn more_windows_than_a_rule_has_limits_refuse_the_limits_that_follow() {
    let limit = |seconds: usize, conditions: &str| {
        format!(
            "- {{ namespace: shop, max_value: 1, seconds: {seconds}, conditions: [{conditions}], variables: ['descriptors[0].a'] }}\n"
        )
    };
    let mut limits: String = (1..=17).map(|seconds| limit(seconds, "")).collect();
    // The smallest of a window has its place, and so have windows for a value by itself.
    limits += &limit(16, "\"descriptors[0].b == 'x'\"");
    let rules = import(&(limits + GOOD), &[]);
    let refused: Vec<_> = rules.refused.iter().map(ToString::to_string).collect();
    let reason = "a rule has at most 16 limits, and those before it have as many windows for the same entries";
    assert_eq!(refused, [format!("limits.yaml:17:3: {reason}")]);
}

#[test]
fn a_bad_number_or_key_refuses_its_limit_alone() {
    let good = "- { namespace: shop, max_value: 1, seconds: 1, conditions: [], variables: ['descriptors[0].a'] }\n";
    for (bad, expected) in [
        (
            "max_value: 9007199254740992, seconds: 1",
            "max_value: must be a whole number from 0 to 9007199254740991; not `9007199254740992`",
        ),
        (
            "max_value: 1, seconds: 0",
            "seconds: must be a whole number from 1 to 4294967295; not `0`",
        ),
        ("max_value: 1, seconds: 3153600001", "seconds: 3153600001 exceed 100 years"),
        ("seconds: 1", "max_value: missing"),
        (
            "max_value: 1, seconds: 1, condition: []",
            "unknown key `condition`; did you mean `conditions`?",
        ),
    ] {
        let rules = import(&format!("{good}- {{ namespace: shop, {bad} }}\n"), &[]);
        assert_eq!(rules.refused.len(), 1, "{:?}", rules.refused);
        assert_eq!(rules.refused[0].message, expected);
        assert!(rules.text.contains("# line 1\n"));
    }
    let rules = import(&format!("{good}- seconds\n{good}- {{ max_value: 1, seconds: 1 }}\n"), &[]);
    let messages: Vec<&str> =
        rules.refused.iter().map(|problem| problem.message.as_str()).collect();
    let keys = "namespace, max_value, seconds, conditions, variables, name, id";
    assert_eq!(
        messages,
        [&format!("a limit must be a mapping with the keys {keys}"), "namespace: missing"]
    );
    let left_out = "left out: to limitador it is the limit in line 1, which applies instead";
    assert_eq!(rules.warnings[0].to_string(), format!("limits.yaml:3:3: {left_out}"));
}

/// Of two limits: what the second is refused for, if it is.
fn beside(one: [&str; 2], other: [&str; 2]) -> Option<String> {
    let limit = |[conditions, variables]: [&str; 2]| {
        format!(
            "- {{ namespace: shop, max_value: 1, seconds: 1, conditions: [{conditions}], variables: [{variables}] }}\n"
        )
    };
    let rules = import(&(limit(one) + &limit(other)), &["method", "path"]);
    assert!(rules.refused.len() < 2);
    rules.refused.first().map(ToString::to_string)
}

#[test]
fn a_limit_that_counts_values_together_is_refused_beside_one_that_does_not() {
    let together = ["\"descriptors[0].path != '/json'\"", ""];
    let expected = "limits.yaml:2:3: of this limit and the one in line 1, one counts values of `path` together that \
                    the other does not; let Envoy decide the condition with `!=`, send the result as an entry, and \
                    compare that";
    for other in [
        ["", "'descriptors[0].path'"],
        ["\"descriptors[0].path == '/admin'\"", ""],
        ["\"descriptors[0].path != '/admin'\"", ""],
        ["", "'descriptors[0].path', 'descriptors[0].user'"],
        ["\"descriptors[0].path != '/json'\"", "'descriptors[0].path'"],
    ] {
        assert_eq!(beside(together, other).as_deref(), Some(expected), "{other:?}");
        assert_eq!(beside(other, together).as_deref(), Some(expected), "{other:?}");
    }
    for other in [
        ["\"descriptors[0].path == '/json'\"", ""],
        ["\"descriptors[0].path != '/json'\"", "'descriptors[0].user'"],
        ["\"descriptors[0].path == '/json'\"", "'descriptors[0].user'"],
        ["", "'descriptors[0].method', 'descriptors[0].path'"],
        ["", "'descriptors[0].user'"],
    ] {
        assert_eq!(beside(together, other), None, "{other:?}");
        assert_eq!(beside(other, together), None, "{other:?}");
    }
    // Limits that no call has together do not matter to each other.
    let of_gets = ["\"descriptors[0].method == 'GET' && descriptors[0].path != '/json'\"", ""];
    for (method, is_refused) in [("GET", true), ("POST", false)] {
        let each = format!("\"descriptors[0].method == '{method}'\"");
        let refused = beside(of_gets, [&each, "'descriptors[0].path'"]);
        assert_eq!(refused.is_some(), is_refused, "{method}");
    }
    let others =
        ["\"descriptors[0].method != 'GET'\"", "'descriptors[0].method', 'descriptors[0].path'"];
    assert_eq!(beside(of_gets, others), None);
}

#[test]
fn a_file_that_is_no_list_of_limits_of_one_namespace_gives_no_rules() {
    let several = "- { namespace: b }\n- { namespace: a }\n";
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
    let bomb = (b'b'..b'i').fold(bomb.to_owned(), |text, letter| {
        let (this, last) = (letter as char, (letter - 1) as char);
        text + &format!("{this}: &{this} [{}]\n", vec![format!("*{last}"); 10].join(", "))
    });
    for (text, namespace, expected) in [
        ("", None, "limits.yaml:1:1: the file is empty; limitador's is a list of limits"),
        ("a: 1", None, "limits.yaml:1:1: must be a list of at least one limit"),
        ("[]", None, "limits.yaml:1:1: must be a list of at least one limit"),
        ("- 1", None, "limits.yaml:1:3: a limit must be a mapping with the keys "),
        ("[", None, "limits.yaml:2:1: not YAML: "),
        (&bomb, None, "more than 1000000 nodes, aliases included"),
        (&"[".repeat(200), None, "limits.yaml:1:129: nested deeper than 128"),
        (
            "kind: ConfigMap\ndata: {}",
            None,
            "limits.yaml:1:1: this is a Kubernetes ConfigMap; save the list of limits in it as a file of its own",
        ),
        (
            several,
            None,
            "limits.yaml:1:1: the limits have several namespaces, and a rule file has one domain; --namespace must be \
             one of: a, b",
        ),
        (
            several,
            Some("c"),
            "limits.yaml:1:1: no limit has the namespace `c`; --namespace must be one of: a, b",
        ),
    ] {
        let problems = problems(text, namespace);
        assert!(problems[0].contains(expected), "{}", problems[0]);
    }
}

#[test]
fn a_missing_or_empty_namespace_is_named_beside_all_other_problems() {
    let limits = "
- { namespace: '', max_value: 1, seconds: 0, conditions: [], variables: [] }
- { namespace: ~, max_value: 1, seconds: 1, conditions: [], variables: [user] }
- { max_value: 1, seconds: 1, conditions: [yes], variables: ['descriptors[0].a'] }
";
    let old_name = |name: &str| {
        format!(
            "`{name}`: limitador has matched no name alone since version 2; write descriptors[0]['{name}']"
        )
    };
    let expected = [
        "limits.yaml:2:16: namespace: must not be empty",
        "limits.yaml:2:43: seconds: must be a whole number from 1 to 4294967295; not `0`",
        "limits.yaml:3:16: namespace: missing",
        &format!("limits.yaml:3:73: {}", old_name("user")),
        "limits.yaml:4:3: namespace: missing",
        &format!("limits.yaml:4:44: {}", old_name("yes")),
        "limits.yaml: no limit can be translated, and a rule file needs at least one",
    ];
    assert_eq!(problems(limits, None), expected);
    assert_eq!(problems(limits, Some("shop")), expected);
    // Beside a namespace, they are problems of their limits alone.
    let rules = import(&(GOOD.to_owned() + limits), &[]);
    let refused: Vec<String> =
        rules.refused.iter().map(|problem| problem.message.clone()).collect();
    assert_eq!(refused.len(), 6);
    assert_eq!(refused[0], "namespace: must not be empty");
}

#[test]
fn a_problem_of_the_file_is_reported_beside_those_of_its_limits() {
    let limits = "- { namespace: shop, max_value: 1, seconds: 0 }\n---\n[]\n";
    let expected = [
        "limits.yaml:1:45: seconds: must be a whole number from 1 to 4294967295; not `0`",
        "limits.yaml:2:1: one YAML document per file; move this one into its own file",
        "limits.yaml: no limit can be translated, and a rule file needs at least one",
    ];
    assert_eq!(problems(limits, None), expected);
}

#[test]
fn a_file_whose_limits_are_all_refused_gives_no_rules_and_says_so() {
    let limit = "- { namespace: shop, max_value: 1, seconds: 1, conditions: [], variables: [\"limit.id\"] }";
    let problems = problems(limit, None);
    assert_eq!(problems.len(), 2);
    assert!(problems[0].starts_with("limits.yaml:1:76: `limit.id` is more than"), "{problems:?}");
    let expected = "limits.yaml: no limit can be translated, and a rule file needs at least one";
    assert_eq!(problems[1], expected);
}

#[test]
fn of_several_namespaces_the_chosen_one_is_translated() {
    let limit = |namespace: &str, variable: &str| {
        format!(
            "- {{ namespace: {namespace}, max_value: 1, seconds: 1, conditions: [], variables: [{variable}] }}\n"
        )
    };
    let limits =
        limit("a", "'descriptors[0].x'") + &limit("b", "bad") + &limit("b", "'descriptors[0].y'");
    for (namespace, refused, line) in [("a", 0, "# line 1\n"), ("b", 1, "# line 3\n")] {
        let options = LimitadorOptions { namespace: Some(namespace.to_owned()), order: vec![] };
        let rules = import_text("limits.yaml", &limits, &options).unwrap();
        assert_eq!(rules.refused.len(), refused);
        assert!(rules.text.contains(&format!("domain: {namespace}\n")));
        assert_eq!(rules.text.matches("# line ").count(), 1);
        assert!(rules.text.contains(line));
    }
}

#[test]
fn limits_that_multiply_are_bounded() {
    let mut limits = String::new();
    for number in 0..2000 {
        limits += &format!(
            "- {{ namespace: n, max_value: 1, seconds: 1, conditions: [\"descriptors[0].a == '{number}'\"], variables: [] }}\n\
             - {{ namespace: n, max_value: 1, seconds: {}, conditions: [], variables: ['descriptors[0].a'] }}\n",
            number + 1
        );
    }
    limits += "- { namespace: n, max_value: 1, seconds: 0 }";
    let too_many = "limits.yaml:1:1: too many limits: counted for each of their entries, and those for any value \
                    again for each value that others name, they exceed 40000";
    let expected = [
        too_many,
        "limits.yaml:4001:42: seconds: must be a whole number from 1 to 4294967295; not `0`",
    ];
    assert_eq!(problems(&limits, None), expected);
    let many = "- { namespace: n }\n".repeat(LIMITS_MAX + 1);
    let expected = "limits.yaml:1:1: 10001 limits of one namespace exceed 10000";
    assert_eq!(problems(&many, None), [expected]);
    let keys: String = (0..31).map(|key| format!(" && descriptors[0].k{key} == 'v'")).collect();
    let of_32_entries = |value: usize| {
        format!(
            "- {{ namespace: n, max_value: 1, seconds: 1, conditions: [\"descriptors[0].a == '{value}'{keys}\"] }}\n"
        )
    };
    let limits: String = (0..1300).map(of_32_entries).collect();
    assert_eq!(problems(&limits, None), [too_many]);
}

/// YAML 1.1 has more line breaks than YAML 1.2.
#[test]
fn a_comment_is_one_line_to_readers_of_any_yaml() {
    let limit = "- namespace: shop\n  max_value: 1\n  seconds: 60\n  conditions: [\"f('\u{2028}evil: 1\u{85}')\"]\n";
    let text = import(&(limit.to_owned() + GOOD), &[]).text;
    assert!(text.contains("evil: 1"), "{text}");
    assert!(!text.contains(['\u{85}', '\u{2028}']), "{text:?}");
}
