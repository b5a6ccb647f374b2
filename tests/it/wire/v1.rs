//! `tollkeeper.v1`: what each mode charges, on every store; batches; commits and renewals by token; the same in JSON.

mod lease;
mod once;
mod part;
mod table;

use tollkeeper_proto::v1::{
    Call, Commit, CommitRequest, CommitResult, DecideRequest, RenewRequest, Renewal, Status,
    Verdict, call::Mode, tollkeeper_client::TollkeeperClient,
};
use tonic::Code;

use crate::support::{calls::descriptors, prelude::*, secured::Secured, service::*, stores::one};

/// A call in the form of `v1/table.txt`.
fn call(text: &str) -> Call {
    let mut call = Call::default();
    for word in text.split(' ') {
        match (word.parse(), Mode::from_str_name(word), word.split_once(':')) {
            (Ok(number), ..) => call.hits = Some(number),
            (_, Some(mode), _) => call.mode = mode.into(),
            (.., Some(("id", id))) => id.clone_into(&mut call.id),
            (.., Some(("mode", number))) => call.mode = number.parse().unwrap(),
            (.., Some(("kinds", kinds))) => call.hits_by_kind = by_kind(kinds),
            _ => call.descriptors.extend(descriptors(word)),
        }
    }
    call
}

/// Hits by kind, such as `input/2,output/1`, or one of each of as many kinds.
fn by_kind(text: &str) -> BTreeMap<String, u64> {
    if let Ok(count) = text.parse::<u64>() {
        return (0..count).map(|kind| (kind.to_string(), 1)).collect();
    }
    let kinds = text.split(',').map(|kind| kind.split_once('/').expect(text));
    kinds.map(|(kind, hits)| (kind.to_owned(), hits.parse().expect(text))).collect()
}

async fn client(service: &Service) -> TollkeeperClient<Channel> {
    TollkeeperClient::new(service.channel().await).max_encoding_message_size(64 << 20)
}

async fn decide(service: &Service, domain: &str, calls: Vec<Call>) -> Result<Vec<Verdict>, String> {
    let request = DecideRequest { domain: domain.to_owned(), calls };
    let answer = client(service).await.decide(request).await;
    answer
        .map(|answer| answer.into_inner().verdicts)
        .map_err(|status| format!("{:?}: {}", status.code(), status.message()))
}

fn spell(verdict: &Verdict) -> String {
    if let Some(error) = &verdict.error {
        assert_eq!((verdict.code, verdict.statuses.len()), (0, 0), "{verdict:?}");
        return format!("{:?}: {}", Code::from(error.code), error.message);
    }
    let statuses: Vec<_> = verdict.statuses.iter().map(spell_status).collect();
    let domain = if verdict.domain_unknown { ", domain unknown" } else { "" };
    format!("{}: {}{domain}", verdict.code().as_str_name(), statuses.join(", "))
}

fn spell_status(status: &Status) -> String {
    let (code, rule) = (status.code().as_str_name(), &status.rule);
    let Some(limit) = &status.current_limit else { return format!("{code} {rule}-") };
    assert!(status.duration_until_reset.is_some(), "{status:?}");
    let used = status.used.map(|used| format!(" used {used}"));
    let held = status.held.filter(|held| *held > 0).map(|held| format!(" held {held}"));
    let (left, limit) = (status.limit_remaining, limit.requests_per_unit);
    let (used, held) = (used.unwrap_or_default(), held.unwrap_or_default());
    format!("{code} {rule} {left}/{limit}{used}{held}")
}

/// Sends these calls as one batch, and compares each verdict.
#[track_caller]
fn check(verdicts: Result<Vec<Verdict>, String>, expected: &[(&str, &str)]) {
    let spelled: Vec<_> = verdicts.unwrap().iter().map(spell).collect();
    let calls = expected.iter().map(|(call, _)| *call);
    let found: Vec<_> = calls.zip(spelled.iter().map(String::as_str)).collect();
    assert_eq!(found, expected);
    assert_eq!(spelled.len(), expected.len());
}

