//! How calls come into the queue, until the node leaves.

use std::sync::Arc;

use super::{
    dispatcher::Dispatcher,
    queue::{QueuedCall, SharedQueue},
    waiting::WaitsFor,
};
use crate::sync::atomic::Ordering;

impl SharedQueue {
    /// As [`Batcher::enqueue`](super::Batcher::enqueue).
    pub(super) fn enqueue(self: &Arc<Self>, mut call: QueuedCall) -> Result<(), QueuedCall> {
        let (index, now) = (call.caller.mailbox, call.since);
        let Some(mailbox) = self.mailboxes.get(index) else { return Err(call) };
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Err(call);
        }
        if !mailbox.is_running.swap(true, Ordering::AcqRel) {
            Dispatcher::start(Arc::clone(self), index);
        }
        if let Some(span) = &mut call.span
            && queue.batches > 0
        {
            span.waits_for = WaitsFor::Batch;
        }
        queue.waiting_like(&call).push_back(call);
        self.find_leader(&mut queue, index, now);
        Ok(())
    }

    /// As [`Batcher::close`](super::Batcher::close).
    pub(super) fn close(&self) -> Vec<QueuedCall> {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        let waiting = queue.take_all();
        drop(queue);
        self.wake_all();
        waiting
    }
}
