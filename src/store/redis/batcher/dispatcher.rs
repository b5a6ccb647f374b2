//! Sends the waiting calls in batches, and hands out the answers.

use std::{
    mem,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    select, task,
    time::{self, Instant},
};

use super::{
    queue::{CallAnswer, Leader, Mailbox, NotDecided, QueuedCall, SharedQueue},
    spans::RunSpans,
    waiting::WaitsFor,
};
use crate::store::{
    StoreError,
    redis::{
        batch::{Batch, Runs, ScriptKind, WEIGHT_MAX},
        link::{Decided, QUESTIONS_MAX},
        pool::{self, Held},
        script::{self, RedisOutcome, Reply},
    },
};

/// How long charges may take to reach replicas, in milliseconds, before they are counted as missing there.
const WAIT_MS: u64 = 5;

/// The dispatcher of one worker. It lives as long as the worker's runtime, unless the node leaves.
pub(super) struct Dispatcher {
    shared: Arc<SharedQueue>,
    index: usize,
    /// How long the last batch took.
    round_trip: Duration,
}

/// Runs when the worker's runtime ends: gives up the lead, and discards answers that were not delivered. A later
/// call for this mailbox starts another dispatcher.
impl Drop for Dispatcher {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        if queue.is_led_by(self.index) {
            queue.leader = None;
        }
        if let Some(mailbox) = self.shared.mailboxes.get(self.index) {
            mailbox.is_running.store(false, Ordering::Release);
            mailbox.is_watching.store(false, Ordering::Release);
            mailbox.answers().clear();
        }
    }
}

impl Dispatcher {
    pub(super) fn start(shared: Arc<SharedQueue>, index: usize) {
        let dispatchers = shared.dispatchers.clone();
        drop(dispatchers.spawn(Self { shared, index, round_trip: Duration::ZERO }.run()));
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(mailbox) = shared.mailboxes.get(self.index) else { return };
        let mut batches = FuturesUnordered::new();
        // To set a timer again costs next to nothing, and a new one a system call.
        let mut late = pin!(time::sleep(Duration::ZERO));
        let mut watch = pin!(time::sleep(Duration::ZERO));
        // The number of the last batch, and whether it is under way and not late.
        let (mut last, mut is_under_way) = (0_u64, false);
        let mut is_watching = false;
        loop {
            select! {
                biased;
                Some((number, took)) = batches.next() => {
                    self.round_trip = took;
                    is_under_way &= number != last;
                }
                () = mailbox.notify.notified() => self.deliver(mailbox),
                // Calls that wait go out on another connection, and not after this answer.
                () = late.as_mut(), if is_under_way => is_under_way = false,
                () = watch.as_mut(), if is_watching => is_watching = false,
            }
            if shared.queue().is_over() {
                self.deliver(mailbox);
                return;
            }
            if !is_watching && let Some(due) = self.watch_until(mailbox) {
                watch.as_mut().reset(due);
                is_watching = true;
            }
            if !is_under_way && let Some(calls) = self.gather().await {
                last += 1;
                batches.push(send(&shared, self.index, calls).map(move |took| (last, took)));
                late.as_mut().reset(Instant::now() + shared.late_after());
                is_under_way = true;
            }
        }
    }

    /// Hands its worker's calls the answers that others have received for them.
    fn deliver(&self, mailbox: &Mailbox) {
        for (call, answer) in mem::take(&mut *mailbox.answers()) {
            // If the caller has gone, its charge stands.
            drop(call.send(answer));
        }
    }

