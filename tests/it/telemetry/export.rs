//! Metrics, as an OTLP receiver and a scrape get them, and outages of the receiver; no value of a descriptor is in
//! them.

use crate::support::{
    fault_proxy::{Connect, Cut},
    otlp::{Receiver, attribute},
    prelude::*,
};

const CANARY: &str = "canary-7f3a";

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_on_the_page_and_by_otlp_without_a_value_of_a_request() {
    let (receiver, endpoint) = Receiver::start().await;
    let redis = Redis::start();
    let mut service = Service::shop()
        .on(&redis.url())
        .flags(&["--log-level", "debug"])
        .environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)])
        .ready();
    let descriptors = vec![descriptor(&[("user", CANARY)]), descriptor(&[(CANARY, CANARY)])];
    service.ask(request("shop", descriptors)).await.unwrap();
    service.ask(request(CANARY, vec![descriptor(&[("user", CANARY)])])).await.unwrap();
    let scraped = service.get("/metrics");

    service.end();

    let exported = format!("{:?}", receiver.metrics.lock().unwrap());
    for name in ["rpc.server.call.duration", "db.client.operation.duration", "ratelimit.decisions"]
    {
        assert!(exported.contains(name), "{name} by OTLP");
        let name = name.replace('.', "_");
        assert!(scraped.contains(&name), "{name} on /metrics: {scraped}");
    }
    assert!(
        scraped.contains(r#"ratelimit_decisions_total{code="ok",domain="shop",rule="user"} 1"#)
    );
    assert!(
        scraped.contains(r#"ratelimit_decisions_total{code="ok",domain="other",rule="other"} 1"#)
    );
    for text in [exported, scraped, service.log()] {
        assert!(!text.contains(CANARY), "a value or name of the request in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_differ_by_their_instance_in_what_they_export() {
    let (receiver, endpoint) = Receiver::start().await;
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint);
    for environment in [
        &[endpoint][..],
        &[endpoint],
        &[endpoint, ("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine,host.name=here")],
    ] {
        let mut service = Service::shop().environment(environment).start();
        service.end();
    }

    let received = receiver.metrics.lock().unwrap();
    let mut instances = Vec::new();
    for metrics in received.iter().flat_map(|request| &request.resource_metrics) {
        let resource = metrics.resource.as_ref().unwrap();
        let of = |key: &str| attribute(&resource.attributes, key);
        assert_eq!(of("service.name"), "tollkeeper");
        assert_eq!(of("service.version"), env!("CARGO_PKG_VERSION"));
        instances.push((of("service.instance.id"), of("host.name")));
    }
    instances.dedup();
    assert_eq!(instances.len(), 3, "{instances:?}");
    assert_eq!(instances[2], ("mine".to_owned(), "here".to_owned()));
    assert_eq!(instances[0].0.len(), 32);
}

#[tokio::test]
async fn random_names_create_no_series() {
    let service = Service::shop().start();
    let mut client = service.client().await;
    let mut ask = async |name: String| {
        let descriptors = vec![descriptor(&[("user", &name)]), descriptor(&[(&name, "x")])];
        client.should_rate_limit(request(&name, descriptors.clone())).await.unwrap();
        client.should_rate_limit(request("shop", descriptors)).await.unwrap();
    };
    ask("shops".into()).await;
    let series = || {
        let metrics = service.get("/metrics");
        let series = metrics.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
        series.collect::<BTreeSet<String>>()
    };
    // What a service reports of itself may begin in the first rounds.
    let mut new: Vec<String> = Vec::new();
    for round in 0..5 {
        let before = series();
        for number in 0..100 {
            ask(format!("name{round}-{number}")).await;
        }
        new = series().difference(&before).cloned().collect();
        if new.is_empty() {
            break;
        }
    }
    assert_eq!(new, [""; 0]);
    let line =
        "matched no rule and passed: it is of a domain that no rule has; did you mean `shop`? (";
    assert!(service.log().contains(line), "{}", service.log());
    assert_eq!(service.log().matches("matched no rule").count(), 1, "logged once a minute");
}

/// The number of log lines about the collector's outages and of those about their ends.
fn outages(service: &Service) -> (usize, usize) {
    let log = service.log();
    let of_collector = log.lines().filter(|line| line.contains("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let (ends, outages): (Vec<_>, Vec<_>) = of_collector.partition(|line| line.contains("INFO"));
    assert!(outages.iter().all(|line| line.contains("WARN")), "{log}");
    (outages.len(), ends.len())
}

/// In the first outage it refuses what it gets, and in the second one nothing listens.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_collector_is_one_line_and_its_end_another() {
    for protocol in ["grpc", "http/protobuf"] {
        let (receiver, endpoint) = Receiver::start().await;
        let (_, port) = endpoint.rsplit_once(':').unwrap();
        let proxy = FaultProxy::start(port.parse().unwrap(), 1);
        let endpoint = format!("http://127.0.0.1:{}", proxy.port());
        let environment = &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "20"),
        ];
        let service = Service::shop().environment(environment).start();
        let mut client = service.client().await;
        // Only calls produce spans.
        let mut call_until = async |what: &str, done: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !done() {
                assert!(began.elapsed() < PATIENCE, "{protocol}: never {what}: {}", service.log());
                client.should_rate_limit(shop("user=a")).await.unwrap();
            }
        };
        receiver.refuses.store(true, Ordering::Relaxed);
        let refused = || receiver.refused.load(Ordering::Relaxed);
        call_until("20 exports are refused", &|| refused() >= 20).await;
        wait_until("the outage is logged", || outages(&service).0 == 1);
        receiver.refuses.store(false, Ordering::Relaxed);
        call_until("its end is logged", &|| outages(&service) == (1, 1)).await;
        proxy.set(Faults { connect: Connect::Refuse, ..Faults::default() });
        proxy.cut(Cut::Rst);
        call_until("the next outage is logged", &|| outages(&service).0 == 2).await;
        receiver.traces.lock().unwrap().clear();
        proxy.heal();
        call_until("its end is logged", &|| outages(&service) == (2, 2)).await;
        call_until("spans of later calls arrive", &|| !receiver.spans().is_empty()).await;
        let log = service.log();
        assert!(!log.contains(&endpoint) && !log.contains("its own words"), "{log}");
    }
}

