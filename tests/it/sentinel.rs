//! A store whose master Sentinels name: failovers under load, and Sentinels that fail.

mod failovers;

use std::time::Duration;

use tollkeeper::rls::pb::RateLimitDescriptor;

use crate::support::{
    eventually,
    sentinels::{NAME, Sentinels},
    service::{Options, Service, descriptor, request, spell},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket }
";

fn start(store: &str, flags: &[&str]) -> Service {
    let flags = &[&["--decision-budget", "2s"], flags].concat();
    Service::start(Options { rules: RULES, store, flags, ..Options::default() })
}

fn user(name: &str) -> Vec<RateLimitDescriptor> {
    vec![descriptor(&[("user", name)])]
}

/// Sends a call, and spells the answer or the error's code.
async fn ask(service: &Service, name: &str) -> String {
    match service.ask(request("shop", user(name))).await {
        Ok(answer) => spell(&answer),
        Err(status) => format!("{:?}", status.code()),
    }
}

/// Sends calls until one is answered.
async fn answered(service: &Service, name: &str) -> String {
    loop {
        let answer = ask(service, name).await;
        if answer != "Unavailable" {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[track_caller]
fn logs(service: &Service, line: &str) {
    eventually(line, || service.log().contains(line).then_some(()));
}

#[tokio::test]
async fn a_failover_is_followed_with_and_without_scripts() {
    let mut sentinels = Sentinels::start();
    // Without scripts there are only fixed windows.
    let rules = &RULES[..RULES.find("  - key: bucket").unwrap()];
    let (url, flags) = (sentinels.url(), &["--redis-scripts", "off"]);
    let plain = Options { rules, store: &url, flags, ..Options::default() };
    let services = [start(&url, &[]), Service::start(plain)];
    let before = sentinels.master().port;
    for (service, left) in services.iter().zip([9, 8]) {
        assert_eq!(answered(service, "a").await, format!("OK: OK {left}/10 YEAR"));
    }
    sentinels.kill_master();
    sentinels.announced();
    let after = sentinels.master().port;
    let epoch = |service: &Service| {
        let line = format!(
            "the master `{NAME}` was 127.0.0.1:{before} and is now 127.0.0.1:{after}, in epoch "
        );
        logs(service, &line);
    };
    for (service, left) in services.iter().zip([7, 6]) {
        epoch(service);
        assert_eq!(answered(service, "a").await, format!("OK: OK {left}/10 YEAR"));
    }
}

#[tokio::test]
async fn an_unknown_master_name_is_told_in_words() {
    let sentinels = Sentinels::start();
    let service = start(&format!("redis+sentinel://{}/other", sentinels.hosts()), &[]);
    logs(&service, "the Sentinels know no master named `other`");
    assert_eq!(ask(&service, "a").await, "Unavailable");
}
