//! Traces, as an OTLP receiver decodes them; no value of a descriptor is in them.

use opentelemetry_proto::tonic::trace::v1::Span;
use prost_types::value::Kind;
use tonic::Request;

use crate::support::{http::status, otlp::*, overrides::set, prelude::*};

/// The page of traces.
const PAGE: &str = include_str!("../../../docs/observability.md");

const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const CANARY: &str = "canary-7f3a";

/// Spans are exported soon.
const SOON: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "20");

/// Calls `shop` with these headers.
async fn call(
    client: &mut RateLimitServiceClient<Channel>,
    headers: &[(&'static str, &str)],
    descriptors: Vec<RateLimitDescriptor>,
) {
    let mut call = Request::new(request("shop", descriptors));
    for (name, value) in headers {
        call.metadata_mut().insert(*name, value.parse().unwrap());
    }
    client.should_rate_limit(call).await.unwrap();
}

/// The span of one call of `shop`.
async fn span_of(
    service: &Service,
    receiver: &Receiver,
    descriptors: Vec<RateLimitDescriptor>,
) -> Span {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    call(&mut service.client().await, &[("traceparent", &parent)], descriptors).await;
    receiver.span(METHOD, TRACE)
}

/// A service that exports soon, and its receiver.
async fn traced(service: Options<'_>) -> (Receiver, Service) {
    let (receiver, endpoint) = Receiver::start().await;
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), SOON];
    (receiver, service.environment(&environment).ready())
}

#[track_caller]
fn all_are_on_the_page<'span>(spans: impl IntoIterator<Item = &'span Span>) {
    for attribute in spans.into_iter().flat_map(|span| &span.attributes) {
        assert!(PAGE.contains(&format!("`{}`", attribute.key)), "{} is on the page", attribute.key);
    }
}

