//! A call that meets counters which hold no count: somebody has written to their keys. For each its
//! limit's `on_store_failure` answers; the other charges are judged as usual.

use std::sync::Arc;

use super::{Charged, Guard};
use crate::{
    engine::{
        ledger::{Charge, Tally, Verdict, denies},
        request::Hits,
        rule::{Limit, OnStoreFailure, Unit, WhenDenied},
    },
    store::{StoreError, fallback},
};

/// The tallies of both parts of a call, and whether it is denied. Quotas at fault count as enforced.
struct Settled {
    faulty: Vec<Tally>,
    sound: Vec<Tally>,
    denied: bool,
}

impl Guard {
    /// Makes the charges of a call but for those `at_fault`.
    pub(super) async fn charge_without(
        &self,
        charges: &[Charge],
        at_fault: &[usize],
    ) -> Result<Charged, StoreError> {
        let pick = |wanted: bool| {
            let charges = charges.iter().enumerate();
            let picked = charges.filter(move |(number, _)| at_fault.contains(number) == wanted);
            picked.map(|(_, charge)| charge.clone())
        };
        let (faulty, sound): (Vec<Charge>, Vec<Charge>) =
            (pick(true).collect(), pick(false).collect());
        let Settled { faulty, sound, denied } = self.settle(&faulty, &sound, at_fault).await?;
        let (mut faulty, mut sound) = (faulty.into_iter(), sound.into_iter());
        let tally = |number| {
            if at_fault.contains(&number) { faulty.next() } else { sound.next() }
        };
        let tallies = (0..charges.len()).filter_map(tally).collect();
        Ok(Charged { tallies, denied, unreadable: at_fault.to_vec() })
    }

    async fn settle(
        &self,
        faulty: &[Charge],
        sound: &[Charge],
        at_fault: &[usize],
    ) -> Result<Settled, StoreError> {
        let is_error = |charge: &Charge| match fallback::mode(charge) {
            OnStoreFailure::Error => true,
            // That a refund is lost must be told.
            OnStoreFailure::Deny => charge.hits.is_give_back(),
            OnStoreFailure::Allow | OnStoreFailure::Local => false,
        };
        let denied = faulty.iter().any(fallback::denies);
        if !denied && faulty.iter().any(is_error) {
            // The call may be over its limit all the same, which is a better answer than an error.
            let error = || StoreError::Unreadable(at_fault.to_vec());
            let preview = free(sound);
            let would_deny = denies(&preview, &self.deny(faulty, &preview).await?);
            if !would_deny {
                return Err(error());
            }
            let tallies = self.deny(faulty, sound).await?;
            let passed = faulty.iter().map(fallback::passes).collect();
            return match denies(sound, &tallies) {
                true => Ok(Settled { faulty: passed, sound: tallies, denied: true }),
                false => Err(error()),
            };
        }

        let is_local = |it: &&Charge| fallback::mode(it) == OnStoreFailure::Local;
        let local: Vec<Charge> = faulty.iter().filter(is_local).cloned().collect();
        let judged = self.fallback.local(&local);
        let denied = denied || any_over(&judged);
        let tallies = match denied {
            true => self.deny(faulty, sound).await?,
            false if sound.is_empty() => Vec::new(),
            false => self.store.charge(sound).await?,
        };
        let denied = denied || denies(sound, &tallies);
        // Where `deny` or a sibling has denied, nothing stands that was charged in memory.
        if denied && !any_over(&judged) {
            self.fallback.undo(&local);
        }
        let mut judged = judged.into_iter();
        let tally = |it: &Charge| match fallback::mode(it) {
            OnStoreFailure::Local => judged.next().unwrap_or_else(fallback::over),
            _ if fallback::denies(it) => fallback::over(),
            _ => fallback::passes(it),
        };
        Ok(Settled { faulty: faulty.iter().map(tally).collect(), sound: tallies, denied })
    }

    /// Judges `sound` in a call that is denied anyway: a charge on a limit of 0 stands in for `faulty`.
    async fn deny(&self, faulty: &[Charge], sound: &[Charge]) -> Result<Vec<Tally>, StoreError> {
        let Some(first) = faulty.first() else { return Ok(Vec::new()) };
        // Nobody else counts in windows of a hundred years.
        let none = Limit::new(0, Unit::Year, 100).map(Arc::new);
        let stand_in = none.map(|none| Charge {
            counter: first.counter.under(none),
            hits: Hits::Look,
            caller: None,
        });
        let charges: Vec<Charge> = sound.iter().cloned().chain(stand_in).collect();
        let mut tallies = self.store.charge(&charges).await?;
        tallies.truncate(sound.len());
        Ok(tallies)
    }
}

/// The same charges, but nothing comes of them in a call that is denied.
fn free(charges: &[Charge]) -> Vec<Charge> {
    let free = |charge: &Charge| {
        let limit = Limit { when_denied: WhenDenied::Free, ..(*charge.counter.limit).clone() };
        Charge { counter: charge.counter.under(Arc::new(limit)), ..charge.clone() }
    };
    charges.iter().filter(|charge| !charge.hits.is_give_back()).map(free).collect()
}

fn any_over(tallies: &[Tally]) -> bool {
    tallies.iter().any(|tally| tally.verdict == Verdict::Over)
}
