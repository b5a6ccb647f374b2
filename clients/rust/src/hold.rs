//! Holds: hits that are charged before the work, and replaced by what it has really used.

use std::{mem, time::Duration};

use tokio::{task::JoinHandle, time::sleep};

use crate::{Call, Client, Commit, Decision, Descriptor, Error, call::check_hits, v1::call::Mode};

const COMMIT_ATTEMPTS: usize = 3;
const COMMIT_PAUSE: Duration = Duration::from_millis(100);
/// The codes of commits that may not have arrived.
const REPEATED: [&str; 4] = ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL"];

/// A hold, or a call that got none. It is committed when it is dropped, also if the work panics or its caller has left:
/// then the commit is sent in the background.
#[must_use = "a hold is committed when it is dropped"]
pub struct Hold {
    /// The decision about the hold. A hold that is not allowed has nothing to commit.
    pub decision: Decision,
    client: Client,
    commit: Commit,
}

impl Client {
    /// Charges an estimate for work that begins now. All descriptors have room for it, or nothing is held.
    pub async fn hold(
        &self,
        estimate: u64,
        descriptors: impl Into<Vec<Descriptor>>,
    ) -> Result<Hold, Error> {
        check_hits("estimate", Some(estimate))?;
        self.hold_call(Call::take(estimate, descriptors)).await
    }

    /// [`Self::hold`] with the estimate of the rule.
    pub async fn hold_default(
        &self,
        descriptors: impl Into<Vec<Descriptor>>,
    ) -> Result<Hold, Error> {
        self.hold_call(Call::new(Mode::Take, None, descriptors)).await
    }

    /// [`Self::hold`] for a call with more, such as estimates by kind.
    pub async fn hold_call(&self, call: Call) -> Result<Hold, Error> {
        let decision = self.decide_call(call).await?;
        let commit = Commit { hold: decision.hold.clone(), ..Commit::default() };
        Ok(Hold { decision, client: self.clone(), commit })
    }

    /// Commits [`Decision::hold`], for work that ends elsewhere. Without an answer it is sent up to three times, also if
    /// this future is dropped. It may be repeated: only the first commit counts.
    pub async fn commit(&self, commit: Commit) -> Result<(), Error> {
        commit.validate()?;
        // It fails only if it panics, or with its runtime.
        let _ = self.send_commit(commit).await;
        Ok(())
    }

    /// Waits until no commit is under way. Call it before the runtime ends: it would end the commits of dropped holds.
    pub async fn flush(&self) {
        // The sender is in `self`.
        let _ = self.0.under_way.subscribe().wait_for(|number| *number == 0).await;
    }

    #[expect(clippy::disallowed_methods, reason = "`flush` awaits the commits of dropped holds")]
    fn send_commit(&self, commit: Commit) -> JoinHandle<()> {
        let under_way = UnderWay::new(self.clone());
        self.0.runtime.spawn(async move {
            for attempt in 1.. {
                let (is_answered, result) = under_way.0.0.commit(commit.clone()).await;
                // The service keeps a commit for which the store gave no answer.
                let is_repeated = result.is_err_and(|error| REPEATED.contains(&error.code));
                if is_answered || !is_repeated || attempt == COMMIT_ATTEMPTS {
                    return;
                }
                sleep(COMMIT_PAUSE).await;
            }
        })
    }
}

/// A commit under way. It ends also where its runtime ends.
struct UnderWay(Client);

impl UnderWay {
    fn new(client: Client) -> Self {
        client.0.under_way.send_modify(|number| *number += 1);
        Self(client)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.under_way.send_modify(|number| *number -= 1);
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

    /// Commits now, with this number of hits, or with what was set if it is `None`, and waits for the answer. Without one
    /// it is sent up to three times, and [`Options::on_call`](crate::Options::on_call) gets the errors.
    ///
    /// # Errors
    ///
    /// The number is not valid. Then the hold is committed without it.
    pub async fn commit(mut self, used: impl Into<Option<u64>>) -> Result<(), Error> {
        if let Some(hits) = used.into() {
            self.used(hits)?;
        }
        if let Some(commit) = self.send() {
            let _ = commit.await;
        }
        Ok(())
    }

    /// Gives back all that is held: nothing was used.
    pub async fn release(mut self) {
        self.commit.used_by_kind.clear();
        // 0 is valid.
        let _ = self.commit(0).await;
    }

    fn send(&mut self) -> Option<JoinHandle<()>> {
        let commit = mem::take(&mut self.commit);
        (!commit.hold.is_empty()).then(|| self.client.send_commit(commit))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.send();
    }
}
