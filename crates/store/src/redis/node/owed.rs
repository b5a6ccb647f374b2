//! Work that a call must not lose: what it charges for work that is done, commits, gives back or occupies. It belongs to one
//! value, which moves with the call until its caller has the answer. When that value is dropped before, wherever that is,
//! it decides by what is known of the work what is sent later.

use std::sync::Arc;

use tollkeeper_engine::time::Timestamp;

use super::unsent::{Made, RELEASED_AFTER, Unsent, UnsentWork};
use crate::{redis::script::work::NodeWork, sync::time::Instant};

/// Work, and the queue that keeps what remains of it.
#[derive(Debug)]
pub(crate) struct Owed {
    pub(crate) work: NodeWork,
    /// `None` if nothing of it has to be done once its caller has gone.
    owner: Option<Box<Owner>>,
}

#[derive(Debug)]
struct Owner {
    unsent: Arc<Unsent>,
    fate: Fate,
    made: Made,
    /// When it is of no use any more, if it was kept before.
    until: Option<Instant>,
}

/// What is known of work.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// It has not run: it is kept.
    NotRun,
    /// It was sent: what counts once is sent again, and what it occupies is released.
    Sent,
    /// The server has answered it with an error, and would again. What it occupies is released.
    Failed,
    /// The server has admitted it at this time, and has charged this many hits of its parts. What it has taken is given back,
    /// unless its caller hears of it.
    Admitted(Timestamp, Option<u64>),
    /// The server has decided it, and it has taken nothing.
    Done,
    /// The server has denied the call, and refused to write what still counts: that is kept although the caller has its
    /// answer.
    Unwritten,
}

impl Owed {
    /// Work of a caller, which arrives now: at `made` by Redis's clock, if that is known.
    pub(crate) fn new(
        work: NodeWork,
        unsent: &Arc<Unsent>,
        made: impl FnOnce(&NodeWork) -> Option<Timestamp>,
    ) -> Self {
        let owner = work.outlives_answer().then(|| {
            let made = made(&work).map_or_else(|| Made::Since(Instant::now()), Made::At);
            let unsent = Arc::clone(unsent);
            Box::new(Owner { unsent, fate: Fate::NotRun, made, until: None })
        });
        Self { work, owner }
    }

    pub(crate) fn kept(kept: UnsentWork, unsent: Arc<Unsent>) -> Self {
        let UnsentWork { work, made, until, .. } = kept;
        let owner = Owner { unsent, fate: Fate::NotRun, made, until: Some(until) };
        Self { work, owner: Some(Box::new(owner)) }
    }

    /// The time whose windows it is for, if it was kept: a commit counts once, and what was used beyond its hold is charged
    /// in the window of now.
    pub(super) fn only_at(&self) -> Option<Timestamp> {
        let owner = self.owner.as_ref().filter(|owner| owner.until.is_some())?;
        (!self.work.counts_once()).then(|| owner.made.at())
    }

    /// Dates work that arrived before Redis's clock was known, which shows `now`. `None` if the work has a date.
    pub(super) fn date(&mut self, now: Timestamp) -> Option<Timestamp> {
        let owner = self.owner.as_mut()?;
        let Made::Since(arrived) = owner.made else { return None };
        let passed = i64::try_from(arrived.elapsed().as_millis()).ok()?;
        let made = now.shifted(-passed);
        owner.made = Made::At(made);
        Some(made)
    }

    /// Whether it was kept, and no caller waits.
    pub(super) fn is_kept(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.until.is_some())
    }

    /// Notes what is known of it now.
    pub(super) fn is(&mut self, fate: Fate) {
        if let Some(owner) = &mut self.owner {
            owner.fate = fate;
        }
    }

    /// Nothing is owed any more: its caller has the answer, or sends it in another form.
    pub(crate) fn settle(mut self) {
        let settled = self.owner.take_if(|owner| !matches!(owner.fate, Fate::Unwritten));
        if let Some(owner) = settled.filter(|owner| owner.until.is_some()) {
            owner.unsent.replace(Some(&self.work), Vec::new());
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let Owner { unsent, fate, made, until } = *owner;
        let (work, now) = (&self.work, Instant::now());
        let keep = |work: NodeWork, not_before: Instant| {
            let until = until.unwrap_or_else(|| now + work.remaining(made.at()));
            UnsentWork { work, made, until, not_before }
        };
        let kept: Vec<UnsentWork> = match fate {
            Fate::NotRun | Fate::Unwritten => {
                work.outliving().map(|work| keep(work, now)).collect()
            }
            Fate::Sent => {
                let again = work.outliving().filter(NodeWork::counts_once);
                let later = now + RELEASED_AFTER;
                let released = work.releases(made.at()).map(|work| keep(work, later));
                again.map(|work| keep(work, now)).chain(released).collect()
            }
            Fate::Failed => work.releases(made.at()).map(|work| keep(work, now)).collect(),
            Fate::Admitted(at, part) => {
                let refunds = work.refunds(at, part);
                work.releases(at).chain(refunds).map(|work| keep(work, now)).collect()
            }
            Fate::Done => Vec::new(),
        };
        unsent.replace(until.is_some().then_some(work), kept);
    }
}
