//! Counters in Redis, shared by all replicas. Redis's own clock decides which window is the present one.
//!
//! Six rooms, each of which uses only those before it: `wire` (connections, bytes, a server's report of itself),
//! `script` (work as arguments of Lua scripts, and their replies), `transactions` (the same work for a server that runs no
//! scripts), `node` (one server: its state, and the calls that wait for it), `topology` (which server has a counter),
//! `leases` (hits that are charged in advance).

pub mod leases;
pub mod node;
pub mod script;
pub mod topology;
mod transactions;
pub mod wire;

use std::{iter, sync::Arc, time::Duration};

use redis::{Cmd, Value};
use tokio::time::{self, Instant};
use tollkeeper_base::process::calls::client_has_left;
use tollkeeper_engine::{
    key::{self, Counter},
    ledger::{Charge, CounterState, Verdict},
    rule::Lease,
};

use self::{
    leases::{LeaseTerms, Leases},
    node::{
        NodeOptions,
        batcher::SentAs,
        decided::NotDecided,
        owed::Owed,
        pool::{not_permitted, unavailable},
    },
    script::work::NodeWork,
    topology::{
        by_key::{self, Steps},
        directory::Directory,
        discovery::Finder,
        redirect::{decide_alone, redirected},
        resend, route,
    },
    wire::{hash_slot::HashSlot, query_connection::KeptConnection},
};
use super::{
    Clear, StoreError,
    read_turns::{READ_AT_A_TIME, ReadTurns},
    report::ServerReport,
};

/// How often a store is tried that is absent at the start.
const REACH_EVERY: Duration = Duration::from_millis(250);

/// How long what was kept may take to be sent when the service stops.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// How long one that was kept may take to be sent, at most.
const SENT_WITHIN: Duration = Duration::from_secs(1);

/// How long a counter may take to be read, at most.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// The number of keys that a server looks at in one step of a walk: well below a millisecond.
const KEYS_A_STEP: usize = 1000;

/// How often servers are queried for their memory and the number of their clients.
const USAGE_EVERY: Duration = Duration::from_secs(10);

/// Counters in Redis servers. Servers that run scripts decide waiting calls in batches.
#[derive(Debug)]
pub struct RedisStore {
    directory: Arc<Directory>,
    finder: Finder,
    leases: Arc<Leases>,
}

impl RedisStore {
    /// A store on the servers that `finder` finds. It connects when it is first used, and a cluster or Sentinels
    /// must be [followed](Self::follow).
    pub fn new(options: NodeOptions, finder: Finder) -> Self {
        let directory = Directory::new(options);
        if let Finder::Given(server) = &finder {
            drop(directory.node_at(server, None));
        }
        let leases = Self::leases(&directory, LeaseTerms::default());
        Self { directory: Arc::new(directory), finder, leases }
    }

    /// The same store with other terms of leases.
    #[must_use]
    pub fn with_lease_terms(self, terms: LeaseTerms) -> Self {
        Self { leases: Self::leases(&self.directory, terms), ..self }
    }

    fn leases(directory: &Directory, terms: LeaseTerms) -> Arc<Leases> {
        let NodeOptions { clock, metrics, .. } = &directory.options;
        Arc::new(Leases::new(terms, *clock, metrics.clone()))
    }

    /// Decides a call with hits that were charged in advance, if they are enough for all of its charges.
    pub fn spend(&self, charges: &[Charge]) -> Option<Verdict> {
        if !has_lease(charges) {
            return None;
        }
        let given_back = charges.iter().filter(|charge| charge.hits.asks_nothing());
        self.leases.end(&self.directory, given_back.map(|charge| &charge.counter));
        self.leases.spend(&self.directory, charges)
    }

    /// Makes all charges of one call, or none; its caller waits `until` then. A server that runs no scripts
    /// takes only fixed windows.
    pub async fn charge(&self, charges: &[Charge], until: Instant) -> Result<Verdict, StoreError> {
        if charges.is_empty() {
            return Ok(Verdict::default());
        }
        let mut answer = route::charge(&self.directory, charges, until).await;
        if let Ok(verdict) = &mut answer
            && has_lease(charges)
        {
            self.leases.learn(charges, verdict);
        }
        answer
    }

