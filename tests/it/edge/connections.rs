//! Bounds on connections: how many, how long, and what is held for them. The floods are in tests/faults.

use std::io::ErrorKind;

use crate::support::{
    hostile::*,
    http2::{self, Frames},
    prelude::*,
};

/// Whether the service has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    matches!(stream.read(&mut [0]), Ok(0) | Err(_))
}

/// A connection that has sent these bytes.
fn connection(service: &Service, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(service.grpc).unwrap();
    stream.write_all(sent).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_maximum_are_closed_at_once_while_all_have_calls() {
    let service = Service::with(RULES).flags(&["--max-connections", "2"]).ready();
    let open_call = [http2::opening(), Frames::default().headers().bytes()].concat();
    let open = || {
        let mut stream = connection(&service, &open_call);
        // The first answer may overtake the beginning of the call, the second one does not.
        for _ in 0..2 {
            stream.write_all(&Frames::default().ping().bytes()).unwrap();
            while http2::read_frame(&mut stream).0 != http2::PING {}
        }
        stream
    };
    let busy = [open(), open()];
    for _ in 0..20 {
        assert!(is_closed(&mut TcpStream::connect(service.grpc).unwrap()));
    }
    let refused = r#"ratelimit_connections_refused_total{listener="grpc",reason="full"} 20"#;
    service.assert_metric(refused);
    assert_eq!(service.log().matches("--max-connections").count(), 1, "{}", service.log());
    drop(busy);
    eventually("the slots are free again", || {
        let mut stream = TcpStream::connect(service.grpc).unwrap();
        stream.write_all(&http2::opening()).ok()?;
        (stream.read(&mut [0]).ok()? == 1).then_some(())
    });
}

/// Clients that speak HTTP/2, answer PING and call nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_calls_is_closed_for_a_further_one() {
    let service = Service::with(RULES).flags(&["--max-connections", "3"]).ready();
    let mut client = service.client().await;
    let call = || shop("good=client");
    client.should_rate_limit(call()).await.unwrap();
    let mut idle = [(); 2].map(|()| {
        let mut stream = connection(&service, &http2::opening());
        stream.read_exact(&mut [0]).unwrap();
        stream
    });
    for _ in 0..5 {
        let mut another = service.client().await;
        another.should_rate_limit(call()).await.unwrap();
    }
    for stream in &mut idle {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = std::io::copy(stream, &mut std::io::sink());
    }
    let refused = r#"ratelimit_connections_refused_total{listener="grpc",reason="full"} 0"#;
    service.assert_metric(refused);
}

fn opened(address: SocketAddr, sent: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    connection.write_all(sent).unwrap();
    connection
}

/// What a client must end or read, and does not, while it answers PING.
#[test]
fn what_a_client_neither_ends_nor_reads_is_held_for_twenty_seconds_at_most() {
    let service = Service::with(RULES).start();
    let check = Frames::default().many_headers("/grpc.health.v1.Health/Check", 0).bytes();
    let calls = [
        open_header_block(),
        unread_calls(0, 1, &good_message()),
        unread_calls(1, 1, &good_message()),
        [http2::opening(), check].concat(),
    ];
    let [blocks, first, second, mut check] = calls.map(|sent| opened(service.grpc, &sent));
    let mut head = opened(service.http, b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
    head.read_exact(&mut [0]).unwrap();
    head.write_all(b"GET /heal").unwrap();
    let ping = Frames::default().ping().bytes();
    // An answer, although its message has not come.
    while http2::read_frame(&mut check).0 != http2::HEADERS {}
    check.write_all(&ping).unwrap();
    while http2::read_frame(&mut check).0 != http2::PING {}
    for (index, mut connection) in [blocks, first, second, head].into_iter().enumerate() {
        let ended = std::io::copy(&mut connection, &mut std::io::sink());
        let is_late = ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!is_late, "connection {index} is still open");
    }
}

/// While its socket takes no answers, the service reads none of its calls.
#[test]
fn a_client_that_reads_late_gets_the_answers_of_all_its_calls() {
    const CALLS: usize = 50;
    let service = Service::with(&long_rules()).flags(&["--dynamic-metadata"]).start();
    let window = (1_u32 << 30).to_be_bytes();
    let settings = [&4_u16.to_be_bytes()[..], &window].concat();
    let frames = Frames::default().frame(http2::SETTINGS, 0, 0, &settings).frame(
        http2::WINDOW_UPDATE,
        0,
        0,
        &window,
    );
    let mut frames = (0..CALLS).fold(frames, |frames, _| frames.call(&long_call()));
    let mut stream = connection(&service, &[http2::opening(), frames.take_bytes()].concat());
    let series = r#"ratelimit_hits_total{domain="shop",rule="long",standing="within"}"#;
    service.wait_for_metric(&format!("{series} {CALLS}"));
    let more = (0..CALLS).fold(frames, |frames, _| frames.call(&long_call()));
    stream.write_all(&more.bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = 0;
    while bytes < 2 * CALLS * 1_000_000 {
        let (kind, payload) = http2::read_frame(&mut stream);
        assert_ne!(kind, http2::RST_STREAM);
        bytes += if kind == http2::DATA { payload.len() } else { 0 };
    }
}

#[test]
fn a_connection_is_asked_to_end_at_its_age() {
    let service = Service::with(RULES).flags(&["--connection-age", "1s"]).ready();
    let mut raw = TcpStream::connect(service.grpc).unwrap();
    raw.write_all(&http2::opening()).unwrap();
    raw.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    while http2::read_frame(&mut raw).0 != http2::GOAWAY {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_free_descriptors_keeps_its_connections_and_recovers() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let service = serve();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(service.get_program());
    limited.args(service.get_args()).arg("--rules").arg(folder.path().join("rules.yaml"));
    let mut service = Service::spawn(limited, folder);
    service.wait_until_ready();
    let mut client = service.client().await;
    let call = || shop("good=client");
    client.should_rate_limit(call()).await.unwrap();
    let full: Vec<_> = (0..100).map(|_| TcpStream::connect(service.grpc).unwrap()).collect();
    service.wait_for_log("os error 24");
    for _ in 0..100 {
        client.should_rate_limit(call()).await.unwrap();
    }
    drop(full);
    eventually("it accepts again", || {
        let answer = service.exchange("GET", "/metrics", b"").2;
        let (_, count) = answer.split_once(r#"refused_total{listener="grpc",reason="accept"} "#)?;
        (!count.starts_with('0')).then_some(())
    });
    let lines = service.log().matches("grpc: could not accept").count();
    assert_eq!(lines, 1, "{}", service.log());
    service.end();
}
