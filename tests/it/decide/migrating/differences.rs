//! Rule files of envoyproxy/ratelimit are read alike here, or docs/migrating-reference.md lists the difference.

use super::{ask, headers, metadata};
use crate::support::{prelude::*, rows::rows};

const ROWS: &str = include_str!("differences.txt");

fn page() -> String {
    std::fs::read_to_string(root().join("docs/migrating-reference.md")).unwrap()
}

/// Runs `tollkeeper check` on one file: whether it is valid, and the messages without their locations.
#[track_caller]
fn checked(rules: &str) -> (bool, Vec<String>) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("r.yaml"), rules).unwrap();
    let (code, _, stderr) = run(tollkeeper().current_dir(&folder).args(["check", "r.yaml"]));
    let mut messages = Vec::new();
    for line in stderr.lines() {
        let after_file = line.split("r.yaml").nth(1);
        let message = after_file.and_then(|after_file| after_file.split_once(": "));
        messages.extend(message.map(|(_location, message)| message.to_owned()));
    }
    (code == Some(0), messages)
}

/// The values are from gopkg.in/yaml.v2 2.4.0, which envoyproxy/ratelimit uses.
#[tokio::test]
async fn numbers_merge_keys_and_nulls_are_read_as_in_envoyproxy_ratelimit() {
    let rules = "
domain: shop
descriptors:
  - &octal { key: octal, rate_limit: &limit { unit: year, requests_per_unit: 010 } }
  - { key: new_octal, rate_limit: { <<: *limit, requests_per_unit: 0o11 } }
  - { key: hex, rate_limit: { <<: [{ requests_per_unit: 0x10 }, *limit] } }
  - { key: binary, rate_limit: { <<: *limit, requests_per_unit: 0b11 } }
  - { key: grouped, rate_limit: { unit: year, requests_per_unit: +1_000 } }
  - { <<: *octal, value: exact }
  - { key: free, rate_limit: }
  - { key: none, rate_limit: { unit: year, requests_per_unit: ~, unlimited: NULL, name: ~ } }
  - { key: nothing, value: Null, shadow_mode: ~, descriptors: null, metadata: ~, rate_limit: *limit }
  - { key: odd, rate_limit: { unlimited: Yes, unit: fortnight } }
  - { key: unknown, rate_limit: { unlimited: y, unit: '' } }
";
    let service = Service::with(rules).start();
    for (key, expected) in [
        ("octal", "OK: OK 7/8 YEAR"),
        ("new_octal", "OK: OK 8/9 YEAR"),
        ("hex", "OK: OK 15/16 YEAR"),
        ("binary", "OK: OK 2/3 YEAR"),
        ("grouped", "OK: OK 999/1000 YEAR"),
        ("free", "OK: OK -"),
        ("none", "OVER_LIMIT: OVER_LIMIT 0/0 YEAR"),
        ("nothing", "OK: OK 7/8 YEAR"),
        ("odd", "OK: OK unlimited"),
        ("unknown", "OK: OK unlimited"),
    ] {
        assert_eq!(service.answer(&format!("{key}=x")).await, expected, "{key}");
    }
    assert_eq!(service.answer("octal=exact").await, "OK: OK 7/8 YEAR");

    let (good, warnings) = checked(rules);
    let expected = [
        "requests_per_unit: `010` is octal, and means 8",
        "this descriptor has no limit and none below it, so it has no effect",
        "rate_limit: empty, so there is no limit here",
        "requests_per_unit: missing; it counts as 0, which denies every call",
        "unit: `fortnight` is ignored, since nothing is limited",
    ];
    assert!(good);
    assert_eq!(warnings, expected);
}

#[tokio::test]
async fn metadata_is_read_as_in_envoyproxy_ratelimit() {
    let rules = "
domain: shop
descriptors:
  - key: one
    metadata: { a: 010, b: yes, c: 1_000, d: Null, e: 2024-01-01, g: 0x10, i: y, j: 1e3, k: tRUE, on: '5' }
    rate_limit: { unit: year, requests_per_unit: 1 }
";
    let service = Service::with(rules).flags(&["--dynamic-metadata"]).start();
    let metadata = metadata(&service, shop("one=x")).await;
    let expected = r#""metadata":{"a":8,"b":true,"c":1000,"d":null,"e":"2024-01-01","g":16,"i":true,"j":1000,"k":"tRUE","on":"5"}}"#;
    assert!(metadata.ends_with(expected), "{metadata}");
}

