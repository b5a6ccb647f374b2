//! Group commit: while a batch is under way, arriving calls queue, and go together in the next one. If none is
//! under way, a call is sent at once. A late batch does not hold up later calls.
//!
//! Each worker has a dispatcher, a task that hands its own worker's calls their answers: to wake many
//! tasks of another thread costs more than to wake one. One of the dispatchers is the leader, and sends.

mod dispatcher;
mod queue;
mod spans;
mod waiting;

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
};

use tokio::{sync::oneshot, time::Instant};

pub(crate) use self::queue::{NotDecided, QueuedCall};
use self::{
    dispatcher::Dispatcher,
    queue::{CallAnswer, SharedQueue},
    waiting::{CallInQueue, WaitsFor},
};
use super::{
    batch::{Runs, ScriptKind},
    link::Link,
    unsent::Unsent,
};
use crate::{
    process::workers,
    store::{
        StoreError,
        redis::script::{Scripts, work::NodeWork},
    },
    telemetry::current,
};

/// Where calls wait for one server.
#[derive(Debug, Clone)]
pub(crate) struct Batcher(Arc<SharedQueue>);

impl Batcher {
    pub(crate) fn new(
        link: Link,
        scripts: Arc<Scripts>,
        unsent: Arc<Unsent>,
        runs: Runs,
        wait_replicas: u32,
    ) -> Self {
        Self(Arc::new(SharedQueue::new(link, scripts, unsent, runs, wait_replicas)))
    }

    /// Makes all charges of one call, or none, or gives hits back. It is sent if it can be answered `until` then, and
    /// this future was not dropped; else what [outlives its caller](NodeWork::outlives_caller) is kept.
    ///
    /// # Errors
    /// See [`NotDecided`]. When the breaker opens, a call that was sent fails at once.
    pub(crate) async fn ask(&self, work: NodeWork, until: Instant) -> CallAnswer {
        self.queue(work, until, false).await
    }

    /// Like [`ask`](Self::ask), for a part of a call or a give-back, whose answer is waited for nevertheless.
    pub(crate) async fn ask_part(&self, work: NodeWork, until: Instant) -> CallAnswer {
        self.queue(work, until, true).await
    }

    async fn queue(&self, work: NodeWork, until: Instant, is_part: bool) -> CallAnswer {
        if let Some(error) = self.0.link.state.breaker.refusal() {
            self.0.keep(work, Instant::now());
            return Err(NotDecided::Failed(error));
        }
        let (answer, answered) = oneshot::channel();
        let queued = self.enqueue(QueuedCall {
            kind: ScriptKind::of(&work),
            work,
            stale: 0,
            redis_now: None,
            since: Instant::now(),
            until,
            is_part,
            mailbox: workers::share(self.0.mailboxes.len()),
            answer,
            span: current().map(CallInQueue::new),
        });
        if queued.is_err() {
            return Err(NotDecided::Elsewhere);
        }
        // Without an answer its batch was not answered in time.
        answered.await.unwrap_or(Err(NotDecided::Failed(StoreError::TimedOut)))
    }

    /// Queues a call, and sees to it that somebody sends it; gives it back if the node has left.
    pub(crate) fn enqueue(&self, mut call: QueuedCall) -> Result<(), QueuedCall> {
        let (index, now) = (call.mailbox, call.since);
        let Some(mailbox) = self.0.mailboxes.get(index) else { return Err(call) };
        let mut queue = self.0.queue.lock();
        if queue.is_closed {
            return Err(call);
        }
        if !mailbox.is_running.swap(true, Ordering::AcqRel) {
            Dispatcher::start(Arc::clone(&self.0), index);
        }
        if let Some(span) = &mut call.span
            && queue.batches > 0
        {
            span.waits_for = WaitsFor::Batch;
        }
        queue.waiting.push_back(call);
        self.0.find_leader(&mut queue, index, now);
        Ok(())
    }

    /// Number of calls that wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.0.queue.lock().waiting.len()
    }

    /// How batches are put into runs.
    pub(crate) fn runs(&self) -> Runs {
        self.0.queue.lock().runs
    }

    /// Changes how batches are put into runs.
    pub(crate) fn set_runs(&self, runs: Runs) {
        self.0.queue.lock().runs = runs;
    }

    /// Takes no more calls, and returns those that have not been sent. Batches that are under way are still
    /// answered.
    pub(crate) fn close(&self) -> Vec<QueuedCall> {
        let mut queue = self.0.queue.lock();
        queue.is_closed = true;
        let waiting = mem::take(&mut queue.waiting);
        drop(queue);
        self.0.wake_all();
        waiting.into()
    }

    /// Waits until everything has ended that was under way when the batcher was closed.
    pub(crate) async fn ended(&self) {
        self.0.dispatchers.close();
        self.0.dispatchers.wait().await;
    }
}
