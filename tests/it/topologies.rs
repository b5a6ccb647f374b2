//! What the service relies on in Redis's own behaviour, beyond one plain server. No test here runs the service.

use std::{path::Path, process::Command};

use crate::support::{
    certificates::{Authority, Issued},
    redis_server::{Redis, free_port},
    run,
};

/// A Redis with a TLS port, which asks for a client's certificate.
fn tls_redis(authority: &Authority, server: &Issued) -> (Redis, String) {
    let port = free_port().to_string();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let arguments = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &text(&server.certificate),
        "--tls-key-file",
        &text(&server.key),
        "--tls-ca-cert-file",
        &text(&authority.certificate),
    ];
    (Redis::start_with(&arguments), port)
}

/// What `redis-cli` gets for a PING through TLS.
fn ping(port: &str, authority: &Authority, client: &Issued) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", port, "--tls", "--cacert"]).arg(&authority.certificate);
    command.arg("--cert").arg(&client.certificate).arg("--key").arg(&client.key).arg("PING");
    let (_, stdout, stderr) = run(&mut command);
    stdout + &stderr
}

#[test]
fn redis_and_its_client_refuse_certificates_of_another_authority_and_expired_ones() {
    let (ours, other) = (Authority::new(), Authority::new());
    let (_redis, port) = tls_redis(&ours, &ours.server(&["localhost", "127.0.0.1"]));
    assert_eq!(ping(&port, &ours, &ours.client()), "PONG\n");
    assert!(ping(&port, &other, &ours.client()).contains("certificate verify failed"));
    assert!(!ping(&port, &ours, &other.client()).contains("PONG"));
    let (_redis, port) = tls_redis(&ours, &ours.expired_server(&["localhost"]));
    assert!(ping(&port, &ours, &ours.client()).contains("certificate verify failed"));
}
