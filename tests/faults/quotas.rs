//! Promise "exactly the limit", while real Envoys decide by themselves beside calls, on one counter: they join and
//! are killed, and Redis stands still.

use crate::support::{
    envoy::{Envoy, PUBLIC, RLS, envoy, example, exchange, replace},
    prelude::*,
    windows::{self, Admitted, now_ms},
};

const LIMIT: u64 = 300;

const WINDOW_MS: u64 = 10_000;

fn window() -> u64 {
    now_ms() / WINDOW_MS
}

/// Requests to an Envoy, until it is gone or the test ends.
fn request_all(public: SocketAddr, ends: &AtomicBool) -> Vec<Admitted> {
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-user: alice\r\n\r\n";
    let mut admitted = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let sent = window();
        let Some(answer) = exchange(public, request) else { break };
        if answer.starts_with("HTTP/1.1 200") {
            admitted.push(Admitted { hits: 1, sent, answered: window() });
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
            admitted.push(Admitted { hits: 1, sent, answered: window() });
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
    windows::check("alice", LIMIT, &[by_proxies, by_calls].concat(), &[]);
}
