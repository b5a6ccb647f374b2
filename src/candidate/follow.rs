//! Follows what operators order. In Redis it is a hash, with a field for each version of the rules, so that an order is
//! followed only where the same rules are written, and new rules end it.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Value as Reply, cmd, from_redis_value};
use serde_json::{Value, json};
use tokio::time;

use super::{
    Candidate,
    order::{Order, OrderKind, Orders},
    trial::{RuleName, Trial},
};
use crate::{
    engine::time::Timestamp,
    store::{StoreError, redis::topology::by_key::Steps},
};

/// The hash tag of the key.
const TAG: &str = "candidate";

const KEPT_MS: u64 = 366 * 86_400_000;

const POLL_EVERY: Duration = Duration::from_millis(250);

const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The rules that are listed, those with the most changes first.
const LISTED_MAX: usize = 200;

impl Candidate {
    /// The version of its rules; `None` if there are none.
    pub fn version(&self) -> Option<String> {
        let rules = self.rules.current();
        (!rules.rules.domains().is_empty()).then(|| rules.version.to_string())
    }

    /// Why no order about this version can be given, as a sentence.
    pub fn refusal(&self, order: OrderKind, version: &str) -> Option<String> {
        // It may have left the files.
        let is_promoted = self.known.lock().orders.promoted.as_deref() == Some(version);
        match (self.version(), self.rules.problems().first()) {
            (_, Some(problem)) if order == OrderKind::Promote => {
                Some(format!("the files of the candidate have a problem: {problem}"))
            }
            _ if is_promoted => None,
            (Some(present), _) if present == version => None,
            (Some(present), _) => Some(format!(
                "version: {version} is not the candidate of this replica, which is {present}"
            )),
            (None, _) => Some("version: this replica has no candidate".to_owned()),
        }
    }

    /// Gives an order to all replicas with the same rules. Returns whether other rules are in force here.
    pub async fn give(&self, order: Order, now: Timestamp) -> Result<bool, StoreError> {
        let _turn = self.turn.lock().await;
        let rules = self.in_force.written().version.to_string();
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
        let superseded = {
            let known = self.known.lock();
            let is_superseded = known.rules != rules && known.is_followed;
            is_superseded
                .then(|| (known.rules.clone(), Orders { superseded: true, ..known.orders.clone() }))
        };
        if let Some((rules, orders)) = superseded {
            // If the new rules are reverted, the promotion must not come back.
            self.keep(&rules, &orders).await?;
        }
        let (orders, problem) = self.read(&rules).await?;
        let mut known = self.known.lock();
        let had_orders = known.orders.last.is_some() && known.rules == rules;
        if had_orders && orders.last.is_none() && problem.is_none() {
            tracing::warn!(
                "the store has lost the orders about the candidate, which apply no longer"
            );
        }
        (known.rules, known.orders, known.is_known) = (rules, orders, true);
        Ok(problem)
    }

    /// Ends promotions of this candidate for other rules than these, unless a replica follows one still.
    async fn supersede(&self, candidate: &str, rules: &str) -> Result<(), StoreError> {
        let Some(servers) = self.store.servers() else { return Ok(()) };
        let all = |key: &str| vec![cmd("HGETALL").arg(key).take()];
        let answer = servers.run(TAG, ANSWER_WITHIN, Steps::Several, all).await?.pop();
        let all: BTreeMap<String, Vec<u8>> =
            from_redis_value(answer.unwrap_or(Reply::Nil)).unwrap_or_default();
        for (others, text) in all.iter().filter(|(others, _)| *others != rules) {
            let orders: Orders = serde_json::from_slice(text).unwrap_or_default();
            if orders.promoted.as_deref() == Some(candidate) {
                self.keep(others, &Orders { superseded: true, ..orders }).await?;
            }
        }
        Ok(())
    }

    /// What was ordered for this version of the rules, and why that is not known.
    async fn read(&self, rules: &str) -> Result<(Orders, Option<String>), StoreError> {
        let Some(servers) = self.store.servers() else {
            let known = self.known.lock();
            let is_same = known.rules == rules;
            return Ok((if is_same { known.orders.clone() } else { Orders::default() }, None));
        };
        let get = |key: &str| vec![cmd("HGET").arg(key).arg(rules).take()];
        let answer = servers.run(TAG, ANSWER_WITHIN, Steps::Several, get).await?.pop();
        let text: Option<Vec<u8>> =
            from_redis_value(answer.unwrap_or(Reply::Nil)).unwrap_or_default();
        let problem =
            "the orders about the candidate cannot be read; a newer version may have given them";
        Ok(match text.map(|text| serde_json::from_slice(&text)) {
            None => (Orders::default(), None),
            Some(Ok(orders)) => (orders, None),
            Some(Err(_)) => (Orders::default(), Some(problem.to_owned())),
        })
    }

