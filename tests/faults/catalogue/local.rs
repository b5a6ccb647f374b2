//! `on_store_failure: local` on several replicas: together they admit one limit per window, in however many
//! outages.

use crate::support::prelude::*;

const LIMIT: u64 = 90;
const RULES: &str = "
domain: faults
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 90, on_store_failure: local } }
";

fn replicas(redis: &Redis) -> [Service; 3] {
    let flags = &["--decision-budget", "100ms", "--replicas", "3"];
    let start = || Service::with(RULES).on(&redis.url()).flags(flags).start();
    let replicas = [start(), start(), start()];
    replicas.iter().for_each(Service::wait_until_ready);
    replicas
}

/// Sends this number of calls to each replica at once, and returns how many pass.
async fn admitted(replicas: &[Service], calls: usize) -> u64 {
    let calls = replicas
        .iter()
        .flat_map(|replica| (0..calls).map(move |_| replica))
        .map(|replica| replica.ask(request("faults", vec![descriptor(&[("user", "everyone")])])));
    let passed = join_all(calls)
        .await
        .into_iter()
        .filter(|answer| answer.as_ref().expect("local never fails").overall_code() == Code::Ok);
    passed.count() as u64
}

#[tokio::test]
async fn three_replicas_admit_one_limit_in_ten_outages_of_one_window() {
    let redis = Redis::start();
    let replicas = replicas(&redis);
    let mut passed = 0;
    for _ in 0..10 {
        redis.signal("STOP");
        passed += admitted(&replicas, 5).await;
        redis.signal("CONT");
        // Redis runs what was sent while it was stopped, and the replicas find that it answers.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(passed, LIMIT, "each replica was asked 50 times, for a share of 30");
}

#[test]
fn three_replicas_admit_redis_s_limit_and_one_more_while_redis_flaps_under_load() {
    let redis = Redis::start();
    let replicas = replicas(&redis);
    let mut passed = 0;
    thread::scope(|scope| {
        let flaps = scope.spawn(|| {
            for _ in 0..10 {
                redis.signal("STOP");
                thread::sleep(Duration::from_millis(150));
                redis.signal("CONT");
                thread::sleep(Duration::from_millis(150));
            }
        });
        let runtime = tokio::runtime::Runtime::new().unwrap();
        while !flaps.is_finished() {
            passed += runtime.block_on(admitted(&replicas, 2));
        }
    });
    let counted = redis.count("user=everyone");
    assert!(counted <= LIMIT && passed <= counted + LIMIT, "{passed} passed, {counted} counted");
    redis.assert_no_key_leaks();
}
