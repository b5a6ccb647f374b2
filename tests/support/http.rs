//! Plain HTTP, byte by byte.

use super::prelude::*;

pub const CALL: &str =
    r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"white"}]}]}"#;

/// The HTTP status of the answer to a request with these headers.
pub fn status(address: SocketAddr, request: &str, headers: &[&str], body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers = headers.iter().map(|header| format!("{header}\r\n")).collect::<String>();
    let head = format!("{request}\r\n{headers}connection: close\r\ncontent-length: {}", body.len());
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    rest(stream).split(' ').nth(1).unwrap_or_default().to_owned()
}

/// The status that all endpoints of the admin address give.
#[track_caller]
pub fn ask_admin(service: &Service, headers: &[&str]) -> String {
    let show = "GET /counters?domain=shop&descriptor=user%3Da HTTP/1.1";
    let reset = "POST /counters/reset?domain=shop&descriptor=user%3Da HTTP/1.1";
    let requests = [
        (show, ""),
        (reset, ""),
        ("POST /explain HTTP/1.1", CALL),
        ("GET /top HTTP/1.1", ""),
        ("GET /log HTTP/1.1", ""),
        ("GET /status HTTP/1.1", ""),
    ];
    let statuses = requests.map(|(request, body)| status(service.admin, request, headers, body));
    assert!(statuses.iter().all(|other| *other == statuses[0]), "{statuses:?}");
    statuses[0].clone()
}

pub fn rest(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}
