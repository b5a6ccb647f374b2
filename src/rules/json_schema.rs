//! The format of rule files as a JSON Schema, for editors: from the same lists as the reader's.

use serde_json::{Map, Value, json};

use super::schema::{DESCRIPTOR_KEYS, KEY_BYTES_MAX, LIMIT_KEYS};
use crate::engine::rule::{Algorithm, OnStoreFailure, Unit};

/// The schema, in draft 2020-12.
pub fn json_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tollkeeper rules",
        "type": "object",
        "required": ["domain"],
        "additionalProperties": false,
        "properties": {
            "domain": { "type": "string", "minLength": 1, "description": "the name that requests ask by" },
            "descriptors": descriptors(),
        },
        "$defs": {
            "descriptor": {
                "type": "object",
                "required": ["key"],
                "additionalProperties": false,
                "properties": properties(&DESCRIPTOR_KEYS, descriptor_key),
            },
            "rate_limit": {
                "type": "object",
                "additionalProperties": false,
                "properties": properties(&LIMIT_KEYS, limit_key),
            },
        },
    })
}

fn properties(keys: &[&str], schema: fn(&str) -> Value) -> Map<String, Value> {
    keys.iter().map(|key| ((*key).to_owned(), schema(key))).collect()
}

fn descriptors() -> Value {
    json!({ "type": ["array", "null"], "items": { "$ref": "#/$defs/descriptor" } })
}

fn descriptor_key(key: &str) -> Value {
    match key {
        "key" => json!({ "type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX }),
        // What looks like a number or a truth is taken as the text that is written.
        "value" => json!({ "type": ["string", "number", "boolean", "null"] }),
        "rate_limit" => json!({ "$ref": "#/$defs/rate_limit" }),
        "rate_limits" => {
            json!({ "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/rate_limit" } })
        }
        "descriptors" => descriptors(),
        "metadata" => json!({ "type": "object" }),
        _ => json!({ "type": "boolean" }),
    }
}

fn limit_key(key: &str) -> Value {
    match key {
        "unit" => any_case(&Unit::ALL.map(Unit::name)),
        "algorithm" => any_case(&Algorithm::NAMES),
        "on_store_failure" => any_case(&OnStoreFailure::ALL.map(OnStoreFailure::name)),
        "requests_per_unit" => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
        "unit_multiplier" | "burst" => {
            json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX })
        }
        "name" | "remember" | "time_zone" => json!({ "type": "string" }),
        "replaces" => json!({
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": false,
                "properties": { "name": { "type": "string", "minLength": 1 } },
            },
        }),
        _ => json!({ "type": "boolean" }),
    }
}

/// The words that an editor offers, and those in another case that are as good.
fn any_case(words: &[&str]) -> Value {
    let either = |letter: char| match letter.is_ascii_alphabetic() {
        true => format!("[{letter}{}]", letter.to_ascii_uppercase()),
        false => letter.to_string(),
    };
    let pattern: Vec<String> =
        words.iter().map(|word| word.chars().map(either).collect()).collect();
    json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": format!("^({})$", pattern.join("|")) }] })
}
