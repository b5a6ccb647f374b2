//! What operators have set for some descriptors until a time: another number, exemption, ban or shadow. Here it is checked,
//! kept in the store, and put in force on this replica; `engine/directive.rs` finds the one of a descriptor.

mod events;
mod follow;
mod kept;
mod known;
mod written;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use opentelemetry::{KeyValue, metrics::Meter};
use parking_lot::Mutex;
use tokio::sync::mpsc;

pub use self::{
    known::EndedOverride,
    written::{NewOverride, Override, OverrideError, check_because},
};
use self::{known::KnownOverrides, written::OVERRIDES_MAX};
use crate::{
    engine::{
        directive::{Directive, DirectiveAction, Directives},
        time::Timestamp,
    },
    store::Store,
    telemetry::instruments,
};

// Beside the decisions by them.
instruments! {
    OVERRIDES = Gauge("ratelimit.overrides", ["action"], "overrides in force, by action");
    OVERRIDES_KNOWN = Gauge("ratelimit.overrides.known", [],
        "1 once the replica has read the overrides; while 0, it decides without");
}

/// The overrides of this replica, which follow the store.
#[derive(Debug)]
pub struct Overrides {
    store: Arc<Store>,
    /// Read by every call; `None` if there are none.
    in_force: ArcSwapOption<Directives>,
    known: Mutex<KnownOverrides>,
    /// Held during an exchange with the store, so that none puts older overrides in force than the one before.
    turn: tokio::sync::Mutex<()>,
    /// Is notified when the overrides in force have changed.
    changed: tokio::sync::Notify,
}

impl Overrides {
    /// The overrides in this store. They must be [followed](Self::follow).
    pub fn new(store: Arc<Store>) -> Self {
        let known = Mutex::new(KnownOverrides::new(store.servers().is_none()));
        let (turn, changed) = (tokio::sync::Mutex::default(), tokio::sync::Notify::new());
        Self { store, in_force: ArcSwapOption::empty(), known, turn, changed }
    }

    /// What is in force now, for one call.
    pub fn in_force(&self) -> arc_swap::Guard<Option<Arc<Directives>>> {
        self.in_force.load()
    }

    /// The overrides in force, the newest first, and the time by the store's clock; whether they were read since the start.
    pub fn list(&self) -> (Vec<Arc<Override>>, Timestamp, bool) {
        let known = self.known.lock();
        (known.in_force().cloned().collect(), known.now(), known.is_known)
    }

    /// The overrides that end from now on. If as many wait as there may be, further ones are dropped.
    pub fn ended(&self) -> mpsc::Receiver<EndedOverride> {
        let (ended_to, ended) = mpsc::channel(OVERRIDES_MAX);
        self.known.lock().ended_to = Some(ended_to);
        ended
    }

    pub fn now(&self) -> Timestamp {
        self.known.lock().now()
    }

    /// Why some may not be in force here, as a sentence.
    pub fn problem(&self) -> Option<String> {
        let known = self.known.lock();
        let unknown = "overrides are not known yet, since the store has not answered";
        known.problem.clone().or_else(|| (!known.is_known).then(|| unknown.to_owned()))
    }

    /// Why a list of them may lack some, as a sentence.
    pub fn list_problem(&self) -> Option<String> {
        let known = self.known.lock();
        let stale = "the store does not answer, and these are the last known overrides";
        let is_stale = known.is_known && known.silent.is_some();
        known.problem.clone().or_else(|| is_stale.then(|| stale.to_owned()))
    }

    /// The override in force that applies in place of this one once it has ended, if one for the same descriptors was set
    /// before.
    pub fn superseded_by(&self, new: &Directive) -> Option<Arc<Override>> {
        self.known.lock().superseded_by(new)
    }

    pub fn observe(self: &Arc<Self>, meter: &Meter) {
        let overrides = Arc::clone(self);
        OVERRIDES.observe(meter, move |observe| {
            let in_force = overrides.in_force();
            let all = in_force.as_ref().map_or(&[][..], |directives| directives.all());
            for name in DirectiveAction::NAMES {
                let count = all.iter().filter(|directive| directive.action.name() == name).count();
                #[expect(clippy::cast_precision_loss, reason = "at most 1,000")]
                observe(count as f64, &[KeyValue::new("action", name)]);
            }
        });
        let overrides = Arc::clone(self);
        OVERRIDES_KNOWN.observe(meter, move |observe| {
            observe(f64::from(u8::from(overrides.known.lock().is_known)), &[]);
        });
    }
}
