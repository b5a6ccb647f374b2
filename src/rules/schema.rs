//! Rules as written: which keys there are, and what type each has.
//!
//! Reading goes on after a problem, so that one look finds them all.

use super::{
    Problem, Source,
    yaml::{self, Content, Node, Place},
};
use crate::engine::rule::{Algorithm, Metadata, OnStoreFailure, Unit};

/// A longer key, in bytes, is most likely a mistake.
pub(super) const KEY_BYTES_MAX: usize = 256;

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Placed<T> {
    pub(super) place: Place,
    pub(super) value: T,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) domain: String,
    pub(super) descriptors: Vec<Placed<Descriptor>>,
}

#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) key: String,
    pub(super) value: Option<String>,
    /// What `rate_limit` or `rate_limits` says; none is a white-list.
    pub(super) limits: Vec<Placed<RateLimit>>,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: Option<Place>,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
    pub(super) metadata: Option<Metadata>,
    pub(super) descriptors: Vec<Placed<Descriptor>>,
}

#[derive(Debug)]
pub(super) struct RateLimit {
    /// Absent counts as 0, as in envoyproxy/ratelimit: always over the limit.
    pub(super) requests_per_unit: Option<u32>,
    pub(super) unit: Option<Placed<Unit>>,
    /// How many units make a window; absent counts as 1.
    pub(super) unit_multiplier: u32,
    pub(super) unlimited: bool,
    /// Whether denied calls are charged; absent leaves it to the setting.
    pub(super) count_denied: Option<bool>,
    /// One of the engine's names.
    pub(super) algorithm: &'static str,
    pub(super) burst: Option<Placed<u32>>,
    pub(super) time_zone: Option<Placed<String>>,
    pub(super) remember: Option<Placed<String>>,
    pub(super) on_store_failure: Option<OnStoreFailure>,
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<String>,
}

/// What a limit may say.
pub(super) const LIMIT_KEYS: [&str; 12] = [
    "unit",
    "unit_multiplier",
    "requests_per_unit",
    "unlimited",
    "count_denied",
    "algorithm",
    "burst",
    "time_zone",
    "remember",
    "on_store_failure",
    "name",
    "replaces",
];

/// What a descriptor may say.
pub(super) const DESCRIPTOR_KEYS: [&str; 11] = [
    "key",
    "value",
    "rate_limit",
    "rate_limits",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// Reads one file. `None` if it has no usable domain.
pub(super) fn read(source: &Source, problems: &mut Vec<Problem>) -> Option<File> {
    let mut reader = Reader { file: &source.name, problems };
    match yaml::parse(&source.text) {
        Ok(Some(root)) => reader.file(&root),
        Ok(None) => {
            reader.problem((1, 1), "the file is empty: a rule file begins with `domain:`");
            None
        }
        Err((place, message)) => {
            reader.problem(place, message);
            None
        }
    }
}

/// Reads nodes, and collects what is wrong with them.
pub(super) struct Reader<'a> {
    pub(super) file: &'a str,
    pub(super) problems: &'a mut Vec<Problem>,
}

/// The pairs of one mapping, by known key.
pub(super) struct Fields<'node> {
    pub(super) place: Place,
    pairs: Vec<(&'node str, &'node Node)>,
}

impl<'node> Fields<'node> {
    pub(super) fn get(&self, name: &str) -> Option<&'node Node> {
        self.pairs.iter().find(|(key, _)| *key == name).map(|(_, node)| *node)
    }
}

