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

/// The parts of [`Orders`], behind the version of the rules in the name of a field.
const LAST: &str = "";
const PROMOTED: &str = "/promoted";
const ENDED: &str = "/ended";
const SUPERSEDED: &str = "/superseded";

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
        let (is_promotion, ended) = (order.order == OrderKind::Promote, orders.ended);
        let text = serde_json::to_string(&order).unwrap_or_default();
        orders.add(order);
        let mut fields = vec![(rules.clone() + LAST, text.clone())];
        if is_promotion {
            fields.push((rules.clone() + PROMOTED, text));
        }
        if let Some(at_ms) = orders.ended.filter(|_| orders.ended != ended) {
            fields.push((rules.clone() + ENDED, at_ms.to_string()));
        }
        self.set(&fields).await?;
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

    /// Tells the store which promotions this replica has left.
    async fn leave(&self) -> Result<(), StoreError> {
        let left = self.known.lock().left.clone();
        let fields =
            left.iter().map(|(rules, at_ms)| (rules.clone() + SUPERSEDED, at_ms.to_string()));
        self.set(&fields.collect::<Vec<_>>()).await?;
        // In memory, orders are only for the present rules.
        self.known.lock().left.clear();
        Ok(())
    }

    /// Ends promotions of this candidate for other rules than these, unless a replica follows one still.
    async fn supersede(&self, candidate: &str, rules: &str) -> Result<(), StoreError> {
        let Some(servers) = self.store.servers() else { return Ok(()) };
        let all = |key: &str| vec![cmd("HGETALL").arg(key).take()];
        let answer = servers.run(TAG, ANSWER_WITHIN, Steps::Several, all).await?.pop();
        let all: BTreeMap<Vec<u8>, Vec<u8>> =
            from_redis_value(answer.unwrap_or(Reply::Nil)).unwrap_or_default();
        let mut fields = Vec::new();
        for (field, text) in &all {
            let field = String::from_utf8_lossy(field);
            if let Some(others) = field.strip_suffix(PROMOTED).filter(|others| *others != rules)
                && let Ok(order) = serde_json::from_slice::<Order>(text)
                && order.candidate == candidate
            {
                fields.push((others.to_owned() + SUPERSEDED, order.at_ms.to_string()));
            }
        }
        self.set(&fields).await
    }

    /// What was ordered for this version of the rules, and why that is not known.
    async fn read(&self, rules: &str) -> Result<(Orders, Option<String>), StoreError> {
        let Some(servers) = self.store.servers() else {
            let known = self.known.lock();
            let is_same = known.rules == rules;
            return Ok((if is_same { known.orders.clone() } else { Orders::default() }, None));
        };
        let get = |key: &str| {
            let fields = [LAST, PROMOTED, ENDED, SUPERSEDED];
            fields.map(|part| cmd("HGET").arg(key).arg(rules.to_owned() + part).take()).to_vec()
        };
        let answers = servers.run(TAG, ANSWER_WITHIN, Steps::Several, get).await?;
        let texts: Option<[Option<Vec<u8>>; 4]> = from_redis_value(Reply::Array(answers)).ok();
        let problem =
            "the orders about the candidate cannot be read; a newer version may have given them";
        let orders = texts.and_then(|[last, promoted, ended, superseded]| {
            let order = |text: Option<Vec<u8>>| {
                text.map(|text| serde_json::from_slice::<Order>(&text)).transpose().ok()
            };
            let time = |text: Option<Vec<u8>>| {
                text.map(|text| serde_json::from_slice::<u64>(&text)).transpose().ok()
            };
            Some(Orders {
                last: order(last)?,
                promoted: order(promoted)?,
                ended: time(ended)?,
                superseded: time(superseded)?,
            })
        });
        Ok(match orders {
            Some(orders) => (orders, None),
            None => (Orders::default(), Some(problem.to_owned())),
        })
    }

    async fn set(&self, fields: &[(String, String)]) -> Result<(), StoreError> {
        let Some(servers) = self.store.servers().filter(|_| !fields.is_empty()) else {
            return Ok(());
        };
        let set = |key: &str| {
            let set = cmd("HSET").arg(key).arg(fields).take();
            vec![set, cmd("PEXPIRE").arg(key).arg(KEPT_MS).take()]
        };
        servers.run(TAG, ANSWER_WITHIN, Steps::One, set).await.map(drop)
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
            "promoted": known.orders.promotion(),
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
