//! Sends the waiting calls in batches, and hands out the answers.

use std::{mem, pin::pin, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::select;

use super::{
    exchange::Exchanged,
    queue::{LATE_DIVISOR, Leader, Mailbox, Queue, QueuedCall, Recipient, SentAs, SharedQueue},
};
use crate::{
    StoreError, lateness,
    redis::node::{
        batch::{Batch, WEIGHT_MAX},
        decided::{CallAnswer, NotDecided},
        pool::Connected,
    },
    sync::{
        atomic::Ordering,
        spawn, task,
        time::{self, Instant},
    },
};

/// How long charges may take to reach replicas, in milliseconds, before they are counted as missing there.
const WAIT_MS: u64 = 5;

/// The dispatcher of one worker. It lives as long as the worker's runtime, unless the node leaves.
pub(super) struct Dispatcher {
    shared: Arc<SharedQueue>,
    index: usize,
    round_trip: Duration,
}

/// Runs when the worker's runtime ends: gives up the lead, and discards answers that were not delivered. A later
/// call for this mailbox starts another dispatcher.
impl Drop for Dispatcher {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        if queue.is_led_by(self.index) {
            queue.leader = None;
        }
        if let Some(mailbox) = self.shared.mailboxes.get(self.index) {
            mailbox.is_running.store(false, Ordering::Release);
            mailbox.is_watching.store(false, Ordering::Release);
            mailbox.answers.lock().clear();
        }
    }
}

impl Dispatcher {
    pub(super) fn start(shared: Arc<SharedQueue>, index: usize) {
        let dispatchers = shared.dispatchers.clone();
        let dispatcher = Self { shared, index, round_trip: Duration::ZERO };
        spawn(&dispatchers, dispatcher.run());
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(mailbox) = shared.mailboxes.get(self.index) else { return };
        let (mut batches, mut replicas) = (FuturesUnordered::new(), FuturesUnordered::new());
        // To set a timer again costs next to nothing, and a new one a system call.
        let mut late = pin!(time::sleep(Duration::ZERO));
        let mut watch = pin!(time::sleep(Duration::ZERO));
        // The number of the last batch, and whether it is under way and not late.
        let (mut last, mut sent, mut is_under_way) = (0_u64, Instant::now(), false);
        let mut is_watching = false;
        loop {
            select! {
                biased;
                Some(SentBatch { number, took, acknowledged }) = batches.next() => {
                    self.round_trip = took.unwrap_or(self.round_trip);
                    is_under_way &= number != last;
                    replicas.extend(acknowledged.map(|charges| shared.wait_for_replicas(charges)));
                }
                Some(()) = replicas.next() => {}
                () = mailbox.notify.notified() => self.deliver(mailbox),
                () = late.as_mut(), if is_under_way => {
                    lateness::starved(late.deadline().elapsed(), &shared.link.metrics);
                    let due = sent + shared.late_after() * shared.queue.lock().full_batches;
                    if mailbox.is_connecting.load(Ordering::Relaxed) {
                        shared.refuse_waiting(self.index);
                        late.as_mut().reset(Instant::now() + shared.late_after());
                    } else if Instant::now() < due {
                        late.as_mut().reset(due);
                    } else {
                        // Calls that wait go out on another connection, and not after this answer.
                        is_under_way = false;
                    }
                }
                () = watch.as_mut(), if is_watching => is_watching = false,
            }
            if shared.queue.lock().is_over() {
                self.deliver(mailbox);
                return;
            }
            if !is_watching && let Some(due) = self.watch_until(mailbox) {
                watch.as_mut().reset(due);
                is_watching = true;
            }
            if !is_under_way && self.gather().await {
                last += 1;
                sent = Instant::now();
                batches.push(shared.send(self.index, last, self.round_trip));
                late.as_mut().reset(sent + shared.late_after());
                is_under_way = true;
            }
        }
    }

    /// Hands its worker's calls the answers that others have received for them.
    fn deliver(&self, mailbox: &Mailbox) {
        for (call, answer) in mem::take(&mut *mailbox.answers.lock()) {
            // If the caller has gone, the work in the answer decides what is left to do.
            drop(call.send(answer));
        }
    }

