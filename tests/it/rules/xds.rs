//! Rules from a control plane, by Envoy's discovery service.

mod overlay;
mod peers;
mod real;
mod reconnects;
mod resources;
mod shapes;
mod stream;
mod updates;

use crate::support::{ads::FakeAds, prelude::*};

/// A service that takes its rules from this URL.
fn start(url: &str, flags: &[&str]) -> Service {
    start_on("memory://", url, flags)
}

fn start_on(store: &str, url: &str, flags: &[&str]) -> Service {
    let mut command = serve();
    command.args(["--store", store, "--decision-budget", "10s", "--drain", "0s", "--rules", url]);
    command.args(flags);
    Service::spawn(command, TempDir::new().unwrap())
}

/// A control plane, and a service that has asked it for its rules.
fn follow() -> (FakeAds, Service) {
    let ads = FakeAds::start();
    let service = start(&ads.url(), &[]);
    ads.request();
    (ads, service)
}

/// Like [`follow`], and it has answered the first response, with the nonce `n1`.
fn start_with(version: &str, resources: &[Value]) -> (FakeAds, Service) {
    let (ads, service) = follow();
    ads.respond(version, "n1", resources);
    ads.request();
    (ads, service)
}

/// Like [`start_with`], and it has accepted these resources.
#[track_caller]
fn accepted(resources: &[Value]) -> (FakeAds, Service) {
    let (ads, service) = follow();
    ads.respond("1", "n1", resources);
    assert_eq!(ads.request().error, None);
    (ads, service)
}

/// A resource that limits `key` in a domain to a number of calls a year.
fn limit(domain: &str, key: &str, requests: u32) -> Value {
    json!({
        "name": domain,
        "domain": domain,
        "descriptors": [
            { "key": key, "rateLimit": { "unit": "YEAR", "requestsPerUnit": requests } }
        ],
    })
}

/// A resource that no service accepts.
fn bad(domain: &str) -> Value {
    json!({ "name": domain, "domain": domain, "descriptors": [{ "key": "" }, { "key": "a", "rateLimit": { "unit": 99 } }] })
}

fn rules(service: &Service) -> Value {
    serde_json::from_str(&service.get("/rules")).unwrap()
}

/// Waits until a control plane's version has been accepted.
#[track_caller]
fn wait_for(service: &Service, version: &str) {
    wait_until(&format!("version {version}"), || {
        rules(service)["control_plane"]["version"] == version
    });
}

/// Calls with a descriptor such as `user=a,plan=b`, and spells the answer.
async fn ask(service: &Service, domain: &str, path: &str) -> String {
    let entries: Vec<_> = path.split(',').map(|entry| entry.split_once('=').unwrap()).collect();
    spell(&service.ask(request(domain, vec![descriptor(&entries)])).await.unwrap())
}

/// The value of a series without labels on `/metrics`.
fn metric(service: &Service, series: &str) -> f64 {
    let metrics = service.get("/metrics");
    let line = metrics
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{series} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
