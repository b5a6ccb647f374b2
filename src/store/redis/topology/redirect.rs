//! Questions that go to a cluster by themselves, and follow its hash slots: to the node that MOVED or ASK names.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#redirection-and-resharding>

use std::{sync::Arc, time::Duration};

use redis::{
    ErrorKind::Server,
    RedisError,
    ServerErrorKind::{Ask, ClusterDown, TryAgain},
};
use tokio::time::{self, Instant};

use super::Topology;
use crate::{
    engine::{ledger::Judgement, time::Timestamp},
    store::{
        StoreError,
        redis::{
            node::{
                RedisNode,
                link::{Decided, Question, Unanswered},
            },
            script::{KeyDeclaration, ledger::LoneWork, work::NodeWork},
            wire::{endpoint::Address, hash_slot::HashSlot},
        },
    },
    telemetry::in_span_of_caller,
};

/// How often a question follows a redirection.
const REDIRECTIONS_MAX: usize = 3;

/// How long work may take that goes on although its caller has gone.
const OUTLIVES_BY: Duration = Duration::from_secs(1);

/// How long a question waits for keys that are being moved, or for a cluster that is down.
const WAIT: Duration = Duration::from_millis(3);

impl Topology {
    /// Does work by itself on the node that has its hash slot. What [outlives its
    /// caller](NodeWork::outlives_caller) goes on if this future is dropped: its slot may be half moved.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn ask_alone(
        self: &Arc<Self>,
        slot: HashSlot,
        work: &NodeWork,
    ) -> Result<Decided<Judgement>, StoreError> {
        if !work.outlives_caller() {
            return Ok(self.do_alone(slot, work, None).await?);
        }
        let (topology, work) = (Arc::clone(self), work.clone());
        self.outlive(Instant::now(), async move {
            let made = topology.now(&work);
            let done = topology.do_alone(slot, &work, None).await;
            if let Err(Unanswered::NotSent(_)) = &done {
                topology.options.unsent.keep(work, made);
            }
            Ok(done?)
        })
        .await
    }

    /// Runs work that goes on if this future is dropped, for a second after `until` at most.
    pub(crate) async fn outlive<T: Send + 'static>(
        &self,
        until: Instant,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let work = time::timeout_at(until + OUTLIVES_BY, in_span_of_caller(work));
        let task = self.outliving.spawn(work);
        task.await.ok().and_then(Result::ok).unwrap_or(Err(StoreError::TimedOut))
    }

    /// Does work that was asked for at `made`, if that is known, by itself on the node that has its hash slot.
    pub(crate) async fn do_alone(
        &self,
        slot: HashSlot,
        work: &NodeWork,
        made: Option<Timestamp>,
    ) -> Result<Decided<Judgement>, Unanswered> {
        let scripts = &self.options.scripts;
        self.ask(slot, made, |keys| LoneWork { scripts, work, keys }).await
    }

    /// Asks the node that has this hash slot, as long as the caller waits. `question` is made for
    /// declared or undeclared keys, at `made` if that is known.
    pub(crate) async fn ask<Q: Question>(
        &self,
        slot: HashSlot,
        made: Option<Timestamp>,
        question: impl Fn(KeyDeclaration) -> Q,
    ) -> Result<Decided<Q::Answer>, Unanswered> {
        self.searched().await;
        let mut node = self.owner(slot).map_err(Unanswered::NotSent)?;
        let mut keys = KeyDeclaration::Declared;
        let mut redirections = 0;
        loop {
            let error = match node.link.ask(&question(keys), made).await {
                Ok(decided) => return Ok(decided),
                Err(Unanswered::Elsewhere(error)) => error,
                Err(unanswered) => return Err(unanswered),
            };
            let redirected = redirections < REDIRECTIONS_MAX;
            match named(&error, &node).filter(|_| redirected) {
                Some(address) => {
                    redirections += 1;
                    node = self.node_at(&node.server.at(address));
                    keys = match error.kind() {
                        Server(Ask) if keys == KeyDeclaration::Leaving => {
                            KeyDeclaration::ImportingUndeclared
                        }
                        Server(Ask) => KeyDeclaration::Importing,
                        _ => {
                            self.move_slot(slot, &node);
                            self.bell.notify_one();
                            KeyDeclaration::Declared
                        }
                    };
                }
                // Neither has all of the keys: perhaps none of them exists.
                None if error.kind() == Server(TryAgain) && keys == KeyDeclaration::Importing => {
                    node = self.owner(slot).map_err(Unanswered::NotSent)?;
                    keys = KeyDeclaration::Leaving;
                }
                None => {
                    if error.kind() == Server(ClusterDown) {
                        self.is_down();
                    }
                    self.bell.notify_one();
                    time::sleep(WAIT).await;
                    node = self.owner(slot).map_err(Unanswered::NotSent)?;
                    keys = KeyDeclaration::Declared;
                }
            }
        }
    }
}

/// The address that a redirection names; a missing host is that of the node that answers.
fn named(error: &RedisError, answering: &Arc<RedisNode>) -> Option<Address> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match (host, &answering.server.address) {
        ("?", _) => None,
        ("", Address::Tcp { host, .. }) => Some(Address::Tcp { host: host.clone(), port }),
        (host, _) => Some(Address::Tcp { host: host.to_owned(), port }),
    }
}