    /// Keeps what counts work that is done, to be sent later.
    pub fn keep(&self, charges: &[Charge]) {
        drop(self.directory.owe(NodeWork::Charges(charges.into())));
    }

    /// Like [`charge`](Self::charge), without the counters of the charges at the indices `absent`: their
    /// `on_store_failure` applies.
    pub async fn charge_without(
        &self,
        charges: &[Charge],
        absent: &[usize],
        until: Instant,
    ) -> Result<Verdict, StoreError> {
        route::charge_without(&self.directory, charges, absent, until).await
    }

    /// The state of one counter; `clear` resets it.
    pub async fn read_counter(
        &self,
        counter: &Counter,
        clear: Clear,
    ) -> Result<CounterState, StoreError> {
        let mut answer = self.read(counter, clear).await;
        if clear.ends_holds() {
            self.leases.end(&self.directory, iter::once(counter));
        } else if let Ok(state) = &mut answer {
            state.credit = self.credit(counter);
        }
        answer
    }

    /// The hits of a counter that were charged in advance, and are not spent.
    pub fn credit(&self, counter: &Counter) -> u64 {
        self.leases.credit(counter)
    }

    async fn read(&self, counter: &Counter, clear: Clear) -> Result<CounterState, StoreError> {
        let work = NodeWork::Read(Box::new(counter.clone()), clear);
        // The script that reads a counter takes declared keys only, which a node of a cluster does not take in batches.
        let is_batched = !clear.ends_holds()
            && self.directory.options.expected.runs_scripts
            && !self.directory.is_cluster();
        let node = self.directory.map().nodes().first().cloned().filter(|_| is_batched);
        let batched = match node {
            Some(node) => {
                let owed = self.directory.owe(work.clone());
                Some(node.batcher.decide(owed, Instant::now() + READ_WITHIN, SentAs::Call).await)
            }
            None => None,
        };
        let decided = match batched {
            Some(Ok(decided)) => decided,
            Some(Err(NotDecided::Failed(error))) => return Err(error),
            _ => decide_alone(&self.directory, HashSlot::of(counter), work).await?,
        };
        decided.state.ok_or_else(|| StoreError::Unavailable("it has read no counter".to_owned()))
    }

