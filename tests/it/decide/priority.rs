//! Classes of calls share a limit, and each gets its share to the hit.

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
  - { key: free, rate_limit: { unit: year, requests_per_unit: 10 } }
";

/// A hit of a user, of a class.
fn of(user: &str, class: &str) -> RateLimitDescriptor {
    descriptor(&[("user", user), ("class", class)])
}

async fn check(service: &Service, descriptor: RateLimitDescriptor, expected: &str) {
    let answer = service.ask(request("shop", vec![descriptor])).await.unwrap();
    assert_eq!(spell(&answer), expected);
}

#[tokio::test]
async fn each_class_is_admitted_up_to_its_share_on_one_counter() {
    on_every_store(RULES, &[], async |service| {
        // Three classes: five of ten, then three more, then two more. The answer has the limit of the class.
        check(service, hits(of("a", "batch"), 6), "OVER_LIMIT: OVER_LIMIT 0/5 YEAR").await;
        check(service, hits(of("a", "batch"), 5), "OK: OK 0/5 YEAR").await;
        check(service, of("a", "batch"), "OVER_LIMIT: OVER_LIMIT 0/5 YEAR").await;
        check(service, hits(of("a", "standard"), 3), "OK: OK 0/8 YEAR").await;
        check(service, of("a", "standard"), "OVER_LIMIT: OVER_LIMIT 0/8 YEAR").await;
        check(service, of("a", "batch"), "OVER_LIMIT: OVER_LIMIT 0/5 YEAR").await;
        check(service, of("a", "critical"), "OK: OK 1/10 YEAR").await;
        check(service, of("a", "critical"), "OK: OK 0/10 YEAR").await;
        check(service, of("a", "critical"), "OVER_LIMIT: OVER_LIMIT 0/10 YEAR").await;
        // Operators who name no class see the whole limit.
        let admin = service.admin.to_string();
        for (action, descriptor, limit) in [
            ("show", "user=a", "fixed_window: 10 used of 10 per year, 0 left"),
            ("show", "user=a,class=batch", "fixed_window: 10 used of 5 per year, 0 left"),
        ] {
            let words = ["counter", action, "--addr", &admin, "--domain", "shop", descriptor];
            let (_, text, problem) = run(tollkeeper().args(words));
            assert!(text.starts_with(limit), "{text}{problem}");
        }
        // Alone it gets all.
        check(service, hits(of("b", "critical"), 10), "OK: OK 0/10 YEAR").await;
        // Without a class, or of an unknown one, the lowest share; its entry may be anywhere.
        let unclassed = [
            descriptor(&[("user", "c")]),
            of("c", "gold"),
            of("c", ""),
            descriptor(&[("class", "batch"), ("user", "c")]),
        ];
        for (rest, descriptor) in (1..5).rev().zip(unclassed) {
            check(service, descriptor, &format!("OK: OK {rest}/5 YEAR")).await;
        }
        // The entry of the class is part of no counter in the domain, and of no rule.
        check(service, descriptor(&[("free", "x"), ("class", "batch")]), "OK: OK 9/10 YEAR").await;
        check(service, descriptor(&[("free", "x")]), "OK: OK 8/10 YEAR").await;
    })
    .await;
}

#[tokio::test]
async fn all_algorithms_have_classes_and_a_bucket_has_them_of_its_burst() {
    let limits = [
        ("sliding_window", "unit: year"),
        ("sliding_log", "unit: year"),
        ("first_hit_window", "unit: year"),
        ("token_bucket", "unit: year, burst: 10"),
        ("in_flight", "hold: 10m"),
    ];
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for (algorithm, keys) in limits {
        rules += &format!(
            "- key: {algorithm}\n  rate_limit: {{ {keys}, requests_per_unit: 10, algorithm: {algorithm}, \
             priority: {{ entry: class, share: {{ high: 100, low: 45 }}, default: 1 }} }}\n"
        );
    }
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(&rules).on(store).start();
        for (algorithm, _) in limits {
            let mut passed = Vec::new();
            for class in ["low", "other", "high"] {
                let one = || descriptor(&[(algorithm, "x"), ("class", class)]);
                let mut count = 0;
                while service.ask(request("shop", vec![one()])).await.unwrap().overall_code()
                    == Code::Ok
                {
                    count += 1;
                }
                passed.push(count);
            }
            // 45 % of ten, rounded down. One percent is one hit, which others have.
            assert_eq!(passed, [4, 0, 6], "{algorithm} on {store}");
        }
    }
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
