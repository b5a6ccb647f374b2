//! The keys of rule files and of test files, each written once: the reader, "did you mean", the JSON
//! Schemas and the tables of docs/rules.md follow from here.

use serde_json::{Value, json};

use crate::engine::{
    key::SlotBy,
    request::KEY_BYTES_MAX,
    rule::{Algorithm, OnStoreFailure, Unit},
};

/// The keys of one kind of mapping.
#[derive(Debug)]
pub(super) struct KeyTable {
    /// The mapping's name in messages.
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
}

#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) need: Need,
    pub(super) shape: Shape,
    /// Its meaning, for editors and docs/rules.md.
    pub(super) help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Optional,
    Required,
}

/// The form of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// Any scalar, as written.
    Text {
        bytes_max: usize,
    },
    /// A whole number from `min` to `u32::MAX`.
    Whole {
        min: u32,
    },
    Switch,
    /// One of these words, in any case.
    OneOf(fn() -> Vec<&'static str>),
    /// Read by the code of its level. This is its JSON Schema.
    Other(fn() -> Value),
}

/// The keys at the top of a rule file.
pub(super) static FILE: KeyTable = KeyTable {
    name: "a rule file",
    keys: &[
        required("domain", TEXT, "Name by which requests select these rules"),
        key("descriptors", Shape::Other(descriptors), "List of descriptors"),
        key(
            "slot_by",
            Shape::OneOf(|| vec![SlotBy::DOMAIN]),
            "`domain`: in a Redis Cluster, all counters of the domain are in one slot, and calls are judged as a \
             whole. Applies to all files of the domain",
        ),
    ],
};

/// The keys of a descriptor.
pub(super) static DESCRIPTOR: KeyTable = KeyTable {
    name: "a descriptor",
    keys: &[
        required(
            "key",
            Shape::Text { bytes_max: KEY_BYTES_MAX },
            "Key of the request's entry, at most 256 bytes",
        ),
        key(
            "value",
            TEXT,
            "Value of the request's entry; without it, any value. Each `*` in it matches any text. Every \
             value that matches has a counter of its own",
        ),
        key(
            "rate_limit",
            Shape::Other(|| reference("rate_limit")),
            "Limit for requests whose descriptor ends here. A descriptor without a limit lets its requests \
             pass",
        ),
        key(
            "rate_limits",
            Shape::Other(rate_limits),
            "Several limits at once, in place of `rate_limit`; no two with the same algorithm and window",
        ),
        key(
            "descriptors",
            Shape::Other(descriptors),
            "List of descriptors for the request's next entry",
        ),
        key(
            "shadow_mode",
            Shape::Switch,
            "true: limits are counted and reported, but not enforced",
        ),
        key(
            "quota_mode",
            Shape::Switch,
            "true: a call is denied only if none of its quotas fits; hits that do not fit are counted too",
        ),
        key(
            "share_threshold",
            Shape::Switch,
            "true: all values that match the pattern in `value` share one counter",
        ),
        key(
            "detailed_metric",
            Shape::Switch,
            "true: the rule's metrics show the values of requests, at most 1,000 of them",
        ),
        key(
            "value_to_metric",
            Shape::Switch,
            "true: the metrics of this rule and of those below it show this entry's value",
        ),
        key(
            "metadata",
            Shape::Other(|| json!({ "type": ["object", "null"] })),
            "Mapping returned to Envoy when the rule lets a call pass; see `--dynamic-metadata`",
        ),
    ],
};

/// The keys of a limit.
pub(super) static LIMIT: KeyTable = KeyTable {
    name: "a rate_limit",
    keys: &[
        key(
            "unit",
            Shape::Other(unit),
            "Unit of the window: second, minute, hour, day, week, month (30 days) or year (365 days)",
        ),
        key(
            "unit_multiplier",
            Shape::Whole { min: 1 },
            "Number of units in a window; 1 if absent. `unit: minute` with 5 is five minutes",
        ),
        key(
            "requests_per_unit",
            Shape::Whole { min: 0 },
            "Hits admitted per window, 0 to 4294967295; absent counts as 0, which denies every call",
        ),
        key("unlimited", Shape::Switch, "true: no limit and no counter; goes without `unit`"),
        key(
            "count_denied",
            Shape::Switch,
            "true: hits are charged even if the call is denied, for work that is already done",
        ),
        key(
            "algorithm",
            Shape::OneOf(algorithm_names),
            "fixed_window (default), first_hit_window, sliding_log, sliding_window or token_bucket",
        ),
        key(
            "burst",
            Shape::Whole { min: 1 },
            "For token_bucket: most hits that an unused bucket admits at once; `requests_per_unit` if absent",
        ),
        key(
            "time_zone",
            TEXT,
            "For fixed_window with a unit of day or longer: time zone whose calendar sets the windows, such \
             as Europe/Berlin",
        ),
        key(
            "remember",
            TEXT,
            "For sliding_log: key of the entry whose value is stored with each hit",
        ),
        key(
            "on_store_failure",
            Shape::OneOf(failure_names),
            "Decision when the store does not answer: error, deny, allow or local",
        ),
        key("name", TEXT, "Name of the limit in answers, and in the `replaces` of other limits"),
        key(
            "replaces",
            Shape::Other(replaces),
            "List of `name: other_limit`: these limits are ignored in calls that match this rule",
        ),
    ],
};