#[tokio::test]
async fn every_rule_has_a_series_of_its_own_however_many_there_are() {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for number in 0..3000 {
        rules += &format!(
            "  - {{ key: k{number}, rate_limit: {{ unit: year, requests_per_unit: 9 }} }}\n"
        );
    }
    let flags = &["--max-descriptors", "1000", "--max-charges", "1000"];
    let service = Service::with(&rules).flags(flags).start();
    for part in 0..3 {
        let one = |number| descriptor(&[(&format!("k{number}"), "x")]);
        let descriptors = (part * 1000..part * 1000 + 1000).map(one).collect();
        service.ask(request("shop", descriptors)).await.unwrap();
    }
    let metrics = service.get("/metrics");
    for number in 0..3000 {
        let series =
            format!(r#"ratelimit_decisions_total{{code="ok",domain="shop",rule="k{number}"}} 1"#);
        assert!(metrics.contains(&series), "{series}");
    }
}

#[tokio::test]
async fn metrics_show_values_only_of_rules_that_ask_for_it_and_at_most_a_thousand() {
    let rules = "
domain: shop
descriptors:
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: detailed, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
  - key: route
    value_to_metric: true
    descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 9 } }]
  - key: file
    value: 'a*'
    share_threshold: true
    detailed_metric: true
    rate_limit: { unit: year, requests_per_unit: 9000 }