    /// Looks after the leader, if that is another dispatcher and calls wait. Takes over if the leader is
    /// overdue; else returns when it will be. `None` if there is nothing to watch.
    fn watch_until(&self, mailbox: &Mailbox) -> Option<Instant> {
        let mut queue = self.shared.queue.lock();
        if !mailbox.is_watching.load(Ordering::Acquire) {
            return None;
        }
        let leader = queue.leader.filter(|leader| leader.mailbox != self.index);
        let now = Instant::now();
        match leader.filter(|_| queue.len() > 0) {
            Some(leader) if now <= leader.due => {
                return Some(leader.due + Duration::from_millis(1));
            }
            Some(_) => {
                let due = now + 2 * self.shared.late_after();
                queue.leader = Some(Leader { mailbox: self.index, due });
            }
            None => {}
        }
        mailbox.is_watching.store(false, Ordering::Release);
        None
    }

    /// Whether this dispatcher leads and calls wait. It yields as long as the queue grows, so that calls in this
    /// thread's sockets join the batch, and sets no timer to wait for others.
    async fn gather(&self) -> bool {
        let mut known = 0;
        loop {
            let waiting = {
                let mut queue = self.shared.queue.lock();
                if !queue.is_led_by(self.index) {
                    return false;
                }
                if queue.heavy_is_next(Instant::now()).is_none() {
                    queue.leader = None;
                    return false;
                }
                queue.len()
            };
            if waiting <= known || waiting >= WEIGHT_MAX {
                return true;
            }
            known = waiting;
            task::yield_now().await;
        }
    }
}

impl SharedQueue {
    /// Sends the calls that wait, once there is a connection for them, and hands out the answers. Until then they stay
    /// in the queue.
    async fn send(&self, own: usize, number: u64, round_trip: Duration) -> SentBatch<'_> {
        let mut sent = SentBatch { number, took: None, acknowledged: None };
        let began = Instant::now();
        if let Some(mut connection) = self.connection(own).await
            && let Some((calls, full_batches)) = self.next(own, round_trip)
        {
            let waited = began.elapsed();
            let runs = self.queue.lock().runs;
            let batch = Batch::new(runs, runs.keys(), &self.key_prefix);
            let exchanging = self.exchange(&mut connection, batch, calls, waited);
            let exchanged = match full_batches {
                1 => exchanging.await,
                _ => self.heavy(own, full_batches, exchanging).await,
            };
            if let Some(Exchanged { answers, again, charges }) = exchanged {
                self.hand_out(own, answers.into_iter());
                self.enqueue_again(again, own);
                if self.wait_replicas > 0 && charges > 0 {
                    sent.acknowledged = Some(Acknowledged { connection, charges });
                }
            }
            sent.took = (full_batches == 1).then(|| began.elapsed() - waited);
            self.batch_ended();
        }
        sent
    }

    /// The answer to a heavy call. If it is late, the next one may go before.
    async fn heavy<T>(
        &self,
        own: usize,
        full_batches: u32,
        exchanging: impl Future<Output = Option<T>>,
    ) -> Option<T> {
        let (began, mut exchanging) = (Instant::now(), pin!(exchanging));
        match time::timeout(self.heavy_within(), exchanging.as_mut()).await {
            Ok(exchanged) => {
                let answered_in = exchanged.is_some().then(|| began.elapsed());
                self.heavy_ended(own, full_batches, answered_in);
                exchanged
            }
            Err(_) => {
                self.heavy_ended(own, full_batches, None);
                exchanging.await
            }
        }
    }

    /// A connection. If none can be opened, the calls that wait fail.
    async fn connection(&self, own: usize) -> Option<Connected<'_>> {
        let connecting = self.mailboxes.get(own).map(|mailbox| &mailbox.is_connecting)?;
        connecting.store(true, Ordering::Relaxed);
        let opened = self.link.connection(self.owed_within(SentAs::Call)).await;
        connecting.store(false, Ordering::Relaxed);
        opened.map_err(|error| self.refuse(own, error)).ok()
    }

    /// The calls of the next batch, at least one, and how many full batches weigh as much; `None` if none goes.
    ///
    /// Calls whose answer would come too late are not sent. Otherwise all answers would be late where
    /// more calls arrive than Redis can decide. A light one goes if its caller has half of its time left, though answers were
    /// late: these show when they are not.
    fn next(&self, own: usize, round_trip: Duration) -> Option<(Vec<QueuedCall>, u32)> {
        let now = Instant::now();
        if self.refuse_waiting(own) {
            return None;
        }
        let mut queue = self.queue.lock();
        let is_heavy = queue.heavy_is_next(now)?;
        let Queue { waiting, waiting_heavy, heavy, runs, .. } = &mut *queue;
        let takes = heavy.takes(now);
        let waiting = if is_heavy { waiting_heavy } else { waiting };
        let mut calls = Vec::with_capacity(waiting.len().min(WEIGHT_MAX));
        let (mut weight, mut shed) = (0, Vec::new());
        while let Some(call) = waiting.front() {
            let added = call.weight(*runs);
            let answer = match is_heavy {
                true => takes * full_batches(added),
                false => round_trip.min(call.until.saturating_duration_since(call.since) / 2),
            };
            if !call.is_awaited(now, answer) {
                shed.extend(waiting.pop_front());
            } else if calls.is_empty() || weight + added <= WEIGHT_MAX {
                weight += added;
                calls.extend(waiting.pop_front());
            } else {
                break;
            }
        }
        let full_batches = full_batches(weight);
        // One may be answered within the whole timeout.
        queue.full_batches = full_batches.min(LATE_DIVISOR);
        if full_batches > 1 {
            queue.heavy.until = Some(now + self.heavy_within());
        }
        if !calls.is_empty() {
            let due = now + self.late_after() * (1 + queue.full_batches);
            queue.leader = Some(Leader { mailbox: own, due });
            queue.batches += 1;
        }
        drop(queue);
        self.link.metrics.shed(shed.len());
        drop(shed);
        (!calls.is_empty()).then_some((calls, full_batches))
    }
}

