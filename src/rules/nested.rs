//! Keys of a limit that have keys of their own: `priority`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    engine::rule::Priority,
    yaml::{
        json_schema::mapping,
        keys::{KeyTable, Shape, TEXT, key, required},
        reader::{Fields, Located, Reader},
        tree::Content,
    },
};

/// The keys of `priority`.
static PRIORITY: KeyTable = KeyTable {
    name: "`priority`",
    elsewhere: |_| None,
    keys: &[
        required("entry", TEXT, "Key of the entry whose value is the class of a call"),
        required(
            "share",
            Shape::Other(|| {
                let share = json!({ "type": "integer", "minimum": 1, "maximum": 100 });
                json!({ "type": "object", "minProperties": 1, "additionalProperties": share })
            }),
            "Percent of the limit up to which each class is admitted, 1 to 100, such as `batch: 50`",
        ),
        key(
            "default",
            Shape::Whole { min: 1, max: 100 },
            "Percent for calls of no class or another one; the lowest share if absent",
        ),
    ],
};

pub(super) fn priority_schema() -> Value {
    json!({ "anyOf": [{ "type": "null" }, mapping(&PRIORITY)] })
}

impl Reader<'_> {
    pub(super) fn priority(&mut self, fields: &Fields<'_>) -> Option<Located<Arc<Priority>>> {
        let node = fields.node("priority")?;
        let fields = self.fields(node, &PRIORITY)?;
        let (entry, written) = (fields.text("entry")?.value, fields.node("share")?);
        let pairs = match &written.content {
            Content::Map(pairs) => &pairs[..],
            _ => &[],
        };
        if pairs.is_empty() {
            self.problem(written.location, "share: must be a mapping such as `batch: 50`");
        }
        let mut shares: Vec<(Arc<str>, u64)> = Vec::new();
        for (name, share) in pairs {
            let Some(class) = self.scalar(name, "share") else { continue };
            if shares.iter().any(|(known, _)| **known == *class) {
                self.problem(name.location, format!("{class}: duplicate key"));
            } else if let Some(share) = self.whole(share, "share", 1, 100) {
                shares.push((class.into(), share));
            }
        }
        let lowest = shares.iter().map(|(_, share)| *share).min();
        let default = fields.whole("default").map(|share| share.value).or(lowest)?;
        let value = Arc::new(Priority { entry: entry.into(), shares, default });
        Some(Located { location: node.location, value })
    }
}
