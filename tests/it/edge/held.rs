//! What clients make the service hold is counted until its answer is written, over gRPC and HTTP.

use tollkeeper_proto::v1::{Call, DecideRequest, tollkeeper_client::TollkeeperClient};

use crate::support::{
    hostile::*,
    http2::{self, Frames},
    prelude::*,
    service::exchange,
};

/// The smallest `--max-arriving-bytes`, and what a service may take with it: one and a half of it, and its program.
const FLAGS: &[&str] = &["--max-arriving-bytes", "128MiB"];
const HELD_MIB: u64 = 192 + 60;

fn start(rules: &str) -> (Service, u32) {
    let mut service = Service::with(rules).flags(FLAGS).ready();
    let process = service.process().0.id();
    (service, process)
}

#[test]
fn a_batch_in_json_takes_about_its_bytes_whatever_is_in_it() {
    let empty = |count| vec!["{}"; count].join(",");
    let many =
        |call: String| format!(r#"{{"domain":"shop","calls":[{}]}}"#, vec![call; 1000].join(","));
    let kinds: Vec<_> = (0..400).map(|kind| format!(r#""{kind:x}":1"#)).collect();
    let entries = vec![format!(r#"{{"entries":[{}]}}"#, empty(32)); 30].join(",");
    for (what, call) in [
        ("descriptors", format!(r#"{{"descriptors":[{}]}}"#, empty(1000))),
        ("entries", format!(r#"{{"descriptors":[{entries}]}}"#)),
        ("kinds", format!(r#"{{"hits_by_kind":{{{}}}}}"#, kinds.join(","))),
    ] {
        let (service, process) = start(RULES);
        let (before, body) = (resident_mib(process, "VmRSS"), many(call));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let answer = exchange(service.http, "POST", "/v1/decide", body.as_bytes());
                    assert_eq!(answer.0, 200, "{}", answer.2);
                    assert_eq!(answer.2.matches("INVALID_ARGUMENT").count(), 1000);
                });
            }
        });
        let bodies = (4 * body.len() as u64) >> 20;
        let taken = resident_mib(process, "VmHWM") - before;
        assert!(taken < 4 * bodies, "{taken} MiB for {bodies} MiB of {what}");
    }
}

/// Each answer has the name of the limit a thousand times.
#[test]
fn answers_over_http_that_are_not_read_count() {
    let limit = format!("{{ name: {}, unit: year, requests_per_unit: 9 }}", "n".repeat(8000));
    let rules = format!("{RULES}  - {{ key: named, rate_limit: {limit} }}\n");
    let (service, process) = start(&rules);
    let call = r#"{"descriptors":[{"entries":[{"key":"named","value":"a"}]}]}"#;
    let body = format!(r#"{{"domain":"shop","calls":[{}]}}"#, vec![call; 1000].join(","));
    let head = format!("POST /v1/decide HTTP/1.1\r\nhost: a\r\ncontent-length: {}", body.len());
    let request = format!("{head}\r\n\r\n{body}");
    let mut connections: Vec<_> = (0..40)
        .map(|_| {
            let mut connection = TcpStream::connect(service.http).unwrap();
            connection.write_all(request.as_bytes()).unwrap();
            connection
        })
        .collect();
    // 320 MB of answers: some of them are refused.
    let begins: Vec<_> = connections.iter_mut().map(begin_of_answer).collect();
    let answered = begins.iter().filter(|begin| begin.starts_with("HTTP/1.1 200")).count();
    let refused = begins.iter().filter(|begin| begin.starts_with("HTTP/1.1 503")).count();
    assert!(answered > 5 && answered + refused <= 40, "{begins:?}");
    let peak = resident_mib(process, "VmHWM");
    assert!(peak < HELD_MIB, "{peak} MiB, {answered} answers");
    assert_eq!(service.get("/healthz"), "OK");
}

#[test]
fn the_buffers_of_bodies_that_do_not_end_stay_small() {
    const BYTES: usize = 140_000;
    let (service, process) = start(RULES);
    let head = format!("POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", BYTES + 1);
    let request = [head.into_bytes(), vec![b' '; BYTES]].concat();
    let connections: Vec<_> = (0..900)
        .map(|_| {
            let mut connection = TcpStream::connect(service.http).unwrap();
            // It is closed to make room for others.
            let _ = connection.write_all(&request);
            connection
        })
        .collect();
    assert_eq!(service.get("/healthz"), "OK");
    let peak = resident_mib(process, "VmHWM");
    assert!(peak < HELD_MIB, "{peak} MiB");
    drop(connections);
}

/// The first bytes of an answer; none if the connection was closed to make room.
fn begin_of_answer(connection: &mut TcpStream) -> String {
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut begin = [0; 12];
    let length = connection.read(&mut begin).unwrap_or(0);
    String::from_utf8_lossy(&begin[..length]).into_owned()
}

fn batch(value_bytes: usize) -> Vec<u8> {
    let descriptors = vec![descriptor(&[("bad", &"v".repeat(value_bytes))])];
    let calls = vec![Call { descriptors, ..Default::default() }];
    DecideRequest { domain: "shop".to_owned(), calls }.encode_to_vec()
}

/// A stream is open on each call, and the service has answered its message.
#[tokio::test]
async fn an_open_stream_keeps_nothing_of_a_message_that_was_answered() {
    let (service, process) = start(RULES);
    let endpoint = tonic::transport::Channel::from_shared(format!("http://{}", service.grpc));
    let channel = endpoint.unwrap().connect().await.unwrap();
    let before = resident_mib(process, "VmRSS");
    let mut open = Vec::new();
    for _ in 0..150 {
        let mut client = TollkeeperClient::new(channel.clone()).max_encoding_message_size(4 << 20);
        let (requests, to_send) = tokio::sync::mpsc::channel(1);
        let to_send = tokio_stream::wrappers::ReceiverStream::new(to_send);
        requests.send(DecideRequest::decode(&*batch(1 << 20)).unwrap()).await.unwrap();
        let mut answers = client.decide_stream(to_send).await.unwrap().into_inner();
        assert!(answers.message().await.unwrap().is_some());
        open.push((requests, answers));
    }
    let taken = resident_mib(process, "VmRSS").saturating_sub(before);
    assert!(taken < 50, "{taken} MiB for 150 MiB of messages");
}

/// The client's windows take no answer, so its requests wait.
#[test]
fn requests_of_streams_whose_answers_are_not_read_count() {
    let (service, process) = start(RULES);
    let small = framed(&batch(1));
    // As much as a window takes: four requests, and the beginning of another.
    let rest = [&[0][..], &(1_u32 << 20).to_be_bytes()].concat();
    let data = [small.repeat(4), rest].concat();
    let data = [&data[..], &vec![b'x'; (250 << 10) - data.len()]].concat();
    let closed = [&4_u16.to_be_bytes()[..], &[0; 4]].concat();
    let first = Frames::default().frame(http2::SETTINGS, 0, 0, &closed);
    let frames = (0..60)
        .fold(first, |frames, _| stream(frames, "/tollkeeper.v1.Tollkeeper/DecideStream", &data));
    // 430 MB in all: some connections are closed.
    send_on_connections(30, &service, process, &frames.bytes());
}

/// Each sends faster than it is read, so that the service holds parts of messages and what is read ahead of them.
#[test]
fn long_reports_that_arrive_on_many_connections_count() {
    const METHOD: &str =
        "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
    let (service, process) = start(RULES);
    let part = [&[0][..], &(2_u32 << 20).to_be_bytes(), &[b'x'; 1_000_000]].concat();
    let frames = (0..4).fold(Frames::default(), |frames, _| stream(frames, METHOD, &part));
    send_on_connections(100, &service, process, &frames.bytes());
}

/// A call whose body begins with this data and does not end.
fn stream(frames: Frames, path: &str, data: &[u8]) -> Frames {
    let frames = frames.many_headers(path, 0);
    let stream = frames.stream;
    data.chunks(16 << 10).fold(frames, |frames, part| frames.frame(0, 0, stream, part))
}

fn send_on_connections(count: usize, service: &Service, process: u32, frames: &[u8]) {
    let sent = [&http2::opening(), frames].concat();
    let open = |_| TcpStream::connect(service.grpc).unwrap();
    let connections: Vec<_> = (0..count).map(open).collect();
    thread::scope(|scope| {
        for mut connection in &connections {
            connection.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            let sent = &sent;
            scope.spawn(move || connection.write_all(sent));
        }
    });
    let peak = resident_mib(process, "VmHWM");
    assert!(peak < HELD_MIB, "{peak} MiB");
    wait_until("it is alive", || service.get("/healthz") == "OK");
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat()
}
