//! The keys of rule files, each written once: the reader, "did you mean", the JSON Schema and the tables of
//! docs/rules.md follow from here.

use std::time::Duration;

use serde_json::{Value, json};
use tollkeeper_engine::{
    key::SlotBy,
    request::{Hits, KEY_BYTES_MAX},
    rule::{Algorithm, DeniedBody, FailureMode, Lease, Unit},
    rule_set::RequireMode,
    window::Window,
};
use tollkeeper_yaml::keys::{Key, KeyTable, Shape, TEXT, key, required};

use super::{
    hold::{self, FOR_MAX, FOR_MIN},
    nested,
};

/// Most limits of one rule: each is a charge for each descriptor of a call.
pub const LIMITS_MAX: usize = 16;

#[rustfmt::skip]
pub static FILE: KeyTable = KeyTable {
    name: "a rule file",
    elsewhere: |name| level_of(name, 0),
    keys: &[
        required("domain", TEXT, "Name by which calls select these rules"),
        key("name", TEXT, "Name that a control plane gives them; it has no effect"),
        key("descriptors", Shape::Other(descriptors), "List of descriptors"),
        key("defaults", Shape::Other(|| reference("defaults")),
            "Keys of `rate_limit`, for all limits that lack them"),
        key("require", Shape::Other(texts),
            "Keys of entries: a call is denied unless one of its descriptors has all of them"),
        key("require_mode", Shape::OneOf(RequireMode::names),
            "deny (default), or report: counts and logs such calls"),
        key("quota_group", Shape::Other(texts),
            "Keys of entries: quotas whose entries have equal values form a group, which is full when one of them is (with `draw: first`, when all are); a call is denied when all its groups are full"),
        key("draw", Shape::OneOf(|| vec!["first"]),
            "`first`: a call is charged only on the first of its quotas that fits, or on the first of each group"),
        key("slot_by", Shape::OneOf(|| vec![SlotBy::DOMAIN]),
            "`domain`: keeps the whole domain in one slot of a Redis Cluster"),
    ],
};

#[rustfmt::skip]
pub(super) static DESCRIPTOR: KeyTable = KeyTable {
    name: "a descriptor",
    elsewhere: |name| level_of(name, 1),
    keys: &[
        required("key", Shape::Text { bytes_max: KEY_BYTES_MAX },
            "Key of the request's entry, at most 256 bytes"),
        key("value", TEXT,
            "Value of the entry; any if absent. `*` matches any text. Each value has its own counter"),
        key("rate_limit", Shape::Other(|| reference("rate_limit")),
            "Limit for descriptors that end here; without one, they pass"),
        key("rate_limits", Shape::Other(rate_limits),
            "Up to 16 limits, no two with the same algorithm and window"),
        key("descriptors", Shape::Other(descriptors), "List of descriptors for the next entry"),
        key("shadow_mode", Shape::Switch, "true: counts and reports, without enforcing"),
        key("quota_mode", Shape::Switch,
            "true: a call is denied only if none of its quotas fits; hits that do not fit are counted too"),
        key("share_threshold", Shape::Switch, "true: all values that match share a counter"),
        key("secret", Shape::Switch, "true: keys, lists and logs show a digest of the value"),
        key("detailed_metric", Shape::Switch,
            "true: the rule's metrics show the value, so that you see who is denied; after 1,000 values, further ones count as `other`"),
        key("value_to_metric", Shape::Switch,
            "true: metrics of this rule and rules below show the value"),
        key("metadata", Shape::Other(|| json!({ "type": ["object", "null"] })),
            "Mapping for Envoy when the rule admits a call, with `--dynamic-metadata`"),
    ],
};

/// Algorithms of other services, and what they are here.
const OTHER_ALGORITHMS: [(&str, &str); 3] = [
    ("leaky_bucket", "`token_bucket` (GCRA) is the leaky bucket here"),
    ("gcra", "`token_bucket` is GCRA"),
    ("sliding", "did you mean `sliding_window` or `sliding_log`?"),
];

/// Keys of a limit that need one of certain algorithms, and why, where a refusal says it.
pub(super) const OF_ONE_ALGORITHM: [(&str, &[&str], &str); 6] = [
    ("burst", &["token_bucket"], ""),
    ("idle", &["first_hit_window"], ""),
    ("time_zone", &["fixed_window"], ""),
    ("starts", &["fixed_window"], ""),
    ("remember", &["sliding_log", "in_flight"], ""),
    ("lease", &["fixed_window"], ": credit ends with a window of the clock"),
];

/// Keys that each limit has for itself: an overlay gives none of the first, and `defaults` none of all.
pub(super) const OF_A_LIMIT: [&str; 7] =
    ["unit", "requests_per_unit", "unlimited", "unit_multiplier", "name", "replaces", "shadow"];

