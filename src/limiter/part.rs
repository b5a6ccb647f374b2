//! Calls of which a part is charged: as many hits as fit.

use super::{Deciding, Limiter};
use crate::{
    engine::{
        decision::{Code, Decision},
        ledger::Charge,
        request::{Hits, HitsMeaning, Request},
        rule::Mode,
    },
    store::{Clear, CounterReading, StoreError, guard::Arrival},
};

/// Attempts while others take what was seen to be left.
const ATTEMPTS_MAX: usize = 4;

impl Limiter {
    /// Decides a call of which up to `hits` are charged, to each descriptor as many. Returns their number too; `None` where a
    /// limit counts open holds, and has no parts. Each attempt is all or nothing, so that no limit is exceeded. If the store
    /// is `away`, it is not asked.
    ///
    /// # Errors
    /// If the store gives no answer; see [`StoreError`].
    pub async fn decide_part(
        &self,
        by: &Deciding,
        request: &mut Request,
        hits: u64,
        arrival: Arrival,
        away: Option<StoreError>,
    ) -> Result<Option<(Decision, u64)>, StoreError> {
        let mut attempts = 1;
        loop {
            let plan = self.draw(by, request, HitsMeaning::Part);
            if plan.charges.iter().any(|charge| charge.counter.limit.hold.is_some()) {
                return Ok(None);
            }
            let room = match &away {
                None => {
                    room(&plan.charges, &self.store.read_counters(&plan.charges, Clear::No).await)
                }
                Some(_) => None,
            };
            // Where nothing is left, one hit is denied in the usual way.
            let part = hits.min(room.unwrap_or(hits).max(1));
            let of_each = if part == 0 { Hits::Check } else { Hits::Charge(part) };
            request.descriptors.iter_mut().for_each(|descriptor| descriptor.hits = of_each);
            let decided = self.decide_by(by, request, HitsMeaning::Part, arrival, away.clone());
            let decision = decided.await?;
            let is_final =
                part <= 1 || attempts == ATTEMPTS_MAX || room.is_none() || plan.is_refused();
            match decision.code {
                Code::Ok => return Ok(Some((decision, part))),
                Code::OverLimit if is_final => return Ok(Some((decision, 0))),
                Code::OverLimit => attempts += 1,
            }
        }
    }
}

/// The hits that each of these charges can have now: a call passes if all limits have room, and one of the quotas. `None` if a
/// counter cannot be read: `on_store_failure` decides all of the hits.
fn room(charges: &[Charge], readings: &[CounterReading]) -> Option<u64> {
    let (mut room, mut of_quotas) = (u64::MAX, None);
    for (charge, reading) in charges.iter().zip(readings) {
        let CounterReading::State(state) = reading else { return None };
        let same = charges.iter().filter(|other| other.counter.same_counter(&charge.counter));
        let of_each = state.remaining / u64::try_from(same.count()).unwrap_or(u64::MAX);
        match charge.counter.limit.mode {
            _ if charge.has_room => of_quotas = Some(u64::MAX),
            Mode::Enforced => room = room.min(of_each),
            Mode::Quota => of_quotas = of_quotas.max(Some(of_each)),
            Mode::Shadow => {}
        }
    }
    Some(room.min(of_quotas.unwrap_or(u64::MAX)))
}
