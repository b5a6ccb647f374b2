//! Reads mappings by their tables of keys, and collects the problems.
//!
//! Reading goes on after a problem, so that all problems of a file are reported at once.

use std::time::Duration;

use tollkeeper_engine::text::{did_you_mean::hint, duration::duration};

use super::{
    keys::{Key, KeyTable, Need, Shape},
    origin::Origin,
    problem::Findings,
    scalar::{self, Plain},
    tree::{self, Content, Location, Style, YamlNode},
};

#[derive(Debug, Clone)]
pub struct Located<T> {
    pub location: Location,
    pub value: T,
}

/// Reads the nodes of one file or resource, and collects what is wrong with them, also what is found later.
pub struct Reader<'a> {
    pub origin: &'a Origin,
    pub findings: &'a mut Findings,
}

/// The pairs of one mapping: known keys, each once.
pub struct Fields<'node> {
    pub location: Location,
    fields: Vec<Field<'node>>,
}

struct Field<'node> {
    name: &'static str,
    node: &'node YamlNode,
    /// `None` if it is null, or has a problem.
    value: Option<Value<'node>>,
}

#[derive(Debug, Clone)]
enum Value<'node> {
    Text(String),
    Whole(u64),
    Time(Duration),
    Switch(bool),
    Word(&'static str),
    Other(&'node YamlNode),
}

impl<'node> Fields<'node> {
    fn find(&self, name: &str) -> Option<&Field<'node>> {
        self.fields.iter().find(|field| field.name == name)
    }

    fn get(&self, name: &str) -> Option<Located<Value<'node>>> {
        let field = self.find(name)?;
        Some(Located { location: field.node.location, value: field.value.clone()? })
    }

    /// The location of this key's null, if the key is written with no value.
    pub fn null(&self, name: &str) -> Option<Location> {
        self.find(name).filter(|field| field.node.is_null()).map(|field| field.node.location)
    }

    /// A text that is not empty; an empty one counts as absent, as in envoyproxy/ratelimit.
    pub fn text(&self, name: &str) -> Option<Located<String>> {
        let Located { location, value: Value::Text(value) } = self.get(name)? else { return None };
        Some(Located { location, value }).filter(|text| !text.value.is_empty())
    }

    pub fn whole(&self, name: &str) -> Option<Located<u64>> {
        let Located { location, value: Value::Whole(value) } = self.get(name)? else { return None };
        Some(Located { location, value })
    }

    /// A whole number of a key whose maximum is at most `u32::MAX`.
    pub fn whole_u32(&self, name: &str) -> Option<u32> {
        self.whole(name).and_then(|whole| u32::try_from(whole.value).ok())
    }

    pub fn time(&self, name: &str) -> Option<Located<Duration>> {
        let Located { location, value: Value::Time(value) } = self.get(name)? else { return None };
        Some(Located { location, value })
    }

    pub fn switch(&self, name: &str) -> Option<bool> {
        let Value::Switch(value) = self.get(name)?.value else { return None };
        Some(value)
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.switch(name) == Some(true)
    }

    pub fn word(&self, name: &str) -> Option<&'static str> {
        self.located_word(name).map(|word| word.value)
    }

    pub fn located_word(&self, name: &str) -> Option<Located<&'static str>> {
        let Located { location, value: Value::Word(value) } = self.get(name)? else { return None };
        Some(Located { location, value })
    }

    pub fn node(&self, name: &str) -> Option<&'node YamlNode> {
        match self.get(name)?.value {
            Value::Other(node) => Some(node),
            _ => None,
        }
    }
}

impl YamlNode {
    /// The text of a scalar that is not null.
    pub fn text(&self) -> Option<&str> {
        self.name().filter(|_| !self.is_null())
    }

    /// The text of a key of a mapping, if it is not empty.
    pub fn text_at(&self, name: &str) -> Option<&str> {
        self.get(name)?.text().filter(|text| !text.is_empty())
    }

    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar(text, Style::Plain)
            if scalar::resolve(text) == Plain::Null)
    }
}

