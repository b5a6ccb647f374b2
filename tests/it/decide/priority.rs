//! Classes of calls share a limit, and each gets its share to the hit: over time, and with several replicas.

use tokio::task::JoinSet;

use crate::support::prelude::*;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit:
      unit: year
      requests_per_unit: 10
      priority: { entry: class, share: { critical: 100, standard: 80, batch: 50 } }
";

/// A hit of a user, of a class.
fn of(user: &str, class: &str) -> RateLimitDescriptor {
    descriptor(&[("user", user), ("class", class)])
}

#[test]
fn a_release_opens_the_reserve_evenly_until_the_window_ends() {
    let rules = RULES
        .replace("unit: year", "unit: hour")
        .replace("batch: 50 } }", "batch: 50 }, release: linear }");
    let file = tempfile::TempDir::new().unwrap();
    std::fs::write(file.path().join("rules.yaml"), rules).unwrap();
    let tests = "
rules: rules.yaml
tests:
  - name: the share of batch grows from 5 to 10
    domain: shop
    calls:
      - { at: 0s, descriptors: 'user=a,class=batch', hits: 5, remaining: 0 }
      - { at: 1s, descriptors: 'user=a,class=batch', expect: OVER_LIMIT }
      - { at: 719s, descriptors: 'user=a,class=batch', expect: OVER_LIMIT }
      - { at: 12m, descriptors: 'user=a,class=batch', remaining: 0 }
      - { at: 30m, descriptors: 'user=a,class=batch', hits: 0, remaining: 1 }
      - { at: 30m, descriptors: 'user=a,class=standard', hits: 0, remaining: 3 }
      - { at: 3599s, descriptors: 'user=a,class=batch', hits: 3, remaining: 0 }
      - { at: 3599s, descriptors: 'user=a,class=critical', remaining: 0 }
      - { at: 60m, descriptors: 'user=a,class=batch', hits: 0, remaining: 5 }
";
    std::fs::write(file.path().join("rules.test.yaml"), tests).unwrap();
    succeeds(tollkeeper().arg("test").arg(file.path()));
}

/// Three replicas, each with clients of batch that do not stop.
async fn saturated(store: &str) {
    let rules = RULES.replace("requests_per_unit: 10\n", "requests_per_unit: 1000\n");
    let start = || Service::with(&rules).on(store).start();
    let services = [start(), start(), start()];
    let ask = async |service: &Service, class: &'static str, calls: usize| {
        let mut clients = JoinSet::new();
        for _ in 0..8 {
            let mut client = service.client().await;
            clients.spawn(async move {
                let mut passed = 0;
                for _ in 0..calls / 8 {
                    let request = request("shop", vec![of("all", class)]);
                    let answer = client.should_rate_limit(request).await.unwrap();
                    passed += usize::from(answer.into_inner().overall_code() == Code::Ok);
                }
                passed
            });
        }
        clients.join_all().await.into_iter().sum::<usize>()
    };
    let of_all = async |class, calls| {
        let [one, two, three] = &services;
        let passed =
            tokio::join!(ask(one, class, calls), ask(two, class, calls), ask(three, class, calls));
        passed.0 + passed.1 + passed.2
    };
    assert_eq!(of_all("batch", 400).await, 500);
    // Batch goes on, and takes nothing of what is critical.
    let (batch, critical) = tokio::join!(of_all("batch", 400), of_all("critical", 400));
    assert_eq!((batch, critical), (0, 500));
}

#[tokio::test(flavor = "multi_thread")]
async fn saturated_by_batch_critical_gets_its_share_to_the_hit_with_three_replicas() {
    let redis = Redis::start();
    Box::pin(saturated(&redis.url())).await;
    let cluster = Cluster::start();
    Box::pin(saturated(&cluster.url())).await;
}
