//! The queue of calls, which of the dispatchers leads, and where answers are put for the others.

use std::{collections::VecDeque, mem, time::Duration};

use tokio_util::task::TaskTracker;
use tollkeeper_engine::time::Timestamp;

use super::{
    heavy::HeavyCalls,
    waiting::{CallInQueue, WaitsFor},
};
use crate::{
    redis::node::{
        batch::{Runs, ScriptKind, WEIGHT_MAX},
        decided::{CallAnswer, NotDecided},
        link::Link,
        owed::Owed,
    },
    sync::{
        Mutex, Notify,
        atomic::{AtomicBool, Ordering},
        oneshot,
        time::Instant,
    },
};

/// A batch is late after the timeout divided by this.
pub(super) const LATE_DIVISOR: u32 = 8;

#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) queue: Mutex<Queue>,
    /// One for each dispatcher. The first is for threads that are not workers.
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) link: Link,
    pub(super) key_prefix: String,
    pub(super) dispatchers: TaskTracker,
    /// Number of replicas that each charge is waited for on; 0 if on none.
    pub(super) wait_replicas: u32,
}

#[derive(Debug)]
pub(super) struct Queue {
    /// The calls that fit into a batch with others.
    pub(super) waiting: VecDeque<QueuedCall>,
    /// Those that are heavier than a batch.
    pub(super) waiting_heavy: VecDeque<QueuedCall>,
    pub(super) heavy: HeavyCalls,
    /// The dispatcher that sends the next batch. It leads until no call waits.
    pub(super) leader: Option<Leader>,
    /// How the next batch is put into runs.
    pub(super) runs: Runs,
    pub(super) batches: usize,
    /// How many full batches the last one weighs: more than 1 if it was one call that is heavier.
    pub(super) full_batches: u32,
    /// Whether the node has left: no call is taken any more.
    pub(super) is_closed: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Leader {
    pub(super) mailbox: usize,
    /// If it has sent nothing by then, its thread is considered blocked, and another may take over.
    pub(super) due: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// That there is something to do: to lead, to watch the leader, or to hand out answers.
    pub(super) notify: Notify,
    pub(super) answers: Mutex<Vec<(oneshot::Sender<CallAnswer>, CallAnswer)>>,
    pub(super) is_running: AtomicBool,
    /// Whether its dispatcher waits for a connection.
    pub(super) is_connecting: AtomicBool,
    /// Whether its dispatcher looks after the leader, for calls of its own worker.
    pub(super) is_watching: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct QueuedCall {
    pub(crate) owed: Owed,
    pub(super) kind: ScriptKind,
    /// How many times its window was not the present one.
    pub(super) stale: u8,
    /// The time whose windows it is for: what Redis showed in its last answer, or when it was first to be sent.
    pub(super) redis_now: Option<Timestamp>,
    pub(super) since: Instant,
    /// When its caller gives up.
    pub(super) until: Instant,
    pub(super) sent_as: SentAs,
    pub(crate) caller: Recipient,
    /// Its span, if it is sampled.
    pub(super) span: Option<CallInQueue>,
}

/// Who waits for the answer to a call.
#[derive(Debug)]
pub(crate) struct Recipient {
    pub(crate) mailbox: usize,
    pub(crate) answer: oneshot::Sender<CallAnswer>,
}

/// How a call goes to its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SentAs {
    /// In a batch.
    Call,
    /// In a batch: a part of a call, or a give-back. Its answer is of use after its caller has gone: it shows what is to be
    /// given back.
    Part,
    /// By itself.
    Lone,
}

impl QueuedCall {
    /// Whether its caller can still use an answer, which takes this time.
    pub(super) fn is_awaited(&self, now: Instant, answer: Duration) -> bool {
        !self.caller.answer.is_closed() && now + answer <= self.until
    }

    pub(super) fn weight(&self, runs: Runs) -> usize {
        self.kind.weight(&self.owed.work, runs)
    }

    /// Notes why it is sent again.
    pub(super) fn waits_for(&mut self, reason: WaitsFor) {
        if let Some(span) = &mut self.span {
            span.waits_for = reason;
        }
    }
}

impl SharedQueue {
    /// Queues calls that are sent once more, in front and in their order.
    pub(super) fn enqueue_again(&self, calls: Vec<QueuedCall>, mailbox: usize) {
        if calls.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.is_closed {
            drop(queue);
            for QueuedCall { caller, owed, .. } in calls {
                drop(caller.answer.send(Err(NotDecided::Elsewhere(None, owed))));
            }
            return;
        }
        for call in calls.into_iter().rev() {
            queue.waiting_like(&call).push_front(call);
        }
        self.find_leader(&mut queue, mailbox, Instant::now());
    }

    /// Makes this dispatcher the leader if there is none, or if the leader's thread is blocked; else it
    /// watches the leader.
    pub(super) fn find_leader(&self, queue: &mut Queue, index: usize, now: Instant) {
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

    /// Wakes every dispatcher, so that it sees that the node has left.
    pub(super) fn wake_all(&self) {
        for mailbox in &self.mailboxes {
            mailbox.notify.notify_one();
        }
    }

    /// Notes that the next heavy call may go: one that weighs as much as these full batches was answered in this time, or is
    /// not waited for any longer.
    pub(super) fn heavy_ended(&self, own: usize, full_batches: u32, answered_in: Option<Duration>) {
        let (mut queue, now) = (self.queue.lock(), Instant::now());
        queue.heavy.ended(full_batches, answered_in, now);
        if queue.heavy_is_next(now).is_some() {
            self.find_leader(&mut queue, own, now);
        }
    }

    /// How long a heavy call keeps others of its kind waiting.
    pub(super) fn heavy_within(&self) -> Duration {
        2 * self.link.state.pool.timeout()
    }

    /// Notes that a batch is no longer under way.
    pub(super) fn batch_ended(&self) {
        let mut queue = self.queue.lock();
        queue.batches -= 1;
        let is_over = queue.is_over();
        drop(queue);
        if is_over {
            self.wake_all();
        }
    }

    /// How long a batch may take before it is late.
    pub(super) fn late_after(&self) -> Duration {
        self.link.state.pool.timeout() / LATE_DIVISOR
    }
}

impl Queue {
    /// Where calls wait that are as heavy as this one.
    pub(super) fn waiting_like(&mut self, call: &QueuedCall) -> &mut VecDeque<QueuedCall> {
        match call.weight(self.runs) {
            ..=WEIGHT_MAX => &mut self.waiting,
            _ => &mut self.waiting_heavy,
        }
    }

    /// Whether a heavy call goes next, rather than lighter ones; `None` if no call may go.
    pub(super) fn heavy_is_next(&self, now: Instant) -> Option<bool> {
        let heavy = self.waiting_heavy.front().filter(|_| !self.heavy.is_under_way(now));
        match (self.waiting.front(), heavy) {
            (None, None) => None,
            (Some(light), Some(heavy)) => {
                Some(self.full_batches <= 1 && heavy.since <= light.since)
            }
            (light, _) => Some(light.is_none()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.waiting_heavy.len()
    }

    pub(super) fn take_all(&mut self) -> Vec<QueuedCall> {
        let heavy = mem::take(&mut self.waiting_heavy);
        mem::take(&mut self.waiting).into_iter().chain(heavy).collect()
    }

    /// Whether the node has left, and every batch is answered.
    pub(super) const fn is_over(&self) -> bool {
        self.is_closed && self.batches == 0
    }

    pub(super) fn is_led_by(&self, mailbox: usize) -> bool {
        self.leader.is_some_and(|leader| leader.mailbox == mailbox)
    }
}
