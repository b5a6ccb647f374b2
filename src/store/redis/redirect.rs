//! Questions that go to a cluster by themselves, and follow its hash slots: to the node that MOVED or ASK names.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#redirection-and-resharding>

use std::{sync::Arc, time::Duration};

use redis::{
    ErrorKind::Server,
    RedisError,
    ServerErrorKind::{Ask, ClusterDown, TryAgain},
};
use tokio::time;

use super::{
    batcher::DEBITS_WAIT,
    hash_slot::HashSlot,
    link::{Decided, Question, Unanswered},
    node::RedisNode,
    script::{KeyDeclaration, ledger::LoneWork},
    server::Address,
    topology::Topology,
    work::NodeWork,
};
use crate::{engine::ledger::Judgement, store::StoreError};

/// How often a question follows a redirection.
const REDIRECTIONS_MAX: usize = 3;

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
            return self.do_alone(slot, work).await;
        }
        let (topology, work) = (Arc::clone(self), work.clone());
        let task = self.outliving.spawn(async move {
            let done = time::timeout(DEBITS_WAIT, topology.do_alone(slot, &work)).await;
            done.unwrap_or(Err(StoreError::TimedOut))
        });
        task.await.unwrap_or(Err(StoreError::TimedOut))
    }

    async fn do_alone(
        &self,
        slot: HashSlot,
        work: &NodeWork,
    ) -> Result<Decided<Judgement>, StoreError> {
        let scripts = &self.options.scripts;
        self.ask(slot, |keys| LoneWork { scripts, work, keys }).await
    }

    /// Asks the node that has this hash slot, as long as the caller waits. `question` is made for
    /// declared or undeclared keys.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn ask<Q: Question>(
        &self,
        slot: HashSlot,
        question: impl Fn(KeyDeclaration) -> Q,
    ) -> Result<Decided<Q::Answer>, StoreError> {
        self.searched().await;
        let mut node = self.owner(slot)?;
        let mut keys = KeyDeclaration::Declared;
        let mut redirections = 0;
        let mut answered: Option<Arc<RedisNode>> = None;
        loop {
            let question = question(keys);
            let decided = match &answered {
                Some(last) if Arc::ptr_eq(last, &node) => node.link.ask_again(&question).await,
                Some(_) | None => node.link.ask(&question).await,
            };
            let error = match decided {
                Ok(decided) => return Ok(decided),
                Err(Unanswered::Elsewhere(error)) => error,
                Err(Unanswered::Failed(error)) => return Err(error),
            };
            answered = Some(Arc::clone(&node));
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
                    (node, keys) = (self.owner(slot)?, KeyDeclaration::Leaving);
                }
                None => {
                    if error.kind() == Server(ClusterDown) {
                        self.is_down();
                    }
                    self.bell.notify_one();
                    time::sleep(WAIT).await;
                    (node, keys) = (self.owner(slot)?, KeyDeclaration::Declared);
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
