//! Overrides as operators write them, as the store keeps them, and as they are shown.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    engine::{
        descriptor_syntax,
        directive::{Directive, DirectiveAction},
        request::{ENTRIES_MAX, Entry, Hits},
        rule::{Policy, Rule},
        rule_set::RuleSet,
        time::Timestamp,
    },
    store::StoreError,
    text::{did_you_mean::hint, duration},
};

/// Most overrides in force at a time.
pub const OVERRIDES_MAX: usize = 1000;

/// The longest life of an override.
pub const LASTS_MAX: Duration = Duration::from_secs(30 * 86_400);

/// The longest descriptor and the longest reason, in bytes.
const DESCRIPTOR_BYTES_MAX: usize = 1024;
const BECAUSE_BYTES_MAX: usize = 200;

/// The largest number by which limits are multiplied.
const TIMES_MAX: u64 = 1_000_000;

/// The fields of a new override.
const FIELDS: &str = "domain, descriptor, one of limit, times and action, for, because, dry_run";

/// An override.
#[derive(Debug, Clone)]
pub struct Override {
    /// What it does, for what and until when.
    pub directive: Arc<Directive>,
    /// Why it was set.
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
    /// The store gives no answer.
    #[error("the store gives no answer, so the change may be in force or not: {0}")]
    Store(#[from] StoreError),
}

/// An override that is to be set.
#[derive(Debug, Clone)]
pub struct NewOverride {
    /// The domain of the rules.
    pub domain: String,
    /// What it is for; a value with a star is a pattern.
    pub entries: Vec<Entry>,
    /// What it does.
    pub action: DirectiveAction,
    /// How long.
    pub lasts: Duration,
    /// Why.
    pub because: String,
    /// Whether only its effect is wanted.
    pub dry_run: bool,
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
    /// The text that the store keeps.
    pub(super) fn kept(&self) -> String {
        let Directive { domain, action, set_at, until, .. } = &*self.directive;
        let kept = KeptOverride {
            domain: domain.to_string(),
            descriptor: self.descriptor(),
            action: action.name().to_owned(),
            value: action.value(),
            until_ms: until.as_millis(),
            set_at_ms: set_at.as_millis(),
            because: self.because.clone(),
            by: self.by.clone(),
        };
        serde_json::to_string(&kept).unwrap_or_default()
    }

    /// The override that the store keeps as this; `None` if a newer version has written it.
    pub(super) fn read(id: &str, text: &[u8]) -> Option<Self> {
        let kept: KeptOverride = serde_json::from_slice(text).ok()?;
        let directive = Directive {
            id: id.into(),
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

    /// The JSON of the admin address.
    pub fn json(&self, now: Timestamp) -> Value {
        let Directive { id, domain, action, set_at, until, .. } = &*self.directive;
        let time = |time: &Timestamp| {
            let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            jiff::Timestamp::from_millisecond(millis)
                .map_or_else(|_| String::new(), |time| time.to_string())
        };
        let mut json = json!({
            "id": &**id,
            "domain": &**domain,
            "descriptor": self.descriptor(),
            "action": action.name(),
            "until": time(until),
            "seconds_left": now.until(*until).as_secs_f64(),
            "because": self.because,
            "by": self.by,
            "set_at": time(set_at),
        });
        if let (Some(value), Some(json)) = (action.value(), json.as_object_mut()) {
            json.insert("value".to_owned(), value.into());
        }
        json
    }
}

/// The action with this name and number.
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
    /// Reads the body of a request.
    ///
    /// # Errors
    /// A sentence that names the field, and what is allowed.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let mut fields: Map<String, Value> =
            serde_json::from_slice(body).map_err(|error| format!("body: {error}"))?;
        let domain = text(&mut fields, "domain")?;
        let entries = entries(&text(&mut fields, "descriptor")?)?;
        let numbers = [("limit", 0, Hits::MAX), ("times", 2, TIMES_MAX)];
        let mut actions = Vec::new();
        for (name, min, max) in numbers {
            if let Some(value) = fields.remove(name) {
                let value = value.as_u64().filter(|value| (min..=max).contains(value));
                let value = value
                    .ok_or_else(|| format!("{name}: must be a whole number from {min} to {max}"))?;
                actions.extend(action(name, Some(value)));
            }
        }
        if fields.contains_key("action") {
            let named = action(&text(&mut fields, "action")?, None);
            actions.push(named.ok_or("action: must be one of: allow, ban, shadow")?);
        }
        let [action] = actions[..] else {
            return Err("action: write one of limit, times and action".to_owned());
        };
        let lasts = lasts(&text(&mut fields, "for")?)?;
        let because = text(&mut fields, "because")?;
        let is_printable = !because.is_empty() && !because.contains(char::is_control);
        if because.len() > BECAUSE_BYTES_MAX || !is_printable {
            return Err(format!(
                "because: must be printable text of 1 to {BECAUSE_BYTES_MAX} bytes"
            ));
        }
        let dry_run = match fields.remove("dry_run") {
            None => false,
            Some(Value::Bool(dry_run)) => dry_run,
            Some(_) => return Err("dry_run: must be true or false".to_owned()),
        };
        match fields.keys().next() {
            Some(name) => {
                let name: String = name.chars().take(64).collect();
                Err(format!("{name:?}: unknown; the fields are {FIELDS}"))
            }
            None => Ok(Self { domain, entries, action, lasts, because, dry_run }),
        }
    }

