//! A service that vanishes or comes back, mistakes of the caller, and what unit tests see of a fake.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod support;

use std::{
    future::{pending, ready},
    sync::atomic::{AtomicUsize, Ordering},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::Router;
use http::StatusCode;
use support::{Log, connect, patient, service, unique};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tollkeeper_client::{
    Call, Client, Commit, Descriptor, Error, Fake, HITS_MAX, OnFailure, Options, Unit, on,
};

fn faked() -> (Fake, Client) {
    let fake = Fake::default();
    let client = fake.client(patient().on_failure(OnFailure::Deny)).unwrap();
    (fake, client)
}

#[tokio::test]
async fn a_fake_allows_denies_limits_and_fails() {
    let (fake, client) = faked();
    let user = |name: &str| on("user", name);
    let allowed = client.decide(user("alice")).await.unwrap();
    assert!(allowed.allowed && allowed.limit.is_none(), "{allowed:?}");
    fake.deny(user("bob"));
    let denied = client.decide([user("alice"), user("bob")]).await.unwrap();
    assert!(!denied.allowed && !denied.failed() && denied.statuses[1].descriptor == 1);
    assert_eq!(denied.retry_after, Some(Duration::from_millis(59_500)));
    // Seconds are rounded up: a call that comes too early is denied.
    let names = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"];
    let expected: Vec<_> = names.into_iter().zip([0, 0, 60, 60]).collect();
    assert_eq!(denied.headers(), expected);
    fake.limit(user("carol"), 10);
    let mut remaining = Vec::new();
    for call in [
        Call::take(7, user("carol")),
        Call::take(7, user("carol")),
        Call::refund(2, user("carol")),
        Call::check(user("carol")),
        Call::part(7, user("carol")),
        Call::check(user("carol")),
        Call::take(0, user("carol")),
        Call::debit(3, user("carol")),
        Call::refund(1, user("carol")),
        Call::read(user("carol")),
    ] {
        let decision = client.decide(call).await.unwrap();
        assert_eq!(decision.hold.is_empty(), !remaining.is_empty(), "only the first is held");
        remaining.push((decision.allowed, decision.remaining, decision.hits));
    }
    let expected = [
        (true, 3, 0),
        (false, 3, 0),
        (true, 5, 0),
        (true, 5, 0),
        (true, 0, 5),
        (false, 0, 0),
        (false, 0, 0),
        (false, 0, 0),
        (true, 0, 0),
        (true, 0, 0),
    ];
    assert_eq!(remaining, expected);
    fake.fail(Some("UNAVAILABLE"));
    let failed = client.decide(user("alice")).await.unwrap();
    assert_eq!((failed.allowed, failed.error.unwrap().code), (false, "UNAVAILABLE"));
    fake.fail(None);
    assert!(client.decide(user("alice")).await.unwrap().allowed);
    assert_eq!(fake.calls()[1], Call::from([user("alice"), user("bob")]));
}

#[tokio::test]
async fn a_fake_lists_the_calls_and_the_commits() {
    let (fake, client) = faked();
    let limited = on("user", "a").limit(10, 1, Unit::Hour);
    let part = Call::part(7, limited.clone()).once("order 1");
    client.decide(part.clone()).await.unwrap();
    let estimate = Call::take(4, on("user", "a")).kind("input", 3);
    let mut hold = client.hold(estimate.clone()).await.unwrap();
    let first = hold.decision.hold.clone();
    hold.used_kind("input", 2).unwrap();
    let next = Call::take(5, on("user", "a"));
    assert!(hold.renew(3, next.clone()).await.unwrap().allowed);
    let second = hold.decision.hold.clone();
    assert_ne!(first, second);
    hold.end("503 UF");
    assert_eq!(hold.commit(6).await.unwrap(), None);
    let commit = Commit::new("of another process", 0);
    assert_eq!(client.commit(commit).await.unwrap(), None);
    assert_eq!(fake.calls(), [part, estimate, next]);
    let commits = fake.commits();
    let facts = commits.iter().map(|commit| (commit.hold.as_str(), commit.used, &*commit.end));
    let expected =
        [(&*first, Some(3), ""), (&second, Some(6), "503 UF"), ("of another process", Some(0), "")];
    assert_eq!(facts.collect::<Vec<_>>(), expected);
    assert_eq!(commits[0].used_by_kind["input"], 2);
    assert_ne!(fake.calls()[0], Call::part(7, on("user", "a")).once("order 1"));
}

#[tokio::test]
async fn a_fake_gives_back_what_was_held_and_not_used() {
    let (fake, client) = faked();
    fake.limit(on("user", "a"), 10);
    let left = async || client.decide(Call::read(on("user", "a"))).await.unwrap().remaining;
    let mut hold = client.hold(Call::take(8, on("user", "a"))).await.unwrap();
    assert!(hold.renew(3, Call::take(7, on("user", "a"))).await.unwrap().allowed);
    assert_eq!(left().await, 0);
    let token = hold.decision.hold.clone();
    hold.release().await;
    assert_eq!(left().await, 7);
    client.commit(Commit::new(token, 0)).await.unwrap();
    assert_eq!(left().await, 7, "only the first commit counts");
    drop(client.hold(Call::take(7, on("user", "a"))).await.unwrap());
    client.flush().await;
    assert_eq!(left().await, 0, "without a number, all that was held counts");
}

#[tokio::test]
async fn a_renewal_without_an_answer_keeps_the_hold() {
    let (fake, client) = faked();
    let mut hold = client.hold(Call::take(4, on("user", "a"))).await.unwrap();
    fake.fail(Some("UNAVAILABLE"));
    let failed = hold.renew(3, on("user", "a")).await.unwrap();
    assert!(failed.failed() && !failed.allowed && hold.allowed());
    fake.fail(None);
    let token = hold.decision.hold.clone();
    drop(hold);
    client.flush().await;
    let last = fake.commits().pop().unwrap();
    assert_eq!((last.hold, last.used), (token, Some(3)));
}

#[tokio::test]
async fn what_is_held_is_given_back_if_a_descriptor_met_no_limit() {
    let (fake, client) = faked();
    let client = client.with(|options| options.require_limit(true));
    fake.limit(on("user", "a"), 10);
    let left = async || client.decide(Call::read(on("user", "a"))).await.unwrap().remaining;
    let half = || Call::take(5, [on("user", "a"), on("typo", "a")]);
    let expected =
        "descriptors[1]: no limit applies to typo in the domain conformance (require_limit)";
    assert_eq!(text(client.hold(half()).await), expected);
    client.flush().await;
    assert_eq!(left().await, 10);
    let mut hold = client.hold(Call::take(4, on("user", "a"))).await.unwrap();
    assert_eq!(text(hold.renew(3, half()).await), expected);
    drop(hold);
    client.flush().await;
    let used: Vec<_> = fake.commits().iter().map(|commit| commit.used).collect();
    assert_eq!(used, [Some(0), Some(3), Some(0)]);
    assert_eq!(left().await, 7);
}

#[tokio::test]
async fn a_hold_is_committed_although_its_caller_leaves() {
    let (fake, client) = faked();
    let mut hold = client.hold(Call::take(5, on("user", "a"))).await.unwrap();
    hold.used(4).unwrap();
    // It is dropped while it waits.
    let work = async {
        let _hold = hold;
        pending::<()>().await;
    };
    assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
    // Its future is dropped before the answer.
    let other = client.hold(Call::take(5, on("user", "b"))).await.unwrap();
    tokio::select! {
        biased;
        _ = other.commit(6) => panic!("the answer came at once"),
        () = async {} => {}
    }
    client.flush().await;
    let used: Vec<_> = fake.commits().iter().map(|commit| commit.used).collect();
    assert_eq!(used, [Some(4), Some(6)]);
}

#[tokio::test]
async fn close_awaits_the_commits_of_holds_whose_tasks_were_just_aborted() {
    for turns in [0, 1, 3] {
        let (fake, client) = faked();
        let (mut tasks, are_open) = (JoinSet::new(), Arc::new(Barrier::new(4)));
        for _ in 0..3 {
            let (client, are_open) = (client.clone(), Arc::clone(&are_open));
            tasks.spawn(async move {
                let mut hold = client.hold(Call::take(10, on("user", "a"))).await.unwrap();
                hold.used(1).unwrap();
                are_open.wait().await;
                pending::<()>().await;
            });
        }
        are_open.wait().await;
        tasks.abort_all();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        client.close().await;
        let used: Vec<_> = fake.commits().iter().map(|commit| commit.used).collect();
        assert_eq!(used, [Some(1); 3], "{turns} turns before it closes");
    }
}

#[tokio::test]
async fn close_does_not_wait_for_the_hold_of_its_caller() {
    let (fake, client) = faked();
    let client = client.with(|options| options.commit_timeout(Duration::MAX));
    let hold = client.hold(on("user", "a")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), client.close()).await.unwrap();
    assert_eq!(hold.commit(1).await.unwrap().unwrap().code, "CANCELLED");
    assert_eq!(fake.commits(), []);
}

