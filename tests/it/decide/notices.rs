//! Notices: operators hear once that a counter has reached a part of its limit, in a log, by a webhook and by OTLP.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::hmac;
use std::io::BufReader;

use crate::support::{
    otlp::{Receiver, attribute},
    prelude::*,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { name: daily, unit: year, requests_per_unit: 10, notify_at: [50, 100] }
  - key: work
    rate_limit: { unit: year, requests_per_unit: 10, notify_at: [80], hold: 10m }
  - key: quiet
    rate_limit: { unit: year, requests_per_unit: 10 }
";

const KEY: [u8; 24] = [7; 24];

/// The headers, in lower case, and the body.
type Received = (HashMap<String, String>, String);

/// A server that takes notices, after it has answered some requests with a status each.
#[derive(Clone, Default)]
struct Webhook {
    requests: Arc<Mutex<Vec<Received>>>,
}

impl Webhook {
    fn start(statuses: &'static [u16]) -> (Self, String) {
        let (webhook, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").unwrap());
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let own = webhook.clone();
        thread::spawn(move || {
            let mut statuses = statuses.iter();
            for stream in listener.incoming() {
                own.answer(stream.unwrap(), *statuses.next().unwrap_or(&204));
            }
        });
        (webhook, url)
    }

    fn answer(&self, stream: TcpStream, status: u16) {
        let mut reader = BufReader::new(&stream);
        let (mut line, mut headers) = (String::new(), HashMap::new());
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("POST /hook"), "{line}");
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        self.requests.lock().unwrap().push((headers, String::from_utf8(body).unwrap()));
        let answer = format!("HTTP/1.1 {status} -\r\ncontent-length: 0\r\n\r\n");
        (&stream).write_all(answer.as_bytes()).unwrap();
    }

    fn requests(&self, count: usize) -> Vec<Received> {
        eventually(&format!("{count} requests"), || {
            let requests = self.requests.lock().unwrap();
            (requests.len() >= count).then(|| requests.clone())
        })
    }

    fn events(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        let batches = requests.iter().map(|(_, body)| serde_json::from_str::<Vec<Value>>(body));
        batches.flat_map(Result::unwrap).collect()
    }

    /// The rule, the percent and the used hits of each event, once there are this many.
    fn told(&self, count: usize) -> Vec<(String, u64, u64)> {
        let mut told = eventually(&format!("{count} events"), || {
            let events = self.events();
            (events.len() >= count).then_some(events)
        });
        told.sort_by_key(|event| event["data"]["at"].as_u64());
        let of = |event: &Value| {
            let data = &event["data"];
            let number = |name: &str| data[name].as_u64().unwrap();
            (data["rule"].as_str().unwrap().to_owned(), number("at"), number("used"))
        };
        told.iter().map(of).collect()
    }
}

fn notices(service: &Service, outcome: &str) -> u64 {
    let name = format!("ratelimit_notices_total{{outcome=\"{outcome}\"}} ");
    let metrics = service.get("/metrics");
    let number = metrics.lines().find_map(|line| line.strip_prefix(&*name));
    number.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
}

fn start(store: &str, flags: &[&str]) -> Service {
    Service::start(Options { rules: RULES, store, flags, ..Options::default() })
}

async fn call(service: &Service, entry: (&str, &str), count: u64) {
    let call = request("shop", vec![hits(descriptor(&[entry]), count)]);
    service.ask(call).await.unwrap();
}

#[tokio::test]
async fn one_of_two_replicas_tells_of_each_part_that_a_counter_reaches() {
    let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
    let replicas = [(); 2].map(|()| start(&redis.url(), &["--notices-url", &url]));
    for number in 0..24 {
        call(&replicas[number % 2], ("user", "canary-51e0"), 1).await;
        call(&replicas[number % 2], ("quiet", "canary-51e0"), 1).await;
    }
    let told = webhook.told(2);
    assert_eq!(told, [("user".to_owned(), 50, 5), ("user".to_owned(), 100, 10)]);
    let raised = || replicas.iter().map(|replica| notices(replica, "raised")).sum::<u64>();
    eventually("two notices", || (raised() == 2).then_some(()));
    let logs: String = replicas.iter().map(Service::log).collect();
    assert_eq!(logs.matches("a counter has reached a part of its limit").count(), 2, "{logs}");
    let bodies = format!("{logs}{:?}", webhook.events());
    assert!(!bodies.contains("canary-51e0"), "a value in {bodies}");
    let event = &webhook.events()[0];
    for (name, expected) in [("specversion", "1.0"), ("type", "io.tollkeeper.limit.reached")] {
        assert_eq!(event[name], expected);
    }
    let data = &event["data"];
    assert_eq!((&data["domain"], &data["name"]), (&json!("shop"), &json!("daily")));
    assert_eq!((&data["limit"], &data["capacity"]), (&json!("10 per year"), &json!(10)));
    assert!(data["resets_in"].is_u64(), "whole seconds, as on the page: {event}");
    assert_eq!(event["subject"], data["key"]);
    let top =
        replicas.each_ref().map(|one| one.exchange_at(one.admin, "GET", "/top", b"").2).join("");
    assert!(top.contains(data["key"].as_str().unwrap()), "{event} has no key of {top}");
    // A year of 365 days.
    let (digest, ends) = event["id"].as_str().unwrap().rsplit_once('-').unwrap();
    assert_eq!(digest.len(), 16, "a digest with a key: {event}");
    let ends: u64 = ends.parse().unwrap();
    assert_eq!(ends % (365 * 86_400), 0, "the window's end is in {}", event["id"]);
    let other = start(&redis.url(), &["--notices-url", &url]);
    call(&other, ("user", "canary-51e0"), 1).await;
    call(&other, ("user", "another"), 5).await;
    assert_eq!(webhook.told(3).len(), 3, "a replica that starts tells of nothing twice");
}

#[tokio::test]
async fn a_jump_tells_of_every_part_that_it_reaches_and_a_commit_is_seen_by_the_next_call() {
    let (webhook, url) = Webhook::start(&[]);
    let service = start("memory://", &["--notices-url", &url, "--top-keys", "values"]);
    call(&service, ("user", "alice"), 10).await;
    let told = webhook.told(2);
    assert_eq!(told, [("user".to_owned(), 50, 10), ("user".to_owned(), 100, 10)]);
    assert_eq!(webhook.events()[0]["subject"], "user=alice");

    let path = "/v1/decide";
    let take = json!({ "domain": "shop", "calls": [{ "descriptors": [
        { "entries": [{ "key": "work", "value": "alice" }] }], "hits": "1" }] });
    let (_, _, answer) = service.exchange("POST", path, take.to_string().as_bytes());
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let commit = json!({ "domain": "shop", "commits": [{ "hold": answer["verdicts"][0]["hold"], "used": "8" }] });
    assert_eq!(service.exchange("POST", "/v1/commit", commit.to_string().as_bytes()).0, 200);
    service.exchange("POST", path, take.to_string().replace(r#""1""#, r#""0""#).as_bytes());
    assert_eq!(webhook.told(3)[1], ("work".to_owned(), 80, 8));
}

#[tokio::test]
async fn a_webhook_that_is_away_gets_a_notice_again_with_a_signature_of_its_bytes() {
    let (webhook, url) = Webhook::start(&[503, 429]);
    let folder = TempDir::new().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, format!("whsec_{}\n", BASE64.encode(KEY))).unwrap();
    let flags = ["--notices-url", &url, "--notices-key-file", key.to_str().unwrap()];
    let mut service = start("memory://", &flags);
    call(&service, ("user", "alice"), 5).await;
    let requests = webhook.requests(3);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &KEY);
    for (headers, body) in &requests {
        assert_eq!(headers["content-type"], "application/cloudevents-batch+json");
        let (id, at) = (&headers["webhook-id"], &headers["webhook-timestamp"]);
        let signed = hmac::sign(&key, format!("{id}.{at}.{body}").as_bytes());
        assert_eq!(headers["webhook-signature"], format!("v1,{}", BASE64.encode(signed)));
        assert_eq!((id, body), (&requests[0].0["webhook-id"], &requests[0].1));
    }
    eventually("it is sent", || (notices(&service, "sent") == 1).then_some(()));

    call(&service, ("user", "bob"), 5).await;
    service.process().signal("TERM");
    assert!(service.process().0.wait().unwrap().success(), "{}", service.log());
    assert_eq!(webhook.requests(4).len(), 4, "what waits is sent before the service ends");
}

#[tokio::test]
async fn a_webhook_that_refuses_notices_loses_them_and_the_log_says_so_without_its_url() {
    let (webhook, url) = Webhook::start(&[403]);
    let secret = format!("{url}?token=canary-9c2b");
    let service = start("memory://", &["--notices-url", &secret]);
    call(&service, ("user", "alice"), 5).await;
    eventually("it is dropped", || (notices(&service, "dropped") == 1).then_some(()));
    assert_eq!(webhook.requests.lock().unwrap().len(), 1);
    let log = service.log();
    assert!(log.contains("the webhook takes no notices") && log.contains("403"), "{log}");
    assert!(!log.contains("canary-9c2b"), "{log}");
}

/// A service that exports its notices to this endpoint.
fn exporting(store: &str, flags: &[&str], endpoint: &str, environment: &[(&str, &str)]) -> Service {
    let always = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), ("OTEL_LOGS_EXPORTER", "otlp")];
    let environment = &[&always, environment].concat()[..];
    Service::start(Options { rules: RULES, store, flags, environment })
}

