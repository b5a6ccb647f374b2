//! The keys of a mapping as a table: the reader, "did you mean" and a JSON Schema follow from it.

use std::time::Duration;

use serde_json::Value;

#[derive(Debug)]
pub struct KeyTable {
    pub name: &'static str,
    pub keys: &'static [Key],
    /// Where a key belongs that is not one of these, if that is known.
    pub elsewhere: fn(&str) -> Option<&'static str>,
}

#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    /// Another name, which is still read.
    pub alias: Option<&'static str>,
    pub need: Need,
    pub shape: Shape,
    /// Words of other services in place of one of its own, each with the end of the message about it.
    pub other_words: &'static [(&'static str, &'static str)],
    /// Its meaning, for editors and docs/rules.md.
    pub help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Optional,
    Required,
}

#[derive(Debug, Clone, Copy)]
pub enum Shape {
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

pub const TEXT: Shape = Shape::Text { bytes_max: usize::MAX };

pub const fn key(name: &'static str, shape: Shape, help: &'static str) -> Key {
    Key { name, alias: None, need: Need::Optional, shape, other_words: &[], help }
}

pub const fn required(name: &'static str, shape: Shape, help: &'static str) -> Key {
    Key { name, alias: None, need: Need::Required, shape, other_words: &[], help }
}

impl KeyTable {
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    pub fn find(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name || key.alias == Some(name))
    }
}
