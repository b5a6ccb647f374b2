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

use super::queue::{Leader, Mailbox, QueuedCall, SharedQueue};
use crate::store::{
    StoreError,
    redis::{
        batch::{Batch, ScriptKind, WEIGHT_MAX},
        node::QUESTIONS_MAX,
        pool,
        script::RedisOutcome,
    },
};

/// The dispatcher of one worker. It lives as long as the worker's runtime.
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
    #[expect(clippy::disallowed_methods, reason = "it ends with its worker's runtime")]
    pub(super) fn start(shared: Arc<SharedQueue>, index: usize) {
        tokio::spawn(Self { shared, index, round_trip: Duration::ZERO }.run());
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
        let timeout = self.shared.node.pool.timeout();
        let waits_at_most = timeout - self.round_trip.min(timeout / 2);
        let now = Instant::now();
        let mut queue = self.shared.queue();
        let mut calls = Vec::with_capacity(queue.waiting.len().min(WEIGHT_MAX));
        let mut room = WEIGHT_MAX;
        while let Some(call) = queue.waiting.front() {
            if call.is_awaited(now, waits_at_most) {
                if !take_weight(&mut room, call, calls.is_empty()) {
                    break;
                }
                calls.extend(queue.waiting.pop_front());
            } else if let Some(call) = queue.waiting.pop_front()
                && call.outlives_caller(now)
            {
                queue.late.push_back(call);
            }
        }
        while let Some(call) = queue.late.front() {
            if call.outlives_caller(now) {
                if !take_weight(&mut room, call, calls.is_empty()) {
                    break;
                }
                calls.extend(queue.late.pop_front());
            } else {
                queue.late.pop_front();
            }
        }
        if calls.is_empty() {
            queue.leader = None;
            return None;
        }
        queue.leader =
            Some(Leader { mailbox: self.index, due: now + 2 * self.shared.late_after() });
        Some(calls)
    }
}

/// Whether a call still has room in a batch, which it then takes. One alone always has.
fn take_weight(room: &mut usize, call: &QueuedCall, is_first: bool) -> bool {
    let weight = call.kind.weight(&call.charges);
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
    if time::timeout(shared.node.pool.timeout(), shared.exchange(own, calls)).await.is_err() {
        shared.node.metrics.lost("EVALSHA", began.elapsed());
    }
    began.elapsed()
}

impl SharedQueue {
    async fn exchange(&self, own: usize, mut calls: Vec<QueuedCall>) {
        let mut connection = match self.node.pool.get().await {
            Ok(connection) => connection,
            Err(error) => {
                return self
                    .route_outcomes(own, calls.into_iter().map(|call| (call, Err(error.clone()))));
            }
        };
        let (now, timeout) = (Instant::now(), self.node.pool.timeout());
        calls.retain(|call| call.is_awaited(now, timeout) || call.outlives_caller(now));
        if calls.is_empty() {
            return;
        }
        let assumed_now = self.node.clock.now();
        let mut batch = Batch::default();
        for QueuedCall { charges, kind, redis_now, .. } in &calls {
            let assumed_now = redis_now.unwrap_or(assumed_now);
            batch.add(*kind, charges, assumed_now, &self.scripts.key_prefix);
        }
        let sent = self.node.clock.send();
        let answers = batch.run(&mut connection, &self.scripts, &self.node.metrics).await;
        drop(connection);
        if let Some(now) = answers.now {
            self.node.clock.learn(now, sent);
            for call in &mut calls {
                call.redis_now = Some(now);
            }
        }
        let outcomes = answers.outcomes.into_iter();
        let outcomes = outcomes.map(|outcome| outcome.map_err(|error| pool::unavailable(&error)));
        self.route_outcomes(own, calls.into_iter().zip(outcomes));
    }

    /// Hands the outcomes to the calls of `own` and of other mailboxes. Calls that were not decided for a
    /// reason that a further question settles are queued again.
    fn route_outcomes(
        &self,
        own: usize,
        outcomes: impl Iterator<Item = (QueuedCall, Result<RedisOutcome, StoreError>)>,
    ) {
        let (mut again, mut others) = (Vec::new(), Vec::new());
        for (mut call, outcome) in outcomes {
            let answer = match outcome {
                Ok(RedisOutcome::Decided(judgement)) => Ok(judgement),
                Ok(RedisOutcome::Stale) if call.stale + 1 < QUESTIONS_MAX => {
                    call.stale += 1;
                    again.push(call);
                    continue;
                }
                Ok(RedisOutcome::Stale) => Err(StoreError::ClockUnsteady),
                // The ledger script applies `on_store_failure`.
                Ok(RedisOutcome::Corrupt(_)) if call.kind == ScriptKind::Fixed => {
                    call.kind = ScriptKind::Ledger;
                    again.push(call);
                    continue;
                }
                Ok(RedisOutcome::Corrupt(charges)) => Err(StoreError::Corrupt(charges)),
                Ok(RedisOutcome::WriteRefused(refusal)) => Err(refusal.into()),
                Err(error) => Err(error),
            };
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
        self.enqueue_again(again, own);
    }
}
