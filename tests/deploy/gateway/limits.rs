//! The limits of resources/limits.yaml, as real requests meet them.

use super::Gateway;
use crate::support::wait_until;

const ALL: &str = "200 200 200 200 200";
const THREE: &str = "200 200 200 429 429";
const ONE: &str = "200 429 429 429 429";
const NONE: &str = "429 429 429 429 429";

type Headers = &'static [(&'static str, &'static str)];

const ALICE: Headers = &[("x-plan", "free"), ("x-user", "alice"), ("x-org", "admin")];
const BOB: Headers = &[("x-plan", "free"), ("x-user", "bob"), ("x-org", "admin")];
const PAID: Headers = &[("x-plan", "paid"), ("x-user", "alice"), ("x-org", "admin")];

/// A case, its method, path and headers, and the statuses of five requests with envoyproxy/ratelimit. A case uses what the
/// cases before it have left.
const CASES: [(&str, &str, &str, Headers, &str); 16] = [
    ("a route as a whole", "GET", "/plain", &[], THREE),
    ("a shared rule", "GET", "/shared-a", &[], THREE),
    ("its other route", "GET", "/shared-b", &[], NONE),
    ("a user of a plan, by headers", "GET", "/headers", ALICE, THREE),
    ("another user of the plan", "GET", "/headers", BOB, THREE),
    ("a user of another plan", "GET", "/headers", PAID, ALL),
    ("an address in a range", "GET", "/cidr", &[], THREE),
    ("a method of two", "POST", "/kinds", &[], THREE),
    ("the other method", "PUT", "/kinds", &[], NONE),
    ("a prefix of paths", "GET", "/kinds/slow", &[], THREE),
    ("a query parameter", "GET", "/kinds?q=a&user=1", &[], THREE),
    ("its other value", "GET", "/kinds?q=a&user=2", &[], THREE),
    ("limit 1 from metadata", "GET", "/kinds?q=a&user=3", &[("x-limit", "1")], ONE),
    ("limit 0", "GET", "/kinds", &[("x-ban", "yes")], NONE),
    ("a shadow with limit 1", "GET", "/shadow", &[], ALL),
    ("a cost of 10, limit 21", "GET", "/cost", &[], THREE),
];

#[test]
fn requests_have_the_statuses_that_they_have_with_envoyproxy_ratelimit() {
    let gateway = Gateway::start();
    for (case, method, path, headers, expected) in CASES {
        assert_eq!(gateway.five(case, method, path, headers), expected, "{case}");
    }
}

#[test]
fn answers_have_the_headers_that_envoy_makes_of_the_limit() {
    let gateway = Gateway::start();
    let (_, head) = gateway.send("GET", "/plain", &[]);
    assert!(head.contains("\r\nx-ratelimit-limit: 3, 3;w=3600\r\n"), "{head}");
    assert!(head.contains("\r\nx-ratelimit-remaining: 2\r\n"), "{head}");
    assert_eq!([gateway.get("/plain"), gateway.get("/plain")], [200, 200]);
    let (status, head) = gateway.send("GET", "/plain", &[]);
    assert_eq!(status, 429);
    assert!(head.contains("\r\nx-ratelimit-remaining: 0\r\n"), "{head}");
}

/// A request checks with 0 hits, and its answer costs 10 of 21, even if the request was denied. Denied requests and shadows count.
#[test]
fn costs_denied_requests_and_shadows_are_counted() {
    let gateway = Gateway::start();
    for (path, counted) in [("cost", 50), ("plain", 5), ("shadow", 5)] {
        for _ in 0..5 {
            gateway.get(&format!("/{path}"));
        }
        // Envoy sends the cost of an answer after the answer.
        wait_until(path, || {
            let key = gateway.redis.key(path);
            gateway.redis.query::<u64>(&["GET", &key]) == counted
        });
    }
}
