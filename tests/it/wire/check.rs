//! `/check`: a status for proxies that need no more, from the query and the headers of a request.

use crate::support::{http::status, prelude::*, service::exchange_with};

const RULES: &str = "
domain: web
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2 } }
  - key: path
    value: /login
    descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1 } }]
  - { key: closed, rate_limit: { unit: year, requests_per_unit: 0 } }
";

fn service() -> Service {
    Service::with(RULES).flags(&["--headers", "draft"]).start()
}

/// The status and the head of the answer, whose body is empty unless it explains a refusal.
#[track_caller]
fn check(service: &Service, query: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let path = format!("/check?{query}");
    let headers = [&[("x-forwarded-method", "PUT")], headers].concat();
    let (status, head, body) = exchange_with(service.http, "GET", &path, &headers, b"");
    assert_eq!(body, "", "{query}");
    (status, head)
}

#[test]
fn the_status_says_whether_a_request_may_pass_and_the_headers_are_for_its_client() {
    let service = service();
    let [one, two, three] = [(); 3].map(|()| check(&service, "domain=web&d=user=alice", &[]));
    assert_eq!([one.0, two.0, three.0], [200, 200, 429]);
    assert!(one.1.contains("ratelimit: \"user\";r=1;t="), "{}", one.1);
    assert!(!one.1.contains("retry-after"), "{}", one.1);
    assert!(three.1.contains("ratelimit-policy: \"user\";q=2;w=31536000"), "{}", three.1);
    assert_eq!(three.1.matches("retry-after: ").count(), 1, "{}", three.1);
}

/// Of several limits, the highest tier gives a header its value.
#[test]
fn an_answer_has_the_headers_of_the_highest_tier_that_is_reached() {
    let rules = "
domain: web
descriptors:
  - key: user
    rate_limits:
      - unit: year
        requests_per_unit: 4
        tiers: [{ at: 50, request_headers: { x-tier: half, x-of: year } }, { at: 75, request_headers: { x-tier: most } }]
      - unit: day
        requests_per_unit: 5
        algorithm: token_bucket
        tiers: [{ at: 60, request_headers: { x-tier: '60' } }]
";
    let service = Service::with(rules).start();
    let tiers = || {
        let (status, head) = check(&service, "domain=web&d=user=alice", &[]);
        let headers = head.lines().filter(|line| line.starts_with("x-"));
        (status, headers.collect::<Vec<_>>().join(", "))
    };
    assert_eq!(tiers(), (200, String::new()));
    assert_eq!(tiers(), (200, "x-tier: half, x-of: year".to_owned()));
    assert_eq!(tiers(), (200, "x-tier: most".to_owned()));
    let body = r#"{"domain":"web","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;
    let json = service.post("/json", body);
    let expected = serde_json::json!([{ "key": "x-tier", "value": "most" }]);
    assert_eq!(json["requestHeadersToAdd"], expected, "{json}");
    // A request that is denied goes nowhere.
    assert_eq!(tiers(), (429, String::new()));
}

#[test]
fn an_answer_to_a_request_whose_body_is_not_read_says_that_the_connection_ends() {
    let service = service();
    let head = "POST /check?domain=web&d=user=a HTTP/1.1\r\nhost: h\r\n";
    for (body, ends) in [("content-length: 0\r\n\r\n", false), ("content-length: 9\r\n\r\n", true)]
    {
        let mut client = TcpStream::connect(service.http).unwrap();
        client.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let (mut answer, mut byte) = (String::new(), [0]);
        while !answer.ends_with("\r\n\r\n") && client.read(&mut byte).unwrap() > 0 {
            answer.push(char::from(byte[0]));
        }
        assert_eq!(answer.contains("connection: close"), ends, "{answer}");
    }
}

