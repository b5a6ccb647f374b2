//! A notice as an event: what a webhook and a collector get of it.

use std::time::Duration;

use opentelemetry::logs::AnyValue;
use serde_json::Value;

use crate::{
    engine::{directive::Directive, time::Timestamp},
    overrides::{EndedOverride, Override},
    process::clock::system_clock,
    telemetry::LogRecords,
    top_keys::TopKeyNames,
};

pub(super) struct Notice {
    pub(super) kind: &'static Kind,
    /// What receivers get, by name.
    pub(super) data: Vec<(&'static str, Value)>,
    /// How long it is not given again.
    pub(super) lasts: Duration,
    pub(super) raised: Timestamp,
    /// The same on all replicas.
    pub(super) id: String,
    /// The id that receivers see, also the same: made with a key, since the other one would let them guess values.
    pub(super) event_id: String,
}

/// What has happened: the type of its events, and what the log says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) event: &'static str,
    pub(super) text: &'static str,
}

pub(super) const REACHED: Kind = Kind {
    event: "io.tollkeeper.limit.reached",
    text: "a counter has reached a part of its limit",
};
pub(super) const CLOSED: Kind =
    Kind { event: "io.tollkeeper.limit.closed", text: "a ban has closed a counter" };
pub(super) const OVERRUN: Kind = Kind {
    event: "io.tollkeeper.budget.overrun",
    text: "a commit says that more was used than held",
};
pub(super) const ENDED: Kind =
    Kind { event: "io.tollkeeper.override.ended", text: "an override has ended" };

/// In this time, each replica has seen the end of an override.
const ENDED_WITHIN: Duration = Duration::from_secs(86_400);

impl Notice {
    /// That an override has ended. What it was for is shown only with values; its id names it.
    pub(super) fn of_override(
        EndedOverride { one, end }: &EndedOverride,
        names: TopKeyNames,
    ) -> Self {
        let Override { directive, because, by } = &**one;
        let Directive { id, domain, action, until, .. } = &**directive;
        let descriptor = (names == TopKeyNames::Values).then(|| one.descriptor());
        let data = vec![
            ("domain", Value::from(&**domain)),
            ("override", (&**id).into()),
            ("action", action.to_string().into()),
            ("descriptor", descriptor.into()),
            ("because", (&**because).into()),
            ("by", (&**by).into()),
            ("until", until.date().into()),
            ("end", (*end).into()),
        ];
        Self {
            kind: &ENDED,
            data,
            lasts: ENDED_WITHIN,
            raised: system_clock(),
            id: format!("override-{id}"),
            event_id: format!("{id}-{}", until.as_secs()),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.value(name)?.as_str()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.as_u64()
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.data.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Exports it with its id and data as attributes.
    pub(super) fn emit(&self, records: &LogRecords) {
        let data = self.data.iter().filter_map(|(name, value)| match value {
            Value::String(text) => Some((*name, text.clone().into())),
            Value::Number(number) => Some((*name, number.as_i64().unwrap_or(i64::MAX).into())),
            _ => None,
        });
        let id = ("id", AnyValue::from(self.event_id.clone()));
        records.emit(self.kind.event, self.kind.text, self.raised, data.chain([id]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overrides::NewOverride;

    #[test]
    fn what_an_override_was_for_is_shown_only_with_values() {
        let body = r#"{"domain":"shop","descriptor":"user=alice","action":"ban","for":"1h","because":"abuse"}"#;
        let new = NewOverride::read(body.as_bytes()).unwrap();
        let start = Timestamp::from_secs(1_700_000_000);
        let directive = new.directive("5f2c01aa", start, start);
        let one = Override { directive, because: new.because, by: "ann".to_owned() };
        let ended = EndedOverride { one: one.into(), end: "expired" };
        for (names, shown) in [
            (TopKeyNames::Off, None),
            (TopKeyNames::Digests, None),
            (TopKeyNames::Values, Some("user=alice")),
        ] {
            let notice = Notice::of_override(&ended, names);
            assert_eq!(notice.text("descriptor"), shown);
            assert_eq!(notice.text("until"), Some("2023-11-14T23:13:20Z"));
            assert_eq!(notice.event_id, "5f2c01aa-1700003600");
        }
    }
}