impl Reader<'_> {
    pub(super) fn problem(&mut self, place: Place, message: impl Into<String>) {
        let (file, message) = (self.file.to_owned(), message.into());
        self.problems.push(Problem { file, place: Some(place), message });
    }

    fn file(&mut self, root: &Node) -> Option<File> {
        let fields = self.fields(root, "a rule file", &["domain", "descriptors"])?;
        let descriptors = self.descriptors(&fields);
        let domain = self.required_text(&fields, "domain")?;
        Some(File { name: self.file.to_owned(), domain, descriptors })
    }

    fn descriptors(&mut self, fields: &Fields<'_>) -> Vec<Placed<Descriptor>> {
        let Some(node) = fields.get("descriptors") else { return Vec::new() };
        match &node.content {
            Content::List(items) => items.iter().filter_map(|item| self.descriptor(item)).collect(),
            // What `descriptors:` with nothing behind it parses to.
            Content::Scalar(text, true) if text.is_empty() || text == "~" => Vec::new(),
            _ => {
                self.problem(node.place, "descriptors: must be a list");
                Vec::new()
            }
        }
    }

    fn descriptor(&mut self, node: &Node) -> Option<Placed<Descriptor>> {
        let fields = self.fields(node, "a descriptor", &DESCRIPTOR_KEYS)?;
        let descriptors = self.descriptors(&fields);
        let limits = self.limits(&fields);
        let value = fields.get("value").and_then(|value| self.text(value, "value"));
        let key = self.required_text(&fields, "key")?;
        if key.len() > KEY_BYTES_MAX {
            let message = format!("key: {} bytes exceed {KEY_BYTES_MAX}", key.len());
            self.problem(fields.place, message);
        }
        // An empty value is an absent one, as in envoyproxy/ratelimit.
        let value = value.filter(|value| !value.is_empty());
        let share_threshold = self.truth(&fields, "share_threshold").unwrap_or(false);
        if share_threshold && !value.as_ref().is_some_and(|value| value.contains('*')) {
            let message = "share_threshold: goes with a value that holds a `*`";
            self.problem(fields.place, message);
        }
        let quota_mode = self.truth(&fields, "quota_mode").unwrap_or(false);
        let value = Descriptor {
            key,
            value,
            limits,
            shadow_mode: self.truth(&fields, "shadow_mode").unwrap_or(false),
            quota_mode: fields.get("quota_mode").filter(|_| quota_mode).map(|node| node.place),
            detailed_metric: self.truth(&fields, "detailed_metric").unwrap_or(false),
            value_to_metric: self.truth(&fields, "value_to_metric").unwrap_or(false),
            share_threshold,
            metadata: fields.get("metadata").and_then(|node| self.metadata(node)),
            descriptors,
        };
        Some(Placed { place: fields.place, value })
    }

    fn limits(&mut self, fields: &Fields<'_>) -> Vec<Placed<RateLimit>> {
        let one = fields.get("rate_limit").map(|limit| self.rate_limit(limit, "rate_limit"));
        let Some(node) = fields.get("rate_limits") else {
            return one.flatten().into_iter().collect();
        };
        if one.is_some() {
            self.problem(node.place, "rate_limits: stands beside `rate_limit`; write one of them");
        }
        let Content::List(items) = &node.content else {
            self.problem(node.place, "rate_limits: must be a list");
            return Vec::new();
        };
        if items.is_empty() {
            self.problem(node.place, "rate_limits: must hold at least one limit");
        }
        let limits: Vec<_> = items
            .iter()
            .filter_map(|item| self.rate_limit(item, "an item of rate_limits"))
            .collect();
        for limit in limits.iter().filter(|limit| limit.value.unlimited) {
            self.problem(limit.place, "unlimited: has no place among several limits");
        }
        limits
    }

    fn rate_limit(&mut self, node: &Node, what: &str) -> Option<Placed<RateLimit>> {
        let fields = self.fields(node, what, &LIMIT_KEYS)?;
        let requests_per_unit = self.count(&fields, "requests_per_unit", 0);
        let unit_multiplier = self.count(&fields, "unit_multiplier", 1).unwrap_or(1);
        let unlimited = self.truth(&fields, "unlimited").unwrap_or(false);
        let count_denied = self.truth(&fields, "count_denied");
        let unit = fields.get("unit").and_then(|node| self.unit(node));
        if unlimited && let Some(unit) = &unit {
            self.problem(unit.place, "unit: an unlimited rule has none");
        }
        if !unlimited && fields.get("unit").is_none() {
            self.problem(fields.place, format!("unit: missing; one of {}", unit_names()));
        }
        let algorithm = self.one_of(&fields, "algorithm", &Algorithm::NAMES);
        let modes = OnStoreFailure::ALL.map(OnStoreFailure::name);
        let mode = self.one_of(&fields, "on_store_failure", &modes);
        let name = fields.get("name").and_then(|node| self.text(node, "name"));
        let name = name.filter(|name| !name.is_empty());
        let replaces = self.replaces(&fields, name.as_deref());
        let value = RateLimit {
            name,
            replaces,
            requests_per_unit,
            unit,
            unit_multiplier,
            unlimited,
            count_denied,
            algorithm: algorithm.unwrap_or(Algorithm::FixedWindow.name()),
            burst: fields.get("burst").and_then(|node| {
                let value = self.count(&fields, "burst", 1)?;
                Some(Placed { place: node.place, value })
            }),
            time_zone: self.placed_text(&fields, "time_zone"),
            remember: self.placed_text(&fields, "remember"),
            on_store_failure: OnStoreFailure::ALL.into_iter().find(|it| Some(it.name()) == mode),
        };
        Some(Placed { place: fields.place, value })
    }

    /// `replaces: [{ name: one }, { name: another }]`.
    fn replaces(&mut self, fields: &Fields<'_>, own: Option<&str>) -> Vec<String> {
        let Some(node) = fields.get("replaces") else { return Vec::new() };
        let Content::List(items) = &node.content else {
            self.problem(node.place, "replaces: must be a list of `name: …`");
            return Vec::new();
        };
        let mut names = Vec::new();
        for item in items {
            let Some(fields) = self.fields(item, "an item of replaces", &["name"]) else {
                continue;
            };
            let Some(name) = self.required_text(&fields, "name") else { continue };
            if own == Some(&name) {
                self.problem(item.place, "replaces: a limit cannot replace itself");
            }
            names.push(name);
        }
        names
    }

    fn metadata(&mut self, node: &Node) -> Option<Metadata> {
        if !matches!(node.content, Content::Map(_)) {
            self.problem(node.place, "metadata: must be a mapping");
            return None;
        }
        Some(self.tree(node))
    }

    /// The tree as YAML 1.1 reads it: plain words may be numbers, truths or nothing.
    fn tree(&mut self, node: &Node) -> Metadata {
        match &node.content {
            Content::Scalar(text, false) => Metadata::Text(text.clone()),
            Content::Scalar(text, true) => plain(text),
            Content::List(items) => {
                Metadata::List(items.iter().map(|item| self.tree(item)).collect())
            }
            Content::Map(pairs) => {
                let mut tree: Vec<(String, Metadata)> = Vec::new();
                for (key, value) in pairs {
                    match &key.content {
                        Content::Scalar(name, _) if tree.iter().any(|(known, _)| known == name) => {
                            self.problem(key.place, format!("{}: written twice", shown(name)));
                        }
                        Content::Scalar(name, _) => tree.push((name.clone(), self.tree(value))),
                        _ => self.problem(key.place, "metadata: a key must be text"),
                    }
                }
                Metadata::Map(tree)
            }
        }
    }

    pub(super) fn one_of(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        words: &[&'static str],
    ) -> Option<&'static str> {
        let node = fields.get(name)?;
        let text = self.text(node, name)?;
        let word = words.iter().find(|word| word.eq_ignore_ascii_case(&text)).copied();
        if word.is_none() {
            let message = format!("{name}: `{}` is none of {}", shown(&text), words.join(", "));
            self.problem(node.place, message);
        }
        word
    }

    fn placed_text(&mut self, fields: &Fields<'_>, name: &str) -> Option<Placed<String>> {
        let place = fields.get(name)?.place;
        let value = self.required_text(fields, name)?;
        Some(Placed { place, value })
    }

    fn unit(&mut self, node: &Node) -> Option<Placed<Unit>> {
        let text = self.text(node, "unit")?;
        let unit = Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(&text));
        if unit.is_none() {
            self.problem(
                node.place,
                format!("unit: `{}` is none of {}", shown(&text), unit_names()),
            );
        }
        unit.map(|value| Placed { place: node.place, value })
    }

    fn count(&mut self, fields: &Fields<'_>, name: &str, min: u32) -> Option<u32> {
        let node = fields.get(name)?;
        let number = match &node.content {
            Content::Scalar(text, true) => text.parse().ok().filter(|number| *number >= min),
            _ => None,
        };
        if number.is_none() {
            let message = format!("{name}: must be a whole number from {min} to {}", u32::MAX);
            self.problem(node.place, message);
        }
        number
    }

    fn truth(&mut self, fields: &Fields<'_>, name: &str) -> Option<bool> {
        let node = fields.get(name)?;
        if let Content::Scalar(text, true) = &node.content {
            // The words of YAML 1.1, which envoyproxy/ratelimit reads.
            match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "y" => return Some(true),
                "false" | "no" | "off" | "n" => return Some(false),
                _ => {}
            }
        }
        self.problem(node.place, format!("{name}: must be true or false"));
        None
    }

    pub(super) fn text(&mut self, node: &Node, name: &str) -> Option<String> {
        match &node.content {
            Content::Scalar(text, plain) if !*plain || (text != "~" && text != "null") => {
                Some(text.clone())
            }
            Content::Scalar(..) => Some(String::new()),
            Content::List(_) | Content::Map(_) => {
                self.problem(node.place, format!("{name}: must be text"));
                None
            }
        }
    }

    pub(super) fn required_text(&mut self, fields: &Fields<'_>, name: &str) -> Option<String> {
        let Some(node) = fields.get(name) else {
            self.problem(fields.place, format!("{name}: missing"));
            return None;
        };
        let text = self.text(node, name)?;
        if text.is_empty() {
            self.problem(node.place, format!("{name}: must not be empty"));
            return None;
        }
        Some(text)
    }

    pub(super) fn fields<'node>(
        &mut self,
        node: &'node Node,
        what: &str,
        known: &[&str],
    ) -> Option<Fields<'node>> {
        let Content::Map(written) = &node.content else {
            let message = format!("{what} must be a mapping of {}", known.join(", "));
            self.problem(node.place, message);
            return None;
        };
        let mut fields = Fields { place: node.place, pairs: Vec::new() };
        for (key, value) in written {
            let Content::Scalar(name, _) = &key.content else {
                self.problem(key.place, format!("{what}: a key must be text"));
                continue;
            };
            if !known.contains(&name.as_str()) {
                self.problem(
                    key.place,
                    format!("unknown key `{}`{}", shown(name), hint(name, known)),
                );
            } else if fields.get(name).is_some() {
                self.problem(key.place, format!("{name}: written twice"));
            } else {
                fields.pairs.push((name, value));
            }
        }
        Some(fields)
    }
}

fn plain(text: &str) -> Metadata {
    match text.to_ascii_lowercase().as_str() {
        "" | "~" | "null" => return Metadata::Null,
        "true" | "yes" | "on" => return Metadata::Truth(true),
        "false" | "no" | "off" => return Metadata::Truth(false),
        _ => {}
    }
    // Rust would read words as well: `inf`, `nan`, `infinity`.
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    let digit =
        text.trim_start_matches(['-', '+', '.']).starts_with(|it: char| it.is_ascii_digit());
    match number {
        Some(number) if digit => Metadata::Number(number),
        _ => Metadata::Text(text.to_owned()),
    }
}

fn unit_names() -> String {
    Unit::ALL.map(Unit::name).join(", ")
}

/// The text for a message: one line, and not too long.
fn shown(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

fn hint(name: &str, known: &[&str]) -> String {
    let distance = |candidate: &&&str| strsim::damerau_levenshtein(name, candidate);
    match known.iter().min_by_key(distance) {
        Some(nearest) if distance(&nearest) <= 3 => format!("; did you mean `{nearest}`?"),
        _ => format!("; known here: {}", known.join(", ")),
    }
}
