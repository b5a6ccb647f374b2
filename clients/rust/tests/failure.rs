//! A service that fails, vanishes or comes back, and mistakes of the caller.

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
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use support::{Unreliable, connect, patient};
use tokio::net::TcpListener;
use tollkeeper_client::{
    Call, Client, Commit, Descriptor, Error, HITS_MAX, OnFailure, Options, ServiceError, on,
    v1::call::Mode,
};
use tonic::Code;

/// What the hook got: the method and the outcome of each request.
type Outcomes = Arc<Mutex<Vec<(&'static str, &'static str)>>>;

fn observed(outcomes: &Outcomes) -> Options {
    let outcomes = Arc::clone(outcomes);
    let on_call = move |method, elapsed: Duration, outcome| {
        assert!(elapsed > Duration::ZERO);
        outcomes.lock().unwrap().push((method, outcome));
    };
    Options { on_call: Some(Arc::new(on_call)), ..patient() }
}

/// Commits a hold at a service whose commits fail with these codes. Returns the commits that arrived, and the outcomes.
async fn committed(failures: &[Code]) -> (Vec<Commit>, Vec<&'static str>) {
    let service = Unreliable::default();
    service.failures.lock().unwrap().extend(failures);
    let (address, _serving) = service.serve("127.0.0.1:0");
    let outcomes = Outcomes::default();
    let client = connect(&address.to_string(), observed(&outcomes));
    let hold = client.hold(5, on("user", "a")).await.unwrap();
    hold.commit(3).await.unwrap();
    let commits = service.commits.lock().unwrap().clone();
    let outcomes = outcomes.lock().unwrap().clone();
    assert_eq!(outcomes[0], ("decide", "ok"));
    (
        commits,
        outcomes[1..]
            .iter()
            .map(|(method, outcome)| {
                assert_eq!(*method, "commit");
                *outcome
            })
            .collect(),
    )
}

#[tokio::test]
async fn a_commit_is_sent_once_if_it_is_answered() {
    let (commits, outcomes) = committed(&[]).await;
    let commit = Commit { hold: "token".into(), used: Some(3), ..Commit::default() };
    assert_eq!((commits, outcomes), (vec![commit], vec!["ok"]));
}

#[tokio::test]
async fn a_commit_is_repeated_until_it_is_answered() {
    let (commits, outcomes) = committed(&[Code::Unavailable, Code::Internal]).await;
    assert_eq!((commits.len(), outcomes), (3, vec!["UNAVAILABLE", "INTERNAL", "ok"]));
}

#[tokio::test]
async fn a_commit_ends_after_three_attempts() {
    let (commits, outcomes) = committed(&[Code::Unavailable; 4]).await;
    assert_eq!((commits.len(), outcomes), (3, vec!["UNAVAILABLE"; 3]));
}

#[tokio::test]
async fn a_refused_commit_is_not_repeated() {
    let (commits, outcomes) = committed(&[Code::PermissionDenied]).await;
    assert_eq!((commits.len(), outcomes), (1, vec!["PERMISSION_DENIED"]));
}

#[tokio::test]
async fn a_hold_is_committed_although_its_caller_leaves() {
    let service = Unreliable::default();
    let (address, _serving) = service.serve("127.0.0.1:0");
    let client = connect(&address.to_string(), patient());
    let mut hold = client.hold(5, on("user", "a")).await.unwrap();
    hold.used(4).unwrap();
    // It is dropped while it waits.
    let work = async {
        let _hold = hold;
        std::future::pending::<()>().await;
    };
    assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
    // Its future is dropped before the answer.
    let other = client.hold(5, on("user", "b")).await.unwrap();
    tokio::select! {
        biased;
        _ = other.commit(6) => panic!("the answer came at once"),
        () = async {} => {}
    }
    client.flush().await;
    let mut used: Vec<_> = service.commits.lock().unwrap().iter().map(|it| it.used).collect();
    used.sort_unstable();
    assert_eq!(used, [Some(4), Some(6)]);
}

