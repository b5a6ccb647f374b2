//! What the commands that are clients say about a server that they cannot talk to: one line with the address, the cause
//! and what to try.

use crate::support::{
    ads::FakeAds, certificates::Issued, prelude::*, redis_server::tls_redis, secured::Secured,
};

/// The commands that connect to the gRPC address, each with its flag for the address.
const GRPC: &[(&[&str], &str)] = &[
    (&["call", "--domain", "shop", "user=a"], "--addr"),
    (&["bench", "--calls", "1", "--domain", "shop", "user=a"], "--addr"),
    (&["healthcheck"], "--addr"),
];

/// The commands among them that report the answer to one request.
const ONE_REQUEST: &[(&[&str], &str)] = &[GRPC[0], GRPC[2]];

/// The commands that connect to the admin address.
const ADMIN: &[(&[&str], &str)] = &[
    (&["top", "--once"], "--addr"),
    (&["counter", "show", "--domain", "shop", "user=a"], "--addr"),
    (&["explain", "--domain", "shop", "user=a"], "--admin-addr"),
];

const SPEAKS_TLS: &str = "the server speaks TLS on this port; connect by TLS with --tls-ca";
const NO_TLS: &str = "the server does not speak TLS on this port; leave out --tls-ca";
const NO_HTTP2: &str = "the server does not speak HTTP/2 (gRPC) on this port";
const NO_HTTP1: &str = "the server does not speak HTTP/1 on this port";
const ENDED_BEFORE_HTTP2: &str =
    "the server ended the connection instead of speaking HTTP/2 (gRPC)";
const ENDED: &str = "the server ended the connection before it answered";
const SILENT: &str = "no answer within 5s";
const IS_GRPC: &str = "is this the gRPC address of a service? Default: 127.0.0.1:8081";
const IS_ADMIN: &str = "is this the admin address of a service? Default: 127.0.0.1:6070";
const OR_TLS: &str = ". If it speaks TLS, give --tls-ca";

/// Each command fails at this address, with this line after the address.
#[track_caller]
fn fail(
    commands: &[(&[&str], &str)],
    address: SocketAddr,
    authority: Option<&Path>,
    expected: &str,
) {
    let outcomes = thread::scope(|scope| {
        let runs: Vec<_> = commands
            .iter()
            .map(|(arguments, flag)| {
                let mut command = tollkeeper();
                command.args(*arguments).args([flag, &*address.to_string()]);
                if let Some(authority) = authority {
                    command.arg("--tls-ca").arg(authority);
                }
                (arguments, scope.spawn(move || run(&mut command)))
            })
            .collect();
        runs.into_iter()
            .map(|(arguments, run)| (arguments, run.join().unwrap()))
            .collect::<Vec<_>>()
    });
    for (arguments, outcome) in outcomes {
        let line = format!("{address}: {expected}\n");
        assert_eq!(outcome, (Some(1), String::new(), line), "{arguments:?}");
    }
}

/// The address of a server that does this with each connection.
fn server(with: impl Fn(TcpStream) + Copy + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || with(stream));
        }
    });
    address
}

fn address_of(redis: &Redis) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], redis.port))
}

/// The address of a Redis with TLS that shows this certificate.
fn secured_by(authority: &Authority, certificate: &Issued) -> (Redis, SocketAddr) {
    let (redis, url) = tls_redis(authority, certificate, "no");
    let address = url.strip_prefix("rediss://").unwrap().parse().unwrap();
    (redis, address)
}

#[test]
fn a_port_that_is_closed_is_asked_about() {
    // No test binds the port 1.
    let (address, authority) = (SocketAddr::from(([127, 0, 0, 1], 1)), Authority::new());
    for tls in [None, Some(authority.certificate.as_path())] {
        fail(GRPC, address, tls, &format!("Connection refused (os error 111); {IS_GRPC}"));
        fail(ADMIN, address, tls, &format!("Connection refused (os error 111); {IS_ADMIN}"));
    }
}

#[test]
fn a_server_that_says_nothing_is_left_after_a_time_that_is_stated() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, authority) = (mute.local_addr().unwrap(), Authority::new());
    fail(GRPC, address, None, &format!("{SILENT}; {IS_GRPC}{OR_TLS}"));
    fail(ADMIN, address, None, &format!("{SILENT}; {IS_ADMIN}{OR_TLS}"));
    let handshake = "no TLS handshake within 3s: does the server speak TLS on this port? If not, leave out --tls-ca";
    fail(GRPC, address, Some(&authority.certificate), handshake);
    fail(ADMIN, address, Some(&authority.certificate), handshake);
}

#[test]
fn a_server_with_tls_asks_for_tls() {
    let peer = Secured::start(&[]);
    fail(GRPC, peer.service.grpc, None, SPEAKS_TLS);
    fail(ADMIN, peer.service.admin, None, SPEAKS_TLS);
}

#[test]
fn a_server_without_tls_is_named_as_such() {
    let (peer, authority) = (Service::shop().start(), Authority::new());
    let authority = authority.certificate.as_path();
    fail(GRPC, peer.grpc, Some(authority), NO_TLS);
    fail(GRPC, peer.http, Some(authority), NO_TLS);
    fail(ADMIN, peer.admin, Some(authority), NO_TLS);
}

