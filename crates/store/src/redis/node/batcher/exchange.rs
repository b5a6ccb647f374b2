//! Sends one batch on a connection, and reads the answers to its calls.

use std::{mem, pin::pin, time::Duration};

use tokio::{select, sync::oneshot, time::Instant};
use tollkeeper_engine::ledger::Verdict;

use super::{
    queue::{QueuedCall, Recipient, SentAs, SharedQueue},
    spans::RunSpans,
    waiting::WaitsFor,
};
use crate::{
    StoreError, lateness,
    redis::{
        node::{
            batch::{Batch, ScriptKind},
            clock::RedisClock,
            decided::{ATTEMPTS_MAX, CallAnswer, Decided, NotDecided},
            owed::Fate,
            pool::{self, Connected},
        },
        script::{self, Reply, ScriptVerdict},
    },
};

/// What has become of the calls of a batch.
pub(super) struct Exchanged {
    pub(super) answers: Vec<(Recipient, CallAnswer)>,
    /// The calls that are sent once more.
    pub(super) again: Vec<QueuedCall>,
    /// Number of charges that the server has acknowledged.
    pub(super) charges: u64,
}

impl SharedQueue {
    /// How long the server may take before it is considered late: twice as long while it has a heavy call. A caller that
    /// sends its call by itself must still be there to see that.
    pub(super) fn owed_within(&self, sent_as: SentAs) -> Duration {
        let has_heavy = self.queue.lock().heavy.is_under_way(Instant::now());
        let timeout = self.link.state.pool.timeout() * (1 + u32::from(has_heavy));
        match sent_as {
            SentAs::Call | SentAs::Part => timeout,
            SentAs::Lone => timeout / 4 * 3,
        }
    }

    /// Sends these calls as `batch`, which is empty. An answer is used as long as a caller waits for it, though the server
    /// is late; `None` if none came until then.
    pub(super) async fn exchange(
        &self,
        connection: &mut Connected<'_>,
        mut batch: Batch<'_>,
        mut calls: Vec<QueuedCall>,
        for_connection: Duration,
    ) -> Option<Exchanged> {
        let QueuedCall { since, sent_as, .. } = *calls.first()?;
        let (now, limit) = (Instant::now(), self.owed_within(sent_as));
        // Long enough to see that the server is late.
        let until = calls.iter().map(|call| call.until).max()?.max(now + 2 * limit);
        let assumed_now = self.link.clock.now();
        for QueuedCall { owed, kind, redis_now, .. } in &mut calls {
            owed.work.lose_leases(|made| self.has_lost(made.until(assumed_now)));
            batch.add(*kind, &owed.work, redis_now.unwrap_or(assumed_now));
            owed.is(Fate::Sent);
        }
        if sent_as != SentAs::Lone {
            self.link.metrics.batch(calls.len(), now.duration_since(since));
            batch.scripts().for_each(|script| self.link.metrics.script_ran(script.name()));
        }
        let address = &self.link.state.pool.server().address;
        let spans = RunSpans::begin(&calls, &batch, address, for_connection);
        let (operation, sent) = (batch.operation(), Instant::now());
        let answered = {
            let run = pin!(batch.run(connection, &self.link.metrics));
            let mut answer = pin!(self.link.owed(run, limit));
            select! {
                biased;
                answered = lateness::until(until, answer.as_mut()) => answered,
                error = self.link.state.opened() => {
                    // No caller waits for work that was kept. Its answer may still show that Redis has not run it.
                    let is_awaited = |call: &&mut QueuedCall| {
                        call.sent_as != SentAs::Part && !call.owed.is_kept()
                    };
                    for call in calls.iter_mut().filter(is_awaited) {
                        let (gone, _) = oneshot::channel();
                        let waiting = mem::replace(&mut call.caller.answer, gone);
                        drop(waiting.send(Err(NotDecided::Failed(error.clone()))));
                    }
                    // The connection may be used again if the answer still arrives.
                    lateness::until(until, answer).await
                }
            }
        };
        let Ok(replies) = answered else {
            self.link.metrics.lost(operation, now.elapsed());
            return None;
        };
        spans.end(&replies);
        self.link.state.pool.keep(connection);
        if let Some(now) = replies.iter().flatten().map(|reply| reply.now).max() {
            self.link.clock.learn(now, sent);
        }
        let is_stale = |reply: &&Reply| reply.verdict == ScriptVerdict::Stale;
        self.link.metrics.stale(replies.iter().flatten().filter(is_stale).count());
        let mut answers = Vec::with_capacity(calls.len());
        let mut again = Vec::new();
        for (mut call, reply) in calls.into_iter().zip(replies) {
            match reply {
                Ok(reply) => match call.answer_by(reply, &self.link.clock) {
                    Ok(answered) => answers.push(answered),
                    Err(call) => again.push(call),
                },
                // Nothing ran: the hash slot has moved, or is being moved.
                Err(error) if script::is_elsewhere(&error) => {
                    let error = (sent_as == SentAs::Lone).then_some(error);
                    let QueuedCall { mut owed, caller, .. } = call;
                    owed.is(Fate::NotRun);
                    answers.push((caller, Err(NotDecided::Elsewhere(error, owed))));
                }
                Err(error) => {
                    match script::has_run(&error) {
                        Some(false) => call.owed.is(Fate::NotRun),
                        Some(true) => call.owed.is(Fate::Failed),
                        _ => {}
                    }
                    answers.push((call.caller, Err(NotDecided::Failed(pool::failure(&error)))));
                }
            }
        }
        let charges = self.report(answers.iter().map(|(_, answer)| answer));
        Some(Exchanged { answers, again, charges })
    }

