//! A notice as an event: what a webhook and a collector get of it.

use opentelemetry::logs::AnyValue;
use serde_json::Value;

use super::{Notice, TEXT, millis};
use crate::telemetry::LogRecords;

/// What has happened.
pub(super) const KIND: &str = "io.tollkeeper.limit.reached";

impl Notice {
    /// Two replicas that give the same notice give it the same id.
    pub(super) fn event_id(&self) -> String {
        // The replicas' clocks differ by less than half a second.
        let ends = (self.raised.as_millis() + millis(self.lasts) + 500) / 1000;
        format!("{}-{ends}", self.event)
    }

    pub(super) fn data(&self) -> [(&'static str, Value); 9] {
        let Self { domain, rule, key, limit, at, used, lasts, .. } = self;
        [
            ("domain", Value::from(&**domain)),
            ("rule", Value::from(&**rule)),
            ("key", Value::from(&**key)),
            ("limit", limit.to_string().into()),
            ("name", limit.name.as_deref().into()),
            ("at", (*at).into()),
            ("used", (*used).into()),
            ("capacity", limit.capacity().into()),
            ("resets_in", millis(*lasts).div_ceil(1000).into()),
        ]
    }

    /// Exports it with its id and data as attributes.
    pub(super) fn emit(&self, records: &LogRecords) {
        let data = self.data().into_iter().filter_map(|(name, value)| match value {
            Value::String(text) => Some((name, text.into())),
            Value::Number(number) => Some((name, number.as_i64().unwrap_or(i64::MAX).into())),
            _ => None,
        });
        let id = ("id", AnyValue::from(self.event_id()));
        records.emit(KIND, TEXT, self.raised, data.chain([id]));
    }
}
