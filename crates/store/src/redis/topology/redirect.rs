//! Single calls to a cluster, outside of batches, that follow its hash slots: to the node that MOVED or ASK names.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#redirection-and-resharding>

use std::{sync::Arc, time::Duration};

use redis::{
    ErrorKind::Server,
    RedisError,
    ServerErrorKind::{Ask, ClusterDown, TryAgain},
};
use tokio::time::{self, Instant};
use tollkeeper_base::telemetry::in_span_of_caller;

use super::directory::Directory;
use crate::{
    StoreError,
    redis::{
        node::{
            RedisNode,
            decided::{CallAnswer, Decided, NotDecided},
            owed::Owed,
        },
        script::{KeyDeclaration, work::NodeWork},
        wire::{endpoint::Address, hash_slot::HashSlot},
    },
};

pub(super) const REDIRECTIONS_MAX: usize = 3;

/// How long work begins attempts that goes on although its caller has gone, and how long the last one may then take.
const OUTLIVES_BY: Duration = Duration::from_secs(1);

/// Pause before another attempt while keys are being moved, or the cluster is down.
pub(super) const WAIT: Duration = Duration::from_millis(3);

/// Does work by itself on the node that has its hash slot. What [outlives its
/// caller](NodeWork::outlives_caller) goes on if this future is dropped: its slot may be half moved.
pub(crate) async fn decide_alone(
    directory: &Arc<Directory>,
    slot: HashSlot,
    work: NodeWork,
) -> Result<Decided, StoreError> {
    let outlives_caller = work.outlives_caller();
    let count = u32::try_from(work.len()).unwrap_or(u32::MAX);
    let (owed, owned) = (directory.owe(work), Arc::clone(directory));
    let until = Instant::now() + OUTLIVES_BY;
    let permit = || Arc::clone(&directory.outliving_charges).try_acquire_many_owned(count);
    let permit = outlives_caller.then(permit).transpose().map_err(|_| {
        StoreError::Unavailable("too many calls go on without their callers".to_owned())
    })?;
    let deciding = async move {
        let _permit = permit;
        let answer = redirected(&owned, slot, owed, until).await;
        answer.map_err(|not_decided| not_decided.into_store_error(|| owned.no_node()))
    };
    match outlives_caller {
        true => outlive(directory, until, Box::pin(deciding)).await,
        false => deciding.await,
    }
}

/// Runs work that goes on if this future is dropped, for a second after `until` at most.
pub(crate) async fn outlive<T: Send + 'static>(
    directory: &Arc<Directory>,
    until: Instant,
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let work = time::timeout_at(until + OUTLIVES_BY, in_span_of_caller(work));
    let task = directory.outliving.spawn(work);
    task.await.ok().and_then(Result::ok).unwrap_or(Err(StoreError::TimedOut))
}

/// Does work by itself on the node that has this hash slot, wherever that is, as long as the caller waits. No attempt begins
/// after `until`, so that what has not run is known not to have: one that is given up under way may have.
pub(crate) async fn redirected(
    directory: &Directory,
    slot: HashSlot,
    mut owed: Owed,
    until: Instant,
) -> CallAnswer {
    directory.searched().await;
    let mut node = directory.owner(slot).map_err(NotDecided::Failed)?;
    let mut keys = KeyDeclaration::Declared;
    let mut redirections = 0;
    // The script that reads a counter takes declared keys only.
    let is_reading = matches!(owed.work, NodeWork::Read(..));
    loop {
        let error = match Box::pin(node.batcher.decide_alone(owed, keys)).await {
            Err(NotDecided::Elsewhere(error, back)) => {
                owed = back;
                error
            }
            answer => return answer,
        };
        if Instant::now() >= until {
            return Err(NotDecided::Failed(StoreError::TimedOut));
        }
        let kind = error.as_ref().map(RedisError::kind);
        let redirected = redirections < REDIRECTIONS_MAX;
        match error.and_then(|error| named(&error, &node)).filter(|_| redirected) {
            Some(address) => {
                redirections += 1;
                let moved = (kind != Some(Server(Ask))).then_some(slot);
                node = directory.node_at(&node.server.at(address), moved);
                keys = match kind {
                    Some(Server(Ask)) if keys == KeyDeclaration::Leaving && !is_reading => {
                        KeyDeclaration::ImportingUndeclared
                    }
                    Some(Server(Ask)) => KeyDeclaration::Importing,
                    _ => {
                        directory.search_due.notify_one();
                        KeyDeclaration::Declared
                    }
                };
            }
            // Neither has all of the keys: perhaps none of them exists.
            None if kind == Some(Server(TryAgain)) && keys == KeyDeclaration::Importing => {
                node = directory.owner(slot).map_err(NotDecided::Failed)?;
                keys = KeyDeclaration::Leaving;
            }
            None => {
                if kind == Some(Server(ClusterDown)) {
                    directory.report_down();
                }
                directory.search_due.notify_one();
                time::sleep(WAIT).await;
                node = directory.owner(slot).map_err(NotDecided::Failed)?;
                keys = KeyDeclaration::Declared;
            }
        }
    }
}

/// The address that a redirection names; a missing host is the host of the node that answers.
pub(super) fn named(error: &RedisError, answering: &Arc<RedisNode>) -> Option<Address> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match (host, &answering.server.address) {
        ("?", _) => None,
        ("", Address::Tcp { host, .. }) => Some(Address::Tcp { host: host.clone(), port }),
        (host, _) => Some(Address::Tcp { host: host.to_owned(), port }),
    }
}
