//! What the commands that are clients say about a server that they cannot talk to.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use crate::support::{
    certificates::Authority,
    run,
    service::{Options, Service, tollkeeper},
};
use crate::tls::Secured;

/// The commands that connect to the gRPC address.
const GRPC: [&[&str]; 3] = [
    &["call", "--domain", "shop", "user=a"],
    &["bench", "--calls", "1", "--domain", "shop", "user=a"],
    &["healthcheck"],
];

/// The commands that connect to the admin address.
const ADMIN: [&[&str]; 2] =
    [&["top", "--once"], &["counter", "show", "--domain", "shop", "user=a"]];

const SPEAKS_TLS: &str = "the server speaks TLS on this port; use TLS";
const NO_TLS: &str = "the server does not speak TLS on this port";
const NO_HTTP2: &str = "the server does not speak HTTP/2 (gRPC) on this port";

/// Each command fails at this address, with one line that names the address and the cause.
#[track_caller]
fn fail(commands: &[&[&str]], address: SocketAddr, authority: Option<&Path>, cause: &str) {
    for arguments in commands {
        let mut command = tollkeeper();
        command.args(*arguments).args(["--addr", &address.to_string()]);
        if let Some(authority) = authority {
            command.arg("--tls-ca").arg(authority);
        }
        let (code, stdout, stderr) = run(&mut command);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with(&format!("{address}: {cause}")), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_server_with_tls_asks_for_tls() {
    let peer = Secured::start(&[]);
    fail(&GRPC, peer.service.grpc, None, SPEAKS_TLS);
    fail(&ADMIN, peer.service.admin, None, SPEAKS_TLS);
}

#[test]
fn a_server_without_tls_is_named_as_such() {
    let (peer, authority) = (Service::start(Options::default()), Authority::new());
    let authority = authority.certificate.as_path();
    fail(&GRPC, peer.grpc, Some(authority), NO_TLS);
    fail(&GRPC, peer.http, Some(authority), NO_TLS);
    fail(&ADMIN, peer.admin, Some(authority), NO_TLS);
}

#[test]
fn a_server_that_speaks_http_1_does_not_speak_grpc() {
    let peer = Service::start(Options::default());
    fail(&GRPC, peer.http, None, NO_HTTP2);
    fail(&GRPC, peer.admin, None, NO_HTTP2);
}

#[test]
fn a_server_that_speaks_another_protocol_within_tls_is_named_as_such() {
    let peer = Secured::start(&[]);
    let other = "the server speaks another protocol on this port (ALPN)";
    fail(&GRPC, peer.service.admin, Some(peer.authority()), other);
    fail(&ADMIN, peer.service.grpc, Some(peer.authority()), other);
}

#[test]
fn a_server_that_demands_a_client_certificate_is_named_as_such() {
    let peer = Secured::start(&["--tls-client-ca", "CLIENTS"]);
    let demands = "the server demands a client certificate";
    fail(&GRPC, peer.service.grpc, Some(peer.authority()), demands);
    fail(&ADMIN, peer.service.admin, Some(peer.authority()), demands);
}

#[test]
fn a_certificate_of_an_authority_is_not_that_of_a_server() {
    let authority = Authority::new();
    let issued = authority.authority_named("127.0.0.1");
    let flags = [
        "--tls-cert",
        issued.certificate.to_str().unwrap(),
        "--tls-key",
        issued.key.to_str().unwrap(),
    ];
    let peer = Service::start(Options { flags: &flags, ..Options::default() });
    let cause = "the server's certificate is a CA certificate, not a server certificate";
    fail(&GRPC, peer.grpc, Some(&authority.certificate), cause);
    fail(&ADMIN, peer.admin, Some(&authority.certificate), cause);
}

/// It ends each connection once it has read something.
#[test]
fn a_server_that_ends_the_connection_is_asked_about_its_port() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, authority) = (listener.local_addr().unwrap(), Authority::new());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = (&stream).read(&mut [0]);
        }
    });
    let ended = "the server ended the TLS handshake: does it speak TLS on this port?";
    fail(&GRPC, address, Some(&authority.certificate), ended);
    fail(&ADMIN, address, Some(&authority.certificate), ended);
    fail(&GRPC, address, None, &format!("{NO_HTTP2}, or only with TLS: it ended the connection"));
}
