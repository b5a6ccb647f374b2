//! JSON Schemas, for editors, of the mappings that tables of keys describe.

use serde_json::{Map, Value, json};

use super::keys::{Key, KeyTable, Need, Shape};

pub fn document(title: &str, mut root: Value, definitions: Value) -> Value {
    let schema = "https://json-schema.org/draft/2020-12/schema";
    extend(&mut root, json!({ "$schema": schema, "title": title, "$defs": definitions }));
    root
}

/// The schema of a mapping with these keys, and no others.
pub fn mapping(table: &KeyTable) -> Value {
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

/// A duration as a regular expression.
pub const DURATION: &str = "^(?=.)(\\d+d)?(\\d+h)?(\\d+m)?(\\d+s)?(\\d+ms)?$";

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
        Shape::Whole { min, max } => {
            json!({ "type": ["integer", "null"], "minimum": min, "maximum": max })
        }
        Shape::Time { .. } => {
            json!({ "type": ["string", "null"], "pattern": DURATION })
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

/// Words that an editor offers, and the same words in any other case.
fn offered_in_any_case(words: &[&str]) -> Value {
    json!({ "anyOf": [{ "enum": words }, in_any_case(words)] })
}

pub fn in_any_case(allowed: &[&str]) -> Value {
    let mut patterns = Vec::new();
    for word in allowed {
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
pub fn extend(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
