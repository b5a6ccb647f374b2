//! One request of a command to a gRPC address.

use std::{error::Error as _, sync::Arc, time::Duration};

use tokio::{runtime::Builder, time};
use tonic::{Code, Response, Status, transport::Channel};

use super::{
    address::{ClientTarget, UsesTls},
    tls::uses_tls,
};
use crate::{
    net::{
        grpc::{self, GrpcMethod, channel},
        peer::{self, PeerError, Protocol},
        tls::client::TlsClient,
    },
    text::printable::printable,
};

pub(super) const ADDR_DEFAULT: &str = "127.0.0.1:8081";

/// How long to wait for a connection, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the diagnosis of a server after a failure.
const DIAGNOSED_WITHIN: Duration = Duration::from_secs(1);

/// Connects to HOST:PORT, and makes one call of `method`.
pub(super) fn ask<T>(
    addr: &str,
    tls: Option<Arc<TlsClient>>,
    method: &GrpcMethod,
    call: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
) -> Result<T, String> {
    let named = |problem| format!("{}: {problem}", printable(addr.as_bytes()));
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| named(error.to_string()))?;
    let target = target(uses_tls(tls.as_ref()));
    let answer = runtime.block_on(async {
        let endpoint = Channel::from_shared(format!("http://{addr}"))
            .map_err(|_| "not HOST:PORT".to_owned())?;
        let connected = channel::connect(endpoint, tls.as_deref(), TIMEOUT).await;
        let channel = connected.map_err(|error| target.advise(&error))?;
        let cause = match time::timeout(TIMEOUT, call(channel)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) if status.source().is_none() => {
                return Err(failure(&status, method, target));
            }
            Ok(Err(_)) => PeerError::Ended,
            Err(_) => PeerError::Silent(TIMEOUT),
        };
        Err(match peer::diagnose(addr, tls.as_deref(), Protocol::Http2, DIAGNOSED_WITHIN).await {
            Ok(()) => target.ask_about(cause),
            Err(PeerError::Silent(_)) => target.advise(&cause),
            Err(error) => target.advise(&error),
        })
    });
    answer.map_err(named)
}

pub(super) const fn target(tls: UsesTls) -> ClientTarget {
    ClientTarget { name: "gRPC", default: ADDR_DEFAULT, tls }
}

/// Why the server's answer is not a good one.
fn failure(status: &Status, method: &GrpcMethod, target: ClientTarget) -> String {
    let cause = grpc::in_words(status, method);
    match status.code() {
        Code::Unimplemented => target.ask_about(cause),
        _ => cause,
    }
}
