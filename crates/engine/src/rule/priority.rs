//! Classes of calls: each is admitted up to its share of a limit, on one counter.

use std::sync::Arc;

use super::{Algorithm, Limit};
use crate::time::{Span, Timestamp};

/// The classes of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priority {
    /// The key of the entry whose value is the class of a call. The entry is part of no path in its domain.
    pub entry: Arc<str>,
    /// The classes, each with its share.
    pub shares: Vec<(Arc<str>, Share)>,
    /// The share of calls of no class, or of another one.
    pub default: Share,
    /// Whether each share grows to the whole limit until its window ends.
    pub releases: bool,
}

/// A part of a limit, in percent, from 1 to 100.
pub type Share = u64;

impl Priority {
    /// The name and the share of a class.
    fn class(&self, class: Option<&[u8]>) -> (Arc<str>, Share) {
        let known = self.shares.iter().find(|(name, _)| class == Some(name.as_bytes()));
        known.cloned().unwrap_or_else(|| ("default".into(), self.default))
    }
}

impl Limit {
    /// The most hits of the window `span` that are admitted at `now`: all, or as much as is released.
    pub fn requests_at(&self, span: Span, now: Timestamp) -> u64 {
        let Some(from) = self.opens_from else { return self.requests_per_unit };
        let [passed, all] = [now, span.end].map(|at| at.millis_since(span.start).max(0));
        let [passed, all] = [passed.min(all), all.max(1)].map(i128::from);
        let reserved = i128::from(self.requests_per_unit) - i128::from(from);
        from.saturating_add(u64::try_from(reserved * passed / all).unwrap_or(0))
    }

    /// The limit as it applies to a call: with a `priority`, the share of its class, which is the value of an entry.
    #[must_use]
    pub fn for_call<'call>(
        self: &Arc<Self>,
        value_of: impl FnOnce(&str) -> Option<&'call [u8]>,
    ) -> Arc<Self> {
        let Some(priority) = &self.priority else { return Arc::clone(self) };
        Arc::new(self.of_class(priority.class(value_of(&priority.entry))))
    }

    /// The whole limit as it applies to a class with this share.
    #[must_use]
    pub fn of_class(&self, (name, share): (Arc<str>, Share)) -> Self {
        // A limit is below 2^53.
        let part = |whole: u64| (whole * share / 100).max(whole.min(1));
        let mut limit = Self { class: Some((name, share)), ..Self::clone(self) };
        match &mut limit.algorithm {
            // All classes pay the debt of a bucket at its rate.
            Algorithm::TokenBucket { burst } => *burst = part(*burst),
            _ if self.priority.as_ref().is_some_and(|priority| priority.releases) => {
                limit.opens_from = Some(part(limit.requests_per_unit));
            }
            _ => limit.requests_per_unit = part(limit.requests_per_unit),
        }
        limit
    }
}