";
    let flags = &["--max-descriptors", "1000", "--max-charges", "1000"];
    let service = Service::with(rules).flags(flags).start();
    let call = vec![
        descriptor(&[("plain", "secret")]),
        descriptor(&[("detailed", "a b")]),
        // Entries beside the path may come first.
        descriptor(&[("hold.id", "secret"), ("route", "/x"), ("user", "secret")]),
        descriptor(&[("file", "a.secret")]),
    ];
    service.ask(request("shop", call)).await.unwrap();
    let metrics = service.get("/metrics");
    for rule in ["plain", "detailed=a%20b", "route=/x|user", "file=a*"] {
        assert!(metrics.contains(&format!("rule=\"{rule}\"")), "{rule}: {metrics}");
    }
    assert!(!metrics.contains("secret"), "{metrics}");

    for part in 0..2 {
        let one = |number: u32| descriptor(&[("detailed", &number.to_string())]);
        let descriptors = (part * 1000..part * 1000 + 1000).map(one).collect();
        service.ask(request("shop", descriptors)).await.unwrap();
    }
    let metrics = service.get("/metrics");
    let decisions = metrics.lines().filter(|line| line.starts_with("ratelimit_decisions_total"));
    assert_eq!(decisions.filter(|line| line.contains("rule=\"detailed=")).count(), 1000);
    let rest = r#"ratelimit_decisions_total{code="ok",domain="shop",rule="detailed|other"} 1001"#;
    assert!(metrics.contains(rest), "{rest}");
}

/// Sends a call for these users, and counts the series of their rule.
async fn series_of_users(service: &Service, users: std::ops::Range<u32>) -> usize {
    let one = |number: u32| descriptor(&[("user", &format!("u{number}"))]);
    service.ask(request("shop", users.map(one).collect())).await.unwrap();
    let metrics = service.get("/metrics");
    let decisions = metrics.lines().filter(|line| line.starts_with("ratelimit_decisions_total"));
    decisions.filter(|line| line.contains("rule=\"user=")).count()
}

