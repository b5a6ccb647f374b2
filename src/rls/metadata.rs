//! The answer's dynamic metadata, as envoyproxy/ratelimit builds it: what was asked, and the metadata of
//! the rules under which the call may pass. Envoy hands it to later filters and access logs, unchecked.

use prost_types::{ListValue, Struct, Value, value::Kind};

use super::pb::{
    Entry, RateLimitDescriptor, RateLimitRequest, rate_limit_response::rate_limit::Unit as WireUnit,
};
use crate::{
    engine::{
        decision::{Code, Decision, Matched, Outcome, Status},
        rule::Metadata,
    },
    printable::printable,
};

/// What was asked.
pub(super) fn echo(request: &RateLimitRequest) -> Struct {
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    let mut echo = Struct::default();
    let mut insert = |name: &str, value| echo.fields.insert(name.to_owned(), value);
    insert("domain", text(&printable(request.domain.as_bytes())));
    insert("descriptors", list(descriptors));
    if request.hits_addend != 0 {
        insert("hitsAddend", number(f64::from(request.hits_addend)));
    }
    echo
}

/// Adds the metadata of every rule that limits, and lets pass. The first that sets a value wins; maps
/// are merged.
pub(super) fn complete(mut echo: Struct, decision: &Decision) -> Struct {
    let mut merged = Struct::default();
    for status in &decision.statuses {
        if let Some(Metadata::Map(pairs)) = metadata(status) {
            merge(&mut merged, pairs);
        }
    }
    if !merged.fields.is_empty() {
        echo.fields.insert("metadata".to_owned(), value(Kind::StructValue(merged)));
    }
    echo
}

fn metadata(status: &Status) -> Option<&Metadata> {
    let passes = status.outcome.code() == Code::Ok;
    let limits = !matches!(status.outcome, Outcome::NoLimit | Outcome::Unlimited);
    match &status.matched {
        Matched::Rule(_, rule) if passes && limits => rule.metadata.as_deref(),
        _ => None,
    }
}

fn merge(into: &mut Struct, pairs: &[(String, Metadata)]) {
    for (name, tree) in pairs {
        match (into.fields.get_mut(name).map(|known| &mut known.kind), tree) {
            (None, _) => {
                into.fields.insert(name.clone(), from_tree(tree));
            }
            (Some(Some(Kind::StructValue(known))), Metadata::Map(pairs)) => merge(known, pairs),
            (Some(_), _) => {}
        }
    }
}

fn from_tree(tree: &Metadata) -> Value {
    match tree {
        Metadata::Null => value(Kind::NullValue(0)),
        Metadata::Truth(truth) => value(Kind::BoolValue(*truth)),
        Metadata::Number(it) => number(*it),
        Metadata::Text(it) => text(it),
        Metadata::List(items) => list(items.iter().map(from_tree).collect()),
        Metadata::Map(pairs) => {
            let mut map = Struct::default();
            merge(&mut map, pairs);
            value(Kind::StructValue(map))
        }
    }
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    // Envoy would drop a whole answer that holds what is no UTF-8, and that means: allow.
    let entry = |Entry { key, value }: &Entry| text(&(printable(key) + "=" + &printable(value)));
    let mut fields = Struct::default();
    let mut insert = |name: &str, value| fields.fields.insert(name.to_owned(), value);
    insert("entries", list(descriptor.entries.iter().map(entry).collect()));
    if let Some(limit) = &descriptor.limit {
        let unit = match WireUnit::try_from(limit.unit) {
            Ok(unit) => unit.as_str_name().to_owned(),
            Err(_) => limit.unit.to_string(),
        };
        insert(
            "limit",
            text(&format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit)),
        );
    }
    if let Some(hits) = descriptor.hits_addend {
        // A Struct knows numbers as doubles only.
        #[expect(clippy::cast_precision_loss, reason = "it is for people and logs")]
        insert("hitsAddend", number(hits as f64));
    }
    value(Kind::StructValue(fields))
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn number(number: f64) -> Value {
    value(Kind::NumberValue(number))
}

fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_wins_and_maps_are_merged() {
        let map = |pairs: &[(&str, Metadata)]| {
            Metadata::Map(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect())
        };
        let one = Metadata::Number(1.0);
        let Metadata::Map(first) = map(&[("a", map(&[("x", one.clone())])), ("b", one.clone())])
        else {
            unreachable!()
        };
        let two = Metadata::Number(2.0);
        let Metadata::Map(second) = map(&[
            ("a", map(&[("x", two.clone()), ("y", two.clone())])),
            ("b", map(&[])),
            ("c", two),
        ]) else {
            unreachable!()
        };
        let mut merged = Struct::default();
        merge(&mut merged, &first);
        merge(&mut merged, &second);
        let expected = map(&[
            ("a", map(&[("x", one.clone()), ("y", Metadata::Number(2.0))])),
            ("b", one),
            ("c", Metadata::Number(2.0)),
        ]);
        assert_eq!(value(Kind::StructValue(merged)), from_tree(&expected));
    }
}
