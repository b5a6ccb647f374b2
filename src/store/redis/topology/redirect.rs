//! Single calls to a cluster, outside of batches, that follow its hash slots: to the node that MOVED or ASK names.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#redirection-and-resharding>

use std::{sync::Arc, time::Duration};

use redis::{
    ErrorKind::Server,
    RedisError,
    ServerErrorKind::{Ask, ClusterDown, TryAgain},
};
use tokio::time::{self, Instant};

use super::directory::Directory;
use crate::{
    engine::time::Timestamp,
    store::StoreError,
    store::redis::{
        node::{
            RedisNode,
            decided::{CallAnswer, Decided, NotDecided},
        },
        script::{KeyDeclaration, work::NodeWork},
        wire::{endpoint::Address, hash_slot::HashSlot},
    },
    telemetry::in_span_of_caller,
};

/// Most redirections that a call follows.
pub(super) const REDIRECTIONS_MAX: usize = 3;

/// How long work may take that goes on although its caller has gone.
const OUTLIVES_BY: Duration = Duration::from_secs(1);

/// How long it is tried, so that its commits can still be kept.
const ENDS_WITHIN: Duration = Duration::from_millis(950);

/// Pause before another attempt while keys are being moved, or the cluster is down.
pub(super) const WAIT: Duration = Duration::from_millis(3);

/// Does work by itself on the node that has its hash slot. What [outlives its
/// caller](NodeWork::outlives_caller) goes on if this future is dropped: its slot may be half moved.
///
/// # Errors
/// See [`StoreError`].
pub(crate) async fn decide_alone(
    directory: &Arc<Directory>,
    slot: HashSlot,
    work: NodeWork,
) -> Result<Decided, StoreError> {
    if !work.outlives_caller() {
        let answer = redirected(directory, slot, &work, None).await;
        return answer.map_err(|not_decided| not_decided.into_store_error(|| directory.no_node()));
    }
    let owned = Arc::clone(directory);
    outlive(directory, Instant::now(), async move {
        let made = owned.now(&work);
        let sending = redirected(&owned, slot, &work, None);
        let answer = time::timeout(ENDS_WITHIN, Box::pin(sending)).await;
        let answer = answer.unwrap_or(Err(NotDecided::Failed(StoreError::TimedOut)));
        match &answer {
            Err(error) if error.was_not_sent() => owned.options.unsent.keep(work, made),
            Err(error) if error.may_pass() => owned.options.unsent.keep_commits(work, made),
            _ => {}
        }
        answer.map_err(|not_decided| not_decided.into_store_error(|| owned.no_node()))
    })
    .await
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

/// Does work by itself on the node that has this hash slot, wherever that is, as long as the caller waits; with
/// `made`, only in the windows that hold that time.
pub(crate) async fn redirected(
    directory: &Directory,
    slot: HashSlot,
    work: &NodeWork,
    made: Option<Timestamp>,
) -> CallAnswer {
    directory.searched().await;
    let mut node = directory.owner(slot).map_err(NotDecided::NotSent)?;
    let mut keys = KeyDeclaration::Declared;
    let mut redirections = 0;
    // The script that reads a counter takes declared keys only.
    let is_reading = matches!(work, NodeWork::Read(..));
    loop {
        let error = match Box::pin(node.batcher.decide_alone(work, keys, made)).await {
            Err(NotDecided::Elsewhere(error)) => error,
            answer => return answer,
        };
        let kind = error.as_ref().map(RedisError::kind);
        let redirected = redirections < REDIRECTIONS_MAX;
        match error.and_then(|error| named(&error, &node)).filter(|_| redirected) {
            Some(address) => {
                redirections += 1;
                node = directory.node_at(&node.server.at(address));
                keys = match kind {
                    Some(Server(Ask)) if keys == KeyDeclaration::Leaving && !is_reading => {
                        KeyDeclaration::ImportingUndeclared
                    }
                    Some(Server(Ask)) => KeyDeclaration::Importing,
                    _ => {
                        directory.move_slot(slot, &node);
                        directory.search_due.notify_one();
                        KeyDeclaration::Declared
                    }
                };
            }
            // Neither has all of the keys: perhaps none of them exists.
            None if kind == Some(Server(TryAgain)) && keys == KeyDeclaration::Importing => {
                node = directory.owner(slot).map_err(NotDecided::NotSent)?;
                keys = KeyDeclaration::Leaving;
            }
            None => {
                if kind == Some(Server(ClusterDown)) {
                    directory.report_down();
                }
                directory.search_due.notify_one();
                time::sleep(WAIT).await;
                node = directory.owner(slot).map_err(NotDecided::NotSent)?;
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