#[tokio::test]
async fn a_service_that_has_started_again_is_found_within_seconds() {
    let service = Unreliable::default();
    let (address, serving) = service.serve("127.0.0.1:0");
    let client = connect(&address.to_string(), patient());
    let failed = async || client.decide(on("user", "a")).await.unwrap().failed();
    assert!(!failed().await);
    drop(serving);
    let down = Instant::now();
    while !failed().await {}
    // Long enough for the pause between attempts to grow.
    while down.elapsed() < Duration::from_secs(3) {
        failed().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (_, _serving) = service.serve(&address.to_string());
    let up = Instant::now();
    // The only thread is busy with calls, and still connects.
    while failed().await {}
    assert!(up.elapsed() < Duration::from_secs(2), "it was found after {:?}", up.elapsed());
}

#[tokio::test]
async fn calls_go_to_all_addresses_in_turn_and_past_one_that_is_gone() {
    let (one, other) = (Unreliable::default(), Unreliable::default());
    let (first, _first) = one.serve("127.0.0.1:0");
    let (second, serving) = other.serve("127.0.0.1:0");
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = connect(&format!("{first},{gone}, {second}"), patient());
    let decide = async || client.decide(on("user", "a")).await.unwrap();
    // The first calls may come before the second connection.
    while other.calls.lock().unwrap().is_empty() {
        assert!(!decide().await.failed());
    }
    let before = other.calls.lock().unwrap().len();
    for _ in 0..30 {
        assert!(!decide().await.failed());
    }
    let share = other.calls.lock().unwrap().len() - before;
    assert!((10..=20).contains(&share), "{share} of 30");
    drop(serving);
    // A call that was sent on the lost connection may fail.
    while decide().await.failed() {}
    for _ in 0..30 {
        assert!(!decide().await.failed());
    }
}

#[tokio::test]
async fn a_call_is_sent_with_its_mode_its_id_and_its_estimates_by_kind() {
    let service = Unreliable::default();
    let (address, _serving) = service.serve("127.0.0.1:0");
    let client = connect(&address.to_string(), patient());
    client.decide_call(Call::part(7, on("user", "a")).once("order 1")).await.unwrap();
    let hold = client.hold_call(Call::take(4, on("user", "a")).kind("input", 3)).await.unwrap();
    hold.release().await;
    let calls = service.calls.lock().unwrap();
    assert_eq!(
        (calls[0].mode(), calls[0].hits, calls[0].id.as_str()),
        (Mode::Part, Some(7), "order 1")
    );
    assert_eq!((calls[1].mode(), calls[1].hits), (Mode::Take, Some(4)));
    assert_eq!(calls[1].hits_by_kind, HashMap::from([("input".to_owned(), 3)]));
    assert_eq!(service.commits.lock().unwrap()[0].used, Some(0));
}

#[tokio::test]
async fn an_answer_with_too_few_verdicts_fails_each_call() {
    let (address, _serving) =
        Unreliable { is_short: true, ..Unreliable::default() }.serve("127.0.0.1:0");
    let outcomes = Outcomes::default();
    let on_failure = OnFailure::by(|_, descriptors| descriptors[0].entries[0].value == b"a");
    let client = connect(&address.to_string(), Options { on_failure, ..observed(&outcomes) });
    let calls = [Call::check(on("user", "a")), Call::check(on("user", "b"))];
    let decisions = client.decide_all(calls).await.unwrap();
    let summary: Vec<_> = decisions.iter().map(|it| (it.allowed, it.failed())).collect();
    assert_eq!(summary, [(true, true), (false, true)]);
    assert_eq!(*outcomes.lock().unwrap(), [("decide", "INTERNAL")]);
}

#[tokio::test]
async fn without_an_answer_the_error_has_the_code_and_the_reason() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = async |target: &str, timeout: u64| {
        let timeout = Duration::from_millis(timeout);
        let client = connect(target, Options { timeout, ..Options::default() });
        client.decide(on("user", "a")).await.unwrap().error.unwrap()
    };
    let late = error(&silent.local_addr().unwrap().to_string(), 50).await;
    let expected = "no answer within the timeout".to_owned();
    assert_eq!(late, ServiceError { code: "DEADLINE_EXCEEDED", message: expected });
    let refused = error(&gone.to_string(), 10_000).await.to_string();
    let expected = format!("UNAVAILABLE: {gone}: Connection refused");
    assert!(refused.starts_with(&expected), "{refused}");
    let unknown = error("no.such.host.invalid:1", 10_000).await.to_string();
    assert!(unknown.starts_with("UNAVAILABLE: no.such.host.invalid:1: "), "{unknown}");
}

