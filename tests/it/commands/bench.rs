//! The load generator, against a real service. The tests check its counts, never a speed.

use std::process::Output;

use crate::support::{prelude::*, redis_server::nobody};

/// Runs `tollkeeper bench` against `addr`.
fn bench(addr: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    let head = ["bench", "--addr", addr, "--domain", "shop"];
    let Output { status, stdout, stderr } = tollkeeper().args(head).args(flags).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Runs `tollkeeper bench --json` and checks that the counts of its report add up.
#[track_caller]
fn measure(service: &Service, flags: &[&str]) -> Value {
    // It ends after `--calls`, long before this duration.
    let flags = [&["--json", "--duration", "1h"], flags].concat();
    let (code, stdout, stderr) = bench(&service.grpc.to_string(), &flags);
    assert_eq!(stderr, "");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let errors: u64 = report["errors"].as_object().unwrap().values().map(number).sum();
    let decisions = number(&report["ok"]) + number(&report["over_limit"]);
    assert_eq!(number(&report["calls"]), decisions + errors, "{stdout}");
    assert_eq!(code, Some(i32::from(decisions == 0)));
    if decisions > 0 {
        let latency = &report["latency_us"];
        assert!(latency["p50"].as_f64() <= latency["max"].as_f64(), "{stdout}");
    }
    report
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[track_caller]
fn check(report: &Value, ok: u64, over_limit: u64) {
    assert_eq!(
        (number(&report["ok"]), number(&report["over_limit"])),
        (ok, over_limit),
        "{report}"
    );
    assert_eq!(report["errors"], serde_json::json!({}));
    assert_eq!((number(&report["not_sent"]), number(&report["reconnects"])), (0, 0));
}

#[test]
fn exactly_the_limit_passes_in_a_closed_loop() {
    let service = Service::shop().start();
    let report = measure(&service, &["--calls", "500", "user=alice"]);
    check(&report, 10, 490);
    let threads = ["--threads", "2", "--connections", "3", "--concurrency", "7"];
    let report = measure(&service, &[&threads[..], &["--calls", "101", "user=bob"]].concat());
    check(&report, 10, 91);
    let report = measure(&service, &["--concurrency", "1", "--calls", "3", "user=two"]);
    check(&report, 2, 1);
}

#[test]
fn exactly_the_limit_passes_in_an_open_loop() {
    let service = Service::shop().start();
    let report = measure(&service, &["--rate", "2000", "--calls", "300", "user=alice"]);
    check(&report, 10, 290);
    let flags = ["--rate", "3000", "--threads", "2", "--calls", "200", "user=bob"];
    check(&measure(&service, &flags), 10, 190);
}

#[test]
fn each_key_has_its_own_limit_and_each_descriptor_its_own_key() {
    let service = Service::shop().start();
    let sequence = ["--distribution", "sequential", "--keys", "20"];
    let report = measure(&service, &[&sequence[..], &["--calls", "400", "user=a{}"]].concat());
    check(&report, 200, 200);
    // Two keys for each call: 20 users get 10 hits each in 100 calls.
    let flags = [&sequence[..], &["--calls", "101", "user=b{}", "user=b{}"]].concat();
    check(&measure(&service, &flags), 100, 1);
    for distribution in ["uniform", "zipf"] {
        let user = format!("user={distribution}{{}}");
        let flags = ["--distribution", distribution, "--keys", "3", "--calls", "1000", &user];
        check(&measure(&service, &flags), 30, 970);
    }
    check(&measure(&service, &["--hits", "5", "--calls", "3", "user=five"]), 2, 1);
}

#[test]
fn calls_of_the_warm_up_are_not_in_the_report() {
    let service = Service::shop().start();
    let report = measure(&service, &["--warmup", "1s", "--calls", "20", "user=alice"]);
    check(&report, 0, 20);
}

#[test]
fn the_report_for_people_has_counts_percentiles_and_bars() {
    let service = Service::shop().start();
    let flags = ["--calls", "30", "user=alice"];
    let (code, stdout, stderr) = bench(&service.grpc.to_string(), &flags);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let words: Vec<_> = stdout.split_whitespace().collect();
    for expected in [["OK", "10"], ["OVER_LIMIT", "20"], ["decisions", "a"], ["up", "to"]] {
        assert!(words.windows(2).any(|pair| pair == expected), "{expected:?} is not in\n{stdout}");
    }
    for name in ["p50", "p90", "p99", "p99.9", "p99.99", "max", "##"] {
        assert!(stdout.contains(name), "{name} is not in\n{stdout}");
    }
}

#[test]
fn a_run_without_a_limit_gets_a_warning() {
    let service = Service::shop().start();
    let (code, _, stderr) = bench(&service.grpc.to_string(), &["--calls", "3", "usre=alice"]);
    assert!(code == Some(0) && stderr.starts_with("warning: no limit applies"), "{stderr}");
}

#[test]
fn a_run_ends_after_its_duration() {
    let service = Service::shop().start();
    for pace in [["--concurrency", "2"], ["--rate", "100"]] {
        let flags = [&pace[..], &["--json", "--duration", "1s", "free=x"]].concat();
        let (code, stdout, _) = bench(&service.grpc.to_string(), &flags);
        assert_eq!(code, Some(0));
        let report: Value = serde_json::from_str(&stdout).unwrap();
        assert!(number(&report["ok"]) > 0, "{report}");
    }
}

#[test]
fn an_interrupted_run_reports_what_it_has_measured() {
    let service = Service::shop().start();
    let mut command = tollkeeper();
    command.args(["bench", "--addr", &service.grpc.to_string(), "--domain", "shop"]);
    command.args(["--duration", "1h", "--json", "free=x"]).stdout(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    service.wait_for_metric("free");
    process.signal("INT");
    let mut stdout = String::new();
    process.0.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert!(process.0.wait().unwrap().success());
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert!(number(&report["ok"]) > 0, "{report}");
}

#[test]
fn errors_are_counted_by_their_status() {
    let service = Service::shop().start();
    let descriptors = ["a=b"; 65];
    let report = measure(&service, &[&["--calls", "9"], &descriptors[..]].concat());
    assert_eq!(report["errors"], serde_json::json!({ "INVALID_ARGUMENT": 9 }));
}

const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const SETTINGS_ACK: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];

/// The address of a server that shows HTTP/2 on each connection, and then does this with it.
fn http2_server(serve: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(&SETTINGS).unwrap();
            serve(stream);
        }
    });
    addr
}

