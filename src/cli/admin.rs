//! A client of a service's admin address.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time,
};

use super::{
    address::ServiceAddr,
    output::{complain, say},
    tls::TlsFlags,
};
use crate::{
    peer::observe,
    printable::printable,
    settings::Environment,
    tls::client::{TlsClient, host_of},
};

const VARIABLE: &str = "TOLLKEEPER_ADMIN_ADDR";

pub(super) const ADDR_DEFAULT: &str = "127.0.0.1:6070";

/// How long to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How a command reaches an admin address that is not open.
#[derive(Debug, clap::Args)]
pub(super) struct AdminAccess {
    /// File that holds the bearer token of the admin address
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsFlags,
}

/// The address: the flag, else the one of a service with the same environment.
///
/// # Errors
/// If it is not HOST:PORT, or such a service has none.
pub(super) fn address<'text>(
    flag: Option<&'text str>,
    environment: &'text Environment,
) -> Result<&'text str, String> {
    let variable = environment.admin_addr();
    if flag.is_none() && variable == Some("off") {
        return Err(format!("{VARIABLE} is off; give the address of a service by --addr"));
    }
    ServiceAddr { flag, variable: (VARIABLE, variable), default: ADDR_DEFAULT }.checked()
}

/// Sends one request, and returns the JSON of its answer.
///
/// # Errors
/// A message for the user, with the address: the connection failed, something else listens there, or the service refused.
pub(super) fn ask(
    addr: &str,
    access: &AdminAccess,
    method: Method,
    path_and_query: &str,
    body: String,
) -> Result<Value, String> {
    let mut request = Request::builder().method(method).uri(path_and_query);
    if let Some(path) = &access.token_file {
        let token = fs::read_to_string(path)
            .map_err(|error| format!("--token-file: {}: {error}", path.display()))?;
        request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    let tls = access.tls.client(b"http/1.1")?;
    let request = request.body(Full::from(body)).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let exchange = async { time::timeout(TIMEOUT, exchange(addr, tls, request)).await };
    let answer = runtime.block_on(exchange);
    let answer = answer.unwrap_or_else(|_| Err(Failure::Told("no answer".to_owned())));
    answer.map_err(|failure| match failure {
        Failure::Told(problem) => format!("{}: {problem}", printable(addr.as_bytes())),
        Failure::NotTollkeeper => not_tollkeeper(addr),
        Failure::NotHttp(error) => format!("{}: {error}", not_tollkeeper(addr)),
    })
}

/// What an answer lacks, in words, if it lacks anything.
pub(super) fn incomplete(answer: &Value) -> Option<&str> {
    answer.get("incomplete").and_then(Value::as_str)
}

/// Prints an answer, and what it lacks. The exit code is `complete`, or that of a failure if it lacks anything.
pub(super) fn say_answer(
    addr: &str,
    text: &str,
    incomplete: Option<&str>,
    complete: ExitCode,
) -> ExitCode {
    let Some(incomplete) = incomplete else { return say(text, complete) };
    let code = say(text, ExitCode::FAILURE);
    complain(format_args!("{}: {incomplete}", printable(addr.as_bytes())));
    code
}

/// The error when something else answers at the address.
pub(super) fn not_tollkeeper(addr: &str) -> String {
    let addr = printable(addr.as_bytes());
    format!("{addr} is not a tollkeeper admin address (default: {ADDR_DEFAULT})")
}

/// Why a request got no usable answer.
enum Failure {
    /// For the reason in the text.
    Told(String),
    NotTollkeeper,
    NotHttp(hyper::Error),
}

async fn exchange(
    addr: &str,
    tls: Option<TlsClient>,
    mut request: Request<Full<Bytes>>,
) -> Result<Value, Failure> {
    let stream = TcpStream::connect(addr).await.map_err(told)?;
    // The address, since the service refuses names: a web page could have chosen them.
    let host = stream.peer_addr().map_err(told)?.to_string();
    let host = HeaderValue::try_from(host).map_err(told)?;
    request.headers_mut().insert(header::HOST, host);
    match tls {
        Some(tls) => {
            let stream = tls.connect(host_of(addr), stream).await.map_err(told)?;
            send(stream, request).await
        }
        None => send(stream, request).await,
    }
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Value, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (stream, first_bytes) = observe(stream);
    exchange_by_http1(stream, request).await.map_err(|failure| match failure {
        Failure::NotHttp(_) | Failure::NotTollkeeper => first_bytes.cause().map_or(failure, told),
        Failure::Told(_) => failure,
    })
}

async fn exchange_by_http1<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Value, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(Failure::NotHttp)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(Failure::NotHttp)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(Failure::NotHttp)?.to_bytes();
        read_answer(status, &body)
    };
    // The connection makes progress only while it is polled.
    tokio::select! {
        biased;
        answer = answer => answer,
        ended = connection => Err(ended.map_or_else(Failure::NotHttp, |()| Failure::NotTollkeeper)),
    }
}

fn told(error: impl std::error::Error) -> Failure {
    Failure::Told(error.to_string())
}

fn read_answer(status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
    let body: Value = serde_json::from_slice(body).map_err(|_| Failure::NotTollkeeper)?;
    match body.get("error").and_then(Value::as_str) {
        Some(problem) => Err(Failure::Told(problem.to_owned())),
        None if status.is_success() || incomplete(&body).is_some() => Ok(body),
        None => Err(Failure::NotTollkeeper),
    }
}