#[tokio::test]
async fn views_have_settings_of_their_own_on_the_connections_of_the_client() {
    let (fake, client) = faked();
    fake.fail(Some("UNAVAILABLE"));
    let log = Log::start();
    let open = client.with(|options| options.domain("other").on_failure(OnFailure::Allow));
    assert!(open.decide(on("user", "secret")).await.unwrap().allowed);
    assert!(!client.decide(on("user", "secret")).await.unwrap().allowed);
    assert!(!client.decide(on("user", "secret")).await.unwrap().allowed);
    let expected = ["other", "conformance"].map(|domain| {
        format!(
            "tollkeeper: 1 call of the domain {domain:?} had no answer and was decided by on_failure; \
             the last: UNAVAILABLE: the fake fails (target a fake)"
        )
    });
    assert_eq!(log.lines(), expected);
    client.close().await;
    assert_eq!(open.decide(on("user", "a")).await.unwrap().error.unwrap().code, "CANCELLED");
    let (fake, client) = faked();
    let endless =
        client.with(|options| options.timeout(Duration::MAX).commit_timeout(Duration::MAX));
    assert!(!endless.decide(on("user", "a")).await.unwrap().failed());
    endless.commit(Commit::new("hold", 1)).await.unwrap();
    assert_eq!(fake.commits().len(), 1);
    let absent = client.with(|options| options.domain(""));
    assert_eq!(text(absent.decide(on("user", "a")).await), "domain: must not be empty");
}

