//! The key `hold` of a limit: its keys, how it is read, and what it needs of its limit.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tollkeeper_engine::{
    hold::{Abandoned, Estimate, HoldBy, HoldPolicy, LearnedEstimate},
    request::Hits,
    text::duration::duration,
};
use tollkeeper_yaml::{
    json_schema::mapping,
    keys::{KeyTable, Shape, TEXT, key, required},
    reader::{Fields, Located, Reader, shown},
    tree::{Content, Location, YamlNode},
};

pub(super) const FOR_MIN: Duration = Duration::from_secs(1);
pub(super) const FOR_MAX: Duration = Duration::from_millis(HoldPolicy::LIFETIME_MS_MAX);

const ITEMS_MAX: usize = HoldPolicy::ITEMS_MAX;
const NAME_BYTES_MAX: usize = HoldPolicy::NAME_BYTES_MAX;

const LEARNED_WITHOUT_DEFAULT: &str =
    "estimate: needs a number to start with, such as `{ default: 2000, learned: true }`";

#[rustfmt::skip]
static HOLD: KeyTable = KeyTable {
    name: "`hold`",
    elsewhere: |_| None,
    keys: &[
        required("for", Shape::Time { min: FOR_MIN, max: FOR_MAX },
            "Time in which a commit must come, 1s to 7 days (168h)"),
        key("by", Shape::OneOf(HoldBy::names),
            "How a commit finds its hold: `token` (default), `id` or `counter`"),
        key("estimate", Shape::Other(estimate_schema),
            "Hits to hold: a number or a mapping; the call's hits if absent"),
        key("weights", Shape::Other(weights_schema),
            "Hits for a unit of each kind of usage, such as `input: 250`"),
        key("unused_on", Shape::Other(|| json!({ "type": ["array", "null"], "items": { "type": ["string", "integer"] } })),
            "Response flags, codes and classes (`5xx`) of calls that used nothing; UF, UH, UO, NR, NC and RL if absent"),
        key("abandoned", Shape::OneOf(Abandoned::names),
            "Hits of a hold without a commit: `keep` (default) or `release`"),
    ],
};

#[rustfmt::skip]
static WEIGHT: KeyTable = KeyTable {
    name: "a weight",
    elsewhere: |_| None,
    keys: &[
        required("weight", HITS, "Hits for a unit of this kind"),
        required("included_in", TEXT, "Kind, further up, whose number includes that of this kind"),
    ],
};

#[rustfmt::skip]
static ESTIMATE: KeyTable = KeyTable {
    name: "`estimate`",
    elsewhere: |_| None,
    keys: &[
        key("default", HITS, "Hits for a call that announces no number"),
        key("min", HITS, "Smallest estimate"),
        key("max", HITS, "Largest estimate"),
        key("learned", Shape::Switch, "true: starts with `default` and follows the commits"),
    ],
};

const HITS: Shape = Shape::Whole { min: 0, max: Hits::MAX };

/// The schema of `hold`: a time, or a mapping.
pub(super) fn schema() -> Value {
    json!({ "anyOf": [{ "type": ["string", "null"] }, mapping(&HOLD)] })
}

fn estimate_schema() -> Value {
    let number = json!({ "type": "integer", "minimum": 0 });
    json!({ "anyOf": [{ "type": "null" }, number, mapping(&ESTIMATE)] })
}

fn weights_schema() -> Value {
    let number = json!({ "type": "integer", "minimum": 0 });
    let weight = json!({ "anyOf": [number, mapping(&WEIGHT)] });
    json!({ "type": ["object", "null"], "additionalProperties": weight })
}

pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<HoldPolicy> {
    let node = fields.node("hold")?;
    if let Content::Map(_) = node.content {
        return policy(reader, node);
    }
    let lifetime = duration(reader.scalar(node, "hold")?, FOR_MIN, FOR_MAX);
    let problem = |problem| reader.problem(node.location, format!("hold: {problem}"));
    lifetime.map_err(problem).ok().map(|lifetime| HoldPolicy::new(millis(lifetime)))
}

fn policy(reader: &mut Reader<'_>, node: &YamlNode) -> Option<HoldPolicy> {
    let fields = reader.fields(node, &HOLD)?;
    let [by, abandoned] = ["by", "abandoned"].map(|key| fields.word(key));
    let estimate = fields.node("estimate").and_then(|node| estimate(reader, node));
    let weights = fields.node("weights").map(|node| weights(reader, node));
    let unused_on = fields.node("unused_on").map(|node| unused_on(reader, node));
    let policy = HoldPolicy::new(millis(fields.time("for")?.value));
    Some(HoldPolicy {
        by: by.and_then(HoldBy::named).unwrap_or(policy.by),
        estimate: estimate.unwrap_or(policy.estimate),
        weights: weights.unwrap_or_default(),
        unused_on,
        abandoned: abandoned.and_then(Abandoned::named).unwrap_or(policy.abandoned),
        ..policy
    })
}

