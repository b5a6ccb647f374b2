//! Streams that end, control planes that restart, and what is in force meanwhile.

use super::{ask, limit, metric, rules, start, start_with};
use crate::support::{ads::*, prelude::*};

#[tokio::test]
async fn another_stream_asks_for_the_whole_state_and_the_rules_stay_meanwhile() {
    let (ads, service) = start_with("7", &[limit("shop", "user", 3)]);
    ads.cut();
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 2/3 YEAR");
    let again = ads.request();
    assert_eq!((again.stream, again.node.as_deref()), (2, Some(NODE)));
    assert_eq!((again.version.as_str(), again.nonce.as_str()), ("7#reconnect", ""));
    ads.respond("7", "n1", &[limit("shop", "user", 3)]);
    let accepted = ads.request();
    assert_eq!((accepted.version.as_str(), accepted.nonce.as_str()), ("7", "n1"));
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 1/3 YEAR");
}

#[tokio::test]
async fn the_rules_survive_the_loss_of_the_control_plane() {
    let (ads, service) = start_with("1", &[limit("shop", "user", 3)]);
    let port = ads.port;
    drop(ads);
    wait_until("failed attempts", || {
        metric(&service, "ratelimit_xds_connections_total{outcome=\"failed\"}") >= 2.0
    });
    assert_eq!(metric(&service, "ratelimit_xds_connected"), 0.0);
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 2/3 YEAR");
    let shown = rules(&service);
    assert_eq!(shown["control_plane"]["connected"], false);
    assert!(shown["control_plane"]["failure"].as_str().unwrap().contains("refused"), "{shown}");

    let ads = FakeAds::start_on(port);
    assert_eq!(ads.request().version, "1#reconnect");
    ads.respond("1", "n1", &[limit("shop", "user", 4)]);
    wait_until("the new limit", || {
        rules(&service)["domains"][0]["rules"][0]["limit"] == "4 per year"
    });
    assert_eq!(ask(&service, "shop", "user=a").await, "OK: OK 2/4 YEAR");
}

/// A restarted Envoy Gateway sends one Gateway after the other.
#[tokio::test]
async fn a_domain_that_vanishes_after_a_reconnect_stays_for_a_while() {
    let (one, other) = (limit("one", "user", 3), limit("other", "user", 3));
    let (ads, service) = start_with("5", &[one.clone(), other.clone()]);
    ask(&service, "other", "user=a").await;
    ads.cut();
    ads.request();
    ads.respond("1", "n1", std::slice::from_ref(&one));
    assert_eq!(ads.request().version, "1");
    assert_eq!(ask(&service, "other", "user=a").await, "OK: OK 1/3 YEAR", "it stays");
    ads.respond("2", "n2", &[one.clone(), other.clone()]);
    assert_eq!(ads.request().version, "2");
    assert_eq!(ask(&service, "other", "user=a").await, "OK: OK 0/3 YEAR", "it was never gone");

    // Gone for good.
    ads.cut();
    ads.request();
    ads.respond("1", "n1", &[one]);
    ads.request();
    assert_eq!(rules(&service)["domains"].as_array().unwrap().len(), 2);
    wait_until("its end", || rules(&service)["domains"].as_array().unwrap().len() == 1);
    assert_eq!(ask(&service, "other", "user=a").await, "OK: OK -");
    assert_eq!(rules(&service)["domains"][0]["domain"], "one");
}

#[tokio::test]
async fn without_a_reconnect_a_domain_that_vanishes_is_gone_at_once() {
    let (ads, service) = start_with("1", &[limit("one", "user", 3), limit("other", "user", 3)]);
    ads.respond("2", "n2", &[limit("one", "user", 3)]);
    ads.request();
    assert_eq!(ask(&service, "other", "user=a").await, "OK: OK -");
}

#[test]
fn attempts_to_connect_become_rarer() {
    let ads = FakeAds::start();
    let url = ads.url();
    drop(ads);
    let service = start(&url, &[]);
    let failed = || metric(&service, "ratelimit_xds_connections_total{outcome=\"failed\"}");
    wait_until("the third failure", || failed() >= 3.0);
    std::thread::sleep(Duration::from_secs(3));
    // At intervals of 0.2, 0.4, 0.8, 1.6 and 3.2 s, and never at once.
    assert!(failed() <= 7.0, "{} attempts", failed());
    assert_eq!(service.log().matches("no stream from the control plane").count(), 1);
}