#[tokio::test]
async fn at_most_ten_thousand_denials_are_remembered() {
    let (fake, client) = faked();
    let client = client.with(|options| options.remember_denials(Duration::from_secs(60)));
    fake.deny(on("user", "a"));
    let deny = async |hits| {
        let denied = client.decide(Call::take(hits, on("user", "a"))).await.unwrap();
        assert!(!denied.allowed && !denied.failed());
        (denied.reset, denied.statuses[0].reset, denied.retry_after.unwrap())
    };
    let first = deny(1).await;
    for hits in 2..=10_000 {
        deny(hits).await;
    }
    let again = deny(1).await;
    assert!(again.0 < first.0 && again.1 < first.1 && again.2 < first.2, "{again:?}");
    assert_eq!(fake.calls().len(), 10_000);
    for hits in [10_001, 1] {
        deny(hits).await;
    }
    assert_eq!(fake.calls().len(), 10_002);
}

#[tokio::test]
async fn the_denial_of_a_long_request_is_not_remembered() {
    let (fake, client) = faked();
    let client = client.with(|options| options.remember_denials(Duration::from_secs(60)));
    fake.deny(on("user", "a"));
    for bytes in [500, 500, 2_000, 2_000] {
        let call = [on("user", "a"), on("note", "x".repeat(bytes))];
        assert!(!client.decide(call).await.unwrap().allowed);
    }
    assert_eq!(fake.calls().len(), 3);
}

/// A proxy in front of an address, and how often it has read from its client.
async fn proxy(to: String) -> (String, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, reads): (_, Arc<AtomicUsize>) =
        (listener.local_addr().unwrap().to_string(), Arc::default());
    let (mut tasks, counted) = (JoinSet::new(), Arc::clone(&reads));
    tasks.spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(to).await.unwrap();
        let ((mut from, mut back), (mut answers, mut on)) =
            (client.into_split(), server.into_split());
        let asking = async {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
                counted.fetch_add(1, Ordering::Relaxed);
                on.write_all(&buffer[..bytes]).await.unwrap();
            }
        };
        tokio::join!(asking, tokio::io::copy(&mut answers, &mut back)).1.unwrap();
    });
    (address, reads, tasks)
}

#[tokio::test]
async fn calls_go_to_all_addresses_in_turn_and_past_one_that_is_gone() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let (first, one, _first) = proxy(address.clone()).await;
    let (second, other, serving) = proxy(address).await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = connect(&format!("{first},{gone}, {second}"), patient());
    let decide = async || client.decide(on("free", "a")).await.unwrap();
    let reads = || [&one, &other].map(|reads| reads.load(Ordering::Relaxed));
    // The first calls may come before the second connection.
    while reads().into_iter().any(|reads| reads < 10) {
        assert!(!decide().await.failed());
    }
    let before = reads();
    for _ in 0..30 {
        assert!(!decide().await.failed());
    }
    for (before, after) in before.into_iter().zip(reads()) {
        assert!(after - before >= 10, "{before} and {after} reads of 30 calls");
    }
    drop(serving);
    // A call that was sent on the lost connection may fail.
    while decide().await.failed() {}
    for _ in 0..30 {
        assert!(!decide().await.failed());
    }
}

