//! Group commit: while a batch is under way, arriving calls queue, and go together in the next one. If none is
//! under way, a call is sent at once. A late batch does not hold up later calls.
//!
//! Each worker has a dispatcher, a task that hands its own worker's calls their answers: to wake many
//! tasks of another thread costs more than to wake one. One of the dispatchers is the leader, and sends.

mod dispatcher;
mod queue;

use std::sync::{Arc, atomic::Ordering};

use tokio::{sync::oneshot, time::Instant};

use self::{
    dispatcher::Dispatcher,
    queue::{CallAnswer, QueuedCall, SharedQueue},
};
use super::{batch::ScriptKind, node::RedisNode, script::Scripts};
use crate::{engine::ledger::Charge, store::StoreError, workers};

/// Where calls wait.
#[derive(Debug, Clone)]
pub(super) struct Batcher(Arc<SharedQueue>);

impl Batcher {
    pub(super) fn new(node: RedisNode, scripts: Arc<Scripts>) -> Self {
        Self(Arc::new(SharedQueue::new(node, scripts)))
    }

    /// Makes all charges of one call, or none; there must be at least one. If the future is dropped before the
    /// call is sent, the call is sent only if it has debits or refunds.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn charge(&self, charges: &[Charge]) -> CallAnswer {
        let (answer, answered) = oneshot::channel();
        self.enqueue(QueuedCall {
            charges: charges.into(),
            kind: ScriptKind::of(charges),
            stale: 0,
            redis_now: None,
            since: Instant::now(),
            mailbox: workers::share(self.0.mailboxes.len()),
            answer,
        });
        // Without an answer its batch was not answered in time.
        answered.await.unwrap_or(Err(StoreError::TimedOut))
    }

    /// Queues a call, and sees to it that somebody sends it.
    fn enqueue(&self, call: QueuedCall) {
        let (index, now) = (call.mailbox, call.since);
        let Some(mailbox) = self.0.mailboxes.get(index) else { return };
        if !mailbox.is_running.swap(true, Ordering::AcqRel) {
            Dispatcher::start(Arc::clone(&self.0), index);
        }
        let mut queue = self.0.queue();
        queue.waiting.push_back(call);
        self.0.find_leader(&mut queue, index, now);
    }
}
