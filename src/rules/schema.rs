//! Rules as written: what a file says, before its rules are seen together.

use std::collections::HashSet;

use super::{
    files::Source,
    keys::{DESCRIPTOR, FILE, LIMIT, REPLACED},
    problem::Findings,
    reader::{Fields, Located, Reader, shown},
    scalar::{self, Plain},
    yaml::{Content, Location, Node, Style},
};
use crate::engine::rule::{Algorithm, Metadata, OnStoreFailure, Unit};

/// A step of a rule's path: a key and, where one is set, a value.
pub(super) type Step = (String, Option<String>);

#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) domain: String,
    pub(super) descriptors: Vec<Located<Descriptor>>,
}

#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) key: String,
    pub(super) value: Option<String>,
    /// From `rate_limit` or `rate_limits`; empty for an allowlist.
    pub(super) limits: Vec<Located<RateLimit>>,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
    pub(super) metadata: Option<Metadata>,
    pub(super) descriptors: Vec<Located<Descriptor>>,
}

#[derive(Debug)]
pub(super) struct RateLimit {
    /// Absent counts as 0, as in envoyproxy/ratelimit: always over the limit.
    pub(super) requests_per_unit: Option<u32>,
    pub(super) unit: Option<Located<Unit>>,
    /// Number of units in a window; absent counts as 1.
    pub(super) unit_multiplier: u32,
    pub(super) unlimited: bool,
    /// Whether denied calls are charged; absent leaves it to the setting.
    pub(super) count_denied: Option<bool>,
    /// One of the engine's names.
    pub(super) algorithm: &'static str,
    pub(super) burst: Option<Located<u32>>,
    pub(super) time_zone: Option<Located<String>>,
    pub(super) remember: Option<Located<String>>,
    pub(super) on_store_failure: Option<OnStoreFailure>,
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<Located<String>>,
}

/// Reads one file. `None` if it has no usable domain.
pub(super) fn read(source: &Source, findings: &mut Findings) -> Option<File> {
    let mut reader = Reader { file: &source.name, findings };
    let root = reader.root(&source.text, "a rule file starts with `domain:`")?;
    reader.file(&root)
}

