//! Flags and variables: each bad value is tried as both. The service reports it, and exits with 2.

use super::Table;
use crate::support::{
    run,
    service::{serve, tollkeeper},
};

/// The name of the case, the flag, its value, and the problem. What is wrong with a URL of a store is said
/// without any of its text, which may hold a password.
const CASES: &[(&str, &str, &str, &str)] = &[
    (
        "grpc_addr_is_no_port",
        "grpc-addr",
        "127.0.0.1",
        "invalid value `127.0.0.1`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "grpc_addr_is_a_port_alone",
        "grpc-addr",
        ":8081",
        "invalid value `:8081`: must be an IP address and a port, such as 127.0.0.1:8081; did you mean [::]:8081?",
    ),
    (
        "grpc_addr_is_a_host_name",
        "grpc-addr",
        "localhost:8081",
        "invalid value `localhost:8081`: must be an IP address and a port, such as 127.0.0.1:8081; did you mean 127.0.0.1:8081?",
    ),
    (
        "grpc_addr_is_port_65536",
        "grpc-addr",
        "127.0.0.1:65536",
        "invalid value `127.0.0.1:65536`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "grpc_addr_is_a_negative_port",
        "grpc-addr",
        "127.0.0.1:-1",
        "invalid value `127.0.0.1:-1`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "grpc_addr_is_a_word",
        "grpc-addr",
        "abc",
        "invalid value `abc`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "grpc_addr_is_five_parts",
        "grpc-addr",
        "1.2.3.4.5:80",
        "invalid value `1.2.3.4.5:80`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "grpc_addr_is_ipv6_without_brackets",
        "grpc-addr",
        "::1:80",
        "invalid value `::1:80`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "grpc_addr_is_a_url",
        "grpc-addr",
        "http://127.0.0.1:1",
        "invalid value `http://127.0.0.1:1`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "grpc_addr_is_a_space",
        "grpc-addr",
        " 127.0.0.1:1",
        "invalid value ` 127.0.0.1:1`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "http_addr_is_no_port",
        "http-addr",
        "127.0.0.1",
        "invalid value `127.0.0.1`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "http_addr_is_port_65536",
        "http-addr",
        "127.0.0.1:65536",
        "invalid value `127.0.0.1:65536`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "http_addr_is_a_word",
        "http-addr",
        "abc",
        "invalid value `abc`: must be an IP address and a port, such as 127.0.0.1:8081",
    ),
    (
        "admin_addr_is_none",
        "admin-addr",
        "none",
        "invalid value `none`: must be an IP address and a port, such as 127.0.0.1:8081, or off",
    ),
    (
        "admin_addr_is_a_host_name",
        "admin-addr",
        "localhost:6070",
        "invalid value `localhost:6070`: must be an IP address and a port, such as 127.0.0.1:8081, or off; did you mean 127.0.0.1:6070?",
    ),
    (
        "store_is_a_host_and_redis_port",
        "store",
        "localhost:6379",
        "the scheme must be memory, redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster or rediss+cluster, followed by ://; did you mean redis://localhost:6379?",
    ),
    ("store_is_memory_with_a_path", "store", "memory://x", "memory:// takes nothing behind it"),
    (
        "admin_addr_is_port_65536",
        "admin-addr",
        "127.0.0.1:65536",
        "invalid value `127.0.0.1:65536`: must be an IP address and a port, such as 127.0.0.1:8081, or off",
    ),
    ("reflection_is_yes", "reflection", "yes", "invalid value `yes`: must be on or off"),
    ("count_denied_is_yes", "count-denied", "yes", "invalid value `yes`: must be on or off"),
    (
        "dynamic_metadata_is_yes",
        "dynamic-metadata",
        "yes",
        "invalid value `yes`: must be on or off",
    ),
    ("shadow_mode_is_yes", "shadow-mode", "yes", "invalid value `yes`: must be on or off"),
    ("quota_mode_is_yes", "quota-mode", "yes", "invalid value `yes`: must be on or off"),
    ("reflection_is_1", "reflection", "1", "invalid value `1`: must be on or off"),
    ("reflection_is_upper_case", "reflection", "ON", "invalid value `ON`: must be on or off"),
    ("redis_scripts_is_no", "redis-scripts", "no", "invalid value `no`: must be on or off"),
    (
        "on_store_failure_is_fail",
        "on-store-failure",
        "fail",
        "invalid value `fail`: must be one of: error, deny, allow, local",
    ),
    (
        "on_store_failure_is_upper_case",
        "on-store-failure",
        "DENY",
        "invalid value `DENY`: must be one of: error, deny, allow, local",
    ),
    (
        "pool_size_is_0",
        "store-pool-size",
        "0",
        "invalid value `0`: must be a whole number from 1 to 1000",
    ),
    (
        "pool_size_is_1001",
        "store-pool-size",
        "1001",
        "invalid value `1001`: must be a whole number from 1 to 1000",
    ),
    (
        "pool_size_is_a_fraction",
        "store-pool-size",
        "1.5",
        "invalid value `1.5`: must be a whole number from 1 to 1000",
    ),
    (
        "key_prefix_has_braces",
        "key-prefix",
        "{a}",
        "invalid value `{a}`: must be at most 64 visible ASCII characters, without braces",
    ),
    (
        "key_prefix_has_a_space",
        "key-prefix",
        "a b",
        "invalid value `a b`: must be at most 64 visible ASCII characters, without braces",
    ),
    (
        "key_prefix_is_not_ascii",
        "key-prefix",
        "é",
        "invalid value `é`: must be at most 64 visible ASCII characters, without braces",
    ),
    (
        "key_prefix_has_65_bytes",
        "key-prefix",
        "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
        "invalid value `kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk`: must be at most 64 visible ASCII characters, without braces",
    ),
    (
        "memory_counters_max_is_999",
        "memory-counters-max",
        "999",
        "invalid value `999`: must be a whole number from 1000 to 1000000000",
    ),
    (
        "memory_counters_max_is_huge",
        "memory-counters-max",
        "1000000001",
        "invalid value `1000000001`: must be a whole number from 1000 to 1000000000",
    ),
    (
        "memory_size_max_is_a_kibibyte",
        "memory-size-max",
        "1KiB",
        "invalid value `1KiB`: must be a size from 1MiB to 1048576MiB, such as 4MiB",
    ),
    (
        "over_limit_cache_is_negative",
        "over-limit-cache",
        "-1",
        "invalid value `-1`: must be a whole number from 0 to 10000000",
    ),
    ("replicas_is_0", "replicas", "0", "invalid value `0`: must be a whole number from 1 to 10000"),
    (
        "replicas_is_a_word",
        "replicas",
        "many",
        "invalid value `many`: must be a whole number from 1 to 10000",
    ),
    (
        "decision_budget_is_no_unit",
        "decision-budget",
        "15",
        "invalid value `15`: must be a duration from 1ms to 1m; did you mean 15ms?",
    ),
    (
        "decision_budget_is_zero",
        "decision-budget",
        "0ms",
        "invalid value `0ms`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_negative",
        "decision-budget",
        "-1s",
        "invalid value `-1s`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_a_fraction",
        "decision-budget",
        "1.5ms",
        "invalid value `1.5ms`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_years",
        "decision-budget",
        "1y",
        "invalid value `1y`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_upper_case",
        "decision-budget",
        "15MS",
        "invalid value `15MS`: must be a duration from 1ms to 1m; did you mean 15ms?",
    ),
    (
        "decision_budget_is_a_space",
        "decision-budget",
        "15 ms",
        "invalid value `15 ms`: must be a duration from 1ms to 1m; did you mean 15ms?",
    ),
    (
        "decision_budget_is_too_long",
        "decision-budget",
        "99999999h",
        "invalid value `99999999h`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_overflowing",
        "decision-budget",
        "99999999999999999999h",
        "invalid value `99999999999999999999h`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_plus",
        "decision-budget",
        "+5ms",
        "invalid value `+5ms`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_a_unit_alone",
        "decision-budget",
        "ms",
        "invalid value `ms`: must be a duration from 1ms to 1m",
    ),
    (
        "decision_budget_is_over_a_minute",
        "decision-budget",
        "61s",
        "invalid value `61s`: must be a duration from 1ms to 1m",
    ),
    (
        "drain_is_11_minutes",
        "drain",
        "11m",
        "invalid value `11m`: must be a duration from 0s to 10m",
    ),
    ("drain_is_a_word", "drain", "soon", "invalid value `soon`: must be a duration from 0s to 10m"),
    (
        "max_message_bytes_is_0",
        "max-message-bytes",
        "0",
        "invalid value `0`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_1_byte_too_small",
        "max-message-bytes",
        "1023",
        "invalid value `1023`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_decimal_unit",
        "max-message-bytes",
        "4MB",
        "invalid value `4MB`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_a_space",
        "max-message-bytes",
        "4 MiB",
        "invalid value `4 MiB`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_1_mib_too_large",
        "max-message-bytes",
        "65MiB",
        "invalid value `65MiB`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_overflowing",
        "max-message-bytes",
        "99999999999999999999MiB",
        "invalid value `99999999999999999999MiB`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_a_fraction",
        "max-message-bytes",
        "1.5MiB",
        "invalid value `1.5MiB`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_negative",
        "max-message-bytes",
        "-4MiB",
        "invalid value `-4MiB`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_plus",
        "max-message-bytes",
        "+4MiB",
        "invalid value `+4MiB`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_message_bytes_is_hexadecimal",
        "max-message-bytes",
        "0x1000",
        "invalid value `0x1000`: must be a size from 1KiB to 64MiB, such as 4MiB",
    ),
    (
        "max_descriptors_is_0",
        "max-descriptors",
        "0",
        "invalid value `0`: must be a whole number from 1 to 1000",
    ),
    (
        "max_descriptors_is_1001",
        "max-descriptors",
        "1001",
        "invalid value `1001`: must be a whole number from 1 to 1000",
    ),
    (
        "max_descriptors_is_negative",
        "max-descriptors",
        "-1",
        "invalid value `-1`: must be a whole number from 1 to 1000",
    ),
    (
        "max_charges_is_63",
        "max-charges",
        "63",
        "invalid value `63`: must be a whole number from 64 to 65536",
    ),
    (
        "max_charges_is_65537",
        "max-charges",
        "65537",
        "invalid value `65537`: must be a whole number from 64 to 65536",
    ),
    (
        "headers_is_all",
        "headers",
        "all",
        "invalid value `all`: must be one of: none, ratelimit, draft, both",
    ),
    (
        "header_limit_has_a_space",
        "header-limit",
        "a b",
        "invalid value `a b`: must be a valid header name",
    ),
    (
        "header_remaining_has_a_space",
        "header-remaining",
        "a b",
        "invalid value `a b`: must be a valid header name",
    ),
    (
        "header_reset_has_a_space",
        "header-reset",
        "a b",
        "invalid value `a b`: must be a valid header name",
    ),
    (
        "header_limit_has_a_line_end",
        "header-limit",
        "X\r\nEvil: 1",
        "invalid value `X\\x0d\nEvil: 1`: must be a valid header name",
    ),
    (
        "header_limit_is_not_ascii",
        "header-limit",
        "é",
        "invalid value `é`: must be a valid header name",
    ),
    (
        "log_level_is_verbose",
        "log-level",
        "verbose",
        "invalid value `verbose`: must be a level (error, warn, info, debug, off) and up to 32 of \
         TARGET=LEVEL, separated by commas, such as info,tollkeeper::decision=debug",
    ),
    ("log_format_is_xml", "log-format", "xml", "invalid value `xml`: must be one of: text, json"),
    (
        "top_keys_is_on",
        "top-keys",
        "on",
        "invalid value `on`: must be one of: digests, values, off",
    ),
    (
        "near_limit_ratio_is_over_1",
        "near-limit-ratio",
        "1.1",
        "invalid value `1.1`: must be a number from 0 to 1, such as 0.8",
    ),
    (
        "near_limit_ratio_is_negative",
        "near-limit-ratio",
        "-0.1",
        "invalid value `-0.1`: must be a number from 0 to 1, such as 0.8",
    ),
    (
        "near_limit_ratio_is_nan",
        "near-limit-ratio",
        "nan",
        "invalid value `nan`: must be a number from 0 to 1, such as 0.8",
    ),
    (
        "near_limit_ratio_is_infinite",
        "near-limit-ratio",
        "inf",
        "invalid value `inf`: must be a number from 0 to 1, such as 0.8",
    ),
    (
        "near_limit_ratio_is_a_percentage",
        "near-limit-ratio",
        "80%",
        "invalid value `80%`: must be a number from 0 to 1, such as 0.8",
    ),
    (
        "near_limit_ratio_is_plus",
        "near-limit-ratio",
        "+0.5",
        "invalid value `+0.5`: must be a number from 0 to 1, such as 0.8",
    ),
    ("workers_is_0", "workers", "0", "invalid value `0`: must be a whole number from 1 to 1024"),
    (
        "workers_is_1025",
        "workers",
        "1025",
        "invalid value `1025`: must be a whole number from 1 to 1024",
    ),
    (
        "workers_is_plus",
        "workers",
        "+4",
        "invalid value `+4`: must be a whole number from 1 to 1024",
    ),
    (
        "workers_is_overflowing",
        "workers",
        "99999999999999999999",
        "invalid value `99999999999999999999`: must be a whole number from 1 to 1024",
    ),
    (
        "workers_has_a_control_character",
        "workers",
        "4\u{1b}[31m",
        "invalid value `4\\x1b[31m`: must be a whole number from 1 to 1024",
    ),
];

