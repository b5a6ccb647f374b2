//! Rules as written in one file or resource, before all rules are compiled together.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tollkeeper_engine::{
    hold::HoldPolicy,
    key::SlotBy,
    parameters::Parameters,
    request::Hits,
    rule::{Algorithm, DeniedBody, FailureMode, Lease, Metadata, Priority, Tier, Unit},
    rule_set::{RequireMode, Requirement},
};
use tollkeeper_yaml::{
    files::Source,
    origin::Origin,
    problem::Findings,
    reader::{Fields, Located, Reader, shown},
    scalar::{self, Plain},
    tree::{Content, Location, Style, YamlNode},
};

use super::{
    hold,
    keys::{DESCRIPTOR, FILE, LIMIT, LIMITS_MAX, OF_A_LIMIT, REPLACED},
    nested,
};

pub(super) struct RuleTree {
    pub(super) origin: Arc<Origin>,
    pub(super) root: YamlNode,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) origin: Arc<Origin>,
    pub(super) domain: String,
    pub(super) slot_by: SlotBy,
    pub(super) requirement: Requirement,
    pub(super) quota_group: Vec<String>,
    pub(super) draws_first: bool,
    pub(super) descriptors: Vec<Located<WrittenDescriptor>>,
}

#[derive(Debug)]
pub(super) struct WrittenDescriptor {
    pub(super) key: String,
    pub(super) value: Option<String>,
    /// From `rate_limit` or `rate_limits`; empty for an allowlist.
    pub(super) limits: Vec<Located<RateLimit>>,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
    pub(super) secret: bool,
    pub(super) metadata: Option<Metadata>,
    pub(super) descriptors: Vec<Located<WrittenDescriptor>>,
}

#[derive(Debug)]
pub(super) struct RateLimit {
    /// Absent counts as 0, as in envoyproxy/ratelimit: every call is over the limit.
    pub(super) requests_per_unit: Option<u64>,
    pub(super) unit: Option<Unit>,
    /// Number of units in a window; absent counts as 1.
    pub(super) unit_multiplier: u32,
    pub(super) unlimited: bool,
    /// Whether denied calls are charged; if absent, `--count-denied` decides.
    pub(super) count_denied: Option<bool>,
    pub(super) algorithm: &'static str,
    pub(super) burst: Option<Located<u64>>,
    pub(super) override_max: Option<u64>,
    pub(super) idle: Option<Located<Duration>>,
    pub(super) time_zone: Option<Located<String>>,
    pub(super) starts: Option<Located<String>>,
    pub(super) remember: Option<Located<String>>,
    pub(super) on_store_failure: Option<FailureMode>,
    pub(super) denied_body: Option<DeniedBody>,
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<Located<String>>,
    pub(super) hold: Option<Arc<HoldPolicy>>,
    pub(super) ban_for: Option<Located<Duration>>,
    pub(super) tiers: Option<Arc<[Tier]>>,
    pub(super) notify_at: Option<Located<Arc<[u64]>>>,
    /// Where `lease: auto` is written, if it is.
    pub(super) leases: Option<Location>,
    pub(super) priority: Option<Located<Arc<Priority>>>,
    pub(super) shadow: Option<Located<u64>>,
}

pub(super) fn parse(sources: &[Source], findings: &mut Findings) -> Vec<RuleTree> {
    let mut trees = Vec::new();
    for source in sources {
        let origin = Arc::new(Origin::text(&source.name));
        let mut reader = Reader { origin: &origin, findings };
        let root = reader.root(&source.text, "a rule file starts with `domain:`", of_kubernetes);
        trees.extend(root.map(|root| RuleTree { origin, root }));
    }
    trees
}

/// Reads the tree of one file or resource. `None` if it has no valid domain.
pub(super) fn read_tree(tree: &RuleTree, findings: &mut Findings) -> Option<File> {
    file(&mut Reader { origin: &tree.origin, findings }, tree, descriptors)
}

/// Reads what an overlay says of its domain, and checks its descriptors, which give keys to rules of others.
pub(super) fn read_overlay(tree: &RuleTree, findings: &mut Findings) -> Option<File> {
    file(&mut Reader { origin: &tree.origin, findings }, tree, overlay)
}

pub(super) fn check_defaults(origin: &Origin, given: &YamlNode, findings: &mut Findings) {
    check_given(&mut Reader { origin, findings }, "`defaults`", given, &OF_A_LIMIT);
}

