//! The format of rule files as a JSON Schema, for editors: the tables of keys. What keys mean together is left to
//! `tollkeeper check`, but for the units, which are often misspelled.

use serde_json::{Value, json};
use tollkeeper_engine::rule::Unit;
use tollkeeper_yaml::json_schema::{document, extend, in_any_case, mapping};

use super::keys;

pub fn schema_of_rules() -> Value {
    let mut defaults = mapping(&keys::LIMIT);
    if let Some(properties) = defaults.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !keys::OF_A_LIMIT.contains(&name.as_str()));
    }
    let mut rate_limit = mapping(&keys::LIMIT);
    let unit = json!({ "anyOf": [{ "type": "null" }, in_any_case(&Unit::ALL.map(Unit::name))] });
    let unlimited =
        json!({ "required": ["unlimited"], "properties": { "unlimited": { "const": true } } });
    extend(&mut rate_limit, json!({ "if": unlimited, "else": { "properties": { "unit": unit } } }));
    document(
        "tollkeeper rules",
        mapping(&keys::FILE),
        json!({
            "defaults": defaults,
            "descriptor": mapping(&keys::DESCRIPTOR),
            "rate_limit": rate_limit,
            "replaced": mapping(&keys::REPLACED),
        }),
    )
}
