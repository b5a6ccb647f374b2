//! The hits that were assigned to one proxy for one bucket.

use std::time::Duration;

use tokio::time::Instant;

/// How much later than it should a proxy may end an assignment.
const ENDS_LATE_BY: Duration = Duration::from_secs(1);

/// An assignment, and what of it was used.
#[derive(Debug)]
pub(super) struct Grant {
    /// It gives back what is unused.
    pub(super) token: String,
    pub(super) hits: u64,
    pub(super) used: u64,
    /// When it ends in the proxy.
    pub(super) ends: Instant,
    /// When the first window ends in which it was charged.
    pub(super) window_ends: Instant,
}

/// Those of which something may be unused, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<Grant>);

impl Grants {
    pub(super) fn add(&mut self, grant: Grant) {
        self.0.push(grant);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hits that may still be used or given back.
    pub(super) fn unused(&self) -> u64 {
        self.0.iter().map(Grant::unused).sum()
    }

    /// Whether the proxy may still use some.
    pub(super) fn are_alive(&self, now: Instant) -> bool {
        self.0.iter().any(|grant| grant.ends > now && grant.unused() > 0)
    }

    /// Notes the calls that a proxy has let pass. A report does not say by which assignment, so that the oldest is used first:
    /// what is unused of the later ones is never less than what the proxy has. Returns the calls that none covers.
    pub(super) fn spend(&mut self, calls: u64) -> u64 {
        self.0.iter_mut().fold(calls, |calls, grant| {
            let used = calls.min(grant.unused());
            grant.used += used;
            calls - used
        })
    }

    /// Removes those of which no further use can be reported, since the report that was just noted was made after their end.
    pub(super) fn ended(&mut self, now: Instant) -> Vec<Grant> {
        let is_ended = |grant: &mut Grant| grant.unused() == 0 || grant.ends + ENDS_LATE_BY <= now;
        self.0.extract_if(.., is_ended).collect()
    }
}

impl Grant {
    pub(super) const fn unused(&self) -> u64 {
        self.hits - self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn grants(hits: &[u64], now: Instant) -> Grants {
        let mut grants = Grants::default();
        for (hits, place) in hits.iter().zip(0..) {
            let (ends, window_ends) = (now + 7 * SECOND + place * 5 * SECOND, now + 60 * SECOND);
            grants.add(Grant { token: hits.to_string(), hits: *hits, used: 0, ends, window_ends });
        }
        grants
    }

    #[test]
    fn the_oldest_is_used_first_and_what_none_covers_is_returned() {
        let mut grants = grants(&[10, 5], Instant::now());
        assert_eq!((grants.spend(8), grants.unused()), (0, 7));
        assert_eq!((grants.spend(4), grants.unused()), (0, 3));
        assert_eq!((grants.spend(5), grants.unused()), (2, 0));
    }

    #[test]
    fn one_ends_with_the_first_report_that_was_made_a_second_after_its_end() {
        let now = Instant::now();
        let mut grants = grants(&[10, 5], now);
        grants.spend(4);
        assert!(grants.ended(now + 8 * SECOND - Duration::from_nanos(1)).is_empty());
        let ended = grants.ended(now + 8 * SECOND);
        let ended: Vec<_> = ended.iter().map(|grant| (&*grant.token, grant.unused())).collect();
        assert_eq!((ended, grants.unused()), (vec![("10", 6)], 5));
    }

    #[test]
    fn one_that_is_used_up_is_no_longer_kept() {
        let now = Instant::now();
        let mut grants = grants(&[10], now);
        grants.spend(10);
        assert!(!grants.are_alive(now));
        assert_eq!(grants.ended(now).len(), 1);
        assert!(grants.is_empty());
    }
}
