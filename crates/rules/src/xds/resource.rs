//! A resource as the tree that a rule file would be. Its locations are its descriptors, numbered from 1.
//!
//! What the message has no field for may be in a descriptor's `metadata`, below `tollkeeper`; a key of the domain, in the
//! metadata of a descriptor of the top level.

use std::sync::Arc;

use prost_types::{Struct, Value, value::Kind};
use tollkeeper_yaml::{
    Problem,
    keys::KeyTable,
    origin::{DescriptorStep, Origin},
    tree::{Content, Location, Pairs, Style, YamlNode},
};

use super::pb::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use crate::{
    keys::{DESCRIPTOR, FILE, LIMIT},
    written::RuleTree,
};

/// The key of a descriptor's metadata below which our own keys are.
const OWN_KEYS: &str = "tollkeeper";

/// The tree of a resource. What is wrong with its form is added to the problems.
pub(super) fn tree(config: &RateLimitConfig, problems: &mut Vec<Problem>) -> RuleTree {
    let mut builder = ResourceTreeBuilder::default();
    let at = (0, 1);
    let descriptors = builder.descriptors(at, &config.descriptors);
    let mut pairs =
        vec![pair(at, "domain", text(at, &config.domain)), pair(at, "descriptors", descriptors)];
    pairs.extend(builder.of_domain.iter().map(|(at, key, value)| pair(*at, key, json(*at, value))));
    let origin = Origin::resource(name(config), builder.steps);
    let found = builder.problems.into_iter();
    problems.extend(found.map(|(location, message)| origin.problem(location, message)));
    RuleTree { origin: Arc::new(origin), root: map(at, pairs) }
}

/// Its name; control planes give it the name of its domain.
pub(super) fn name(config: &RateLimitConfig) -> &str {
    match (config.name.as_str(), config.domain.as_str()) {
        ("", "") => "(resource without a name)",
        ("", domain) => domain,
        (name, _) => name,
    }
}

#[derive(Default)]
struct ResourceTreeBuilder<'a> {
    /// Our own keys of the domain, each once with the same value.
    of_domain: Vec<(Location, &'a str, &'a Value)>,
    steps: Vec<DescriptorStep>,
    problems: Vec<(Location, String)>,
}

impl<'a> ResourceTreeBuilder<'a> {
    fn descriptors(&mut self, at: Location, written: &'a [RateLimitDescriptor]) -> YamlNode {
        let items = written.iter().map(|descriptor| self.descriptor(at.0, descriptor)).collect();
        YamlNode { location: at, content: Content::List(items) }
    }

    fn descriptor(&mut self, parent: usize, written: &'a RateLimitDescriptor) -> YamlNode {
        let RateLimitDescriptor { key, value, rate_limit, descriptors, .. } = written;
        let value_if_any = Some(value.clone()).filter(|value| !value.is_empty());
        self.steps.push(DescriptorStep { parent, step: (key.clone(), value_if_any) });
        let at = (self.steps.len(), 1);
        let mut pairs = vec![pair(at, "key", text(at, key)), pair(at, "value", text(at, value))];
        for (name, is_on) in [
            ("shadow_mode", written.shadow_mode),
            ("detailed_metric", written.detailed_metric),
            ("quota_mode", written.quota_mode),
        ] {
            if is_on {
                pairs.push(pair(at, name, plain(at, "true")));
            }
        }
        pairs.push(pair(at, "descriptors", self.descriptors(at, descriptors)));
        let mut limit = rate_limit.as_ref().map(|policy| limit(at, policy));
        if let Some(metadata) = &written.metadata {
            self.metadata(at, metadata, &mut pairs, &mut limit);
        }
        pairs.extend(limit.map(|limit| pair(at, "rate_limit", map(at, limit))));
        map(at, pairs)
    }

