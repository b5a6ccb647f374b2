//! The answer's dynamic metadata, as envoyproxy/ratelimit builds it: the request, and the metadata of the
//! rules that let the call pass. Envoy gives it to later filters and access logs, unchecked.
//!
//! End users choose the values, so only the start of each is repeated, and of the whole request only so much: an answer
//! that takes longer than Envoy waits would let the call pass.

use prost_types::{Struct, Value, value::Kind};

use super::pb::{
    Entry, RateLimitDescriptor, RateLimitRequest, rate_limit_response::rate_limit::Unit as WireUnit,
};
use crate::{
    engine::{
        decision::{Code, Committed, Decision, Matched, Status},
        request,
        rule::Metadata,
    },
    text::printable::printable_start,
};

/// Most bytes of a domain, a key or a value that are repeated, and the sum at which no further entry is.
const TEXT_BYTES_MAX: usize = 256;
const ECHO_BYTES_MAX: usize = 16 << 10;

/// Most groups of quotas in an answer.
const GROUPS_MAX: usize = 64;

pub(super) fn echo(request: &RateLimitRequest) -> Struct {
    let mut bytes_remaining = ECHO_BYTES_MAX;
    let descriptors = request.descriptors.iter();
    let descriptors: Vec<Value> = descriptors
        .map_while(|next| (bytes_remaining > 0).then(|| descriptor(next, &mut bytes_remaining)))
        .collect();
    let mut echo = Struct::default();
    let domain = printable_start(request.domain.as_bytes(), TEXT_BYTES_MAX);
    insert(&mut echo, "domain", domain);
    insert(&mut echo, "descriptors", descriptors);
    if request.hits_addend != 0 {
        insert(&mut echo, "hitsAddend", request.hits_addend);
    }
    echo
}

/// The metadata of an answer: what an `echo` is completed to, the token of a hold, and what has become of commits by token.
pub(super) fn answer(echo: Option<Struct>, decision: &mut Decision) -> Option<Struct> {
    let mut metadata = echo.map(|echo| complete(echo, decision));
    if let Some(token) = decision.token.take() {
        insert(metadata.get_or_insert_default(), "hold", token);
    }
    let commits = decision.commits.iter().filter(|commit| commit.deadline.is_some());
    let mut outcomes: Vec<&str> = commits.map(Committed::name).collect();
    outcomes.dedup();
    if !outcomes.is_empty() {
        insert(metadata.get_or_insert_default(), "commit", outcomes.join(", "));
    }
    metadata
}

/// Adds the metadata of every rule that has a limit and lets the call pass, and the groups of quotas with room. The first
/// rule that sets a value wins; maps are merged.
fn complete(mut echo: Struct, decision: &Decision) -> Struct {
    let mut merged = Struct::default();
    for status in &decision.statuses {
        if let Some(Metadata::Map(pairs)) = metadata(status) {
            merge(&mut merged, pairs);
        }
    }
    if !merged.fields.is_empty() {
        insert(&mut echo, "metadata", merged.fields);
    }
    let directives = decision.statuses.iter().filter_map(|status| status.directive.as_ref());
    let directives: Vec<Value> = directives.map(|one| one.to_string().into()).collect();
    if !directives.is_empty() {
        insert(&mut echo, "overrides", directives);
    }
    if let Some(groups) = &decision.passed_groups {
        let groups: Vec<Value> = groups.iter().take(GROUPS_MAX).map(group).collect();
        insert(&mut echo, "passedBackends", groups);
    }
    echo
}

fn group(entries: &Vec<request::Entry>) -> Value {
    let mut map = Struct::default();
    let shown = |bytes| printable_start(bytes, TEXT_BYTES_MAX);
    for request::Entry { key, value } in entries {
        insert(&mut map, &shown(key), shown(value));
    }
    map.fields.into()
}

fn metadata(status: &Status) -> Option<&Metadata> {
    let passes = status.outcome.code() == Code::Ok && !status.is_of_full_group;
    let has_limit = status.outcome.of_limit().is_some();
    match &status.matched {
        Matched::Rule(_, rule) if passes && has_limit => rule.metadata.as_deref(),
        _ => None,
    }
}

fn merge(into: &mut Struct, pairs: &[(String, Metadata)]) {
    for (name, tree) in pairs {
        let Some(present) = into.fields.get_mut(name) else {
            insert(into, name, from_tree(tree));
            continue;
        };
        if let (Some(Kind::StructValue(present)), Metadata::Map(pairs)) = (&mut present.kind, tree)
        {
            merge(present, pairs);
        }
    }
}

fn from_tree(tree: &Metadata) -> Value {
    match tree {
        Metadata::Null => Kind::NullValue(0).into(),
        Metadata::Truth(truth) => (*truth).into(),
        Metadata::Number(float) => (*float).into(),
        Metadata::Text(string) => string.as_str().into(),
        Metadata::List(items) => items.iter().map(from_tree).collect::<Vec<_>>().into(),
        Metadata::Map(pairs) => {
            let mut map = Struct::default();
            merge(&mut map, pairs);
            map.fields.into()
        }
    }
}

fn descriptor(descriptor: &RateLimitDescriptor, bytes_remaining: &mut usize) -> Value {
    let mut map = Struct::default();
    let entries = descriptor.entries.iter().map_while(|next| {
        let entry = (*bytes_remaining > 0).then(|| entry(next))?;
        *bytes_remaining = bytes_remaining.saturating_sub(entry.len());
        Some(entry.into())
    });
    insert::<Vec<Value>>(&mut map, "entries", entries.collect());
    if let Some(limit) = &descriptor.limit {
        let unit = match WireUnit::try_from(limit.unit) {
            Ok(unit) => unit.as_str_name().to_owned(),
            Err(_) => limit.unit.to_string(),
        };
        let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        insert(&mut map, "limit", limit);
    }
    if let Some(hits) = descriptor.hits_addend {
        // A Struct holds numbers as doubles only.
        #[expect(clippy::cast_precision_loss, reason = "it is for people and logs")]
        insert(&mut map, "hitsAddend", hits as f64);
    }
    map.fields.into()
}

/// Escaped: Envoy would drop a whole answer that is not valid UTF-8, and so let the call pass.
fn entry(Entry { key, value }: &Entry) -> String {
    printable_start(key, TEXT_BYTES_MAX) + "=" + &printable_start(value, TEXT_BYTES_MAX)
}

fn insert<V: Into<Value>>(map: &mut Struct, name: &str, value: V) {
    map.fields.insert(name.to_owned(), value.into());
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
        assert_eq!(Value::from(merged.fields), from_tree(&expected));
    }
}