#[test]
fn a_server_that_speaks_http_1_does_not_speak_grpc() {
    let peer = Service::shop().start();
    // It ends connections that begin with HTTP/2.
    fail(GRPC, peer.http, None, &format!("{ENDED_BEFORE_HTTP2}; {IS_GRPC}{OR_TLS}"));
    let other = server(|stream| answer(&stream, b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    fail(GRPC, other, None, &format!("{NO_HTTP2}; {IS_GRPC}"));
}

#[test]
fn another_address_of_a_service_is_not_its_admin_address() {
    let peer = Service::shop().start();
    fail(ADMIN, peer.http, None, &format!("the answer is not tollkeeper's; {IS_ADMIN}"));
    fail(ADMIN, peer.grpc, None, &format!("{NO_HTTP1}; {IS_ADMIN}"));
}

#[test]
fn a_redis_is_no_service() {
    let redis = Redis::start();
    fail(GRPC, address_of(&redis), None, &format!("{NO_HTTP2}; {IS_GRPC}"));
    // It ends connections that send HTTP.
    fail(ADMIN, address_of(&redis), None, &format!("{ENDED}; {IS_ADMIN}{OR_TLS}"));
}

#[test]
fn a_server_that_speaks_another_protocol_within_tls_is_named_as_such() {
    let peer = Secured::start(&[]);
    let authority = Some(peer.authority());
    fail(GRPC, peer.service.admin, authority, &format!("{NO_HTTP2}; {IS_GRPC}"));
    fail(ADMIN, peer.service.grpc, authority, &format!("{NO_HTTP1}; {IS_ADMIN}"));
}

#[test]
fn a_server_that_demands_a_client_certificate_is_named_as_such() {
    let peer = Secured::start(&["--tls-client-ca", "CLIENTS"]);
    let demands = "the server demands a client certificate; show one by --tls-cert and --tls-key";
    fail(GRPC, peer.service.grpc, Some(peer.authority()), demands);
    fail(ADMIN, peer.service.admin, Some(peer.authority()), demands);
}

#[test]
fn a_certificate_that_is_not_to_be_trusted_is_refused_with_the_reason() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    for (certificate, trusted, cause) in [
        (
            authority.server(&["127.0.0.1"]),
            &stranger,
            "the server's certificate is not signed by a trusted CA; give its CA by --tls-ca",
        ),
        (
            authority.expired_server(&["127.0.0.1"]),
            &authority,
            "the server's certificate expired at 2020-01-01T00:00:00Z",
        ),
        (
            authority.server(&["other.example", "10.0.0.1"]),
            &authority,
            "the server's certificate is for other.example, 10.0.0.1, not for 127.0.0.1; \
             connect to one of its names",
        ),
        // The only name in the certificate of Envoy Gateway's rate-limit service.
        (
            authority.server(&["*.envoy-gateway-system"]),
            &authority,
            "the server's certificate is for *.envoy-gateway-system, not for 127.0.0.1; use a \
             certificate with the server's own name: a wildcard counts only as a whole label \
             before at least two others, as in *.example.com",
        ),
        (
            authority.authority_named("127.0.0.1"),
            &authority,
            "the server's certificate is a CA certificate, not a server certificate; use one that a \
             CA has signed, or a self-signed one with basicConstraints=CA:FALSE",
        ),
    ] {
        let (_redis, address) = secured_by(&authority, &certificate);
        fail(GRPC, address, Some(&trusted.certificate), cause);
        fail(ADMIN, address, Some(&trusted.certificate), cause);
    }
}

/// A connection that is closed with bytes that were not read is reset.
#[test]
fn a_server_that_ends_or_resets_the_connection_is_asked_about_its_port() {
    let authority = Authority::new();
    let authority = Some(authority.certificate.as_path());
    let reads_a_byte = |mut stream: TcpStream| drop(stream.read(&mut [0]));
    for address in [server(reads_a_byte), server(drop)] {
        let ended = "the server ended the TLS handshake: does it speak TLS on this port? If not, leave out --tls-ca";
        fail(GRPC, address, authority, ended);
        fail(ADMIN, address, authority, ended);
        fail(GRPC, address, None, &format!("{ENDED_BEFORE_HTTP2}; {IS_GRPC}{OR_TLS}"));
        fail(ADMIN, address, None, &format!("{ENDED}; {IS_ADMIN}{OR_TLS}"));
    }
}

/// Reads a request, and answers it with these bytes.
fn answer(mut stream: &TcpStream, bytes: &[u8]) {
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(bytes);
}

/// SETTINGS, with which a server of HTTP/2 begins.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

#[test]
fn half_an_answer_is_none() {
    const HALF: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"";
    let half = server(|stream| answer(&stream, HALF));
    fail(ADMIN, half, None, &format!("{ENDED}; {IS_ADMIN}{OR_TLS}"));
    fail(GRPC, half, None, &format!("{NO_HTTP2}; {IS_GRPC}"));

    let only_settings = server(|stream| answer(&stream, SETTINGS));
    fail(ONE_REQUEST, only_settings, None, &format!("{ENDED}; {IS_GRPC}"));
    let settings_and_silence = server(|stream| {
        answer(&stream, SETTINGS);
        thread::sleep(Duration::from_secs(60));
    });
    fail(ONE_REQUEST, settings_and_silence, None, &format!("{SILENT}; {IS_GRPC}"));
}

#[test]
fn a_grpc_server_without_the_service_is_named_as_such() {
    let control_plane = FakeAds::start();
    let address = SocketAddr::from(([127, 0, 0, 1], control_plane.port));
    for (command, service, method) in [
        (GRPC[0], "rate-limit", "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        (GRPC[2], "health", "grpc.health.v1.Health/Check"),
    ] {
        let cause = format!("the server has no {service} service (UNIMPLEMENTED for {method})");
        fail(&[command], address, None, &format!("{cause}; {IS_GRPC}"));
    }
}
