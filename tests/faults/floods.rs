//! The edge: bounds on connections, and clients that mean harm. Each flood runs at full speed beside a good client,
//! whose every answer must be right.
//!
//! `TOLLKEEPER_FLOOD_SECONDS=10 cargo test --release --test faults flood_of -- --nocapture --test-threads 1` prints the
//! figures of docs/internals/reliability.md.

use std::net::Shutdown;

use tollkeeper_proto::v1::{Call, DecideRequest};

use crate::support::{
    hostile::*,
    http2::{self, Frames},
    prelude::*,
    service::open_files,
};

/// The pause between two calls of the good client.
const CALL_EVERY: Duration = Duration::from_millis(5);

/// Runs `attack` on two threads, again and again, while a good client makes its calls on a connection of its own.
/// Each attack gets the addresses of gRPC and HTTP, and a flag that asks it to end.
fn flood(name: &str, peak_max: u64, attack: impl Fn(SocketAddr, SocketAddr, &Stop) + Sync) {
    flood_with(Service::with(RULES), name, peak_max, attack);
}

/// Like [`flood`], on a service with these options.
fn flood_with(
    options: Options<'_>,
    name: &str,
    peak_max: u64,
    attack: impl Fn(SocketAddr, SocketAddr, &Stop) + Sync,
) {
    let mut service = options.ready();
    let process = service.process().0.id();
    let files_before = open_files(process);
    let (stop, attacks) = (Stop::default(), AtomicUsize::new(0));
    let mut latencies = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.is_set() {
                    attack(service.grpc, service.http, &stop);
                    attacks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let latencies = good_calls(&service, &stop);
        stop.is_set.store(true, Ordering::Relaxed);
        latencies
    });
    latencies.sort_unstable();
    let at = |part: usize| latencies[(latencies.len() - 1) * part / 1000];
    println!(
        "| {name} | {} | {:.1?} | {:.1?} | {:.1?} | {} MiB | {} |",
        latencies.len(),
        at(500),
        at(990),
        at(1000),
        resident_mib(process, "VmHWM"),
        attacks.load(Ordering::Relaxed),
    );
    assert!(
        resident_mib(process, "VmHWM") < peak_max,
        "{name}: {} MiB",
        resident_mib(process, "VmHWM")
    );
    // The service first reads what has arrived, which takes a busy machine minutes.
    let mut files = open_files(process);
    while files > files_before + 8 {
        files = eventually("a connection of the attack ends", || {
            Some(open_files(process)).filter(|now| *now < files)
        });
    }
    assert!(!service.log().contains("panicked"), "{}", service.log());
}

/// Asks the attacks to end.
#[derive(Default)]
struct Stop {
    is_set: AtomicBool,
    /// The attacks that go on until they have sent everything.
    sending: AtomicUsize,
}

impl Stop {
    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }
}

/// 200 calls a second, each with the right answer; returns how long each took.
fn good_calls(service: &Service, stop: &Stop) -> Vec<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = service.client().await;
        let call = shop("good=client");
        let end = Instant::now() + Duration::from_secs(number("TOLLKEEPER_FLOOD_SECONDS", 1));
        let mut latencies = Vec::new();
        while Instant::now() < end || stop.sending.load(Ordering::Relaxed) > 0 {
            let began = Instant::now();
            let answer = client.should_rate_limit(call.clone()).await.unwrap();
            latencies.push(began.elapsed());
            let left = 1_000_000 - latencies.len();
            assert_eq!(spell(answer.get_ref()), format!("OK: OK {left}/1000000 YEAR"));
            tokio::time::sleep(CALL_EVERY.saturating_sub(began.elapsed())).await;
        }
        latencies
    })
}

/// Sends bytes on a new connection, discards what comes back, and waits until the service has read everything and
/// closes.
fn send_and_discard(address: SocketAddr, parts: &[&[u8]], stop: &Stop) {
    let Ok(stream) = TcpStream::connect(address) else { return };
    let (mut reading, mut writing) = (stream.try_clone().unwrap(), stream);
    thread::scope(|scope| {
        scope.spawn(move || std::io::copy(&mut reading, &mut std::io::sink()));
        for part in parts {
            if stop.is_set() || writing.write_all(part).is_err() {
                break;
            }
        }
        let _ = writing.shutdown(Shutdown::Write);
    });
}

