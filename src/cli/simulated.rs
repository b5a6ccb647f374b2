//! Rules on simulated time: calls are decided in memory, at the times that they state.

use std::collections::{HashMap, VecDeque};

use crate::{
    engine::{
        decision::Decision,
        hold_id::HoldId,
        ledger::TakenHold,
        parameters::Parameters,
        plan::Plan,
        request::{HitsMeaning, Request},
        rule_set::RuleSet,
        time::Timestamp,
    },
    store::memory::{MemoryStore, metrics::MemorySize},
};

/// More counters than a service keeps in memory, since the recorded calls may have been counted in Redis.
const SIZE_MAX: MemorySize = MemorySize { counters: 16_000_000, bytes: 8 << 30 };

#[derive(Debug)]
pub(super) struct SimulatedService<'rules> {
    rules: &'rules RuleSet,
    store: MemoryStore,
    /// What was taken, by the names with which commits name it in place of tokens.
    holds: HashMap<Vec<u8>, TakenHold>,
    /// The names that commits have used, and when, the oldest first.
    committed: VecDeque<(Timestamp, Vec<u8>)>,
    takes: u128,
}

impl<'rules> SimulatedService<'rules> {
    /// A service with empty counters.
    pub(super) fn new(rules: &'rules RuleSet) -> Self {
        let store = MemoryStore::of_size(|| Timestamp::from_millis(0), SIZE_MAX);
        Self { rules, store, holds: HashMap::new(), committed: VecDeque::new(), takes: 0 }
    }

    /// Decides a call at `at`. Commits can name what it takes by `hold`.
    pub(super) fn decide(
        &mut self,
        request: &Request,
        meaning: HitsMeaning,
        at: Timestamp,
        hold: Option<&[u8]>,
    ) -> Decision {
        self.decide_seeing(request, meaning, at, hold, |_| {})
    }

    /// Like [`decide`](Self::decide), and calls `see` with what the call would charge.
    pub(super) fn decide_seeing(
        &mut self,
        request: &Request,
        meaning: HitsMeaning,
        at: Timestamp,
        hold: Option<&[u8]>,
        see: impl FnOnce(&Plan),
    ) -> Decision {
        let descriptors = request.descriptors.iter().enumerate();
        let commits = descriptors.filter_map(|(index, descriptor)| {
            let name = Parameters::of(&descriptor.entries)?.commit()?;
            let taken = self.holds.get(name)?.clone();
            self.committed.push_back((at, name.to_owned()));
            Some((index, taken))
        });
        let commits: Vec<(usize, TakenHold)> = commits.collect();
        let mut plan = Plan::draw_as(self.rules, None, request, &commits, meaning);
        self.takes += 1;
        plan.set_hold_id(HoldId::new(self.takes));
        see(&plan);
        let verdict = self.store.charge_at(&plan.charges, at);
        let decision = plan.settle(verdict);
        if let (Some(name), Some(taken)) = (hold, &decision.taken) {
            self.holds.insert(name.to_owned(), taken.clone());
        }
        decision
    }

    /// Forgets what was committed before this time. Another commit of it would change no counter.
    pub(super) fn forget_committed_before(&mut self, time: Timestamp) {
        while let Some((_, name)) = self.committed.pop_front_if(|(at, _)| *at < time) {
            self.holds.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::{Descriptor, Entry, Hits};

    #[test]
    fn what_was_committed_is_forgotten_and_open_holds_are_not() {
        let rules = RuleSet::default();
        let mut service = SimulatedService::new(&rules);
        for (name, id) in [("committed", 1), ("open", 2)] {
            let taken = TakenHold { id: HoldId::new(id), charges: Vec::new() };
            service.holds.insert(name.into(), taken);
        }
        let entry = Entry { key: "hold.commit".into(), value: "committed".into() };
        let descriptors = vec![Descriptor::new(vec![entry], Hits::Charge(1))];
        let request = Request { domain: "shop".to_owned(), descriptors };
        service.decide(&request, HitsMeaning::Charged, Timestamp::from_millis(1_000), None);
        for (before, known) in [(1_000, 2), (1_001, 1)] {
            service.forget_committed_before(Timestamp::from_millis(before));
            assert_eq!(service.holds.len(), known);
        }
        assert!(service.holds.contains_key(&b"open"[..]));
    }
}
