//! Calls in flight: never more than the limit at once, on every store, however the calls end. `holds/steps.rs` has random ones
//! on simulated time.

use tollkeeper::store::{StoreError, fallback::Fallback, redis::script::ScriptVerdict};

use crate::support::{
    backends::{Backend as _, ScriptInRedis},
    charges::prelude::*,
    cluster::ClusterSetup,
    prelude::*,
};

const LIFETIME_MS: u64 = 60_000;
const IN_FLIGHT: Algorithm = Algorithm::InFlight { remember: None };

/// A limit on calls that a commit finds in this way.
fn at_once(calls: u64, by: HoldBy) -> Arc<Limit> {
    let hold = Some(Arc::new(HoldPolicy { by, ..HoldPolicy::new(LIFETIME_MS) }));
    Arc::new(Limit { hold, ..limit(calls, Unit::Second, IN_FLIGHT) })
}

fn id(number: u64) -> HoldId {
    HoldId::from_caller(&number.to_be_bytes())
}

#[test]
fn another_value_at_the_key_is_a_corrupt_counter() {
    let mut redis = ScriptInRedis::start();
    let hold = HoldAction::Occupy { id: id(1), lifetime_ms: LIFETIME_MS };
    let call = charge("a", Hits::Charge(1), &at_once(3, HoldBy::Token));
    let call = [Charge { hold: Some(hold), ..call }];
    let key = call[0].counter.key(BEGIN);
    for plant in [
        &["SET", &key, "1", "EX", "100"][..],
        &["RPUSH", &key, "1"],
        &["ZADD", &key, "1", "junk"],
        &["ZADD", &key, "inf", &format!("{} 1 1000", id(2))],
        &["ZADD", &key, "inf", "=1"],
        &["ZADD", &key, "inf", "=1", "-0.5", &format!("{} 1 1000", id(2))],
        &["ZADD", &key, "inf", "=x", "-9", &format!("{} 1 1000", id(2))],
    ] {
        redis.clear();
        redis.redis.query::<redis::Value>(plant);
        assert_eq!(redis.answer(&call, BEGIN), ScriptVerdict::Corrupt(vec![0]), "{plant:?}");
    }
}

#[test]
fn a_replica_without_store_admits_its_share() {
    let fallback = Fallback::new(memory_on_a_clock(), 3);
    let on_store_failure = tollkeeper::engine::rule::FailureMode::Local;
    let limit = Arc::new(Limit { on_store_failure, ..(*at_once(10, HoldBy::Token)).clone() });
    let call = |hold, hits| {
        let charge = Charge { hold: Some(hold), ..charge("a", hits, &limit) };
        let failed = StoreError::TakesNoWrites("it has failed".to_owned());
        fallback.answer(&[charge], failed).unwrap().tallies[0].fit
    };
    let take = |number| HoldAction::Occupy { id: id(number), lifetime_ms: LIFETIME_MS };
    for number in 0..4 {
        assert_eq!(call(take(number), Hits::Charge(1)), Fit::Fits { remaining: 3 - number });
    }
    assert_eq!(call(take(4), Hits::Charge(1)), Fit::Over);
    let (made, deadline) = (BEGIN, BEGIN.plus_millis(LIFETIME_MS));
    let commit = HoldAction::Commit { id: id(2), held: 1, used: 1, made, deadline };
    call(commit, Hits::Commit);
    assert_eq!(call(take(4), Hits::Charge(1)), Fit::Fits { remaining: 0 });
}

fn memory_on_a_clock() -> tollkeeper::store::memory::MemoryStore {
    tollkeeper::store::memory::MemoryStore::new(|| BEGIN)
}

const RULES: &str = "
domain: shop
descriptors:
  - key: door
    rate_limit: { algorithm: in_flight, requests_per_unit: 10, hold: { for: 10m, by: id } }
  - key: room
    descriptors:
      - key: guest
        rate_limit: { algorithm: in_flight, requests_per_unit: 3, hold: { for: 10m, by: id }, remember: guest }
