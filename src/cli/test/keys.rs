//! The keys of test files, each written once: the reader, "did you mean" and the JSON Schema follow from here.

use serde_json::{Value, json};

use crate::engine::algorithm::account::COUNT_MAX;
use crate::yaml::{
    json_schema::{document, extend, mapping},
    keys::{Key, KeyTable, Shape, TEXT, key, required},
};

/// The keys at the top of a test file.
pub(super) static SUITE: KeyTable = KeyTable {
    name: "a test file",
    elsewhere: |_| None,
    keys: &[
        required(
            "rules",
            Shape::Other(texts),
            "Rule file or folder to test, or a list of them, relative to this file",
        ),
        required(
            "tests",
            Shape::Other(|| list_of("test")),
            "List of tests; each starts with empty counters",
        ),
    ],
};

/// The keys of one test.
pub(super) static TEST: KeyTable = KeyTable {
    name: "a test",
    elsewhere: |_| None,
    keys: &[
        required("name", TEXT, "Name of the test: what it claims"),
        required("domain", TEXT, "Domain of all calls"),
        key(
            "start",
            // YAML has a type for times, and JSON has not.
            Shape::Other(|| json!({})),
            "Time at which the test starts, such as 2026-03-29T00:30:00Z; 2026-01-01T00:00:00Z if absent",
        ),
        required("calls", Shape::Other(|| list_of("call")), "List of calls, in order of time"),
    ],
};

/// The keys of one call of a test.
pub(super) static CALL: KeyTable = KeyTable {
    name: "a call",
    elsewhere: |_| None,
    keys: &[
        key(
            "at",
            Shape::Other(
                || json!({ "type": ["string", "null"], "pattern": "^[0-9]+(ms|s|m|h|d)$" }),
            ),
            "Time since the start: 500ms, 90s, 15m, 24h, 7d; the time of the call above if absent",
        ),
        Key {
            alias: Some("call"),
            ..key(
                "descriptors",
                Shape::Other(texts),
                "Descriptor such as `user=alice` or `path=/login,user=alice`, or a list of them",
            )
        },
        key("hold", TEXT, "Name for the hold that the call must take, by token"),
        key(
            "commit",
            Shape::Other(|| json!({ "type": ["integer", "string", "null"] })),
            "In place of descriptors: commits a hold to these hits, or to entries such as `hold.used.output=17`",
        ),
        key("of", TEXT, "Name of the hold to commit; the one that was taken last if absent"),
        key("abandon", TEXT, "In place of descriptors: name of a hold whose time has passed"),
        key(
            "hits",
            Shape::Other(|| json!({ "type": ["integer", "null"] })),
            "Hits of each descriptor; 1 if absent. 0 checks without counting, a negative number refunds",
        ),
        key(
            "expect",
            Shape::OneOf(code_names),
            "Decision: OK or OVER_LIMIT; of a commit committed, overrun, unused, repeated or late",
        ),
        key(
            "remaining",
            Shape::Other(numbers),
            "Remaining hits for each descriptor, or a list of them",
        ),
        key(
            "rule",
            Shape::Other(nullable_texts),
            "Rule that each descriptor matches, by its path as `explain` shows it, or a list of them; `none` \
             where no rule must match. If absent, every descriptor must match a rule",
        ),
    ],
};

/// The schema of a test file, in draft 2020-12.
pub(in crate::cli) fn schema() -> Value {
    let mut call = mapping(&CALL);
    let one_of = ["descriptors", "commit", "abandon"].map(|name| json!({ "required": [name] }));
    extend(&mut call, json!({ "anyOf": one_of }));
    let definitions = json!({ "test": mapping(&TEST), "call": call });
    document("tollkeeper rule tests", mapping(&SUITE), definitions)
}

fn code_names() -> Vec<&'static str> {
    vec!["OK", "OVER_LIMIT", "committed", "overrun", "unused", "repeated", "late"]
}

fn list_of(definition: &str) -> Value {
    json!({ "type": "array", "minItems": 1, "items": { "$ref": format!("#/$defs/{definition}") } })
}

fn texts() -> Value {
    let text = json!({ "type": ["string", "number", "boolean"], "minLength": 1 });
    json!({ "anyOf": [text, { "type": "array", "minItems": 1, "items": text }] })
}

fn nullable_texts() -> Value {
    json!({ "anyOf": [{ "type": "null" }, texts()] })
}

fn numbers() -> Value {
    let number = json!({ "type": "integer", "minimum": 0, "maximum": COUNT_MAX });
    json!({ "anyOf": [{ "type": "null" }, number, { "type": "array", "minItems": 1, "items": number }] })
}