async fn check_batch(service: &Service, domain: &str, expected: &[(&str, &str)]) {
    let calls = expected.iter().map(|(text, _)| call(text)).collect();
    check(decide(service, domain, calls).await, expected);
}

/// Sends each call as a batch of its own.
async fn check_each(service: &Service, domain: &str, expected: &[(&str, &str)]) {
    for expected in expected {
        check_batch(service, domain, &[*expected]).await;
    }
}

#[tokio::test]
async fn a_limit_is_shown_with_its_name_and_unit() {
    let rules = "{ domain: shop, descriptors: [{ key: money, rate_limit: \
        { name: budget, unit: year, requests_per_unit: 5 } }] }";
    let service = Service::with(rules).start();
    let verdicts = decide(&service, "shop", vec![call("money=a")]).await.unwrap();
    let limit = verdicts[0].statuses[0].current_limit.clone().unwrap();
    assert_eq!((&*limit.name, limit.unit().as_str_name()), ("budget", "YEAR"));
}

/// Those that cost a store most weigh 4.
#[tokio::test]
async fn a_call_whose_charges_weigh_too_much_is_refused_alone_and_charges_nothing() {
    let rules = "
domain: shop
descriptors:
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: token, rate_limit: { unit: year, requests_per_unit: 9, hold: 1h } }
  - key: two
    rate_limits: [{ unit: year, requests_per_unit: 9 }, { unit: month, requests_per_unit: 9 }]
  - { key: log, rate_limit: { unit: year, requests_per_unit: 9, algorithm: sliding_log } }
  - { key: slot, rate_limit: { algorithm: in_flight, requests_per_unit: 9, hold: 1h } }
  - { key: job, rate_limit: { unit: year, requests_per_unit: 9, hold: { for: 1h, by: id } } }
  - { key: route, rate_limit: { unit: year, requests_per_unit: 9, hold: { for: 1h, by: counter, estimate: 1 } } }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let flags = &["--max-charges", "64", "--max-descriptors", "100"];
        let service = Service::with(rules).on(store).flags(flags).start();
        let of = |key: &str, count: u32| -> Vec<_> {
            (0..count).map(|number| one(key, &number.to_string())).collect()
        };
        let refusal =
            |weight| format!("descriptors: charges of weight {weight} exceed 64 (`--max-charges`)");
        for (key, weight) in [
            ("plain", 1),
            ("token", 1),
            ("two", 2),
            ("log", 4),
            ("slot", 4),
            ("job", 4),
            ("route", 4),
        ] {
            let most = 64 / weight;
            let status = service.ask(request("shop", of(key, most + 1))).await.unwrap_err();
            let expected = (Code::InvalidArgument, &*refusal((most + 1) * weight));
            assert_eq!((status.code(), status.message()), expected, "{key}");
            let answer = service.ask(request("shop", of(key, most))).await.unwrap();
            let left = answer.statuses.iter().map(|status| status.limit_remaining);
            assert!(left.into_iter().all(|left| left >= 7), "{key}: {answer:?}");
        }
        let heavy = |text: &str| Call { descriptors: of("plain", 65), ..call(text) };
        let part = Call { descriptors: of("plain", 17), ..call("PART") };
        let named = |heavy: Call| Call { id: "one".to_owned(), ..heavy };
        let calls =
            vec![heavy("TAKE"), call("plain=0"), part, heavy("DEBIT"), named(heavy("TAKE"))];
        let refused =
            |index, weight| format!("InvalidArgument: calls[{index}].{}", refusal(weight));
        let expected = [
            ("", &*refused(0, 65)),
            ("", "OK: OK plain 7/9"),
            ("", &*refused(2, 68)),
            ("", &*refused(3, 65)),
            ("", &*refused(4, 65)),
        ];
        check(decide(&service, "shop", calls).await, &expected);
        // Nothing was noted of its id.
        let again = decide(&service, "shop", vec![named(call("plain=0"))]).await;
        check(again, &[("", "OK: OK plain 6/9")]);
        let (_, verdict) = renew(&service, "shop", used("x", 1), heavy("TAKE")).await;
        assert_eq!(spell(&verdict), format!("InvalidArgument: renewals[0].call.{}", refusal(65)));
    }
}

