//! Rule files: each bad text, and every problem that `tollkeeper check` reports, with its location.

use tempfile::TempDir;

use super::Table;
use crate::support::{run, service::tollkeeper};

/// The name of the case, the rule file, and its problems. Most texts are one descriptor or one limit; see
/// [`text`].
const CASES: &[(&str, Text, &str)] = &[
    ("an_empty_file", Text::File(""), "1:1: the file is empty; a rule file starts with `domain:`"),
    (
        "only_comments",
        Text::File("# nothing\n"),
        "1:1: the file is empty; a rule file starts with `domain:`",
    ),
    (
        "a_null",
        Text::File("~\n"),
        "1:1: a rule file must be a mapping with the keys domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by",
    ),
    (
        "a_scalar",
        Text::File("domain\n"),
        "1:1: a rule file must be a mapping with the keys domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by",
    ),
    (
        "a_list",
        Text::File("- domain: d\n"),
        "1:1: a rule file must be a mapping with the keys domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by",
    ),
    ("an_empty_mapping", Text::File("{}\n"), "1:1: domain: missing"),
    (
        "a_tab_as_indent",
        Text::File("domain: d\ndescriptors:\n\t- key: k\n"),
        "3:2: not YAML: tabs disallowed within this context (block indentation)",
    ),
    (
        "an_open_bracket",
        Text::File("domain: [d\n"),
        "2:1: not YAML: while parsing a flow sequence, expected ',' or ']'",
    ),
    (
        "an_open_quote",
        Text::File("domain: 'd\n"),
        "1:9: not YAML: while scanning a quoted scalar, found unexpected end of stream",
    ),
    (
        "a_bad_escape_in_quotes",
        Text::File("domain: \"\\q\"\n"),
        "1:9: not YAML: while parsing a quoted scalar, found unknown escape character",
    ),
    (
        "an_unknown_alias",
        Text::File("domain: *d\n"),
        "1:9: not YAML: while parsing node, found unknown anchor",
    ),
    (
        "an_alias_of_itself",
        Text::File("domain: d\nx: &a [*a]\n"),
        "2:8: alias of something that contains it",
    ),
    (
        "two_documents",
        Text::File("domain: d\n---\ndomain: e\n"),
        "2:1: one YAML document per file; move this one into its own file",
    ),
    ("a_duplicate_domain_key", Text::File("domain: d\ndomain: e\n"), "2:1: domain: duplicate key"),
    (
        "a_duplicate_key_in_a_descriptor",
        Text::Descriptor("key: a, key: b"),
        "3:15: key: duplicate key",
    ),
    ("no_domain", Text::File("descriptors: []\n"), "1:1: domain: missing"),
    ("an_empty_domain", Text::File("domain: ''\n"), "1:9: domain: must not be empty"),
    ("a_null_domain", Text::File("domain: ~\n"), "1:9: domain: missing"),
    ("a_list_as_domain", Text::File("domain: [d]\n"), "1:9: domain: must be text"),
    ("a_mapping_as_domain", Text::File("domain: { d: e }\n"), "1:9: domain: must be text"),
    (
        "an_unknown_top_key",
        Text::File("domain: d\nlimits: []\n"),
        "2:1: unknown key `limits`; allowed here: domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by",
    ),
    (
        "a_misspelt_top_key",
        Text::File("domain: d\ndescriptor: []\n"),
        "2:1: unknown key `descriptor`; did you mean `descriptors`?",
    ),
    (
        "an_upper_case_top_key",
        Text::File("Domain: d\n"),
        "1:1: domain: missing\n1:1: unknown key `Domain`; did you mean `domain`?",
    ),
    (
        "descriptors_as_a_word",
        Text::File("domain: d\ndescriptors: a\n"),
        "2:14: descriptors: must be a list",
    ),
    (
        "descriptors_as_a_mapping",
        Text::File("domain: d\ndescriptors: { key: k }\n"),
        "2:14: descriptors: must be a list",
    ),
    (
        "a_descriptor_as_a_word",
        Text::File("domain: d\ndescriptors: [k]\n"),
        "2:15: a descriptor must be a mapping with the keys key, value, rate_limit, rate_limits, descriptors, shadow_mode, quota_mode, share_threshold, detailed_metric, value_to_metric, metadata",
    ),
    (
        "a_null_descriptor",
        Text::File("domain: d\ndescriptors: [~]\n"),
        "2:15: a descriptor must be a mapping with the keys key, value, rate_limit, rate_limits, descriptors, shadow_mode, quota_mode, share_threshold, detailed_metric, value_to_metric, metadata",
    ),
    ("a_descriptor_without_a_key", Text::Descriptor("value: v"), "3:5: key: missing"),
    ("an_empty_key", Text::Descriptor("key: ''"), "3:12: key: must not be empty"),
    ("a_null_key", Text::Descriptor("key: ~"), "3:12: key: missing"),
    ("a_list_as_key", Text::Descriptor("key: [k]"), "3:12: key: must be text"),
    ("a_key_of_257_bytes", Text::Key(257), "3:12: key: 257 bytes exceed 256"),
    (
        "a_mapping_as_value",
        Text::Descriptor("key: k, value: { a: b }"),
        "3:22: value: must be text",
    ),
    (
        "a_duplicate_descriptor",
        Text::Descriptor("key: k }\n  - { key: k"),
        "4:5: `k` is already defined at rules.yaml:3",
    ),
    (
        "a_duplicate_value",
        Text::Descriptor("key: k, value: v }\n  - { key: k, value: 'v'"),
        "4:5: `k=v` is already defined at rules.yaml:3",
    ),
    (
        "a_misspelt_descriptor_key",
        Text::Descriptor("key: k, valu: v"),
        "3:15: unknown key `valu`; did you mean `value`?",
    ),
    (
        "a_limit_at_the_wrong_level",
        Text::Descriptor("key: k, unit: day"),
        "3:15: unknown key `unit` here; it belongs in `rate_limit`, one level down",
    ),
    (
        "a_switch_as_a_number",
        Text::Descriptor("key: k, shadow_mode: 1"),
        "3:28: shadow_mode: must be true or false",
    ),
    (
        "a_switch_as_text",
        Text::Descriptor("key: k, quota_mode: 'yes'"),
        "3:27: quota_mode: must be true or false",
    ),
    (
        "metadata_as_a_list",
        Text::Descriptor("key: k, metadata: [1]"),
        "3:25: metadata: must be a mapping",
    ),
    (
        "a_shared_threshold_without_a_star",
        Text::Descriptor("key: k, value: v, share_threshold: true"),
        "3:5: share_threshold: needs a `value` with a `*`",
    ),
    (
        "quota_on_a_sliding_log",
        Text::Descriptor(
            "key: k, quota_mode: true, rate_limit: { unit: day, algorithm: sliding_log }",
        ),
        "3:45: quota_mode: not possible with sliding_log, which stores admitted hits only",
    ),
    (
        "a_limit_beside_limits",
        Text::Descriptor("key: k, rate_limit: { unit: day }, rate_limits: [{ unit: day }]"),
        "3:55: rate_limits: not allowed beside `rate_limit`",
    ),
    (
        "an_empty_list_of_limits",
        Text::Descriptor("key: k, rate_limits: []"),
        "3:28: rate_limits: must have at least one item",
    ),
    (
        "17_limits",
        Text::Descriptor(
            "key: k, rate_limits: [{ unit: day, unit_multiplier: 1, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 2, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 3, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 4, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 5, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 6, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 7, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 8, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 9, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 10, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 11, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 12, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 13, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 14, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 15, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 16, requests_per_unit: 1 }, \
             { unit: day, unit_multiplier: 17, requests_per_unit: 1 }]",
        ),
        "3:28: rate_limits: 17 items exceed 16",
    ),
    (
        "a_word_as_limits",
        Text::Descriptor("key: k, rate_limits: day"),
        "3:28: rate_limits: must be a list",
    ),
    (
        "a_word_as_limit",
        Text::Descriptor("key: k, rate_limit: day"),
        "3:27: a rate_limit must be a mapping with the keys unit, unit_multiplier, requests_per_unit, scale, unlimited, count_denied, algorithm, burst, idle, time_zone, starts, override_max, remember, on_store_failure, denied_body, hold, priority, ban_for, tiers, name, replaces",
    ),
    (
        "an_unlimited_item_of_limits",
        Text::Descriptor("key: k, rate_limits: [{ unlimited: true }]"),
        "3:29: unlimited: not allowed in `rate_limits`",
    ),
    (
        "two_limits_on_one_counter",
        Text::Descriptor(
            "key: k, rate_limits: [{ unit: minute }, { unit: second, unit_multiplier: 60 }]",
        ),
        "3:47: rate_limits: another item has the same algorithm and window, so both would share a counter",
    ),
    (
        "no_unit",
        Text::Limit("requests_per_unit: 1"),
        "3:27: unit: missing; must be one of: second, minute, hour, day, week, month, year",
    ),
    (
        "a_null_unit",
        Text::Limit("unit: ~, requests_per_unit: 1"),
        "3:27: unit: missing; must be one of: second, minute, hour, day, week, month, year",
    ),
    (
        "an_unknown_unit",
        Text::Limit("unit: fortnight"),
        "3:35: unit: must be one of: second, minute, hour, day, week, month, year; not `fortnight`",
    ),
    (
        "an_abbreviated_unit",
        Text::Limit("unit: sec"),
        "3:35: unit: must be one of: second, minute, hour, day, week, month, year; not `sec`",
    ),
    (
        "a_plural_unit",
        Text::Limit("unit: hours"),
        "3:35: unit: must be one of: second, minute, hour, day, week, month, year; not `hours`; did you mean `hour`?",
    ),
    (
        "an_empty_unit",
        Text::Limit("unit: ''"),
        "3:35: unit: must be one of: second, minute, hour, day, week, month, year; not ``",
    ),
    (
        "the_unit_unknown",
        Text::Limit("unit: unknown"),
        "3:35: unit: must be one of: second, minute, hour, day, week, month, year; not `unknown`",
    ),
    ("a_list_as_unit", Text::Limit("unit: [day]"), "3:35: unit: must be text"),
    (
        "a_number_as_unit",
        Text::Limit("unit: 60"),
        "3:35: unit: must be one of: second, minute, hour, day, week, month, year; not `60`",
    ),
    (
        "negative_requests",
        Text::Limit("unit: day, requests_per_unit: -1"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `-1`",
    ),
    (
        "a_fraction_of_requests",
        Text::Limit("unit: day, requests_per_unit: 1.5"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `1.5`",
    ),
    (
        "exponential_requests",
        Text::Limit("unit: day, requests_per_unit: 1e9"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `1e9`",
    ),
    (
        "requests_over_53_bits",
        Text::Limit("unit: day, requests_per_unit: 9007199254740992"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `9007199254740992`",
    ),
    (
        "quoted_requests",
        Text::Limit("unit: day, requests_per_unit: '5'"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `\"5\"`",
    ),
    (
        "requests_in_words",
        Text::Limit("unit: day, requests_per_unit: many"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `many`",
    ),
    (
        "infinite_requests",
        Text::Limit("unit: day, requests_per_unit: .inf"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `.inf`",
    ),
    (
        "requests_that_are_no_number",
        Text::Limit("unit: day, requests_per_unit: .nan"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `.nan`",
    ),
    (
        "a_list_of_requests",
        Text::Limit("unit: day, requests_per_unit: [5]"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991",
    ),
    (
        "requests_with_a_unit",
        Text::Limit("unit: day, requests_per_unit: 5k"),
        "3:59: requests_per_unit: must be a whole number from 0 to 9007199254740991; not `5k`",
    ),
    (
        "a_multiplier_of_0",
        Text::Limit("unit: day, unit_multiplier: 0"),
        "3:57: unit_multiplier: must be a whole number from 1 to 4294967295; not `0`",
    ),
    (
        "a_negative_multiplier",
        Text::Limit("unit: day, unit_multiplier: -1"),
        "3:57: unit_multiplier: must be a whole number from 1 to 4294967295; not `-1`",
    ),
    (
        "a_multiplier_over_100_years",
        Text::Limit("unit: year, unit_multiplier: 101"),
        "3:27: unit_multiplier: 101 years exceed 100 years",
    ),
    (
        "a_multiplier_over_32_bits",
        Text::Limit("unit: second, unit_multiplier: 4294967296"),
        "3:60: unit_multiplier: must be a whole number from 1 to 4294967295; not `4294967296`",
    ),
    (
        "an_unknown_algorithm",
        Text::Limit("unit: day, algorithm: leaky"),
        "3:51: algorithm: must be one of: fixed_window, first_hit_window, sliding_log, sliding_window, token_bucket, in_flight; not `leaky`",
    ),
    (
        "the_leaky_bucket_of_others",
        Text::Limit("unit: day, algorithm: leaky_bucket"),
        "3:51: algorithm: must be one of: fixed_window, first_hit_window, sliding_log, sliding_window, token_bucket, in_flight; not `leaky_bucket`; `token_bucket` (GCRA) is the leaky bucket here",
    ),
    (
        "half_of_an_algorithm",
        Text::Limit("unit: day, algorithm: sliding"),
        "3:51: algorithm: must be one of: fixed_window, first_hit_window, sliding_log, sliding_window, token_bucket, in_flight; not `sliding`; did you mean `sliding_window` or `sliding_log`?",
    ),
    (
        "a_dash_in_an_algorithm",
        Text::Limit("unit: day, algorithm: token-bucket"),
        "3:51: algorithm: must be one of: fixed_window, first_hit_window, sliding_log, sliding_window, token_bucket, in_flight; not `token-bucket`; did you mean `token_bucket`?",
    ),
    (
        "a_burst_of_0",
        Text::Limit("unit: day, algorithm: token_bucket, requests_per_unit: 1, burst: 0"),
        "3:94: burst: must be a whole number from 1 to 9007199254740991; not `0`",
    ),
    (
        "a_burst_over_53_bits",
        Text::Limit(
            "unit: day, algorithm: token_bucket, requests_per_unit: 1, burst: 9007199254740992",
        ),
        "3:94: burst: must be a whole number from 1 to 9007199254740991; not `9007199254740992`",
    ),
    (
        "a_burst_without_a_bucket",
        Text::Limit("unit: day, burst: 5"),
        "3:47: burst: only for algorithm token_bucket, not fixed_window",
    ),
    (
        "a_bucket_too_exact",
        Text::Limit(
            "unit: year, unit_multiplier: 100, algorithm: token_bucket, requests_per_unit: 4294967295, burst: 4294967295",
        ),
        "3:27: burst: 4294967295 exceeds 2856, the largest for a token_bucket with this window",
    ),
    (
        "a_log_of_10001",
        Text::Limit("unit: day, algorithm: sliding_log, requests_per_unit: 10001"),
        "3:27: requests_per_unit: 10001 exceeds 10000, the largest for sliding_log",
    ),
    (
        "a_log_that_counts_denied",
        Text::Limit("unit: day, algorithm: sliding_log, count_denied: true"),
        "3:27: count_denied: not possible with sliding_log, which stores admitted hits only",
    ),
    (
        "remember_without_a_log",
        Text::Limit("unit: day, remember: user"),
        "3:50: remember: only for algorithm sliding_log or in_flight, not fixed_window",
    ),
    (
        "a_zone_for_an_hour",
        Text::Limit("unit: hour, time_zone: UTC"),
        "3:52: time_zone: needs a unit of day or longer, not hour",
    ),
    (
        "an_unknown_zone",
        Text::Limit("unit: day, time_zone: Europe/Atlantis"),
        "3:51: time_zone: `Europe/Atlantis` is not in the IANA time zone database",
    ),
    (
        "a_misspelt_zone",
        Text::Limit("unit: day, time_zone: Europe/Berln"),
        "3:51: time_zone: `Europe/Berln` is not in the IANA time zone database; did you mean `Europe/Berlin`?",
    ),
    (
        "a_zone_with_a_multiplier",
        Text::Limit("unit: day, unit_multiplier: 2, time_zone: UTC"),
        "3:71: time_zone: needs a unit_multiplier of 1",
    ),
    (
        "a_path_as_zone",
        Text::Limit("unit: day, time_zone: ../../etc/passwd"),
        "3:51: time_zone: `../../etc/passwd` is not in the IANA time zone database",
    ),
    (
        "an_unknown_failure_mode",
        Text::Limit("unit: day, on_store_failure: fail"),
        "3:58: on_store_failure: must be one of: error, deny, allow, local; not `fail`",
    ),
    (
        "a_switch_as_failure_mode",
        Text::Limit("unit: day, on_store_failure: true"),
        "3:58: on_store_failure: must be one of: error, deny, allow, local; not `true`",
    ),
    (
        "count_denied_as_text",
        Text::Limit("unit: day, count_denied: maybe"),
        "3:54: count_denied: must be true or false",
    ),
    (
        "unlimited_with_a_unit",
        Text::Limit("unlimited: true, unit: day"),
        "3:52: unit: not allowed with `unlimited: true`",
    ),
    (
        "unlimited_as_text",
        Text::Limit("unlimited: maybe"),
        "3:27: unit: missing; must be one of: second, minute, hour, day, week, month, year\n3:40: unlimited: must be true or false",
    ),
    (
        "a_misspelt_limit_key",
        Text::Limit("unit: day, request_per_unit: 5"),
        "3:40: unknown key `request_per_unit`; did you mean `requests_per_unit`?",
    ),
    (
        "a_descriptor_key_in_a_limit",
        Text::Limit("unit: day, shadow_mode: true"),
        "3:40: unknown key `shadow_mode` here; it belongs in the descriptor, one level up",
    ),
    (
        "a_limit_that_replaces_itself",
        Text::Limit("unit: day, name: a, replaces: [{ name: a }]"),
        "3:60: replaces: a limit cannot replace itself",
    ),
    (
        "replaces_as_a_word",
        Text::Limit("unit: day, replaces: a"),
        "3:50: replaces: must be a list of items such as `- name: other_limit`",
    ),
    (
        "replaces_with_a_word",
        Text::Limit("unit: day, replaces: [a]"),
        "3:51: replaces: write each item as `- name: other_limit`",
    ),
    (
        "replaces_an_empty_name",
        Text::Limit("unit: day, replaces: [{ name: '' }]"),
        "3:59: name: must not be empty",
    ),
    ("replaces_no_name", Text::Limit("unit: day, replaces: [{ name: ~ }]"), "3:59: name: missing"),
    (
        "a_priority_as_a_word",
        Text::Limit("unit: day, requests_per_unit: 1, priority: high"),
        "3:72: `priority` must be a mapping with the keys entry, share, default, release",
    ),
    (
        "a_priority_without_its_keys",
        Text::Limit("unit: day, requests_per_unit: 1, priority: {}"),
        "3:72: entry: missing\n3:72: share: missing",
    ),
    (
        "a_priority_without_classes",
        Text::Limit("unit: day, requests_per_unit: 1, priority: { entry: c, share: {} }"),
        "3:91: share: must be a mapping such as `batch: 50`",
    ),
    (
        "shares_that_are_no_percentages_of_a_limit",
        Text::Limit(
            "unit: day, requests_per_unit: 1, priority: { entry: c, share: { a: 0, b: 101, c: 9, c: 8 }, default: 0 }",
        ),
        "3:96: share: must be a whole number from 1 to 100; not `0`\n3:102: share: must be a whole number from 1 to 100; not `101`\n\
         3:113: c: duplicate key\n3:130: default: must be a whole number from 1 to 100; not `0`",
    ),
    (
        "a_priority_with_a_hold_by_id",
        Text::Limit(
            "unit: day, requests_per_unit: 1, hold: { for: 1m, by: id }, priority: { entry: c, share: { a: 9 } }",
        ),
        "3:99: priority: not with a hold, unless it is `by: token`",
    ),
    (
        "a_release_of_a_bucket",
        Text::Limit(
            "unit: day, requests_per_unit: 1, algorithm: token_bucket, priority: { entry: c, share: { a: 9 }, release: linear }",
        ),
        "3:97: release: only for algorithm fixed_window",
    ),
    (
        "a_rule_for_a_class_of_its_domain",
        Text::File(
            "domain: d\ndescriptors:\n- key: class\n- key: k\n  rate_limit: { unit: day, requests_per_unit: 1, priority: { entry: class, share: { a: 9 } } }\n",
        ),
        "3:3: key: it is the `entry` of a `priority`, and so part of no descriptor in this domain",
    ),
    (
        "tiers_of_another_form",
        Text::Limit("unit: day, requests_per_unit: 1, tiers: {}"),
        "3:69: tiers: must be a list of at least one",
    ),
    (
        "a_tier_without_its_keys",
        Text::Limit("unit: day, requests_per_unit: 1, tiers: [{}]"),
        "3:70: at: missing\n3:70: request_headers: missing",
    ),
    (
        "tiers_that_are_no_percentages_or_the_same",
        Text::Limit(
            "unit: day, requests_per_unit: 1, tiers: [{ at: 0, request_headers: { a: b } }, { at: 9, request_headers: { a: b } }, { at: 9, request_headers: { a: b } }]",
        ),
        "3:76: at: must be a whole number from 1 to 100; not `0`\n3:152: at: another tier has 9 too",
    ),
    (
        "headers_of_a_tier_that_cannot_be_added",
        Text::Limit(
            "unit: day, requests_per_unit: 1, tiers: [{ at: 9, request_headers: { 'a b': c, Host: d, ':path': e, x: \"f\\n\", X: g } }]",
        ),
        "3:98: request_headers: `a b` cannot be added\n3:108: request_headers: `Host` cannot be added\n\
         3:117: request_headers: `:path` cannot be added\n3:132: request_headers: a value must be printable ASCII\n\
         3:139: x: duplicate key",
    ),
    (
        "a_tier_without_headers",
        Text::Limit("unit: day, requests_per_unit: 1, tiers: [{ at: 9, request_headers: {} }]"),
        "3:96: request_headers: must be a mapping such as `x-tier: warn`",
    ),
    (
        "a_ban_of_no_time",
        Text::Limit("unit: day, requests_per_unit: 1, ban_for: 0s"),
        "3:71: ban_for: must be a duration from 1s to 168h",
    ),
    (
        "a_ban_of_calls_in_flight",
        Text::Limit("requests_per_unit: 1, algorithm: in_flight, hold: 1m, ban_for: 1m"),
        "3:92: ban_for: not with a hold",
    ),
    (
        "a_ban_of_all_classes",
        Text::Limit(
            "unit: day, requests_per_unit: 1, ban_for: 1m, priority: { entry: c, share: { a: 9 } }",
        ),
        "3:71: ban_for: not with `priority`, since one class would close the counter for all",
    ),
    (
        "a_ban_of_a_quota",
        Text::Descriptor(
            "key: k, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 1, ban_for: 1m }",
        ),
        "3:89: ban_for: not with quotas, which deny no call alone",
    ),
    (
        "a_draw_of_another_kind",
        Text::File("domain: d\ndraw: last\n"),
        "2:7: draw: must be one of: first; not `last`",
    ),
    ("a_tag", Text::File("domain: !!int 5\n"), "1:9: the only tag allowed here is `!!str`"),
    ("a_local_tag", Text::File("domain: !secret d\n"), "1:9: the only tag allowed here is `!!str`"),
    (
        "a_merge_of_a_number",
        Text::Descriptor("<<: 5, key: k"),
        "3:7: <<: must be a mapping, an alias of a mapping, or a list of them",
    ),
    (
        "a_list_as_mapping_key",
        Text::File("domain: d\n? [a]\n: b\n"),
        "2:3: a key of a rule file must be text",
    ),
    (
        "slot_by_another_word",
        Text::File("domain: d\nslot_by: key\n"),
        "2:10: slot_by: must be one of: domain; not `key`",
    ),
    (
        "an_emoji_as_key",
        Text::File("domain: d\n😀: 1\n"),
        "2:1: unknown key `😀`; allowed here: domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by",
    ),
    (
        "an_escape_sequence_as_key",
        Text::File("domain: d\n\"\\e[31m\": 1\n"),
        "2:1: unknown key `\\x1b[31m`; allowed here: domain, descriptors, defaults, require, require_mode, quota_group, draw, slot_by",
    ),
    (
        "a_kubernetes_object",
        Text::File("kind: ConfigMap\ndata: {}\n"),
        "1:1: this is a Kubernetes ConfigMap, not a rule file; mount it and pass the folder to --rules, or save the text below `data` as a file of its own",
    ),
    ("lists_10000_deep", Text::Nested(10_000), "2:269: not YAML: recursion limit exceeded"),
];

/// A rule file, or the part of it that differs.
enum Text {
    File(&'static str),
    Descriptor(&'static str),
    Limit(&'static str),
    /// A key with this number of bytes.
    Key(usize),
    /// This number of lists, each in the one before.
    Nested(usize),
}

pub const TABLE: Table = Table { name: "rule files", cases: CASES.len() };

fn text(text: &Text) -> String {
    let descriptor = |keys: &str| format!("domain: d\ndescriptors:\n  - {{ {keys} }}\n");
    match text {
        Text::File(text) => (*text).to_owned(),
        Text::Descriptor(keys) => descriptor(keys),
        Text::Limit(keys) => descriptor(&format!("key: k, rate_limit: {{ {keys} }}")),
        Text::Key(bytes) => descriptor(&format!("key: {}", "k".repeat(*bytes))),
        Text::Nested(lists) => format!("domain: d\ndescriptors: {}", "[".repeat(*lists)),
    }
}

#[test]
fn a_bad_rule_file_is_refused_with_each_location_and_problem() {
    let folder = TempDir::new().unwrap();
    for (name, rules, expected) in CASES {
        std::fs::write(folder.path().join("rules.yaml"), text(rules)).unwrap();
        let mut check = tollkeeper();
        let (code, stdout, stderr) = run(check.current_dir(&folder).args(["check", "rules.yaml"]));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{name}: {stderr}");
        let problems: Vec<_> =
            stderr.lines().map(|line| line.strip_prefix("rules.yaml:").unwrap_or(line)).collect();
        assert_eq!(problems.join("\n"), *expected, "{name}");
    }
}