#[test]
fn a_lost_connection_is_an_error_and_is_opened_again() {
    // Each connection ends once the client has acknowledged the settings of HTTP/2.
    let addr = http2_server(|mut stream| {
        let mut received: Vec<u8> = Vec::new();
        let mut bytes = [0_u8; 1024];
        while !received.windows(SETTINGS_ACK.len()).any(|frame| frame == SETTINGS_ACK) {
            let Ok(count @ 1..) = stream.read(&mut bytes) else { return };
            received.extend(&bytes[..count]);
        }
    });
    let flags = ["--json", "--concurrency", "2", "--calls", "20", "user=a"];
    let (code, stdout, _) = bench(&addr, &flags);
    assert_eq!(code, Some(1));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["errors"], serde_json::json!({ "UNAVAILABLE": 20 }));
    assert!(number(&report["reconnects"]) > 0, "{report}");
}

#[test]
fn calls_that_get_no_answer_end_at_a_deadline_and_are_counted() {
    // The server reads nothing, and keeps its connections open.
    let addr = http2_server(std::mem::forget);
    let (code, stdout, _) =
        bench(&addr, &["--json", "--concurrency", "3", "--duration", "1s", "a=b"]);
    assert_eq!(code, Some(1));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["errors"], serde_json::json!({ "DEADLINE_EXCEEDED": 3 }));
}

#[test]
fn a_server_that_cannot_be_reached_exits_with_1() {
    let gone = nobody().to_string();
    let (code, stdout, stderr) = bench(&gone, &["--threads", "2", "user=a"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert_eq!(
        stderr,
        format!(
            "{gone}: Connection refused (os error 111); is this the gRPC address of a service? Default: 127.0.0.1:8081\n"
        )
    );
    let (code, _, stderr) = bench("nowhere.invalid:8081", &["user=a"]);
    assert!(code == Some(1) && stderr.starts_with("nowhere.invalid:8081: "), "{stderr}");
}
