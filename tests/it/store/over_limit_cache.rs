//! The over-limit cache answers for at most a second without Redis, and denies no call wrongly.

use tollkeeper::{
    engine::ledger,
    store::{
        metrics::StoreMetrics,
        over_limit_cache::{Denials, OverLimitCache},
    },
};

use crate::support::{backends::memory, charges::prelude::*, prelude::*};

/// Limit for waits that should end within a second; a busy test machine may take longer.
const TIMEOUT: Duration = Duration::from_secs(30);

fn service(redis: &Redis) -> Service {
    Service::shop().on(&redis.url()).start()
}

const OVER: &str = "OVER_LIMIT: OVER_LIMIT 0/2 YEAR";

/// Exhausts the limit, and is denied once.
async fn use_up(service: &Service) {
    assert_eq!(service.answer("user=two(2)").await, "OK: OK 0/2 YEAR");
    assert_eq!(service.answer("user=two").await, OVER);
}

/// The number of calls that the cache has answered.
fn cached(service: &Service) -> u64 {
    service.metric("ratelimit_store_cached_total ") as u64
}

#[tokio::test]
async fn of_denied_calls_one_a_second_reaches_redis() {
    let redis = Redis::start();
    let service = service(&redis);
    use_up(&service).await;
    let (before, began) = (redis.runs_of("evalsha"), Instant::now());
    for _ in 0..100 {
        assert_eq!(service.answer("user=two").await, OVER);
    }
    let asked = redis.runs_of("evalsha") - before;
    assert_eq!(asked + cached(&service), 100);
    assert!(asked <= 1 + began.elapsed().as_secs(), "redis was asked {asked} times");
}

#[tokio::test]
async fn a_size_of_0_turns_the_cache_off_and_so_does_a_redis_without_scripts() {
    let flags = &["--over-limit-cache", "0"];
    let (redis, off) = Service::shop().flags(flags).on_redis();
    let (store, flags) = (redis.url_without_scripts(), &["--redis-scripts", "off"]);
    let plain = Service::shop().on(&store).flags(flags).start();
    use_up(&off).await;
    for (service, command) in [(off, "evalsha"), (plain, "exec")] {
        let before = redis.runs_of(command);
        for _ in 0..10 {
            assert_eq!(service.answer("user=two").await, OVER);
        }
        assert!(redis.runs_of(command) - before >= 10);
        assert_eq!(cached(&service), 0);
    }
}

#[tokio::test]
async fn a_refund_is_seen_at_once_by_its_replica_and_soon_by_others() {
    let redis = Redis::start();
    let (here, elsewhere) = (service(&redis), service(&redis));
    use_up(&here).await;
    assert_eq!(elsewhere.answer("user=two").await, OVER);
    assert_eq!(here.answer("user=two(-1)").await, "OK: OK 1/2 YEAR");
    assert_eq!(here.answer("user=two").await, "OK: OK 0/2 YEAR");

    assert_eq!(here.answer("user=two").await, OVER);
    elsewhere.answer("user=two(-1)").await;
    let began = Instant::now();
    while here.answer("user=two").await == OVER {
        assert!(began.elapsed() < TIMEOUT, "the refund has no effect");
    }
}

#[tokio::test]
async fn a_counter_admits_hits_at_once_after_its_reset() {
    let redis = Redis::start();
    let service = service(&redis);
    use_up(&service).await;
    let addr = service.admin.to_string();
    let words = ["counter", "reset", "--addr", &addr, "--domain", "shop", "user=two"];
    assert!(tollkeeper().args(words).status().unwrap().success());
    assert_eq!(service.answer("user=two").await, "OK: OK 1/2 YEAR");
}

/// Limits of every algorithm, with a counter each, that are soon exhausted.
fn limits() -> Vec<Arc<Limit>> {
    let of = |algorithm: Algorithm| {
        [limit(5, Unit::Second, algorithm.clone()), limit(9, Unit::Minute, algorithm)]
    };
    let mut limits: Vec<Limit> = Algorithm::of_time(4, None).into_iter().flat_map(of).collect();
    let per_hour = || limit(20, Unit::Hour, Algorithm::FixedWindow);
    let per_day = || limit(20, Unit::Day, Algorithm::FixedWindow);
    limits.push(Limit { when_denied: WhenDenied::Counted, ..per_hour() });
    limits.push(Limit { mode: Mode::Shadow, ..per_day() });
    limits.push(Limit { mode: Mode::Quota, ..limit(20, Unit::Week, Algorithm::FixedWindow) });
    limits.into_iter().map(Arc::new).collect()
}

/// As long as all calls come through one replica.
#[test]
fn the_cache_denies_nothing_that_the_store_would_admit() {
    const STEPS: u32 = 50_000;
    let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
    let (cache, store) = (OverLimitCache::new(100, Denials::Exact, metrics), memory());
    let (limits, began) = (limits(), tokio::time::Instant::now());
    let (mut dice, mut passed_ms, mut cached) = (Dice(7), 0, 0);
    for step in 0..STEPS {
        passed_ms += [0, 1, dice.below(20), dice.below(100), dice.below(700)][(step % 5) as usize];
        let charge = |_| {
            let hits = match dice.below(12) {
                0..=7 => Hits::Charge(1 + dice.below(4)),
                8..=10 => Hits::Check,
                _ => Hits::Refund(dice.below(4)),
            };
            charge("a", hits, &limits[dice.below(limits.len() as u64) as usize])
        };
        let charges: Vec<Charge> = (0..1 + step % 3).map(charge).collect();
        let now = began + Duration::from_millis(passed_ms);
        let answer = cache.answer(&charges, now);
        let real = store.charge_at(&charges, BEGIN.plus_millis(passed_ms));
        let Some(tallies) = answer else {
            cache.learn(&charges, &real, now);
            cache.forget_refunded(&charges, now);
            continue;
        };
        cached += 1;
        let is_over = |fit| fit == Fit::Over;
        for (ours, theirs) in tallies.iter().zip(&real.tallies) {
            let right = !is_over(ours.fit) || is_over(theirs.fit);
            assert!(right, "step {step}: {charges:?}: {tallies:?}, {real:?}");
        }
        let free = charges
            .iter()
            .zip(&real.tallies)
            .any(|(charge, tally)| ledger::denies_uncharged(charge, tally));
        assert!(free, "step {step}: {charges:?}: {real:?}");
    }
    assert!(cached > STEPS / 20, "{cached} of {STEPS} calls were answered by the cache");
}
