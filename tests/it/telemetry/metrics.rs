//! The metrics: their definitions, a scrape and docs/observability.md agree.

use std::time::SystemTime;

use tollkeeper::{app, telemetry::InstrumentRow};

use crate::support::{pages::*, prelude::*, scrapes::scrapes, service::*};

/// A row of docs/observability.md.
fn row_of_instrument(row: &InstrumentRow) -> String {
    let labels: Vec<_> = row.attributes.iter().map(|name| format!("`{name}`")).collect();
    let (name, scraped, labels) = (row.name, row.prometheus_name(), labels.join(", "));
    format!("| `{name}` (`{scraped}`) | {labels} | {} |", row.description)
}

#[test]
fn the_metrics_of_the_page_are_those_that_the_program_defines() {
    let rows: Vec<String> = app::instruments().map(row_of_instrument).collect();
    check_table("observability.md", "| name (on /metrics) | labels | meaning |", &rows);
}

/// The labels of each metric that a scrape has, by its name on /metrics.
fn labels_of(scrapes: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in scrapes.iter().flat_map(|scrape| scrape.lines()) {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "as the page says: {declared}");
            metrics.entry(name.to_owned()).or_default();
        } else if let Some((name, rest)) = line.split_once('{') {
            let metric = metrics
                .iter_mut()
                .find(|(declared, _)| name == *declared || name == format!("{declared}_count"));
            let (labels, _) = rest.rsplit_once('}').unwrap();
            if let Some((_, found)) = metric {
                let labels = labels.split("\",").map(|label| label.split('=').next().unwrap());
                found.extend(labels.map(str::to_owned));
            }
        }
    }
    metrics
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_and_labels_of_the_page_are_those_of_a_scrape() {
    let mut scraped = labels_of(scrapes().await);
    // The resource attributes, which OpenTelemetry adds.
    scraped.remove("target_info");
    let page = page("observability.md");
    let mut listed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows(&page, "| name (on /metrics) | labels | meaning |") {
        let cells = cells(row);
        let scraped = names(cells[0])[1];
        let labels = names(cells[1]).iter().map(|label| label.replace('.', "_")).collect();
        listed.insert(scraped.to_owned(), labels);
    }
    assert_eq!(listed, scraped);
}

