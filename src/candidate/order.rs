//! What operators order: to put a candidate in force in place of rules, or to end its trial. The order is one key in the
//! store, which names the versions of both, so that a replica follows it only with the same files, and new rules end it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Value as Reply, cmd, from_redis_value};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time;

use super::{Candidate, trial::Trial};
use crate::{
    engine::time::Timestamp,
    store::{StoreError, redis::topology::by_key::Steps},
    text::named::named,
};

/// The hash tag of the key.
const TAG: &str = "candidate";

const KEPT_MS: u64 = 366 * 86_400_000;

const POLL_EVERY: Duration = Duration::from_millis(250);

const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The rules that are listed, those with the most changes first.
const LISTED_MAX: usize = 200;

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
    /// The version of the written rules.
    pub rules: String,
    pub by: String,
    pub at_ms: u64,
    pub because: Option<String>,
}

impl Candidate {
    /// The version of its rules; `None` if there are none.
    pub fn version(&self) -> Option<String> {
        let rules = self.rules.current();
        (!rules.rules.domains().is_empty()).then(|| rules.version.to_string())
    }

    /// Gives an order about the present versions to all replicas. Returns whether other rules are in force here.
    pub async fn give(
        &self,
        order: OrderKind,
        by: String,
        because: Option<String>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let candidate = self.version().unwrap_or_default();
        let (rules, at_ms) = (self.in_force.written().version.to_string(), now.as_millis());
        let order = Order { order, candidate, rules, by, at_ms, because };
        let _turn = self.turn.lock().await;
        if let (Some(servers), Ok(text)) = (self.store.servers(), serde_json::to_string(&order)) {
            let set = |key: &str| vec![cmd("SET").arg(key).arg(text).arg("PX").arg(KEPT_MS).take()];
            servers.run(TAG, ANSWER_WITHIN, Steps::One, set).await?;
        }
        self.order.store(Some(Arc::new(order)));
        Ok(self.apply(now, None))
    }

    /// Follows orders and changes of the rules; never ends.
    pub(super) async fn follow_orders(&self, now: impl Fn() -> Timestamp, on_change: impl Fn()) {
        loop {
            let problem = self.ask().await.unwrap_or_else(|error| {
                let known = "the last known order about the candidate applies";
                Some(format!("the store gives no answer, and {known}: {error}"))
            });
            if self.apply(now(), problem) {
                on_change();
            }
            self.has_asked.store(true, Ordering::Relaxed);
            time::sleep(POLL_EVERY).await;
        }
    }

    /// Waits until the store was asked for an order.
    pub async fn asked(&self) {
        while !self.has_asked.load(Ordering::Relaxed) {
            time::sleep(POLL_EVERY / 10).await;
        }
    }

    /// Learns the order. Returns why it cannot be followed.
    async fn ask(&self) -> Result<Option<String>, StoreError> {
        let Some(servers) = self.store.servers() else { return Ok(None) };
        let _turn = self.turn.lock().await;
        let get = |key: &str| vec![cmd("GET").arg(key).take()];
        let answer = servers.run(TAG, ANSWER_WITHIN, Steps::Several, get).await?.pop();
        let text: Option<String> =
            from_redis_value(answer.unwrap_or(Reply::Nil)).unwrap_or_default();
        let order: Option<Order> = text.as_ref().and_then(|text| serde_json::from_str(text).ok());
        if text.is_none() && self.order.load().is_some() {
            tracing::warn!(
                "the store has lost the order about the candidate, which no longer applies"
            );
        }
        let problem =
            "the order about the candidate cannot be read; a newer version may have given it";
        let is_unread = order.is_none() && text.is_some();
        self.order.store(order.map(Arc::new));
        Ok(is_unread.then(|| problem.to_owned()))
    }

    /// Puts in force what the order says, and compares what is not in force. Returns whether other rules are in force.
    /// `problem` is why the order may be another one.
    fn apply(&self, now: Timestamp, mut problem: Option<String>) -> bool {
        let (candidate, version) = (self.rules.current(), self.version());
        let (written, current) = (self.in_force.written(), self.in_force.current());
        let order = self.order.load();
        let is_named = |order: &&Arc<Order>| version.as_ref() == Some(&order.candidate);
        let promoted = order.as_ref().filter(|order| {
            order.order == OrderKind::Promote && order.rules == written.version.to_string()
        });
        let promoted = match promoted {
            Some(order) if is_named(&order) => Some(candidate),
            // Its files have changed since.
            Some(order) if current.version.to_string() == order.candidate => Some(current),
            Some(order) => {
                let version = &order.candidate;
                problem = Some(format!(
                    "the promoted candidate {version} is not in the files of this replica"
                ));
                None
            }
            None => None,
        };
        let changes = self.in_force.promote(promoted);
        let in_force = self.in_force.current().version.to_string();
        let is_aborted =
            order.as_ref().filter(is_named).is_some_and(|one| one.order == OrderKind::Abort);
        let versions = version.filter(|version| *version != in_force && !is_aborted);
        let versions = versions.map(|version| [version, in_force]);
        let mut trial = self.trial.lock();
        self.is_judged.store(versions.is_some(), Ordering::Relaxed);
        if let Some(versions) = versions
            && versions != trial.versions
        {
            *trial = Trial::new(versions, now);
        }
        drop(trial);
        let mut known = self.problem.lock();
        if let Some(problem) = problem.as_ref().filter(|_| problem != *known) {
            tracing::warn!("{problem}");
        }
        *known = problem;
        changes
    }

    /// Its state, and what it would change, as the JSON of the admin address.
    pub fn json(&self) -> Value {
        let (version, in_force) = (self.version(), self.in_force.current().version.to_string());
        let state = match &version {
            None => "absent",
            Some(version) if *version == in_force => "in_force",
            Some(_) if self.is_judged() => "judged",
            Some(_) => "aborted",
        };
        let trial = self.trial.lock();
        let mut rules: Vec<_> = trial.counts().collect();
        rules.sort_by_key(|(.., [_, denied, admitted])| std::cmp::Reverse(denied + admitted));
        let mut sums = [0; 3];
        for (.., counts) in &rules {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [same, denied, admitted] = sums;
        let rules: Vec<Value> = (rules.into_iter().take(LISTED_MAX))
            .map(|(domain, rule, [same, denied, admitted])| {
                json!({
                    "domain": *domain, "rule": *rule,
                    "same": same, "newly_denied": denied, "newly_admitted": admitted,
                })
            })
            .collect();
        let problems: Vec<String> = self.rules.problems().iter().map(ToString::to_string).collect();
        json!({
            "state": state,
            "version": version,
            "rules_version": in_force,
            "files": self.rules.current().files,
            "one_in": self.one_in,
            "since_ms": trial.since.as_millis(),
            "same": same, "newly_denied": denied, "newly_admitted": admitted,
            "left_out": trial.left_out,
            "rules": rules,
            "order": self.order.load_full().map(|order| json!(*order)),
            "problem": *self.problem.lock(),
            "problems": problems,
        })
    }

    /// What an operator should look at, as a sentence.
    pub fn problem(&self) -> Option<String> {
        let refused = self
            .rules
            .problems()
            .first()
            .map(|first| format!("the candidate is not loaded: {first}"));
        self.problem.lock().clone().or(refused)
    }
}
