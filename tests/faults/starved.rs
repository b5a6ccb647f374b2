//! A service that is short of CPU: it is stopped and continued by signals, as a quota or a busy neighbour does. Its
//! own lateness does not count as a failure of Redis, and every call whose caller waits is decided.

use tokio::task::JoinSet;
use tonic::Request;

use crate::support::{prelude::*, service::waited_for_cpu};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1000000 } }
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 10, count_denied: true } }
";

const CLIENTS: u64 = 8;
/// Calls of each client. There are more until the service has logged that it was without CPU: it notices that only if the
/// time of an answer has passed, and the answer is not there yet.
const CALLS: u64 = 100;
const CALLS_MAX: u64 = 10 * CALLS;
const STARVED: &str = "this process was without CPU for";

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_runs_a_few_milliseconds_at_a_time_decides_every_call_and_counts_every_debit()
 {
    let redis = Redis::start();
    // Callers announce a timeout, so the budget is for Redis alone, which the service's own stops exceed.
    let flags = ["--workers", "2", "--decision-budget", "100ms", "--decision-budget-max", "20s"];
    let mut service = Service::with(RULES).on(&redis.url()).flags(&flags).ready();
    let (mut calls, is_seen) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for client in 0..CLIENTS {
        let (mut service, is_seen) = (service.client().await, Arc::clone(&is_seen));
        calls.spawn(async move {
            let mut charged = 0;
            for call in 0..CALLS_MAX {
                // Both keys are charged alike.
                if call >= CALLS && call % 2 == 0 && is_seen.load(Ordering::SeqCst) {
                    break;
                }
                let entry = if call % 2 == 0 { ("user", "a") } else { ("tokens", "a") };
                let message = request("shop", vec![hits(descriptor(&[entry]), 1 + client % 2)]);
                let mut call = Request::new(message);
                call.set_timeout(Duration::from_secs(26));
                service.should_rate_limit(call).await.unwrap();
                charged += 1 + client % 2;
            }
            charged / 2
        });
    }
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    let starving = thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            service.process().signal("STOP");
            thread::sleep(Duration::from_millis(150));
            service.process().signal("CONT");
            thread::sleep(Duration::from_millis(10));
            is_seen.store(service.log().contains(STARVED), Ordering::SeqCst);
        }
        service
    });
    let mut expected = 0;
    while let Some(charged) = calls.join_next().await {
        expected += charged.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let service = starving.join().unwrap();
    for key in ["user=a", "tokens=a"] {
        assert_eq!(redis.count(key), expected, "{key}");
    }
    let (metrics, log) = (service.get("/metrics"), service.log());
    // Redis is unusable where it waits for a CPU itself.
    let is_redis_starved = waited_for_cpu(redis.process_id()) > Duration::from_secs(1);
    assert!(is_redis_starved || !log.contains("is unusable"), "{log}");
    assert!(log.contains(STARVED), "{log}");
    assert!(!metrics.contains("ratelimit_starved_seconds_total 0\n"), "{metrics}");
}