#[tokio::test]
async fn a_reading_whose_charges_would_weigh_too_much_is_refused() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let flags = &["--max-charges", "64", "--max-descriptors", "100"];
        let service = Service::shop().on(store).flags(flags).start();
        let read = |count: usize, mode: &str| {
            let users = (0..count).map(|number| format!("user={number} "));
            call(&(users.collect::<String>() + mode))
        };
        let refusal = "descriptors: charges of weight 65 exceed 64 (`--max-charges`)";
        let calls = vec![read(65, "CHECK"), read(65, "READ"), read(64, "READ")];
        let verdicts = decide(&service, "shop", calls).await.unwrap();
        for (index, verdict) in verdicts[..2].iter().enumerate() {
            assert_eq!(spell(verdict), format!("InvalidArgument: calls[{index}].{refusal}"));
        }
        assert_eq!(verdicts[2].statuses.len(), 64, "{:?}", verdicts[2]);
        for (count, status) in [(64, 200), (65, 400)] {
            let users: String = (0..count).map(|number| format!("&d=user={number}")).collect();
            let path = format!("/v1/usage?domain=shop{users}");
            let (found, _, body) = service.exchange("GET", &path, b"");
            assert_eq!(found, status, "{body}");
            assert_eq!(body.contains(refusal), status == 400, "{body}");
        }
    }
}

/// Its callers have no time at all.
#[tokio::test]
async fn nothing_is_read_after_the_deadline_of_a_batch() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).start();
    check_batch(&service, "shop", &[("user=warm READ", "OK: OK user 10/10 used 0")]).await;
    let before = redis.runs_of("evalsha");
    let read = r#"{"mode":"READ","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    let body = format!(r#"{{"domain":"shop","calls":[{read},{read}]}}"#);
    let headers = [("grpc-timeout", "1n")];
    let (status, _, answer) =
        exchange_with(service.http, "POST", "/v1/decide", &headers, body.as_bytes());
    assert_eq!((status, answer.matches("UNAVAILABLE").count()), (200, 2), "{answer}");
    assert_eq!(redis.runs_of("evalsha"), before);
}

#[tokio::test]
async fn a_request_without_items_or_with_too_many_is_refused_whole() {
    let service = Service::shop().start();
    for (domain, count, refusal) in [
        ("shop", 0, "InvalidArgument: calls: must have 1 to 1000 items"),
        ("", 1, "InvalidArgument: domain: must not be empty"),
        ("shop", 1001, "InvalidArgument: calls: 1001 exceeds 1000"),
    ] {
        let refused = decide(&service, domain, vec![call("user=z"); count]).await;
        assert_eq!(refused.unwrap_err(), refusal);
    }
    let verdicts = decide(&service, "shop", vec![call("user=z"); 1000]).await.unwrap();
    assert_eq!(verdicts.iter().filter(|verdict| verdict.code().as_str_name() == "OK").count(), 10);
    assert!(verdicts[..10].iter().all(|verdict| verdict.code == 1), "the first ten pass");
}

/// Although the denial of a moment ago is remembered.
#[tokio::test]
async fn a_call_passes_behind_a_refund_in_its_batch_that_makes_room() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).start();
    check_batch(&service, "shop", &[("user=a 10", "OK: OK user 0/10")]).await;
    for _ in 0..10 {
        let over = "OVER_LIMIT: OVER_LIMIT user 0/10";
        check_batch(&service, "shop", &[("user=a", over), ("user=a CHECK", over)]).await;
        let refunded = [("user=a(-1)", "OK: OK user 1/10"), ("user=a", "OK: OK user 0/10")];
        check_batch(&service, "shop", &refunded).await;
    }
}

