//! Holds: hits that are charged before the work, and replaced by what it has really used.

use std::{collections::HashMap, mem, time::Duration};

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use tracing::Instrument as _;

use crate::call::{Call, Error, HITS_MAX, check_hits};
use crate::v1::{self, CommitRequest, RenewRequest, Renewal};
use crate::{Client, Decision, ServiceError, client::Counted, client::Service, log::COMMITS};

const COMMIT_PAUSE: Duration = Duration::from_millis(100);
/// How long [`Client::close`] waits for the next of the open holds to be dropped. Its own caller may have one.
const NEXT_DROPPED_WITHIN: Duration = Duration::from_millis(100);
/// How long [`Client::close`] waits for the calls that it has ended.
const ENDED_WITHIN: Duration = Duration::from_secs(1);
/// The codes of commits that may not have arrived.
const MISSING: [&str; 4] = ["UNAVAILABLE", "UNKNOWN", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"];

/// What becomes of a hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// [`Decision::hold`].
    pub hold: String,
    /// Number of hits that were used. Without it, all that was held counts.
    pub used: Option<u64>,
    /// The same by kind, for limits with `weights`.
    pub used_by_kind: HashMap<String, u64>,
    /// How the work ended, such as `503 UF`, which is compared with `unused_on` of the rule.
    pub end: String,
}

impl Commit {
    /// The hold of another process by its [`Decision::hold`], and the number of hits that were used.
    pub fn new(hold: impl Into<String>, used: impl Into<Option<u64>>) -> Self {
        Self { hold: hold.into(), used: used.into(), ..Self::default() }
    }

    fn validate(&self) -> Result<(), Error> {
        check_hits("used", self.used)?;
        let mut kinds = self.used_by_kind.iter();
        kinds.try_for_each(|(kind, hits)| {
            check_hits(&format!("used_by_kind[{kind:?}]"), Some(*hits))
        })
    }

    fn encode(self) -> v1::Commit {
        let Self { hold, used, used_by_kind, end } = self;
        v1::Commit { hold, used, used_by_kind, end }
    }
}

/// A hold, or a call that got none. It is committed when it is dropped, also if the work panics or its caller has left:
/// then the commit is sent in the background.
#[must_use = "a hold is committed when it is dropped"]
pub struct Hold {
    /// The decision about the hold. A hold that is not allowed has nothing to commit.
    pub decision: Decision,
    client: Client,
    commit: Commit,
    /// What was used before a renewal that has ended nothing: it is committed too.
    before: Commit,
    _open: Counted,
}

impl Client {
    /// Charges an estimate for work that begins now, such as `Call::take(400, on("user", "alice"))`. All descriptors have room
    /// for it, or nothing is held.
    pub async fn hold(&self, call: impl Into<Call>) -> Result<Hold, Error> {
        let call = call.into();
        call.validate("estimate")?;
        let client = self.clone();
        let (mut hold, mistake) = self.take(async move { client.decide_one(call).await }).await?;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        hold.commit.used = None;
        Ok(hold)
    }