/// URLs of stores that cannot be read.
const STORES: &[(&str, &str)] = &[
    ("store_is_another_scheme", "http://h"),
    ("store_is_upper_case", "REDIS://h"),
    ("store_is_no_scheme", "h:6379"),
    ("store_is_no_slashes", "redis:h"),
    ("store_is_a_password_and_a_port", "s3cret:1234"),
    ("store_is_a_login_and_redis_port", "u:s3cret@h:6379"),
    ("store_is_no_host", "redis://"),
    ("store_is_no_host_but_a_port", "redis://:6379"),
    ("store_is_no_host_but_a_path", "redis:///0"),
    ("store_is_a_login_without_host", "redis://user:s3cret@"),
    ("store_is_port_65536", "redis://:s3cret@h:65536"),
    ("store_is_a_port_in_words", "redis://:s3cret@h:x"),
    ("store_is_a_port_with_plus", "redis://h:+6379"),
    ("store_is_a_db_in_words", "redis://:s3cret@h/x"),
    ("store_is_a_negative_db", "redis://h/-1"),
    ("store_is_a_huge_db", "redis://h/99999999999999999999"),
    ("store_is_a_hash_in_the_password", "redis://u:12#s3cret@h"),
    ("store_is_a_question_mark_in_the_password", "redis://u:12?s3cret@h"),
    ("store_is_a_bracket_left_open", "redis://[::1:6379"),
    ("store_is_a_space", "redis://u:s3cret@h h"),
    ("store_is_a_bad_escape", "redis://u:%zzs3cret@h:x"),
];

