//! `tollkeeper counter`: asks a service's admin address how counters stand, or to reset them.

use std::{process::ExitCode, time::Duration};

use http_body_util::{BodyExt as _, Empty};
use hyper::{
    Method, Request,
    body::Bytes,
    client::conn::http1,
    header::{self, HeaderValue},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time};

use super::{USAGE, complain, say};
use crate::{engine::notation, settings::Environment};

const ADDR_DEFAULT: &str = "127.0.0.1:6070";

/// A person is waiting.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Action {
    /// Tells what is used and left, until when, and who a log remembers
    Show(Flags),
    /// Begins anew, and tells what was used until then
    Reset(Flags),
}

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// The admin address to ask [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<String>,
    /// The domain of the rules
    #[arg(long)]
    domain: String,
    /// The descriptor, such as user=alice or path=/login,user=alice; `\,` is a comma, `\xHH` any byte
    #[arg(value_name = "k=v,k=v")]
    descriptor: String,
}

pub(super) fn main(action: &Action, environment: &Environment) -> ExitCode {
    let (method, path, flags) = match action {
        Action::Show(flags) => (Method::GET, "/counters", flags),
        Action::Reset(flags) => (Method::POST, "/counters/reset", flags),
    };
    if let Err(problem) = notation::parse(&flags.descriptor) {
        complain(format_args!("{}: {problem}", flags.descriptor));
        return ExitCode::from(USAGE);
    }
    let addr = flags.addr.as_deref().or(environment.admin_addr()).unwrap_or(ADDR_DEFAULT);
    match ask(addr, method.clone(), path, flags) {
        Ok(answer) => say(&describe(&answer, &method), ExitCode::SUCCESS),
        Err(problem) => {
            complain(format_args!("{addr}: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn ask(addr: &str, method: Method, path: &str, flags: &Flags) -> Result<Value, String> {
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("domain", &flags.domain)
        .append_pair("descriptor", &flags.descriptor)
        .finish();
    let request = Request::builder()
        .method(method)
        .uri(format!("{path}?{query}"))
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let exchange = async { time::timeout(PATIENCE, exchange(addr, request)).await };
    runtime.block_on(exchange).unwrap_or_else(|_| Err("no answer".to_owned()))
}

async fn exchange(addr: &str, mut request: Request<Empty<Bytes>>) -> Result<Value, String> {
    let words = |error: hyper::Error| error.to_string();
    let stream = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
    // Not by its name, which the service would refuse.
    let host = stream.peer_addr().map_err(|error| error.to_string())?.to_string();
    let host = HeaderValue::try_from(host).map_err(|error| error.to_string())?;
    request.headers_mut().insert(header::HOST, host);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(words)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(words)?;
        let ok = answer.status().is_success();
        let body = answer.into_body().collect().await.map_err(words)?.to_bytes();
        let body: Value = serde_json::from_slice(&body)
            .map_err(|_| "this is no admin address of tollkeeper".to_owned())?;
        match body.get("error").and_then(Value::as_str) {
            Some(problem) => Err(problem.to_owned()),
            None if ok => Ok(body),
            None => Err("this is no admin address of tollkeeper".to_owned()),
        }
    };
    // The connection is driven until the answer is there.
    tokio::select! {
        answer = answer => answer,
        ended = connection => Err(ended.map_or_else(words, |()| "no answer".to_owned())),
    }
}

fn describe(answer: &Value, method: &Method) -> String {
    let counters = answer.get("counters").and_then(Value::as_array);
    counters.into_iter().flatten().map(|counter| line(counter, method)).collect()
}

fn line(counter: &Value, method: &Method) -> String {
    let text = |name: &str| counter.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(0);
    let (algorithm, limit) = (text("algorithm"), text("limit"));
    if let Some(problem) = counter.get("problem").and_then(Value::as_str) {
        let cleared = if *method == Method::POST { "; now 0" } else { "" };
        return format!("{algorithm} of {limit}: {problem}{cleared}\n");
    }
    let (used, left) = (number(counter, "used"), number(counter, "left"));
    if *method == Method::POST {
        return format!("{algorithm}: {used} of {limit} were used; now 0\n");
    }
    let reset = number(counter, "reset_ms").div_ceil(1000);
    let head = format!("{algorithm}: {used} used of {limit}, {left} left, resets in {reset} s\n");
    let remembered = counter.get("remembered").and_then(Value::as_array);
    let entry = |it: &Value| {
        let (at, hits) = (number(it, "at_ms"), number(it, "hits"));
        let caller = it.get("caller").and_then(Value::as_str).map(|caller| format!(" by {caller}"));
        format!("  {hits} at {}{}\n", instant(at), caller.unwrap_or_default())
    };
    head + &remembered.into_iter().flatten().map(entry).collect::<String>()
}

fn instant(millis: u64) -> String {
    let instant =
        i64::try_from(millis).ok().and_then(|it| jiff::Timestamp::from_millisecond(it).ok());
    instant.map_or_else(|| format!("{millis} ms"), |instant| instant.to_string())
}
