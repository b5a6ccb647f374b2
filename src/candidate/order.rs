//! Orders of operators about a candidate, and what a replica knows of them.

use serde::{Deserialize, Serialize};

use crate::text::named::named;

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OrderKind {
        /// The candidate is in force in place of the rules.
        Promote = "promote",
        /// It is no longer judged.
        Abort = "abort",
        /// It is judged again.
        Judge = "judge",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub order: OrderKind,
    /// The version of the candidate.
    pub candidate: String,
    pub by: String,
    pub at_ms: u64,
    pub because: Option<String>,
}

/// What was ordered about candidates for one version of the rules.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) last: Option<Order>,
    /// The version of the candidate that is in force.
    pub(super) promoted: Option<String>,
    /// Whether a replica that followed the promotion got other rules since: then only those that still follow it do.
    pub(super) superseded: bool,
}

/// What this replica knows of them.
#[derive(Debug, Default)]
pub(super) struct KnownOrders {
    /// The version of the rules that they are for.
    pub(super) rules: String,
    pub(super) orders: Orders,
    /// Whether the promoted candidate is in force here.
    pub(super) is_followed: bool,
    /// Whether the store has answered since the start.
    pub(super) is_known: bool,
    /// Why they are not followed, or not known, as a sentence.
    pub(super) problem: Option<String>,
}

impl Orders {
    pub(super) fn add(&mut self, order: Order) {
        let is_promoted = self.promoted.as_ref() == Some(&order.candidate);
        if order.order == OrderKind::Promote {
            (self.promoted, self.superseded) = (Some(order.candidate.clone()), false);
        } else if is_promoted {
            self.promoted = None;
        }
        self.last = Some(order);
    }

    /// The last order, if it is about this candidate.
    pub(super) fn about(&self, version: &str) -> Option<&Order> {
        self.last.as_ref().filter(|order| order.candidate == version)
    }
}