/// It has no order to keep with others.
#[tokio::test]
async fn a_denied_call_that_is_repeated_alone_is_answered_without_redis() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).start();
    check_batch(&service, "shop", &[("user=a 10", "OK: OK user 0/10")]).await;
    let (before, began) = (redis.runs_of("evalsha"), Instant::now());
    for mode in ["", " CHECK"].iter().cycle().take(100) {
        let repeated = format!("user=a{mode}");
        check_batch(&service, "shop", &[(&repeated, "OVER_LIMIT: OVER_LIMIT user 0/10")]).await;
    }
    let asked = redis.runs_of("evalsha") - before;
    assert!(asked <= 1 + began.elapsed().as_secs(), "redis was asked {asked} times");
}

/// The number of script runs is a part of the number of calls.
#[tokio::test]
async fn a_batch_reaches_redis_in_full_batches_and_keeps_the_order_on_a_counter() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).start();
    check_batch(&service, "shop", &[("user=warm", "OK: OK user 9/10")]).await;
    let before = redis.runs_of("evalsha");
    let calls = (0..1000).map(|number| call(&format!("user=u{}", number / 20))).collect();
    let verdicts = decide(&service, "shop", calls).await.unwrap();
    for (index, verdict) in verdicts.iter().enumerate() {
        assert_eq!(verdict.code, if index % 20 < 10 { 1 } else { 2 }, "{index}: {verdict:?}");
    }
    let runs = redis.runs_of("evalsha") - before;
    assert!((1..=30).contains(&runs), "{runs} runs");

    let before = redis.runs_of("evalsha");
    let reads = (0..100).map(|number| call(&format!("user=u{} READ", number / 2))).collect();
    let verdicts = decide(&service, "shop", reads).await.unwrap();
    assert!(verdicts.iter().all(|verdict| verdict.statuses[0].used == Some(10)));
    assert_eq!(redis.runs_of("evalsha") - before, 100, "one short run for each counter");
    redis.assert_no_key_leaks();
}

/// Calls of others come in between: what is heavier is sent in smaller groups, one after the other.
#[tokio::test]
async fn heavier_calls_of_a_batch_go_to_redis_in_smaller_groups() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).start();
    check_batch(&service, "shop", &[("user=warm", "OK: OK user 9/10")]).await;
    // A call weighs as many descriptors as it has, and one more for each 256 bytes; 80 go together.
    for (bytes, descriptors, groups) in [(0, 1, 1), (0, 4, 4), (1024, 1, 5), (8 << 10, 2, 40)] {
        let descriptor = |of: usize, number: usize| format!("user={of}-{number:0bytes$}");
        let names = |of| (0..descriptors).map(move |number| descriptor(of, number));
        let calls = (0..80).map(|of| call(&names(of).collect::<Vec<_>>().join(" "))).collect();
        let before = redis.runs_of("evalsha");
        let verdicts = decide(&service, "shop", calls).await.unwrap();
        assert!(verdicts.iter().all(|verdict| verdict.code().as_str_name() == "OK"));
        let runs = redis.runs_of("evalsha") - before;
        assert!(runs >= groups, "{runs} runs of {descriptors} descriptors of {bytes} bytes");
    }
}

#[tokio::test]
async fn a_call_without_a_store_fails_alone_by_its_own_rule() {
    let rules = "
domain: shop
descriptors:
  - { key: fails, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: passes, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: allow } }
  - { key: denied, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny } }
";
    let redis = Redis::absent();
    let flags = &["--decision-budget", "100ms"];
    let service = Service::with(rules).on(&redis.url()).flags(flags).start();
    let calls = vec![call("passes=a"), call("fails=a"), call("denied=a"), call("fails=a READ")];
    let verdicts = decide(&service, "shop", calls).await.unwrap();
    let codes: Vec<_> = verdicts.iter().map(|verdict| verdict.code().as_str_name()).collect();
    assert_eq!(codes, ["OK", "UNKNOWN", "OVER_LIMIT", "UNKNOWN"]);
    for index in [1, 3] {
        let error = verdicts[index].error.clone().unwrap();
        assert_eq!(Code::from(error.code), Code::Unavailable, "{error:?}");
        let begins = format!("calls[{index}]: store unavailable");
        assert!(error.message.starts_with(&begins), "{error:?}");
    }
}

