//! A real Prometheus scrapes real services, evaluates the alerts of the chart and answers its dashboard's queries.

use tokio::time::{sleep, timeout};

use crate::support::{
    ads::FakeAds, chart::*, prelude::*, prometheus::Prometheus, secured::Secured,
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: local } }
  - { key: log, rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_log } }
  - { key: held, rate_limit: { unit: year, requests_per_unit: 10, hold: 1h } }
  - { key: audited, rate_limit: { unit: second, requests_per_unit: 10 } }
  - { key: watched, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
";

/// Metrics of rules and peers without a series before their first event; the scrapes of `monitoring` have all of them.
const RARE: [&str; 5] = [
    "ratelimit_overrides_decisions_total",
    "ratelimit_counters_corrupt_total",
    "ratelimit_calls_incomplete_total",
    "ratelimit_debits_refused_total",
    "ratelimit_empty_calls_total",
];

const ALERTS: &str = "helm/files/alerts.yaml";

fn service_with(redis: &Redis) -> Service {
    // It has other domains, so it would admit what is denied.
    let candidate = root().join("examples/rules.yaml");
    let candidate = ["--candidate", candidate.to_str().unwrap(), "--candidate-one-in", "1"];
    // No call can be written there.
    let flags = ["--record", "/dev/null/calls", "--audit-one-in", "1"];
    Service::with(RULES).on(&redis.url()).flags(&[flags, candidate].concat()).start()
}

fn job_of(service: &Service) -> String {
    job_named("shop", service)
}

fn job_named(name: &str, service: &Service) -> String {
    format!("  - {{ job_name: {name}, static_configs: [{{ targets: ['{}'] }}] }}\n", service.http)
}

/// The job of a service whose `/metrics` is on HTTPS.
fn secured_job_of(secured: &Secured) -> String {
    let (ca, address) = (secured.authority().display(), secured.service.http);
    format!(
        "  - job_name: secured
    scheme: https
    tls_config: {{ ca_file: '{ca}' }}
    static_configs: [{{ targets: ['{address}'] }}]
"
    )
}

/// What the halves of an alert's expression compare with their thresholds.
fn compared(expression: &str) -> Vec<&str> {
    let halves = expression.trim().split("\nand\n");
    halves
        .map(|half| {
            let found = [" > ", " < ", " == "].into_iter().find_map(|sign| half.rsplit_once(sign));
            found.unwrap_or_else(|| panic!("no threshold in {half}")).0
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_expression_of_the_alerts_and_the_dashboard_has_a_value_after_calls() {
    let redis = Redis::start_with(&["--maxmemory", "1gb"]);
    let (service, secured) = (service_with(&redis), Secured::start(&[]));
    let ads = FakeAds::start();
    let mut subscribed = serve();
    subscribed.args(["--rules", &ads.url()]);
    let subscribed = Service::spawn(subscribed, TempDir::new().unwrap());
    let jobs = job_of(&service) + &secured_job_of(&secured) + &job_named("subscribed", &subscribed);
    let prometheus = Prometheus::start(&jobs, &text(ALERTS));
    let ask = async |key| {
        let user = descriptor(&[(key, "a")]);
        service.ask(request("shop", vec![user])).await.unwrap();
    };
    // A rate needs a value before the calls and one after them. Twelve hits are within, near and over the limit.
    for scrapes in 0..2 {
        for _ in 0..12 {
            ask("user").await;
        }
        ask("log").await;
        ask("watched").await;
        ask("without a rule").await;
        ask("held").await;
        ask("hold.commit").await;
        redis.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        service.ask(shop("user=fallback")).await.unwrap();
        service.ask(shop("log=failing")).await.unwrap_err();
        redis.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        let hits = format!("ratelimit_hits_total{{standing=\"over\"}} >= {}", 2 + 12 * scrapes);
        wait_until("the calls are scraped", || !prometheus.query(&hits).is_empty());
    }

    let began = Instant::now();
    while !service.get("/metrics").contains("ratelimit_audit_over_ratio{") {
        assert!(began.elapsed() < PATIENCE, "no window is audited");
        ask("audited").await;
        // An alert is about the share of these.
        ask("without a rule").await;
        sleep(Duration::from_millis(300)).await;
    }

    let alerts = alerts();
    let mut expressions = queries();
    for alert in alerts.values() {
        let expression = alert["expr"].as_str().unwrap();
        // Panics if Prometheus cannot evaluate the expression.
        prometheus.query(expression);
        expressions.extend(compared(expression).into_iter().map(str::to_owned));
    }
    for expression in &expressions {
        // Prometheus does not know the numbers of an hour ago.
        let is_of_the_past = expression.contains("offset") && !expression.contains("unless");
        if is_of_the_past || RARE.iter().any(|name| expression.contains(name)) {
            prometheus.query(expression);
            continue;
        }
        eventually(&format!("a number for {expression}"), || {
            let series = prometheus.query(expression);
            let numbers = series.iter().map(|series| series["value"][1].as_str().unwrap());
            numbers.filter_map(|text| text.parse().ok()).find(|number: &f64| number.is_finite())
        });
    }
    let evaluated: BTreeMap<String, String> = prometheus
        .rules()
        .iter()
        .map(|rule| ["name", "health"].map(|key| rule[key].as_str().unwrap().to_owned()).into())
        .collect();
    let healthy = alerts.into_keys().map(|name| (name, "ok".to_owned()));
    assert_eq!(evaluated, healthy.collect());
}

/// The waiting times of the alerts are shortened; everything else is as shipped.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_redis_fires_the_alert_of_the_breaker_which_ends_with_the_outage() {
    let mut redis = Redis::start();
    let service = service_with(&redis);
    service.wait_until_ready();
    let shipped = text(ALERTS);
    let shortened = shipped.replace("for: 1m\n", "for: 1s\n");
    assert_ne!(shortened, shipped);
    let prometheus = Prometheus::start(&job_of(&service), &shortened);
    let open = "ratelimit_store_breaker_open";
    eventually("the breaker is known", || prometheus.query(open).pop());
    assert!(prometheus.firing("TollkeeperBreakerOpen").is_none());

    redis.stop();
    let mut client = service.client().await;
    let fires = async {
        loop {
            client.should_rate_limit(shop("user=a")).await.unwrap();
            if let Some(alert) = prometheus.firing("TollkeeperBreakerOpen") {
                break alert;
            }
        }
    };
    let fired = timeout(PATIENCE, fires).await.expect("the alert fires");
    let server = format!("127.0.0.1:{}", redis.port);
    assert_eq!(fired["labels"]["server"], server);
    assert_eq!(fired["labels"]["job"], "shop");
    let summary = fired["annotations"]["summary"].as_str().unwrap();
    assert_eq!(summary, format!("{server} gets no calls: its breaker is open"));

    redis.start_again();
    wait_until("the alert ends", || prometheus.firing("TollkeeperBreakerOpen").is_none());
}
