//! Scrapes of services that together have every metric.

use tokio::sync::OnceCell;

use super::{
    ads::FakeAds,
    overrides,
    prelude::*,
    secured::Secured,
    sentinels::{NAME, sentinel_of},
    service::{RULES, with_limit},
};

/// A scrape after every event about Redis that a metric counts.
async fn scrape_with_redis() -> String {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: planted, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let redis = Redis::start();
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1gb"]);
    let flags = &["--store-wait-replicas", "1"];
    let service = Service::with(rules).on(&redis.url()).flags(flags).start();
    let user = |count| hits(descriptor(&[("user", "a")]), count);
    // A look, a hit, a denial, and a call that the cache answers.
    for count in [0, 1, 1, 1] {
        service.ask(request("shop", vec![user(count)])).await.unwrap();
    }
    let mut junk = with_limit(descriptor(&[("user", "b")]), 5, RateLimitUnit::Year);
    junk.limit.as_mut().unwrap().unit = 99;
    service.ask(request("shop", vec![junk])).await.unwrap();
    let planted = || shop("planted=x");
    service.ask(planted()).await.unwrap();
    redis.query::<String>(&["SET", &redis.key("planted=x"), "text"]);
    service.ask(planted()).await.unwrap_err();
    fs::write(&service.rules, rules.replace("requests_per_unit: 1", "requests_per_unit: 2"))
        .unwrap();
    wait_until("the reload", || service.get("/metrics").contains("reloads_total"));
    drop(redis);
    service.ask(planted()).await.unwrap_err();
    eventually("a failed connection", || {
        let metrics = service.get("/metrics");
        let has_both = metrics.contains("connection_failures_total")
            && metrics.contains("charges_unreplicated_total");
        has_both.then_some(metrics)
    })
}

/// A scrape after a window has been audited, and a candidate has judged a call.
async fn scrape_with_audit() -> String {
    let rules = RULES.replace("unit: year", "unit: second");
    let (redis, candidate) = (Redis::start(), TextFile::new("candidate.yaml", &rules));
    let flags = &["--audit-one-in", "1", "--candidate", &candidate, "--candidate-one-in", "1"];
    let options = Options { rules: &rules, store: &redis.url(), flags, ..Options::default() };
    let service = Service::start(options);
    let deadline = Instant::now() + PATIENCE;
    loop {
        service.ask(shop("user=a")).await.unwrap();
        let metrics = service.get("/metrics");
        let found = ["ratelimit_audit_over_ratio", "ratelimit_candidate_decisions_total"];
        if found.iter().all(|name| metrics.contains(name)) {
            return metrics;
        }
        assert!(Instant::now() < deadline, "not found: {metrics}");
    }
}

/// A scrape after a Sentinel has named another master.
async fn scrape_with_sentinel() -> String {
    let (redis, other) = (Redis::start(), Redis::start());
    let sentinel = sentinel_of(&redis);
    let store = format!("redis+sentinel://127.0.0.1:{}/{NAME}", sentinel.port);
    let service = Service::shop().on(&store).start();
    service.ask(shop("user=a")).await.unwrap();
    sentinel.query::<()>(&["SENTINEL", "REMOVE", NAME]);
    let port = other.port.to_string();
    sentinel.query::<()>(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "1"]);
    eventually("a failover", || {
        let metrics = service.get("/metrics");
        metrics.contains("failovers_total").then_some(metrics)
    })
}

/// A scrape after counters in memory were evicted, and calls lacked what they need.
async fn scrape_with_memory() -> String {
    let bounds =
        ["--memory-counters-max", "1000", "--max-descriptors", "1000", "--max-charges", "1000"];
    // No call can be written there.
    let flags = &[&bounds[..], &["--record", "/dev/null/calls"]].concat();
    let required = "domain: shop\nrequire: user\nrequire_mode: report";
    let held = "  - key: held\n    rate_limit: { unit: year, requests_per_unit: 10, hold: 1h }\n";
    let rules = &(RULES.replace("domain: shop", required) + held);
    let service = Service::with(rules).flags(flags).start();
    service.ask(shop("work=a")).await.unwrap();
    service.ask(request("shop", vec![])).await.unwrap_err();
    for part in 0..4 {
        let user = |number: u32| descriptor(&[("user", &number.to_string())]);
        let descriptors = (part * 1000..part * 1000 + 1000).map(user).collect();
        service.ask(request("shop", descriptors)).await.unwrap();
    }
    overrides::set(&service, "user=exempt", json!({ "action": "allow" }));
    service.ask(shop("user=exempt")).await.unwrap();
    for key in ["held", "hold.commit"] {
        service.ask(request("shop", vec![descriptor(&[(key, "bad")])])).await.unwrap();
    }
    service.get("/metrics")
}

/// A scrape of a service with certificates.
fn scrape_with_tls() -> String {
    let secured = Secured::start(&[]);
    eventually("the certificate is measured", || {
        let (_, metrics) = secured.get(secured.service.http, "/metrics", "", None)?;
        metrics.contains("expires_in").then_some(metrics)
    })
}

/// A scrape of a service whose rules come from a control plane.
fn scrape_with_control_plane() -> String {
    let ads = FakeAds::start();
    let mut command = serve();
    command.args(["--rules", &ads.url()]);
    Service::spawn(command, TempDir::new().unwrap()).get("/metrics")
}

/// Scrapes that together have every metric.
pub async fn scrapes() -> &'static [String] {
    static SCRAPES: OnceCell<[String; 6]> = OnceCell::const_new();
    let all = async {
        [
            scrape_with_redis().await,
            scrape_with_audit().await,
            scrape_with_sentinel().await,
            scrape_with_memory().await,
            scrape_with_tls(),
            scrape_with_control_plane(),
        ]
    };
    SCRAPES.get_or_init(|| all).await
}