#[tokio::test]
async fn a_rule_that_a_reload_moves_to_another_line_keeps_its_thousand_series() {
    let rules = "
domain: shop
descriptors:
  - { key: user, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
";
    let flags = &["--max-descriptors", "1000", "--max-charges", "1000"];
    let service = Service::with(rules).flags(flags).start();
    assert_eq!(series_of_users(&service, 0..1000).await, 1000);
    for (lines, users) in [(1, 1000..2000), (2, 2000..3000)] {
        service.reload(&("# a comment\n".repeat(lines) + rules));
        assert_eq!(series_of_users(&service, users).await, 1000, "{lines} lines further down");
    }
    // A rule that is removed and added again begins anew.
    service.reload("domain: shop\ndescriptors: []\n");
    service.reload(rules);
    assert_eq!(series_of_users(&service, 3000..3500).await, 500);
}

#[tokio::test]
async fn series_of_rules_that_are_gone_end_with_them() {
    let limit = "rate_limit: { unit: year, requests_per_unit: 1 }";
    let rules = |generation: u32| {
        format!(
            "domain: shop\ndescriptors:\n- {{ key: stays, {limit} }}\n- {{ key: k{generation}, {limit} }}\n\
             - {{ key: d{generation}, detailed_metric: true, {limit} }}\n"
        )
    };
    let service = Service::with(&rules(0)).start();
    for generation in 0..10 {
        if generation > 0 {
            service.reload(&rules(generation));
        }
        let (plain, detailed) = (format!("k{generation}"), format!("d{generation}"));
        let keys = ["stays", "unknown", plain.as_str(), detailed.as_str()];
        let call = keys.map(|key| descriptor(&[(key, "v")])).to_vec();
        service.ask(request("shop", call)).await.unwrap();
    }
    let metrics = service.get("/metrics");
    let of_rules = |name: &str| -> Vec<&str> {
        let series = metrics.lines().filter(|line| line.starts_with(name));
        series.filter_map(|line| line.split("rule=\"").nth(1)?.split('"').next()).collect()
    };
    let mut rules = of_rules("ratelimit_decisions_total");
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(rules, ["d9=v", "k9", "other", "stays"], "{metrics}");
    assert_eq!(
        of_rules("ratelimit_hits_total").iter().filter(|rule| rule.contains('8')).count(),
        0
    );
    let others = r#"ratelimit_decisions_total{code="ok",domain="shop",rule="other"} 10"#;
    assert!(metrics.contains(others), "{metrics}");
    let kept = r#"ratelimit_hits_total{domain="shop",rule="stays",standing="over"} 9"#;
    assert!(metrics.contains(kept), "{metrics}");
}

#[tokio::test]
async fn a_refused_debit_names_its_rule_wherever_a_reload_moved_it() {
    let looked = "  - { key: looked, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let plain = "  - { key: plain, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let head = "domain: shop\ndescriptors:\n";
    let rules = format!("{head}{looked}{plain}");
    let service = Service::with(&rules).start();
    let refused = || {
        let metrics = service.get("/metrics");
        let lines =
            metrics.lines().filter(|line| line.starts_with("ratelimit_debits_refused_total"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    service.ask(shop("looked=x(0)")).await.unwrap();
    service.reload(&format!("{head}{plain}{looked}"));
    service.ask(shop("plain=x(2)")).await.unwrap();
    assert_eq!(refused(), [""; 0], "it has had no check");
    service.ask(shop("looked=x(2)")).await.unwrap();
    assert_eq!(refused(), [r#"ratelimit_debits_refused_total{rule="looked"} 1"#]);
    let line = eventually("a warning", || {
        let log = service.log();
        log.lines().find(|line| line.contains("count_denied")).map(str::to_owned)
    });
    assert!(line.contains("looked") && line.contains("rules.yaml:4"), "{line}");

    // The looks of a rule are forgotten when a reload removes the rule, and so is its series.
    service.reload(&format!("{head}{plain}"));
    service.reload(&rules);
    service.ask(shop("looked=x(2)")).await.unwrap();
    assert_eq!(refused(), [""; 0]);
}

#[tokio::test]
async fn hits_are_counted_by_how_near_they_are_to_the_limit() {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 15 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let service = Service::with(rules).start();
    for count in [11, 2, 9] {
        service.ask(shop(&format!("user=x({count})"))).await.unwrap();
    }
    service.ask(shop("shadow=x(2)")).await.unwrap();
    let metrics = service.get("/metrics");
    for (rule, standing, count) in
        [("user", "within", 12), ("user", "near", 1), ("user", "over", 9), ("shadow", "shadow", 2)]
    {
        let series = format!(
            r#"ratelimit_hits_total{{domain="shop",rule="{rule}",standing="{standing}"}} {count}"#
        );
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
}

/// Prometheus reads a counter as a float, which is exact below 2^53.
#[tokio::test]
async fn one_call_with_the_most_hits_leaves_the_counter_of_hits_exact() {
    let service = Service::shop().start();
    let over = "ratelimit_hits_total{domain=\"shop\",rule=\"user\",standing=\"over\"} ";
    service.ask(shop(&format!("user=x({})", u64::MAX))).await.unwrap();
    assert_eq!(service.metric(over), 4_294_967_295.0);
    for _ in 0..2 {
        service.ask(shop("user=x(11)")).await.unwrap();
    }
    assert_eq!(service.metric(over), 4_294_967_317.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_collector_delays_the_exit_and_a_second_signal_ends_the_wait() {
    // The system accepts the connections, and no program answers on them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let environment = &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let mut took = Vec::new();
    for second in [None, Some("INT")] {
        let mut service = Service::shop().environment(environment).ready();
        service.ask(shop("user=a")).await.unwrap();
        let began = Instant::now();
        service.process().signal("TERM");
        if let Some(second) = second {
            service.wait_for_log("draining");
            service.process().signal(second);
        }
        assert!(service.process().0.wait().unwrap().success(), "{}", service.log());
        took.push(began.elapsed());
    }
    assert!(took[1] < took[0], "{took:?}");
}
