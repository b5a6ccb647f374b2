//! Group commit: calls that arrive while Redis is asked wait, and go together in the next batch. A call
//! that finds nothing under way is sent at once, and none waits behind a late answer.
//!
//! Each worker has a dispatcher, a task that hands its own worker's calls their answers: to wake many
//! tasks of another thread costs more than to wake one. One of the dispatchers is the leader, and sends.

mod dispatcher;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use self::dispatcher::Dispatcher;
use super::{batch::ScriptKind, node::Node, script::Scripts};
use crate::{
    engine::{
        ledger::{Charge, Judgement},
        time::Timestamp,
    },
    store::StoreError,
    workers,
};

/// A batch that takes longer than this part of the timeout is late.
const LATE_PART: u32 = 8;

/// How long a charge that stands in any case may wait, though its caller has gone.
const DEBITS_WAIT: Duration = Duration::from_secs(1);

/// Where calls wait.
#[derive(Debug, Clone)]
pub(super) struct Batcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// One for each dispatcher. The first is for threads that are no workers.
    mailboxes: Vec<Mailbox>,
    node: Node,
    scripts: Arc<Scripts>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Call>,
    /// Debits and refunds whose callers have gone; they are sent where there is room.
    late: VecDeque<Call>,
    /// The dispatcher that sends the next batch. It leads until no call waits.
    leader: Option<Leader>,
}

#[derive(Debug, Clone, Copy)]
struct Leader {
    mailbox: usize,
    /// If it has sent nothing until then, its thread is blocked, and another may take over.
    due: Instant,
}

/// What reaches one dispatcher.
#[derive(Debug, Default)]
struct Mailbox {
    /// That there is something to do: to lead, to watch the leader, or to hand out answers.
    notify: Notify,
    answers: Mutex<Vec<(oneshot::Sender<Answer>, Answer)>>,
    is_running: AtomicBool,
    /// Whether its dispatcher looks after the leader, for calls of its own worker.
    is_watching: AtomicBool,
}

type Answer = Result<Judgement, StoreError>;

#[derive(Debug)]
struct Call {
    charges: Arc<[Charge]>,
    kind: ScriptKind,
    /// How often its window was not the present one, and the time that Redis showed last.
    stale: u8,
    told: Option<Timestamp>,
    since: Instant,
    mailbox: usize,
    answer: oneshot::Sender<Answer>,
}

impl Call {
    /// Whether its caller can still use an answer.
    fn is_awaited(&self, now: Instant, waits_at_most: Duration) -> bool {
        !self.answer.is_closed() && now.duration_since(self.since) <= waits_at_most
    }

    /// Whether it is to be charged without a caller: its charges count work that is done.
    fn is_late_debit(&self, now: Instant) -> bool {
        now.duration_since(self.since) <= DEBITS_WAIT
            && self.charges.iter().any(Charge::applies_when_denied)
    }
}

impl Batcher {
    pub(super) fn new(node: Node, scripts: Arc<Scripts>) -> Self {
        let mailboxes = (0..=node.pool.workers()).map(|_| Mailbox::default()).collect();
        Self(Arc::new(Shared { queue: Mutex::default(), mailboxes, node, scripts }))
    }

    /// Makes all charges of one call, at least one, or none. If the future is dropped before the call is
    /// sent, only a call with debits or refunds is sent all the same.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) async fn charge(&self, charges: &[Charge]) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.0.enqueue(Call {
            charges: charges.into(),
            kind: ScriptKind::of(charges),
            stale: 0,
            told: None,
            since: Instant::now(),
            mailbox: workers::share(self.0.mailboxes.len()),
            answer,
        });
        // Without an answer its batch was not answered in time.
        answered.await.unwrap_or(Err(StoreError::TimedOut))
    }
}

impl Shared {
    /// Queues a call, and sees to it that somebody sends it.
    fn enqueue(self: &Arc<Self>, call: Call) {
        let (index, now) = (call.mailbox, call.since);
        let Some(mailbox) = self.mailboxes.get(index) else { return };
        if !mailbox.is_running.swap(true, Ordering::AcqRel) {
            Dispatcher::start(Arc::clone(self), index);
        }
        let mut queue = self.queue();
        queue.waiting.push_back(call);
        self.find_leader(&mut queue, index, now);
    }

    /// Queues calls that are asked for once more, in front and in their order.
    fn enqueue_again(&self, calls: Vec<Call>, mailbox: usize) {
        if calls.is_empty() {
            return;
        }
        let mut queue = self.queue();
        for call in calls.into_iter().rev() {
            queue.waiting.push_front(call);
        }
        self.find_leader(&mut queue, mailbox, Instant::now());
    }

    /// Makes this dispatcher the leader if there is none, or if the leader's thread is blocked; else it
    /// watches the leader.
    fn find_leader(&self, queue: &mut Queue, index: usize, now: Instant) {
        let Some(mailbox) = self.mailboxes.get(index) else { return };
        match queue.leader {
            Some(leader) if leader.mailbox == index => {}
            Some(leader) if now <= leader.due => {
                if !mailbox.is_watching.swap(true, Ordering::AcqRel) {
                    mailbox.notify.notify_one();
                }
            }
            None | Some(_) => {
                queue.leader = Some(Leader { mailbox: index, due: now + 2 * self.late_after() });
                mailbox.notify.notify_one();
            }
        }
    }

    /// How long a batch may take before it is late.
    fn late_after(&self) -> Duration {
        self.node.pool.timeout() / LATE_PART
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held, and if it did, the queue would still be whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    fn answers(&self) -> MutexGuard<'_, Vec<(oneshot::Sender<Answer>, Answer)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
