//! What is shown of a key.

use std::sync::Arc;

use crate::engine::{
    decision::Matched,
    descriptor_syntax,
    directive::{Directive, DirectiveAction},
    key::{self, Counter},
    rule::{Lease, Limit, Rule},
};

/// What is shown of the values of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopKeyNames {
    Off,
    /// A digest, with a secret that replicas share: values cannot be guessed from it.
    Digests,
    Values,
}

#[derive(Clone)]
pub(super) enum ShownKey {
    /// The descriptor, in the form of the key.
    Descriptor(Box<str>),
    /// [`Counter::id`], of which a digest is shown.
    Id(u64),
}

/// The longest descriptor that is kept, in bytes.
pub(super) const DESCRIPTOR_BYTES_MAX: usize = 256;

#[derive(Clone)]
pub(crate) struct KeyName {
    pub(crate) domain: Arc<str>,
    /// `None` for a limit in the request.
    pub(super) rule: Option<Arc<Rule>>,
    pub(super) limit: Arc<Limit>,
    pub(super) directive: Option<Arc<Directive>>,
    pub(super) shown: ShownKey,
    /// If the store knows its open holds or its credit, for reading them.
    pub(super) counter: Option<Box<Counter>>,
}

/// Blank, since a descriptor holds values of a request.
impl std::fmt::Debug for KeyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyName").finish_non_exhaustive()
    }
}

impl KeyName {
    pub(crate) fn new(
        matched: &Matched,
        directive: Option<&Arc<Directive>>,
        counter: &Counter,
        names: TopKeyNames,
    ) -> Self {
        let (domain, rule) = match matched {
            Matched::Rule(domain, rule) => (Arc::clone(domain), Some(Arc::clone(rule))),
            Matched::Override(domain) | Matched::NoLimit(domain) | Matched::NoRule(domain) => {
                (Arc::clone(domain), None)
            }
            Matched::NoDomain => (Arc::default(), None),
        };
        let shown = match names {
            TopKeyNames::Values => ShownKey::Descriptor(shortened(counter.descriptor())),
            TopKeyNames::Digests | TopKeyNames::Off => ShownKey::Id(counter.id()),
        };
        let (limit, directive) = (Arc::clone(&counter.limit), directive.cloned());
        let is_read = (limit.has_open_holds() || limit.lease == Lease::Auto)
            && counter.business_id().0.len() <= DESCRIPTOR_BYTES_MAX;
        let counter = is_read.then(|| Box::new(counter.clone()));
        Self { domain, rule, limit, directive, shown, counter }
    }

    /// Whether this is what is shown after another decision: the same rule and override, and without a rule the same number.
    pub(super) fn is_current(
        &self,
        matched: &Matched,
        directive: Option<&Arc<Directive>>,
        limit: &Limit,
    ) -> bool {
        self.directive.as_ref().map(Arc::as_ptr) == directive.map(Arc::as_ptr)
            && match (matched, &self.rule) {
                (Matched::Rule(_, rule), Some(own)) => Arc::ptr_eq(own, rule),
                (Matched::Rule(..), None) | (_, Some(_)) => false,
                (_, None) => self.limit.requests_per_unit == limit.requests_per_unit,
            }
    }

    /// Its limit with an operator's action in place of the one that applies, for the same class of calls.
    pub(super) fn limit_by(&self, action: DirectiveAction) -> Limit {
        let is_own = |one: &&Arc<Limit>| one.shares_counter(&self.limit);
        let written = self.rule.as_ref().and_then(|rule| rule.limits().iter().find(is_own));
        let limit = Arc::new(action.limit(written.unwrap_or(&self.limit)));
        match &self.limit.class {
            Some(class) => limit.of_class(class.clone()),
            None => Arc::unwrap_or_clone(limit),
        }
    }

    /// The descriptor as arguments have it, or its digest.
    pub(crate) fn text(&self, digest: impl Fn(u64) -> String) -> String {
        match &self.shown {
            ShownKey::Descriptor(descriptor) => as_argument(descriptor),
            ShownKey::Id(id) => digest(*id),
        }
    }

    /// The path of the rule, or `override`, as in metrics.
    pub(crate) fn rule_path(&self) -> &str {
        self.rule.as_ref().map_or("override", |rule| &rule.path)
    }
}

/// A descriptor in the form of the key, as arguments have it. What stands for a long part begins with `\~`, which no argument
/// may have, and a descriptor that was cut ends with `…`.
fn as_argument(descriptor: &str) -> String {
    let (start, end) = match descriptor.strip_suffix('…') {
        Some(start) => (start, "…"),
        None => (descriptor, ""),
    };
    let entry = |part: &str| match key::entries(part) {
        Some(entries) => descriptor_syntax::write(&entries),
        None => part.replace("%~", "\\~"),
    };
    start.split('|').map(entry).collect::<Vec<_>>().join(",") + end
}

fn shortened(descriptor: &str) -> Box<str> {
    let (start, rest) = descriptor.split_at(descriptor.floor_char_boundary(DESCRIPTOR_BYTES_MAX));
    if rest.is_empty() { start.into() } else { format!("{start}…").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_descriptor_is_cut_between_two_characters() {
        let longest = "a".repeat(DESCRIPTOR_BYTES_MAX);
        assert_eq!(&*shortened(&longest), longest);
        // The last byte that is kept would be the first of two.
        let long = format!("{}é", "a".repeat(DESCRIPTOR_BYTES_MAX - 1));
        assert_eq!(&*shortened(&long), format!("{}…", "a".repeat(DESCRIPTOR_BYTES_MAX - 1)));
    }
}
