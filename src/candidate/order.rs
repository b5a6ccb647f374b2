//! Orders of operators about a candidate, and what a replica knows of them.

use serde::{Deserialize, Serialize};

use crate::text::named::named;

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OrderKind {
        /// Put the candidate in force in place of the rules.
        Promote = "promote",
        /// Stop judging calls by it.
        Abort = "abort",
        /// Judge calls by it again.
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

/// What was ordered about candidates for one version of the rules. Each part is written by itself, so that replicas do not undo
/// what others write.
#[derive(Debug, Clone, Default)]
pub(super) struct Orders {
    pub(super) last: Option<Order>,
    /// The last order to promote.
    pub(super) promoted: Option<Order>,
    /// When the promotion was ordered that another order has ended.
    pub(super) ended: Option<u64>,
    /// When the promotion was ordered that only replicas still follow which follow it: one has got other rules since.
    pub(super) superseded: Option<u64>,
}

/// What this replica knows of them.
#[derive(Debug, Default)]
pub(super) struct KnownOrders {
    /// The version of the rules that they are for.
    pub(super) rules: String,
    pub(super) orders: Orders,
    /// When the promotion was ordered that is followed here.
    pub(super) followed: Option<u64>,
    /// Promotions that this replica has left, by the version of the rules and the time of the order, until the store knows.
    pub(super) left: Vec<(String, u64)>,
    /// Whether the store has answered since the start.
    pub(super) is_known: bool,
    /// Why they are not followed, or not known, as a sentence.
    pub(super) problem: Option<String>,
}

impl Orders {
    pub(super) fn add(&mut self, order: Order) {
        if order.order == OrderKind::Promote {
            self.promoted = Some(order.clone());
        } else if let Some(promoted) = self.promotes(&order.candidate) {
            self.ended = Some(promoted.at_ms);
        }
        self.last = Some(order);
    }

    /// The promotion that was not ended.
    pub(super) fn promotion(&self) -> Option<&Order> {
        self.promoted.as_ref().filter(|order| self.ended != Some(order.at_ms))
    }

    /// The promotion of this candidate.
    pub(super) fn promotes(&self, version: &str) -> Option<&Order> {
        self.promotion().filter(|order| order.candidate == version)
    }

    /// The last order, if it is about this candidate.
    pub(super) fn about(&self, version: &str) -> Option<&Order> {
        self.last.as_ref().filter(|order| order.candidate == version)
    }
}

impl KnownOrders {
    /// Notes that other rules are written, so that the promotion beside the last ones does not come back with them.
    pub(super) fn enter(&mut self, rules: &str) {
        if self.rules != rules
            && let Some(followed) = self.followed.take()
        {
            self.left.push((self.rules.clone(), followed));
        }
    }
}
