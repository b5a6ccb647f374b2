//! Notices: operators hear once that a counter has reached a part of its limit, of bans, of holds that were too small, and
//! of overrides that end, in a log, by a webhook and by OTLP.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::hmac;
use std::io::BufReader;

use crate::support::{
    otlp::{Receiver, attribute},
    overrides::{end as undo, list, set, set_for},
    prelude::*,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { name: daily, unit: year, requests_per_unit: 10, notify_at: [50, 100] }
  - key: work
    rate_limit: { unit: year, requests_per_unit: 10, notify_at: [80], hold: 10m }
  - key: banned
    rate_limit: { unit: year, requests_per_unit: 2, notify_at: [100], ban_for: 1h }
  - key: spent
    rate_limit: { unit: year, requests_per_unit: 100, notify_at: [100], hold: 10m }
  - key: last
    rate_limit: { unit: year, requests_per_unit: 10, notify_at: [1] }
  - key: spent_by_id
    rate_limit: { unit: year, requests_per_unit: 100, notify_at: [100], hold: { for: 10m, by: id } }
  - key: spent_by_counter
    rate_limit: { unit: year, requests_per_unit: 100, notify_at: [100], hold: { for: 10m, by: counter, estimate: 2 } }
  - key: spent_late
    rate_limit: { unit: year, requests_per_unit: 100, notify_at: [100], hold: 1s }
  - key: spent_late_by_id
    rate_limit: { unit: year, requests_per_unit: 100, notify_at: [100], hold: { for: 1s, by: id } }
  - key: quiet
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: quietly_banned
    rate_limit: { unit: year, requests_per_unit: 2, ban_for: 1h }
  - key: quietly_spent
    rate_limit: { unit: year, requests_per_unit: 100, hold: 10m }
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

    /// The events so far. To know that every replica has sent its own, this makes each send one more, which is left out.
    /// `round` is the number of the call.
    async fn events_by(&self, replicas: &[Service], round: usize) -> Vec<Value> {
        for (number, replica) in replicas.iter().enumerate() {
            call(replica, ("last", &format!("{round} {number}")), 1).await;
        }
        eventually("the last events", || {
            let is_last = |event: &Value| event["data"]["rule"] == "last";
            let (last, others): (Vec<_>, Vec<_>) = self.events().into_iter().partition(is_last);
            (last.len() == round * replicas.len()).then_some(others)
        })
    }

    /// The rule, the percent and the used hits of each event, once there are this many.
    fn told(&self, count: usize) -> Vec<(String, u64, u64)> {
        let mut told = eventually(&format!("{count} events"), || {
            let events = of_type(&self.events(), "limit.reached");
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
    service.metric(&format!("ratelimit_notices_total{{outcome=\"{outcome}\"}} ")) as u64
}

fn start(store: &str, flags: &[&str]) -> Service {
    Service::with(RULES).on(store).flags(flags).start()
}

/// Two replicas that share the key of digests: until one knows it, its notices have ids of its own.
fn two(store: &str, flags: &[&str]) -> [Service; 2] {
    let replicas = [(); 2].map(|()| start(store, flags));
    wait_until("both know the key of digests", || {
        let [one, other] =
            replicas.each_ref().map(|one| one.counter("shop", "banned=x")["digest"].clone());
        one == other
    });
    replicas
}

async fn call(service: &Service, entry: (&str, &str), count: u64) {
    let call = request("shop", vec![hits(descriptor(&[entry]), count)]);
    service.ask(call).await.unwrap();
}

#[tokio::test]
async fn one_of_two_replicas_tells_of_each_part_that_a_counter_reaches() {
    let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
    let replicas = two(&redis.url(), &["--notices-url", &url]);
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

fn of_type(events: &[Value], kind: &str) -> Vec<Value> {
    events
        .iter()
        .filter(|event| event["type"] == format!("io.tollkeeper.{kind}"))
        .cloned()
        .collect()
}

/// The lines of all logs with this text.
fn lines(replicas: &[Service], text: &str) -> Vec<String> {
    let log: String = replicas.iter().map(Service::log).collect();
    log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

#[tokio::test]
async fn one_of_two_replicas_tells_of_each_ban_that_closes_a_counter() {
    let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
    let flags = ["--notices-url", &url, "--over-limit-cache", "0"];
    let replicas = two(&redis.url(), &flags);
    let call_all = async || {
        for number in 0..8 {
            for key in ["banned", "quietly_banned"] {
                // A check at the limit closes nothing.
                call(&replicas[number % 2], (key, "canary-51e0"), if number == 2 { 0 } else { 1 })
                    .await;
            }
        }
    };
    call_all().await;
    let events = webhook.events_by(&replicas, 1).await;
    let (reached, closed) = (of_type(&events, "limit.reached"), of_type(&events, "limit.closed"));
    assert_eq!((events.len(), reached.len(), closed.len()), (2, 1, 1), "{events:?}");
    let closed = &closed[0];
    assert_eq!(closed["subject"], reached[0]["subject"]);
    let mut data = closed["data"].clone();
    let until: jiff::Timestamp = data["until"].take().as_str().unwrap().parse().unwrap();
    let expected = json!({ "domain": "shop", "rule": "banned", "key": closed["subject"], "limit": "2 per year",
        "name": null, "capacity": 2, "until": null });
    assert_eq!(data, expected);
    let left = until.as_second() - jiff::Timestamp::now().as_second();
    assert!((3500..=3601).contains(&left), "{closed}");
    let (digest, ends) = closed["id"].as_str().unwrap().split_once('-').unwrap();
    assert_eq!((digest.len(), ends), (16, &*until.as_second().to_string()));

    let path = "/counters/reset?domain=shop&descriptor=banned%3Dcanary-51e0";
    assert_eq!(replicas[0].admin("POST", path).0, 200);
    call_all().await;
    let events = webhook.events_by(&replicas, 2).await;
    let closings = of_type(&events, "limit.closed");
    assert_eq!((events.len(), closings.len()), (3, 2), "a further closing: {events:?}");
    assert_ne!(closings[0]["id"], closings[1]["id"]);
    let logged = lines(&replicas, "a ban has closed a counter");
    assert_eq!(logged.len(), 2, "{logged:?}");
    assert!(
        logged.iter().all(|line| line.contains("rule=\"banned\"") && line.contains(" until=20"))
    );
    assert!(!format!("{events:?}{logged:?}").contains("canary-51e0"));
}

#[tokio::test]
async fn a_ban_that_redis_has_no_memory_for_is_not_told() {
    let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
    let flags = ["--notices-url", &url, "--over-limit-cache", "0"];
    let replicas = two(&redis.url(), &flags);
    call(&replicas[0], ("banned", "alice"), 2).await;
    webhook.events_by(&replicas, 1).await;
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..5 {
        call(&replicas[0], ("banned", "alice"), 1).await;
    }
    // Redis cannot say that the other replica has sent this notice, so it is sent again, with the same id.
    call(&replicas[0], ("last", "1 1"), 0).await;
    let events = eventually("the last event", || {
        let events = webhook.events();
        (events.len() == 4).then_some(events)
    });
    let again = events.iter().filter(|event| event["id"] == events[3]["id"]).count();
    assert_eq!((again, of_type(&events, "limit.closed").len()), (2, 0), "{events:?}");
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    call(&replicas[0], ("banned", "alice"), 1).await;
    eventually("a ban", || (of_type(&webhook.events(), "limit.closed").len() == 1).then_some(()));
}

/// Takes a hold of 2 by token on one replica, and commits it on the other one after a time.
async fn spend_after(time: Duration, replicas: &[Service], key: &str, used: u64) {
    let take = json!({ "domain": "shop", "calls": [{ "descriptors": [
        { "entries": [{ "key": key, "value": "canary-51e0" }] }], "hits": "2" }] });
    let answer = replicas[0].post("/v1/decide", take);
    tokio::time::sleep(time).await;
    let commit = json!({ "domain": "shop", "commits": [{ "hold": answer["verdicts"][0]["hold"], "used": used.to_string() }] });
    replicas[1].post("/v1/commit", commit);
}

async fn spend(replicas: &[Service], key: &str, used: u64) {
    spend_after(Duration::ZERO, replicas, key, used).await;
}

#[tokio::test]
async fn one_of_two_replicas_tells_once_in_a_window_that_a_commit_was_an_overrun() {
    let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
    let mut replicas = two(&redis.url(), &["--notices-url", &url]);
    spend(&replicas, "spent", 2).await;
    assert_eq!(webhook.events_by(&replicas, 1).await, [Value::Null; 0], "no more than held");
    for used in [5, 6, 7, 8] {
        spend(&replicas, "spent", used).await;
        spend(&replicas, "quietly_spent", used).await;
        replicas.reverse();
        // Two replicas that note one at the same time agree on either.
        wait_until("the first is told", || webhook.events().len() > 2);
    }
    let events = webhook.events_by(&replicas, 2).await;
    let [overrun] = &events[..] else { panic!("{events:?}") };
    assert_eq!(overrun["type"], "io.tollkeeper.budget.overrun");
    let mut data = overrun["data"].clone();
    assert!(data["resets_in"].take().is_u64(), "{overrun}");
    let expected = json!({ "domain": "shop", "rule": "spent", "key": overrun["subject"], "limit": "100 per year",
        "name": null, "capacity": 100, "outcome": "overrun", "held": 2, "used": 5, "resets_in": null });
    assert_eq!(data, expected);
    let logged = lines(&replicas, "a commit says that more was used than held");
    let [line] = &logged[..] else { panic!("{logged:?}") };
    assert!(
        line.contains("rule=\"spent\"") && line.contains(" outcome=\"overrun\" held=2 used=5"),
        "{line}"
    );
    assert!(!format!("{events:?}{logged:?}").contains("canary-51e0"));
}

#[tokio::test]
async fn an_overrun_is_told_however_its_hold_is_found_and_also_if_its_commit_is_late() {
    let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
    let replicas = two(&redis.url(), &["--notices-url", &url]);
    let late = Duration::from_millis(1100);
    for (rule, time) in [("spent_by_id", Duration::ZERO), ("spent_late_by_id", late)] {
        let with = |more| descriptor(&[(rule, "canary-51e0"), ("hold.id", "7"), more]);
        for (replica, call) in replicas.iter().zip([("hold.estimate", "2"), ("hold.used", "5")]) {
            replica.ask(request("shop", vec![with(call)])).await.unwrap();
            tokio::time::sleep(time).await;
        }
    }
    call(&replicas[0], ("spent_by_counter", "canary-51e0"), 0).await;
    call(&replicas[1], ("spent_by_counter", "canary-51e0"), 5).await;
    spend_after(late, &replicas, "spent_late", 5).await;
    let mut told: Vec<String> = webhook
        .events_by(&replicas, 1)
        .await
        .iter()
        .map(|event| {
            let data = &event["data"];
            let [rule, outcome] = ["rule", "outcome"].map(|name| data[name].as_str().unwrap());
            format!("{rule} {outcome} {} {}", data["held"], data["used"])
        })
        .collect();
    told.sort();
    let expected = [
        "spent_by_counter overrun",
        "spent_by_id overrun",
        "spent_late late",
        "spent_late_by_id late",
    ];
    assert_eq!(told, expected.map(|one| format!("{one} 2 5")));
}

#[tokio::test]
async fn one_of_two_replicas_tells_that_an_override_has_expired_or_was_undone() {
    let (redis, (webhook, url)) = (Redis::start(), Webhook::start(&[]));
    let replicas = two(&redis.url(), &["--notices-url", &url]);
    let undone = set(&replicas[0], "user=canary-51e0", json!({ "limit": 20 }));
    let expired = set_for(&replicas[1], "quiet=canary-51e0", json!({ "action": "ban" }), "1s");
    let eventually_in_force = |count: usize| {
        for replica in &replicas {
            eventually("both know it", || {
                (list(replica, "")["overrides"].as_array().unwrap().len() == count).then_some(())
            });
        }
    };
    eventually_in_force(1);
    undo(&replicas[1], &undone);
    eventually_in_force(0);
    let events = webhook.events_by(&replicas, 1).await;
    assert_eq!(events.len(), 2, "{events:?}");
    for (set, action, end) in [(undone, "limit 20", "undone"), (expired, "ban", "expired")] {
        let event = events.iter().find(|event| event["subject"] == set["id"]).unwrap();
        assert_eq!(event["type"], "io.tollkeeper.override.ended");
        let expected = json!({ "domain": "shop", "override": set["id"], "action": action, "descriptor": null,
            "because": "INC-42", "by": set["by"], "until": set["until"], "end": end });
        assert_eq!(event["data"], expected);
        let logged = lines(
            &replicas,
            &format!("an override has ended domain=shop override={}", set["id"].as_str().unwrap()),
        );
        let [line] = &logged[..] else { panic!("{logged:?}") };
        assert!(line.contains(&format!(" end={end}")) && !line.contains("canary-51e0"), "{line}");
    }
    assert!(!format!("{events:?}").contains("canary-51e0"));
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
    let key = TextFile::new("key", format!("whsec_{}\n", BASE64.encode(KEY)));
    let flags = ["--notices-url", &url, "--notices-key-file", &key];
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
    service.end();
    assert_eq!(webhook.requests(4).len(), 4, "what waits is sent before the service ends");
}

#[tokio::test]
async fn another_key_signs_without_a_restart_and_a_bad_one_is_not_in_use() {
    let (webhook, url) = Webhook::start(&[]);
    let text = |key: &[u8]| format!("whsec_{}\n", BASE64.encode(key));
    let file = TextFile::new("key", text(&KEY));
    let service = start("memory://", &["--notices-url", &url, "--notices-key-file", &file]);
    let in_use = |value: u8| {
        let series = format!("ratelimit_tls_files_in_use{{files=\"notices_key\"}} {value}\n");
        service.wait_for_metric(&series);
    };
    in_use(1);
    let other = [8; 32];
    fs::write(&*file, text(&other)).unwrap();
    let line = "the contents of --notices-key-file have changed and are in use";
    wait_until(line, || service.log().contains(line));
    fs::write(&*file, "whsec_short").unwrap();
    in_use(0);
    call(&service, ("user", "alice"), 5).await;
    let (headers, body) = &webhook.requests(1)[0];
    let signed = format!("{}.{}.{body}", headers["webhook-id"], headers["webhook-timestamp"]);
    let signed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &other), signed.as_bytes());
    assert_eq!(headers["webhook-signature"], format!("v1,{}", BASE64.encode(signed)));
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
    service.end();
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
            call(&replicas[number % 2], ("banned", "canary-51e0"), 1).await;
        }
        undo(&replicas[0], &set(&replicas[0], "user=canary-51e0", json!({ "action": "allow" })));
        spend(&replicas, "spent", 3).await;
        eventually("all events", || (webhook.events().len() == 7).then_some(()));
        replicas.iter_mut().for_each(end);

        let (mut records, mut events) = (receiver.records(), webhook.events());
        assert_eq!(records.len(), 7, "{protocol}: {records:?}");
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
    let mut service = Service::with(RULES).environment(environment).start();
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
