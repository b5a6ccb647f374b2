//! Finds what is allowed but probably a mistake, and reports it as warnings.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tollkeeper_engine::{pattern::Pattern, text::did_you_mean::hint};
use tollkeeper_yaml::{
    origin::Origin,
    problem::Findings,
    reader::{Located, Reader},
    tree::Location,
};

use crate::written::WrittenDescriptor;

/// Most patterns of its key that a descriptor is compared with, so that a check stays quick.
const PATTERNS_MAX: usize = 1000;

struct Patterned<'level> {
    /// Its position among its siblings.
    index: usize,
    pattern: Pattern,
    text: &'level str,
    location: Location,
}

#[derive(Default)]
struct Siblings<'level> {
    /// By key, in the order of the file.
    patterns: HashMap<&'level str, Vec<Patterned<'level>>>,
    /// The keys that have a descriptor without a value.
    defaults: HashSet<&'level str>,
}

/// Lints the descriptors of one level, each against its siblings.
pub(super) fn siblings(
    origin: &Origin,
    level: &[Located<WrittenDescriptor>],
    findings: &mut Findings,
) {
    let siblings = Siblings::of(level);
    let mut reader = Reader { origin, findings };
    for (index, Located { location, value: written }) in level.iter().enumerate() {
        if let Some(Patterned { text, location: other, .. }) = siblings.hides(index, written) {
            let other = origin.location_within(*other);
            let message =
                format!("never matches: all its values match the pattern `{text}` {other} first");
            reader.warning(*location, message);
        }
        if siblings.is_idle(index, written) {
            let message = "this descriptor has no limit and none below it, so it has no effect";
            reader.warning(*location, message);
        }
        requests_per_unit(written, &mut reader);
        credential(written, *location, &mut reader);
    }
}

impl<'level> Siblings<'level> {
    fn of(level: &'level [Located<WrittenDescriptor>]) -> Self {
        let mut siblings = Self::default();
        for (index, Located { location, value: written }) in level.iter().enumerate() {
            let Some(text) = written.value.as_deref() else {
                siblings.defaults.insert(&written.key);
                continue;
            };
            if let Some(pattern) = Pattern::new(text) {
                let patterned = Patterned { index, pattern, text, location: *location };
                siblings.patterns.entry(&written.key).or_default().push(patterned);
            }
        }
        siblings
    }

    /// The patterns that match this value, or every value that this pattern matches: its stars can only be
    /// matched by theirs, because a pattern's literals hold no star.
    fn covering(&self, written: &WrittenDescriptor) -> impl Iterator<Item = &Patterned<'level>> {
        let patterns = self.patterns.get(&*written.key).map_or(&[][..], Vec::as_slice);
        let value = written.value.as_deref();
        patterns
            .iter()
            .take(PATTERNS_MAX)
            .filter(move |other| value.is_some_and(|value| other.pattern.matches(value.as_bytes())))
    }

    /// The first earlier pattern that matches all values of this one.
    fn hides(&self, index: usize, written: &WrittenDescriptor) -> Option<&Patterned<'level>> {
        written.value.as_deref().filter(|value| value.contains('*'))?;
        self.covering(written).find(|other| other.index < index)
    }

    /// Whether the descriptor neither limits, nor nests others, nor is an exception from a sibling.
    fn is_idle(&self, index: usize, written: &WrittenDescriptor) -> bool {
        if !written.limits.is_empty() || !written.descriptors.is_empty() {
            return false;
        }
        let is_exception = self.defaults.contains(&*written.key)
            || self.covering(written).any(|other| other.index != index);
        written.value.is_none() || !is_exception
    }
}

/// Keys of entries whose values let others act as the caller, in lower case.
const CREDENTIALS: [&str; 11] = [
    "access_token",
    "api_key",
    "apikey",
    "authorization",
    "bearer",
    "cookie",
    "password",
    "secret",
    "session",
    "session_id",
    "x-api-key",
];

fn credential(written: &WrittenDescriptor, location: Location, reader: &mut Reader<'_>) {
    let is_named_so = CREDENTIALS.contains(&&*written.key.to_ascii_lowercase());
    if is_named_so && !written.secret && written.value.is_none() {
        let message = "key: its values look like credentials, which everybody who reads the store sees; set `secret: true`";
        reader.warning(location, message);
    }
}

fn requests_per_unit(written: &WrittenDescriptor, reader: &mut Reader<'_>) {
    for limit in written.limits.iter().filter(|limit| !limit.value.unlimited) {
        let message = match limit.value.requests_per_unit {
            None => "requests_per_unit: missing; it counts as 0, which denies every call",
            Some(0) => "requests_per_unit: 0 denies every call",
            Some(_) => continue,
        };
        reader.warning(limit.location, message);
    }
}

/// The names of all limits, and the names that `replaces` refers to, by domain.
#[derive(Default)]
pub(super) struct Names {
    domains: HashMap<String, NamesOfDomain>,
}

#[derive(Default)]
struct NamesOfDomain {
    names: HashSet<String>,
    /// Each with the origin that it is written in.
    replaced: Vec<(Arc<Origin>, Located<String>)>,
}

impl Names {
    pub(super) fn add(&mut self, origin: &Arc<Origin>, domain: &str, written: &WrittenDescriptor) {
        for limit in &written.limits {
            if limit.value.name.is_none() && limit.value.replaces.is_empty() {
                continue;
            }
            let of_domain = self.domains.entry(domain.to_owned()).or_default();
            if !limit.value.unlimited {
                of_domain.names.extend(limit.value.name.clone());
            }
            for name in &limit.value.replaces {
                of_domain.replaced.push((Arc::clone(origin), name.clone()));
            }
        }
    }

    /// Warns about names that no limit has. They are accepted, as in envoyproxy/ratelimit, but are probably
    /// typos.
    pub(super) fn lint(&self, findings: &mut Findings) {
        for NamesOfDomain { names, replaced } in self.domains.values() {
            for (origin, Located { location, value: name }) in replaced {
                if names.contains(name) {
                    continue;
                }
                let near = hint(name, names.iter().map(String::as_str));
                let message = format!("replaces: no limit in this domain is named `{name}`{near}");
                findings.warnings.push(origin.problem(*location, message));
            }
        }
    }
}
