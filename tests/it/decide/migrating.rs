//! What answers have beside their codes, as users of envoyproxy/ratelimit expect: headers and metadata; and the keys in Redis.
//! Which calls pass is in `decisions/matching.txt` and `decisions/quotas.txt`.

mod differences;

use crate::support::{
    prelude::*,
    service::{json_of, of_bytes},
    stores::one,
};

async fn ask(service: &Service, call: &str) -> RateLimitResponse {
    service.ask(shop(call)).await.unwrap()
}

/// The dynamic metadata of an answer, in JSON.
async fn metadata(service: &Service, call: RateLimitRequest) -> String {
    json_of(&service.ask(call).await.unwrap().dynamic_metadata.unwrap()).to_string()
}

#[tokio::test]
async fn keys_begin_with_the_prefix_with_scripts_and_without() {
    for scripts in ["on", "off"] {
        let redis = Redis::start();
        let flags = &["--key-prefix", "team-a:", "--redis-scripts", scripts];
        let service = Service::shop().on(&redis.url()).flags(flags).start();
        assert_eq!(service.answer("user=x").await, "OK: OK 9/10 YEAR");
        assert_eq!(service.answer("user=x").await, "OK: OK 8/10 YEAR");
        assert!(redis.key("user").starts_with("team-a:tk1:fw:31536000s:{shop|user=x}:"));
        let path = "/counters/reset?domain=shop&descriptor=user%3Dx";
        assert!(service.exchange_at(service.admin, "POST", path, b"").2.contains("\"used\":2"));
        // The record of the reset, and its time; and the keys of the digest in the answer.
        let kept = ["team-a:tk1:op:{audit}", "team-a:tk1:rs:fw:31536000s:{shop|user=x}"];
        let (of_digests, keys): (Vec<_>, Vec<_>) =
            redis.keys().into_iter().partition(|key| key.contains("{hold-key-"));
        assert_eq!(keys, kept);
        assert!(of_digests.iter().all(|key| key.starts_with("team-a:tk1:op:")), "{of_digests:?}");
    }
}

/// Which is WEEK in envoyproxy/ratelimit (`decisions/matching.txt`).
#[tokio::test]
async fn a_limit_of_a_call_with_unit_7_is_shown_as_weekly() {
    let service = Service::shop().flags(&["--dynamic-metadata"]).start();
    let echo = metadata(&service, shop("any=x(;2/7) any=x(;2/8)")).await;
    assert!(echo.contains(r#""limit":"requests_per_unit:2 unit:WEEK""#), "{echo}");
    assert!(echo.contains(r#""limit":"requests_per_unit:2 unit:8""#), "{echo}");
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"any","value":"y"}],"limit":{"requestsPerUnit":2,"unit":7}}]}"#;
    assert_eq!(service.post("/json", body)["statuses"][0]["currentLimit"]["unit"], "WEEK");
}

/// The headers of an answer, one a line, with N for each number over 1000: the seconds until the year ends
/// differ from run to run.
fn headers(answer: &RateLimitResponse) -> String {
    let mut lines = Vec::new();
    for header in &answer.response_headers_to_add {
        assert!(header.raw_value.is_empty(), "Envoy ignores raw values");
        let mut value = String::new();
        for word in header.value.split_inclusive(['=', ';', ',']) {
            let (number, end) = word.split_at(word.trim_end_matches(['=', ';', ',']).len());
            let is_large = number.parse::<u32>().is_ok_and(|number| number > 1000);
            value += if is_large { "N" } else { number };
            value += end;
        }
        lines.push(format!("{}: {value}", header.key));
    }
    lines.join("\n")
}