fn text<T>(result: Result<T, Error>) -> String {
    result.err().expect("it is a mistake").to_string()
}

#[tokio::test]
async fn mistakes_of_the_caller_name_the_field_and_the_bound() {
    let service = Unreliable::default();
    let (address, _serving) = service.serve("127.0.0.1:0");
    let client = connect(&address.to_string(), patient());
    let on = || on("user", "a");
    let bound = format!("must be from 0 to 9007199254740991, and is {}", HITS_MAX + 1);
    let mut hold = client.hold(1, on()).await.unwrap();
    let calls = |last: Call| vec![Call::check(on()), last];
    for (found, expected) in [
        (text(client.decide_n(HITS_MAX + 1, on()).await), format!("hits: {bound}")),
        (text(client.hold(HITS_MAX + 1, on()).await), format!("estimate: {bound}")),
        (
            text(client.refund(HITS_MAX + 1, on()).await),
            format!("descriptors[0].hits_addend: {bound}"),
        ),
        (text(hold.used(HITS_MAX + 1)), format!("used: {bound}")),
        (text(hold.used_kind("input", HITS_MAX + 1)), format!("used_by_kind[\"input\"]: {bound}")),
        (
            text(client.decide_all(calls(Call::take(HITS_MAX + 1, on()))).await),
            format!("calls[1].hits: {bound}"),
        ),
        (
            text(client.hold_call(Call::take(1, on()).kind("input", HITS_MAX + 1)).await),
            format!("hits_by_kind[\"input\"]: {bound}"),
        ),
        (
            text(client.decide_all(calls(Call::take(1, on()).once("i".repeat(129)))).await),
            "calls[1].id: must be at most 128 bytes, and is 129".to_owned(),
        ),
        (
            text(client.decide_all(vec![Call::check(on()); 1001]).await),
            "calls: must be at most 1000, and are 1001".to_owned(),
        ),
        (
            text(client.decide_all(calls(Call::check(Descriptor::default()))).await),
            "calls[1].descriptors[0].entries: must be at least 1".to_owned(),
        ),
        (
            text(client.commit(Commit { used: Some(HITS_MAX + 1), ..Commit::default() }).await),
            format!("used: {bound}"),
        ),
        (text(hold.commit(HITS_MAX + 1).await), format!("used: {bound}")),
    ] {
        assert_eq!(found, expected);
    }
    client.flush().await;
    // The hold is committed without the numbers that were refused.
    let commit = Commit { hold: "token".into(), ..Commit::default() };
    assert_eq!(*service.commits.lock().unwrap(), [commit]);
}

#[test]
fn a_client_needs_a_runtime() {
    let made = Client::new("localhost:8081", "shop", Options::default());
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
        assert_eq!(text(Client::new(address, domain, Options::default())), expected, "{address}");
    }
}

#[test]
fn a_descriptor_is_any_bytes_and_does_not_reach_a_log() {
    let path = on("path", "/login");
    let alice = path.clone().and(b"\xff\x00", "alice");
    assert_eq!((path.entries.len(), alice.entries[1].key.as_slice()), (1, &b"\xff\0"[..]));
    let logged = format!("{alice:?}{:?}", Call::take(1, alice.clone()));
    assert!(!logged.contains("login") && !logged.contains("alice"), "{logged}");
}
