//! A client of a service's admin address.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time};

pub(super) const ADDR_DEFAULT: &str = "127.0.0.1:6070";

/// The error when something else answers at the address.
pub(super) const NOT_TOLLKEEPER: &str =
    "not the admin address of a tollkeeper, by default 127.0.0.1:6070";

/// How long to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends one request, and returns the JSON of its answer.
///
/// # Errors
/// A message for the user: the connection failed, something else listens there, or the service refused.
pub(super) fn ask(
    addr: &str,
    method: Method,
    path_and_query: &str,
    body: String,
) -> Result<Value, String> {
    let request = Request::builder()
        .method(method)
        .uri(path_and_query)
        .body(Full::from(body))
        .map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let exchange = async { time::timeout(TIMEOUT, exchange(addr, request)).await };
    runtime.block_on(exchange).unwrap_or_else(|_| Err("no answer".to_owned()))
}

async fn exchange(addr: &str, mut request: Request<Full<Bytes>>) -> Result<Value, String> {
    let stream = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
    // The address, since the service refuses names: a web page could have chosen them.
    let host = stream.peer_addr().map_err(|error| error.to_string())?.to_string();
    let host = HeaderValue::try_from(host).map_err(|error| error.to_string())?;
    request.headers_mut().insert(header::HOST, host);
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(not_http)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(not_http)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(not_http)?.to_bytes();
        read_answer(status, &body)
    };
    // The connection makes progress only while it is polled.
    tokio::select! {
        biased;
        answer = answer => answer,
        ended = connection => Err(ended.map_or_else(not_http, |()| NOT_TOLLKEEPER.to_owned())),
    }
}

fn not_http(error: hyper::Error) -> String {
    format!("{NOT_TOLLKEEPER} ({error})")
}

fn read_answer(status: StatusCode, body: &[u8]) -> Result<Value, String> {
    let body: Value = serde_json::from_slice(body).map_err(|_| NOT_TOLLKEEPER)?;
    match body.get("error").and_then(Value::as_str) {
        Some(problem) => Err(problem.to_owned()),
        None if status.is_success() => Ok(body),
        None => Err(NOT_TOLLKEEPER.to_owned()),
    }
}