fn user(name: &str) -> Vec<RateLimitDescriptor> {
    vec![descriptor(&[("user", name)])]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_a_server_span_with_rules_and_verdict_and_its_script_run_a_child() {
    let redis = Redis::start();
    let service = Service::shop().flags(&["--log-level", "debug"]);
    let (receiver, mut service) = traced(service.on(&redis.url())).await;
    let entries = [("user", CANARY), ("user", "two"), (CANARY, CANARY)];
    let descriptors = entries.map(|entry| descriptor(&[entry])).to_vec();
    let server = span_of(&service, &receiver, descriptors).await;
    assert_eq!((hex(&server.parent_span_id), server.kind), (SPAN.to_owned(), 2));
    for (name, expected) in [
        ("rpc.system.name", "grpc"),
        ("rpc.method", METHOD),
        ("rpc.response.status_code", "OK"),
        ("ratelimit.domain", "shop"),
        ("ratelimit.rules", "user,user=two,other"),
        ("ratelimit.verdicts", "ok,ok,ok"),
        ("ratelimit.verdict", "ok"),
        ("ratelimit.fallback.rules", ""),
    ] {
        assert_eq!(attribute(&server.attributes, name), expected, "{name}");
    }
    // A busy machine may be slow to hand out a connection.
    let reason = attribute(&server.attributes, "ratelimit.wait.reason");
    assert!(["gathering", "connection"].contains(&&*reason), "{reason}");
    let run = receiver.span("EVALSHA", TRACE);
    assert_eq!((&run.parent_span_id, run.kind), (&server.span_id, 3));
    let port = redis.url().rsplit_once(':').unwrap().1.trim_end_matches("/0").to_owned();
    for (name, expected) in [
        ("db.system.name", "redis"),
        ("db.operation.name", "EVALSHA"),
        ("db.stored_procedure.name", "fixed"),
        ("ratelimit.batch.calls", "1"),
        ("server.address", "127.0.0.1"),
        ("server.port", &port),
        ("error.type", ""),
    ] {
        assert_eq!(attribute(&run.attributes, name), expected, "{name}");
    }
    all_are_on_the_page([&server, &run]);
    assert_eq!(server.links[0].span_id, run.span_id, "the call links to its run");
    assert_eq!(run.links[0].span_id, server.span_id, "the run links to its call");

    service.end();
    let log = service.log();
    let line = log.lines().find(|line| line.contains("matched no rule")).expect(&log);
    assert!(line.contains(TRACE) && line.contains(&hex(&server.span_id)), "{line}");
    for text in [format!("{:?}", receiver.spans()), log] {
        assert!(!text.contains(CANARY), "a value or name of the request in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_span_of_a_call_names_the_override_that_decided() {
    let (receiver, service) = traced(Service::shop()).await;
    let set = set(&service, "user=two", json!({ "times": 10 }));
    let span = span_of(&service, &receiver, user("two")).await;
    let named = format!("times 10 {}", set["id"].as_str().unwrap());
    assert_eq!(attribute(&span.attributes, "ratelimit.overrides"), named);
}

/// The commit may come through another replica, and without the headers of the take.
#[tokio::test(flavor = "multi_thread")]
async fn the_span_of_a_commit_links_to_the_span_of_its_take() {
    let rules = "domain: shop\ndescriptors:\n  - { key: user, rate_limit: { unit: year, requests_per_unit: 9, hold: 10m } }\n";
    let (receiver, service) = traced(Service::with(rules)).await;
    let mut client = service.client().await;
    let mut ask = async |trace: &str, flag: &str, descriptors| {
        let mut call = Request::new(request("shop", descriptors));
        let parent = format!("00-{trace}-{SPAN}-{flag}");
        call.metadata_mut().insert("traceparent", parent.parse().unwrap());
        let answer = client.should_rate_limit(call).await.unwrap().into_inner();
        let hold = answer.dynamic_metadata.and_then(|mut metadata| metadata.fields.remove("hold"));
        match hold.and_then(|hold| hold.kind) {
            Some(Kind::StringValue(token)) => token,
            _ => String::new(),
        }
    };
    let other = format!("1{}", &TRACE[1..]);
    let token = ask(TRACE, "01", user(CANARY)).await;
    let not_sampled = ask(TRACE, "00", user(CANARY)).await;
    assert!(not_sampled.len() + 24 < token.len(), "the span takes room only if it is sampled");
    let commits = [&token, &not_sampled, &token].map(|token| descriptor(&[("hold.commit", token)]));
    ask(&other, "01", commits.to_vec()).await;

    let take = receiver.span(METHOD, TRACE);
    assert_eq!(attribute(&take.attributes, "ratelimit.hold.taken"), "true");
    assert_eq!(attribute(&take.attributes, "ratelimit.commits"), "");
    let commit = receiver.span(METHOD, &other);
    assert_eq!(attribute(&commit.attributes, "ratelimit.hold.taken"), "");
    let commits = attribute(&commit.attributes, "ratelimit.commits");
    assert_eq!(commits, "committed,committed,repeated");
    let links: Vec<_> = commit.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect();
    assert_eq!(links, [(&take.trace_id, &take.span_id); 2]);
    all_are_on_the_page([&take, &commit]);
    assert!(!format!("{:?}", receiver.spans()).contains(CANARY));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_json_is_a_server_span_by_the_conventions_for_http() {
    let mut redis = Redis::start();
    let (receiver, service) = traced(Service::shop().on(&redis.url())).await;
    let ask = |number: u8, (key, hits): (&str, u8), expected: &str| {
        let trace = format!("{number}{}", &TRACE[1..]);
        let parent = format!("traceparent: 00-{trace}-{SPAN}-01");
        let entries = json!([{ "key": key, "value": CANARY }]);
        let body = json!({ "domain": "shop", "hits_addend": hits, "descriptors": [{ "entries": entries }] });
        let path = "POST /json HTTP/1.1";
        assert_eq!(status(service.http, path, &[&parent, "host: a"], &body.to_string()), expected);
        let span = receiver.span("POST /json", &trace);
        assert_eq!((hex(&span.parent_span_id), span.kind), (SPAN.to_owned(), 2));
        for (name, expected) in [
            ("http.request.method", "POST"),
            ("http.route", "/json"),
            ("http.response.status_code", expected),
            ("url.path", "/json"),
            ("url.scheme", "http"),
            ("rpc.method", ""),
        ] {
            assert_eq!(attribute(&span.attributes, name), expected, "{name}");
        }
        all_are_on_the_page([&span]);
        (span, trace)
    };
    let says = |span: &Span, expected: [&str; 3]| {
        let names = ["ratelimit.rules", "ratelimit.verdict", "error.type"];
        assert_eq!(names.map(|name| attribute(&span.attributes, name)), expected);
    };
    let (passed, trace) = ask(1, ("user", 10), "200");
    says(&passed, ["user", "ok", ""]);
    let run = receiver.span("EVALSHA", &trace);
    assert_eq!(run.parent_span_id, passed.span_id);
    says(&ask(2, ("user", 1), "429").0, ["user", "over_limit", ""]);
    redis.stop();
    let (failed, _) = ask(3, ("work", 1), "503");
    says(&failed, ["", "", "503"]);
    assert_eq!(attribute(&failed.attributes, "ratelimit.fallback.rules"), "work");
    assert_eq!(failed.status.unwrap().code, 2, "an error");
    assert!(!format!("{:?}", receiver.spans()).contains(CANARY));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_json_is_one_span_which_shows_the_decision_of_a_single_call() {
    let (receiver, service) = traced(Service::shop()).await;
    let call = json!({ "descriptors": [{ "entries": [{ "key": "user", "value": CANARY }] }] });
    for (count, rules) in [(1, "user"), (2, "")] {
        let trace = format!("{count}{}", &TRACE[1..]);
        let parent = format!("traceparent: 00-{trace}-{SPAN}-01");
        let body = json!({ "domain": "shop", "calls": vec![call.clone(); count] }).to_string();
        let path = "POST /v1/decide HTTP/1.1";
        assert_eq!(status(service.http, path, &[&parent, "host: a"], &body), "200");
        let span = receiver.span("POST /v1/decide", &trace);
        let names = ["ratelimit.calls", "ratelimit.rules", "http.route"];
        let found = names.map(|name| attribute(&span.attributes, name));
        assert_eq!(found, [&*count.to_string(), rules, "/v1/decide"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_of_a_batch_and_each_of_its_calls_are_linked() {
    const CALLS: usize = 20;
    let redis = Redis::start();
    let (receiver, service) = traced(Service::shop().on(&redis.url())).await;
    let client = service.client().await;
    let mut calls = tokio::task::JoinSet::new();
    // While Redis is stopped, the others wait for the batch of the first.
    redis.signal("STOP");
    for number in 1..=CALLS {
        let mut client = client.clone();
        calls.spawn(async move {
            let parent = format!("00-{number:032x}-{SPAN}-01");
            call(&mut client, &[("traceparent", &parent)], user(&format!("u{number}"))).await;
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    redis.signal("CONT");
    calls.join_all().await;

    let (calls, runs) = eventually("all spans arrive", || {
        let (calls, runs): (Vec<_>, Vec<_>) =
            receiver.spans().into_iter().partition(|span| span.name == METHOD);
        let served: usize = runs.iter().map(|run| run.links.len()).sum();
        (calls.len() == CALLS && served >= CALLS).then_some((calls, runs))
    });
    assert!(runs.len() < CALLS, "{} runs for {CALLS} calls", runs.len());
    for call in &calls {
        let link = call.links.last().expect("a link to the run that decided it");
        let run = runs.iter().find(|run| run.span_id == link.span_id).expect("that run");
        assert_eq!(run.trace_id, link.trace_id);
        assert!(run.links.iter().any(|link| link.span_id == call.span_id), "and one back");
        let waited: f64 = attribute(&link.attributes, "ratelimit.wait.duration").parse().unwrap();
        assert!(waited > 0.0, "{waited} s");
        let reason = attribute(&call.attributes, "ratelimit.wait.reason");
        assert_eq!(reason, attribute(&link.attributes, "ratelimit.wait.reason"));
    }
    let waited_for_batch = |span: &_| attribute(span, "ratelimit.wait.reason") == "batch_under_way";
    assert!(calls.iter().any(|call| waited_for_batch(&call.attributes[..])), "{calls:?}");
    for run in runs {
        let first = calls.iter().find(|call| call.span_id == run.parent_span_id);
        assert_eq!(first.expect("its parent is a call").trace_id, run.trace_id);
        let served = attribute(&run.attributes, "ratelimit.batch.calls");
        assert_eq!(served, run.links.len().to_string(), "all calls are sampled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callers_span_and_decision_are_read_from_w3c_and_b3_headers() {
    let (receiver, service) = traced(Service::shop()).await;
    let mut client = service.client().await;
    let trace = |number: u8| format!("{number:032x}");
    for headers in [
        &[("traceparent", &*format!("00-{}-{SPAN}-00", trace(1)))][..],
        &[("b3", &format!("{}-{SPAN}-0", trace(2)))],
        &[("b3", "0")],
        &[("x-b3-traceid", &trace(3)), ("x-b3-spanid", SPAN), ("x-b3-sampled", "0")],
        &[("traceparent", &format!("00-{}-{SPAN}-01", trace(4)))],
        &[("b3", &format!("{}-{SPAN}-1", trace(5)))],
        &[("x-b3-traceid", &trace(6)), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1")],
    ] {
        call(&mut client, headers, user("a")).await;
    }
    for sampled in 4..=6 {
        assert_eq!(hex(&receiver.span(METHOD, &trace(sampled)).parent_span_id), SPAN);
    }
    assert_eq!(receiver.spans().len(), 3, "the others are not sampled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_store_shows_the_rules_whose_failure_mode_decided() {
    let (receiver, endpoint) = Receiver::start().await;
    let gone = nobody();
    let service = Service::shop()
        .on(&format!("redis://{gone}"))
        .flags(&["--on-store-failure", "deny"])
        .environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint), SOON])
        .start();
    let span = span_of(&service, &receiver, user("a")).await;
    assert_eq!(attribute(&span.attributes, "ratelimit.verdict"), "over_limit");
    assert_eq!(attribute(&span.attributes, "ratelimit.fallback.rules"), "user");
    assert_eq!(attribute(&span.attributes, "ratelimit.fallback.modes"), "deny");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_denied_from_memory_says_so_and_has_no_run() {
    let redis = Redis::start();
    let (receiver, service) = traced(Service::shop().on(&redis.url())).await;
    let mut client = service.client().await;
    let mut number = 0;
    // The cache holds for a second.
    let span = eventually("a denial from memory", || {
        number += 1;
        let trace = format!("{number:032x}");
        let parent = format!("00-{trace}-{SPAN}-01");
        let handle = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| {
            handle.block_on(call(&mut client, &[("traceparent", &parent)], user("two")));
        });
        let span = receiver.span(METHOD, &trace);
        (attribute(&span.attributes, "ratelimit.cached") == "true").then_some(span)
    });
    assert_eq!(attribute(&span.attributes, "ratelimit.verdict"), "over_limit");
    assert!(span.links.is_empty() && number > 3, "the first denial is Redis's own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_state_over_512_bytes_is_not_exported_and_its_trace_goes_on() {
    let (receiver, service) = traced(Service::shop()).await;
    let mut client = service.client().await;
    for (trace, length) in [("aa", 512), ("bb", 513)] {
        let parent = format!("00-{}-{SPAN}-01", trace.repeat(16));
        let state = format!("a={},b={}", "x".repeat(length - 261), "x".repeat(256));
        let headers = [("traceparent", &*parent), ("tracestate", &state)];
        call(&mut client, &headers, user("a")).await;
    }
    let state = |trace: &str| receiver.span(METHOD, &trace.repeat(16)).trace_state.len();
    assert_eq!([state("aa"), state("bb")], [512, 0]);
}

/// Starts a service that sends to `endpoint` with this protocol, calls it once, and returns the receiver's span.
async fn span_by(receiver: &Receiver, endpoint: &str, environment: &[(&str, &str)]) {
    let base = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), SOON];
    let environment = &[&base, environment].concat()[..];
    let mut service = Service::shop().environment(environment).start();
    span_of(&service, receiver, user("a")).await;
    service.end();
    assert!(!receiver.metrics.lock().unwrap().is_empty(), "metrics arrive too: {}", service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn both_protocols_carry_the_headers_of_the_variables_over_tls_that_the_given_ca_vouches_for()
{
    let authority = Authority::new();
    let certificate = authority.server(&["localhost"]);
    for (protocol, path) in [
        ("grpc", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
        ("http/protobuf", "/v1/traces"),
    ] {
        let (receiver, endpoint) = Receiver::start_with_tls(&certificate).await;
        let environment = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", authority.certificate.to_str().unwrap()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b,x-key=secret"),
        ];
        span_by(&receiver, &endpoint, &environment).await;
        let heads = receiver.heads.lock().unwrap();
        let (_, head) = heads.iter().find(|(found, _)| found == path).expect(path);
        assert_eq!(["x-tenant", "x-key"].map(|name| &head[name]), ["a b", "secret"]);
    }
}

/// Platforms set these variables for all of their pods, and the service must still start.
#[tokio::test(flavor = "multi_thread")]
async fn standard_variables_without_effect_are_warnings_and_the_rest_is_exported() {
    let (receiver, endpoint) = Receiver::start().await;
    let ignored = [
        ("OTEL_LOGS_EXPORTER", "console", "invalid value `console`: must be among: otlp, none"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "invalid value `gzip`: must be none, or unset"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1000", "it is not supported"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1000000000000", "must be a whole number from 1 to 100000"),
        ("OTEL_TRACES_SAMPLER", "xray", "invalid value `xray`: must be one of: always_on, always_"),
    ];
    let given = ignored.map(|(name, value, _)| (name, value));
    let environment = [&[("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), SOON], &given[..]].concat();
    span_by(&receiver, &endpoint, &environment).await;
    let service = Service::shop().environment(&environment).start();
    let log = service.log();
    for (name, _, warning) in ignored {
        let mut lines = log.lines().filter(|line| line.contains(name));
        assert!(lines.any(|line| line.contains(warning)), "{name}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_that_the_page_shows_export_sampled_calls() {
    let (receiver, endpoint) = Receiver::start().await;
    let shown = blocks(PAGE, "env")[0].lines().map(|line| line.split_once('=').unwrap());
    let mut environment: Vec<(&str, &str)> = shown.collect();
    assert_eq!(environment[0].0, "OTEL_EXPORTER_OTLP_ENDPOINT");
    environment[0].1 = &endpoint;
    span_by(&receiver, &endpoint, &environment).await;
    let requests = receiver.traces.lock().unwrap();
    let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(attribute(&resource.attributes, "deployment.environment.name"), "production");
    assert_eq!(attribute(&resource.attributes, "service.name"), "tollkeeper");
}
