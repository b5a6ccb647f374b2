//! The formats of rule files and of test files as JSON Schemas, for editors: the tables of keys, and
//! those conditions between keys that a schema can say.

use serde_json::{Map, Value, json};

use super::{
    compile::LOG_HITS_MAX,
    keys::{self, Key, KeyTable, Need, Shape},
};
use crate::engine::{request::Hits, rule::Unit, window::Window};

/// The schema of a rule file, in draft 2020-12.
pub fn schema_of_rules() -> Value {
    let mut descriptor = mapping(&keys::DESCRIPTOR);
    extend(&mut descriptor, json!({ "allOf": descriptor_conditions() }));
    let mut rate_limit = mapping(&keys::LIMIT);
    extend(
        &mut rate_limit,
        json!({
            "if": is("unlimited", &json!({ "const": true })),
            "then": { "properties": { "unit": { "not": in_any_case(&Unit::ALL.map(Unit::name)) } } },
            "else": { "allOf": limit_conditions() },
        }),
    );
    document(
        "tollkeeper rules",
        mapping(&keys::FILE),
        json!({
            "descriptor": descriptor,
            "rate_limit": rate_limit,
            "replaced": mapping(&keys::REPLACED),
        }),
    )
}

/// The schema of a test file, in draft 2020-12.
pub fn schema_of_tests() -> Value {
    document(
        "tollkeeper rule tests",
        mapping(&keys::SUITE),
        json!({ "test": mapping(&keys::TEST), "call": mapping(&keys::CALL) }),
    )
}

fn document(title: &str, mut root: Value, definitions: Value) -> Value {
    let schema = "https://json-schema.org/draft/2020-12/schema";
    extend(&mut root, json!({ "$schema": schema, "title": title, "$defs": definitions }));
    root
}

fn mapping(table: &KeyTable) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in table.keys {
        properties.insert(key.name.to_owned(), property(key));
        if key.need == Need::Required {
            required.push(key.name);
        }
    }
    json!({
        "type": "object",
        "required": required,
        "additionalProperties": false,
        "properties": properties,
    })
}

fn property(key: &Key) -> Value {
    let mut schema = match key.shape {
        // A number or boolean is read as the text that is written.
        Shape::Text { bytes_max } => {
            let mut text = match key.need {
                Need::Required => {
                    json!({ "type": ["string", "number", "boolean"], "minLength": 1 })
                }
                Need::Optional => json!({ "type": ["string", "number", "boolean", "null"] }),
            };
            if bytes_max < usize::MAX {
                extend(&mut text, json!({ "maxLength": bytes_max }));
            }
            text
        }
        Shape::Whole { min } => {
            json!({ "type": ["integer", "null"], "minimum": min, "maximum": u32::MAX })
        }
        Shape::Switch => json!({ "type": ["boolean", "null"] }),
        Shape::OneOf(words) => {
            json!({ "anyOf": [{ "type": "null" }, offered_in_any_case(&words())] })
        }
        Shape::Other(schema) => schema(),
    };
    extend(&mut schema, json!({ "description": key.help }));
    schema
}

fn descriptor_conditions() -> Vec<Value> {
    let log = algorithm("sliding_log");
    let no_log = json!({
        "properties": {
            "rate_limit": { "not": log },
            "rate_limits": { "items": { "not": log } },
        },
    });
    let with_star = is("value", &json!({ "type": "string", "pattern": "\\*" }));
    vec![
        json!({ "not": { "allOf": [is_set("rate_limit"), is_set("rate_limits")] } }),
        when(&is("share_threshold", &json!({ "const": true })), &with_star),
        when(&is("quota_mode", &json!({ "const": true })), &no_log),
    ]
}

/// The conditions on every limit, except unlimited ones.
fn limit_conditions() -> Vec<Value> {
    let (log, bucket) = (algorithm("sliding_log"), algorithm("token_bucket"));
    let days = json!({
        "required": ["unit"],
        "properties": {
            "unit": in_any_case(&["day", "week", "month", "year"]),
            "unit_multiplier": { "enum": [1, null] },
            "algorithm": { "anyOf": [{ "type": "null" }, in_any_case(&["fixed_window"])] },
        },
    });
    let admitted_only = json!({ "properties": { "count_denied": { "not": { "const": true } } } });
    let refills = is("requests_per_unit", &json!({ "type": "integer", "minimum": 1 }));
    let mut conditions = vec![
        is("unit", &in_any_case(&Unit::ALL.map(Unit::name))),
        when(&is_set("burst"), &json!({ "allOf": [bucket, refills] })),
        when(&is_set("remember"), &log),
        when(&is_set("time_zone"), &days),
        when(&log, &at_most("requests_per_unit", u64::from(LOG_HITS_MAX))),
        when(&log, &admitted_only),
    ];
    for unit in Unit::ALL {
        let is_unit = is("unit", &in_any_case(&[unit.name()]));
        let units_max = Window::SECONDS_MAX / unit.seconds();
        conditions.push(when(&is_unit, &at_most("unit_multiplier", units_max)));
        // A `unit_multiplier` lowers the maximum, which a schema cannot compute.
        let hits_max = Hits::MAX / (unit.seconds() * 1000);
        if hits_max >= u64::from(u32::MAX) {
            continue;
        }
        let weighed = json!({ "anyOf": [algorithm("sliding_window"), {
            "allOf": [bucket, { "not": is_set("burst") }],
        }] });
        let by_weight = json!({ "allOf": [is_unit, weighed] });
        let by_burst = json!({ "allOf": [is_unit, is_set("burst")] });
        conditions.push(when(&by_weight, &at_most("requests_per_unit", hits_max)));
        conditions.push(when(&by_burst, &at_most("burst", hits_max)));
    }
    conditions
}

fn algorithm(name: &str) -> Value {
    is("algorithm", &in_any_case(&[name]))
}

fn at_most(key: &str, max: u64) -> Value {
    json!({ "properties": { key: { "maximum": max } } })
}

fn when(condition: &Value, then: &Value) -> Value {
    json!({ "if": condition, "then": then })
}

/// The key is present, and its value satisfies the schema.
fn is(key: &str, schema: &Value) -> Value {
    json!({ "type": "object", "required": [key], "properties": { key: schema } })
}

/// The key is present, and its value is not null.
fn is_set(key: &str) -> Value {
    is(key, &json!({ "not": { "type": "null" } }))
}

/// Words that an editor offers, and the same words in any other case.
fn offered_in_any_case(words: &[&str]) -> Value {
    json!({ "anyOf": [{ "enum": words }, in_any_case(words)] })
}

fn in_any_case(words: &[&str]) -> Value {
    let mut patterns = Vec::new();
    for word in words {
        let mut pattern = String::new();
        for letter in word.chars() {
            if letter.is_ascii_alphabetic() {
                pattern += &format!("[{letter}{}]", swap_case(letter));
            } else {
                pattern.push(letter);
            }
        }
        patterns.push(pattern);
    }
    let pattern = format!("^({})$", patterns.join("|"));
    json!({ "type": "string", "pattern": pattern })
}

fn swap_case(letter: char) -> char {
    if letter.is_ascii_uppercase() {
        letter.to_ascii_lowercase()
    } else {
        letter.to_ascii_uppercase()
    }
}

/// Adds the pairs of one object to another.
fn extend(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