#[tokio::test]
async fn without_an_answer_the_error_has_the_code_and_the_reason() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = async |target: &str, timeout: u64| {
        let client = connect(target, patient().timeout(Duration::from_millis(timeout)));
        client.decide(on("user", "a")).await.unwrap().error.unwrap().to_string()
    };
    let late = error(&silent.local_addr().unwrap().to_string(), 50).await;
    assert_eq!(late, "DEADLINE_EXCEEDED: no answer within the timeout");
    let refused = error(&gone.to_string(), 10_000).await;
    let expected = format!("UNAVAILABLE: {gone}: Connection refused");
    assert!(refused.starts_with(&expected), "{refused}");
    let unknown = error("no.such.host.invalid:1", 10_000).await;
    assert!(unknown.starts_with("UNAVAILABLE: no.such.host.invalid:1: "), "{unknown}");
}

/// Answers the first requests with the error page of a proxy, and later ones with gRPC.
fn proxy_page(status: u16, times: usize) -> Router {
    let (status, asked) = (StatusCode::from_u16(status).unwrap(), AtomicUsize::default());
    let asked = Arc::new(asked);
    Router::new().fallback(move || {
        let is_page = asked.fetch_add(1, Ordering::Relaxed) < times;
        let page = (status, [("content-type", "text/html")], "<h1>a proxy</h1>");
        ready(if is_page { page } else { (StatusCode::OK, [("grpc-status", "3")], "") })
    })
}

#[tokio::test]
async fn an_answer_of_a_proxy_has_the_code_of_its_http_status() {
    for (status, code) in [
        (200, "UNKNOWN"),
        (302, "UNKNOWN"),
        (400, "INTERNAL"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "UNIMPLEMENTED"),
        (413, "UNKNOWN"),
        (429, "UNAVAILABLE"),
        (500, "UNKNOWN"),
        (502, "UNAVAILABLE"),
        (503, "UNAVAILABLE"),
        (504, "UNAVAILABLE"),
    ] {
        let client = Client::over(proxy_page(status, usize::MAX), patient()).unwrap();
        let error = client.decide(on("user", "a")).await.unwrap().error.unwrap();
        assert_eq!(error.code, code, "{status}");
        assert!(error.message.contains(&status.to_string()), "{error}");
    }
}

#[tokio::test]
async fn a_commit_that_a_proxy_could_not_pass_on_is_sent_again() {
    let (listener, page) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), proxy_page(502, 1));
    let address = listener.local_addr().unwrap().to_string();
    let server = tonic::transport::Server::builder().add_routes(page.into());
    let mut tasks = JoinSet::new();
    tasks.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let options = patient().commit_timeout(Duration::from_secs(20));
    let own = Client::over(proxy_page(502, 1), options.clone()).unwrap();
    for client in [connect(&address, options), own] {
        let error = client.commit(Commit::new("token", 1)).await.unwrap().unwrap();
        assert_eq!(error.code, "INVALID_ARGUMENT", "of the second answer: {error}");
    }
}

#[tokio::test]
async fn a_trace_goes_with_each_request_also_with_a_commit() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let channel = tower::service_fn({
        let seen = Arc::clone(&seen);
        move |request: http::Request<tonic::body::Body>| {
            let trace = request.headers().get("traceparent").cloned();
            seen.lock().unwrap().push((request.uri().path().to_owned(), trace.unwrap()));
            ready(Err::<http::Response<tonic::body::Body>, _>(tonic::Status::internal("a test")))
        }
    });
    let options = patient().metadata(|metadata| {
        metadata.insert("traceparent", "00-1-2-01".parse().unwrap());
    });
    let client = Client::over(channel, options).unwrap();
    assert!(client.decide(on("user", "a")).await.unwrap().failed());
    assert!(client.commit(Commit::new("token", 1)).await.unwrap().is_some());
    let methods = ["Decide", "Commit"]
        .map(|name| (format!("/tollkeeper.v1.Tollkeeper/{name}"), "00-1-2-01".parse().unwrap()));
    assert_eq!(*seen.lock().unwrap(), methods);
}

