//! Reads one limit of limitador's, as what the entries of a descriptor must be.

use std::collections::{BTreeSet, HashMap};

use serde_json::json;
use tollkeeper_engine::{
    parameters::Parameters,
    request::{ENTRIES_MAX, Hits, KEY_BYTES_MAX},
    time::Unit,
    window::Window,
};
use tollkeeper_rules::limit_name;
use tollkeeper_yaml::{
    keys::{KeyTable, Shape, TEXT, key, required},
    reader::{Fields, Reader, shown},
    tree::{Content, Location, YamlNode},
};

use super::cel::{self, Relation};

/// The keys of a limit in limitador's file. limitador ignores others.
static LIMITADOR_LIMIT: KeyTable = KeyTable {
    name: "a limit",
    elsewhere: |_| None,
    keys: &[
        required("namespace", TEXT, "Domain of the calls"),
        required("max_value", Shape::Whole { min: 0, max: Hits::MAX }, "Hits admitted per window"),
        required("seconds", Shape::Whole { min: 1, max: u32::MAX as u64 }, "Length of the window"),
        key("conditions", Shape::Other(|| json!({})), "Expressions that must all be true"),
        key("variables", Shape::Other(|| json!({})), "Expressions whose values have own counters"),
        key("name", TEXT, "Name of the limit"),
        key("id", TEXT, "Part of keys in Redis"),
    ],
};

#[derive(Debug)]
pub(super) struct EntryLimit {
    pub(super) location: Location,
    pub(super) requests: u64,
    pub(super) unit: Unit,
    pub(super) unit_multiplier: u32,
    pub(super) name: Option<String>,
    /// The keys of the entries, each once, with what their values must be. Empty if the limit applies to
    /// every call.
    pub(super) entries: Vec<(String, EntryValue)>,
}

/// What the value of an entry must be, and whether values have counters of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryValue {
    Exact(String),
    /// Any value but these. Each has its own counter.
    Each(BTreeSet<String>),
    /// Any value but these. All have one counter.
    Together(BTreeSet<String>),
}

impl EntryValue {
    pub(super) fn named(&self) -> Vec<&str> {
        match self {
            Self::Exact(value) => vec![value],
            Self::Each(except) | Self::Together(except) => {
                except.iter().map(String::as_str).collect()
            }
        }
    }

    pub(super) fn excludes(&self, value: &str) -> bool {
        match self {
            Self::Exact(_) => false,
            Self::Each(except) | Self::Together(except) => except.contains(value),
        }
    }
}

/// What makes two limits one limit to limitador, which then uses the first one.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitIdentity {
    seconds: u32,
    conditions: BTreeSet<String>,
    variables: BTreeSet<String>,
}

/// Reads a limit; `None` if rules cannot express it.
pub(super) fn read(
    node: &YamlNode,
    reader: &mut Reader<'_>,
) -> Option<(LimitIdentity, EntryLimit)> {
    let before = reader.findings.problems.len();
    let fields = reader.fields(node, &LIMITADOR_LIMIT)?;
    let location = fields.location;
    let conditions = expressions(&fields, "conditions", reader);
    let variables = expressions(&fields, "variables", reader);
    let entries = entries(location, &conditions, &variables, reader);
    if entries.len() > ENTRIES_MAX {
        let message =
            format!("{} entries exceed {ENTRIES_MAX}, the most of a descriptor", entries.len());
        reader.problem(location, message);
    }
    let (requests, seconds) = (fields.whole("max_value"), fields.whole("seconds"));
    if let Some(seconds) = &seconds
        && seconds.value > Window::SECONDS_MAX
    {
        let message = format!("seconds: {} exceed 100 years", seconds.value);
        reader.problem(seconds.location, message);
    }
    let name = limit_name(reader, &fields);
    if reader.findings.problems.len() > before {
        return None;
    }
    let (requests, seconds) = (requests?.value, fields.whole_u32("seconds")?);
    let texts = |expressions: Vec<(Location, &str)>| {
        expressions.into_iter().map(|(_, text)| text.to_owned()).collect()
    };
    let identity =
        LimitIdentity { seconds, conditions: texts(conditions), variables: texts(variables) };
    let (unit, unit_multiplier) = unit_of(seconds);
    Some((identity, EntryLimit { location, requests, unit, unit_multiplier, name, entries }))
}

fn expressions<'node>(
    fields: &Fields<'node>,
    name: &str,
    reader: &mut Reader<'_>,
) -> Vec<(Location, &'node str)> {
    let Some(node) = fields.node(name) else { return Vec::new() };
    let Content::List(items) = &node.content else {
        reader.problem(node.location, format!("{name}: must be a list of expressions"));
        return Vec::new();
    };
    let mut expressions = Vec::new();
    for item in items {
        if let Some(text) = reader.scalar(item, name) {
            expressions.push((item.location, text));
        }
    }
    expressions
}