impl Reader<'_> {
    fn file(&mut self, root: &Node) -> Option<File> {
        if is_config_map(root) {
            let message = "this is a Kubernetes ConfigMap, not a rule file; mount it and pass the folder \
                           to --rules, or save the text below `data` as a file of its own";
            self.problem(root.location, message);
            return None;
        }
        let fields = self.fields(root, &FILE)?;
        let descriptors = self.descriptors(&fields);
        let domain = fields.text("domain")?.value;
        Some(File { name: self.file.to_owned(), domain, descriptors })
    }

    fn descriptors(&mut self, fields: &Fields<'_>) -> Vec<Located<Descriptor>> {
        let Some(node) = fields.node("descriptors") else { return Vec::new() };
        let Content::List(items) = &node.content else {
            self.problem(node.location, "descriptors: must be a list");
            return Vec::new();
        };
        items.iter().filter_map(|item| self.descriptor(item)).collect()
    }

    fn descriptor(&mut self, node: &Node) -> Option<Located<Descriptor>> {
        let fields = self.fields(node, &DESCRIPTOR)?;
        let location = fields.location;
        let descriptors = self.descriptors(&fields);
        let limits = self.limits(&fields);
        let metadata = fields.node("metadata").and_then(|node| self.metadata(node));
        let is_on = |name| fields.switch(name).is_some_and(|switch| switch.value);
        let value = fields.text("value").map(|value| value.value);
        let share_threshold = is_on("share_threshold");
        if share_threshold && !value.as_ref().is_some_and(|value| value.contains('*')) {
            self.problem(location, "share_threshold: needs a `value` with a `*`");
        }
        let value = Descriptor {
            key: fields.text("key")?.value,
            value,
            limits,
            shadow_mode: is_on("shadow_mode"),
            quota_mode: is_on("quota_mode"),
            detailed_metric: is_on("detailed_metric"),
            value_to_metric: is_on("value_to_metric"),
            share_threshold,
            metadata,
            descriptors,
        };
        Some(Located { location, value })
    }

    fn limits(&mut self, fields: &Fields<'_>) -> Vec<Located<RateLimit>> {
        if let Some(location) = fields.null("rate_limit") {
            self.warning(location, "rate_limit: empty, so there is no limit here");
        }
        let one = fields.node("rate_limit").and_then(|node| self.rate_limit(node));
        let Some(node) = fields.node("rate_limits") else { return one.into_iter().collect() };
        if fields.node("rate_limit").is_some() {
            self.problem(node.location, "rate_limits: not allowed beside `rate_limit`");
        }
        let Content::List(items) = &node.content else {
            self.problem(node.location, "rate_limits: must be a list");
            return Vec::new();
        };
        if items.is_empty() {
            self.problem(node.location, "rate_limits: must have at least one item");
        }
        let limits: Vec<_> = items.iter().filter_map(|item| self.rate_limit(item)).collect();
        for limit in limits.iter().filter(|limit| limit.value.unlimited) {
            self.problem(limit.location, "unlimited: not allowed in `rate_limits`");
        }
        limits
    }

    fn rate_limit(&mut self, node: &Node) -> Option<Located<RateLimit>> {
        let fields = self.fields(node, &LIMIT)?;
        let unlimited = fields.switch("unlimited").is_some_and(|switch| switch.value);
        let unit = self.unit(&fields, unlimited);
        let mode = fields.word("on_store_failure").map(|word| word.value);
        let name = fields.text("name").map(|name| name.value);
        let value = RateLimit {
            requests_per_unit: fields.whole("requests_per_unit").map(|whole| whole.value),
            unit,
            unit_multiplier: fields.whole("unit_multiplier").map_or(1, |whole| whole.value),
            unlimited,
            count_denied: fields.switch("count_denied").map(|switch| switch.value),
            algorithm: fields
                .word("algorithm")
                .map_or(Algorithm::FixedWindow.name(), |word| word.value),
            burst: fields.whole("burst"),
            time_zone: fields.text("time_zone"),
            remember: fields.text("remember"),
            on_store_failure: OnStoreFailure::ALL.into_iter().find(|it| Some(it.name()) == mode),
            replaces: self.replaces(&fields, name.as_deref()),
            name,
        };
        Some(Located { location: fields.location, value })
    }

    fn unit(&mut self, fields: &Fields<'_>, unlimited: bool) -> Option<Located<Unit>> {
        let names = Unit::ALL.map(Unit::name);
        let Some(node) = fields.node("unit") else {
            if !unlimited {
                let message = format!("unit: missing; must be one of: {}", names.join(", "));
                self.problem(fields.location, message);
            }
            return None;
        };
        if unlimited {
            self.unit_of_unlimited(node, &names);
            return None;
        }
        let name = self.one_of(node, "unit", &names)?;
        let unit = Unit::ALL.into_iter().find(|unit| unit.name() == name)?;
        Some(Located { location: node.location, value: unit })
    }

    /// envoyproxy/ratelimit refuses a unit here, and ignores any other word.
    fn unit_of_unlimited(&mut self, node: &Node, names: &[&str]) {
        let Some(text) = self.scalar(node, "unit") else { return };
        if names.iter().any(|name| name.eq_ignore_ascii_case(text)) {
            self.problem(node.location, "unit: not allowed with `unlimited: true`");
        } else if !text.is_empty() {
            let message = format!("unit: `{}` is ignored, since nothing is limited", shown(text));
            self.warning(node.location, message);
        }
    }

    /// `replaces: [{ name: one }, { name: another }]`.
    fn replaces(&mut self, fields: &Fields<'_>, own: Option<&str>) -> Vec<Located<String>> {
        let Some(node) = fields.node("replaces") else { return Vec::new() };
        let Content::List(items) = &node.content else {
            self.problem(
                node.location,
                "replaces: must be a list of items such as `- name: other_limit`",
            );
            return Vec::new();
        };
        let mut names = Vec::new();
        for item in items {
            if !matches!(item.content, Content::Map(_)) {
                self.problem(item.location, "replaces: write each item as `- name: other_limit`");
                continue;
            }
            let Some(name) = self.fields(item, &REPLACED).and_then(|it| it.text("name")) else {
                continue;
            };
            if own == Some(&name.value) {
                self.problem(item.location, "replaces: a limit cannot replace itself");
            }
            names.push(name);
        }
        names
    }

    fn metadata(&mut self, node: &Node) -> Option<Metadata> {
        if !matches!(node.content, Content::Map(_)) {
            self.problem(node.location, "metadata: must be a mapping");
            return None;
        }
        Some(self.tree(node, Keys::Outermost))
    }

    fn tree(&mut self, node: &Node, keys: Keys) -> Metadata {
        match &node.content {
            Content::Scalar(text, Style::Quoted) => Metadata::Text(text.clone()),
            Content::Scalar(text, Style::Plain) => self.plain(node.location, text),
            Content::List(items) => {
                Metadata::List(items.iter().map(|item| self.tree(item, Keys::Inner)).collect())
            }
            Content::Map(pairs) => {
                let (mut tree, mut seen) = (Vec::new(), HashSet::new());
                for (key, value) in pairs {
                    let Some(name) = self.metadata_key(key, keys) else { continue };
                    if seen.insert(name) {
                        tree.push((name.to_owned(), self.tree(value, Keys::Inner)));
                    } else {
                        self.problem(key.location, format!("{}: duplicate key", shown(name)));
                    }
                }
                Metadata::Map(tree)
            }
        }
    }

    /// envoyproxy/ratelimit takes the outermost keys as they are written, and turns inner ones such as
    /// `on` and `010` into `true` and `8`.
    fn metadata_key<'node>(&mut self, key: &'node Node, keys: Keys) -> Option<&'node str> {
        match &key.content {
            Content::Scalar(name, Style::Plain)
                if keys == Keys::Inner && scalar::resolve(name) != Plain::Text =>
            {
                let message = format!("metadata: put the key `{}` in quotes", shown(name));
                self.problem(key.location, message);
                None
            }
            Content::Scalar(name, _) => Some(name),
            Content::List(_) | Content::Map(_) => {
                self.problem(key.location, "metadata: a key must be text");
                None
            }
        }
    }

    fn plain(&mut self, location: Location, text: &str) -> Metadata {
        match scalar::resolve(text) {
            Plain::Null => Metadata::Null,
            Plain::Switch(on) => Metadata::Truth(on),
            // The answer carries doubles.
            #[expect(clippy::cast_precision_loss, reason = "so does the incumbent's")]
            Plain::Whole(whole) => Metadata::Number(whole.value as f64),
            Plain::Float(number) if number.is_finite() => Metadata::Number(number),
            Plain::Float(_) => {
                let message = format!("metadata: `{}` cannot be written in JSON", shown(text));
                self.problem(location, message);
                Metadata::Null
            }
            Plain::Text => Metadata::Text(text.to_owned()),
        }
    }
}

/// Which keys of `metadata` are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Outermost,
    Inner,
}

/// Pasted from `kubectl get`: the rules are text below one of its keys.
fn is_config_map(root: &Node) -> bool {
    let Content::Map(pairs) = &root.content else { return false };
    pairs.iter().any(|(key, value)| {
        let text = |node: &Node, expected: &str| {
            matches!(&node.content, Content::Scalar(text, _) if text == expected)
        };
        text(key, "kind") && text(value, "ConfigMap")
    })
}