/// What runs again and again on two threads.
type Attack = Box<dyn Fn(SocketAddr, SocketAddr, &Stop) + Sync>;

/// The opening of a connection and these frames, and then `frame` many times.
fn repeated(first: Frames, frame: Frames) -> Attack {
    let first = [http2::opening(), first.bytes()].concat();
    let frames = frame.bytes().repeat(10_000);
    Box::new(move |grpc, _, stop| {
        let mut parts = vec![&frames[..]; 11];
        parts[0] = &first;
        send_and_discard(grpc, &parts, stop);
    })
}

/// The opening of a connection, and what `add` adds to the frames so far, this number of times.
fn sent(count: usize, add: impl Fn(Frames) -> Frames) -> Attack {
    let frames = (0..count).fold(Frames::default(), |frames, _| add(frames)).bytes();
    Box::new(move |grpc, _, stop| send_and_discard(grpc, &[&http2::opening(), &frames], stop))
}

#[test]
fn flood_of_frames() {
    let frame = |kind, stream, payload: &[u8]| Frames::default().frame(kind, 0, stream, payload);
    let block = || frame(http2::HEADERS, 1, b"\x83\x86\x40\x01a\x00");
    // The service resets these streams itself, since an update by zero is an error.
    let zero_update = |frames: Frames| {
        let frames = frames.headers();
        let stream = frames.stream;
        frames.frame(http2::WINDOW_UPDATE, 0, stream, &[0; 4])
    };
    let bomb = b"\x0a\x04shop".iter().copied().chain([0x12, 0].repeat(20_000)).collect::<Vec<_>>();
    for (name, peak_max, attack) in [
        ("HEADERS and RST_STREAM", 150, sent(20_000, |frames| frames.headers().reset())),
        ("zero WINDOW_UPDATE", 150, sent(20_000, zero_update)),
        ("CONTINUATION", 200, repeated(block(), frame(http2::CONTINUATION, 1, &[0xbe]))),
        ("long CONTINUATION", 200, repeated(block(), frame(http2::CONTINUATION, 1, &[0xbe; 400]))),
        ("PING", 100, repeated(Frames::default(), Frames::default().ping())),
        ("SETTINGS", 100, repeated(Frames::default(), frame(http2::SETTINGS, 0, &[]))),
        ("empty DATA", 100, repeated(Frames::default().headers(), frame(http2::DATA, 1, &[]))),
        ("calls", 200, sent(20_000, |frames| frames.call(&good_message()))),
        ("descriptor bombs", 200, sent(25, |frames| frames.call(&bomb))),
    ] {
        flood(name, peak_max, attack);
    }
}

/// The client cancels each call at once. The service still decides all of them, and must hold few in memory while they wait.
#[test]
fn flood_of_large_calls_that_are_reset() {
    let long = [(); 17].map(|()| descriptor(&[("bad", &"x".repeat(150))]));
    let large = request("shop", long.into());
    let calls = vec![Call { descriptors: large.descriptors.clone(), ..Call::default() }];
    let batch = DecideRequest { domain: "shop".to_owned(), calls }.encode_to_vec();
    for (path, message) in [
        (http2::METHOD_PATH, large.encode_to_vec()),
        ("/tollkeeper.v1.Tollkeeper/Decide", batch.clone()),
        ("/tollkeeper.v1.Tollkeeper/DecideStream", batch),
    ] {
        let call = |frames: Frames| frames.many_headers(path, 0).data(&message).reset();
        flood(&format!("{path} and RST_STREAM"), 100, sent(2_000, call));
    }
}

/// Clients that take no answer: each leaves as many calls open as it may.
#[test]
fn flood_of_calls_whose_answers_are_not_read() {
    // The client's windows are closed, so every answer waits.
    let calls = unread_calls(0, 8000, &good_message());
    flood("unread answers", 400, |grpc, _, stop| {
        hold_connections(grpc, 8, &[&calls], stop);
    });
}

/// The limit of the chart's pods. A test machine's service has further libraries and no optimization.
const CHART_MIB: u64 = 512;
/// For floods whose peak in a debug build is at that limit: 450 to 520 MiB, by how long the machine lets them wait.
const DEBUG_MIB: u64 = CHART_MIB + 64;

