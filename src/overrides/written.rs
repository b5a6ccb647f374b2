//! Overrides as operators write them, as the store keeps them, and as they are shown.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    engine::{
        descriptor_syntax,
        directive::{Directive, DirectiveAction},
        request::{ENTRIES_MAX, Entry, Hits},
        rule_set::{Domain, RuleSet},
        time::Timestamp,
    },
    members::present,
    store::StoreError,
    text::{
        did_you_mean::hint,
        duration,
        printable::{is_unseen, printable_start},
    },
};

pub(super) const OVERRIDES_MAX: usize = 1000;

pub(super) const LASTS_MAX: Duration = Duration::from_secs(30 * 86_400);

/// The longest descriptor and the longest reason, in bytes.
const DESCRIPTOR_BYTES_MAX: usize = 1024;

/// The most stars of one value: what lies between two takes hundreds of bytes of memory, and time to search.
const STARS_MAX: usize = 8;
const BECAUSE_BYTES_MAX: usize = 200;

/// The largest number by which limits are multiplied.
const TIMES_MAX: u64 = 1_000_000;

/// Most bytes of a message about JSON, and of a key in a message, about.
const PROBLEM_BYTES_MAX: usize = 300;
const KEY_BYTES_MAX: usize = 64;

#[derive(Debug, Clone)]
pub struct Override {
    /// What it does, for what and until when.
    pub directive: Arc<Directive>,
    pub because: String,
    /// Who has set it.
    pub by: String,
}

/// Why an override was not set or ended.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// There are as many as there may be.
    #[error("{OVERRIDES_MAX} overrides are in force, the most; end one first")]
    Full,
    /// None in force has this id.
    #[error("id: no override in force has this id")]
    Unknown,
    /// Another request, or its time, has ended it just now.
    #[error("id: the override was undone already")]
    Ended,
    /// The store gives no answer, and no change was sent to it.
    #[error("the store gives no answer, and nothing has changed: {0}")]
    Unchanged(#[from] StoreError),
    /// The store gave no answer to a change.
    #[error("the store gives no answer, so the change may be in force or not: {0}")]
    Unsure(StoreError),
}

#[derive(Debug, Clone)]
pub struct NewOverride {
    pub domain: String,
    /// What it is for; a value with a star is a pattern.
    pub entries: Vec<Entry>,
    pub action: DirectiveAction,
    pub lasts: Duration,
    pub because: String,
    /// Whether only its effect is wanted.
    pub dry_run: bool,
}

/// The body of a request. Each field is read by itself, so that a message can name it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewOverrideBody {
    domain: Option<Value>,
    descriptor: Option<Value>,
    limit: Option<Value>,
    times: Option<Value>,
    action: Option<Value>,
    #[serde(rename = "for")]
    lasts: Option<Value>,
    because: Option<Value>,
    dry_run: Option<Value>,
}

/// An override as the store keeps it, by its id. Fields that a newer version adds are ignored.
#[derive(Serialize, Deserialize)]
struct KeptOverride {
    domain: String,
    descriptor: String,
    action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    until_ms: u64,
    set_at_ms: u64,
    because: String,
    by: String,
}

impl Override {
    /// What the store keeps.
    pub(super) fn kept(&self) -> Value {
        let Directive { domain, action, set_at, until, .. } = &*self.directive;
        json!(KeptOverride {
            domain: domain.to_string(),
            descriptor: self.descriptor(),
            action: action.name().to_owned(),
            value: action.value(),
            until_ms: until.as_millis(),
            set_at_ms: set_at.as_millis(),
            because: self.because.clone(),
            by: self.by.clone(),
        })
    }

    /// The override that the store keeps as this; `None` if a newer version has written it.
    pub(super) fn read(id: &[u8], text: &[u8]) -> Option<Self> {
        let kept: KeptOverride = serde_json::from_slice(text).ok()?;
        let directive = Directive {
            id: str::from_utf8(id).ok()?.into(),
            domain: kept.domain.into(),
            entries: descriptor_syntax::parse(&kept.descriptor).ok()?,
            action: action(&kept.action, kept.value)?,
            set_at: Timestamp::from_millis(kept.set_at_ms),
            until: Timestamp::from_millis(kept.until_ms),
        };
        Some(Self { directive: Arc::new(directive), because: kept.because, by: kept.by })
    }

