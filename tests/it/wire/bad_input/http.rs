//! HTTP: bodies of `/json`, requests as they arrive on the wire, and queries of the admin address.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

use super::Table;
use crate::support::service::{Options, Service};

type Case<Expected = &'static str> = (&'static str, String, Expected);

/// Bodies that are sent to `/json`.
fn bodies() -> Vec<Case> {
    vec![
        (
            "an_empty_body",
            "".to_owned(),
            "400 INVALID_ARGUMENT: the body is empty; send a JSON object",
        ),
        (
            "a_space",
            " ".to_owned(),
            "400 INVALID_ARGUMENT: EOF while parsing a value at line 1 column 1",
        ),
        ("text", "hello".to_owned(), "400 INVALID_ARGUMENT: expected value at line 1 column 1"),
        (
            "an_open_brace",
            "{".to_owned(),
            "400 INVALID_ARGUMENT: EOF while parsing an object at line 1 column 1",
        ),
        (
            "an_open_string",
            r#"{"dom"#.to_owned(),
            "400 INVALID_ARGUMENT: EOF while parsing a string at line 1 column 5",
        ),
        (
            "trailing_bytes",
            "{} x".to_owned(),
            "400 INVALID_ARGUMENT: trailing characters at line 1 column 4",
        ),
        (
            "two_objects",
            "{}{}".to_owned(),
            "400 INVALID_ARGUMENT: trailing characters at line 1 column 3",
        ),
        (
            "a_trailing_comma",
            r#"{"domain":"shop",}"#.to_owned(),
            "400 INVALID_ARGUMENT: trailing comma at line 1 column 18",
        ),
        (
            "single_quotes",
            "{'domain':'shop'}".to_owned(),
            "400 INVALID_ARGUMENT: key must be a string at line 1 column 2",
        ),
        (
            "a_comment",
            "/* */{}".to_owned(),
            "400 INVALID_ARGUMENT: expected value at line 1 column 1",
        ),
        (
            "a_byte_order_mark",
            "\u{feff}{}".to_owned(),
            "400 INVALID_ARGUMENT: expected value at line 1 column 1",
        ),
        (
            "a_nul",
            "{\"domain\":\"a\"\u{0}}".to_owned(),
            "400 INVALID_ARGUMENT: expected `,` or `}` at line 1 column 14",
        ),
        (
            "a_raw_line_end_in_a_string",
            "{\"domain\":\"a\nb\"}".to_owned(),
            "400 INVALID_ARGUMENT: control character (\\u0000-\\u001F) found while parsing a string at line 2 column 0",
        ),
        (
            "a_lone_surrogate",
            "{\"domain\":\"\\ud800\"}".to_owned(),
            "400 INVALID_ARGUMENT: unexpected end of hex escape at line 1 column 18",
        ),
        (
            "a_bad_escape",
            "{\"domain\":\"\\q\"}".to_owned(),
            "400 INVALID_ARGUMENT: invalid escape at line 1 column 13",
        ),
        (
            "null",
            "null".to_owned(),
            "400 INVALID_ARGUMENT: invalid type: null, expected an object at line 1 column 4",
        ),
        (
            "a_number",
            "5".to_owned(),
            "400 INVALID_ARGUMENT: invalid type: integer, expected an object at line 1 column 1",
        ),
        (
            "a_string",
            r#""shop""#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: string, expected an object at line 1 column 6",
        ),
        (
            "a_list",
            r#"["shop"]"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: sequence, expected an object at line 1 column 0",
        ),
        (
            "lists_10000_deep",
            format!("{}{}{}", "", "[".repeat(10000), ""),
            "400 INVALID_ARGUMENT: invalid type: sequence, expected an object at line 1 column 0",
        ),
        (
            "objects_10000_deep",
            format!("{}{}{}", "", r#"{"domain":"#.repeat(10000), ""),
            "400 INVALID_ARGUMENT: invalid type: map, expected a string at line 1 column 10",
        ),
        ("an_empty_object", "{}".to_owned(), "400 INVALID_ARGUMENT: domain: must not be empty"),
        (
            "an_empty_domain",
            r#"{"domain":"","descriptors":[{}]}"#.to_owned(),
            "400 INVALID_ARGUMENT: domain: must not be empty",
        ),
        (
            "a_null_domain",
            r#"{"domain":null,"descriptors":[{}]}"#.to_owned(),
            "400 INVALID_ARGUMENT: domain: must not be empty",
        ),
        (
            "a_number_as_domain",
            r#"{"domain":7}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: integer, expected a string at line 1 column 11",
        ),
        (
            "a_list_as_domain",
            r#"{"domain":["shop"]}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: sequence, expected a string at line 1 column 10",
        ),
        (
            "an_object_as_domain",
            r#"{"domain":{}}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: map, expected a string at line 1 column 10",
        ),
        (
            "a_switch_as_domain",
            r#"{"domain":true}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: boolean, expected a string at line 1 column 14",
        ),
        (
            "a_duplicate_domain",
            r#"{"domain":"a","domain":"b"}"#.to_owned(),
            "400 INVALID_ARGUMENT: duplicate field `domain` at line 1 column 22",
        ),
        (
            "no_descriptors",
            r#"{"domain":"shop"}"#.to_owned(),
            "400 INVALID_ARGUMENT: descriptors: at least 1",
        ),
        (
            "an_empty_list_of_descriptors",
            r#"{"domain":"shop","descriptors":[]}"#.to_owned(),
            "400 INVALID_ARGUMENT: descriptors: at least 1",
        ),
        (
            "a_string_as_descriptors",
            r#"{"domain":"shop","descriptors":"marker-value"}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: string, expected a list at line 1 column 45",
        ),
        (
            "an_object_as_descriptors",
            r#"{"domain":"shop","descriptors":{}}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: map, expected a list at line 1 column 31",
        ),
        (
            "a_string_as_descriptor",
            r#"{"domain":"shop","descriptors":["marker-value"]}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: string, expected an object at line 1 column 46",
        ),
        (
            "a_null_descriptor",
            r#"{"domain":"shop","descriptors":[null]}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: null, expected an object at line 1 column 36",
        ),
        (
            "a_list_as_descriptor",
            r#"{"domain":"shop","descriptors":[[]]}"#.to_owned(),
            "400 INVALID_ARGUMENT: invalid type: sequence, expected an object at line 1 column 32",
        ),
        (
            "65_descriptors",
            descriptor(&format!("{}{}{}", "", "},{".repeat(64), "")),
            "400 INVALID_ARGUMENT: descriptors: 65 exceeds 64",
        ),
        (
            "an_unknown_field",
            r#"{"domian":"shop"}"#.to_owned(),
            "400 INVALID_ARGUMENT: unknown field `domian`, expected one of `domain`, `descriptors`, `hitsAddend`, `hits_addend` at line 1 column 9",
        ),
        (
            "an_unknown_field_with_an_escape",
            "{\"\\u001b[31m\":1}".to_owned(),
            "400 INVALID_ARGUMENT: unknown field `\\x1b[31m`, expected one of `domain`, `descriptors`, `hitsAddend`, `hits_addend` at line 1 column 13",
        ),
        (
            "an_unknown_field_of_5000_bytes",
            format!("{}{}{}", r#"{""#, "x".repeat(5000), r#"":1}"#),
            "400 INVALID_ARGUMENT: unknown field, expected one of `domain`, `descriptors`, `hitsAddend`, `hits_addend` at line 1 column 5003",
        ),
        (
            "a_duplicate_field_in_both_cases",
            r#"{"hitsAddend":1,"hits_addend":1}"#.to_owned(),
            "400 INVALID_ARGUMENT: duplicate field `hits_addend` at line 1 column 29",
        ),
        (
            "a_string_as_entries",
            descriptor(r#""entries":"marker-value""#),
            "400 INVALID_ARGUMENT: invalid type: string, expected a list at line 1 column 57",
        ),
        (
            "a_string_as_entry",
            descriptor(r#""entries":["marker-value"]"#),
            "400 INVALID_ARGUMENT: invalid type: string, expected an object at line 1 column 58",
        ),
        (
            "a_null_entry",
            descriptor(r#""entries":[null]"#),
            "400 INVALID_ARGUMENT: invalid type: null, expected an object at line 1 column 48",
        ),
        (
            "33_entries",
            descriptor(
                r#""entries":[{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"},{"key":"k"}]"#,
            ),
            "400 INVALID_ARGUMENT: descriptors[0].entries: 33 exceeds 32",
        ),
        (
            "an_entry_without_a_key",
            descriptor(r#""entries":[{"value":"v"}]"#),
            "400 INVALID_ARGUMENT: descriptors[0].entries[0].key: must not be empty",
        ),
        (
            "an_empty_key",
            descriptor(r#""entries":[{"key":"","value":"v"}]"#),
            "400 INVALID_ARGUMENT: descriptors[0].entries[0].key: must not be empty",
        ),
        (
            "a_number_as_key",
            descriptor(r#""entries":[{"key":5}]"#),
            "400 INVALID_ARGUMENT: invalid type: integer, expected a string at line 1 column 52",
        ),
        (
            "a_number_as_value",
            descriptor(r#""entries":[{"key":"k","value":12345}]"#),
            "400 INVALID_ARGUMENT: invalid type: integer, expected a string at line 1 column 68",
        ),
        (
            "a_fraction_as_value",
            descriptor(r#""entries":[{"key":"k","value":123.5}]"#),
            "400 INVALID_ARGUMENT: invalid type: floating point, expected a string at line 1 column 68",
        ),
        (
            "a_switch_as_value",
            descriptor(r#""entries":[{"key":"k","value":true}]"#),
            "400 INVALID_ARGUMENT: invalid type: boolean, expected a string at line 1 column 67",
        ),
        (
            "a_list_as_value",
            descriptor(r#""entries":[{"key":"k","value":["marker-value"]}]"#),
            "400 INVALID_ARGUMENT: invalid type: sequence, expected a string at line 1 column 63",
        ),
        (
            "an_unknown_field_of_an_entry",
            descriptor(r#""entries":[{"key":"k","val":"marker-value"}]"#),
            "400 INVALID_ARGUMENT: unknown field `val`, expected `key` or `value` at line 1 column 60",
        ),
        (
            "negative_hits",
            beside_entries(r#""hitsAddend":-1"#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "a_fraction_of_hits",
            beside_entries(r#""hitsAddend":1.5"#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "infinite_hits",
            beside_entries(r#""hitsAddend":1e400"#),
            "400 INVALID_ARGUMENT: number out of range at line 1 column 90",
        ),
        (
            "hits_over_64_bits",
            beside_entries(r#""hitsAddend":18446744073709551616"#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "hits_in_words",
            beside_entries(r#""hitsAddend":"marker-value""#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "hits_as_an_empty_string",
            beside_entries(r#""hitsAddend":"""#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "hits_with_a_plus",
            beside_entries(r#""hitsAddend":"+1""#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "hits_with_a_space",
            beside_entries(r#""hitsAddend":" 1""#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "hexadecimal_hits",
            beside_entries(r#""hitsAddend":"0x1""#),
            "400 INVALID_ARGUMENT: descriptors[0].hitsAddend: must be a whole number from 0 to 18446744073709551615",
        ),
        (
            "hits_as_a_switch",
            beside_entries(r#""hitsAddend":true"#),
            "400 INVALID_ARGUMENT: invalid type: boolean, expected a number or a string at line 1 column 89",
        ),
        (
            "hits_as_a_list",
            beside_entries(r#""hitsAddend":[1]"#),
            "400 INVALID_ARGUMENT: invalid type: sequence, expected a number or a string at line 1 column 86",
        ),
        (
            "hits_with_a_leading_zero",
            beside_entries(r#""hitsAddend":01"#),
            "400 INVALID_ARGUMENT: invalid number at line 1 column 87",
        ),
        (
            "hits_that_are_no_number",
            beside_entries(r#""hitsAddend":NaN"#),
            "400 INVALID_ARGUMENT: expected value at line 1 column 86",
        ),
        (
            "hits_of_the_call_over_32_bits",
            r#"{"domain":"shop","hitsAddend":4294967296,"descriptors":[{}]}"#.to_owned(),
            "400 INVALID_ARGUMENT: hitsAddend: must be a whole number from 0 to 4294967295",
        ),
        (
            "a_string_as_refund",
            beside_entries(r#""isNegativeHits":"marker-value""#),
            "400 INVALID_ARGUMENT: invalid type: string, expected a boolean at line 1 column 103",
        ),
        (
            "a_number_as_refund",
            beside_entries(r#""isNegativeHits":1"#),
            "400 INVALID_ARGUMENT: invalid type: integer, expected a boolean at line 1 column 90",
        ),
        (
            "a_string_as_limit",
            beside_entries(r#""limit":"marker-value""#),
            "400 INVALID_ARGUMENT: invalid type: string, expected an object at line 1 column 94",
        ),
        (
            "a_list_as_limit",
            beside_entries(r#""limit":[1]"#),
            "400 INVALID_ARGUMENT: invalid type: sequence, expected an object at line 1 column 80",
        ),
        (
            "negative_requests",
            beside_entries(r#""limit":{"requestsPerUnit":-1}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.requestsPerUnit: must be a whole number from 0 to 4294967295",
        ),
        (
            "requests_over_32_bits",
            beside_entries(r#""limit":{"requestsPerUnit":4294967296}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.requestsPerUnit: must be a whole number from 0 to 4294967295",
        ),
        (
            "requests_with_a_plus",
            beside_entries(r#""limit":{"requestsPerUnit":"+1"}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.requestsPerUnit: must be a whole number from 0 to 4294967295",
        ),
        (
            "requests_in_words",
            beside_entries(r#""limit":{"requestsPerUnit":"marker-value"}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.requestsPerUnit: must be a whole number from 0 to 4294967295",
        ),
        (
            "an_unknown_unit",
            beside_entries(r#""limit":{"unit":"FORTNIGHT"}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.unit: must be the name of a unit",
        ),
        (
            "a_unit_in_lower_case",
            beside_entries(r#""limit":{"unit":"day"}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.unit: must be the name of a unit",
        ),
        (
            "a_fraction_as_unit",
            beside_entries(r#""limit":{"unit":1.5}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.unit: must be the name of a unit",
        ),
        (
            "a_negative_multiplier",
            beside_entries(r#""limit":{"unit":"DAY","unitMultiplier":-1}"#),
            "400 INVALID_ARGUMENT: descriptors[0].limit.unitMultiplier: must be a whole number from 0 to 4294967295",
        ),
        (
            "an_unknown_field_of_a_limit",
            beside_entries(r#""limit":{"marker-value":1}"#),
            "400 INVALID_ARGUMENT: unknown field `marker-value`, expected one of `requestsPerUnit`, `requests_per_unit`, `unit`, `unitMultiplier`, `unit_multiplier` at line 1 column 95",
        ),
    ]
}

/// A request with one descriptor, which consists of these fields.
fn descriptor(fields: &str) -> String {
    format!(r#"{{"domain":"shop","descriptors":[{{{fields}}}]}}"#)
}

fn beside_entries(fields: &str) -> String {
    descriptor(&format!(r#""entries":[{{"key":"user","value":"a"}}],{fields}"#))
}

/// Whole requests; a byte outside ASCII is written as the character of that number.
fn requests() -> Vec<Case> {
    vec![
        ("bytes_that_are_not_utf_8", "POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: 14\r\n\r\n{\"domain\":\"ÿ\"}".to_owned(), "400 INVALID_ARGUMENT: invalid unicode code point at line 1 column 12"),
        ("another_method", "GET /json HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "405"),
        ("put", "PUT /json HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n".to_owned(), "405"),
        ("delete_of_metrics", "DELETE /metrics HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "405"),
        ("a_method_in_lower_case", "post /json HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n".to_owned(), "405"),
        ("an_unknown_path", "GET /unknown HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "404"),
        ("a_path_upwards", "GET /../etc/passwd HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "404"),
        ("a_double_slash", "GET //json HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "404"),
        ("an_escaped_nul", "GET /%00 HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "404"),
        ("a_bad_percent_escape", "GET /%zz HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "404"),
        ("a_path_of_100000_bytes", format!("{}{}{}", "GET /", "x".repeat(100000), " HTTP/1.1\r\nhost: h\r\n\r\n"), "414"),
        ("a_path_that_is_not_ascii", "GET /ÿ HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "400"),
        ("an_endpoint_of_the_admin_address", "GET /counters HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "404"),
        ("no_host", "GET /healthz HTTP/1.1\r\n\r\n".to_owned(), "200 OK"),
        ("http_0_9", "GET /healthz\r\n\r\n".to_owned(), "400"),
        ("http_2_0_as_text", "GET /healthz HTTP/2.0\r\nhost: h\r\n\r\n".to_owned(), "400"),
        ("http_3_3", "GET /healthz HTTP/3.3\r\nhost: h\r\n\r\n".to_owned(), "400"),
        ("no_version", "GET /healthz \r\n\r\n".to_owned(), "400"),
        ("a_space_before_the_colon", "GET /healthz HTTP/1.1\r\nhost : h\r\n\r\n".to_owned(), "400"),
        ("a_header_without_a_colon", "GET /healthz HTTP/1.1\r\nhost\r\n\r\n".to_owned(), "400"),
        ("a_nul_in_a_header", "GET /healthz HTTP/1.1\r\nhost: h\r\nx: a\u{0}b\r\n\r\n".to_owned(), "400"),
        ("200_headers", format!("GET /healthz HTTP/1.1\r\nhost: h\r\n{}\r\n", "x: 1\r\n".repeat(200)), "431"),
        ("a_length_in_words", "POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n".to_owned(), "400"),
        ("a_negative_length", "POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n".to_owned(), "400"),
        ("two_lengths", "POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}".to_owned(), "400"),
        ("a_length_over_the_bound", "POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: 4194305\r\n\r\n".to_owned(), "413 OUT_OF_RANGE: message: over 4194304 bytes"),
        ("a_length_over_64_bits", "POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999999999999\r\n\r\n".to_owned(), "400"),
        ("length_and_chunks", "POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /rules HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "400 INVALID_ARGUMENT: the body is empty; send a JSON object"),
        ("an_unknown_transfer_encoding", "POST /json HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip\r\n\r\n".to_owned(), "400"),
        ("a_bad_chunk_length", "POST /json HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n".to_owned(), "400 INVALID_ARGUMENT: body: malformed or incomplete"),
        ("a_chunk_length_over_64_bits", "POST /json HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n".to_owned(), "400 INVALID_ARGUMENT: body: malformed or incomplete"),
        ("the_preface_of_http_2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "closed"),
        ("tls", "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}ü\u{3}\u{3}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\r\n\r\n".to_owned(), "400"),
        ("an_upgrade_to_http_2", "GET /healthz HTTP/1.1\r\nhost: h\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n".to_owned(), "200 OK"),
        ("a_check_that_a_page_can_send", "GET /check?domain=shop&d=user%3Da HTTP/1.1\r\nhost: h\r\n\r\n".to_owned(), "403 PERMISSION_DENIED: GET needs the header `X-Forwarded-Method`, which web pages cannot send; or use POST"),
        ("a_web_page", "POST /json HTTP/1.1\r\nhost: h\r\norigin: http://evil.example\r\ncontent-length: 2\r\n\r\n{}".to_owned(), "403 PERMISSION_DENIED: requests from web pages are not allowed"),
    ]
}

/// Requests to the admin address.
fn admin_requests() -> Vec<Case> {
    vec![
        ("no_query", "GET /counters HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".to_owned(), "400: descriptor: missing, such as descriptor=user=alice"),
        ("no_descriptor", counters("domain=shop"), "400: descriptor: missing, such as descriptor=user=alice"),
        ("no_domain", counters("descriptor=user%3Da"), "400: domain: missing"),
        ("an_unknown_parameter", counters("domain=shop&descriptor=user%3Da&marker=1"), "400: `marker`: the parameters are `domain` and `descriptor`"),
        ("domain_twice", counters("domain=a&domain=b"), "400: domain: given twice"),
        ("descriptor_twice", counters("descriptor=a%3Db&descriptor=a%3Db"), "400: descriptor: given twice"),
        ("a_descriptor_without_a_value", counters("domain=shop&descriptor=user"), "400: descriptor: must be key=value"),
        ("a_descriptor_without_a_key", counters("domain=shop&descriptor=%3Dmarker-value"), "400: descriptor: an entry needs a key before its `=`"),
        ("an_empty_descriptor", counters("domain=shop&descriptor="), "400: descriptor: must be key=value"),
        ("a_bad_escape_in_a_descriptor", counters("domain=shop&descriptor=user%3D%5Cq"), "400: descriptor: after a backslash, only `,`, `\\` or `xHH` is allowed"),
        ("half_an_escape", counters("domain=shop&descriptor=user%3D%5Cx0"), "400: descriptor: after a backslash, only `,`, `\\` or `xHH` is allowed"),
        ("an_unknown_domain", counters("domain=marker-value&descriptor=user%3Da"), "404: no limit applies to this descriptor"),
        ("a_descriptor_without_a_limit", counters("domain=shop&descriptor=x%3Dmarker-value"), "404: no limit applies to this descriptor"),
        ("an_empty_domain", counters("domain=&descriptor=user%3Da"), "404: no limit applies to this descriptor"),
        ("no_utf_8", counters("domain=shop&descriptor=%FF"), "400: descriptor: must be key=value"),
        ("a_reset_by_get", "GET /counters/reset?domain=shop&descriptor=user%3Da HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".to_owned(), "405"),
        ("counters_by_post", "POST /counters?domain=shop&descriptor=user%3Da HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n".to_owned(), "405"),
        ("an_explanation_of_nothing", "POST /explain HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n".to_owned(), "400: the body is empty; send a JSON object"),
        ("an_explanation_of_another_shape", "POST /explain HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 46\r\n\r\n{\"domain\":\"shop\",\"descriptors\":\"marker-value\"}".to_owned(), "400: invalid type: string, expected a list at line 1 column 45"),
        ("a_host_name", "GET /counters HTTP/1.1\r\nhost: evil.example\r\n\r\n".to_owned(), "403: host: must be an IP address or localhost"),
        ("a_web_page", "GET /counters HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: null\r\n\r\n".to_owned(), "403: requests from web pages are not allowed"),
        ("json_on_the_admin_address", "POST /json HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}".to_owned(), "404"),
    ]
}

fn counters(query: &str) -> String {
    format!("GET /counters?{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
}

/// Queries that are sent to `/check`.
fn checks() -> Vec<Case<String>> {
    let known = "the parameters are `domain`, `d`, `hits`, `deny` and `on_failure`";
    let long = ["k%3Dv", &"%2Ck%3Dv".repeat(32)].concat();
    [
        ("a_check_of_nothing", "domain=shop", "d: missing, such as d=user=@x-user".to_owned()),
        ("a_check_without_a_domain", "d=user%3Da", "domain: missing".to_owned()),
        ("a_check_of_an_empty_domain", "domain=&d=user%3Da", "domain: missing".to_owned()),
        (
            "a_check_of_two_domains",
            "domain=shop&domain=a&d=user%3Da",
            "domain: given twice".to_owned(),
        ),
        (
            "a_check_with_another_parameter",
            "domain=shop&d=user%3Da&marker-value=1",
            format!("`marker-value`: {known}"),
        ),
        ("a_check_without_a_value", "domain=shop&d=user", "d: must be key=value".to_owned()),
        (
            "a_check_of_a_header_without_a_name",
            "domain=shop&d=user%3D@",
            "d: after `@`, a value needs the name of a header".to_owned(),
        ),
        (
            "a_check_of_a_header_with_a_space",
            "domain=shop&d=user%3D@a%20b",
            "d: after `@`, a value needs the name of a header".to_owned(),
        ),
        (
            "a_check_of_negative_hits",
            "domain=shop&d=user%3Da&hits=-1",
            "hits: must be a whole number from 0 to 9007199254740991".to_owned(),
        ),
        (
            "a_check_of_hits_with_a_sign",
            "domain=shop&d=user%3Da&hits=%2B1",
            "hits: must be a whole number from 0 to 9007199254740991".to_owned(),
        ),
        (
            "a_check_of_too_many_hits",
            "domain=shop&d=user%3Da&hits=9007199254740992",
            "hits: must be a whole number from 0 to 9007199254740991".to_owned(),
        ),
        (
            "a_check_that_denies_with_success",
            "domain=shop&d=user%3Da&deny=200",
            "deny: must be a whole number from 400 to 599".to_owned(),
        ),
        (
            "a_check_that_denies_with_no_status",
            "domain=shop&d=user%3Da&deny=600",
            "deny: must be a whole number from 400 to 599".to_owned(),
        ),
        (
            "a_check_that_denies_with_a_word",
            "domain=shop&d=user%3Da&deny=no",
            "deny: must be a whole number from 400 to 599".to_owned(),
        ),
        (
            "a_check_with_an_unknown_failure_mode",
            "domain=shop&d=user%3Da&on_failure=marker-value",
            "on_failure: must be allow or deny".to_owned(),
        ),
        (
            "a_check_of_too_many_entries",
            &format!("domain=shop&d={long}"),
            "descriptors[0].entries: 33 exceeds 32".to_owned(),
        ),
        (
            "a_check_of_too_many_descriptors",
            &format!("domain=shop{}", "&d=user%3Da".repeat(65)),
            "descriptors: 65 exceeds 64".to_owned(),
        ),
    ]
    .map(|(name, query, expected)| {
        let expected = format!("400 INVALID_ARGUMENT: {expected}");
        (name, format!("POST /check?{query} HTTP/1.1\r\nhost: h\r\n\r\n"), expected)
    })
    .into()
}

pub fn table() -> Table {
    let cases = [bodies().len(), requests().len(), admin_requests().len(), checks().len()];
    Table { name: "HTTP", cases: cases.iter().sum() }
}

/// The answer to these bytes: the status, and what the body says of an error.
fn answer(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let bytes: Vec<u8> = request.chars().map(|character| character as u8).collect();
    // A server that refuses may close before it has read everything.
    let _ = stream.write_all(&bytes);
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while !is_whole(&answer) {
        match stream.read(&mut part) {
            Ok(count @ 1..) => answer.extend(&part[..count]),
            _ => break,
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return "closed".to_owned() };
    let code = head.split(' ').nth(1).unwrap();
    match serde_json::from_str::<Value>(body).ok().map(|body| body["error"].clone()) {
        Some(Value::String(message)) => format!("{code}: {message}"),
        Some(Value::Object(error)) => {
            let [name, message] = ["code", "message"].map(|field| error[field].as_str().unwrap());
            format!("{code} {name}: {message}")
        }
        _ => format!("{code} {body}").trim_end().to_owned(),
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer).to_lowercase();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    length.is_some_and(|length| body.len() >= length.parse().unwrap())
}

#[test]
fn a_bad_body_is_refused_with_its_code_and_message() {
    let service = Service::start(Options::default());
    for (name, body, expected) in bodies() {
        let bytes: String = body.bytes().map(char::from).collect();
        let head = format!("POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: {}", body.len());
        assert_eq!(answer(service.http, &format!("{head}\r\n\r\n{bytes}")), expected, "{name}");
    }
    assert!(!service.log().contains("marker-value"), "{}", service.log());
}

#[test]
fn a_bad_request_is_refused_and_the_service_goes_on() {
    let service = Service::start(Options::default());
    for (name, request, expected) in requests() {
        assert_eq!(answer(service.http, &request), expected, "{name}");
    }
    for (name, request, expected) in checks() {
        assert_eq!(answer(service.http, &request), expected, "{name}");
    }
    for (name, request, expected) in admin_requests() {
        assert_eq!(answer(service.admin, &request), expected, "{name}");
    }
    assert_eq!(service.get("/healthz"), "OK");
    assert!(!service.log().contains("marker-value"), "{}", service.log());
}
