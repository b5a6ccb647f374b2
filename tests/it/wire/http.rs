//! The HTTP endpoints.

use std::io::ErrorKind;

use tokio::net::TcpSocket;

use crate::support::{http::*, prelude::*, service::open_files};

fn post(service: &Service, body: &str) -> (u16, String, Value) {
    let (status, head, body) = service.exchange("POST", "/json", body.as_bytes());
    (status, head, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

#[test]
fn json_decides_like_grpc() {
    let service = Service::shop().start();
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"two"}]},{"entries":[]}]}"#;
    let (status, _, mut answer) = post(&service, body);
    let reset = answer["statuses"][0]["durationUntilReset"].take();
    assert!(reset.as_str().unwrap().trim_end_matches('s').parse::<u64>().unwrap() >= 1);
    assert_eq!(status, 200);
    assert_eq!(
        answer,
        json!({ "overallCode": "OK", "statuses": [
            {
                "code": "OK",
                "currentLimit": { "requestsPerUnit": 2, "unit": "YEAR" },
                "limitRemaining": 1,
                "durationUntilReset": null,
            },
            { "code": "OK" },
        ]})
    );

    post(&service, body);
    let (status, head, answer) = post(&service, body);
    assert_eq!((status, answer["overallCode"].as_str()), (429, Some("OVER_LIMIT")));
    assert!(head.contains("retry-after: "), "{head}");
}