/// Every case is tried twice.
pub const TABLE: Table = Table { name: "flags", cases: 2 * (CASES.len() + STORES.len()) };

/// The problem under the name that was used, as a flag and as a variable.
fn problems(flag: &str, value: &str) -> [String; 2] {
    let variable = format!("TOLLKEEPER_{}", flag.replace('-', "_").to_uppercase());
    let typed = run(serve().arg(format!("--{flag}={value}")));
    let inherited = run(tollkeeper().arg("serve").env(&variable, value));
    [(format!("--{flag}: "), typed), (format!("{variable}: "), inherited)].map(
        |(name, (code, stdout, stderr))| {
            assert_eq!((code, stdout.as_str()), (Some(2), ""), "{name}{stderr}");
            stderr.strip_prefix(&name).unwrap_or_else(|| panic!("{name}: {stderr}")).to_owned()
        },
    )
}

#[test]
fn a_bad_value_of_a_setting_is_refused_by_name_with_what_is_allowed() {
    for (name, flag, value, expected) in CASES {
        assert_eq!(problems(flag, value), [(); 2].map(|()| format!("{expected}\n")), "{name}");
    }
}

#[test]
fn a_bad_store_url_is_refused_without_its_text() {
    for (name, url) in STORES {
        for problem in problems("store", url) {
            assert_eq!(problem.lines().count(), 1, "{name}: {problem}");
            assert!(!problem.contains("s3cret"), "{name}: {problem}");
        }
    }
}