    /// The descriptors that it is for, as the command line writes them.
    pub fn descriptor(&self) -> String {
        descriptor_syntax::write(&self.directive.entries)
    }

    pub fn json(&self, now: Timestamp) -> Value {
        let Directive { id, domain, action, set_at, until, .. } = &*self.directive;
        present(json!({
            "id": **id,
            "domain": **domain,
            "descriptor": self.descriptor(),
            "action": action.name(),
            "value": action.value(),
            "until": until.date(),
            "set_at": set_at.date(),
            "seconds_left": now.until(*until).as_secs_f64(),
            "because": self.because,
            "by": self.by,
        }))
    }
}

fn action(name: &str, value: Option<u64>) -> Option<DirectiveAction> {
    Some(match (name, value) {
        ("limit", Some(value)) => DirectiveAction::Limit(value),
        ("times", Some(value)) => DirectiveAction::Times(value),
        ("allow", None) => DirectiveAction::Allow,
        ("ban", None) => DirectiveAction::Ban,
        ("shadow", None) => DirectiveAction::Shadow,
        _ => return None,
    })
}

impl NewOverride {
    pub fn read(body: &[u8]) -> Result<Self, String> {
        // The derived code would also read a list.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err("body: must be a JSON object".to_owned());
        }
        let problem = |error: serde_json::Error| {
            let problem = printable_start(error.to_string().as_bytes(), PROBLEM_BYTES_MAX);
            format!("body: {problem}")
        };
        let body: NewOverrideBody = serde_json::from_slice(body).map_err(problem)?;
        let limit = whole("limit", body.limit, 0, Hits::MAX)?.map(DirectiveAction::Limit);
        let times = whole("times", body.times, 2, TIMES_MAX)?.map(DirectiveAction::Times);
        let named = body.action.map(|name| name.as_str().and_then(|name| action(name, None)));
        let named = named.map(|named| named.ok_or("action: must be one of: allow, ban, shadow"));
        let actions: Vec<_> = [limit, times, named.transpose()?].into_iter().flatten().collect();
        let [action] = actions[..] else {
            return Err("action: write one of limit, times and action".to_owned());
        };
        let dry_run = body.dry_run.unwrap_or(Value::Bool(false)).as_bool();
        let new = Self {
            domain: text("domain", body.domain)?,
            entries: entries(&text("descriptor", body.descriptor)?)?,
            action,
            lasts: lasts(&text("for", body.lasts)?)?,
            because: text("because", body.because)?,
            dry_run: dry_run.ok_or("dry_run: must be true or false")?,
        };
        check_because(Some(&new.because)).map(|()| new)
    }

    /// Checks it against the rules of its descriptors. Returns a hint, if no rule applies to them.
    pub fn check(&self, rules: &RuleSet) -> Result<Option<String>, String> {
        let Some(domain) = rules.domain(&self.domain) else {
            let domains = rules.domains();
            let near = hint(&self.domain, domains.iter().map(|domain| &*domain.name));
            let name = printable_start(self.domain.as_bytes(), KEY_BYTES_MAX);
            return Err(format!("domain: unknown domain `{name}`{near}"));
        };
        if let Some(entry) = self.entries.iter().find(|entry| domain.is_beside_path(entry)) {
            let key = printable_start(&entry.key, KEY_BYTES_MAX);
            return Err(format!(
                "descriptor: {key} selects a class or a hold; leave it out of an override"
            ));
        }
        let name = self.action.name();
        let rules = domain.rules_for(&self.entries);
        if rules.is_empty() && self.entries.iter().any(|entry| entry.key.contains(&b'*')) {
            return Err(
                "descriptor: a star in a key is not a pattern, and no rule has this key".to_owned()
            );
        }
        if matches!(self.action, DirectiveAction::Allow | DirectiveAction::Ban) {
            return Ok(rules.is_empty().then(|| self.hint(domain)));
        }
        if rules.iter().all(|rule| rule.limits().is_empty()) {
            return Err(format!(
                "descriptor: no rule with a limit matches it, so {name} has no effect"
            ));
        }
        for rule in rules {
            let (path, limits) = (&rule.path, rule.limits());
            if matches!(self.action, DirectiveAction::Limit(_)) && limits.len() > 1 {
                let count = limits.len();
                return Err(format!(
                    "limit: the rule {path} has {count} limits, and one number cannot replace them: use times"
                ));
            }
            for limit in limits {
                let requests = match self.action {
                    DirectiveAction::Limit(requests) => requests,
                    DirectiveAction::Times(times) => limit.requests_per_unit.saturating_mul(times),
                    _ => 0,
                };
                let max = limit.requests_max();
                if requests > max {
                    let algorithm = limit.algorithm.name();
                    return Err(format!(
                        "{name}: {requests} exceeds {max}, the largest for {algorithm} in the rule {path}"
                    ));
                }
            }
        }
        Ok(None)
    }

    /// What an exemption or a ban means to whose descriptors no rule applies.
    fn hint(&self, domain: &Domain) -> String {
        let mut unknown = None;
        domain.walk(&self.entries, |entry, candidates, _| {
            if !candidates.has_key() {
                let key = printable_start(&entry.key, KEY_BYTES_MAX);
                let known = candidates.keys().filter_map(|key| std::str::from_utf8(key).ok());
                unknown = Some((format!("has the key {key} at this position"), hint(&key, known)));
            }
        });
        let (what, near) =
            unknown.unwrap_or(("applies to this descriptor".to_owned(), String::new()));
        let meaning = match self.action {
            DirectiveAction::Ban => "only calls with exactly these keys are denied",
            _ => "there is no limit to lift, except one that a call sends",
        };
        format!("no rule of the domain {what}: {meaning}{near}")
    }

    /// The directive, if it is set now, in the order of `set_at`.
    pub fn directive(&self, id: &str, set_at: Timestamp, now: Timestamp) -> Arc<Directive> {
        Arc::new(Directive {
            id: id.into(),
            domain: self.domain.as_str().into(),
            entries: self.entries.clone(),
            action: self.action,
            set_at,
            until: now.plus_millis(u64::try_from(self.lasts.as_millis()).unwrap_or(0)),
        })
    }
}