    /// Shows the keys of the counters of a domain on all servers, without their prefix, in turns. Returns whether these are
    /// all, or `found` wants no more, `until` has passed, or the client has left.
    pub(crate) async fn keys(
        &self,
        domain_part: &str,
        found: &mut (dyn FnMut(&str) -> bool + Send),
        turns: &ReadTurns,
        until: Instant,
    ) -> Result<bool, StoreError> {
        let prefix = &self.directory.options.key_prefix;
        let pattern = key::pattern_of_domain(prefix, domain_part);
        let map = self.directory.map();
        if map.nodes().is_empty() {
            return Err(self.directory.no_node());
        }
        for node in map.nodes() {
            let mut connection = KeptConnection::new(node.server.clone());
            let mut cursor = 0_u64;
            loop {
                let mut step = redis::cmd("SCAN");
                step.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_A_STEP);
                let query = async {
                    let goes_on = Instant::now() < until && !client_has_left();
                    if goes_on { Some(connection.query(&step, READ_WITHIN).await) } else { None }
                };
                let answer = turns.read(READ_AT_A_TIME, until, query).await.flatten();
                let Some(answer) = answer else { return Ok(false) };
                let (next, keys): (u64, Vec<Vec<u8>>) = answer.map_err(|error| {
                    not_permitted(&error, &node.server).unwrap_or_else(|| unavailable(&error))
                })?;
                let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
                let keys = keys.filter_map(|key| key.strip_prefix(&**prefix));
                let wants_more = keys.fold(true, |_, key| found(key));
                cursor = next;
                if cursor == 0 {
                    break;
                }
                if !wants_more {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Runs commands on the key with this hash tag that replicas share beside counters, and returns their answers. `commands`
    /// makes them from the key.
    ///
    /// # Errors
    /// See [`StoreError`]. The commands may have run, unless it is [`StoreError::NotPermitted`] or [`StoreError::TakesNoWrites`].
    pub async fn run(
        &self,
        hash_tag: &str,
        within: Duration,
        steps: Steps,
        commands: impl FnOnce(&str) -> Vec<Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let key = key::shared_key(hash_tag);
        self.run_beside(hash_tag, within, steps, |prefix| commands(&(prefix.to_owned() + &key)))
            .await
    }

    /// Like [`run`](Self::run), on keys with this hash tag. `commands` makes them from what is before each key.
    pub async fn run_beside(
        &self,
        hash_tag: &str,
        within: Duration,
        steps: Steps,
        commands: impl FnOnce(&str) -> Vec<Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let commands = commands(&self.directory.options.key_prefix);
        let slot = HashSlot::of_tag(hash_tag.as_bytes());
        let running = by_key::run(&self.directory, slot, steps, &commands);
        time::timeout(within, running).await.unwrap_or(Err(StoreError::TimedOut))
    }

    pub fn server_of(&self, counter: &Counter) -> Option<String> {
        self.directory.server_of(counter)
    }

    /// Finds the servers, follows their changes and their usage, and sends what was kept; never ends.
    pub async fn follow(&self) {
        tokio::join!(
            self.finder.follow(&self.directory),
            resend::follow(&self.directory.options.unsent, self),
            self.follow_usage(),
        );
    }

    /// Asks each server whether it takes writes, so that an outage is known without calls, and then how much memory and how
    /// many clients it has; never ends.
    async fn follow_usage(&self) {
        loop {
            time::sleep(USAGE_EVERY).await;
            for node in self.directory.map().nodes() {
                if node.link.state.ask().await {
                    node.link.state.pool.learn_usage().await;
                }
            }
        }
    }

    pub fn reports(&self) -> Vec<ServerReport> {
        self.directory.map().nodes().iter().map(|node| node.report()).collect()
    }

    /// Waits for work that goes on although its callers have gone, for about two seconds, and sends what was kept, for one.
    /// No call may follow.
    pub async fn ended(&self) {
        self.leases.stop();
        self.directory.outliving.close();
        self.directory.outliving.wait().await;
        resend::end(&self.directory.options.unsent, ENDS_WITHIN, self).await;
    }

    /// Whether no server is in an outage.
    pub fn is_up(&self) -> bool {
        self.directory.is_up()
    }

    /// Waits until a server has answered once.
    pub async fn reached(&self) {
        loop {
            for node in self.directory.map().nodes() {
                // Opening the connection goes on.
                let reached = time::timeout(REACH_EVERY, node.link.state.is_reached()).await;
                if reached.unwrap_or(false) {
                    return;
                }
            }
            time::sleep(REACH_EVERY).await;
        }
    }
}

fn has_lease(charges: &[Charge]) -> bool {
    charges.iter().any(|charge| charge.counter.limit.lease == Lease::Auto)
}

impl resend::Resend for RedisStore {
    fn server(&self, work: &NodeWork) -> Option<usize> {
        let node = self.directory.owner(work.slot()?).ok()?;
        Some(Arc::as_ptr(&node).addr())
    }

    async fn send(&self, owed: Owed) -> Result<(), NotDecided> {
        let Some(slot) = owed.work.slot() else {
            owed.settle();
            return Ok(());
        };
        let node = self.directory.owner(slot);
        let node = node.ok().filter(|_| self.directory.options.expected.runs_scripts);
        let answer = match node {
            Some(node) => {
                node.batcher.decide(owed, Instant::now() + SENT_WITHIN, SentAs::Call).await
            }
            None => Err(NotDecided::Elsewhere(None, owed)),
        };
        let decided = match answer {
            Err(NotDecided::Elsewhere(_, owed)) => {
                let until = Instant::now() + SENT_WITHIN;
                Box::pin(redirected(&self.directory, slot, owed, until)).await?
            }
            answer => answer?,
        };
        decided.delivered();
        Ok(())
    }
}