fn file(
    reader: &mut Reader<'_>,
    RuleTree { origin, root }: &RuleTree,
    read: fn(&mut Reader<'_>, &Fields<'_>) -> Vec<Located<WrittenDescriptor>>,
) -> Option<File> {
    let fields = reader.fields(root, &FILE)?;
    let descriptors = read(reader, &fields);
    let domain = fields.text("domain")?.value;
    let slot_by = match fields.word("slot_by") {
        Some(_) => SlotBy::Domain,
        None => SlotBy::BusinessId,
    };
    let mode = fields.word("require_mode").and_then(RequireMode::named);
    let mut keys = |name| {
        let texts = reader.texts(&fields, name).unwrap_or_default();
        texts.into_iter().map(|(_, text)| text).collect()
    };
    let draws_first = fields.word("draw").is_some();
    let (required, quota_group) = (keys("require"), keys("quota_group"));
    let requirement = Requirement { keys: required, mode: mode.unwrap_or_default() };
    let origin = Arc::clone(origin);
    Some(File { origin, domain, slot_by, requirement, quota_group, draws_first, descriptors })
}

fn descriptors(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<Located<WrittenDescriptor>> {
    let items = list_of_descriptors(reader, fields).iter();
    items.filter_map(|item| descriptor(reader, item)).collect()
}

fn overlay(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<Located<WrittenDescriptor>> {
    for item in list_of_descriptors(reader, fields) {
        let Some(fields) = reader.fields(item, &DESCRIPTOR) else { continue };
        if let Some(limit) = fields.node("rate_limit") {
            check_given(reader, "an overlay", limit, OF_A_LIMIT.split_at(3).0);
        }
        overlay(reader, &fields);
    }
    Vec::new()
}

/// Checks keys that are given to limits elsewhere, which have these for themselves.
fn check_given(reader: &mut Reader<'_>, place: &str, node: &YamlNode, of_a_limit: &[&str]) {
    if node.is_null() || reader.fields(node, &LIMIT).is_none() {
        return;
    }
    for key in of_a_limit {
        if let Some(node) = node.get(key) {
            reader.problem(node.location, format!("{key}: not in {place}; each limit has its own"));
        }
    }
}

fn list_of_descriptors<'node>(
    reader: &mut Reader<'_>,
    fields: &Fields<'node>,
) -> &'node [YamlNode] {
    let Some(node) = fields.node("descriptors") else { return &[] };
    if !matches!(node.content, Content::List(_)) {
        reader.problem(node.location, "descriptors: must be a list");
    }
    node.items()
}

