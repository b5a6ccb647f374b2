//! Group commit: while a batch is under way, arriving calls queue, and go together in the next one. If none is
//! under way, a call is sent at once. A late batch does not hold up later calls.
//!
//! Each worker has a dispatcher, a task that hands its own worker's calls their answers: to wake many
//! tasks of another thread costs more than to wake one. One of the dispatchers is the leader, and sends.

mod dispatcher;
mod exchange;
mod queue;
mod spans;
mod waiting;

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{select, sync::oneshot, time::Instant};
use tokio_util::task::TaskTracker;

pub(crate) use self::queue::QueuedCall;
use self::{
    dispatcher::Dispatcher,
    queue::{Mailbox, Queue, SentAs, SharedQueue},
    waiting::{CallInQueue, WaitsFor},
};
use super::{
    batch::{Batch, Runs, ScriptKind},
    decided::{CallAnswer, NotDecided},
    link::Link,
    unsent::Unsent,
};
use crate::{
    engine::time::Timestamp,
    process::workers,
    store::{
        StoreError,
        redis::script::{KeyDeclaration, work::NodeWork},
    },
    telemetry::current,
};

/// How long an answer to a call that goes by itself is waited for.
const ALONE_WITHIN: Duration = Duration::from_secs(1);

/// Where calls wait for one server.
#[derive(Debug, Clone)]
pub(crate) struct Batcher(Arc<SharedQueue>);

impl Batcher {
    pub(crate) fn new(
        link: Link,
        unsent: Arc<Unsent>,
        runs: Runs,
        wait_replicas: u32,
        key_prefix: String,
    ) -> Self {
        let mailboxes = (0..=link.state.pool.workers()).map(|_| Mailbox::default()).collect();
        let queue = Mutex::new(Queue {
            waiting: VecDeque::new(),
            leader: None,
            runs,
            batches: 0,
            is_closed: false,
        });
        let dispatchers = TaskTracker::new();
        Self(Arc::new(SharedQueue {
            queue,
            mailboxes,
            link,
            key_prefix,
            unsent,
            dispatchers,
            wait_replicas,
        }))
    }

    /// Makes all charges of one call, or none, or gives hits back. It is sent if it can be answered `until` then, and
    /// this future was not dropped; else what [outlives its caller](NodeWork::outlives_caller) is kept.
    ///
    /// # Errors
    /// See [`NotDecided`]. When the breaker opens, a call that was sent fails at once.
    pub(crate) async fn decide(&self, work: NodeWork, until: Instant) -> CallAnswer {
        self.decide_in_batch(work, until, SentAs::Call).await
    }

    /// Like [`decide`](Self::decide), for a part of a call or a give-back, whose answer the caller still waits for.
    pub(crate) async fn decide_part(&self, work: NodeWork, until: Instant) -> CallAnswer {
        self.decide_in_batch(work, until, SentAs::Part).await
    }

    async fn decide_in_batch(&self, work: NodeWork, until: Instant, sent_as: SentAs) -> CallAnswer {
        if let Some(error) = self.0.link.state.breaker.refusal() {
            self.0.keep(work, Instant::now());
            return Err(NotDecided::Failed(error));
        }
        let script = ScriptKind::of(&work);
        let (call, answered) = self.call(work, script, until, sent_as);
        if self.enqueue(call).is_err() {
            return Err(NotDecided::Elsewhere(None));
        }
        // Without an answer its batch was not answered in time.
        answered.await.unwrap_or(Err(NotDecided::Failed(StoreError::TimedOut)))
    }

    /// Does work by itself, in a batch of one that waits for no other, on keys that are declared like this; with `made`,
    /// only in the windows that hold that time. It is not sent while the breaker is open. Nothing is kept.
    pub(crate) async fn decide_alone(
        &self,
        work: &NodeWork,
        keys: KeyDeclaration,
        made: Option<Timestamp>,
    ) -> CallAnswer {
        let state = &self.0.link.state;
        if let Some(error) = state.breaker.refusal() {
            return Err(NotDecided::NotSent(error));
        }
        let sent_as = if made.is_some() { SentAs::Resent } else { SentAs::Lone };
        let (script, until) = (ScriptKind::of_lone(work), Instant::now() + ALONE_WITHIN);
        let (mut call, mut answered) = self.call(work.clone(), script, until, sent_as);
        call.redis_now = made;
        let mut connection = select! {
            biased;
            opened = self.0.link.connection(self.0.owed_within(sent_as)) => opened,
            error = state.opened() => Err(error),
        }
        .map_err(NotDecided::NotSent)?;
        let mut calls = vec![call];
        let sending = async {
            while !calls.is_empty() {
                let batch = Batch::new(self.runs(), keys, &self.0.key_prefix);
                let (waited, sent) = (Duration::ZERO, mem::take(&mut calls));
                let exchanged = self.0.exchange(&mut connection, batch, sent, waited).await;
                let Some(exchanged) = exchanged else { return };
                for (call, answer) in exchanged.answers {
                    drop(call.answer.send(answer));
                }
                calls = exchanged.again;
            }
        };
        let answer = select! {
            biased;
            answer = &mut answered => answer,
            () = sending => answered.await,
        };
        answer.unwrap_or(Err(NotDecided::Failed(StoreError::TimedOut)))
    }

    fn call(
        &self,
        work: NodeWork,
        script: ScriptKind,
        until: Instant,
        sent_as: SentAs,
    ) -> (QueuedCall, oneshot::Receiver<CallAnswer>) {
        let (answer, answered) = oneshot::channel();
        let call = QueuedCall {
            work,
            kind: script,
            stale: 0,
            redis_now: None,
            since: Instant::now(),
            until,
            sent_as,
            mailbox: workers::share(self.0.mailboxes.len()),
            answer,
            span: current().map(CallInQueue::new),
        };
        (call, answered)
    }

    /// Queues a call, and wakes a dispatcher if none would send it. Returns the call if the node has left.
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