impl Reader<'_> {
    pub fn problem(&mut self, location: Location, message: impl Into<String>) {
        self.findings.problems.push(self.origin.problem(location, message));
    }

    pub fn warning(&mut self, location: Location, message: impl Into<String>) {
        self.findings.warnings.push(self.origin.problem(location, message));
    }

    /// Parses the file. `hint` ends the message about an empty one. `other_kind` says what a file is that was
    /// meant for something else: that is then its only problem.
    pub fn root(
        &mut self,
        text: &str,
        hint: &str,
        other_kind: fn(&YamlNode) -> Option<String>,
    ) -> Option<YamlNode> {
        let (root, errors) = tree::parse(text);
        if let Some(root) = &root
            && let Some(message) = other_kind(root)
        {
            self.problem(root.location, message);
            return None;
        }
        if root.is_none() && errors.is_empty() {
            self.problem((1, 1), format!("the file is empty; {hint}"));
        }
        for (location, message) in errors {
            self.problem(location, message);
        }
        root
    }

    /// The pairs of a mapping, checked by its table of keys.
    pub fn fields<'node>(
        &mut self,
        node: &'node YamlNode,
        table: &'static KeyTable,
    ) -> Option<Fields<'node>> {
        let Content::Map(written) = &node.content else {
            let names: Vec<_> = table.names().collect();
            let message =
                format!("{} must be a mapping with the keys {}", table.name, names.join(", "));
            self.problem(node.location, message);
            return None;
        };
        let mut fields = Fields { location: node.location, fields: Vec::new() };
        for (key, value) in written {
            let Content::Scalar(name, _) = &key.content else {
                self.problem(key.location, format!("a key of {} must be text", table.name));
                continue;
            };
            match table.find(name) {
                None => self.problem(key.location, unknown(name, table)),
                Some(known) if fields.find(known.name).is_some() => {
                    self.problem(key.location, format!("{name}: duplicate key"));
                }
                Some(known) => {
                    let read = self.value(known, value);
                    fields.fields.push(Field { name: known.name, node: value, value: read });
                }
            }
        }
        for key in table.keys.iter().filter(|key| key.need == Need::Required) {
            let field = fields.find(key.name);
            if field.is_none_or(|field| field.node.is_null()) {
                let location = field.map_or(node.location, |field| field.node.location);
                self.problem(location, format!("{}: missing", key.name));
            }
        }
        Some(fields)
    }

    fn value<'node>(&mut self, key: &Key, node: &'node YamlNode) -> Option<Value<'node>> {
        if node.is_null() {
            return None;
        }
        match key.shape {
            Shape::Text { bytes_max } => {
                let text = self.scalar(node, key.name)?;
                if text.is_empty() && key.need == Need::Required {
                    self.problem(node.location, format!("{}: must not be empty", key.name));
                }
                if text.len() > bytes_max {
                    let message = format!("{}: {} bytes exceed {bytes_max}", key.name, text.len());
                    self.problem(node.location, message);
                }
                Some(Value::Text(text.to_owned()))
            }
            Shape::Whole { min, max } => self.whole(node, key.name, min, max).map(Value::Whole),
            Shape::Time { min, max } => {
                let read = duration(self.scalar(node, key.name)?, min, max);
                let problem =
                    |problem| self.problem(node.location, format!("{}: {problem}", key.name));
                read.map_err(problem).ok().map(Value::Time)
            }
            Shape::Switch => self.switch(node, key.name).map(Value::Switch),
            Shape::OneOf(words) => {
                self.one_of(node, key.name, &words(), key.other_words).map(Value::Word)
            }
            Shape::Other(_) => Some(Value::Other(node)),
        }
    }

    /// The text of a scalar, as written; empty for null.
    pub fn scalar<'node>(&mut self, node: &'node YamlNode, name: &str) -> Option<&'node str> {
        match &node.content {
            Content::Scalar(..) if node.is_null() => Some(""),
            Content::Scalar(text, _) => Some(text),
            Content::List(_) | Content::Map(_) => {
                self.problem(node.location, format!("{name}: must be text"));
                None
            }
        }
    }

    pub fn one_of(
        &mut self,
        node: &YamlNode,
        name: &str,
        words: &[&'static str],
        other_words: &[(&str, &str)],
    ) -> Option<&'static str> {
        let text = self.scalar(node, name)?;
        let word = words.iter().find(|word| word.eq_ignore_ascii_case(text)).copied();
        if word.is_none() {
            let other = other_words.iter().find(|(other, _)| *other == text);
            let hint = match other {
                Some((_, meant)) => format!("; {meant}"),
                None => hint(text, words.iter().copied()),
            };
            let message = format!(
                "{name}: must be one of: {}; not `{}`{hint}",
                words.join(", "),
                shown(text)
            );
            self.problem(node.location, message);
        }
        word
    }

    /// A whole number as envoyproxy/ratelimit reads it, from `min` to `max`.
    pub fn whole(&mut self, node: &YamlNode, name: &str, min: u64, max: u64) -> Option<u64> {
        let whole = self.integer(node, name);
        let number = whole.and_then(|whole| u64::try_from(whole).ok());
        let number = number.filter(|number| (min..=max).contains(number));
        if number.is_none() {
            let written = match &node.content {
                Content::Scalar(text, Style::Plain) => format!("; not `{}`", shown(text)),
                Content::Scalar(text, _) => format!("; not `\"{}\"`", shown(text)),
                Content::List(_) | Content::Map(_) => String::new(),
            };
            let message = format!("{name}: must be a whole number from {min} to {max}{written}");
            self.problem(node.location, message);
        }
        number
    }

    /// A text or a list of texts; at least one.
    pub fn texts(&mut self, fields: &Fields<'_>, name: &str) -> Option<Vec<(Location, String)>> {
        let nodes = self.one_or_more(fields, name)?;
        Some(self.texts_in(&nodes, name))
    }

    pub fn texts_in(&mut self, nodes: &[&YamlNode], name: &str) -> Vec<(Location, String)> {
        let mut texts = Vec::new();
        for node in nodes {
            let Some(text) = self.scalar(node, name) else { continue };
            if text.is_empty() {
                self.problem(node.location, format!("{name}: must not be empty"));
            }
            texts.push((node.location, text.to_owned()));
        }
        texts
    }

    /// The items of a list, or the one value that is written in place of a list.
    pub fn one_or_more<'node>(
        &mut self,
        fields: &Fields<'node>,
        name: &str,
    ) -> Option<Vec<&'node YamlNode>> {
        let node = fields.node(name)?;
        match &node.content {
            Content::List(_) => Some(self.list(fields, name)).filter(|items| !items.is_empty()),
            Content::Scalar(..) | Content::Map(_) => Some(vec![node]),
        }
    }

    pub fn list<'node>(&mut self, fields: &Fields<'node>, name: &str) -> Vec<&'node YamlNode> {
        let Some(node) = fields.node(name) else { return Vec::new() };
        match &node.content {
            Content::List(items) if !items.is_empty() => items.iter().collect(),
            _ => {
                self.problem(node.location, format!("{name}: must be a list of at least one"));
                Vec::new()
            }
        }
    }

    pub fn integer(&mut self, node: &YamlNode, name: &str) -> Option<i128> {
        let Content::Scalar(text, Style::Plain) = &node.content else { return None };
        let Plain::Whole(whole) = scalar::resolve(text) else { return None };
        if whole.looks_decimal {
            let message = format!("{name}: `{}` is octal, and means {}", shown(text), whole.value);
            self.warning(node.location, message);
        }
        Some(whole.value)
    }

    fn switch(&mut self, node: &YamlNode, name: &str) -> Option<bool> {
        if let Content::Scalar(text, Style::Plain) = &node.content
            && let Plain::Switch(on) = scalar::resolve(text)
        {
            return Some(on);
        }
        self.problem(node.location, format!("{name}: must be true or false"));
        None
    }
}

/// The message for a key that its table does not have: the level where it belongs, or the nearest key.
fn unknown(name: &str, table: &'static KeyTable) -> String {
    if let Some(level) = (table.elsewhere)(name) {
        return format!("unknown key `{name}` here; it belongs {level}");
    }
    let suggestion = hint(name, table.names());
    if suggestion.is_empty() {
        let names: Vec<_> = table.names().collect();
        return format!("unknown key `{}`; allowed here: {}", shown(name), names.join(", "));
    }
    format!("unknown key `{}`{suggestion}", shown(name))
}

/// Most characters of a text in a message.
const SHOWN_MAX: usize = 100;

/// The beginning of a text, for messages; [`Problem`](super::Problem) escapes control characters.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
