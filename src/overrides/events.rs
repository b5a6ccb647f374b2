//! The events of overrides: each replica finds by itself what operators have set and undone, on any replica.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    known::{EndedOverride, KnownOverrides},
    written::Override,
};
use crate::{
    engine::directive::Directive,
    telemetry::{EventKind, happened},
};

/// At this number of changes of one kind, all at once are one event.
const TOGETHER: usize = 10;

impl KnownOverrides {
    /// Records an event for each override that was set, undone or ended since the last call. Those that are found at the
    /// start cause none.
    pub(super) fn record_changes(&mut self) {
        let now = self.now();
        let by_id = |one: &Arc<Override>| (Arc::clone(&one.directive.id), Arc::clone(one));
        let in_force: BTreeMap<_, _> = self.in_force().map(by_id).collect();
        let before = self.recorded.replace(in_force);
        let (Some(before), Some(in_force)) = (before, &self.recorded) else { return };
        let set = in_force.iter().filter(|(id, _)| !before.contains_key(*id));
        let gone = before.iter().filter(|(id, _)| !in_force.contains_key(*id));
        if let Some(to) = &self.ended_to {
            for (_, one) in gone.clone() {
                let end = if one.directive.until <= now { "expired" } else { "undone" };
                drop(to.try_send(EndedOverride { one: Arc::clone(one), end }));
            }
        }
        let (ended, undone): (Vec<_>, Vec<_>) =
            gone.map(|(_, one)| one).partition(|one| one.directive.until <= now);
        for (kind, changed) in [
            (EventKind::OverrideSet, set.map(|(_, one)| one).collect()),
            (EventKind::OverrideEnded, ended),
            (EventKind::OverrideUndone, undone),
        ] {
            if changed.len() >= TOGETHER {
                happened(kind, format!("{} overrides", changed.len()));
                continue;
            }
            for one in changed {
                let (Directive { id, domain, action, .. }, descriptor) =
                    (&*one.directive, one.descriptor());
                let Override { because, by, .. } = &**one;
                let text =
                    format!("{action} for {descriptor} in {domain}, by {by}: {because} ({id})");
                happened(kind, text);
            }
        }
    }
}