#[test]
fn a_value_that_begins_with_an_at_sign_comes_from_a_header() {
    let service = service();
    let query = "domain=web&d=path=@x-forwarded-uri,user=@X-User";
    let by = |user| check(&service, query, &[("x-forwarded-uri", "/login"), ("x-user", user)]).0;
    assert_eq!([by("alice"), by("alice"), by("bob,carol"), by("bob,carol")], [200, 429, 200, 429]);
    // Two headers count as one with a comma, as in HTTP.
    let headers = [("x-forwarded-uri", "/login"), ("x-user", "bob"), ("x-user", "carol")];
    assert_eq!(check(&service, query, &headers).0, 429);
    // Without the header, all share the counter of an empty value.
    let anonymous = || check(&service, "domain=web&d=user=@x-user", &[]).0;
    assert_eq!([anonymous(), anonymous(), anonymous()], [200, 200, 429]);
    let named = |query| check(&service, query, &[]).0;
    assert_eq!(named("domain=web&d=user=@@x-user&hits=2"), 200);
    assert_eq!(named("domain=web&d=user=@@x-user"), 429);
}

/// Which calls pass is in the tables of `decide/decisions.rs`.
#[test]
fn a_denial_has_the_status_that_is_asked_for() {
    let service = service();
    for deny in [403, 503] {
        let query = format!("domain=web&d=closed=yes&deny={deny}");
        assert_eq!(check(&service, &query, &[]).0, deny);
    }
}

/// The answers to a denial and to a ban, of a service with these flags.
fn denials(flags: &[&str]) -> [(u16, String, String); 2] {
    let service = Service::with(RULES).flags(flags).start();
    ["d=path=/login,user=a&hits=2", "d=closed=yes"].map(|query| {
        let path = format!("/check?domain=web&{query}");
        exchange_with(service.http, "POST", &path, &[], b"")
    })
}

#[test]
fn a_denial_names_its_rule_and_the_seconds_until_its_reset_on_request() {
    let [(status, head, _), (_, banned, _)] = denials(&["--rule-header"]);
    assert_eq!(status, 429);
    assert!(head.contains("x-ratelimit-rule: \"path=/login|user\";t="), "{head}");
    assert!(banned.contains("x-ratelimit-rule: \"closed\";t="), "{banned}");
    assert!(!head.contains("ratelimit-policy"), "{head}");
    let service = Service::with(RULES).flags(&["--rule-header"]).start();
    let (status, head) = check(&service, "domain=web&d=user=alice", &[]);
    assert!(status == 200 && !head.contains("x-ratelimit-rule"), "{head}");
    // Its domain denies a call without a tenant, and no rule does.
    let rules = format!("{RULES}\nrequire: [tenant]\n");
    let service = Service::with(&rules).flags(&["--rule-header"]).start();
    let (status, head) = check(&service, "domain=web&d=user=alice", &[]);
    assert!(status == 429 && !head.contains("x-ratelimit-rule"), "{head}");
}

#[test]
fn a_denial_has_the_body_that_clients_of_its_api_read() {
    let [denied, banned] = denials(&["--denied-body", "problem"]);
    assert!(denied.1.contains("content-type: application/problem+json"), "{}", denied.1);
    let types = "https://iana.org/assignments/http-problem-types#";
    let problem = serde_json::json!({
        "type": format!("{types}quota-exceeded"),
        "title": "The quota is exceeded",
        "violated-policies": ["path=/login|user"],
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&denied.2).unwrap(), problem);
    assert!(banned.2.contains(&format!("{types}abnormal-usage-detected")), "{}", banned.2);

    let [denied, banned] = denials(&["--denied-body", "openai"]);
    assert!(denied.1.contains("content-type: application/json"), "{}", denied.1);
    let error = &serde_json::from_str::<serde_json::Value>(&denied.2).unwrap()["error"];
    assert_eq!(error["code"], "rate_limit_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("Rate limit reached: path=/login|user, 1 per year. Try again in "),
        "{message}"
    );
    assert!(banned.2.contains("Calls such as this one are not admitted: closed"), "{}", banned.2);
}

#[test]
fn a_limit_may_have_a_body_of_its_own_for_its_denials() {
    let rules = "
domain: web
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 0, denied_body: openai } }
  - { key: page, rate_limit: { unit: year, requests_per_unit: 0, denied_body: none } }
  - { key: path, rate_limit: { unit: year, requests_per_unit: 0 } }
