//! What a replica knows of the overrides in the store, and the store's time.

use std::{collections::BTreeMap, iter, sync::Arc};

use tokio::{sync::mpsc, time::Instant};

use super::written::{NewOverride, OVERRIDES_MAX, Override, OverrideError};
use crate::{
    engine::{directive::Directive, time::Timestamp},
    process::{clock::system_clock, pause::random},
    store::StoreError,
};

#[derive(Debug, Default)]
pub(super) struct KnownOverrides {
    /// What the store keeps, the newest first; some may have ended.
    pub(super) all: Vec<Arc<Override>>,
    /// Whether they were read since the start.
    pub(super) is_known: bool,
    /// What the field has held that every change replaces.
    pub(super) version: Vec<u8>,
    /// The number of its fields when it was read last, with the one that every change replaces.
    pub(super) fields: usize,
    /// What the store keeps that this replica cannot read, as a sentence.
    pub(super) problem: Option<String>,
    /// Why the store gave no answer, if it gave none the last time.
    pub(super) silent: Option<StoreError>,
    /// A time that the store has shown, and when; without one, the machine's clock counts.
    shown: Option<(Timestamp, Instant)>,
    /// What was in force when changes were last recorded, by id.
    pub(super) recorded: Option<BTreeMap<Arc<str>, Arc<Override>>>,
    /// Gets each override that has ended.
    pub(super) ended_to: Option<mpsc::Sender<EndedOverride>>,
    /// Whether the log says why they are not known.
    pub(super) is_reported: bool,
}

/// An override that this replica has stopped applying.
#[derive(Debug)]
pub struct EndedOverride {
    pub one: Arc<Override>,
    /// `expired` or `undone`.
    pub end: &'static str,
}

impl KnownOverrides {
    pub(super) fn new(is_known: bool) -> Self {
        Self { is_known, recorded: is_known.then(BTreeMap::new), ..Self::default() }
    }

    /// The time by the store's clock. It does not depend on how the machine's clock is set.
    pub(super) fn now(&self) -> Timestamp {
        let Some((shown, at)) = self.shown else { return system_clock() };
        shown.plus_millis(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn in_force(&self) -> impl Iterator<Item = &Arc<Override>> {
        let now = self.now();
        self.all.iter().filter(move |one| one.directive.until > now)
    }

    pub(super) fn ended(&self) -> Vec<String> {
        let now = self.now();
        let ended = self.all.iter().filter(|one| one.directive.until <= now);
        ended.map(|one| one.directive.id.to_string()).collect()
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Override>> {
        self.in_force().find(|one| &*one.directive.id == id).cloned()
    }

    /// The one in force that applies in place of this one once it has ended: the newest for the same target, if older.
    pub(super) fn superseded_by(&self, new: &Directive) -> Option<Arc<Override>> {
        let is_other =
            |one: &&Arc<Override>| one.directive.id != new.id && one.directive.has_target_of(new);
        self.in_force().find(is_other).filter(|one| one.directive.set_at < new.set_at).cloned()
    }

    /// A new one that is set now, with an id that no other has.
    pub(super) fn added(
        &self,
        new: &NewOverride,
        by: String,
    ) -> Result<Arc<Override>, OverrideError> {
        if self.in_force().count() >= OVERRIDES_MAX {
            return Err(OverrideError::Full);
        }
        let mut ids = iter::repeat_with(|| format!("{:08x}", random()));
        let is_new = |id: &String| self.all.iter().all(|one| &*one.directive.id != id);
        let id = ids.find(is_new).unwrap_or_default();
        // Of two for the same target, the later one applies.
        let after = self.all.first().map(|newest| newest.directive.set_at.plus_millis(1));
        let now = self.now();
        let set_at = now.max(after.unwrap_or_default());
        let (directive, because) = (new.directive(&id, set_at, now), new.because.clone());
        Ok(Arc::new(Override { directive, because, by }))
    }

    /// Notes what cannot be read, and logs it when it changes.
    pub(super) fn note_problem(&mut self, problem: Option<String>) {
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.problem) {
            tracing::warn!("{problem}");
        }
        self.problem = problem;
    }

    /// Learns a time that the store has shown in an answer to a request that was sent at `sent`.
    pub(super) fn learn(&mut self, shown: Timestamp, sent: Instant) {
        self.shown = Some((shown, sent + sent.elapsed() / 2));
    }
}