fn descriptor(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Located<WrittenDescriptor>> {
    let fields = reader.fields(node, &DESCRIPTOR)?;
    let location = fields.location;
    let descriptors = descriptors(reader, &fields);
    let limits = limits(reader, &fields);
    let metadata = fields.node("metadata").and_then(|node| metadata(reader, node));
    let value = fields.text("value").map(|value| value.value);
    let share_threshold = fields.is_on("share_threshold");
    if share_threshold && !value.as_ref().is_some_and(|value| value.contains('*')) {
        reader.problem(location, "share_threshold: needs a `value` with a `*`");
    }
    let key = fields.text("key")?;
    if Parameters::is_parameter_key(&key.value) {
        let message = "key: must not begin with `hold.`: such entries are parameters of holds";
        reader.problem(key.location, message);
    }
    let value = WrittenDescriptor {
        key: key.value,
        value,
        limits,
        shadow_mode: fields.is_on("shadow_mode"),
        quota_mode: fields.is_on("quota_mode"),
        detailed_metric: fields.is_on("detailed_metric"),
        value_to_metric: fields.is_on("value_to_metric"),
        share_threshold,
        secret: fields.is_on("secret"),
        metadata,
        descriptors,
    };
    Some(Located { location, value })
}

fn limits(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<Located<RateLimit>> {
    if let Some(location) = fields.null("rate_limit") {
        reader.warning(location, "rate_limit: empty, so there is no limit here");
    }
    let one = fields.node("rate_limit").and_then(|node| rate_limit(reader, node));
    let Some(node) = fields.node("rate_limits") else { return one.into_iter().collect() };
    if fields.node("rate_limit").is_some() {
        reader.problem(node.location, "rate_limits: not allowed beside `rate_limit`");
    }
    let Content::List(items) = &node.content else {
        reader.problem(node.location, "rate_limits: must be a list");
        return Vec::new();
    };
    if items.is_empty() {
        reader.problem(node.location, "rate_limits: must have at least one item");
    }
    if items.len() > LIMITS_MAX {
        let message = format!("rate_limits: {} items exceed {LIMITS_MAX}", items.len());
        reader.problem(node.location, message);
    }
    let limits: Vec<_> = items.iter().filter_map(|item| rate_limit(reader, item)).collect();
    for limit in limits.iter().filter(|limit| limit.value.unlimited) {
        reader.problem(limit.location, "unlimited: not allowed in `rate_limits`");
    }
    limits
}

fn rate_limit(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Located<RateLimit>> {
    if let Content::List(_) = node.content {
        reader.problem(
            node.location,
            "rate_limit: is one limit; write a list of limits as `rate_limits`",
        );
        return None;
    }
    let fields = reader.fields(node, &LIMIT)?;
    let unlimited = fields.is_on("unlimited");
    let unit = unit(reader, &fields, unlimited);
    let name = limit_name(reader, &fields);
    let value = RateLimit {
        requests_per_unit: requests_per_unit(reader, &fields),
        unit,
        unit_multiplier: fields.whole_u32("unit_multiplier").unwrap_or(1),
        unlimited,
        count_denied: fields.switch("count_denied"),
        algorithm: fields.word("algorithm").unwrap_or(Algorithm::FixedWindow.name()),
        burst: fields.whole("burst"),
        override_max: fields.whole("override_max").map(|whole| whole.value),
        idle: fields.time("idle"),
        time_zone: fields.text("time_zone"),
        starts: fields.text("starts"),
        remember: fields.text("remember"),
        on_store_failure: fields.word("on_store_failure").and_then(FailureMode::named),
        denied_body: fields.word("denied_body").and_then(DeniedBody::named),
        hold: hold::read(reader, &fields).map(Arc::new),
        priority: nested::priority(reader, &fields),
        ban_for: fields.time("ban_for"),
        tiers: nested::tiers(reader, &fields),
        notify_at: nested::notify_at(reader, &fields),
        leases: leases(&fields),
        shadow: nested::shadow(reader, &fields),
        replaces: replaces(reader, &fields, name.as_deref()),
        name,
    };
    Some(Located { location: fields.location, value })
}

/// The name of a limit, which Envoy writes into headers of responses.
pub fn limit_name(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<String> {
    let Located { location, value } = fields.text("name")?;
    if value.contains(char::is_control) {
        reader.problem(location, "name: must not have control characters");
    }
    Some(value)
}

fn leases(fields: &Fields<'_>) -> Option<Location> {
    let lease = fields.located_word("lease")?;
    (lease.value == Lease::Auto.name()).then_some(lease.location)
}

fn requests_per_unit(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<u64> {
    let Located { location, value } = fields.whole("requests_per_unit")?;
    let scale = fields.whole("scale").map_or(1, |scale| scale.value);
    let product = value.checked_mul(scale).filter(|product| *product <= Hits::MAX);
    if product.is_none() {
        let message = format!("scale: {value} times {scale} exceeds {}", Hits::MAX);
        reader.problem(location, message);
    }
    product
}

fn unit(reader: &mut Reader<'_>, fields: &Fields<'_>, unlimited: bool) -> Option<Unit> {
    let names = Unit::ALL.map(Unit::name);
    if !unlimited && fields.word("algorithm") == Some("in_flight") {
        let unit = fields.node("unit").map(|node| ("unit", node.location));
        let multiplier = fields.whole("unit_multiplier");
        let multiplier = multiplier.map(|whole| ("unit_multiplier", whole.location));
        for (key, location) in unit.into_iter().chain(multiplier) {
            let message = format!("{key}: not allowed with in_flight, which has no window");
            reader.problem(location, message);
        }
        return Some(Unit::Second);
    }
    let Some(node) = fields.node("unit") else {
        if !unlimited {
            let message = format!("unit: missing; must be one of: {}", names.join(", "));
            reader.problem(fields.location, message);
        }
        return None;
    };
    if unlimited {
        unit_of_unlimited(reader, node, &names);
        return None;
    }
    let name = reader.one_of(node, "unit", &names, &[])?;
    Unit::named(name)
}

/// envoyproxy/ratelimit refuses a known unit here, and ignores any other word.
fn unit_of_unlimited(reader: &mut Reader<'_>, node: &YamlNode, names: &[&str]) {
    let Some(text) = reader.scalar(node, "unit") else { return };
    if names.iter().any(|name| name.eq_ignore_ascii_case(text)) {
        reader.problem(node.location, "unit: not allowed with `unlimited: true`");
    } else if !text.is_empty() {
        let message = format!("unit: `{}` is ignored, since nothing is limited", shown(text));
        reader.warning(node.location, message);
    }
}

/// `replaces: [{ name: one }, { name: another }]`.
fn replaces(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    own: Option<&str>,
) -> Vec<Located<String>> {
    let Some(node) = fields.node("replaces") else { return Vec::new() };
    let Content::List(items) = &node.content else {
        reader.problem(
            node.location,
            "replaces: must be a list of items such as `- name: other_limit`",
        );
        return Vec::new();
    };
    let mut names = Vec::new();
    for item in items {
        if !matches!(item.content, Content::Map(_)) {
            reader.problem(item.location, "replaces: write each item as `- name: other_limit`");
            continue;
        }
        let Some(fields) = reader.fields(item, &REPLACED) else { continue };
        let Some(name) = fields.text("name") else { continue };
        if own == Some(&name.value) {
            reader.problem(item.location, "replaces: a limit cannot replace itself");
        }
        names.push(name);
    }
    names
}

fn metadata(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Metadata> {
    if !matches!(node.content, Content::Map(_)) {
        reader.problem(node.location, "metadata: must be a mapping");
        return None;
    }
    Some(tree(reader, node, Keys::Outermost))
}

fn tree(reader: &mut Reader<'_>, node: &YamlNode, keys: Keys) -> Metadata {
    match &node.content {
        Content::Scalar(text, Style::Quoted) => Metadata::Text(text.clone()),
        Content::Scalar(text, Style::Plain) => plain(reader, node.location, text),
        Content::List(items) => {
            Metadata::List(items.iter().map(|item| tree(reader, item, Keys::Inner)).collect())
        }
        Content::Map(pairs) => {
            let (mut read, mut seen) = (Vec::new(), HashSet::new());
            for (key, value) in pairs {
                let Some(name) = metadata_key(reader, key, keys) else { continue };
                if seen.insert(name) {
                    read.push((name.to_owned(), tree(reader, value, Keys::Inner)));
                } else {
                    reader.problem(key.location, format!("{}: duplicate key", shown(name)));
                }
            }
            Metadata::Map(read)
        }
    }
}

/// envoyproxy/ratelimit keeps the outermost keys as written, and turns inner keys such as `on` and `010`
/// into `true` and `8`.
fn metadata_key<'node>(
    reader: &mut Reader<'_>,
    key: &'node YamlNode,
    keys: Keys,
) -> Option<&'node str> {
    match &key.content {
        Content::Scalar(name, Style::Plain)
            if keys == Keys::Inner && scalar::resolve(name) != Plain::Text =>
        {
            let message = format!("metadata: put the key `{}` in quotes", shown(name));
            reader.problem(key.location, message);
            None
        }
        Content::Scalar(name, _) => Some(name),
        Content::List(_) | Content::Map(_) => {
            reader.problem(key.location, "metadata: a key must be text");
            None
        }
    }
}

fn plain(reader: &mut Reader<'_>, location: Location, text: &str) -> Metadata {
    match scalar::resolve(text) {
        Plain::Null => Metadata::Null,
        Plain::Switch(on) => Metadata::Truth(on),
        #[expect(
            clippy::cast_precision_loss,
            reason = "a protobuf Struct holds doubles; envoyproxy/ratelimit loses the same"
        )]
        Plain::Whole(whole) => Metadata::Number(whole.value as f64),
        Plain::Float(number) if number.is_finite() => Metadata::Number(number),
        Plain::Float(_) => {
            let message = format!("metadata: `{}` cannot be written in JSON", shown(text));
            reader.problem(location, message);
            Metadata::Null
        }
        Plain::Text => Metadata::Text(text.to_owned()),
    }
}

/// The level of a key in `metadata`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Outermost,
    Inner,
}

/// The message for a ConfigMap or a list of them, pasted from `kubectl get`: its rules are text below one of
/// its keys.
fn of_kubernetes(root: &YamlNode) -> Option<String> {
    let written = root.get("kind")?.name();
    let kind = ["ConfigMap", "List"].into_iter().find(|kind| written == Some(kind))?;
    Some(format!(
        "this is a Kubernetes {kind}, not a rule file; mount it and pass the folder to --rules, or save the \
         text below `data` as a file of its own"
    ))
}
