//! What the streams of this replica claim of each bucket, so that it is divided by what they need.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};
use parking_lot::Mutex;
use tokio::{select, sync::Semaphore, time::Instant};

use crate::{telemetry::instruments, text::named::named};

instruments! {
    pub struct QuotaInstruments {
        assignments: Counter<u64> => ASSIGNMENTS = Counter("ratelimit.quota.assignments", ["result"],
            "answers to proxies about a bucket: it has hits (`assigned`), has none for some seconds (`denied`), has no limit (`unlimited`), or is given up (`abandoned`). No answer was sent if the limit cannot be assigned (`not_assigned`), or if the store did not answer (`no_answer`)");
    }
    BUCKETS = Gauge("ratelimit.quota.buckets", [], "buckets of the open streams of RLQS");
}

named! {
    /// An answer to a proxy about one of its buckets, or why there was none.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Told {
        Assigned = "assigned",
        Denied = "denied",
        Unlimited = "unlimited",
        Abandoned = "abandoned",
        /// Nothing: the store has given no answer.
        NoAnswer = "no_answer",
        /// Nothing: a limit cannot be assigned.
        NotAssigned = "not_assigned",
    }
}

/// The most connections that ask the store at the same time, each about the buckets of one turn. When a window begins, the
/// buckets of all streams are due at once.
const TURNS_AT_A_TIME: usize = 4;

/// The most ended streams whose reports are settled at the same time. What further ones hold is dropped, so that proxies that
/// come and go take little memory.
const ENDING_MAX: usize = 16;

/// What names a bucket.
pub(super) type BucketName = BTreeMap<String, Vec<u8>>;

/// The domain of a bucket, and its name.
type Key = Arc<(String, Arc<BucketName>)>;

/// The buckets of all streams.
#[derive(Debug)]
pub struct Claims {
    by_bucket: Mutex<HashMap<Key, Vec<Arc<Mutex<Demand>>>>>,
    metrics: QuotaInstruments,
    turns: Semaphore,
    /// One permit for each stream that has ended, and whose reports are being settled.
    pub(super) ending: Semaphore,
}

/// What one stream needs of a bucket, if that is known, and what it may still use until then, in hits.
#[derive(Debug, Default)]
struct Demand {
    needs: Option<u64>,
    unused: Option<(u64, Instant)>,
    /// The counters in which its latest assignment was charged, by their ids.
    counters: Vec<u64>,
}

/// The claim of one stream.
#[derive(Debug)]
pub(super) struct Claim {
    all: Arc<Claims>,
    bucket: Key,
    own: Arc<Mutex<Demand>>,
}

impl Claims {
    pub fn new(meter: &Meter) -> Arc<Self> {
        let metrics = QuotaInstruments::of_meter(meter);
        let (by_bucket, turns) = (Mutex::default(), Semaphore::new(TURNS_AT_A_TIME));
        let ending = Semaphore::new(ENDING_MAX);
        let claims = Arc::new(Self { by_bucket, metrics, turns, ending });
        Told::ALL.into_iter().for_each(|told| claims.count(told, 0));
        let observed = Arc::downgrade(&claims);
        BUCKETS.observe(meter, move |to| {
            let open = observed
                .upgrade()
                .map_or(0, |claims| claims.by_bucket.lock().values().map(Vec::len).sum());
            #[expect(clippy::cast_precision_loss, reason = "a gauge")]
            to(open as f64, &[]);
        });
        claims
    }

    pub(super) fn count(&self, told: Told, times: u64) {
        self.metrics.assignments.add(times, &[KeyValue::new("result", told.name())]);
    }

    /// Does this in turn: first of the streams of a connection, and then of all connections, so that one with many buckets delays
    /// the others little. `None` if the client leaves before. The semaphores are never closed.
    pub(super) async fn in_turn<T>(
        &self,
        of_connection: &Semaphore,
        leaves: impl Future<Output = ()>,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let turns = async { (of_connection.acquire().await, self.turns.acquire().await) };
        let _turns = select! {
            biased;
            () = leaves => return None,
            turns = turns => turns,
        };
        Some(work.await)
    }

    /// The hits of this counter that are assigned to the open streams, and not used as far as they have reported.
    pub fn assigned(&self, counter: u64, now: Instant) -> u64 {
        let by_bucket = self.by_bucket.lock();
        let of = |demand: &Arc<Mutex<Demand>>| {
            let demand = demand.lock();
            let (unused, _) = demand.unused.filter(|(_, until)| *until > now)?;
            demand.counters.contains(&counter).then_some(unused)
        };
        by_bucket.values().flatten().filter_map(of).fold(0, u64::saturating_add)
    }