    /// Adds our own keys to the descriptor and its limit; the rest is for Envoy.
    fn metadata(
        &mut self,
        at: Location,
        metadata: &'a Struct,
        descriptor: &mut Pairs,
        limit: &mut Option<Pairs>,
    ) {
        let is_top = self.steps.get(at.0 - 1).is_some_and(|step| step.parent == 0);
        let mut others = Vec::new();
        for (name, value) in &metadata.fields {
            match &value.kind {
                Some(Kind::StructValue(own)) if name == OWN_KEYS => {
                    for (key, value) in &own.fields {
                        let is_in = |table: &KeyTable| table.find(key).is_some();
                        let level = if is_in(&DESCRIPTOR) {
                            &mut *descriptor
                        } else if is_top && is_in(&FILE) && !is_in(&LIMIT) {
                            self.add_of_domain(at, key, value);
                            continue;
                        } else {
                            limit.get_or_insert_default()
                        };
                        level
                            .retain(|(known, value)| known.name() != Some(key) || !is_unset(value));
                        level.push(pair(at, key, json(at, value)));
                    }
                }
                _ if name == OWN_KEYS => {
                    let message = format!("metadata: `{OWN_KEYS}` must be a mapping of rule keys");
                    self.problems.push((at, message));
                }
                _ => others.push(pair(at, name, json(at, value))),
            }
        }
        if !others.is_empty() {
            descriptor.push(pair(at, "metadata", map(at, others)));
        }
    }

    fn add_of_domain(&mut self, at: Location, key: &'a str, value: &'a Value) {
        let is_known = self.of_domain.iter().any(|(_, k, v)| (*k, *v) == (key, value));
        if !is_known {
            self.of_domain.push((at, key, value));
        }
    }
}

/// The pairs of a limit. On the wire, an absent number of requests reads as 0.
fn limit(at: Location, policy: &RateLimitPolicy) -> Pairs {
    let RateLimitPolicy { unit, requests_per_unit, unlimited, name, replaces } = policy;
    let mut pairs = vec![pair(at, "name", text(at, name))];
    match RateLimitUnit::try_from(*unit) {
        Ok(RateLimitUnit::Unknown) => {}
        Ok(unit) => pairs.push(pair(at, "unit", text(at, unit.as_str_name()))),
        Err(_) => pairs.push(pair(at, "unit", text(at, &unit.to_string()))),
    }
    if *unlimited {
        pairs.push(pair(at, "unlimited", plain(at, "true")));
    } else {
        pairs.push(pair(at, "requests_per_unit", plain(at, &requests_per_unit.to_string())));
    }
    if !replaces.is_empty() {
        let item = |name: &str| map(at, vec![pair(at, "name", text(at, name))]);
        let items = replaces.iter().map(|replaced| item(&replaced.name)).collect();
        pairs.push(pair(at, "replaces", YamlNode { location: at, content: Content::List(items) }));
    }
    pairs
}

/// Whether the message's field had its default, as an absent one has.
fn is_unset(value: &YamlNode) -> bool {
    match &value.content {
        Content::Scalar(text, Style::Quoted) => text.is_empty(),
        Content::Scalar(text, Style::Plain) => text == "0",
        Content::List(items) => items.is_empty(),
        Content::Map(_) => false,
    }
}

/// A value of `metadata`. Text counts as quoted: it is never read as a number.
fn json(at: Location, value: &Value) -> YamlNode {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => plain(at, "null"),
        Some(Kind::BoolValue(truth)) => plain(at, &truth.to_string()),
        Some(Kind::NumberValue(number)) => plain(at, &number.to_string()),
        Some(Kind::StringValue(string)) => text(at, string),
        Some(Kind::ListValue(list)) => {
            let items = list.values.iter().map(|value| json(at, value)).collect();
            YamlNode { location: at, content: Content::List(items) }
        }
        Some(Kind::StructValue(fields)) => {
            let pairs = fields.fields.iter().map(|(name, value)| pair(at, name, json(at, value)));
            map(at, pairs.collect())
        }
    }
}

fn map(location: Location, pairs: Pairs) -> YamlNode {
    YamlNode { location, content: Content::Map(pairs) }
}

fn pair(at: Location, key: &str, value: YamlNode) -> (YamlNode, YamlNode) {
    (text(at, key), value)
}

fn text(location: Location, text: &str) -> YamlNode {
    YamlNode { location, content: Content::Scalar(text.to_owned(), Style::Quoted) }
}

fn plain(location: Location, text: &str) -> YamlNode {
    YamlNode { location, content: Content::Scalar(text.to_owned(), Style::Plain) }
}