/// What the entries of a limit at `limit` must be, by its conditions and variables.
fn entries(
    limit: Location,
    conditions: &[(Location, &str)],
    variables: &[(Location, &str)],
    reader: &mut Reader<'_>,
) -> Vec<(String, EntryValue)> {
    let mut entries = NamedEntries::default();
    for (location, text) in conditions {
        match cel::condition(text) {
            Err(message) => reader.problem(*location, message),
            Ok(comparisons) => {
                for comparison in comparisons {
                    check_key(*location, &comparison.key, reader);
                    check_value(*location, &comparison.value, reader);
                    let tests = entries.of(comparison.key);
                    match comparison.relation {
                        Relation::Equal => tests.equal.insert(comparison.value),
                        Relation::NotEqual => tests.not_equal.insert(comparison.value),
                    };
                }
            }
        }
    }
    for (location, text) in variables {
        match cel::variable(text) {
            Err(message) => reader.problem(*location, message),
            Ok(key) => {
                check_key(*location, &key, reader);
                entries.of(key).is_variable = true;
            }
        }
    }
    let mut values = Vec::new();
    for EntryTests { key, is_variable, equal, not_equal } in entries.tests {
        let mut equal = equal.into_iter();
        let value = match equal.next() {
            Some(value) if equal.next().is_some() || not_equal.contains(&value) => {
                let message = format!(
                    "never applies: its conditions on `{}` contradict each other",
                    shown(&key)
                );
                reader.problem(limit, message);
                continue;
            }
            Some(value) => EntryValue::Exact(value),
            None if is_variable => EntryValue::Each(not_equal),
            None => EntryValue::Together(not_equal),
        };
        values.push((key, value));
    }
    values
}

struct EntryTests {
    key: String,
    is_variable: bool,
    equal: BTreeSet<String>,
    not_equal: BTreeSet<String>,
}

/// The entries that a limit names, in the order in which it does.
#[derive(Default)]
struct NamedEntries {
    tests: Vec<EntryTests>,
    indexes: HashMap<String, usize>,
}

impl NamedEntries {
    fn of(&mut self, key: String) -> &mut EntryTests {
        let tests = &mut self.tests;
        let index = *self.indexes.entry(key.clone()).or_insert_with(|| {
            let (equal, not_equal) = (BTreeSet::new(), BTreeSet::new());
            tests.push(EntryTests { key, is_variable: false, equal, not_equal });
            tests.len() - 1
        });
        tests.get_mut(index).expect("it was found or pushed")
    }
}

fn check_key(location: Location, key: &str, reader: &mut Reader<'_>) {
    if key.is_empty() {
        reader.problem(location, "the key of an entry must not be empty");
    } else if key.len() > KEY_BYTES_MAX {
        let message = format!("a key of {} bytes exceeds {KEY_BYTES_MAX}", key.len());
        reader.problem(location, message);
    } else if Parameters::is_parameter_key(key) {
        let message = "no rule has keys that begin with `hold.`, which are parameters of holds; let Envoy send another key";
        reader.problem(location, message);
    }
}

/// In a rule, a star is a pattern, and no value is any value.
fn check_value(location: Location, value: &str, reader: &mut Reader<'_>) {
    if value.is_empty() {
        let message = "rules cannot compare with an empty text; let Envoy leave out an empty entry, or send a \
                       word for it";
        reader.problem(location, message);
    } else if value.contains('*') {
        let message = format!(
            "`{}`: in a rule, `*` matches any text; let Envoy send another word for this value",
            shown(value)
        );
        reader.problem(location, message);
    }
}

/// The longest unit of which the window has a whole number.
fn unit_of(seconds: u32) -> (Unit, u32) {
    for unit in Unit::ALL.into_iter().rev() {
        let units = u64::from(seconds) / unit.seconds();
        if units * unit.seconds() == u64::from(seconds)
            && let Ok(units) = u32::try_from(units)
        {
            return (unit, units);
        }
    }
    (Unit::Second, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_number_of_its_longest_unit() {
        for (seconds, expected) in [
            (1, (Unit::Second, 1)),
            (10, (Unit::Second, 10)),
            (60, (Unit::Minute, 1)),
            (90, (Unit::Second, 90)),
            (300, (Unit::Minute, 5)),
            (3600, (Unit::Hour, 1)),
            (86_400, (Unit::Day, 1)),
            (14 * 86_400, (Unit::Week, 2)),
            (30 * 86_400, (Unit::Month, 1)),
            (365 * 86_400, (Unit::Year, 1)),
            (u32::MAX, (Unit::Second, u32::MAX)),
        ] {
            assert_eq!(unit_of(seconds), expected, "{seconds} s");
        }
    }
}
