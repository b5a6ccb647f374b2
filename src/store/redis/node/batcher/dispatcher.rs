//! Sends the waiting calls in batches, and hands out the answers.

use std::{
    mem,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    select,
    sync::oneshot,
    task,
    time::{self, Instant},
};

use super::{
    queue::{CallAnswer, Leader, Mailbox, NotDecided, QueuedCall, SharedQueue},
    spans::RunSpans,
    waiting::WaitsFor,
};
use crate::store::{
    StoreError, lateness,
    redis::{
        node::{
            batch::{Batch, Runs, ScriptKind, WEIGHT_MAX},
            link::{Decided, Link, QUESTIONS_MAX},
            pool::{self, Held},
        },
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
        drop(dispatchers.spawn(Self { shared, index, round_trip: Duration::ZERO }.run()));
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(mailbox) = shared.mailboxes.get(self.index) else { return };
        let (mut batches, mut replicas) = (FuturesUnordered::new(), FuturesUnordered::new());
        // To set a timer again costs next to nothing, and a new one a system call.
        let mut late = pin!(time::sleep(Duration::ZERO));
        let mut watch = pin!(time::sleep(Duration::ZERO));
        // The number of the last batch, and whether it is under way and not late.
        let (mut last, mut is_under_way) = (0_u64, false);
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
                    if mailbox.is_connecting.load(Ordering::Relaxed) {
                        shared.refuse_waiting(self.index);
                        late.as_mut().reset(Instant::now() + shared.late_after());
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
                batches.push(shared.send(self.index, last, self.round_trip));
                late.as_mut().reset(Instant::now() + shared.late_after());
                is_under_way = true;
            }
        }
    }

    /// Hands its worker's calls the answers that others have received for them.
    fn deliver(&self, mailbox: &Mailbox) {
        for (call, answer) in mem::take(&mut *mailbox.answers.lock()) {
            // If the caller has gone, its charge stands.
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
                if queue.waiting.is_empty() {
                    queue.leader = None;
                    return false;
                }
                queue.waiting.len()
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
        if let Some(connection) = self.connection(own).await
            && let Some(calls) = self.next(own, round_trip)
        {
            let waited = began.elapsed();
            sent.acknowledged = self.exchange(own, connection, calls, waited).await;
            sent.took = Some(began.elapsed() - waited);
            self.batch_ended();
        }
        sent
    }

    /// A connection. If none can be opened, the calls that wait fail.
    async fn connection(&self, own: usize) -> Option<Held<'_>> {
        let connecting = self.mailboxes.get(own).map(|mailbox| &mailbox.is_connecting)?;
        connecting.store(true, Ordering::Relaxed);
        let Link { state, metrics, .. } = &self.link;
        let mut opening = pin!(state.pool.get());
        // A server that is silent on its connections may be so while one is opened.
        let opened = loop {
            match lateness::within(state.pool.timeout(), opening.as_mut(), metrics).await {
                Some(opened) => break opened,
                None => state.failed(&StoreError::NoConnection),
            }
        };
        connecting.store(false, Ordering::Relaxed);
        match opened {
            Ok(connection) => Some(connection),
            Err(error) => {
                state.failed(&error);
                self.refuse(own, error);
                None
            }
        }
    }

    /// The calls of the next batch, at least one; `None` if none waits, and then no dispatcher leads.
    ///
    /// Calls whose answer would come too late are not sent. Otherwise all answers would be late where
    /// more calls arrive than Redis can decide.
    fn next(&self, own: usize, round_trip: Duration) -> Option<Vec<QueuedCall>> {
        let now = Instant::now();
        if self.refuse_waiting(own) {
            return None;
        }
        let mut queue = self.queue.lock();
        let mut calls = Vec::with_capacity(queue.waiting.len().min(WEIGHT_MAX));
        let (mut room, runs, mut shed) = (WEIGHT_MAX, queue.runs, Vec::new());
        while let Some(call) = queue.waiting.front() {
            if !call.is_awaited(now, round_trip) {
                shed.extend(queue.waiting.pop_front());
            } else if take_weight(&mut room, call, runs, calls.is_empty()) {
                calls.extend(queue.waiting.pop_front());
            } else {
                break;
            }
        }
        let due = now + 2 * self.late_after();
        queue.leader = (!calls.is_empty()).then_some(Leader { mailbox: own, due });
        queue.batches += usize::from(!calls.is_empty());
        drop(queue);
        self.link.metrics.shed(shed.len());
        for call in shed {
            self.keep(call.work, call.since);
        }
        (!calls.is_empty()).then_some(calls)
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

/// What has become of a batch.
struct SentBatch<'pool> {
    number: u64,
    /// How long its round trip took; `None` if nothing was sent.
    took: Option<Duration>,
    acknowledged: Option<Acknowledged<'pool>>,
}