#[tokio::test]
async fn the_caller_of_a_batch_over_http_says_how_long_it_waits() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).flags(&["--decision-budget", "1m"]).start();
    service.wait_until_ready();
    redis.signal("STOP");
    let body = br#"{"domain":"shop","calls":[{"descriptors":[{"entries":[{"key":"user","value":"a"}]}]}]}"#;
    let (began, headers) = (Instant::now(), [("grpc-timeout", "1S")]);
    let (status, _, answer) = exchange_with(service.http, "POST", "/v1/decide", &headers, body);
    redis.signal("CONT");
    assert!(status == 200 && answer.contains("UNAVAILABLE"), "{status} {answer}");
    // Not for the budget of callers who say nothing.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// Redis stands still for longer than a batch waits for its turn.
#[test]
fn a_call_over_http_waits_for_no_others() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).flags(&["--decision-budget", "3s"]).start();
    service.wait_until_ready();
    redis.signal("STOP");
    let body = br#"{"domain":"shop","calls":[{"descriptors":[{"entries":[{"key":"user","value":"a"}]}]}]}"#;
    let statuses = thread::scope(|scope| {
        let calls =
            [(); 40].map(|()| scope.spawn(|| service.exchange("POST", "/v1/decide", body).0));
        calls.map(|call| call.join().unwrap())
    });
    redis.signal("CONT");
    assert_eq!(statuses, [200; 40]);
}

/// Redis stands still for longer than a long body waits for its turn.
#[test]
fn long_bodies_take_turns_over_http() {
    let redis = Redis::start();
    let service = Service::shop().on(&redis.url()).flags(&["--decision-budget", "3s"]).start();
    service.wait_until_ready();
    redis.signal("STOP");
    let descriptors = r#""descriptors":[{"entries":[{"key":"user","value":"a"}]}]"#;
    let spaces = " ".repeat(64 << 10);
    let paths = [
        ("/json", format!(r#"{{"domain":"shop",{descriptors}{spaces}}}"#)),
        ("/v1/decide", format!(r#"{{"domain":"shop","calls":[{{{descriptors}}}{spaces}]}}"#)),
    ];
    let (redis, service) = (&redis, &service);
    let answers = thread::scope(|scope| {
        let send = |(path, body): (_, String)| {
            scope.spawn(move || (path, service.exchange("POST", path, body.as_bytes())))
        };
        let calls = paths.iter().cycle().take(40).cloned().map(send).collect::<Vec<_>>();
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    redis.signal("CONT");
    for (path, _) in &paths {
        let refused = answers.iter().any(|(of, (status, _, text))| {
            of == path && *status == 503 && text.contains("too many concurrent requests")
        });
        assert!(refused, "{path}: {answers:?}");
    }
    assert!(answers.iter().any(|(_, (status, ..))| *status == 200), "{answers:?}");
}

/// While Redis stands still, each batch that reads waits for it for a second.
#[test]
fn long_bodies_that_read_leave_their_turns_to_those_that_decide() {
    let rules = "{ domain: shop, descriptors: [{ key: user, rate_limit: \
        { unit: hour, requests_per_unit: 5, on_store_failure: allow } }] }";
    let redis = Redis::start();
    let service = Service::with(rules).on(&redis.url()).start();
    service.wait_until_ready();
    redis.signal("STOP");
    let body = |mode: &str| {
        let call = r#""descriptors":[{"entries":[{"key":"user","value":"a"}]}]"#;
        let spaces = " ".repeat(8 << 10);
        format!(r#"{{"domain":"shop","calls":[{{"mode":"{mode}",{call}}}{spaces}]}}"#)
    };
    let (reads, takes) = (body("READ"), body("TAKE"));
    let send = |body: &str, headers: &[(&str, &str)]| {
        exchange_with(service.http, "POST", "/v1/decide", headers, body.as_bytes())
    };
    let decided = thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| send(&reads, &[]));
        }
        // Those that are not refused wait for Redis then.
        thread::sleep(Duration::from_millis(200));
        send(&takes, &[("grpc-timeout", "600m")])
    });
    redis.signal("CONT");
    assert!(decided.0 == 200 && decided.2.contains("OK"), "{decided:?}");
}

const HOLDS: &str = "
domain: llm
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 50 } }
  - key: money
    rate_limit:
      unit: year
      requests_per_unit: 10000000
      hold: { for: 10m, estimate: 1000, weights: { input: 250, output: 1000 } }
  - { key: flight, rate_limit: { algorithm: in_flight, requests_per_unit: 2, hold: 10m } }
  - key: route
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, by: counter, estimate: 100 } }
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 1000 } }
";

