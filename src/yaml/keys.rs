//! The keys of a mapping as a table: the reader, "did you mean" and a JSON Schema follow from it.

use std::time::Duration;

use serde_json::Value;

#[derive(Debug)]
pub(crate) struct KeyTable {
    pub(crate) name: &'static str,
    pub(crate) keys: &'static [Key],
    /// Where a key belongs that is not one of these, if that is known.
    pub(crate) elsewhere: fn(&str) -> Option<&'static str>,
}

#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// Another name, which is still read.
    pub(crate) alias: Option<&'static str>,
    pub(crate) need: Need,
    pub(crate) shape: Shape,
    /// Its meaning, for editors and docs/rules.md.
    pub(crate) help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Optional,
    Required,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Text {
        bytes_max: usize,
    },
    /// A whole number from `min` to `max`.
    Whole {
        min: u64,
        max: u64,
    },
    /// A duration from `min` to `max`, such as `1h30m`.
    Time {
        min: Duration,
        max: Duration,
    },
    Switch,
    /// One of these words, in any case.
    OneOf(fn() -> Vec<&'static str>),
    /// Read by the code of its level. This is its JSON Schema.
    Other(fn() -> Value),
}

pub(crate) const TEXT: Shape = Shape::Text { bytes_max: usize::MAX };

pub(crate) const fn key(name: &'static str, shape: Shape, help: &'static str) -> Key {
    Key { name, alias: None, need: Need::Optional, shape, help }
}

pub(crate) const fn required(name: &'static str, shape: Shape, help: &'static str) -> Key {
    Key { name, alias: None, need: Need::Required, shape, help }
}

impl KeyTable {
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name || key.alias == Some(name))
    }
}
