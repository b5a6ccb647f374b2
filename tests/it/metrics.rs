//! The metrics: their definitions, a scrape and docs/metrics.md say the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    process::{Command, Output, Stdio},
};

use tokio::sync::OnceCell;
use tollkeeper::{
    rls::pb::RateLimitUnit,
    telemetry::{self, InstrumentKind, InstrumentRow},
};

use crate::support::{
    eventually,
    redis_server::Redis,
    sentinels::{NAME, sentinel_of},
    service::{Options, Service, descriptor, hits, request, with_limit},
    tool,
};
use crate::tables::{cells, check_table, names, page, rows};
use crate::tls::Secured;

/// A row of docs/metrics.md.
fn row_of_instrument(row: &InstrumentRow) -> String {
    let kind = match row.kind {
        InstrumentKind::Counter => "counter",
        InstrumentKind::Gauge => "gauge",
        InstrumentKind::Histogram => "histogram",
    };
    let labels: Vec<_> = row.attributes.iter().map(|name| format!("`{name}`")).collect();
    let (name, scraped, labels) = (row.name, row.prometheus_name(), labels.join(", "));
    format!("| `{name}` (`{scraped}`) | {kind} | {labels} | {} |", row.description)
}

#[test]
fn the_metrics_of_the_page_are_those_that_the_program_defines() {
    let rows: Vec<String> = telemetry::instruments().map(row_of_instrument).collect();
    check_table("metrics.md", "| name (on /metrics) | kind | labels | meaning |", &rows);
}

/// The labels of each metric that a scrape has, by its name on /metrics.
fn labels_of(scrapes: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in scrapes.iter().flat_map(|scrape| scrape.lines()) {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            metrics.entry(declared.replace(' ', ", ")).or_default();
        } else if let Some((name, rest)) = line.split_once('{') {
            let metric = metrics.iter_mut().find(|(declared, _)| {
                let declared = declared.split(", ").next().unwrap();
                name == declared || name == format!("{declared}_count")
            });
            let (labels, _) = rest.rsplit_once('}').unwrap();
            if let Some((_, found)) = metric {
                let labels = labels.split("\",").map(|label| label.split('=').next().unwrap());
                found.extend(labels.map(str::to_owned));
            }
        }
    }
    metrics
}

/// A scrape after every event about Redis that a metric counts.
async fn scrape_with_redis() -> String {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: planted, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let redis = Redis::start();
    let flags = &["--store-wait-replicas", "1"];
    let service =
        Service::start(Options { rules, store: &redis.url(), flags, ..Options::default() });
    let user = |count| hits(descriptor(&[("user", "a")]), count);
    // A look, a hit, a denial, and a call that the cache answers.
    for count in [0, 1, 1, 1] {
        service.ask(request("shop", vec![user(count)])).await.unwrap();
    }
    let mut junk = with_limit(descriptor(&[("user", "b")]), 5, RateLimitUnit::Year);
    junk.limit.as_mut().unwrap().unit = 99;
    service.ask(request("shop", vec![junk])).await.unwrap();
    let planted = || request("shop", vec![descriptor(&[("planted", "x")])]);
    service.ask(planted()).await.unwrap();
    redis.query::<String>(&["SET", &redis.key("planted=x"), "text"]);
    service.ask(planted()).await.unwrap_err();
    fs::write(&service.rules, rules.replace("requests_per_unit: 1", "requests_per_unit: 2"))
        .unwrap();
    eventually("the reload", || service.get("/metrics").contains("reloads_total").then_some(()));
    drop(redis);
    service.ask(planted()).await.unwrap_err();
    eventually("a failed connection", || {
        let metrics = service.get("/metrics");
        let has_both = metrics.contains("connection_failures_total")
            && metrics.contains("charges_unreplicated_total");
        has_both.then_some(metrics)
    })
}

/// A scrape after a Sentinel was told of another master.
async fn scrape_with_sentinel() -> String {
    let (redis, other) = (Redis::start(), Redis::start());
    let sentinel = sentinel_of(&redis);
    let store = format!("redis+sentinel://127.0.0.1:{}/{NAME}", sentinel.port);
    let service = Service::start(Options { store: &store, ..Options::default() });
    service.ask(request("shop", vec![descriptor(&[("user", "a")])])).await.unwrap();
    sentinel.query::<()>(&["SENTINEL", "REMOVE", NAME]);
    let port = other.port.to_string();
    sentinel.query::<()>(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "1"]);
    eventually("a failover", || {
        let metrics = service.get("/metrics");
        metrics.contains("failovers_total").then_some(metrics)
    })
}

/// A scrape after counters in memory were evicted.
async fn scrape_with_memory() -> String {
    let flags = &["--memory-counters-max", "1000", "--max-descriptors", "1000"];
    let service = Service::start(Options { flags, ..Options::default() });
    for part in 0..4 {
        let user = |number: u32| descriptor(&[("user", &number.to_string())]);
        let descriptors = (part * 1000..part * 1000 + 1000).map(user).collect();
        service.ask(request("shop", descriptors)).await.unwrap();
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

/// Scrapes that together have every metric.
async fn scrapes() -> &'static [String] {
    static SCRAPES: OnceCell<[String; 4]> = OnceCell::const_new();
    let all = async {
        [
            scrape_with_redis().await,
            scrape_with_sentinel().await,
            scrape_with_memory().await,
            scrape_with_tls(),
        ]
    };
    SCRAPES.get_or_init(|| all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_and_labels_of_the_page_are_those_of_a_scrape() {
    let mut scraped = labels_of(scrapes().await);
    // The resource attributes, which OpenTelemetry adds.
    scraped.remove("target_info, gauge");
    let page = page("metrics.md");
    let mut listed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows(&page, "| name (on /metrics) | kind | labels | meaning |") {
        let cells = cells(row);
        let scraped = names(cells[0])[1];
        let labels = names(cells[2]).iter().map(|label| label.replace('.', "_")).collect();
        listed.insert(format!("{scraped}, {}", cells[1]), labels);
    }
    assert_eq!(listed, scraped);
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_every_scrape() {
    for scrape in scrapes().await {
        promtool(&["check", "metrics"], scrape);
    }
    let mut bad = scrapes().await[0].clone();
    bad += "# TYPE tickets_count gauge\ntickets_count 1\n";
    let refused = promtool_output(&["check", "metrics"], &bad);
    assert!(!refused.status.success(), "promtool judges: {refused:?}");
}

/// Runs promtool, which must find nothing.
#[track_caller]
fn promtool(arguments: &[&str], input: &str) {
    let output = promtool_output(arguments, input);
    assert!(output.status.success(), "{output:?}");
}

fn promtool_output(arguments: &[&str], input: &str) -> Output {
    let mut promtool = Command::new(tool("promtool"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    promtool.wait_with_output().unwrap()
}