/// Checks why something is set, ended or reset, if a reason is given.
pub fn check_because(text: Option<&impl AsRef<str>>) -> Result<(), String> {
    let is_good = |text: &str| {
        text.len() <= BECAUSE_BYTES_MAX && !text.trim().is_empty() && !text.contains(is_unseen)
    };
    if text.is_none_or(|text| is_good(text.as_ref())) {
        return Ok(());
    }
    Err(format!(
        "because: must be 1 to {BECAUSE_BYTES_MAX} bytes of text without control characters and marks of direction or of no width"
    ))
}

fn text(name: &str, value: Option<Value>) -> Result<String, String> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("{name}: must be text")),
        None => Err(format!("{name}: missing")),
    }
}

fn whole(name: &str, value: Option<Value>, min: u64, max: u64) -> Result<Option<u64>, String> {
    let Some(value) = value else { return Ok(None) };
    let value = value.as_u64().filter(|value| (min..=max).contains(value));
    value.map(Some).ok_or_else(|| format!("{name}: must be a whole number from {min} to {max}"))
}

fn entries(text: &str) -> Result<Vec<Entry>, String> {
    if text.len() > DESCRIPTOR_BYTES_MAX {
        return Err(format!("descriptor: over {DESCRIPTOR_BYTES_MAX} bytes"));
    }
    let entries =
        descriptor_syntax::parse(text).map_err(|problem| format!("descriptor: {problem}"))?;
    if entries.len() > ENTRIES_MAX {
        return Err(format!("descriptor: {} entries exceed {ENTRIES_MAX}", entries.len()));
    }
    // Rules have no other way to write a pattern, and none to write a star that is not one.
    if text.to_ascii_lowercase().contains("\\x2a") {
        return Err("descriptor: a star is a pattern, also as \\x2a".to_owned());
    }
    let stars = |entry: &Entry| entry.value.iter().filter(|byte| **byte == b'*').count();
    if let Some(stars) = entries.iter().map(stars).find(|stars| *stars > STARS_MAX) {
        return Err(format!(
            "descriptor: a value has {stars} stars, and at most {STARS_MAX} are allowed"
        ));
    }
    let is_star = |entry: &Entry| stars(entry) > 0;
    if entries.iter().any(|entry| is_star(entry) && std::str::from_utf8(&entry.value).is_err()) {
        return Err("descriptor: a pattern must be UTF-8".to_owned());
    }
    Ok(entries)
}

fn lasts(text: &str) -> Result<Duration, String> {
    duration::duration(text, Duration::from_secs(1), LASTS_MAX)
        .map_err(|problem| format!("for: {problem}"))
}