/// Every 10 s, on a connection of its own.
#[tokio::test(flavor = "multi_thread")]
async fn statsd_gets_by_how_much_each_counter_has_grown() {
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = statsd.local_addr().unwrap().to_string();
    let environment = &[("TOLLKEEPER_STATSD_ADDR", &*address)];
    let service = Service::with(RULES).environment(environment).start();
    let call = || shop("user=alice");
    let next = || {
        let mut lines = String::new();
        statsd.accept().unwrap().0.read_to_string(&mut lines).unwrap();
        lines
    };
    for hits in [2, 1] {
        for _ in 0..hits {
            service.ask(call()).await.unwrap();
        }
        let (name, lines) = ("ratelimit.service.rate_limit.shop.user.total_hits", next());
        assert!(lines.contains(&format!("{name}:{hits}|c\n")), "{lines}");
        assert!(lines.lines().all(|line| line.ends_with("|c") && !line.contains(":0|")), "{lines}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_every_scrape() {
    for scrape in scrapes().await {
        let (accepted, problems) = judged(scrape);
        assert!(accepted, "{problems}");
    }
    let bad = scrapes().await[0].clone() + "# TYPE tickets_count gauge\ntickets_count 1\n";
    assert!(!judged(&bad).0, "promtool judges");
}

/// The value of a series on `/metrics`, such as `ratelimit_panics_total` or `name{label="value"}`.
#[track_caller]
fn value(scrape: &str, series: &str) -> f64 {
    let line = scrape.lines().find_map(|line| line.strip_prefix(&format!("{series} ")));
    line.unwrap_or_else(|| panic!("no {series} in {scrape}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_script_runs_and_connections_to_redis_are_counted() {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: log, rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_log } }
";
    let redis = Redis::start_with(&["--maxmemory", "100mb", "--maxclients", "500"]);
    let service = Service::with(rules).on(&redis.url()).start();
    for key in ["user", "user", "log"] {
        service.ask(request("shop", vec![descriptor(&[(key, "a")])])).await.unwrap();
    }
    let server = format!("server=\"127.0.0.1:{}\"", redis.port);
    let series = |name: &str| format!("ratelimit_store_{name}");
    // The service also polls Redis, for a moment each time.
    let scrape = eventually("no connection is busy", || {
        let scrape = service.get("/metrics");
        let busy = value(&scrape, &series(&format!("connections{{{server},state=\"busy\"}}")));
        (busy == 0.0).then_some(scrape)
    });
    for (name, expected) in [
        ("batch_calls_sum".to_owned(), 3.0),
        ("batch_calls_count".to_owned(), 3.0),
        ("batch_wait_seconds_count".to_owned(), 3.0),
        ("script_runs_total{script=\"fixed\"}".to_owned(), 2.0),
        ("script_runs_total{script=\"ledger\"}".to_owned(), 1.0),
        ("stale_total".to_owned(), 0.0),
        (format!("queue_calls{{{server}}}"), 0.0),
        (format!("connections_waiting{{{server}}}"), 0.0),
        (format!("connections_limit{{{server}}}"), 16.0),
        (format!("memory_limit_bytes{{{server}}}"), 104_857_600.0),
        (format!("clients_limit{{{server}}}"), 500.0),
        (format!("keys_evicted{{{server}}}"), 0.0),
    ] {
        assert_eq!(value(&scrape, &series(&name)), expected, "{name}");
    }
    for name in [
        format!("connections{{{server},state=\"idle\"}}"),
        format!("memory_used_bytes{{{server}}}"),
        format!("clients{{{server}}}"),
        "batch_wait_seconds_sum".to_owned(),
    ] {
        assert!(value(&scrape, &series(&name)) > 0.0, "{name}: {scrape}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_offset_and_stale_windows_show_a_clock_that_is_wrong() {
    let redis = Redis::start();
    let rules =
        RULES.replace("unit: year, requests_per_unit: 10 ", "unit: hour, requests_per_unit: 10 ");
    let service = service_off_by("-10800", &rules, &redis);
    service.ask(shop("user=a")).await.unwrap();
    let scrape = service.get("/metrics");
    assert!(value(&scrape, "ratelimit_store_stale_total") >= 1.0, "{scrape}");
    let server = format!("server=\"127.0.0.1:{}\"", redis.port);
    let offset = value(&scrape, &format!("ratelimit_store_clock_offset_seconds{{{server}}}"));
    assert!((offset - 10_800.0).abs() < 60.0, "{offset} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_is_open_and_its_connection_busy() {
    let (redis, service) = Service::shop().on_redis();
    let call = || shop("user=a");
    service.ask(call()).await.unwrap();
    service.wait_for_metric("\nratelimit_calls_open 0\n");
    redis.signal("STOP");
    let mut client = service.client().await;
    let waiting = tokio::spawn(async move { client.should_rate_limit(call()).await });
    let busy = format!(
        "ratelimit_store_connections{{server=\"127.0.0.1:{}\",state=\"busy\"}}",
        redis.port
    );
    wait_until("the call is open", || {
        let scrape = service.get("/metrics");
        value(&scrape, "ratelimit_calls_open") == 1.0 && value(&scrape, &busy) >= 1.0
    });
    redis.signal("CONT");
    waiting.await.unwrap().unwrap();
    service.wait_for_metric("\nratelimit_calls_open 0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_shows_its_version_and_keeps_the_counts_of_its_rules() {
    let service = Service::shop().start();
    let ask = async || {
        service.ask(shop("user=a")).await.unwrap();
    };
    ask().await;
    let before = service.get("/metrics");
    let version = |scrape: &str| {
        let versions: Vec<String> = scrape
            .lines()
            .filter_map(|line| line.strip_prefix("ratelimit_rules_info{version=\""))
            .map(str::to_owned)
            .collect();
        assert_eq!(versions.len(), 1, "one version is in force: {versions:?}");
        versions[0].clone()
    };
    service.reload(&RULES.replace("requests_per_unit: 10 ", "requests_per_unit: 20 "));
    ask().await;
    let after = service.get("/metrics");
    assert_ne!(version(&before), version(&after));
    let loaded = "ratelimit_rules_loaded_timestamp_seconds";
    assert!(value(&before, loaded) < value(&after, loaded), "{after}");
    for (name, expected) in [
        ("ratelimit_decisions_total{code=\"ok\",domain=\"shop\",rule=\"user\"}", 2.0),
        ("ratelimit_hits_total{domain=\"shop\",rule=\"user\",standing=\"within\"}", 2.0),
    ] {
        assert_eq!(value(&after, name), expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_the_process_are_measured() {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let mut service = Service::shop().start();
    let empty = service.get("/metrics");
    let users = (0..50).map(|user| descriptor(&[("user", &user.to_string())])).collect();
    service.ask(request("shop", users)).await.unwrap();
    let scrape = service.get("/metrics");
    let bytes = "ratelimit_memory_size_bytes{use=\"store\"}";
    // The keys alone are longer than 20 bytes each.
    assert!(value(&scrape, bytes) - value(&empty, bytes) > 50.0 * 20.0, "{scrape}");
    assert_eq!(value(&scrape, "ratelimit_memory_counters{use=\"store\"}"), 50.0);
    assert_eq!(value(&scrape, "ratelimit_memory_counters{use=\"fallback\"}"), 0.0);
    assert_eq!(value(&scrape, "ratelimit_memory_counters_limit{use=\"store\"}"), 1_000_000.0);

    assert!((value(&scrape, "process_start_time_seconds") - started).abs() < 60.0, "{scrape}");
    let open = open_files(service.process().0.id());
    assert!((value(&scrape, "process_open_fds") - open as f64).abs() < 10.0, "{open}: {scrape}");
    assert!(value(&scrape, "process_max_fds") >= open as f64, "{scrape}");
    assert!(value(&scrape, "process_resident_memory_bytes") > 1_000_000.0, "{scrape}");
    assert!(value(&scrape, "process_virtual_memory_bytes") > 1_000_000.0, "{scrape}");
    assert!(value(&scrape, "process_cpu_seconds_total") < 600.0, "{scrape}");
}

#[test]
fn metrics_with_the_names_of_envoyproxy_ratelimit_are_shown_before_the_first_call() {
    let service = Service::shop().flags(&["--metrics-compat", "envoyproxy"]).start();
    service.assert_metric("\nprocess_cpu_seconds_total ");
}

/// Counts the hits of its own calls, by rule and standing, and compares them with the names of envoyproxy/ratelimit: on `/metrics`
/// with two levels of keys, and for statsd, on `/stats`, with all.
#[tokio::test(flavor = "multi_thread")]
async fn the_names_of_envoyproxy_ratelimit_have_the_numbers_of_the_calls() {
    let rules = "
domain: shop:eu
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
  - key: masked_remote_address
    value: 10.0.0.0/8
    descriptors:
      - { key: path, value: /login, rate_limit: { unit: year, requests_per_unit: 2 } }
      - key: path
        value: /deep
        descriptors:
          - { key: user, value: a, rate_limit: { unit: year, requests_per_unit: 10 } }
          - { key: user, value: b, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: trial, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: unspec, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: free, rate_limit: { unlimited: true } }
";
    let service = Service::with(rules).flags(&["--metrics-compat", "envoyproxy"]).start();
    let net = ("masked_remote_address", "10.0.0.0/8");
    // Of ten hits, two are near the limit, and the eleventh is over it.
    let mut asked = 0;
    for (entries, calls) in [
        (vec![("user", "x")], 11),
        (vec![net, ("path", "/login")], 3),
        (vec![net, ("path", "/deep"), ("user", "a")], 2),
        (vec![net, ("path", "/deep"), ("user", "b")], 3),
        (vec![("trial", "x")], 5),
        // As its own script `value-included-in-stats-key-when-unspecified` checks it.
        (vec![("unspec", "unspecified_value")], 3),
        (vec![("free", "x")], 4),
        (vec![("unknown", "x")], 1),
    ] {
        for _ in 0..calls {
            service.ask(request("shop:eu", vec![descriptor(&entries)])).await.unwrap();
            asked += 1;
        }
    }
    service.ask(request("", vec![descriptor(&[("user", "x")])])).await.unwrap_err();
    service.reload(&format!("{rules}# the same rules\n"));
    fs::write(&service.rules, "domain: [").unwrap();
    let scrape = eventually("the bad reload", || {
        let scrape = service.get("/metrics");
        (value(&scrape, "ratelimit_service_config_load_error") == 1.0).then_some(scrape)
    });

    let names = ["total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"];
    let (mut on_metrics, mut for_statsd) = (BTreeMap::new(), BTreeMap::new());
    for (path, counts) in [
        ("user", [11, 10, 2, 1, 0]),
        ("masked_remote_address_10_0_0_0/8.path_/login", [3, 2, 1, 1, 0]),
        ("masked_remote_address_10_0_0_0/8.path_/deep.user_a", [2, 2, 0, 0, 0]),
        ("masked_remote_address_10_0_0_0/8.path_/deep.user_b", [3, 3, 0, 0, 0]),
        ("trial", [5, 2, 1, 3, 3]),
        ("unspec_unspecified_value", [3, 2, 1, 1, 0]),
    ] {
        let mut labels = "domain=\"shop_eu\"".to_owned();
        for (number, key) in path.split('.').take(2).enumerate() {
            labels += &format!(",key{}=\"{key}\"", number + 1);
        }
        for (name, count) in names.into_iter().zip(counts) {
            let series = format!("ratelimit_service_rate_limit_{name}{{{labels}}}");
            *on_metrics.entry(series).or_insert(0) += count;
            let name = format!("ratelimit.service.rate_limit.shop_eu.{path}.{name}");
            for_statsd.insert(name, count);
        }
    }
    let took = "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}";
    on_metrics.insert(took.to_owned(), asked + 1);
    for (series, name, count) in [
        (
            "should_rate_limit_error{err_type=\"redis_error\"}",
            ".service.call.should_rate_limit.redis_error",
            0,
        ),
        (
            "should_rate_limit_error{err_type=\"service_error\"}",
            ".service.call.should_rate_limit.service_error",
            1,
        ),
        (
            "total_requests{grpc_method=\"ShouldRateLimit\"}",
            "_server.ShouldRateLimit.total_requests",
            asked + 1,
        ),
        ("config_load_success", ".service.config_load_success", 2),
        ("config_load_error", ".service.config_load_error", 1),
    ] {
        on_metrics.insert(format!("ratelimit_service_{series}"), count);
        for_statsd.insert(format!("ratelimit{name}"), count);
    }
    let theirs = scrape.lines().filter(|line| line.starts_with("ratelimit_service_"));
    let theirs = theirs.filter(|line| !line.contains("_bucket{") && !line.contains("_sum{"));
    let found: BTreeMap<String, u64> = theirs
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect();
    assert_eq!(found, on_metrics);
    let last = "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"+Inf\"}";
    assert_eq!(value(&scrape, last), (asked + 1) as f64);
    assert_eq!(service.admin("GET", "/stats"), (200, json!(for_statsd)));
}

#[test]
fn the_names_of_envoyproxy_ratelimit_are_absent_unless_asked_for() {
    let service = Service::shop().start();
    assert!(!service.get("/metrics").contains("ratelimit_service_"));
    let (status, _, body) = service.exchange_at(service.admin, "GET", "/stats", b"");
    assert_eq!((status, body.as_str()), (404, r#"{"error":"set --metrics-compat envoyproxy"}"#));
}

/// Whether promtool accepts a scrape, and what it says.
fn judged(scrape: &str) -> (bool, String) {
    let file = fs::File::open(&*TextFile::new("scrape", scrape)).unwrap();
    let (code, out, error) =
        run(Command::new(tool("promtool")).args(["check", "metrics"]).stdin(file));
    (code == Some(0), out + &error)
}