/// How many full batches weigh as much, at least 1.
fn full_batches(weight: usize) -> u32 {
    u32::try_from(weight.div_ceil(WEIGHT_MAX)).unwrap_or(u32::MAX).max(1)
}

struct SentBatch<'pool> {
    number: u64,
    /// How long its round trip took; `None` if nothing was sent.
    took: Option<Duration>,
    acknowledged: Option<Acknowledged<'pool>>,
}

/// Charges that were acknowledged on a connection, and may not be on replicas yet.
struct Acknowledged<'pool> {
    connection: Connected<'pool>,
    charges: u64,
}

impl SharedQueue {
    /// Counts charges that too few replicas have.
    async fn wait_for_replicas(&self, mut acknowledged: Acknowledged<'_>) {
        let wait = redis::cmd("WAIT").arg(self.wait_replicas).arg(WAIT_MS).take();
        let asked = acknowledged.connection.query::<u32>(&wait);
        let replicas = time::timeout(2 * Duration::from_millis(WAIT_MS), asked).await;
        if !matches!(replicas, Ok(Ok(replicas)) if replicas >= self.wait_replicas) {
            self.link.metrics.unreplicated.add(acknowledged.charges, &[]);
        }
    }

    /// While the breaker is open, answers the calls that wait. Returns whether it is open.
    fn refuse_waiting(&self, own: usize) -> bool {
        let refusal = self.link.state.breaker.refusal();
        refusal.map(|error| self.refuse(own, error)).is_some()
    }

    /// Answers the calls that wait, which are not sent, and no dispatcher leads.
    fn refuse(&self, own: usize, error: StoreError) {
        let mut queue = self.queue.lock();
        queue.leader = None;
        let waiting = queue.take_all();
        drop(queue);
        let refused = |call: QueuedCall| (call.caller, Err(NotDecided::Failed(error.clone())));
        self.hand_out(own, waiting.into_iter().map(refused));
    }

    /// Hands the answers to the calls of `own` and of other mailboxes.
    fn hand_out(&self, own: usize, answers: impl Iterator<Item = (Recipient, CallAnswer)>) {
        let mut others = Vec::new();
        for (caller, answer) in answers {
            match self.mailboxes.get(caller.mailbox) {
                Some(mailbox) if caller.mailbox != own => {
                    mailbox.answers.lock().push((caller.answer, answer));
                    others.push(caller.mailbox);
                }
                // If the caller has gone, the work in the answer decides what is left to do.
                _ => drop(caller.answer.send(answer)),
            }
        }
        others.sort_unstable();
        others.dedup();
        for mailbox in others.into_iter().filter_map(|mailbox| self.mailboxes.get(mailbox)) {
            mailbox.notify.notify_one();
        }
    }
}