    /// Adds a claim, of whatever there is until it is known what its stream needs.
    pub(super) fn add(self: &Arc<Self>, domain: &str, name: &Arc<BucketName>) -> Claim {
        let bucket = Arc::new((domain.to_owned(), Arc::clone(name)));
        let own = Arc::default();
        self.by_bucket.lock().entry(Arc::clone(&bucket)).or_default().push(Arc::clone(&own));
        Claim { all: Arc::clone(self), bucket, own }
    }
}

impl Claim {
    pub(super) fn set_needs(&self, needs: u64) {
        self.own.lock().needs = Some(needs);
    }

    /// What may still be used until then.
    pub(super) fn set_unused(&self, unused: Option<(u64, Instant)>) {
        self.own.lock().unused = unused;
    }

    pub(super) fn set_counters(&self, counters: Vec<u64>) {
        self.own.lock().counters = counters;
    }

    /// The part of `left` hits that is due to its stream: max-min fair by what all streams here need, and as much again as an
    /// equal part is left for calls, and for streams of other replicas. If it is not known what it needs, at most `first`.
    pub(super) fn share(&self, left: u64, first: u64, now: Instant) -> u64 {
        let by_bucket = self.all.by_bucket.lock();
        let claims = by_bucket.get(&self.bucket).map_or(&[][..], Vec::as_slice);
        let parts = |claim: &Arc<Mutex<Demand>>| {
            let Demand { needs, unused, .. } = *claim.lock();
            (needs, unused)
        };
        let demands: Vec<_> = claims.iter().map(parts).collect();
        drop(by_bucket);
        let unused = demands.iter().filter_map(|(_, unused)| *unused);
        let unused = unused.filter(|(_, until)| *until > now).map(|(unused, _)| unused);
        let all = unused.fold(left, u64::saturating_add);
        let needs = demands.iter().map(|(needs, _)| needs.unwrap_or(u64::MAX)).collect();
        let most = self.own.lock().needs.unwrap_or(first);
        fair(all, needs).min(most).min(left)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut by_bucket = self.all.by_bucket.lock();
        if let Some(claims) = by_bucket.get_mut(&self.bucket) {
            claims.retain(|claim| !Arc::ptr_eq(claim, &self.own));
            if claims.is_empty() {
                by_bucket.remove(&self.bucket);
            }
        }
    }
}

/// The most that each may have, so that all who need less have what they need, and one equal part more is left.
fn fair(all: u64, mut needs: Vec<u64>) -> u64 {
    needs.sort_unstable();
    let (mut left, mut claims) = (all, needs.len() as u64 + 1);
    for needs in needs {
        if needs.saturating_mul(claims) > left {
            break;
        }
        left -= needs;
        claims -= 1;
    }
    left.div_ceil(claims)
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use futures_util::future::{join, join_all};
    use opentelemetry::metrics::{MeterProvider as _, noop::NoopMeterProvider};
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn who_leaves_before_its_turn_does_nothing() {
        let claims = Claims::new(&NoopMeterProvider::new().meter(""));
        let (none, one) = (Semaphore::new(0), Semaphore::new(1));
        assert_eq!(claims.in_turn(&none, ready(()), async { 1 }).await, None);
        assert_eq!(claims.in_turn(&one, pending(), async { 1 }).await, Some(1));
    }

    #[test]
    fn who_needs_little_has_it_and_the_others_have_equal_parts_of_which_one_is_left() {
        const ALL: u64 = u64::MAX;
        assert_eq!(fair(10, vec![ALL]), 5);
        assert_eq!(fair(90, vec![ALL, ALL]), 30);
        assert_eq!(fair(100, vec![ALL, 10]), 45);
        assert_eq!(fair(100, vec![3, ALL, 7]), 45);
        assert_eq!(fair(1, vec![ALL]), 1, "the last hit can be had");
        assert_eq!(fair(0, vec![ALL, 1]), 0);
        assert!(fair(100, vec![1, 2]) >= 2);
    }

    /// Each of the other connections is ahead with one turn, however many streams wait there.
    #[tokio::test]
    async fn a_turn_comes_after_at_most_one_of_each_other_connection_and_those_under_way() {
        let claims = Claims::new(&NoopMeterProvider::new().meter(""));
        let connections = [(); 9].map(|()| Semaphore::new(1));
        let taken = AtomicUsize::new(0);
        let turn = async |connection: &Semaphore| {
            let work = async {
                yield_now().await;
                taken.fetch_add(1, Relaxed)
            };
            claims.in_turn(connection, pending(), work).await
        };
        let [good, others @ ..] = &connections;
        let others = others.iter().flat_map(|connection| [connection; 100]);
        let (_, before) = join(join_all(others.map(turn)), turn(good)).await;
        let before = before.unwrap();
        assert!(before <= 8 + TURNS_AT_A_TIME, "{before}");
    }
}