async fn commit(service: &Service, domain: &str, commits: Vec<Commit>) -> Vec<String> {
    let request = CommitRequest { domain: domain.to_owned(), commits };
    let answer = client(service).await.commit(request).await.unwrap().into_inner();
    answer.results.iter().map(spell_commit).collect()
}

/// What became of the commit of a renewal, and its verdict.
async fn renew(service: &Service, domain: &str, commit: Commit, next: Call) -> (String, Verdict) {
    let renewals = vec![Renewal { commit: Some(commit), call: Some(next) }];
    let request = RenewRequest { domain: domain.to_owned(), renewals };
    let answer = client(service).await.renew(request).await.unwrap().into_inner();
    let result = answer.results[0].clone();
    let committed = result.commit.as_ref().map(spell_commit);
    (committed.unwrap_or_default(), result.verdict.unwrap())
}

fn spell_commit(result: &CommitResult) -> String {
    if let Some(error) = &result.error {
        return format!("{:?}: {}", Code::from(error.code), error.message);
    }
    let charges = result.charges.iter();
    let charges =
        charges.map(|one| format!("{} {}/{}", one.outcome().as_str_name(), one.used, one.held));
    charges.collect::<Vec<_>>().join(", ")
}

fn used(hold: &str, used: impl Into<Option<u64>>) -> Commit {
    Commit { hold: hold.to_owned(), used: used.into(), ..Commit::default() }
}

/// The log names rules whose debits Envoy sends, which does not say that they are debits. These calls do.
#[tokio::test]
async fn no_call_counts_as_a_refused_debit() {
    let service = Service::shop().start();
    let each = [
        ("user=a CHECK", "OK: OK user 10/10"),
        ("user=a 0", "OK: OK user 10/10"),
        ("user=a READ", "OK: OK user 10/10 used 0"),
        ("user=a 11", "OVER_LIMIT: OVER_LIMIT user 0/10"),
        ("user=a 11 DEBIT", "OVER_LIMIT: OVER_LIMIT user 0/10"),
        ("user=a PART", "OVER_LIMIT: OVER_LIMIT user 0/10"),
    ];
    check_each(&service, "shop", &each).await;
    assert!(!service.get("/metrics").contains("ratelimit_debits_refused_total{"));
    assert!(!service.log().contains("a debit was refused"), "{}", service.log());
}

#[tokio::test]
async fn other_calls_are_answered_while_large_batches_are_decided() {
    let service = Service::shop().start();
    let large = async {
        for _ in 0..5 {
            let calls = (0..1000).map(|number| call(&format!("work=w{number}"))).collect();
            decide(&service, "shop", calls).await.unwrap();
        }
    };
    let small = async {
        for _ in 0..50 {
            let small = decide(&service, "shop", vec![call("tenant=t")]);
            let verdicts = tokio::time::timeout(Duration::from_secs(10), small).await;
            assert_eq!(verdicts.unwrap().unwrap()[0].code, 1);
        }
    };
    tokio::join!(large, small);
    let metrics = service.get("/metrics");
    let decided = |code: &str| {
        let label = format!(
            "rpc_method=\"tollkeeper.v1.Tollkeeper/Decide\",rpc_response_status_code=\"{code}\""
        );
        metrics
            .lines()
            .any(|line| line.contains("rpc_server_call_duration") && line.contains(&label))
    };
    assert!(decided("OK"), "{metrics}");
    assert!(
        metrics
            .contains("ratelimit_decisions_total{code=\"ok\",domain=\"shop\",rule=\"work\"} 5000")
    );
}