#[test]
fn json_reads_names_in_both_cases_and_numbers_as_strings() {
    let service = Service::shop().start();
    for (hits, left) in [
        (r#""hitsAddend": 1"#, 9),
        (r#""hits_addend": "1""#, 8),
        (r#""hitsAddend": 1.0"#, 7),
        (r#""hitsAddend": null"#, 6),
        (r#""hitsAddend": "2", "isNegativeHits": true"#, 8),
        (r#""hitsAddend": 0"#, 8),
        (r#""limit": {"requestsPerUnit": 20, "unit": "YEAR", "unit_multiplier": "1"}"#, 17),
    ] {
        let entries = r#""entries":[{"key":"user","value":"a"}]"#;
        let (status, _, answer) =
            post(&service, &format!(r#"{{"domain":"shop","descriptors":[{{{entries},{hits}}}]}}"#));
        assert_eq!(
            (status, &answer["statuses"][0]["limitRemaining"]),
            (200, &json!(left)),
            "{hits}"
        );
    }
}

#[test]
fn json_needs_post_and_a_body_within_the_bound() {
    let service = Service::shop().start();
    let (status, head, _) = service.exchange("GET", "/json", b"");
    assert_eq!(status, 405);
    assert!(head.contains("allow: post"), "{head}");
    let (status, ..) = service.exchange("POST", "/json", &vec![b' '; (4 << 20) + 1]);
    assert_eq!(status, 413);
}

#[test]
fn json_answers_503_if_the_store_does_not_answer() {
    let redis = Redis::absent();
    let service = Service::shop().on(&redis.url()).flags(&["--decision-budget", "20ms"]).start();
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    let (status, _, answer) = post(&service, body);
    assert_eq!(status, 503);
    assert_eq!(answer["error"]["code"], "UNAVAILABLE");
}

#[test]
fn a_web_page_can_neither_charge_nor_refund() {
    let service = Service::shop().start();
    assert_eq!(charge_and_refund(&service, &[]), "200");
    assert_eq!(charge_and_refund(&service, &["sec-fetch-site: none"]), "200");
    for page in [
        "origin: http://evil.example",
        "origin: null",
        "sec-fetch-site: cross-site",
        "sec-fetch-site: same-site",
        "sec-fetch-site: same-origin",
    ] {
        assert_eq!(charge_and_refund(&service, &[page]), "403", "{page}");
    }
}

/// The status that both a charge and its refund get.
fn charge_and_refund(service: &Service, headers: &[&str]) -> String {
    let host = ["host: shop.example", "content-type: text/plain"];
    let refund = CALL.replace("]}]}", r#"],"hitsAddend":1,"isNegativeHits":true}]}"#);
    let statuses = [CALL, refund.as_str()].map(|body| {
        status(service.http, "POST /json HTTP/1.1", &[&host[..], headers].concat(), body)
    });
    assert_eq!(statuses[0], statuses[1]);
    statuses[0].clone()
}

#[test]
fn the_admin_address_refuses_web_pages_and_host_names() {
    let service = Service::shop().start();
    let (port, own) = (service.admin.port(), format!("host: {}", service.admin));
    assert_eq!(ask_admin(&service, &[&own]), "200");
    assert_eq!(ask_admin(&service, &[&own, "sec-fetch-site: none"]), "200");
    // With port forwarding, the port in `Host` differs.
    let names = ["localhost", "localhost:16070", "LOCALHOST:1"];
    let addresses = ["127.0.0.1", "10.0.0.1:80", "[::1]", "[::1]:6070", "::1"];
    for host in names.into_iter().chain(addresses) {
        assert_eq!(ask_admin(&service, &[&format!("host: {host}")]), "200", "{host}");
    }
    let name = &*format!("evil.example:{port}");
    let names = ["evil.example", name, "localhost.evil.example", "a.localhost"];
    let malformed = ["", ":6070", "127.0.0.1.evil.example", "127.0.0.1:x", "[evil]:1"];
    for host in names.into_iter().chain(malformed).chain(["localhost:99999"]) {
        assert_eq!(ask_admin(&service, &[&format!("host: {host}")]), "403", "{host}");
    }
    for page in ["origin: http://evil.example", "sec-fetch-site: cross-site"] {
        assert_eq!(ask_admin(&service, &[&own, page]), "403", "{page}");
    }
    let without = "GET /counters?domain=shop&descriptor=user%3Da HTTP/1.0";
    assert_eq!(status(service.admin, without, &[], ""), "200", "browsers never omit `Host`");
}

#[test]
fn health_follows_readiness_but_liveness_does_not() {
    let redis = Redis::absent();
    let starting = Service::shop().on(&redis.url()).start();
    let get = |path| {
        let (status, _, body) = starting.exchange("GET", path, b"");
        (status, body)
    };
    assert_eq!(get("/healthz"), (200, "OK".into()));
    assert_eq!(get("/readyz"), (503, "not ready".into()));
    assert_eq!(get("/healthcheck"), (500, String::new()));

    let ready = Service::shop().ready();
    assert_eq!(ready.get("/readyz"), "OK");
    assert_eq!(ready.get("/healthcheck"), "OK");
}

#[test]
fn rules_in_force_are_shown_with_their_location() {
    let service = Service::shop().start();
    let rules: Value = serde_json::from_str(&service.get("/rules")).unwrap();
    let first = &rules["domains"][0];
    assert_eq!(first["domain"], "shop");
    assert_eq!(first["rules"][3]["path"], "user");
    assert_eq!(first["rules"][3]["limit"], "10 per year");
    assert!(first["rules"][3]["written_at"].as_str().unwrap().ends_with("rules.yaml:4"));
}

/// So few connections that a test can hold all of them.
const CROWD: &[&str] = &["--max-connections", "256"];

fn connect(service: &Service, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(service.http).unwrap();
    stream.write_all(sent.as_bytes()).unwrap();
    stream
}

/// Asks each probe on a connection of its own. Idle and slow clients are closed after 10 s: tests check that most are still
/// open when the probes are answered.
#[track_caller]
fn probes_are_answered(service: &Service) {
    for probe in ["/healthz", "/readyz", "/healthcheck", "/metrics"] {
        assert_eq!(service.exchange("GET", probe, b"").0, 200, "{probe}");
    }
}

/// Whether the client still waits: neither an answer nor the end of the connection has arrived.
fn still_waits(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn head(length: usize) -> String {
    format!("POST /json HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n")
}

/// Reads the answer to a call, after which the connection stays open.
fn answer(stream: &mut TcpStream) -> String {
    let (mut answer, mut bytes) = (String::new(), [0; 1024]);
    while !answer.ends_with("}]}") {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "closed after `{answer}`");
        answer += std::str::from_utf8(&bytes[..count]).unwrap();
    }
    answer
}

#[test]
fn probes_are_answered_while_idle_clients_hold_all_connections() {
    let service = Service::shop().flags(CROWD).ready();
    let call = head(CALL.len()) + CALL;
    // One after the other: one that is closed for another has its answer.
    let keep = |_| {
        let mut client = connect(&service, &call);
        assert!(answer(&mut client).starts_with("HTTP/1.1 200 "));
        client
    };
    let mut kept: Vec<_> = (0..255).map(keep).collect();
    let _silent = connect(&service, "");
    probes_are_answered(&service);
    let last = kept.last_mut().unwrap();
    last.write_all(call.as_bytes()).unwrap();
    assert!(answer(last).starts_with("HTTP/1.1 200 "));
}

/// So that the next request of the client does not meet a connection that is closed for others.
#[test]
fn while_all_connections_are_taken_an_answer_asks_its_client_to_close() {
    let service = Service::shop().flags(&["--max-connections", "1"]).ready();
    let call = head(CALL.len()) + CALL;
    wait_until("it is asked to close", || {
        let mut client = connect(&service, &call);
        let is_asked = answer(&mut client).contains("connection: close");
        is_asked && rest(client).is_empty()
    });
}

/// The others have waited longer.
#[test]
fn while_all_connections_are_taken_a_client_that_asks_often_keeps_its_own() {
    let service = Service::shop().flags(&["--max-connections", "3"]).ready();
    let call = head(CALL.len()) + CALL;
    let ask = |client: &mut TcpStream| {
        client.write_all(call.as_bytes()).unwrap();
        let answer = answer(client);
        assert!(!answer.contains("connection: close"), "{answer}");
    };
    let [first, _second] = [(); 2].map(|()| {
        let mut client = connect(&service, "");
        ask(&mut client);
        client
    });
    let mut often = connect(&service, "");
    while still_waits(&first) {
        ask(&mut often);
    }
}

#[test]
fn probes_are_answered_while_silent_clients_hold_all_connections() {
    let service = Service::shop().flags(CROWD).ready();
    let silent: Vec<_> = (0..300).map(|_| connect(&service, "")).collect();
    probes_are_answered(&service);
    let open = silent.iter().filter(|client| still_waits(client)).count();
    assert!(open > 200, "{open} of 300 connections are still open");
}

#[test]
fn probes_are_answered_while_clients_are_half_way_through_a_body() {
    let service = Service::shop().flags(CROWD).ready();
    let half: Vec<_> = (0..300).map(|_| connect(&service, &(head(9) + "{"))).collect();
    probes_are_answered(&service);
    let read = half.iter().filter(|client| still_waits(client)).count();
    assert!(read > 100, "{read} of 300 bodies are still awaited");
}

#[test]
fn probes_are_answered_while_a_long_body_is_read() {
    let service = Service::shop().environment(&[("TOKIO_WORKER_THREADS", "1")]).ready();
    let body = format!(r#"{{"domain":"shop","descriptors":[{}{{}}]}}"#, "{},".repeat(1_300_000));
    let (begin, end) = body.split_at(body.len() - 1);
    let mut client = connect(&service, &(head(body.len()) + begin));
    client.write_all(end.as_bytes()).unwrap();
    let mut probes = 0;
    while still_waits(&client) {
        assert_eq!(service.get("/healthz"), "OK");
        probes += 1;
    }
    assert!(probes > 20, "{probes} probes are answered meanwhile");
}

#[test]
fn bodies_that_do_not_arrive_keep_no_other_request_out() {
    let mut service = Service::shop().ready();
    let half: Vec<_> = (0..200).map(|_| connect(&service, &(head(9) + "{"))).collect();
    wait_until("they are read", || open_files(service.process().0.id()) > 200);
    assert_eq!(post(&service, CALL).0, 200);
    assert!(half.iter().all(still_waits), "none was closed for it");
}

/// Rules whose report has about 2,500 bytes for each of this number.
fn long_rules(count: usize) -> String {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for level in 0..10 {
        let indent = " ".repeat(2 * level);
        rules += &format!("{indent}- key: {}\n{indent}  descriptors:\n", "k".repeat(250));
    }
    for number in 0..count {
        rules += &format!("{:20}- {{ key: k{number}, rate_limit: {{ unlimited: true }} }}\n", "");
    }
    rules
}

#[test]
fn probes_are_answered_while_others_wait_for_reports() {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for number in 0..5000 {
        rules += &format!("- {{ key: k{number}, rate_limit: {{ unlimited: true }} }}\n");
    }
    let service = Service::with(&rules).ready();
    let asked = "GET /rules HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let reports: Vec<_> = (0..32).map(|_| connect(&service, asked)).collect();
    let mut probes = 0;
    while reports.iter().any(still_waits) {
        assert_eq!(service.get("/healthz"), "OK");
        probes += 1;
    }
    assert!(probes > 320, "{probes} probes are answered during 32 reports");
}

#[test]
fn clients_that_do_not_read_share_a_report_are_closed_and_keep_nobody_from_others() {
    // More than the system takes from a client that does not read.
    let rules = long_rules(4000);
    let mut service = Service::with(&rules).ready();
    let resident = |service: &Service| service.metric("process_resident_memory_bytes ");
    let length = service.exchange("GET", "/rules", b"").2.len();
    let (files, memory) = (open_files(service.process().0.id()), resident(&service));
    let asked = "GET /rules HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let mut clients: Vec<_> = (0..60).map(|_| connect(&service, asked)).collect();
    for client in &mut clients {
        let mut begun = [0; 12];
        client.read_exact(&mut begun).unwrap();
        assert_eq!(&begun, b"HTTP/1.1 200");
    }
    let each = (resident(&service) - memory) / length as f64 / 60.0;
    assert!(each < 0.3, "each takes {each} of {length} bytes");
    wait_until("their connections end", || open_files(service.process().0.id()) <= files);
    drop(clients);
}

#[tokio::test]
async fn a_client_that_does_not_read_answers_without_a_body_is_closed() {
    let mut service = Service::shop().flags(&["--headers", "both"]).ready();
    let files = open_files(service.process().0.id());
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    let mut client = socket.connect(service.http).await.unwrap().into_std().unwrap();
    client.set_nonblocking(false).unwrap();
    client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let checks = "POST /check?domain=shop&d=user=a HTTP/1.1\r\nhost: h\r\n\r\n".repeat(100);
    let sent = (0..500).take_while(|_| client.write_all(checks.as_bytes()).is_ok()).count();
    assert!(sent > 0);
    wait_until("its connection ends", || open_files(service.process().0.id()) <= files);
}

#[test]
fn a_client_in_the_middle_of_a_request_is_not_closed_for_others() {
    let service = Service::shop().ready();
    let mut slow = connect(&service, &(head(CALL.len()) + &CALL[..9]));
    let silent: Vec<_> = (0..600).map(|_| connect(&service, "")).collect();
    wait_until("others are closed", || !still_waits(&silent[0]));
    slow.write_all(&CALL.as_bytes()[9..]).unwrap();
    assert!(answer(&mut slow).starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn idle_and_slow_connections_are_bounded_and_closed() {
    let mut service = Service::shop().flags(CROWD).ready();
    let slow_head = connect(&service, "GET /healthz HTTP/1.1\r\nhost: test\r\n");
    let slow_body = connect(
        &service,
        "POST /json HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\nconnection: close\r\n\r\n{",
    );
    let idle: Vec<_> = (0..600).map(|_| connect(&service, "")).collect();

    let service_id = service.process().0.id();
    wait_until("the bound is reached", || open_files(service_id) >= 256);
    assert_eq!(service.answer("user=a").await, "OK: OK 9/10 YEAR");
    let open = open_files(service_id);
    assert!(open < 300, "{open} open files");

    assert_eq!(rest(slow_head), "", "closed");
    assert!(rest(slow_body).starts_with("HTTP/1.1 408 "));
    drop(idle);
    assert_eq!(service.get("/healthz"), "OK", "for later clients");
}

#[test]
fn a_connection_serves_several_requests_and_ends_with_the_service() {
    let mut service = Service::shop().ready();
    let mut kept = connect(&service, "");
    for _ in 0..2 {
        kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\nOK") {
            let mut bytes = [0; 256];
            let count = kept.read(&mut bytes).unwrap();
            assert!(count > 0, "closed after {answer}");
            answer += std::str::from_utf8(&bytes[..count]).unwrap();
        }
    }
    let idle = connect(&service, "");
    service.end();
    assert_eq!((rest(kept), rest(idle)), (String::new(), String::new()));
    assert!(!service.log().contains("did not end"), "{}", service.log());
}

#[test]
fn an_empty_query_is_no_parameter() {
    let service = Service::shop().start();
    for (method, path, body) in
        [("GET", "/top?", ""), ("GET", "/log?", ""), ("POST", "/explain?", CALL)]
    {
        assert_eq!(
            service.exchange_at(service.admin, method, path, body.as_bytes()).0,
            200,
            "{path}"
        );
    }
}

#[test]
fn endpoints_of_others_ignore_parameters_as_theirs_do() {
    let service = Service::shop().flags(&["--metrics-compat", "envoyproxy"]).ready();
    for path in ["/metrics", "/healthz", "/readyz", "/healthcheck"] {
        assert_eq!(service.exchange("GET", &format!("{path}?x=y"), b"").0, 200, "{path}");
    }
    assert_eq!(service.exchange("POST", "/json?x=y", br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#).0, 200);
    assert_eq!(service.admin("GET", "/stats?x=y").0, 200);
}