#[rustfmt::skip]
pub(super) static LIMIT: KeyTable = KeyTable {
    name: "a rate_limit",
    elsewhere: |name| level_of(name, 2),
    keys: &[
        key("unit", Shape::Other(unit),
            "Window: second, minute, hour, day, week, month (30 days) or year (365 days); not for in_flight"),
        key("unit_multiplier", Shape::Whole { min: 1, max: u32::MAX as u64 },
            "Number of units in a window; 1 if absent"),
        key("requests_per_unit", Shape::Whole { min: 0, max: Hits::MAX },
            "Hits per window, or at once with in_flight: 0 (default, denies every call) to 9007199254740991"),
        key("scale", Shape::Whole { min: 1, max: Hits::MAX },
            "Multiplies `requests_per_unit`, for an overlay: a control plane's field ends at 4294967295"),
        key("unlimited", Shape::Switch, "true: no limit and no counter, without `unit`"),
        key("count_denied", Shape::Switch, "true: charges denied calls too, for work already done"),
        Key {
            other_words: &OTHER_ALGORITHMS,
            ..key("algorithm", Shape::OneOf(Algorithm::names),
                "fixed_window (default), first_hit_window, sliding_log, sliding_window, token_bucket or in_flight")
        },
        key("burst", Shape::Whole { min: 1, max: Hits::MAX },
            "For token_bucket: hits at once from an unused bucket; `requests_per_unit` if absent"),
        key("idle", Shape::Time { min: Duration::from_secs(1), max: Duration::from_secs(Window::SECONDS_MAX) },
            "For first_hit_window: time without a charge, such as 30m, that ends the window"),
        key("time_zone", TEXT,
            "For fixed_window of a day or longer: its time zone, such as Europe/Berlin"),
        key("starts", TEXT,
            "With `time_zone`: start of the day (\"06:00\"), week (friday), month (1 to 31) or year (\"04-01\")"),
        key("override_max", Shape::Whole { min: 0, max: Hits::MAX },
            "Bound for a limit that a call sends: one that could admit more hits in the rule's window becomes this number in that window; the hits of one with another window also count there, up to this number"),
        key("remember", TEXT,
            "For sliding_log and in_flight: entry whose value is stored with each hit"),
        key("on_store_failure", Shape::OneOf(FailureMode::names),
            "Decision without the store: error, deny, allow or local"),
        key("denied_body", Shape::OneOf(DeniedBody::names),
            "Body of a denial: none, problem or openai; `--denied-body` if absent"),
        key("hold", Shape::Other(hold::schema),
            "Holds hits until a commit: a time such as `10m`, or a mapping; see docs/budgets.md"),
        key("priority", Shape::Other(nested::priority_schema),
            "Classes of calls, each with a share of the limit"),
        key("ban_for", Shape::Time { min: FOR_MIN, max: FOR_MAX },
            "Time for which a call that does not fit closes the counter, 1s to 7 days (168h)"),
        key("tiers", Shape::Other(nested::tiers_schema),
            "Soft limits: a list of `at` and `request_headers`"),
        key("notify_at", Shape::Other(nested::notify_at_schema),
            "Percentages of the limit, 1 to 100, at which you get a notice"),
        key("lease", Shape::OneOf(Lease::names),
            "For fixed_window: off (default), or auto: while a counter is hot, each replica charges some hits in advance, and spends them without asking Redis"),
        key("shadow", Shape::Other(nested::shadow_schema),
            "A lower number that is tried beside the limit: `requests_per_unit`"),
        key("name", TEXT, "Name of the limit in answers and in `replaces`"),
        key("replaces", Shape::Other(replaces),
            "List of `name: other_limit`: limits ignored in calls that match this rule"),
    ],
};

#[rustfmt::skip]
pub(super) static REPLACED: KeyTable = KeyTable {
    name: "an item of `replaces`",
    elsewhere: |_| None,
    keys: &[required("name", TEXT, "Name of the ignored limit")],
};

/// An unlimited limit may have any word that is not a unit, as in envoyproxy/ratelimit.
fn unit() -> Value {
    let any = json!({ "type": ["string", "number", "boolean", "null"] });
    json!({ "anyOf": [{ "enum": Unit::ALL.map(Unit::name) }, any] })
}

fn texts() -> Value {
    let text = json!({ "type": ["string", "number", "boolean"], "minLength": 1 });
    json!({ "anyOf": [{ "type": "null" }, text, { "type": "array", "minItems": 1, "items": text }] })
}

fn reference(definition: &str) -> Value {
    json!({ "anyOf": [{ "type": "null" }, { "$ref": format!("#/$defs/{definition}") }] })
}

fn descriptors() -> Value {
    json!({ "type": ["array", "null"], "items": { "$ref": "#/$defs/descriptor" } })
}

fn rate_limits() -> Value {
    json!({
        "type": ["array", "null"],
        "minItems": 1,
        "maxItems": LIMITS_MAX,
        "items": { "$ref": "#/$defs/rate_limit", "properties": { "unlimited": { "not": { "const": true } } } },
    })
}

fn replaces() -> Value {
    json!({ "type": ["array", "null"], "items": { "$ref": "#/$defs/replaced" } })
}

/// Where a key belongs that is not one of level `here`: 0 is the file, 1 a descriptor, 2 a rate_limit.
fn level_of(name: &str, here: usize) -> Option<&'static str> {
    let levels = [&FILE, &DESCRIPTOR, &LIMIT].into_iter().enumerate().rev();
    let with_key = levels.filter(|(_, table)| table.find(name).is_some()).map(|(level, _)| level);
    // Some keys have two levels; the nearer one is meant, or else the lower one.
    Some(match (here, with_key.min_by_key(|level| level.abs_diff(here))?) {
        (_, 0) => "at the top of the file",
        (0, 1) => "in an item of `descriptors`, one level down",
        (0, _) => "in the `rate_limit` of a descriptor, two levels down",
        (1, _) => "in `rate_limit`, one level down",
        _ => "in the descriptor, one level up",
    })
}