#[tokio::test]
async fn what_panics_is_logged_once() {
    let log = Log::start();
    let (fake, client) = faked();
    fake.fail(Some("UNAVAILABLE"));
    let client = client.with(|options| {
        let options = options.on_failure(OnFailure::by(|_, _| panic!("as the test says")));
        options
            .on_call(|_, _, _| panic!("as the test says"))
            .metadata(|_| panic!("as the test says"))
    });
    for _ in 0..3 {
        assert!(!client.decide(on("user", "a")).await.unwrap().allowed);
    }
    let lines = log.lines();
    for name in ["on_failure", "on_call", "metadata"] {
        let line = format!("tollkeeper: {name} panicked (1 times since the last such line)");
        assert_eq!(lines.iter().filter(|it| **it == line).count(), 1, "{lines:?}");
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
}

type Answer = Result<http::Response<tonic::body::Body>, tonic::Status>;

#[tokio::test]
async fn a_message_of_the_service_is_one_short_line_of_the_log() {
    let message = format!("\u{1b}[2J\r\n\u{85}\u{2028}\u{202e}\u{2069}\u{7f}{}", "a".repeat(1000));
    let refuse = move |_| ready(Answer::Err(tonic::Status::internal(message.clone())));
    let client =
        Client::over(tower::service_fn(refuse), patient().domain("a\nb\u{1b}\u{202e}")).unwrap();
    let log = Log::start();
    assert!(client.decide(on("user", "a")).await.unwrap().failed());
    let expected = format!(
        "tollkeeper: 1 call of the domain \"a b  \" had no answer and was decided by on_failure; the last: \
        INTERNAL:  [2J       {}… (target a channel of the caller's own)",
        "a".repeat(289)
    );
    assert_eq!(log.lines(), [expected]);
}

#[tokio::test]
async fn the_log_has_the_calls_that_close_ends() {
    let service = tower::service_fn(|_| pending::<Answer>());
    let client = Client::over(service, patient()).unwrap();
    let log = Log::start();
    let decide = || client.decide(on("user", "a"));
    let (one, two, three, ()) = tokio::join!(decide(), decide(), decide(), client.close());
    for decision in [one, two, three] {
        assert_eq!(decision.unwrap().error.unwrap().to_string(), "CANCELLED: the client is closed");
    }
    let lines = log.lines();
    let starts = ["tollkeeper: 1 call of ", "tollkeeper: 2 calls of "];
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{lines:?}");
}

struct PanickingLog;

impl tracing::Subscriber for PanickingLog {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("as the test says");
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_log_that_panics_changes_nothing() {
    let (fake, client) = faked();
    fake.fail(Some("UNAVAILABLE"));
    let _log = tracing::subscriber::set_default(PanickingLog);
    let client = client.with(|options| options.commit_timeout(Duration::from_millis(1)));
    assert!(client.decide(on("user", "a")).await.unwrap().failed());
    assert!(client.commit(Commit::new("token", 1)).await.unwrap().is_some());
    client.close().await;
}

#[tokio::test]
async fn the_channel_may_be_the_callers_own() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let channel = tonic::transport::Channel::from_shared(format!("http://{address}")).unwrap();
    let refuse = |mut request: tonic::Request<()>| {
        request.metadata_mut().insert("traceparent", "00-1-2-01".parse().unwrap());
        Ok(request)
    };
    let channel =
        tonic::service::interceptor::InterceptedService::new(channel.connect_lazy(), refuse);
    let client = Client::over(channel, patient()).unwrap();
    let decision = client.decide(on("three", unique())).await.unwrap();
    assert_eq!((decision.limit, decision.remaining, decision.error), (Some(3), 2, None));
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let channel = tonic::transport::Channel::from_shared(format!("http://{gone}")).unwrap();
    let client = Client::over(channel.connect_lazy(), patient()).unwrap();
    let error = client.decide(on("three", unique())).await.unwrap().error.unwrap();
    assert_eq!(error.code, "UNAVAILABLE");
}

fn text<T>(result: Result<T, Error>) -> String {
    result.err().expect("it is a mistake").to_string()
}

#[tokio::test]
async fn mistakes_of_the_caller_name_the_field_and_the_bound() {
    let (fake, client) = faked();
    let on = || on("user", "a");
    let bound = format!("must be from 0 to 9007199254740991, and is {}", HITS_MAX + 1);
    let mut hold = client.hold(Call::take(1, on())).await.unwrap();
    let calls = |last: Call| vec![Call::check(on()), last];
    let many = || Call::take(HITS_MAX + 1, on());
    let long = Call::take(1, on()).once("i".repeat(129));
    for (found, expected) in [
        (text(client.decide(many()).await), format!("hits: {bound}")),
        (text(client.hold(many()).await), format!("estimate: {bound}")),
        (text(hold.renew(1, many()).await), format!("estimate: {bound}")),
        (text(hold.renew(HITS_MAX + 1, on()).await), format!("used: {bound}")),
        (
            text(client.decide(Call::refund(HITS_MAX + 1, on())).await),
            format!("descriptors[0].hits_addend: {bound}"),
        ),
        (text(hold.used(HITS_MAX + 1)), format!("used: {bound}")),
        (text(hold.used_kind("input", HITS_MAX + 1)), format!("used_by_kind[\"input\"]: {bound}")),
        (text(client.decide_all(calls(many())).await), format!("calls[1].hits: {bound}")),
        (
            text(client.hold(Call::take(1, on()).kind("input", HITS_MAX + 1)).await),
            format!("hits_by_kind[\"input\"]: {bound}"),
        ),
        (
            text(client.decide_all(calls(long)).await),
            "calls[1].id: must be at most 128 bytes, and is 129".to_owned(),
        ),
        (
            text(client.decide_all(vec![Call::check(on()); 1001]).await),
            "calls: must be at most 1000, and are 1001".to_owned(),
        ),
        (
            text(client.decide_all(calls(Call::check(Descriptor::default()))).await),
            "calls[1].descriptors[0].entries: must have at least 1 item".to_owned(),
        ),
        (text(client.commit(Commit::new("", HITS_MAX + 1)).await), format!("used: {bound}")),
        (text(hold.commit(HITS_MAX + 1).await), format!("used: {bound}")),
    ] {
        assert_eq!(found, expected);
    }
    client.flush().await;
    // The hold is committed without the numbers that were refused.
    assert_eq!(fake.commits()[0].used, None);
    let strict = client.with(|options| options.require_limit(true));
    let call = [on(), on().and("path", "/")];
    let expected = "calls[0].descriptors[0]: no limit applies to user in the domain conformance (require_limit)";
    assert_eq!(text(strict.decide_all([call]).await), expected);
}

#[test]
fn a_client_needs_a_runtime() {
    let made = Client::new("localhost:8081", Options::new("shop"));
    assert!(text(made).starts_with("runtime: "));
}

#[tokio::test]
async fn mistakes_of_settings_name_the_field() {
    let target = "target: must be HOST:PORT, or several with commas";
    for (address, domain, expected) in [
        ("localhost:8081", "", "domain: must not be empty"),
        ("", "shop", target),
        ("localhost", "shop", target),
        ("localhost:8081,", "shop", target),
        ("http://localhost:8081", "shop", target),
    ] {
        assert_eq!(text(Client::new(address, Options::new(domain))), expected, "{address}");
    }
}

#[test]
fn a_descriptor_is_any_bytes_and_does_not_reach_a_log() {
    let alice = on("path", "/login").and(b"\xff\x00", "alice");
    assert_eq!(
        (alice.get("path"), alice.get(b"\xff\0")),
        (Some(&b"/login"[..]), Some(&b"alice"[..]))
    );
    assert_eq!(alice.get("user"), None);
    let [take, refund] =
        [Call::take(3, [on("user", "bob"), alice.clone()]).once("order 7"), Call::refund(2, alice)];
    assert_eq!(take.descriptors()[0].get("user"), Some(&b"bob"[..]));
    let shown = r#"Call { mode: "TAKE", hits: Some(3), hits_by_kind: {}, id: "order 7", descriptors: [user, path|"#;
    assert_eq!(format!("{take:?}"), format!("{shown}\u{fffd}\0] }}"));
    let shown =
        r#"Call { mode: "REFUND", hits: Some(2), hits_by_kind: {}, id: "", descriptors: [path|"#;
    assert_eq!(format!("{refund:?}"), format!("{shown}\u{fffd}\0] }}"));
}

#[tokio::test]
async fn a_client_shows_its_domain_and_target() {
    let (_, client) = faked();
    assert_eq!(format!("{client:?}"), r#"Client { domain: "conformance", target: "a fake", .. }"#);
}