";

fn at_door(id: &str) -> RateLimitDescriptor {
    descriptor(&[("door", "a"), ("hold.id", id)])
}

/// Four replicas, 64 clients: each call is counted here from its answer until its commit is sent.
#[tokio::test(flavor = "multi_thread")]
async fn four_replicas_never_have_more_calls_in_flight_than_the_limit() {
    let redis = Redis::start();
    let store = redis.url();
    let start = || Service::with(RULES).on(&store).start();
    let services = [start(), start(), start(), start()];
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..64 {
        let mut client = services[number % services.len()].client().await;
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        clients.spawn(async move {
            for call in 0..60 {
                let ask = || request("shop", vec![at_door(&format!("{number}-{call}"))]);
                let answer = client.should_rate_limit(ask()).await.unwrap();
                if answer.into_inner().overall_code() == Code::Ok {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    // Once more than needed: a repeated commit changes nothing.
                    client.should_rate_limit(ask()).await.unwrap();
                    client.should_rate_limit(ask()).await.unwrap();
                }
            }
        });
    }
    clients.join_all().await;
    let most = most.load(Ordering::SeqCst);
    assert!((5..=10).contains(&most), "{most} at once");
    let left = spell(&services[0].ask(request("shop", vec![at_door("last")])).await.unwrap());
    assert_eq!(left, "OK: OK 9/10 UNKNOWN");
    redis.assert_no_key_leaks();
}

fn counter(service: &Service, action: &str, descriptor: &str) -> String {
    let addr = service.admin.to_string();
    let words = ["counter", action, "--addr", &addr, "--domain", "shop", descriptor];
    let stdout = succeeds(tollkeeper().args(words));
    // Without times.
    let lines = stdout.lines().map(|line| line.split(", resets").next().unwrap());
    let words = lines.map(|line| line.split(' ').filter(|word| !word.ends_with('Z')));
    words.map(|words| words.collect::<Vec<_>>().join(" ") + "\n").collect()
}

async fn calls_are_shown_and_reset(service: &Service) {
    let guest =
        |name: &str, id: &str| descriptor(&[("room", "1"), ("guest", name), ("hold.id", id)]);
    let ask = async |asked: RateLimitDescriptor| {
        spell(&service.ask(request("shop", vec![asked])).await.unwrap())
    };
    assert_eq!(ask(hits(guest("ann", "x"), 2)).await, "OK: OK 1/3 UNKNOWN");
    let of_ann = "room=1,guest=ann";
    let shown = counter(service, "show", of_ann);
    assert_eq!(shown, "in_flight: 2 used of 3 at once, 1 left\n  2 until by ann\n");
    assert_eq!(ask(guest("ann", "y")).await, "OK: OK 0/3 UNKNOWN");
    assert_eq!(ask(guest("ann", "z")).await, "OVER_LIMIT: OVER_LIMIT 0/3 UNKNOWN");
    ask(guest("ann", "x")).await;
    assert_eq!(ask(hits(guest("ann", "z"), 2)).await, "OK: OK 0/3 UNKNOWN");
    let reset = counter(service, "reset", of_ann);
    assert_eq!(reset, "in_flight: 3 of 3 at once were used; now 0\n");
    assert_eq!(counter(service, "show", of_ann), "in_flight: 0 used of 3 at once, 3 left\n");
}

#[tokio::test]
async fn calls_in_flight_are_shown_and_reset_on_every_store() {
    let options = || Service::with(RULES);
    calls_are_shown_and_reset(&Service::start(options())).await;
    let redis = Redis::start();
    calls_are_shown_and_reset(&Service::start(Options { store: &redis.url(), ..options() })).await;
    redis.assert_no_key_leaks();
    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    calls_are_shown_and_reset(&Service::start(Options { store: &cluster.url(), ..options() }))
        .await;
}