";
    for (flags, expected) in [
        (&[][..], ["application/json", "", ""]),
        (&["--denied-body", "problem"], ["application/json", "", "application/problem+json"]),
    ] {
        let service = Service::with(rules).flags(flags).start();
        let found = ["user", "page", "path"].map(|key| {
            let path = format!("/check?domain=web&d={key}=x");
            let (status, head, _) = exchange_with(service.http, "POST", &path, &[], b"");
            assert_eq!(status, 429);
            let head = head.to_lowercase();
            let line = head.lines().find_map(|line| line.strip_prefix("content-type: "));
            line.unwrap_or_default().to_owned()
        });
        assert_eq!(found, expected, "{flags:?}");
    }
}

#[test]
fn a_failure_is_answered_as_asked() {
    let gone = nobody();
    let store = format!("redis://{gone}");
    let service = Service::with(RULES).on(&store).start();
    let ask = |query: &str| check(&service, &format!("domain=web&d=user=a&{query}"), &[]).0;
    assert_eq!(ask("on_failure=allow"), 200);
    assert_eq!(ask("on_failure=deny"), 429);
    assert_eq!(ask("on_failure=deny&deny=403"), 403);
    let (status, _, body) =
        exchange_with(service.http, "POST", "/check?domain=web&d=user=a", &[], b"");
    assert_eq!((status, body.contains("UNAVAILABLE")), (503, true), "{body}");
}

/// For an image of another origin, browsers send GET with neither of these headers, if the address has no TLS.
#[test]
fn a_web_page_cannot_check() {
    let service = service();
    let ask = |method, headers: &[&str]| {
        let request = format!("{method} /check?domain=web&d=user=a HTTP/1.1");
        status(service.http, &request, &[&["Host: a"], headers].concat(), "")
    };
    let forwarded = "X-Forwarded-Method: GET";
    for method in ["GET", "HEAD", "POST"] {
        for header in ["Origin: https://example.com", "Sec-Fetch-Site: same-origin"] {
            assert_eq!(ask(method, &[header, forwarded]), "403", "{method} with {header}");
        }
    }
    for method in ["GET", "HEAD"] {
        assert_eq!(ask(method, &["Referer: https://example.com/", "Accept: image/*"]), "403");
    }
    let allowed = [ask("GET", &[forwarded]), ask("POST", &[]), ask("HEAD", &[forwarded])];
    assert_eq!(allowed, ["200", "200", "429"], "nothing was charged before");
}

/// Two values that are no UTF-8, as an end user may choose them.
#[test]
fn values_keep_their_bytes() {
    let service = service();
    for user in ["%FF", "%FE", "%C3%28", "%EF%BF%BD"] {
        let query = format!("domain=web&d=user={user}");
        let statuses = [(); 3].map(|()| check(&service, &query, &[]).0);
        assert_eq!(statuses, [200, 200, 429], "{user}");
        let usage = service.get(&format!("/v1/usage?{query}"));
        assert!(usage.contains(r#""used":2"#), "{user}: {usage}");
        let counters = format!("/counters?domain=web&descriptor=user={user}");
        let (_, _, shown) = service.exchange_at(service.admin, "GET", &counters, b"");
        assert!(shown.contains(r#""used":2"#), "{user}: {shown}");
    }
    assert_eq!(check(&service, r"domain=web&d=user=\xff", &[]).0, 429, "the same bytes");
    let unused = service.get("/v1/usage?domain=web&d=user=%FD");
    assert!(unused.contains(r#""used":0"#), "{unused}");
    let (status, _, body) =
        exchange_with(service.http, "POST", "/check?domain=%FF&d=user=a", &[], b"");
    assert_eq!((status, body.contains("domain: must be UTF-8")), (400, true), "{body}");
}

#[test]
fn json_has_the_headers_of_the_answer_too() {
    let service = service();
    let body = r#"{"domain":"web","descriptors":[{"entries":[{"key":"closed","value":"x"}]}]}"#;
    let (status, head, _) = service.exchange("POST", "/json", body.as_bytes());
    assert_eq!(status, 429);
    assert!(head.contains("ratelimit: \"closed\";r=0;t="), "{head}");
    assert_eq!(head.matches("retry-after: ").count(), 1, "{head}");
}
