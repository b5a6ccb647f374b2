//! Keys of a limit that have keys of their own or a list: `priority`, `tiers`, `shadow` and `notify_at`.

use std::sync::Arc;

use http::HeaderName;
use serde_json::{Value, json};
use tollkeeper_engine::{
    request::Hits,
    rule::{Priority, Tier, TierHeader},
};
use tollkeeper_yaml::{
    json_schema::mapping,
    keys::{KeyTable, Shape, TEXT, key, required},
    reader::{Fields, Located, Reader, shown},
    tree::{Content, YamlNode},
};

#[rustfmt::skip]
static PRIORITY: KeyTable = KeyTable {
    name: "`priority`",
    elsewhere: |_| None,
    keys: &[
        required("entry", TEXT, "Key of the entry with the class"),
        required("share", Shape::Other(|| pairs_schema(json!({ "type": "integer", "minimum": 1, "maximum": 100 }))),
            "Percent for each class, 1 to 100, such as `batch: 50`"),
        key("default", Shape::Whole { min: 1, max: 100 },
            "Percent for other classes; the lowest share if absent"),
        key("release", Shape::OneOf(|| vec!["linear"]),
            "`linear`: shares grow to the whole limit until a fixed_window ends"),
    ],
};

#[rustfmt::skip]
static TIER: KeyTable = KeyTable {
    name: "an item of `tiers`",
    elsewhere: |_| None,
    keys: &[
        required("at", Shape::Whole { min: 1, max: 100 },
            "Used percent that reaches the tier, 1 to 100"),
        required("request_headers", Shape::Other(|| pairs_schema(json!({ "type": ["string", "number", "boolean"] }))),
            "Headers that the proxy adds, such as `x-tier: warn`"),
    ],
};

#[rustfmt::skip]
static SHADOW: KeyTable = KeyTable {
    name: "`shadow`",
    elsewhere: |_| None,
    keys: &[
        required("requests_per_unit", Shape::Whole { min: 0, max: Hits::MAX },
            "Hits per window to try, fewer than the limit's"),
    ],
};

/// The most percents in `notify_at`.
const PERCENTS_MAX: usize = 10;

fn pairs_schema(value: Value) -> Value {
    json!({ "type": "object", "minProperties": 1, "additionalProperties": value })
}

/// Headers that would change the meaning of a request for its proxy.
const RESERVED: [&str; 4] = ["host", "connection", "content-length", "transfer-encoding"];

pub(super) fn tiers_schema() -> Value {
    json!({ "type": ["array", "null"], "minItems": 1, "items": mapping(&TIER) })
}

pub(super) fn priority_schema() -> Value {
    json!({ "anyOf": [{ "type": "null" }, mapping(&PRIORITY)] })
}

pub(super) fn shadow_schema() -> Value {
    json!({ "anyOf": [{ "type": "null" }, mapping(&SHADOW)] })
}

pub(super) fn notify_at_schema() -> Value {
    let percent = json!({ "type": "integer", "minimum": 1, "maximum": 100 });
    json!({ "type": ["array", "null"], "minItems": 1, "maxItems": PERCENTS_MAX, "items": percent })
}

pub(super) fn notify_at(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
) -> Option<Located<Arc<[u64]>>> {
    let location = fields.node("notify_at")?.location;
    let items = reader.list(fields, "notify_at");
    if items.len() > PERCENTS_MAX {
        let message = format!("notify_at: {} items exceed {PERCENTS_MAX}", items.len());
        reader.problem(location, message);
    }
    let percents = items.into_iter().filter_map(|item| reader.whole(item, "notify_at", 1, 100));
    Some(Located { location, value: percents.collect() })
}

pub(super) fn shadow(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Located<u64>> {
    reader.fields(fields.node("shadow")?, &SHADOW)?.whole("requests_per_unit")
}

pub(super) fn tiers(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Arc<[Tier]>> {
    fields.node("tiers")?;
    let mut tiers: Vec<Tier> = Vec::new();
    for item in reader.list(fields, "tiers") {
        let Some(fields) = reader.fields(item, &TIER) else { continue };
        let (Some(at), Some(node)) = (fields.whole("at"), fields.node("request_headers")) else {
            continue;
        };
        if tiers.iter().any(|known| known.at == at.value) {
            reader.problem(at.location, format!("at: another tier has {} too", at.value));
        }
        let request_headers = tier_headers(reader, node);
        tiers.push(Tier { at: at.value, request_headers });
    }
    Some(tiers.into())
}

fn tier_headers(reader: &mut Reader<'_>, node: &YamlNode) -> Vec<TierHeader> {
    let pairs = pairs(reader, node, "request_headers", "x-tier: warn");
    let mut headers: Vec<TierHeader> = Vec::new();
    for (key, node) in pairs {
        let (Some(written), Some(value)) =
            (reader.scalar(key, "request_headers"), reader.scalar(node, "request_headers"))
        else {
            continue;
        };
        let name = HeaderName::try_from(written).ok();
        let name = name.filter(|name| !RESERVED.contains(&name.as_str()));
        match name {
            None => {
                let message = format!("request_headers: `{}` cannot be added", shown(written));
                reader.problem(key.location, message);
            }
            Some(name) if headers.iter().any(|(known, _)| **known == *name.as_str()) => {
                reader.problem(key.location, format!("{name}: duplicate key"));
            }
            Some(name) => headers.push((name.as_str().into(), value.into())),
        }
        if value.is_empty() || !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            let message = "request_headers: a value must be printable ASCII";
            reader.problem(node.location, message);
        }
    }
    headers
}

/// The pairs of a mapping, at least one.
fn pairs<'node>(
    reader: &mut Reader<'_>,
    node: &'node YamlNode,
    name: &str,
    example: &str,
) -> &'node [(YamlNode, YamlNode)] {
    match &node.content {
        Content::Map(pairs) if !pairs.is_empty() => pairs,
        _ => {
            reader.problem(node.location, format!("{name}: must be a mapping such as `{example}`"));
            &[]
        }
    }
}

pub(super) fn priority(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
) -> Option<Located<Arc<Priority>>> {
    let node = fields.node("priority")?;
    let fields = reader.fields(node, &PRIORITY)?;
    let (entry, written) = (fields.text("entry")?.value, fields.node("share")?);
    let pairs = pairs(reader, written, "share", "batch: 50");
    let mut shares: Vec<(Arc<str>, u64)> = Vec::new();
    for (name, share) in pairs {
        let Some(class) = reader.scalar(name, "share") else { continue };
        if shares.iter().any(|(known, _)| **known == *class) {
            reader.problem(name.location, format!("{class}: duplicate key"));
        } else if let Some(share) = reader.whole(share, "share", 1, 100) {
            shares.push((class.into(), share));
        }
    }
    let lowest = shares.iter().map(|(_, share)| *share).min();
    let default = fields.whole("default").map(|share| share.value).or(lowest)?;
    let releases = fields.word("release").is_some();
    let value = Arc::new(Priority { entry: entry.into(), shares, default, releases });
    Some(Located { location: node.location, value })
}
