//! Promise "exactly the limit", while real Envoys decide by themselves beside calls, on one counter: they join and
//! are killed, and Redis stands still. What is admitted is counted by the windows in which a request was sent and answered.
//! Redis has the clock of this machine.

use std::{thread, time::SystemTime};

use crate::support::{
    envoy::{Envoy, PUBLIC, RLS, envoy, example, exchange, replace},
    prelude::*,
};

const LIMIT: usize = 300;

const WINDOW_SECONDS: u64 = 10;

fn window() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / WINDOW_SECONDS
}

/// The windows in which an admitted request was sent and answered.
type Admitted = (u64, u64);

/// Requests to an Envoy, until it is gone or the test ends.
fn request_all(public: SocketAddr, ends: &AtomicBool) -> Vec<Admitted> {
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-user: alice\r\n\r\n";
    let mut admitted = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let sent = window();
        let Some(answer) = exchange(public, request) else { break };
        if answer.starts_with("HTTP/1.1 200") {
            admitted.push((sent, window()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    admitted
}

/// Calls that ask one by one.
async fn ask_all(service: &Service, ends: &AtomicBool) -> Vec<Admitted> {
    let mut client = service.client().await;
    let mut admitted = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let sent = window();
        let call = request("proxies", vec![descriptor(&[("service", "web"), ("user", "alice")])]);
        let answer = client.should_rate_limit(call).await;
        if answer.is_ok_and(|answer| answer.into_inner().overall_code() == Code::Ok) {
            admitted.push((sent, window()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_admits_more_while_envoys_and_redis_come_and_go() {
    let redis = Redis::start();
    let rules = example("envoy/quota-rules.yaml");
    let rules = replace(
        &rules,
        &[("minute", 1, "second, unit_multiplier: 10"), ("600", 1, &LIMIT.to_string())],
    );
    let start = || {
        let flags = &["--on-store-failure", "deny"];
        Service::with(&rules).on(&redis.url()).flags(flags).start()
    };
    let services = [start(), start()];
    services.iter().for_each(Service::wait_until_ready);
    let config = replace(&example("envoy/quota.yaml"), &[("ALLOW_ALL", 2, "DENY_ALL")]);
    let begin = window();
    let ends = AtomicBool::new(false);
    let (by_proxies, by_calls) = thread::scope(|scope| {
        let ends = &ends;
        let (mut proxies, mut requests) = (Vec::new(), Vec::new());
        let mut join = |proxies: &mut Vec<Envoy>, service: &Service| {
            let proxy = envoy(&config, PUBLIC, RLS, service);
            let public = proxy.public;
            requests.push(scope.spawn(move || request_all(public, ends)));
            proxies.push(proxy);
        };
        let (runtime, asked) = (tokio::runtime::Handle::current(), &services[0]);
        let calls = scope.spawn(move || runtime.block_on(ask_all(asked, ends)));
        let pause = || thread::sleep(Duration::from_secs(6));
        join(&mut proxies, &services[0]);
        join(&mut proxies, &services[1]);
        join(&mut proxies, &services[1]);
        pause();
        join(&mut proxies, &services[0]);
        pause();
        // It is killed.
        drop(proxies.remove(0));
        pause();
        redis.signal("STOP");
        thread::sleep(Duration::from_secs(2));
        redis.signal("CONT");
        pause();
        join(&mut proxies, &services[0]);
        pause();
        ends.store(true, Ordering::Relaxed);
        let by_proxies = requests.into_iter().map(|requests| requests.join().unwrap());
        (by_proxies.collect::<Vec<_>>().concat(), calls.join().unwrap())
    });
    assert!(!by_proxies.is_empty() && !by_calls.is_empty(), "both have admitted something");
    let admitted = [by_proxies, by_calls].concat();
    for first in begin..=window() {
        for last in first..=window() {
            let within = admitted.iter().filter(|(sent, at)| first <= *sent && *at <= last).count();
            let most = LIMIT * (last - first + 1) as usize;
            assert!(within <= most, "{within} of {most} in windows {first} to {last}");
        }
    }
}