    /// Makes a request of a hold. It goes on if its caller leaves. What it holds is given back if nobody begins to use it.
    #[expect(clippy::disallowed_methods, reason = "`flush` awaits it")]
    async fn take<More: Send + 'static>(
        &self,
        request: impl Future<Output = Result<(Decision, More), Error>> + Send + 'static,
    ) -> Result<(Hold, More), Error> {
        let (client, under_way) = (self.clone(), Counted::new(&self.shared.under_way));
        let open = Counted::new(&self.shared.open);
        let taking = async move {
            let (decision, more) = request.await?;
            let commit = Commit::new(&*decision.hold, 0);
            let before = Commit::default();
            Ok((Hold { decision, client, commit, before, _open: open }, more, under_way))
        };
        let taken = tokio::spawn(taking.in_current_span()).await;
        let (hold, more, _) = taken.map_err(|error| Error(format!("runtime: {error}")))??;
        Ok((hold, more))
    }

    /// Commits what another process holds. Returns the error, if there was one. It may be repeated: only the first commit
    /// counts. It goes on if this future is dropped.
    pub async fn commit(&self, commit: Commit) -> Result<Option<ServiceError>, Error> {
        commit.validate()?;
        let ended = |_| Some(ServiceError::new(Code::Cancelled, "the runtime has ended"));
        Ok(self.send_commit(commit).await.unwrap_or_else(ended))
    }

    /// Waits until no commit and no hold is under way. Call it, or [`Self::close`], before the runtime ends: it would end the
    /// commits of dropped holds.
    pub async fn flush(&self) {
        // The sender is in `self`.
        let _ = self.shared.under_way.subscribe().wait_for(|number| *number == 0).await;
    }

    /// Gives back the hits of each [`Limiter`](crate::Limiter), waits for the commits under way, at most the timeout of a commit,
    /// and ends the connections. Calls that have no answer then, and new ones, are decided by `on_failure`. Open holds, such as of
    /// tasks that were just aborted, are committed before, until none is dropped for 100 ms.
    pub async fn close(&self) {
        self.shared.closes.send_replace(true);
        let given_back = async {
            self.shared.closes.closed().await;
            // Tasks that were aborted just before have yet to drop their holds.
            let mut open = self.shared.open.subscribe();
            loop {
                let is_last = *open.borrow_and_update() == 0;
                self.flush().await;
                if is_last || timeout(NEXT_DROPPED_WITHIN, open.changed()).await.is_err() {
                    break;
                }
            }
        };
        let _ = timeout(self.options.commit_timeout, given_back).await;
        self.shared.service.send_replace(None);
        // The log has the calls that this has ended. One may be kept and not polled.
        let mut deciding = self.shared.deciding.subscribe();
        let _ = timeout(ENDED_WITHIN, deciding.wait_for(|number| *number == 0)).await;
        self.shared.log.remind(true);
    }

    #[expect(clippy::disallowed_methods, reason = "`flush` awaits the commits of dropped holds")]
    pub(crate) fn send_commit(&self, commit: Commit) -> JoinHandle<Option<ServiceError>> {
        let (client, under_way) = (self.clone(), Counted::new(&self.shared.under_way));
        let committing = async move {
            let began = Instant::now();
            let error = client.commit_within(commit.encode(), began).await.err();
            client.observe("commit", began, error.as_ref());
            client.shared.log.errors(&COMMITS, &client.options.domain, error.iter());
            drop(under_way);
            error
        };
        self.shared.runtime.spawn(committing.in_current_span())
    }

    async fn commit_within(&self, commit: v1::Commit, began: Instant) -> Result<(), ServiceError> {
        let (time, mut pause) = (self.options.commit_timeout, COMMIT_PAUSE);
        loop {
            let attempt_time = time.saturating_sub(began.elapsed()).min(time / 4);
            let domain = self.options.domain.clone();
            let request = CommitRequest { domain, commits: vec![commit.clone()] };
            let rpc = async |mut service: Service, request| service.commit(request).await;
            match self.send(attempt_time, request, rpc).await {
                Ok(mut answer) => {
                    let result = answer.results.pop().ok_or_else(ServiceError::not_ours)?;
                    return result.error.map_or(Ok(()), |error| Err(ServiceError::decode(error)));
                }
                Err(error) if MISSING.contains(&error.code) && began.elapsed() + pause < time => {}
                Err(error) => return Err(error),
            }
            sleep(pause).await;
            pause *= 2;
        }
    }
}

impl Hold {
    /// Whether the work may begin.
    pub fn allowed(&self) -> bool {
        self.decision.allowed
    }

    /// Sets the number of hits that the work has used. Without it, all that was held counts.
    pub fn used(&mut self, hits: u64) -> Result<(), Error> {
        check_hits("used", Some(hits))?;
        self.commit.used = Some(hits);
        Ok(())
    }

    /// Sets the number that was used of one kind, for limits with `weights`.
    pub fn used_kind(&mut self, kind: &str, number: u64) -> Result<(), Error> {
        check_hits(&format!("used_by_kind[{kind:?}]"), Some(number))?;
        self.commit.used_by_kind.insert(kind.to_owned(), number);
        Ok(())
    }

