//! Group commit: while a batch is under way, arriving calls queue, and go together in the next one. If none is
//! under way, a call is sent at once. A late batch does not hold up later calls.
//!
//! Each worker has a dispatcher, a task that hands its own worker's calls their answers: to wake many
//! tasks of another thread costs more than to wake one. One of the dispatchers is the leader, and sends.

mod arrivals;
mod dispatcher;
mod exchange;
mod heavy;
mod queue;
mod spans;
mod waiting;

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use tokio::select;
use tokio_util::task::TaskTracker;
use tollkeeper_base::{process::workers, telemetry::current};

pub(crate) use self::queue::{QueuedCall, SentAs};
use self::{
    heavy::HeavyCalls,
    queue::{Mailbox, Queue, Recipient, SharedQueue},
    waiting::CallInQueue,
};
use super::{
    batch::{Batch, Runs, ScriptKind},
    decided::{CallAnswer, NotDecided},
    link::Link,
    owed::Owed,
};
use crate::{
    StoreError,
    redis::script::KeyDeclaration,
    sync::{Mutex, oneshot, time::Instant},
};

/// How long an answer to a call that goes by itself is waited for.
const ALONE_WITHIN: Duration = Duration::from_secs(1);

/// Where calls wait for one server.
#[derive(Debug, Clone)]
pub(crate) struct Batcher(Arc<SharedQueue>);

impl Batcher {
    pub(crate) fn new(link: Link, runs: Runs, wait_replicas: u32, key_prefix: String) -> Self {
        let mailboxes = (0..=link.state.pool.workers()).map(|_| Mailbox::default()).collect();
        let queue = Mutex::new(Queue {
            waiting: VecDeque::new(),
            waiting_heavy: VecDeque::new(),
            heavy: HeavyCalls::default(),
            leader: None,
            runs,
            batches: 0,
            full_batches: 1,
            is_closed: false,
        });
        let dispatchers = TaskTracker::new();
        Self(Arc::new(SharedQueue {
            queue,
            mailboxes,
            link,
            key_prefix,
            dispatchers,
            wait_replicas,
        }))
    }

    /// Makes all charges of one call, or none, or gives hits back. It is sent if it can be answered `until` then, and
    /// this future was not dropped.
    ///
    /// # Errors
    /// See [`NotDecided`]. When the breaker opens, a call that was sent fails at once; the answer to a part is waited for.
    pub(crate) async fn decide(&self, owed: Owed, until: Instant, sent_as: SentAs) -> CallAnswer {
        if let Some(error) = self.0.link.state.breaker.refusal() {
            return Err(NotDecided::Failed(error));
        }
        let script = ScriptKind::of(&owed.work);
        let (call, answered) = self.call(owed, script, until, sent_as);
        if let Err(call) = self.enqueue(call) {
            return Err(NotDecided::Elsewhere(None, call.owed));
        }
        // Without an answer its batch was not answered in time.
        answered.await.unwrap_or(Err(NotDecided::Failed(StoreError::TimedOut)))
    }

    /// Does work by itself, in a batch of one that waits for no other, on keys that are declared like this. It is not
    /// sent while the breaker is open.
    pub(crate) async fn decide_alone(&self, owed: Owed, keys: KeyDeclaration) -> CallAnswer {
        let state = &self.0.link.state;
        if let Some(error) = state.breaker.refusal() {
            return Err(NotDecided::Failed(error));
        }
        let (script, until) = (ScriptKind::of_lone(&owed.work), Instant::now() + ALONE_WITHIN);
        let (call, mut answered) = self.call(owed, script, until, SentAs::Lone);
        let mut connection = select! {
            biased;
            opened = self.0.link.connection(self.0.owed_within(SentAs::Lone)) => opened,
            error = state.opened() => Err(error),
        }
        .map_err(NotDecided::Failed)?;
        let mut calls = vec![call];
        let sending = async {
            while !calls.is_empty() {
                let batch = Batch::new(self.runs(), keys, &self.0.key_prefix);
                let (waited, sent) = (Duration::ZERO, mem::take(&mut calls));
                let exchanged = self.0.exchange(&mut connection, batch, sent, waited).await;
                let Some(exchanged) = exchanged else { return };
                for (caller, answer) in exchanged.answers {
                    drop(caller.answer.send(answer));
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
        owed: Owed,
        script: ScriptKind,
        until: Instant,
        sent_as: SentAs,
    ) -> (QueuedCall, oneshot::Receiver<CallAnswer>) {
        let (answer, answered) = oneshot::channel();
        let call = QueuedCall {
            kind: script,
            stale: 0,
            redis_now: owed.only_at(),
            owed,
            since: Instant::now(),
            until,
            sent_as,
            caller: Recipient { mailbox: workers::share(self.0.mailboxes.len()), answer },
            span: current().map(CallInQueue::new),
        };
        (call, answered)
    }

    /// Queues a call, and wakes a dispatcher if none would send it. Returns the call if the node has left.
    pub(crate) fn enqueue(&self, call: QueuedCall) -> Result<(), QueuedCall> {
        self.0.enqueue(call)
    }

    /// Number of calls that wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.0.queue.lock().len()
    }

    pub(crate) fn runs(&self) -> Runs {
        self.0.queue.lock().runs
    }

    pub(crate) fn set_runs(&self, runs: Runs) {
        self.0.queue.lock().runs = runs;
    }

    /// Takes no more calls, and returns those that have not been sent. Batches that are under way are still
    /// answered.
    pub(crate) fn close(&self) -> Vec<QueuedCall> {
        self.0.close()
    }

    /// Waits until everything has ended that was under way when the batcher was closed.
    pub(crate) async fn ended(&self) {
        self.0.dispatchers.close();
        self.0.dispatchers.wait().await;
    }
}