    async fn keep(&self, rules: &str, orders: &Orders) -> Result<(), StoreError> {
        if let (Some(servers), Ok(text)) = (self.store.servers(), serde_json::to_string(orders)) {
            let set = |key: &str| {
                let set = cmd("HSET").arg(key).arg(rules).arg(text).take();
                vec![set, cmd("PEXPIRE").arg(key).arg(KEPT_MS).take()]
            };
            servers.run(TAG, ANSWER_WITHIN, Steps::One, set).await?;
        }
        Ok(())
    }

    /// Puts in force what the orders say, and compares what is not in force. Returns whether other rules are in force.
    /// `problem` is why they may say something else.
    fn apply(&self, now: Timestamp, mut problem: Option<String>) -> bool {
        let (candidate, version) = (self.rules.current(), self.version());
        let (written, current) = (self.in_force.written(), self.in_force.current());
        let mut known = self.known.lock();
        let orders = &known.orders;
        let promoted = orders.promoted.as_ref().filter(|promoted| {
            let follows = current.version.to_string() == **promoted;
            known.rules == written.version.to_string() && (!orders.superseded || follows)
        });
        let put = match promoted {
            Some(promoted) if version.as_ref() == Some(promoted) => Some(candidate),
            Some(promoted) if current.version.to_string() == *promoted => {
                let lost =
                    "is no longer in the files of this replica, which loses it when it restarts";
                problem = Some(format!("the promoted candidate {promoted} {lost}"));
                Some(current)
            }
            Some(promoted) => {
                problem = Some(format!(
                    "the promoted candidate {promoted} is not in the files of this replica"
                ));
                None
            }
            None => None,
        };
        let is_followed = put.is_some();
        let changes = self.in_force.promote(put);
        let in_force = self.in_force.current().version.to_string();
        let last = version.as_ref().and_then(|version| orders.about(version));
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
        (known.is_followed, known.problem) = (is_followed, problem);
        changes
    }

    /// Its state, and what it would change, as the JSON of the admin address.
    pub fn json(&self) -> Value {
        let (version, in_force) = (self.version(), self.in_force.current().version.to_string());
        let known = self.known.lock();
        let last = version.as_ref().and_then(|version| known.orders.about(version));
        let state = match &version {
            None => "absent",
            Some(version) if *version == in_force => "in_force",
            Some(_) if last.is_some_and(|last| last.order == OrderKind::Abort) => "aborted",
            Some(_) => "judged",
        };
        let trial = self.trial.lock();
        let mut rules: BTreeMap<RuleName, [u64; 3]> = BTreeMap::new();
        for domain in self.rules.current().rules.domains() {
            let names = domain
                .rules()
                .into_iter()
                .map(|rule| (Arc::clone(&domain.name), Arc::clone(&rule.path)));
            rules.extend(names.map(|name| (name, [0; 3])));
        }
        rules.extend(trial.counts());
        let mut rules: Vec<_> = rules.into_iter().collect();
        rules.sort_by_key(|(_, [_, denied, admitted])| Reverse(denied + admitted));
        let mut sums = [0; 3];
        for (_, counts) in &rules {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [same, denied, admitted] = sums;
        let rules: Vec<Value> = (rules.into_iter().take(LISTED_MAX))
            .map(|((domain, rule), [same, denied, admitted])| {
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
            "promoted": known.orders.promoted,
            "order": known.orders.last,
            "problem": known.problem,
            "problems": problems,
        })
    }

    /// What an operator should look at, as a sentence.
    pub fn problem(&self) -> Option<String> {
        let refused = self.rules.problems();
        let refused = refused.first().map(|first| format!("the candidate is not loaded: {first}"));
        let problems = [self.known.lock().problem.clone(), refused].into_iter().flatten();
        problems.reduce(|one, other| format!("{one}; {other}"))
    }
}
