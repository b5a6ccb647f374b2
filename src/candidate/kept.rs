//! Orders in Redis: a hash, with fields for each version of the rules, so that an order is followed only where the same rules are
//! written, and new rules end it. Without Redis, orders are only in this process.

use std::{collections::BTreeMap, time::Duration};

use redis::{Value as Reply, cmd, from_redis_value};

use super::{
    Candidate,
    order::{Order, OrderKind, Orders},
};
use crate::store::{StoreError, redis::topology::by_key::Steps};

/// The hash tag of the key.
const TAG: &str = "candidate";

/// The parts of [`Orders`], behind the version of the rules in the name of a field.
const LAST: &str = "";
const PROMOTED: &str = "/promoted";
const ENDED: &str = "/ended";
const SUPERSEDED: &str = "/superseded";

const KEPT_MS: u64 = 366 * 86_400_000;

const ANSWER_WITHIN: Duration = Duration::from_secs(1);

impl Candidate {
    /// Marks the promotions in the store that this replica no longer follows.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let left = self.known.lock().left.clone();
        let fields =
            left.iter().map(|(rules, at_ms)| (rules.clone() + SUPERSEDED, at_ms.to_string()));
        self.set(&fields.collect::<Vec<_>>()).await?;
        // In memory, orders are only for the present rules.
        self.known.lock().left.clear();
        Ok(())
    }

    /// Ends promotions of this candidate for other rules than these, unless a replica follows one still.
    pub(super) async fn supersede(&self, candidate: &str, rules: &str) -> Result<(), StoreError> {
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
    pub(super) async fn read(&self, rules: &str) -> Result<(Orders, Option<String>), StoreError> {
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

    /// Writes the last of these orders, and what it changes: nothing that another replica may have changed meanwhile.
    pub(super) async fn keep(&self, rules: &str, orders: &Orders) -> Result<(), StoreError> {
        let Orders { last: Some(last), promoted, ended, .. } = orders else { return Ok(()) };
        let text = serde_json::to_string(last).unwrap_or_default();
        let mut fields = vec![(rules.to_owned() + LAST, text.clone())];
        let ends =
            |order: &&Order| order.candidate == last.candidate && *ended == Some(order.at_ms);
        if last.order == OrderKind::Promote {
            fields.push((rules.to_owned() + PROMOTED, text));
        } else if let Some(order) = promoted.as_ref().filter(ends) {
            fields.push((rules.to_owned() + ENDED, order.at_ms.to_string()));
        }
        self.set(&fields).await
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
}