    /// Checks it against the rules of its descriptors.
    ///
    /// # Errors
    /// A sentence that names the field, and what is allowed.
    pub fn check(&self, rules: &RuleSet) -> Result<(), String> {
        let Some(domain) = rules.domain(&self.domain) else {
            let domains = rules.domains();
            let near = hint(&self.domain, domains.iter().map(|domain| &*domain.name));
            return Err(format!("domain: no rule has this domain{near}"));
        };
        let is_class =
            |key: &&Arc<str>| self.entries.iter().any(|entry| entry.key == key.as_bytes());
        if let Some(class) = domain.class_keys.iter().find(is_class) {
            return Err(format!(
                "descriptor: {class} is the entry of a priority, which overrides leave out"
            ));
        }
        let name = self.action.name();
        if matches!(self.action, DirectiveAction::Allow | DirectiveAction::Ban) {
            return Ok(());
        }
        let rules = domain.rules_for(&self.entries);
        let limited = rules.iter().filter_map(|rule| match &rule.policy {
            Policy::Limited(limits) => Some((rule, limits)),
            Policy::Unlimited => None,
        });
        let limited: Vec<(&&Arc<Rule>, _)> = limited.collect();
        if limited.is_empty() {
            return Err(format!(
                "descriptor: no rule with a limit matches it, so {name} has no effect"
            ));
        }
        for (rule, limits) in limited {
            if matches!(self.action, DirectiveAction::Limit(_)) && limits.len() > 1 {
                let (path, count) = (&rule.path, limits.len());
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
                    let (algorithm, path) = (limit.algorithm.name(), &rule.path);
                    return Err(format!(
                        "{name}: {requests} exceeds {max}, the largest for {algorithm} in the rule {path}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The directive, if it is set now.
    pub fn directive(&self, id: &str, now: Timestamp) -> Arc<Directive> {
        Arc::new(Directive {
            id: id.into(),
            domain: self.domain.as_str().into(),
            entries: self.entries.clone(),
            action: self.action,
            set_at: now,
            until: now.plus_millis(u64::try_from(self.lasts.as_millis()).unwrap_or(0)),
        })
    }
}

fn text(fields: &mut Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("{name}: must be text")),
        None => Err(format!("{name}: missing")),
    }
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
    let is_star = |entry: &Entry| entry.value.contains(&b'*');
    if entries.iter().any(|entry| is_star(entry) && std::str::from_utf8(&entry.value).is_err()) {
        return Err("descriptor: a pattern must be UTF-8".to_owned());
    }
    Ok(entries)
}

/// A time from 1 s to 30 d.
fn lasts(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let hours = days.map(|days| format!("{}h", u64::from(days) * 24));
    let text = hours.as_deref().unwrap_or(text);
    duration::duration(text, Duration::from_secs(1), LASTS_MAX)
        .map_err(|_| "for: must be a duration from 1s to 30d".to_owned())
}