/// Each case has its message, and a part of the page's row that gives the reason.
#[test]
fn the_page_lists_what_is_refused_here_and_accepted_by_envoyproxy_ratelimit() {
    let page = page();
    let descriptor = |rest: &str| format!("domain: d\ndescriptors:\n- {{ key: k, {rest} }}\n");
    let of = |section, form: &dyn Fn(&str) -> String| {
        let form = |[text, message, row]: [String; 3]| [form(&text), message, row];
        rows(ROWS, section).into_iter().map(form).collect::<Vec<_>>()
    };
    let refused = [of("files", &str::to_owned), of("descriptors", &descriptor)].concat();
    for [rules, message, row] in refused {
        let shown: String = rules.chars().take(100).collect();
        let (good, messages) = checked(&rules);
        assert!(!good, "{shown}");
        assert!(messages.contains(&message), "{shown}: {messages:?}");
        assert!(page.contains(&row), "docs/migrating-reference.md does not list `{row}`");
    }
}

#[test]
fn yaml_that_is_valid_in_1_1_and_1_2_is_accepted() {
    for rules in [
        "domain: d\ndescriptors: !!seq [!!map { key: !!str 5, rate_limit: { unit: day, requests_per_unit: 1 } }]\n",
        "--- # a comment\ndomain: d\ndescriptors:\n- key: ! 5\n  rate_limit: { unit: day, requests_per_unit: 1 }\n...\n",
        "{\n\t\"domain\": \"d\",\n\t\"descriptors\": [\n\t\t{ \"key\": \"k\", \"rate_limit\": { \"unit\": \"day\", \"requests_per_unit\": 1 } }\n\t]\n}\n",
    ] {
        assert_eq!(checked(rules), (true, Vec::new()), "{rules}");
    }
}

#[tokio::test]
async fn the_page_lists_the_answers_that_differ() {
    let rules = "
domain: shop
descriptors:
  - { key: file, value: 'a*', rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: file, value: 'ab*', rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
";
    let flags = &["--headers", "ratelimit", "--dynamic-metadata"];
    let service = Service::with(rules).flags(flags).start();
    let page = page();
    let listed = |row: &str| {
        assert!(page.contains(row), "docs/migrating-reference.md does not list `{row}`")
    };

    // In envoyproxy/ratelimit, it matches the second pattern.
    assert_eq!(service.answer("file=ab*").await, "OK: OK 4/5 YEAR");
    listed("a value that spells a later pattern");

    // In envoyproxy/ratelimit, 2 are left for the first descriptor and 1 for the second.
    let twice = "user=x user=x";
    assert_eq!(service.answer(twice).await, "OK: OK 1/3 YEAR, OK 1/3 YEAR");
    let over = "OVER_LIMIT: OVER_LIMIT 0/3 YEAR, OVER_LIMIT 0/3 YEAR";
    assert_eq!(service.answer(twice).await, over);
    listed("one counter twice in a call");

    assert_eq!(service.answer(&"user=x,".repeat(33)).await, "InvalidArgument");
    listed("at most 64 descriptors (`--max-descriptors`) of 32 entries, no empty key");

    assert_eq!(service.answer(&format!("{}=x", "k".repeat(257))).await, "OK: OK -");
    listed("keys and values of any length");

    let denied = headers(&ask(&service, twice).await);
    assert!(denied.ends_with("Retry-After: N"), "{denied}");
    listed("in a denial also `Retry-After`");

    let metadata = metadata(&service, shop("user=x(;5/MINUTE)")).await;
    let limit = "requests_per_unit:5 unit:MINUTE";
    assert!(metadata.contains(&format!("\"limit\":\"{limit}\"")), "{metadata}");
    listed(limit);
}
