//! Calls that are decided in this process.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose"
)]

mod support;

use std::{
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use support::{Log, connect, patient, service, unique};
use tokio::task::JoinSet;
use tollkeeper_client::{Call, Client, Descriptor, Fake, Limiter, OnFailure, Unit, on};

fn faked() -> (Fake, Client, Limiter) {
    let fake = Fake::default();
    let client = fake.client(patient().on_failure(OnFailure::Deny)).unwrap();
    let limiter = Limiter::new(&client);
    (fake, client, limiter)
}

fn alice() -> Descriptor {
    on("user", "alice")
}

/// Decides calls until one of them sends no request: then there is credit.
async fn warm(fake: &Fake, limiter: &Limiter) {
    loop {
        let before = fake.calls().len();
        assert!(limiter.decide(alice()).await.unwrap().allowed);
        if fake.calls().len() == before {
            return;
        }
        // A fake answers at once, so that the task of the lease would not run.
        tokio::task::yield_now().await;
    }
}

/// Decides calls by several tasks at a time until one is denied. Returns how many were allowed.
async fn exhaust(limiters: &[Limiter], descriptor: &Descriptor) -> u64 {
    let mut tasks = JoinSet::new();
    for (limiter, hits) in limiters.iter().flat_map(|limiter| [(limiter, 1), (limiter, 3)]) {
        let (limiter, descriptor) = (limiter.clone(), descriptor.clone());
        tasks.spawn(async move {
            let mut used = 0;
            loop {
                let decision = limiter.decide(Call::take(hits, descriptor.clone())).await.unwrap();
                assert!(!decision.failed(), "{decision:?}");
                if !decision.allowed {
                    return used;
                }
                used += hits;
                // The tasks of the leases run too.
                tokio::task::yield_now().await;
            }
        });
    }
    tasks.join_all().await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_admit_no_more_than_the_limit_and_ask_seldom() {
    let (fake, client, limiter) = faked();
    let other = Limiter::new(&fake.client(patient()).unwrap());
    fake.limit(alice(), 300_000);
    let used = exhaust(&[limiter, other], &alice()).await;
    client.close().await;
    // What goes back is not free again in a fake.
    assert!(used <= 300_000, "{used}");
    assert!(used > 200_000, "{used}");
    let calls = fake.calls().len() as u64;
    assert!(calls < used / 10, "{calls} calls for {used} hits");
}

#[tokio::test]
async fn idle_credit_goes_back() {
    let (fake, _client, limiter) = faked();
    fake.limit(alice(), 1 << 40);
    warm(&fake, &limiter).await;
    let began = Instant::now();
    while !fake.commits().iter().any(|commit| commit.used > Some(0)) {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", fake.commits());
        tokio::task::yield_now().await;
    }
    let before = fake.calls().len();
    limiter.decide(alice()).await.unwrap();
    assert_eq!(fake.calls().len(), before + 1, "there is no credit");
}

#[tokio::test]
async fn to_close_the_client_gives_credit_back() {
    let (fake, client, limiter) = faked();
    fake.limit(alice(), 1 << 40);
    warm(&fake, &limiter).await;
    client.close().await;
    assert!(fake.commits().iter().any(|commit| commit.used > Some(0)));
    let later = limiter.decide(alice()).await.unwrap();
    assert_eq!(later.error.unwrap().code, "CANCELLED");
}

#[tokio::test]
async fn other_calls_go_to_the_service_as_they_are() {
    let (fake, _client, limiter) = faked();
    fake.limit(alice(), 1 << 40);
    warm(&fake, &limiter).await;
    for call in [
        Call::check(alice()),
        Call::read(alice()),
        Call::part(1, alice()),
        Call::debit(1, alice()),
        Call::refund(1, alice()),
        Call::take(0, alice()),
        Call::take(1, alice()).once("order 1742"),
        Call::take(1, alice()).kind("input", 3),
        Call::from(alice().limit(100, 1, Unit::Hour)),
        Call::from([alice(), on("path", "/")]),
        Call::from(alice().and("path", "/")),
        Call::from(on("user", "x".repeat(2000))),
    ] {
        limiter.decide(call.clone()).await.unwrap();
        assert!(fake.calls().contains(&call), "{call:?}");
    }
    let mistake = limiter.decide(Vec::new()).await.unwrap_err().to_string();
    assert_eq!(mistake, "descriptors: must have at least 1 item");
}

#[tokio::test]
async fn credit_is_spent_while_the_service_is_gone_and_a_lease_without_an_answer_is_no_failure() {
    let requests = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&requests);
    let options = patient().on_failure(OnFailure::Deny).on_call(move |method, _, _| {
        counted.fetch_add(usize::from(method == "decide"), Ordering::Relaxed);
    });
    let (fake, log) = (Fake::default(), Log::start());
    let limiter = Limiter::new(&fake.client(options).unwrap());
    fake.limit(alice(), 1 << 40);
    warm(&fake, &limiter).await;
    fake.fail(Some("UNAVAILABLE"));
    let before = requests.load(Ordering::Relaxed);
    assert!(!limiter.decide(alice()).await.unwrap().failed());
    assert_eq!((requests.load(Ordering::Relaxed), log.lines()), (before, Vec::new()));
    // All that it has, until calls are decided without an answer.
    while limiter.decide(alice()).await.unwrap().allowed {
        tokio::task::yield_now().await;
    }
    assert_eq!(requests.load(Ordering::Relaxed), before + 1);
    assert_eq!(log.lines().len(), 1);
}

#[tokio::test]
async fn a_prepared_call_spends_what_other_calls_on_its_descriptors_have_leased() {
    let (fake, _client, limiter) = faked();
    fake.limit(alice(), 1 << 40);
    let prepared = limiter.prepare(alice()).unwrap();
    warm(&fake, &limiter).await;
    let before = fake.calls().len();
    assert!(prepared.decide().await.unwrap().allowed);
    assert_eq!(fake.calls().len(), before);
    for call in [Call::check(alice()), Call::take(1, on("user", "x".repeat(2000)))] {
        limiter.prepare(call.clone()).unwrap().decide().await.unwrap();
        assert!(fake.calls().contains(&call), "{call:?}");
    }
    let mistake = limiter.prepare(Vec::new()).err().unwrap().to_string();
    assert_eq!(mistake, "descriptors: must have at least 1 item");
}

#[tokio::test]
async fn a_refused_lease_is_logged_with_its_keys() {
    let (fake, _client, limiter) = faked();
    let (log, descriptor) = (Log::start(), || on("path", "/").and("user", "secret"));
    limiter.decide(descriptor()).await.unwrap();
    fake.fail(Some("UNIMPLEMENTED"));
    let expected = "tollkeeper: each call on [path|user] in the domain \"conformance\" is a request, since the service \
                    leases no hits for it: UNIMPLEMENTED: the fake fails";
    while !log.lines().iter().any(|line| line == expected) {
        assert!(!limiter.decide(descriptor()).await.unwrap().allowed);
        tokio::task::yield_now().await;
    }
    assert_eq!(
        log.lines().len(),
        2,
        "the other is about calls without an answer: {:?}",
        log.lines()
    );
}

#[tokio::test]
async fn ten_thousand_keys_are_kept_and_more_go_to_the_service() {
    let (fake, _client, limiter) = faked();
    for user in 0..12_000 {
        assert!(limiter.decide(on("user", user.to_string())).await.unwrap().allowed);
    }
    assert_eq!(fake.calls().len(), 12_000);
}

/// A client that counts its requests to the service.
fn counting(address: &str) -> (Client, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&requests);
    let options = patient().on_call(move |_, _, _| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    (connect(address, options), requests)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_counter_of_the_service_ends_at_what_two_processes_have_admitted() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let descriptor = on("leased", unique());
    let clients = [counting(&address), counting(&address)];
    let limiters = clients.each_ref().map(|(client, _)| Limiter::new(client));
    let admitted = exhaust(&limiters, &descriptor).await;
    for (client, _) in &clients {
        client.close().await;
    }
    assert!(admitted <= 20_000, "{admitted} of 20000");
    let requests: usize = clients.iter().map(|(_, it)| it.load(Ordering::Relaxed)).sum();
    println!("{admitted} admitted by {requests} requests");
    // Credit of the service itself goes back too.
    let (client, began) = (connect(&address, patient()), Instant::now());
    loop {
        let read = client.decide(Call::read(descriptor.clone())).await.unwrap();
        if read.statuses[0].used == Some(admitted) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{admitted} admitted: {read:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_window_of_a_second_admits_more_than_its_limit() {
    let Some(address) = service("TOLLKEEPER_ADDR") else { return };
    let clients = [counting(&address), counting(&address)];
    let (descriptor, mut tasks) = (on("leased_second", unique()), JoinSet::new());
    let second = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (first, began) = (second(), Instant::now());
    for (client, _) in &clients {
        let (limiter, descriptor) = (Limiter::new(client), descriptor.clone());
        tasks.spawn(async move {
            let mut admitted = 0;
            while began.elapsed() < Duration::from_secs(3) {
                admitted += u64::from(limiter.decide(descriptor.clone()).await.unwrap().allowed);
                tokio::task::yield_now().await;
            }
            admitted
        });
    }
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    let windows = second() - first + 1;
    assert!(admitted <= 2000 * windows, "{admitted} in {windows} windows");
    let requests: usize = clients.iter().map(|(_, it)| it.load(Ordering::Relaxed)).sum();
    println!("{admitted} admitted in {windows} windows by {requests} requests");
}
