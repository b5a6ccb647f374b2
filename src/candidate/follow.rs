//! Writes the orders that operators give to this replica, and follows the orders that any replica has written.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time;

use super::{
    Candidate,
    order::{Order, OrderKind},
    trial::Trial,
};
use crate::{engine::time::Timestamp, store::StoreError};

const POLL_EVERY: Duration = Duration::from_millis(250);

impl Candidate {
    /// The version of its rules; `None` if there are none.
    pub fn version(&self) -> Option<String> {
        let rules = self.rules.current();
        (!rules.rules.domains().is_empty()).then(|| rules.version.to_string())
    }

    /// Why no order about this version can be given, as a sentence.
    pub fn refusal(&self, order: OrderKind, version: &str) -> Option<String> {
        let promoted = self.known.lock().orders.promotion().map(|order| order.candidate.clone());
        match (self.version(), self.rules.problems().first()) {
            (_, Some(problem)) if order == OrderKind::Promote => {
                Some(format!("the files of the candidate have a problem: {problem}"))
            }
            // It may have left the files.
            _ if promoted.as_deref() == Some(version) => None,
            (Some(present), _) if present == version => None,
            (Some(present), _) => Some(format!(
                "version: {version} is not the candidate of this replica, which is {present}"
            )),
            (None, _) => Some(match promoted {
                Some(promoted) => {
                    format!("version: this replica has no candidate; {promoted} is promoted")
                }
                None => "version: this replica has no candidate".to_owned(),
            }),
        }
    }

    /// Gives an order to all replicas with the same rules. Returns whether other rules are in force here.
    pub async fn give(&self, order: Order, now: Timestamp) -> Result<bool, StoreError> {
        let _turn = self.turn.lock().await;
        let rules = self.in_force.written().version.to_string();
        self.known.lock().enter(&rules);
        self.leave().await?;
        let (mut orders, _) = self.read(&rules).await?;
        if order.order != OrderKind::Promote {
            self.supersede(&order.candidate, &rules).await?;
        }
        orders.add(order);
        self.keep(&rules, &orders).await?;
        {
            let mut known = self.known.lock();
            (known.rules, known.orders) = (rules, orders);
        }
        Ok(self.apply(now, None))
    }

    /// Follows orders and changes of the rules; never ends.
    pub(super) async fn follow_orders(&self, now: impl Fn() -> Timestamp, on_change: impl Fn()) {
        loop {
            let problem = self.ask().await.unwrap_or_else(|error| {
                let known = match self.known.lock().is_known {
                    true => "the last known orders about the candidate apply",
                    false => "it is not known whether a candidate is promoted",
                };
                Some(format!("{known}, since the store gives no answer: {error}"))
            });
            if self.apply(now(), problem) {
                on_change();
            }
            self.has_asked.store(true, Ordering::Relaxed);
            time::sleep(POLL_EVERY).await;
        }
    }

    /// Waits until the store was asked for orders.
    pub async fn asked(&self) {
        while !self.has_asked.load(Ordering::Relaxed) {
            time::sleep(POLL_EVERY / 10).await;
        }
    }

    /// Learns what was ordered for the written rules. Returns why that is not known.
    async fn ask(&self) -> Result<Option<String>, StoreError> {
        let _turn = self.turn.lock().await;
        let rules = self.in_force.written().version.to_string();
        self.known.lock().enter(&rules);
        self.leave().await?;
        let (orders, problem) = self.read(&rules).await?;
        let mut known = self.known.lock();
        let had_orders = known.orders.last.is_some() && known.rules == rules;
        if had_orders && orders.last.is_none() && problem.is_none() {
            tracing::warn!(
                "the store has lost the orders about the candidate, which apply no longer"
            );
        }
        if problem.is_none() || known.rules != rules {
            known.orders = orders;
        }
        (known.rules, known.is_known) = (rules, true);
        Ok(problem)
    }

    /// Puts in force what the orders say, and compares what is not in force. Returns whether other rules are in force.
    /// `problem` is why they may say something else.
    fn apply(&self, now: Timestamp, mut problem: Option<String>) -> bool {
        let (candidate, version) = (self.rules.current(), self.version());
        let (written, current) = (self.in_force.written(), self.in_force.current());
        let mut known = self.known.lock();
        let rules = written.version.to_string();
        known.enter(&rules);
        let promoted = known.orders.promotion().filter(|_| known.rules == rules).cloned();
        let put = promoted.as_ref().and_then(|promoted| {
            let Order { candidate: promoted, at_ms, .. } = promoted;
            let follows = current.version.to_string() == *promoted;
            let is_left = known.left.contains(&(rules.clone(), *at_ms));
            let (put, says) = if is_left || known.orders.superseded == Some(*at_ms) && !follows {
                (None, "is not in force here, since there were other rules meanwhile; promote or abort it")
            } else if version.as_ref() == Some(promoted) {
                return Some(candidate);
            } else if follows {
                (Some(current), "is no longer in the files of this replica, which loses it when it restarts")
            } else {
                (None, "is not in the files of this replica")
            };
            problem = Some(format!("the promoted candidate {promoted} {says}"));
            put
        });
        let followed = promoted.filter(|_| put.is_some()).map(|promoted| promoted.at_ms);
        let changes = self.in_force.promote(put);
        let in_force = self.in_force.current().version.to_string();
        let last = version.as_ref().and_then(|version| known.orders.about(version));
        let is_judged = last.is_none_or(|last| last.order != OrderKind::Abort);
        // A trial begins again after each order to judge.
        let judge = last.filter(|last| last.order == OrderKind::Judge).map_or(0, |last| last.at_ms);
        let subject = version.filter(|version| is_judged && *version != in_force);
        let subject = subject.map(|version| [version, in_force, judge.to_string()]);
        let was_judged = self.is_judged.swap(subject.is_some(), Ordering::Relaxed);
        let mut trial = self.trial.lock();
        if let Some(subject) = subject
            && (!was_judged || subject != trial.subject)
        {
            *trial = Trial::new(subject, now);
        }
        if let Some(problem) = problem.as_ref().filter(|_| problem != known.problem) {
            tracing::warn!("{problem}");
        }
        (known.followed, known.problem) = (followed, problem);
        changes
    }
}