    /// Whether an earlier run of the server may have lost what was charged so long ago.
    fn has_lost(&self, charged: Duration) -> bool {
        let since = self.link.state.pool.known_since();
        since.is_none_or(|since| since.elapsed() <= charged)
    }

    /// Records whether the server answers. Returns the number of charges that it has acknowledged.
    fn report<'a>(&self, answers: impl Iterator<Item = &'a CallAnswer>) -> u64 {
        let (mut has_answered, mut failure, mut charges) = (false, None, 0);
        for answer in answers {
            match answer {
                Err(NotDecided::Failed(error)) if !error.is_of_the_call() => {
                    failure = Some(error.clone());
                }
                Err(NotDecided::Elsewhere(Some(error), _)) if script::is_cluster_down(error) => {
                    failure = Some(pool::unavailable(error));
                }
                Ok(decided) => {
                    charges += self.link.acknowledge(&decided.verdict);
                    has_answered = true;
                }
                Err(_) => has_answered = true,
            }
        }
        if let Some(error) = failure {
            self.link.state.failed(&error);
        } else if has_answered {
            self.link.state.answered();
        }
        charges
    }
}

impl QueuedCall {
    /// The answer that a reply is. A call that was not decided for a reason that another attempt settles comes back as it
    /// is sent again.
    fn answer_by(
        mut self,
        Reply { now, verdict }: Reply,
        clock: &RedisClock,
    ) -> Result<(Recipient, CallAnswer), Self> {
        self.redis_now = Some(now);
        match &verdict {
            ScriptVerdict::Decided(Verdict { denied: false, part, .. }) => {
                self.owed.is(Fate::Admitted(now, *part))
            }
            ScriptVerdict::Decided(_) | ScriptVerdict::Read(_) => self.owed.is(Fate::Done),
            ScriptVerdict::Unwritten(..) => self.owed.is(Fate::Unwritten),
            ScriptVerdict::Failed => self.owed.is(Fate::Failed),
            _ => self.owed.is(Fate::NotRun),
        }
        let decided = |verdict, state, owed| Ok(Decided { verdict, state, at: now, owed });
        let answer = match verdict {
            ScriptVerdict::Unwritten(_, refusal) if self.owed.is_kept() => {
                Err(NotDecided::Failed(refusal.into()))
            }
            ScriptVerdict::Decided(verdict) | ScriptVerdict::Unwritten(verdict, _) => {
                decided(verdict, None, self.owed)
            }
            ScriptVerdict::Read(state) => decided(Verdict::default(), Some(state), self.owed),
            ScriptVerdict::Stale if self.owed.only_at().is_some() => {
                if let Some(made) = self.owed.date(clock.now()) {
                    self.redis_now = Some(made);
                    self.waits_for(WaitsFor::Window);
                    return Err(self);
                }
                self.owed.settle();
                Err(NotDecided::WindowEnded)
            }
            ScriptVerdict::Stale if self.stale + 1 < ATTEMPTS_MAX => {
                self.stale += 1;
                self.waits_for(WaitsFor::Window);
                return Err(self);
            }
            ScriptVerdict::Stale => Err(NotDecided::Failed(StoreError::ClockUnsteady)),
            // The ledger script applies `on_store_failure`.
            ScriptVerdict::Corrupt(_)
                if matches!(self.kind, ScriptKind::Fixed | ScriptKind::Commit) =>
            {
                self.kind = ScriptKind::Ledger;
                self.waits_for(WaitsFor::OtherScript);
                return Err(self);
            }
            ScriptVerdict::Corrupt(charges) => {
                self.owed.settle();
                Err(NotDecided::Failed(StoreError::Corrupt(charges)))
            }
            ScriptVerdict::WriteRefused(refusal) => Err(NotDecided::Failed(refusal.into())),
            ScriptVerdict::Failed => Err(NotDecided::Failed(StoreError::CallFailed)),
            ScriptVerdict::Elsewhere => Err(NotDecided::Elsewhere(None, self.owed)),
        };
        Ok((self.caller, answer))
    }
}
