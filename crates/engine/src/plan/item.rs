//! What a plan has of one descriptor.

use std::sync::Arc;

use crate::{
    decision::{Matched, Outcome, Status},
    directive::Directive,
};

/// One descriptor's part of a plan.
#[derive(Debug)]
pub(super) enum Item {
    /// Already decided.
    Settled(Status),
    /// Decided by the tallies of the next charges, of this number, at least one.
    Charged(Matched, usize, Option<Arc<Directive>>),
}

impl Item {
    pub(super) const fn settled(
        matched: Matched,
        outcome: Outcome,
        directive: Option<Arc<Directive>>,
    ) -> Self {
        Self::Settled(Status::settled(matched, outcome, directive))
    }

    pub(super) fn charges(&self) -> usize {
        match self {
            Self::Charged(_, count, _) => *count,
            Self::Settled(_) => 0,
        }
    }

    pub(super) fn is_exempt(&self) -> bool {
        matches!(self, Self::Charged(_, _, Some(directive)) if directive.exempts())
    }

    pub(super) fn has_no_limit(&self) -> bool {
        matches!(self, Self::Settled(Status { outcome: Outcome::NoLimit, .. }))
    }
}
