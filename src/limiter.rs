//! The story of one call: find the rules, charge the store, settle.

mod refused_debits;

use std::sync::Arc;

use self::refused_debits::RefusedDebits;
use crate::{
    engine::{
        decision::{Decision, Met},
        ledger::{Charge, Standing},
        plan::Plan,
        request::Request,
        time::Timestamp,
    },
    explain::Explanation,
    rules::Rules,
    store::{
        Clear, StoreError,
        guard::{Charged, Guard},
    },
    telemetry::{CallMetrics, Told},
};

/// Decides calls.
#[derive(Debug)]
pub struct Limiter {
    rules: Arc<Rules>,
    store: Guard,
    metrics: CallMetrics,
    /// When the log last told of a descriptor without a rule.
    told: Told,
    /// The same of a counter that holds no count.
    told_unreadable: Told,
    refused_debits: RefusedDebits,
}

impl Limiter {
    /// A limiter by these rules on this store.
    pub fn new(rules: Arc<Rules>, store: Guard, metrics: CallMetrics) -> Self {
        Self {
            rules,
            store,
            metrics,
            told: Told::default(),
            told_unreadable: Told::default(),
            refused_debits: RefusedDebits::default(),
        }
    }

    /// Decides one call.
    ///
    /// # Errors
    /// If the store gives no answer; see [`StoreError`].
    pub async fn decide(&self, request: &Request) -> Result<Decision, StoreError> {
        let plan = Plan::draw(&self.rules.current().rules, request);
        match self.store.charge(&plan.charges).await {
            Ok(Charged { tallies, denied, unreadable }) => {
                unreadable.iter().for_each(|charge| self.unreadable(&plan.label(*charge)));
                let decision = plan.settle(tallies, denied);
                self.report(request, &decision);
                Ok(decision)
            }
            Err(error) => {
                if let StoreError::Unreadable(charges) = &error {
                    charges.iter().for_each(|charge| self.unreadable(&plan.label(*charge)));
                }
                Err(error)
            }
        }
    }

    /// How the counters stand that this request would charge, and `clear` resets each; `None` where one
    /// holds no count.
    ///
    /// # Errors
    /// If the store gives no answer; see [`StoreError`].
    pub async fn look(
        &self,
        request: &Request,
        clear: Clear,
    ) -> Result<Vec<(Charge, Option<Standing>)>, StoreError> {
        let plan = Plan::draw(&self.rules.current().rules, request);
        let mut stand = Vec::with_capacity(plan.charges.len());
        for charge in plan.charges {
            let standing = match self.store.look(&charge.counter, clear).await {
                Ok(standing) => Some(standing),
                Err(StoreError::Unreadable(_)) => None,
                Err(error) => return Err(error),
            };
            stand.push((charge, standing));
        }
        Ok(stand)
    }

    /// What this request would match and charge at `now`, and its verdict; nothing is written.
    ///
    /// # Errors
    /// If the store gives no answer; see [`StoreError`].
    pub async fn explain(
        &self,
        request: &Request,
        now: Timestamp,
    ) -> Result<Explanation, StoreError> {
        let in_force = self.rules.current();
        let plan = Plan::draw(&in_force.rules, request);
        let mut standings = Vec::with_capacity(plan.charges.len());
        for charge in &plan.charges {
            standings.push(self.store.look(&charge.counter, Clear::No).await?);
        }
        let mut explanation = Explanation::new(&in_force.rules, request, &plan, now);
        explanation.foresee(plan, &standings);
        Ok(explanation)
    }

    /// What is measured of calls.
    pub fn metrics(&self) -> &CallMetrics {
        &self.metrics
    }

    fn unreadable(&self, rule: &str) {
        self.metrics.unreadable(rule);
        if self.told_unreadable.is_due() {
            tracing::error!(rule, "a counter of this rule holds something else than a count");
        }
    }

    fn report(&self, request: &Request, decision: &Decision) {
        self.metrics.decided(request, decision);
        for (descriptor, status) in request.descriptors.iter().zip(&decision.statuses) {
            if let Some(rule) = self.refused_debits.see(descriptor.hits, status) {
                self.metrics.debit_refused(rule);
            }
        }
        let lost = |met: &Met| matches!(met, Met::NoDomain | Met::NoRule(_));
        if decision.statuses.iter().any(|status| lost(&status.met)) && self.told.is_due() {
            tracing::warn!(
                "a descriptor met no rule and passed; if that is a typo, the metric \
                 ratelimit_decisions_total with rule=\"other\" tells the domain (said once a minute)"
            );
        }
    }
}
