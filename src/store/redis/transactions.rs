//! Counters in a Redis that runs no scripts: fixed windows, by INCRBY and TIME in one MULTI.
//!
//! The charge is made first, and what the answers show to be too much is given back before the call
//! is answered. So a call may be denied too early for an instant; single hits on one counter are
//! exact. A call with refunds reads under WATCH instead, and starts again if a counter has changed.

mod call;
mod exchange;

use std::sync::Arc;

use redis::RedisResult;
use tokio::time::Instant;

use self::{
    call::TransactionCall,
    exchange::{account, count, exchange, transaction},
};
use super::{
    node::{
        NodeOptions, RedisNode,
        link::{Question, Unanswered},
        unsent::Resend,
    },
    script::{RedisOutcome, Reply, work::NodeWork},
    topology::{
        Topology,
        discovery::{Finder, Servers},
    },
    wire::connection::Connection,
};
use crate::{
    engine::{
        key,
        ledger::{Charge, CounterState, Judgement},
        time::Timestamp,
    },
    store::{Clear, StoreError, metrics::StoreMetrics, report::ServerReport},
};

/// Counters in a Redis that runs no scripts.
#[derive(Debug)]
pub struct TransactionStore {
    servers: Servers,
}

impl TransactionStore {
    /// A store on the server that `finder` finds. It connects when it is first asked, and Sentinels must be
    /// [followed](Self::follow_servers).
    pub fn new(options: NodeOptions, finder: Finder) -> Self {
        Self { servers: Servers::new(options, finder) }
    }

    /// Makes all charges of one call, or none. All must be on fixed windows.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge(&self, charges: &[Charge]) -> Result<Judgement, StoreError> {
        if charges.is_empty() {
            return Ok(Judgement::default());
        }
        let (topology, work) =
            (Arc::clone(&self.servers.topology), NodeWork::Charges(charges.into()));
        if !work.outlives_caller() {
            return Ok(charge(&topology, &work, None).await?);
        }
        let outliving = Arc::clone(&topology);
        outliving
            .outlive(Instant::now(), async move {
                let made = topology.now(&work);
                let charged = charge(&topology, &work, None).await;
                if let Err(Unanswered::NotSent(_)) = &charged {
                    topology.options.unsent.keep(work, made);
                }
                Ok(charged?)
            })
            .await
    }

    /// The state of one counter; `clear` resets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn look(
        &self,
        counter: &key::Counter,
        clear: Clear,
    ) -> Result<CounterState, StoreError> {
        let look = TransactionLook { counter, clear, key_prefix: self.key_prefix() };
        Ok(node(&self.servers.topology).await?.link.ask(&look, None).await?.answer)
    }

    /// The server that has a counter, in words, as far as is known.
    pub fn server_of(&self, counter: &key::Counter) -> Option<String> {
        self.servers.topology.server_of(counter)
    }

    /// Asks the server, again and again, how much memory and how many clients it has; never ends.
    pub async fn follow_usage(&self) {
        self.servers.follow_usage().await;
    }

    /// What is known of the server.
    pub fn servers(&self) -> Vec<ServerReport> {
        self.servers.reports()
    }

    /// Finds the server, and follows its changes; never ends.
    pub async fn follow_servers(&self) {
        let unsent = &self.servers.topology.options.unsent;
        tokio::join!(self.servers.follow(), unsent.follow(self));
    }

    /// Waits for work that goes on although its callers have gone, at most two seconds. None may follow.
    pub async fn ended(&self) {
        self.servers.ended(self).await;
    }

    /// Whether no server is in an outage, as far as is known.
    pub fn is_up(&self) -> bool {
        self.servers.topology.is_up()
    }

    /// Waits until the server has answered once.
    pub async fn reached(&self) {
        self.servers.reached().await;
    }

    fn key_prefix(&self) -> &str {
        &self.servers.topology.options.scripts.key_prefix
    }
}

impl Resend for TransactionStore {
    async fn send(&self, work: &NodeWork, made: Timestamp) -> Result<(), Unanswered> {
        charge(&self.servers.topology, work, Some(made)).await.map(drop)
    }
}

/// Makes the charges of one call, or none, in the windows that hold `made` if that is known.
async fn charge(
    topology: &Topology,
    work: &NodeWork,
    made: Option<Timestamp>,
) -> Result<Judgement, Unanswered> {
    let NodeWork::Charges(charges) = work else { return Ok(Judgement::default()) };
    let node = node(topology).await.map_err(Unanswered::NotSent)?;
    let question = TransactionCharge { charges, key_prefix: &topology.options.scripts.key_prefix };
    let judgement = Box::pin(node.link.ask(&question, made)).await?.answer;
    node.link.acknowledge(&judgement);
    Ok(judgement)
}

async fn node(topology: &Topology) -> Result<Arc<RedisNode>, StoreError> {
    topology.searched().await;
    topology.map().nodes().first().cloned().ok_or_else(|| topology.no_node())
}

struct TransactionCharge<'call> {
    charges: &'call [Charge],
    key_prefix: &'call str,
}

impl Question for TransactionCharge<'_> {
    type Answer = Judgement;

    async fn ask(
        &self,
        connection: &mut Connection,
        assumed_now: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply> {
        TransactionCall::new(self.charges, self.key_prefix, assumed_now)
            .run(connection, metrics)
            .await
    }
}

struct TransactionLook<'look> {
    counter: &'look key::Counter,
    clear: Clear,
    key_prefix: &'look str,
}

impl Question for TransactionLook<'_> {
    type Answer = CounterState;

    /// A counter that is cleared is read and deleted at once.
    async fn ask(
        &self,
        connection: &mut Connection,
        assumed_now: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply<CounterState>> {
        let limit = &self.counter.limit;
        let assumed = limit.window.at(assumed_now);
        let key = self.key_prefix.to_owned() + &self.counter.key(assumed.start);
        let mut look = match self.clear {
            // Without memory a server refuses every command inside of a transaction.
            Clear::No => redis::pipe(),
            Clear::Yes => transaction(),
        };
        look.ignore_errors();
        look.cmd("GET").arg(&key);
        if self.clear == Clear::Yes {
            look.cmd("DEL").arg(&key).ignore();
        }
        look.cmd("TIME");
        let (now, answers) = exchange("MULTI", &look, connection, metrics).await?;
        let terms = limit.terms(now);
        let outcome = match answers.first().and_then(count) {
            _ if terms.span != assumed => RedisOutcome::Stale,
            Some(count) => RedisOutcome::Decided(CounterState::of(&account(count), &terms)),
            None => RedisOutcome::Corrupt(vec![0]),
        };
        Ok(Reply { now, outcome })
    }
}
