//! A connection to a control plane.

use std::time::Duration;

use tollkeeper_base::{
    VERSION,
    net::{
        grpc::channel,
        peer::{self, PeerError, Protocol},
        tls::root_cause,
    },
};
use tonic::transport::{Channel, Endpoint};

use super::target::XdsTarget;

/// Upper bound on making a connection: name resolution, TCP and TLS; and on the server's first frame of HTTP/2.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Bytes that a server may send ahead.
const WINDOW_BYTES: u32 = 1 << 20;

/// Connects to a control plane. The files of TLS are read again.
pub(super) async fn connect(target: &XdsTarget) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{}", target.authority()))
        .and_then(|endpoint| endpoint.user_agent(format!("tollkeeper/{VERSION}")))
        .map_err(|error| root_cause(&error))?
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let connected = channel::connect(endpoint, target.tls.as_deref(), CONNECT_WITHIN).await;
    connected.map_err(|error| advise(&error, target))
}

/// Finds out whether a server that does not answer speaks HTTP/2.
pub(super) async fn diagnose(target: &XdsTarget) -> Result<(), String> {
    let (addr, tls) = (target.authority(), target.tls.as_deref());
    let shown = peer::diagnose(&addr, tls, Protocol::Http2, CONNECT_WITHIN).await;
    shown.map_err(|error| advise(&error, target))
}

fn advise(error: &PeerError, target: &XdsTarget) -> String {
    match advice(error, target) {
        Some(advice) => format!("{error}; {advice}"),
        None => error.to_string(),
    }
}

fn advice(error: &PeerError, target: &XdsTarget) -> Option<&'static str> {
    match error {
        PeerError::SpeaksTls => Some("use xds+tls:// in --rules"),
        PeerError::EndedBeforeHttp2 | PeerError::Silent(_) if target.tls.is_none() => {
            Some("with TLS, use xds+tls:// in --rules")
        }
        PeerError::DemandsCertificate => Some("set --rules-tls-cert and --rules-tls-key"),
        _ => None,
    }
}