/// Charges that were acknowledged on a connection, and may not be on replicas yet.
struct Acknowledged<'pool> {
    connection: Held<'pool>,
    charges: u64,
}

impl SharedQueue {
    /// Returns what is to be waited for on replicas. An answer is used as long as a caller waits for it, though the
    /// server is late.
    async fn exchange<'pool>(
        &'pool self,
        own: usize,
        mut connection: Held<'pool>,
        mut calls: Vec<QueuedCall>,
        for_connection: Duration,
    ) -> Option<Acknowledged<'pool>> {
        let (now, timeout) = (Instant::now(), self.link.state.pool.timeout());
        // Long enough to see that the server is late.
        let until = calls.iter().map(|call| call.until).max()?.max(now + 2 * timeout);
        self.link.metrics.batch(calls.len(), now.duration_since(calls.first()?.since));
        let assumed_now = self.link.clock.now();
        let mut batch = Batch::new(self.queue.lock().runs);
        for QueuedCall { work, kind, redis_now, .. } in &calls {
            let assumed_now = redis_now.unwrap_or(assumed_now);
            batch.add(*kind, work, assumed_now, &self.scripts.key_prefix);
        }
        let address = &self.link.state.pool.server().address;
        let spans = RunSpans::begin(&calls, &batch, address, for_connection);
        let sent = self.link.clock.send();
        let answered = {
            let run = batch.run(&mut connection, &self.scripts, &self.link.metrics);
            let mut answer = pin!(self.link.owed(run, timeout, StoreError::TimedOut));
            select! {
                biased;
                answered = lateness::until(until, answer.as_mut()) => answered,
                error = self.link.state.opened() => {
                    for call in calls.iter_mut().filter(|call| !call.is_part) {
                        let (gone, _) = oneshot::channel();
                        let waiting = mem::replace(&mut call.answer, gone);
                        drop(waiting.send(Err(NotDecided::Failed(error.clone()))));
                    }
                    // The connection may be used again if it is answered nevertheless.
                    lateness::until(until, answer).await
                }
            }
        };
        let Ok(replies) = answered else {
            self.link.metrics.lost("EVALSHA", now.elapsed());
            return None;
        };
        spans.end(&replies);
        self.link.state.pool.keep(&mut connection);
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

    /// While the breaker is open, answers the calls that wait. Returns whether it is open.
    fn refuse_waiting(&self, own: usize) -> bool {
        let refusal = self.link.state.breaker.refusal();
        refusal.map(|error| self.refuse(own, error)).is_some()
    }

    /// Answers the calls that wait, which are not sent, and no dispatcher leads.
    fn refuse(&self, own: usize, error: StoreError) {
        let mut queue = self.queue.lock();
        queue.leader = None;
        let waiting = mem::take(&mut queue.waiting);
        drop(queue);
        for call in &waiting {
            self.keep(call.work.clone(), call.since);
        }
        let refused = Err(NotDecided::Failed(error));
        self.hand_out(own, waiting.into_iter().map(|call| (call, refused.clone())));
    }

    /// Hands the answers to the calls of `own` and of other mailboxes.
    fn hand_out(&self, own: usize, answers: impl Iterator<Item = (QueuedCall, CallAnswer)>) {
        let mut others = Vec::new();
        for (call, answer) in answers {
            match self.mailboxes.get(call.mailbox) {
                Some(mailbox) if call.mailbox != own => {
                    mailbox.answers.lock().push((call.answer, answer));
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