    /// Looks after the leader, if that is another dispatcher and calls wait. Takes over if the leader is
    /// overdue; else returns when it will be. `None` if there is nothing to watch.
    fn watch_until(&self, mailbox: &Mailbox) -> Option<Instant> {
        let mut queue = self.shared.queue();
        if !mailbox.is_watching.load(Ordering::Acquire) {
            return None;
        }
        let leader = queue.leader.filter(|leader| leader.mailbox != self.index);
        let now = Instant::now();
        match leader.filter(|_| !queue.waiting.is_empty()) {
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

    /// The calls that go next, if this dispatcher leads and calls wait. It yields as long as the queue grows, so
    /// that calls in this thread's sockets join the batch, and sets no timer to wait for others.
    async fn gather(&mut self) -> Option<Vec<QueuedCall>> {
        let mut known = 0;
        loop {
            let waiting = {
                let queue = self.shared.queue();
                if !queue.is_led_by(self.index) {
                    return None;
                }
                queue.waiting.len()
            };
            if waiting <= known || waiting >= WEIGHT_MAX {
                return self.next();
            }
            known = waiting;
            task::yield_now().await;
        }
    }

    /// The calls of the next batch, at least one; `None` if none waits, and then no dispatcher leads.
    ///
    /// Calls whose answer would come too late are not sent. Otherwise all answers would be late where
    /// more calls arrive than Redis can decide.
    fn next(&self) -> Option<Vec<QueuedCall>> {
        let timeout = self.shared.link.state.pool.timeout();
        let waits_at_most = timeout - self.round_trip.min(timeout / 2);
        let now = Instant::now();
        if self.shared.refuse_waiting(self.index) {
            return None;
        }
        let mut queue = self.shared.queue();
        let mut calls = Vec::with_capacity(queue.waiting.len().min(WEIGHT_MAX));
        let (mut room, runs, mut shed) = (WEIGHT_MAX, queue.runs, 0);
        while let Some(call) = queue.waiting.front() {
            if call.is_awaited(now, waits_at_most) {
                if !take_weight(&mut room, call, runs, calls.is_empty()) {
                    break;
                }
                calls.extend(queue.waiting.pop_front());
            } else if let Some(call) = queue.waiting.pop_front() {
                if call.outlives_caller(now) {
                    queue.late.push_back(call);
                } else {
                    shed += 1;
                }
            }
        }
        while let Some(call) = queue.late.front() {
            if call.outlives_caller(now) {
                if !take_weight(&mut room, call, runs, calls.is_empty()) {
                    break;
                }
                calls.extend(queue.late.pop_front());
            } else {
                queue.late.pop_front();
            }
        }
        self.shared.link.metrics.shed(shed);
        if calls.is_empty() {
            queue.leader = None;
            return None;
        }
        queue.leader =
            Some(Leader { mailbox: self.index, due: now + 2 * self.shared.late_after() });
        queue.batches += 1;
        Some(calls)
    }
}

/// Whether a call still has room in a batch, which it then takes. One alone always has.
fn take_weight(room: &mut usize, call: &QueuedCall, runs: Runs, is_first: bool) -> bool {
    let weight = call.kind.weight(&call.work, runs);
    if !is_first && weight > *room {
        return false;
    }
    *room = room.saturating_sub(weight);
    true
}

/// Sends a batch, and hands out the answers. Returns how long that took.
async fn send(shared: &SharedQueue, own: usize, calls: Vec<QueuedCall>) -> Duration {
    let began = Instant::now();
    // No caller waits longer than this.
    let timeout = shared.link.state.pool.timeout();
    let answered = time::timeout(timeout, shared.exchange(own, calls)).await;
    let took = began.elapsed();
    match answered {
        Ok(Some(acknowledged)) => shared.wait_for_replicas(acknowledged).await,
        Ok(None) => {}
        Err(_) => {
            shared.link.metrics.lost("EVALSHA", took);
            shared.link.state.failed(&StoreError::TimedOut);
        }
    }
    shared.batch_ended();
    took
}

/// Charges that were acknowledged on a connection, and may not be on replicas yet.
struct Acknowledged<'pool> {
    connection: Held<'pool>,
    charges: u64,
}

impl SharedQueue {
    /// Returns what is to be waited for on replicas.
    async fn exchange(&self, own: usize, mut calls: Vec<QueuedCall>) -> Option<Acknowledged<'_>> {
        let began = Instant::now();
        let mut connection = match self.link.state.pool.get().await {
            Ok(connection) => connection,
            Err(error) => {
                self.link.state.failed(&error);
                let failed = Err(NotDecided::Failed(error));
                self.hand_out(own, calls.into_iter().map(|call| (call, failed.clone())));
                return None;
            }
        };
        let (now, timeout) = (Instant::now(), self.link.state.pool.timeout());
        let before = calls.len();
        calls.retain(|call| call.is_awaited(now, timeout) || call.outlives_caller(now));
        self.link.metrics.shed(before - calls.len());
        let waited = now.duration_since(calls.first()?.since);
        self.link.metrics.batch(calls.len(), waited);
        let assumed_now = self.link.clock.now();
        let mut batch = Batch::new(self.queue().runs);
        for QueuedCall { work, kind, redis_now, .. } in &calls {
            let assumed_now = redis_now.unwrap_or(assumed_now);
            batch.add(*kind, work, assumed_now, &self.scripts.key_prefix);
        }
        let address = &self.link.state.pool.server().address;
        let spans = RunSpans::begin(&calls, &batch, address, now - began);
        let sent = self.link.clock.send();
        let replies = batch.run(&mut connection, &self.scripts, &self.link.metrics).await;
        spans.end(&replies);
        let waits = self.wait_replicas > 0;
        let connection = waits.then_some(connection);
        if let Some(now) = replies.iter().flatten().map(|reply| reply.now).max() {
            self.link.clock.learn(now, sent);
        }
        let is_stale = |reply: &&Reply| reply.outcome == RedisOutcome::Stale;
        self.link.metrics.stale(replies.iter().flatten().filter(is_stale).count());
        let mut answers = Vec::with_capacity(calls.len());
        let mut again = Vec::new();
        for (call, reply) in calls.into_iter().zip(replies) {
            match reply {
                Ok(reply) => match call.answer_by(reply) {
                    Ok(answered) => answers.push(answered),
                    Err(call) => again.push(call),
                },
                // Nothing ran: the hash slot has moved, or is being moved.
                Err(error) if script::is_elsewhere(&error) => {
                    answers.push((call, Err(NotDecided::Elsewhere)));
                }
                Err(error) => {
                    let error = pool::unavailable(&error);
                    answers.push((call, Err(NotDecided::Failed(error))));
                }
            }
        }
        let charges = self.report(answers.iter().map(|(_, answer)| answer));
        self.hand_out(own, answers.into_iter());
        self.enqueue_again(again, own);
        connection.filter(|_| charges > 0).map(|connection| Acknowledged { connection, charges })
    }