fn post(service: &Service, path: &str, body: &str) -> (u16, Value) {
    let (status, _, body) = service.exchange("POST", path, body.as_bytes());
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

#[test]
fn json_calls_are_refused_one_by_one() {
    let service = Service::shop().start();
    let user = r#"{"entries":[{"key":"user","value":"a"}]}"#;
    let call = |fields: &str| format!(r#"{{"descriptors":[{user}]{fields}}}"#);
    let batch = |calls: &[String]| format!(r#"{{"domain":"shop","calls":[{}]}}"#, calls.join(","));
    let calls = [
        call(r#","hits":"3","mode":"TAKE""#),
        call(r#","hits":-1"#),
        call(r#","mode":"GIVE""#),
        call(&format!(r#","mode":"\u001b{}""#, "x".repeat(1000))),
        call(r#","mode":0.5"#),
        call(r#","mode":1"#),
        "{}".to_owned(),
        call(r#","mode":"READ""#),
        call(r#","hits_by_kind":{"a":1,"b":2,"a":3}"#),
    ];
    let (status, answer) = post(&service, "/v1/decide", &batch(&calls));
    let shown = |verdict: &Value| match &verdict["error"]["message"] {
        Value::Null => verdict["statuses"][0]["limitRemaining"].clone(),
        message => message.clone(),
    };
    let shown: Vec<Value> = answer["verdicts"].as_array().unwrap().iter().map(shown).collect();
    let modes = "mode: must be one of: TAKE, CHECK, READ, DEBIT, PART, LEASE";
    let expected = json!([
        7,
        "calls[1].hits: must be a whole number from 0 to 9007199254740991",
        format!("calls[2].{modes}; not `GIVE`"),
        format!("calls[3].{modes}; not `\\x1b{}…`", "x".repeat(60)),
        format!("calls[4].{modes}; not `0.5`"),
        7,
        "calls[6].descriptors: must have at least 1 item",
        7,
        "calls[8]: duplicate key at line 1 column 92"
    ]);
    assert_eq!((status, Value::Array(shown)), (200, expected));
}

#[test]
fn usage_is_read_by_get() {
    let service = Service::shop().start();
    let body = r#"{"domain":"shop","calls":[{"descriptors":[{"entries":[{"key":"user","value":"a"}]}],"hits":4}]}"#;
    assert_eq!(post(&service, "/v1/decide", body).0, 200);
    let get = |query: &str| {
        let (status, _, body) = service.exchange("GET", &format!("/v1/usage?{query}"), b"");
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let (status, answer) = get("domain=shop&d=user=a&d=user%3Dtwo&d=free=x");
    let statuses = answer["statuses"].as_array().unwrap();
    let shown: Vec<_> = statuses
        .iter()
        .map(|one| {
            (one["descriptor"].as_u64(), one["used"].as_u64(), one["limitRemaining"].as_u64())
        })
        .collect();
    assert_eq!(status, 200);
    assert_eq!(shown, [(Some(0), Some(4), Some(6)), (Some(1), Some(0), Some(2))]);
}

#[test]
fn a_client_uses_only_its_domains_and_web_pages_use_none() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("clients.yaml");
    fs::write(&file, "shop.example: [shop]\nother.example: [mail]\n").unwrap();
    let flags = ["--tls-client-ca", "CLIENTS", "--client-domains", &file.display().to_string()];
    let secured = Secured::start(&flags);
    let (http, authority) = (secured.service.http, &secured.authority);
    let (shop, other) =
        (authority.client_named(&["shop.example"]), authority.client_named(&["other.example"]));
    let body =
        r#"{"domain":"shop","calls":[{"descriptors":[{"entries":[{"key":"user","value":"a"}]}]}]}"#;
    for (request, body) in [("POST /v1/decide", body), ("GET /v1/usage?domain=shop&d=user%3Da", "")]
    {
        let ask = |header, client| secured.ask(http, request, header, body, client).unwrap().0;
        assert_eq!(ask("", Some(&shop)), 200, "{request}");
        assert_eq!(ask("", Some(&other)), 403, "{request}");
        assert_eq!(ask("", None), 403, "{request}");
        assert_eq!(ask("origin: https://evil.example\r\n", Some(&shop)), 403, "{request}");
    }
}

#[tokio::test]
async fn a_stream_answers_requests_in_their_order_until_one_is_refused_as_a_whole() {
    let service = Service::shop().start();
    let batch = |domain: &str, calls: &[&str]| {
        let calls = calls.iter().map(|text| call(text)).collect();
        DecideRequest { domain: domain.to_owned(), calls }
    };
    let requests = vec![
        batch("shop", &["user=a 4", "user=b"]),
        batch("shop", &["user=a 4", "user="]),
        batch("shop", &["user=a 4"]),
        batch("", &["user=a"]),
        batch("shop", &["user=a"]),
    ];
    let mut client = client(&service).await;
    let answers = client.decide_stream(tokio_stream::iter(requests.clone())).await.unwrap();
    let mut answers = answers.into_inner();
    for expected in [
        vec!["OK: OK user 6/10", "OK: OK user 9/10"],
        vec!["OK: OK user 2/10", "OK: OK user 9/10"],
        vec!["OVER_LIMIT: OVER_LIMIT user 0/10"],
    ] {
        let verdicts = answers.message().await.unwrap().unwrap().verdicts;
        assert_eq!(verdicts.iter().map(spell).collect::<Vec<_>>(), expected);
    }
    let refused = answers.message().await.unwrap_err();
    assert_eq!(refused.message(), "domain: must not be empty");
    assert_eq!(refused.code(), Code::InvalidArgument);

    let ended = client.decide_stream(tokio_stream::iter(requests[..1].to_vec())).await.unwrap();
    let mut ended = ended.into_inner();
    assert!(ended.message().await.unwrap().is_some());
    assert!(ended.message().await.unwrap().is_none(), "the client sends no more");
}

/// Its client sends requests without a pause, and knows afterwards which of them were decided.
#[tokio::test]
async fn a_busy_stream_ends_with_its_connection_and_decides_nothing_without_an_answer() {
    let redis = Redis::start();
    for (flags, stops) in [(&["--connection-age", "1s"][..], false), (&[], true)] {
        let mut service = Service::shop().on(&redis.url()).flags(flags).start();
        service.wait_until_ready();
        redis.query::<()>(&["FLUSHALL"]);
        let calls = vec![call("work=a")];
        let requests = std::iter::repeat(DecideRequest { domain: "shop".into(), calls });
        let requests = tokio_stream::iter(requests);
        let answers = client(&service).await.decide_stream(requests).await.unwrap();
        let (mut answers, mut answered) = (answers.into_inner(), 0);
        let ended = loop {
            match answers.message().await {
                Ok(Some(_)) => answered += 1,
                Ok(None) => panic!("it ended without a status"),
                Err(status) => break status,
            }
            if stops && answered == 100 {
                service.process().signal("TERM");
            }
        };
        assert_eq!(ended.message(), "the connection ends; open another stream", "{ended:?}");
        assert_eq!(ended.code(), Code::Unavailable);
        assert!(answered > 0);
        let used: u64 = redis.query(&["GET", &redis.key("work=a")]);
        assert_eq!(used, answered.min(1000), "{flags:?}");
    }
}

#[tokio::test]
async fn an_open_stream_ends_when_the_service_stops() {
    let mut service = Service::shop().start();
    let (requests, to_send) = tokio::sync::mpsc::channel(1);
    let to_send = tokio_stream::wrappers::ReceiverStream::new(to_send);
    let answers = client(&service).await.decide_stream(to_send).await.unwrap();
    let mut answers = answers.into_inner();
    let calls = vec![call("user=a")];
    requests.send(DecideRequest { domain: "shop".into(), calls }).await.unwrap();
    assert!(answers.message().await.unwrap().is_some());
    service.process().signal("TERM");
    let ended = answers.message().await.unwrap_err();
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, "the connection ends; open another stream")
    );
    assert!(service.process().0.wait().unwrap().success());
}
