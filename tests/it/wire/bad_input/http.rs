//! HTTP: bodies of `/json`, requests as they arrive on the wire, and queries of the admin address.

use crate::support::{prelude::*, rows::*};

const ROWS: &str = include_str!("http.txt");

/// The name of each case of these sections, the request, and the answer, which some begin with `400 INVALID_ARGUMENT`.
fn cases(sections: &[(&str, Form, &str)]) -> Vec<[String; 3]> {
    let of = |(section, request, prefix): &(&str, Form, &str)| {
        let whole =
            |[name, part, answer]: [String; 3]| [name, request(&part), format!("{prefix}{answer}")];
        rows(ROWS, section).into_iter().map(whole).collect::<Vec<_>>()
    };
    sections.iter().flat_map(of).collect()
}

const REFUSED: &str = "400 INVALID_ARGUMENT: ";

/// Bodies that are sent to `/json`.
fn bodies() -> Vec<[String; 3]> {
    let beside_entries =
        |fields: &str| descriptor(&format!(r#""entries":[{{"key":"user","value":"a"}}],{fields}"#));
    cases(&[
        ("bodies", str::to_owned, REFUSED),
        ("descriptors", descriptor, REFUSED),
        ("beside entries", beside_entries, REFUSED),
    ])
}

/// A request with one descriptor, which consists of these fields.
fn descriptor(fields: &str) -> String {
    format!(r#"{{"domain":"shop","descriptors":[{{{fields}}}]}}"#)
}

/// Whole requests; a byte outside ASCII is written as the character of that number.
fn requests() -> Vec<[String; 3]> {
    let check = |query: &str| format!("POST /check?{query} HTTP/1.1\r\nhost: h\r\n\r\n");
    let usage = |query: &str| format!("GET /v1/usage?{query} HTTP/1.1\r\nhost: h\r\n\r\n");
    cases(&[
        ("requests", str::to_owned, ""),
        ("checks", check, REFUSED),
        ("usage", usage, REFUSED),
        ("posted", posted, REFUSED),
    ])
}

/// A POST of a path and, after a space, its body.
fn posted(text: &str) -> String {
    let (path, body) = text.split_once(' ').unwrap();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A GET of this path and query.
fn got(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
}

/// Requests to the admin address.
fn admin_requests() -> Vec<[String; 3]> {
    let counters = |query: &str| got(&format!("/counters?{query}"));
    cases(&[
        ("counters", counters, ""),
        ("got on the admin address", got, "400: "),
        ("posted on the admin address", posted, "400: "),
        ("admin requests", str::to_owned, ""),
    ])
}

/// The answer to these bytes: the status, and what the body says of an error.
fn answer(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let bytes: Vec<u8> = request.chars().map(|character| character as u8).collect();
    // A server that refuses may close before it has read everything.
    let _ = stream.write_all(&bytes);
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while !is_whole(&answer) {
        match stream.read(&mut part) {
            Ok(count @ 1..) => answer.extend(&part[..count]),
            _ => break,
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return "closed".to_owned() };
    let code = head.split(' ').nth(1).unwrap();
    match serde_json::from_str::<Value>(body).ok().map(|body| body["error"].clone()) {
        Some(Value::String(message)) => format!("{code}: {message}"),
        Some(Value::Object(error)) => {
            let [name, message] = ["code", "message"].map(|field| error[field].as_str().unwrap());
            format!("{code} {name}: {message}")
        }
        _ => format!("{code} {body}").trim_end().to_owned(),
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer).to_lowercase();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    length.is_some_and(|length| body.len() >= length.parse().unwrap())
}

#[test]
fn a_bad_body_is_refused_with_its_code_and_message() {
    let service = Service::shop().start();
    for [name, body, expected] in bodies() {
        let bytes: String = body.bytes().map(char::from).collect();
        let head = format!("POST /json HTTP/1.1\r\nhost: h\r\ncontent-length: {}", body.len());
        assert_eq!(answer(service.http, &format!("{head}\r\n\r\n{bytes}")), expected, "{name}");
    }
    assert!(!service.log().contains("marker-value"), "{}", service.log());
}

#[test]
fn a_bad_request_is_refused_and_the_service_goes_on() {
    let service = Service::shop().start();
    for [name, request, expected] in requests() {
        assert_eq!(answer(service.http, &request), expected, "{name}");
    }
    for [name, request, expected] in admin_requests() {
        assert_eq!(answer(service.admin, &request), expected, "{name}");
    }
    assert_eq!(service.get("/healthz"), "OK");
    assert!(!service.log().contains("marker-value"), "{}", service.log());
}
