//! The format of rule files as a JSON Schema, for editors: the tables of keys, and the conditions between keys that a
//! schema can express.

use serde_json::{Value, json};

use super::keys;
use crate::{
    engine::{
        calendar::WEEKDAYS,
        request::Hits,
        rule::{STORED_HITS_MAX, Unit},
        window::Window,
    },
    yaml::json_schema::{document, extend, in_any_case, mapping},
};

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
    let mut defaults = mapping(&keys::LIMIT);
    if let Some(properties) = defaults.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !keys::OF_A_LIMIT.contains(&name.as_str()));
    }
    document(
        "tollkeeper rules",
        mapping(&keys::FILE),
        json!({
            "defaults": defaults,
            "descriptor": descriptor,
            "rate_limit": rate_limit,
            "replaced": mapping(&keys::REPLACED),
        }),
    )
}

fn descriptor_conditions() -> Vec<Value> {
    let stored = stored();
    let none_stored = json!({
        "properties": {
            "rate_limit": { "not": stored },
            "rate_limits": { "items": { "not": stored } },
        },
    });
    let with_star = is("value", &json!({ "type": "string", "pattern": "\\*" }));
    vec![
        json!({ "not": { "allOf": [is_set("rate_limit"), is_set("rate_limits")] } }),
        when(&is("share_threshold", &json!({ "const": true })), &with_star),
        when(&is("quota_mode", &json!({ "const": true })), &none_stored),
    ]
}

/// The conditions on every limit, except unlimited ones.
fn limit_conditions() -> Vec<Value> {
    let (stored, bucket) = (stored(), algorithm("token_bucket"));
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
    let in_flight = json!({
        "if": algorithm("in_flight"),
        "then": { "allOf": [is_set("hold"), { "not": is_set("unit") }, { "not": is_set("unit_multiplier") }] },
        "else": is("unit", &in_any_case(&Unit::ALL.map(Unit::name))),
    });
    let mut conditions = vec![
        in_flight,
        when(&is_set("burst"), &json!({ "allOf": [bucket, refills] })),
        when(&is_set("remember"), &stored),
        when(&is_set("idle"), &algorithm("first_hit_window")),
        when(&is_set("time_zone"), &days),
        when(&is_set("starts"), &starts()),
        when(&stored, &at_most("requests_per_unit", STORED_HITS_MAX)),
        when(&stored, &admitted_only),
    ];
    for unit in Unit::ALL {
        let is_unit = is("unit", &in_any_case(&[unit.name()]));
        let units_max = Window::SECONDS_MAX / unit.seconds();
        conditions.push(when(&is_unit, &at_most("unit_multiplier", units_max)));
        // A `unit_multiplier` lowers the maximum, which a schema cannot compute.
        let hits_max = Hits::MAX / (unit.seconds() * 1000);
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

/// A limit with `starts`, in the form of its unit.
fn starts() -> Value {
    let (day, month, year) = (
        "^([01][0-9]|2[0-3]):[0-5][0-9]$",
        "^(0?[1-9]|[12][0-9]|3[01])$",
        "^(02-(0[1-9]|[12][0-9])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))$",
    );
    let pattern = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    let number = json!({ "type": "integer", "minimum": 1, "maximum": 31 });
    let forms = [
        ("day", pattern(day)),
        ("week", in_any_case(&WEEKDAYS)),
        ("month", json!({ "anyOf": [number, pattern(month)] })),
        ("year", pattern(year)),
    ];
    let mut conditions = vec![is_set("time_zone")];
    for (unit, form) in forms {
        let is_unit = is("unit", &in_any_case(&[unit]));
        conditions.push(when(&is_unit, &json!({ "properties": { "starts": form } })));
    }
    json!({ "allOf": conditions })
}

fn stored() -> Value {
    is("algorithm", &in_any_case(&["sliding_log", "in_flight"]))
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