    /// Sets how the work ended, such as `503 UF`, which is compared with `unused_on` of the rule.
    pub fn end(&mut self, end: impl Into<String>) {
        self.commit.end = end.into();
    }

    /// Commits now, with this number of hits, or with what was set if it is `None`. Returns the error, if there was one: then
    /// the commit is sent once more in the background.
    ///
    /// # Errors
    ///
    /// The number is not valid. Then the hold is committed without it.
    pub async fn commit(
        mut self,
        used: impl Into<Option<u64>>,
    ) -> Result<Option<ServiceError>, Error> {
        if let Some(hits) = used.into() {
            self.used(hits)?;
        }
        let commit = self.take_pending();
        if commit.hold.is_empty() {
            return Ok(None);
        }
        let error = self.client.commit(commit.clone()).await?;
        if error.is_some() {
            self.commit = commit;
        }
        Ok(error)
    }

    /// Gives back all that is held: nothing was used.
    pub async fn release(mut self) -> Option<ServiceError> {
        self.commit.used_by_kind.clear();
        self.before = Commit::default();
        self.commit(0).await.unwrap_or_default()
    }

    /// What is to be committed: nothing more after it.
    fn take_pending(&mut self) -> Commit {
        let (mut commit, before) = (mem::take(&mut self.commit), mem::take(&mut self.before));
        if let Some(used) = before.used {
            commit.used = Some(HITS_MAX.min(used + commit.used.unwrap_or_default()));
        }
        for (kind, number) in before.used_by_kind {
            let used = commit.used_by_kind.entry(kind).or_default();
            *used = HITS_MAX.min(*used + number);
        }
        commit
    }

    /// Commits what was used so far, and holds an estimate for what comes next, in one step. What is used is counted anew from
    /// here. If the service allows it, this is the new hold; without an answer it stays the old one, with all that was used.
    ///
    /// # Errors
    ///
    /// A number is not valid.
    pub async fn renew(
        &mut self,
        used: impl Into<Option<u64>>,
        call: impl Into<Call>,
    ) -> Result<Decision, Error> {
        let call = call.into();
        call.validate("estimate")?;
        if let Some(hits) = used.into() {
            self.used(hits)?;
        }
        if self.commit.hold.is_empty() {
            *self = self.client.hold(call).await?;
            return Ok(self.decision.clone());
        }
        let commit = self.take_pending();
        // Also if this future is dropped.
        self.commit =
            Commit { hold: commit.hold.clone(), end: commit.end.clone(), ..Commit::default() };
        self.before = commit.clone();
        let client = self.client.clone();
        let renewing = async move {
            let mut is_committed = false;
            let ask = async |mut calls: Vec<_>| {
                let renewals = vec![Renewal { commit: Some(commit.encode()), call: calls.pop() }];
                let request = RenewRequest { domain: client.options.domain.clone(), renewals };
                let rpc = async |mut service: Service, request| service.renew(request).await;
                let results = client.send(client.options.timeout, request, rpc).await?.results;
                let mut commits = results.iter().filter_map(|result| result.commit.as_ref());
                is_committed = commits.next().is_some_and(|commit| commit.error.is_none());
                Ok(results.into_iter().filter_map(|result| result.verdict).collect())
            };
            let mut decisions = client.judge("renew", vec![call], ask).await?;
            let (decision, mistake) = decisions.pop().expect("one decision for each call");
            Ok((decision, (mistake, is_committed)))
        };
        let (mut renewed, (mistake, is_committed)) = self.client.take(renewing).await?;
        let decision = renewed.decision.clone();
        if is_committed || !decision.hold.is_empty() {
            (self.commit, self.before) = <(Commit, Commit)>::default();
        }
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        if !decision.hold.is_empty() {
            self.commit.hold = mem::take(&mut renewed.commit.hold);
        }
        if decision.allowed && !decision.failed() {
            self.decision = decision.clone();
        }
        Ok(decision)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let commit = self.take_pending();
        if !commit.hold.is_empty() {
            self.client.send_commit(commit);
        }
    }
}
