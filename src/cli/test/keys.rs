//! The keys of test files, each written once: the reader, "did you mean" and the JSON Schema follow from here.

use serde_json::{Value, json};

use crate::engine::algorithm::account::COUNT_MAX;
use crate::yaml::{
    json_schema::{DURATION, document, extend, mapping},
    keys::{Key, KeyTable, Shape, TEXT, key, required},
};

/// The keys at the top of a test file.
#[rustfmt::skip]
pub(super) static SUITE: KeyTable = KeyTable {
    name: "a test file",
    elsewhere: |_| None,
    keys: &[
        required("rules", Shape::Other(texts),
            "Rule file or folder, or a list, relative to this file"),
        required("tests", Shape::Other(|| list_of("test")),
            "List of tests, each with empty counters"),
    ],
};

#[rustfmt::skip]
pub(super) static TEST: KeyTable = KeyTable {
    name: "a test",
    elsewhere: |_| None,
    keys: &[
        required("name", TEXT, "What the test claims"),
        required("domain", TEXT, "Domain of all calls"),
        // YAML has a type for times, and JSON has not.
        key("start", Shape::Other(|| json!({})), "Start time; 2026-01-01T00:00:00Z if absent"),
        required("calls", Shape::Other(|| list_of("call")), "Calls, in order of time"),
    ],
};

#[rustfmt::skip]
pub(super) static CALL: KeyTable = KeyTable {
    name: "a call",
    elsewhere: |_| None,
    keys: &[
        key("at", Shape::Other(|| json!({ "type": ["string", "null"], "pattern": DURATION })),
            "Time since the start, such as 500ms or 7d; as the call above if absent"),
        Key {
            alias: Some("call"),
            ..key("descriptors", Shape::Other(texts),
                "Descriptor such as `path=/login,user=alice`, or a list of them")
        },
        key("hold", TEXT, "Name for the hold that the call takes by token"),
        key("commit", Shape::Other(|| json!({ "type": ["integer", "string", "null"] })),
            "Hits to commit, or entries such as `hold.used.output=17`, in place of descriptors"),
        key("of", TEXT, "Hold to commit; the last one taken if absent"),
        key("abandon", TEXT, "Hold whose time has passed, in place of descriptors"),
        key("hits", Shape::Other(|| json!({ "type": ["integer", "null"] })),
            "Hits of each descriptor; 1 if absent, 0 checks, a negative number refunds"),
        key("expect", Shape::OneOf(code_names),
            "OK or OVER_LIMIT; of a commit committed, overrun, unused, repeated or late"),
        key("remaining", Shape::Other(numbers), "Remaining hits of each descriptor, or a list"),
        key("rule", Shape::Other(nullable_texts),
            "Rule of each descriptor, as in `explain`, or a list; `none` for no rule; any if absent"),
    ],
};

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
