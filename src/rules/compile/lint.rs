//! What is allowed, but probably a mistake: it becomes a warning.

use std::collections::{HashMap, HashSet};

use crate::{
    did_you_mean::hint,
    engine::pattern::Pattern,
    rules::{
        problem::{Findings, Problem},
        reader::Located,
        schema::Descriptor,
        yaml::Location,
    },
};

/// Each descriptor is compared with at most this many patterns of its key, so that a check stays quick.
const PATTERNS_MAX: usize = 1000;

/// A descriptor whose value is a pattern.
struct Patterned<'level> {
    /// Its position among its siblings.
    index: usize,
    pattern: Pattern,
    text: &'level str,
    location: Location,
}

/// Looks at the descriptors of one level, each against its siblings.
pub(super) fn siblings(file: &str, siblings: &[Located<Descriptor>], findings: &mut Findings) {
    let mut warn = |location, message: &str| {
        findings.warnings.push(Problem::at(file, location, message));
    };
    let mut patterns: HashMap<&str, Vec<Patterned<'_>>> = HashMap::new();
    let mut defaults: HashSet<&str> = HashSet::new();
    for (index, Located { location, value: written }) in siblings.iter().enumerate() {
        let Some(text) = written.value.as_deref() else {
            defaults.insert(&written.key);
            continue;
        };
        if let Some(pattern) = Pattern::new(text) {
            let patterned = Patterned { index, pattern, text, location: *location };
            patterns.entry(&written.key).or_default().push(patterned);
        }
    }
    for (index, Located { location, value: written }) in siblings.iter().enumerate() {
        let value = written.value.as_deref();
        let of_key = patterns.get(&*written.key).map_or(&[][..], |patterns| patterns);
        let of_key = of_key.get(..PATTERNS_MAX).unwrap_or(of_key);
        // A pattern's literals hold no star, so those of this value can only match its stars.
        let covers = |other: &&Patterned<'_>| {
            value.is_some_and(|value| other.pattern.matches(value.as_bytes()))
        };
        let is_pattern = value.is_some_and(|value| value.contains('*'));
        let first = of_key.iter().find(|other| other.index < index && covers(other));
        if is_pattern && let Some(Patterned { text, location: (line, _), .. }) = first {
            let message = format!(
                "never matches: all its values match the pattern `{text}` in line {line} first"
            );
            warn(*location, &message);
        }
        let is_idle = written.limits.is_empty() && written.descriptors.is_empty();
        let is_exception = value.is_some()
            && (defaults.contains(&*written.key)
                || of_key.iter().any(|other| other.index != index && covers(&other)));
        if is_idle && !is_exception {
            warn(*location, "has no limit and no descriptors below it, so it has no effect");
        }
        for limit in written.limits.iter().filter(|limit| !limit.value.unlimited) {
            match limit.value.requests_per_unit {
                None => warn(
                    limit.location,
                    "requests_per_unit: missing; it counts as 0, which denies every call",
                ),
                Some(0) => warn(limit.location, "requests_per_unit: 0 denies every call"),
                Some(_) => {}
            }
        }
    }
}

/// The names of all limits, and who replaces which.
#[derive(Default)]
pub(super) struct Names {
    /// By domain.
    domains: HashMap<String, NamesOfDomain>,
}

#[derive(Default)]
struct NamesOfDomain {
    names: HashSet<String>,
    /// With the file that says so.
    replaced: Vec<(String, Located<String>)>,
}

impl Names {
    pub(super) fn add(&mut self, file: &str, domain: &str, written: &Descriptor) {
        for limit in &written.limits {
            if limit.value.name.is_none() && limit.value.replaces.is_empty() {
                continue;
            }
            let of_domain = self.domains.entry(domain.to_owned()).or_default();
            if !limit.value.unlimited {
                of_domain.names.extend(limit.value.name.clone());
            }
            for name in &limit.value.replaces {
                of_domain.replaced.push((file.to_owned(), name.clone()));
            }
        }
    }

    /// A name that no limit has is accepted, as in envoyproxy/ratelimit, but probably a typo.
    pub(super) fn lint(&self, findings: &mut Findings) {
        for NamesOfDomain { names, replaced } in self.domains.values() {
            for (file, Located { location, value: name }) in replaced {
                if names.contains(name) {
                    continue;
                }
                let near = hint(name, names.iter().map(String::as_str));
                let message = format!("replaces: no limit in this domain is named `{name}`{near}");
                findings.warnings.push(Problem::at(file, *location, message));
            }
        }
    }
}