#[test]
fn flood_of_long_answers_that_are_not_read() {
    let (rules, flags) = (long_rules(), &["--dynamic-metadata"]);
    let options = Service::with(&rules).flags(flags);
    let sent = [0, 1].map(|window| unread_calls(window, 100, &long_call()));
    flood_with(options, "unread long answers", DEBUG_MIB, |grpc, _, stop| {
        hold_connections(grpc, 16, &[&sent[0][..], &sent[1]], stop);
    });
}

#[test]
fn flood_of_header_blocks_that_do_not_end() {
    let block = open_header_block();
    flood("open header blocks", CHART_MIB, |grpc, _, stop| {
        hold_connections(grpc, 40, &[&block], stop);
    });
}

/// Calls of the health service: checks without a message, and watches.
fn open_health_calls() -> [Vec<u8>; 2] {
    let empty: &[u8] = b"\0\0\0\0\0";
    [("Check", empty.split_at(0).0), ("Watch", empty)].map(|(method, data)| {
        let path = format!("/grpc.health.v1.Health/{method}");
        let calls = (0..8000).fold(Frames::default(), |frames, _| {
            let frames = frames.many_headers(&path, 0);
            let stream = frames.stream;
            if data.is_empty() { frames } else { frames.frame(http2::DATA, 1, stream, data) }
        });
        [http2::opening(), calls.bytes()].concat()
    })
}

#[test]
fn flood_of_calls_to_the_health_service() {
    let [checks, watches] = open_health_calls();
    flood("health calls", 200, |grpc, _, stop| {
        hold_connections(grpc, 30, &[&checks, &watches], stop);
    });
}

/// All that a client can make the service hold, on as many connections as two threads open.
#[test]
fn flood_of_everything_that_is_held_stays_within_the_limit_of_the_chart() {
    let (rules, flags) = (long_rules(), &["--dynamic-metadata"]);
    let options = Service::with(&rules).flags(flags);
    let [checks, watches] = open_health_calls();
    let (block, unread) = (open_header_block(), unread_calls(1, 100, &long_call()));
    let half = half_sent_messages();
    let sent = [&block[..], &checks, &unread, &half, &watches];
    flood_with(options, "all of these", CHART_MIB, |grpc, _, stop| {
        hold_connections(grpc, 100, &sent, stop);
    });
}

fn half_sent_messages() -> Vec<u8> {
    let half = [&[0][..], &1_000_u32.to_be_bytes(), &[b'x'; 900]].concat();
    let calls = (0..8000).fold(Frames::default(), |frames, _| {
        let frames = frames.headers();
        let stream = frames.stream;
        frames.frame(http2::DATA, 0, stream, &half)
    });
    [http2::opening(), calls.bytes()].concat()
}

/// Each connection opens as many calls as it may, and sends a part of each message.
#[test]
fn flood_of_half_sent_messages() {
    let calls = half_sent_messages();
    flood("half-sent messages", DEBUG_MIB, |grpc, _, stop| {
        hold_connections(grpc, 16, &[&calls], stop);
    });
}

#[test]
fn flood_of_idle_connections() {
    flood("idle connections", 150, |grpc, http, stop| {
        thread::scope(|scope| {
            scope.spawn(|| hold_connections(grpc, 200, &[b""], stop));
            scope.spawn(|| hold_connections(http, 200, &[b"GET /"], stop));
            scope.spawn(|| hold_connections(grpc, 200, &[&http2::opening()], stop));
        });
    });
}

#[test]
fn flood_of_http_requests() {
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"bad","value":"a"}]}]}"#;
    let post = format!("POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
    let requests = (post + body + "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").repeat(200);
    flood("HTTP requests", 150, |_, http, stop| {
        send_and_discard(http, &[requests.as_bytes()], stop);
    });
}

/// Opens connections, sends one of these on each in turn, reads nothing, and keeps them until the end.
fn hold_connections(address: SocketAddr, count: usize, sent: &[&[u8]], stop: &Stop) {
    let mut connections = Vec::new();
    stop.sending.fetch_add(1, Ordering::Relaxed);
    for sent in sent.iter().cycle().take(count) {
        let Ok(mut connection) = TcpStream::connect(address) else { continue };
        // What does not fit is not sent: the service has stopped reading.
        connection.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = connection.write_all(sent);
        connections.push(connection);
    }
    stop.sending.fetch_sub(1, Ordering::Relaxed);
    while !stop.is_set() {
        thread::sleep(Duration::from_millis(20));
    }
}