    /// Counts charges that too few replicas have.
    async fn wait_for_replicas(&self, mut acknowledged: Acknowledged<'_>) {
        let wait = redis::cmd("WAIT").arg(self.wait_replicas).arg(WAIT_MS).take();
        let asked = acknowledged.connection.query::<u32>(&wait);
        let replicas = time::timeout(2 * Duration::from_millis(WAIT_MS), asked).await;
        if !matches!(replicas, Ok(Ok(replicas)) if replicas >= self.wait_replicas) {
            self.link.metrics.unreplicated(acknowledged.charges);
        }
    }

    /// Records whether the server answers. Returns the number of charges that it has acknowledged.
    fn report<'a>(&self, answers: impl Iterator<Item = &'a CallAnswer>) -> u64 {
        let (mut has_answered, mut failure, mut charges) = (false, None, 0);
        for answer in answers {
            match answer {
                Err(NotDecided::Failed(error)) if !matches!(error, StoreError::Corrupt(_)) => {
                    failure = Some(error);
                }
                Ok(decided) => {
                    charges += self.link.acknowledge(&decided.answer);
                    has_answered = true;
                }
                Err(_) => has_answered = true,
            }
        }
        if let Some(error) = failure {
            self.link.state.failed(error);
        } else if has_answered {
            self.link.state.answered();
        }
        charges
    }

    /// While the breaker is open, answers the calls that wait, and no dispatcher leads. Debits and refunds wait for the
    /// server's return. Returns whether the breaker is open.
    fn refuse_waiting(&self, own: usize) -> bool {
        let Some(error) = self.link.state.breaker.refusal() else { return false };
        let (refused, now) = (Err(NotDecided::Failed(error)), Instant::now());
        let mut queue = self.queue();
        queue.leader = None;
        let waiting = mem::take(&mut queue.waiting).into_iter();
        let (late, calls): (Vec<_>, Vec<_>) = waiting.partition(|call| call.outlives_caller(now));
        queue.late.extend(late);
        drop(queue);
        self.hand_out(own, calls.into_iter().map(|call| (call, refused.clone())));
        true
    }

    /// Hands the answers to the calls of `own` and of other mailboxes.
    fn hand_out(&self, own: usize, answers: impl Iterator<Item = (QueuedCall, CallAnswer)>) {
        let mut others = Vec::new();
        for (call, answer) in answers {
            match self.mailboxes.get(call.mailbox) {
                Some(mailbox) if call.mailbox != own => {
                    mailbox.answers().push((call.answer, answer));
                    others.push(call.mailbox);
                }
                // If the caller has gone, its charge stands.
                _ => drop(call.answer.send(answer)),
            }
        }
        others.sort_unstable();
        others.dedup();
        for mailbox in others.into_iter().filter_map(|mailbox| self.mailboxes.get(mailbox)) {
            mailbox.notify.notify_one();
        }
    }
}

impl QueuedCall {
    /// The answer that a reply is. A call that was not decided for a reason that a further question settles comes
    /// back as it is asked for again.
    fn answer_by(mut self, Reply { now, outcome }: Reply) -> Result<(Self, CallAnswer), Self> {
        self.redis_now = Some(now);
        let answer = match outcome {
            RedisOutcome::Decided(answer) => Ok(Decided { answer, at: now }),
            RedisOutcome::Stale if self.stale + 1 < QUESTIONS_MAX => {
                self.stale += 1;
                self.waits_for(WaitsFor::Window);
                return Err(self);
            }
            RedisOutcome::Stale => Err(NotDecided::Failed(StoreError::ClockUnsteady)),
            // The ledger script applies `on_store_failure`.
            RedisOutcome::Corrupt(_) if self.kind == ScriptKind::Fixed => {
                self.kind = ScriptKind::Ledger;
                self.waits_for(WaitsFor::OtherScript);
                return Err(self);
            }
            RedisOutcome::Corrupt(charges) => Err(NotDecided::Failed(StoreError::Corrupt(charges))),
            RedisOutcome::WriteRefused(refusal) => Err(NotDecided::Failed(refusal.into())),
            RedisOutcome::Elsewhere => Err(NotDecided::Elsewhere),
        };
        Ok((self, answer))
    }
}