fn end(service: &mut Service) {
    service.process().signal("TERM");
    assert!(service.process().0.wait().unwrap().success(), "{}", service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_notice_of_two_replicas_is_a_log_record_with_the_data_of_its_event() {
    for protocol in ["grpc", "http/protobuf"] {
        let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
        let (receiver, endpoint) = Receiver::start().await;
        let environment = &[("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)];
        let flags = ["--notices-url", &url];
        let mut replicas =
            [(); 2].map(|()| exporting(&redis.url(), &flags, &endpoint, environment));
        for number in 0..12 {
            call(&replicas[number % 2], ("user", "canary-51e0"), 1).await;
            call(&replicas[number % 2], ("work", "canary-51e0"), 1).await;
        }
        webhook.told(3);
        replicas.iter_mut().for_each(end);

        let (mut records, mut events) = (receiver.records(), webhook.events());
        assert_eq!(records.len(), 3, "{protocol}: {records:?}");
        records.sort_by_key(|record| attribute(&record.attributes, "id"));
        events.sort_by_key(|event| event["id"].as_str().unwrap().to_owned());
        for (record, event) in records.iter().zip(events) {
            let kind = (&*record.event_name, record.severity_number, &*record.severity_text);
            assert_eq!(kind, (event["type"].as_str().unwrap(), 9, "INFO"));
            let raised: jiff::Timestamp = event["time"].as_str().unwrap().parse().unwrap();
            assert_eq!(i128::from(record.time_unix_nano), raised.as_nanosecond());
            let mut data = event["data"].as_object().unwrap().clone();
            data.insert("id".to_owned(), event["id"].clone());
            // OTLP has no attributes without a value.
            data.retain(|_, value| !value.is_null());
            let found: BTreeMap<&str, String> = (record.attributes.iter())
                .map(|one| (&*one.key, attribute(&record.attributes, &one.key)))
                .collect();
            let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
            assert_eq!(found, data.iter().map(|(name, value)| (&**name, text(value))).collect());
        }
        let logs = receiver.logs.lock().unwrap();
        let resource = logs[0].resource_logs[0].resource.as_ref().unwrap();
        assert_eq!(attribute(&resource.attributes, "service.name"), "tollkeeper");
        let text = format!("{logs:?}");
        assert!(text.contains("a counter has reached a part of its limit"), "{text}");
        assert!(!text.contains("canary-51e0"), "a value in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_are_exported_only_if_it_is_asked_for() {
    let (receiver, endpoint) = Receiver::start().await;
    let environment = &[("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint)];
    let mut service = Service::start(Options { rules: RULES, environment, ..Options::default() });
    call(&service, ("user", "alice"), 5).await;
    eventually("it is given", || (notices(&service, "raised") == 1).then_some(()));
    end(&mut service);
    assert!(!receiver.metrics.lock().unwrap().is_empty());
    assert_eq!(receiver.records(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_delays_no_call_and_no_other_notice() {
    // The system accepts connections to it, and nothing reads them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    for protocol in ["grpc", "http/protobuf"] {
        let (webhook, url) = Webhook::start(&[]);
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let environment = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000"),
            ("OTEL_BLRP_SCHEDULE_DELAY", "1"),
            ("OTEL_BLRP_MAX_QUEUE_SIZE", "2"),
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ];
        let flags = ["--notices-url", &url];
        let mut service = exporting("memory://", &flags, &endpoint, &environment);
        call(&service, ("user", "first"), 5).await;
        let _open = eventually("it exports", || silent.accept().ok());
        for number in 1..20 {
            call(&service, ("user", &number.to_string()), 5).await;
        }
        assert_eq!(webhook.told(20).len(), 20);
        end(&mut service);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_collector_of_notices_is_one_line_of_its_own_and_its_end_another() {
    for protocol in ["grpc", "http/protobuf"] {
        let (receiver, endpoint) = Receiver::start().await;
        receiver.refuses.store(true, Ordering::Relaxed);
        let environment = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_BLRP_SCHEDULE_DELAY", "1"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_BSP_SCHEDULE_DELAY", "1"),
        ];
        let service = exporting("memory://", &[], &endpoint, &environment);
        let mut users = 0..;
        let mut call_until = async |what: &str, done: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !done() {
                assert!(began.elapsed() < PATIENCE, "{protocol}: {what}: {}", service.log());
                call(&service, ("user", &users.next().unwrap().to_string()), 5).await;
            }
        };
        let refused = || receiver.refused.load(Ordering::Relaxed) >= 20;
        call_until("20 exports are refused", &refused).await;
        let lines = |level: &str, what: &str| {
            let log = service.log();
            let lines = log.lines().filter(|line| line.contains(level) && line.contains(what));
            lines.filter(|line| line.contains("OTEL_EXPORTER_OTLP_ENDPOINT")).count()
        };
        let outages = || (lines("WARN", "notices"), lines("WARN", "traces"));
        call_until("both outages are logged", &|| outages() == (1, 1)).await;
        receiver.refuses.store(false, Ordering::Relaxed);
        let ends = || (lines("INFO", "notices"), lines("INFO", "traces"));
        call_until("their ends are logged", &|| ends() == (1, 1)).await;
        assert!(!receiver.records().is_empty());
        assert_eq!(service.warnings().len(), 2, "{}", service.log());
        assert!(!service.log().contains("its own words"), "{}", service.log());
    }
}