#[tokio::test]
async fn headers_are_the_classic_ones_those_of_the_draft_both_or_none() {
    let rules = "
domain: shop
descriptors:
  - { key: one, rate_limit: { name: 'a \"name\"', unit: year, requests_per_unit: 1 } }
  - { key: nine, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: tokens, rate_limit: { unit: year, requests_per_unit: 9007199254740991, hold: 10m } }
";
    let both = "nine=x one=x";
    let start = |flags| Service::with(rules).flags(flags).start();
    let none = start(&[]);
    assert_eq!(headers(&ask(&none, both).await), "");

    let classic = start(&["--headers", "ratelimit", "--header-limit", "X-Limit"]);
    let expected = "X-Limit: 1\nRateLimit-Remaining: 0\nRateLimit-Reset: N";
    assert_eq!(headers(&ask(&classic, both).await), expected);
    assert_eq!(headers(&ask(&classic, both).await), format!("{expected}\nRetry-After: N"));
    assert_eq!(headers(&ask(&classic, "unknown=x").await), "");

    let draft = start(&["--headers", "draft"]);
    let expected = "RateLimit-Policy: \"nine\";q=9;w=N, \"a \\\"name\\\"\";q=1;w=N\n\
                RateLimit: \"nine\";r=8;t=N, \"a \\\"name\\\"\";r=0;t=N";
    assert_eq!(headers(&ask(&draft, both).await).replace("w=31536000", "w=N"), expected);
    // Longer numbers are no Integers of structured fields, and a quota without a unit is of requests.
    let answer = ask(&draft, "tokens=x").await;
    let [policy, usage] = [0, 1].map(|header| &*answer.response_headers_to_add[header].value);
    assert_eq!(policy, r#""tokens";q=999999999999999;qu="hits";w=31536000"#);
    assert!(usage.starts_with(r#""tokens";r=999999999999999;t="#), "{usage}");

    let everything = start(&["--headers", "both"]);
    assert_eq!(headers(&ask(&everything, both).await).lines().count(), 5);
}

/// A shadow limit that is over shows it to the service behind Envoy, a denial to nobody.
#[tokio::test]
async fn a_request_that_passes_gets_the_limit_and_what_is_left() {
    let rules = "
domain: shop
descriptors:
  - { key: one, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let flags = &["--request-headers", "x-limit,x-left,x-reset"];
    let service = Service::with(rules).flags(flags).start();
    for (key, second) in [("one", 0), ("shadow", 3)] {
        for expected in [3, second] {
            let answer = ask(&service, &format!("{key}=x")).await;
            let headers = &answer.request_headers_to_add;
            assert_eq!(headers.len(), expected, "{key}: {headers:?}");
            let names = headers.iter().zip(["x-limit", "x-left", "x-reset"]);
            assert!(names.into_iter().all(|(header, name)| header.key == name), "{headers:?}");
            if expected == 3 {
                assert_eq!((&*headers[0].value, &*headers[1].value), ("1", "0"));
            }
            assert_eq!(answer.response_headers_to_add, []);
        }
    }
    assert_eq!(ask(&service, "unknown=x").await.request_headers_to_add, []);
}

#[tokio::test]
async fn the_draft_lists_every_limit_of_a_rule_whichever_is_the_tightest() {
    let rules = "
domain: shop
descriptors:
  - key: several
    rate_limits:
      - { unit: year, requests_per_unit: 2 }
      - { unit: week, requests_per_unit: 9 }
      - { name: mine, unit: month, requests_per_unit: 5 }
";
    let flags = &["--headers", "both", "--denied-body", "problem"];
    let service = Service::with(rules).flags(flags).start();
    let mut answer = RateLimitResponse::default();
    for remaining in [[1, 8, 4], [0, 7, 3], [0, 7, 3]] {
        answer = ask(&service, "several=x").await;
        let shown = headers(&answer);
        let policies = r#"RateLimit-Policy: "several: 2 per year";q=2;w=N, "several: 9 per week";q=9;w=N, "mine";q=5;w=N"#;
        assert!(shown.contains(policies), "{shown}");
        assert!(shown.starts_with("RateLimit-Limit: 2\n"), "the tightest: {shown}");
        for (name, remaining) in
            ["several: 2 per year", "several: 9 per week", "mine"].iter().zip(remaining)
        {
            assert!(shown.contains(&format!("\"{name}\";r={remaining};t=")), "{name}: {shown}");
        }
    }
    let problem = String::from_utf8(answer.raw_body).unwrap();
    assert!(problem.contains(r#""violated-policies":["several: 2 per year"]"#), "{problem}");
}

#[tokio::test]
async fn the_draft_lists_at_most_sixteen_limits_the_tightest_among_them() {
    let limit = |number: usize| {
        format!(
            "  - {{ key: k{number}, rate_limit: {{ unit: year, requests_per_unit: {} }} }}\n",
            60 - number
        )
    };
    let rules = format!("domain: shop\ndescriptors:\n{}", (0..20).map(limit).collect::<String>());
    let service = Service::with(&rules).flags(&["--headers", "draft"]).start();
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let answer = ask(&service, &(keys.join("=x ") + "=x")).await;
    for header in &answer.response_headers_to_add {
        let names: Vec<&str> = header.value.split('"').skip(1).step_by(2).collect();
        let expected: Vec<&str> = keys[4..].iter().rev().map(String::as_str).collect();
        assert_eq!(names, expected, "{header:?}");
    }
}

#[tokio::test]
async fn dynamic_metadata_has_the_request_and_the_metadata_of_rules_that_passed() {
    let rules = "
domain: shop
descriptors:
  - key: one
    metadata: { tier: gold, nested: { a: 1 } }
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: nine
    detailed_metric: true
    metadata: { tier: silver, nested: { a: 2, b: [true, null, text] } }
    rate_limit: { unit: year, requests_per_unit: 9 }
";
    let service = Service::with(rules).flags(&["--dynamic-metadata"]).start();
    let call = "one=a\r\nb(1) nine=x";
    let first = metadata(&service, shop(call)).await;
    let expected = r#"{"descriptors":[{"entries":["one=a\\x0d\\x0ab"],"hitsAddend":1},{"entries":["nine=x"]}],"domain":"shop","metadata":{"nested":{"a":1,"b":[true,null,"text"]},"tier":"gold"}}"#;
    assert_eq!(first, expected);
    // The first descriptor is over now, so its metadata is left out.
    let second = metadata(&service, shop(call)).await;
    let silver = r#""metadata":{"nested":{"a":2,"b":[true,null,"text"]},"tier":"silver"}}"#;
    assert!(second.ends_with(silver), "{second}");
}

#[tokio::test]
async fn a_domain_is_printable_in_dynamic_metadata() {
    let service = Service::shop().flags(&["--dynamic-metadata"]).start();
    let echo = metadata(&service, request("shop\r\n\x1b[31m", vec![one("user", "x")])).await;
    assert!(echo.contains(r#""domain":"shop\\x0d\\x0a\\x1b[31m""#), "{echo}");
}

/// A header of Envoy's default maximum in each of 64 descriptors. In the answer each byte would take four.
#[tokio::test]
async fn dynamic_metadata_repeats_the_start_of_values_and_so_much_of_a_call() {
    let service = Service::shop().flags(&["--dynamic-metadata"]).start();
    for (value, start) in [(0xff, r"\xff"), (b'\n', r"\x0a"), (b'"', "\""), (b'v', "v")] {
        let value = [value; 59_000];
        let one = of_bytes(&[(b"user", &value)]);
        let echo = metadata(&service, request("shop", vec![one.clone()])).await;
        let entry = json!([format!("user={}…", start.repeat(256 / start.len()))]);
        assert!(echo.contains(&format!("\"entries\":{entry}")), "{echo}");

        let all = request("shop", vec![hits(one, 0); 64]);
        let answer = service.ask(all).await.unwrap();
        assert_eq!(answer.statuses.len(), 64);
        let bytes = answer.encoded_len();
        assert!(bytes < 32 << 10, "{bytes} bytes for {start}");
    }
    let short: Vec<_> = (0..64).map(|number| format!("user={number:0>200}")).collect();
    let echo = metadata(&service, shop(&short.join(" "))).await;
    assert_eq!(echo.matches("user=0").count(), 64, "all of a usual call");
    let key = "k".repeat(1_000_000);
    let echo = metadata(&service, request(&"d".repeat(1_000_000), vec![one(&key, "x")])).await;
    assert!(echo.contains(&format!("[\"{}…=x\"]", &key[..256])), "{echo}");
    assert!(echo.len() < 1_000);
}

#[tokio::test]
async fn the_json_answer_has_every_field_of_the_message() {
    let rules = "
domain: shop
descriptors:
  - { key: one, metadata: { tier: gold }, rate_limit: { name: free, unit: year, requests_per_unit: 1 } }
";
    let flags = &["--headers", "ratelimit", "--dynamic-metadata"];
    let service = Service::with(rules).flags(flags).start();
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"one","value":"x"}]}]}"#;
    let answer = service.post("/json", body);
    assert_eq!(answer["statuses"][0]["currentLimit"]["name"], "free");
    assert_eq!(answer["responseHeadersToAdd"][1]["key"], "RateLimit-Remaining");
    assert_eq!(answer["responseHeadersToAdd"][1]["value"], "0");
    assert_eq!(answer["dynamicMetadata"]["metadata"]["tier"], "gold");
    assert_eq!(answer["dynamicMetadata"]["descriptors"][0]["entries"][0], "one=x");
}