/// The key of an item of `replaces`.
pub(super) static REPLACED: KeyTable = KeyTable {
    name: "an item of `replaces`",
    keys: &[required("name", TEXT, "Name of a limit that is ignored")],
};

/// The keys at the top of a test file.
pub(super) static SUITE: KeyTable = KeyTable {
    name: "a test file",
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
    keys: &[
        key(
            "at",
            Shape::Other(
                || json!({ "type": ["string", "null"], "pattern": "^[0-9]+(ms|s|m|h|d)$" }),
            ),
            "Time since the start: 500ms, 90s, 15m, 24h, 7d; that of the call above if absent",
        ),
        required(
            "call",
            Shape::Other(texts),
            "Descriptor such as `user=alice` or `path=/login,user=alice`, or a list of them",
        ),
        key(
            "hits",
            Shape::Other(|| json!({ "type": ["integer", "null"] })),
            "Hits of each descriptor; 1 if absent. 0 checks without counting, a negative number refunds",
        ),
        key("expect", Shape::OneOf(code_names), "Decision for the call: OK or OVER_LIMIT"),
        key("remaining", Shape::Other(numbers), "Hits left for each descriptor, or a list of them"),
        key(
            "rule",
            Shape::Other(nullable_texts),
            "Rule that each descriptor matches, by its path as `explain` shows it, or a list of them; `none` \
             where no rule must match. If absent, every descriptor must match a rule",
        ),
    ],
};

pub(super) const TEXT: Shape = Shape::Text { bytes_max: usize::MAX };

pub(super) const fn key(name: &'static str, shape: Shape, help: &'static str) -> Key {
    Key { name, need: Need::Optional, shape, help }
}

pub(super) const fn required(name: &'static str, shape: Shape, help: &'static str) -> Key {
    Key { name, need: Need::Required, shape, help }
}

impl KeyTable {
    /// The keys' names.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    pub(super) fn find(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// An unlimited limit may have any word that is not a unit, as in envoyproxy/ratelimit.
fn unit() -> Value {
    let any = json!({ "type": ["string", "number", "boolean", "null"] });
    json!({ "anyOf": [{ "enum": Unit::ALL.map(Unit::name) }, any] })
}

fn algorithm_names() -> Vec<&'static str> {
    Algorithm::names()
}

fn failure_names() -> Vec<&'static str> {
    OnStoreFailure::ALL.map(OnStoreFailure::name).to_vec()
}

fn code_names() -> Vec<&'static str> {
    vec!["OK", "OVER_LIMIT"]
}

fn reference(definition: &str) -> Value {
    json!({ "anyOf": [{ "type": "null" }, { "$ref": format!("#/$defs/{definition}") }] })
}

fn list_of(definition: &str) -> Value {
    json!({ "type": "array", "minItems": 1, "items": { "$ref": format!("#/$defs/{definition}") } })
}

fn descriptors() -> Value {
    json!({ "type": ["array", "null"], "items": { "$ref": "#/$defs/descriptor" } })
}

fn rate_limits() -> Value {
    json!({
        "type": ["array", "null"],
        "minItems": 1,
        "items": { "$ref": "#/$defs/rate_limit", "properties": { "unlimited": { "not": { "const": true } } } },
    })
}

fn replaces() -> Value {
    json!({ "type": ["array", "null"], "items": { "$ref": "#/$defs/replaced" } })
}

fn texts() -> Value {
    let text = json!({ "type": ["string", "number", "boolean"], "minLength": 1 });
    json!({ "anyOf": [text, { "type": "array", "minItems": 1, "items": text }] })
}

fn nullable_texts() -> Value {
    json!({ "anyOf": [{ "type": "null" }, texts()] })
}

fn numbers() -> Value {
    let number = json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
    json!({ "anyOf": [{ "type": "null" }, number, { "type": "array", "minItems": 1, "items": number }] })
}