fn estimate(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Estimate> {
    let none = Estimate { default: None, min: 0, max: Hits::MAX, learned: None };
    match &node.content {
        Content::Scalar(text, _) if text == "learned" => {
            reader.problem(node.location, LEARNED_WITHOUT_DEFAULT);
            None
        }
        Content::Scalar(..) => {
            let default = reader.whole(node, "estimate", 0, Hits::MAX)?;
            Some(Estimate { default: Some(default), ..none })
        }
        Content::List(_) | Content::Map(_) => {
            let fields = reader.fields(node, &ESTIMATE)?;
            let number = |name: &str| fields.whole(name).map(|whole| whole.value);
            let (min, max) = (number("min").unwrap_or(0), number("max").unwrap_or(Hits::MAX));
            if min > max {
                let message = format!("min: {min} exceeds max, which is {max}");
                reader.problem(node.location, message);
                return None;
            }
            let (default, is_learned) = (number("default"), fields.is_on("learned"));
            if is_learned && default.is_none() {
                reader.problem(node.location, LEARNED_WITHOUT_DEFAULT);
            }
            let learned = default.filter(|_| is_learned).map(LearnedEstimate::new);
            Some(Estimate { default, min, max, learned: learned.map(Arc::new) })
        }
    }
}

/// The hits that a unit of each kind adds: its own, less those that it has as a part of another kind.
fn weights(reader: &mut Reader<'_>, node: &YamlNode) -> Vec<(Box<str>, i64)> {
    let Content::Map(pairs) = &node.content else {
        reader.problem(node.location, "weights: must be a mapping such as `input: 250`");
        return Vec::new();
    };
    check_items(reader, "weights", node.location, pairs.len());
    let mut weights: Vec<(Box<str>, Weight)> = Vec::new();
    for (key, value) in pairs {
        let Some(kind) = short_text(reader, key, "weights") else { continue };
        if weights.iter().any(|(known, _)| *known == kind) {
            reader.problem(key.location, format!("{kind}: duplicate key"));
        } else if let Some(weight) = weight(reader, value, &weights) {
            weights.push((kind, weight));
        }
    }
    weights.into_iter().map(|(kind, weight)| (kind, weight.added)).collect()
}

/// The hits for a unit of a kind, and how many more than as a part of the kind that includes it.
struct Weight {
    own: i64,
    added: i64,
}

fn weight(
    reader: &mut Reader<'_>,
    node: &YamlNode,
    above: &[(Box<str>, Weight)],
) -> Option<Weight> {
    if !matches!(node.content, Content::Map(_)) {
        let own = reader.whole(node, "weights", 0, Hits::MAX)?.cast_signed();
        return Some(Weight { own, added: own });
    }
    let fields = reader.fields(node, &WEIGHT)?;
    let own = fields.whole("weight")?.value.cast_signed();
    let Located { location, value: kind } = fields.text("included_in")?;
    let Some((_, whole)) = above.iter().find(|(known, _)| **known == *kind) else {
        let message = format!("included_in: `{}` is no kind further up", shown(&kind));
        reader.problem(location, message);
        return None;
    };
    Some(Weight { own, added: own - whole.own })
}

fn unused_on(reader: &mut Reader<'_>, node: &YamlNode) -> Vec<Box<str>> {
    let Content::List(items) = &node.content else {
        reader.problem(node.location, "unused_on: must be a list such as [5xx, UF]");
        return Vec::new();
    };
    check_items(reader, "unused_on", node.location, items.len());
    items.iter().filter_map(|item| short_text(reader, item, "unused_on")).collect()
}

fn check_items(reader: &mut Reader<'_>, name: &str, location: Location, count: usize) {
    if count > ITEMS_MAX {
        reader.problem(location, format!("{name}: {count} items exceed {ITEMS_MAX}"));
    }
}

fn short_text(reader: &mut Reader<'_>, node: &YamlNode, name: &str) -> Option<Box<str>> {
    let text = reader.scalar(node, name)?;
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.as_bytes().iter().all(is_word) {
        return Some(text.into());
    }
    let message = format!(
        "{name}: `{}` must be 1 to {NAME_BYTES_MAX} ASCII letters, digits and underscores",
        shown(text)
    );
    reader.problem(node.location, message);
    None
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
