//! Debits and refunds that could not be sent to Redis wait until it answers, or until their window ends.

use crate::support::{prelude::*, service::metadata};

const RULES: &str = "
domain: shop
descriptors:
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 1000, count_denied: true } }
  - { key: second, rate_limit: { unit: second, requests_per_unit: 1000, count_denied: true } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 1000 } }
  - key: budget
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 300 } }
";

/// Where scripts run.
const PLACES: &str = "  - key: place
    rate_limit: { algorithm: in_flight, requests_per_unit: 1, hold: 10m }
";

/// A service whose breaker is open, since its Redis is stopped.
struct InOutage {
    redis: Redis,
    service: Service,
}

impl InOutage {
    async fn start(flags: &[&str]) -> Self {
        let service = Self::before(flags).await;
        service.begin().await;
        service
    }

    /// A service whose Redis answers.
    async fn before(flags: &[&str]) -> Self {
        let redis = Redis::start();
        let flags: Vec<_> = ["--decision-budget", "200ms"].iter().chain(flags).copied().collect();
        let places = if flags.contains(&"off") { "" } else { PLACES };
        let (rules, store) = (&*(RULES.to_owned() + places), &*redis.url());
        let service = Service::with(rules).on(store).flags(&flags).ready();
        let outage = Self { redis, service };
        outage.debit("alice", 10).await.unwrap();
        outage
    }

    async fn begin(&self) {
        self.redis.signal("STOP");
        for _ in 0..1000 {
            if self.metric("ratelimit_store_breaker_open{") == 1 {
                return;
            }
            // It charges nothing, so that nothing of it is kept.
            drop(self.ask(hits(descriptor(&[("tokens", "probe")]), 0)).await);
        }
        panic!("the breaker does not open");
    }

    async fn ask(&self, descriptor: RateLimitDescriptor) -> Result<(), tonic::Status> {
        self.service.ask(request("shop", vec![descriptor])).await.map(drop)
    }

    /// The token of what alice takes.
    async fn take(&self, key: &str) -> String {
        metadata(&self.service.ask(shop(&format!("{key}=alice"))).await.unwrap(), "hold").unwrap()
    }

    async fn debit(&self, user: &str, count: u64) -> Result<(), tonic::Status> {
        self.ask(hits(descriptor(&[("tokens", user)]), count)).await
    }

    /// The sum of the series that begin so.
    fn metric(&self, begin: &str) -> u64 {
        self.service.metric(begin) as u64
    }

    fn queued(&self) -> u64 {
        self.metric("ratelimit_commits_queued ")
    }

    /// What Redis counts for this user.
    fn counted(&self, key: &str) -> u64 {
        self.redis.count(key)
    }

    fn answers_again(&self) {
        self.redis.signal("CONT");
        wait_until("nothing waits", || self.queued() == 0);
    }
}

#[tokio::test]
async fn debits_beyond_the_bound_are_dropped_counted_and_logged_once() {
    let outage = InOutage::start(&["--debits-queued-max", "3"]).await;
    let dropped = outage.metric("ratelimit_debits_dropped_total{reason=\"full\"}");
    let (room, more) = (3 - outage.queued(), 20);
    for _ in 0..room + more {
        outage.debit("alice", 7).await.unwrap_err();
    }
    assert_eq!(outage.queued(), 3);
    let now_dropped = outage.metric("ratelimit_debits_dropped_total{reason=\"full\"}");
    assert_eq!(now_dropped - dropped, more);
    let lines = outage.service.log().matches("was dropped: --debits-queued-max").count();
    assert_eq!(lines, 1);
    outage.answers_again();
    assert_eq!(outage.counted("tokens=alice"), 10 + room * 7);
}

#[tokio::test]
async fn a_commit_that_is_repeated_waits_once_and_leaves_room_for_others() {
    let outage = InOutage::before(&["--debits-queued-max", "30"]).await;
    let tokens = [outage.take("budget").await, outage.take("place").await];
    outage.begin().await;
    let before = outage.queued();
    for used in 0..50 {
        for token in &tokens {
            let used = used.to_string();
            let commit = descriptor(&[("hold.commit", token), ("hold.used", &used)]);
            outage.ask(commit).await.unwrap_err();
        }
    }
    outage.debit("bob", 7).await.unwrap_err();
    assert_eq!(outage.queued(), before + 3);
    assert_eq!(outage.metric("ratelimit_debits_dropped_total{"), 0);
    outage.answers_again();
    assert_eq!(outage.counted("tokens=bob"), 7);
    assert_eq!(outage.counted("budget=alice"), 0, "the first counts");

    // What was sent makes room for the same work again.
    outage.begin().await;
    let before = outage.queued();
    let commit = descriptor(&[("hold.commit", &tokens[0]), ("hold.used", "1")]);
    outage.ask(commit).await.unwrap_err();
    assert_eq!(outage.queued(), before + 1);
    outage.answers_again();
}

#[tokio::test]
async fn a_debit_whose_window_has_ended_is_dropped_and_counts_in_no_other() {
    let outage = InOutage::start(&[]).await;
    outage.ask(hits(descriptor(&[("second", "alice")]), 5)).await.unwrap_err();
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    outage.answers_again();
    assert_eq!(outage.metric("ratelimit_debits_dropped_total{reason=\"ended\"}"), 1);
    assert!(!outage.redis.keys().iter().any(|key| key.contains("second=alice")));
}

/// Of each kind: what is done and not yet counted is, and nothing is taken for a caller that had no answer.
#[tokio::test]
async fn what_waits_is_sent_before_the_service_ends() {
    let mut outage = InOutage::before(&[]).await;
    outage.debit("bob", 10).await.unwrap();
    let (budget, place) = (outage.take("budget").await, outage.take("place").await);
    outage.begin().await;
    let commit = |token: &str| descriptor(&[("hold.commit", token), ("hold.used", "2")]);
    let calls = [
        descriptor(&[("plain", "alice")]),
        hits(descriptor(&[("tokens", "alice")]), 7),
        refund(descriptor(&[("tokens", "bob")]), 4),
        commit(&budget),
        descriptor(&[("budget", "bob")]),
        commit(&place),
        descriptor(&[("place", "bob")]),
    ];
    for call in calls {
        outage.ask(call).await.unwrap_err();
    }
    outage.service.process().signal("STOP");
    outage.redis.signal("CONT");
    // Both signals are there when it runs again: nothing was sent before the end.
    outage.service.process().signal("TERM");
    outage.service.process().signal("CONT");
    outage.service.process().0.wait().unwrap();
    let counted = ["plain=alice", "tokens=alice", "tokens=bob", "budget=alice", "budget=bob"];
    let counted = counted.map(|key| outage.counted(key));
    assert_eq!(counted, [0, 17, 6, 2, 0]);
    let places = outage.redis.keys().into_iter().filter(|key| key.contains("place="));
    assert_eq!(places.collect::<Vec<_>>(), [""; 0], "places that are taken");
}
