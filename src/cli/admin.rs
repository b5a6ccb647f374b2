//! A client of a service's admin address.

use std::{
    fmt, fs,
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    header::{self, HeaderValue},
};
use serde_json::Value;
use tokio::{runtime::Builder, time};

use super::{
    address::{ClientTarget, ServiceAddr},
    output::{Ended, Failed, OutputFlag, complain, failure, pretty_json, say, usage},
    tls::{TlsFlags, uses_tls},
};
use crate::{
    engine::time::Timestamp,
    net::{
        peer::{self, PeerError, Protocol, http1},
        tls::client::{TlsClient, host_of},
    },
    settings::Environment,
    text::printable::printable,
};

const VARIABLE: &str = "TOLLKEEPER_ADMIN_ADDR";

pub(super) const ADDR_DEFAULT: &str = "127.0.0.1:6070";

/// How long to wait for a connection, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Most items of a page for which a limit is sent.
const PAGE_MAX: usize = 1000;

/// How a command reaches an admin address that is not open.
#[derive(Debug, clap::Args)]
pub(super) struct AdminAccess {
    /// File that holds the bearer token of the admin address
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsFlags,
}

/// Which replicas of a service a command asks.
#[derive(Debug, clap::Args)]
pub(super) struct ReplicaFlags {
    /// Admin address of a replica, repeatable; a name stands for all of its addresses
    /// [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(short, long, alias = "admin-addr", value_name = "HOST:PORT")]
    addr: Vec<String>,
    #[command(flatten)]
    access: AdminAccess,
}

impl ReplicaFlags {
    /// The replicas: by the flags, else the one of a service with the same environment.
    pub(super) fn servers(
        &self,
        environment: &Environment,
    ) -> Result<Vec<AdminServer<'_>>, String> {
        let mut servers = Vec::new();
        for name in &self.addr {
            let name = address(Some(name), environment)?;
            for addr in addresses_of(name) {
                servers.push(AdminServer::named(host_of(name), addr, &self.access)?);
            }
        }
        if servers.is_empty() {
            servers.push(AdminServer::new(address(None, environment)?, &self.access)?);
        }
        Ok(servers)
    }
}

/// Which service a command asks, and how it prints the answer.
#[derive(Debug, clap::Args)]
pub(super) struct AdminFlags {
    /// Admin address of the service [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(short, long, alias = "admin-addr", value_name = "HOST:PORT")]
    addr: Option<String>,
    #[command(flatten)]
    access: AdminAccess,
    #[command(flatten)]
    output: OutputFlag,
}

impl AdminFlags {
    pub(super) fn with_server(
        &self,
        environment: &Environment,
        command: impl FnOnce(&AdminServer<'_>) -> Result<ExitCode, String>,
    ) -> Ended {
        let addr = address(self.addr.as_deref(), environment).map_err(usage)?;
        let server = AdminServer::new(addr, &self.access).map_err(usage)?;
        command(&server).map_err(failure)
    }

    /// Prints an answer, as text or as it is, and what it lacks.
    pub(super) fn show(
        &self,
        server: &AdminServer<'_>,
        answer: &Value,
        text: impl FnOnce(&Value) -> String,
    ) -> ExitCode {
        let text = self.output.write(|| text(answer), answer);
        server.say(&text, incomplete(answer), ExitCode::SUCCESS)
    }
}

/// The address: the flag, else the one of a service with the same environment.
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

/// All addresses of a name, such as a headless service's; HOST:PORT itself if it has one, is local, or is unknown.
fn addresses_of(addr: &str) -> Vec<String> {
    let all: Vec<_> = addr.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if all.len() < 2 || all.iter().any(|addr: &SocketAddr| addr.ip().is_loopback()) {
        return vec![addr.to_owned()];
    }
    all.iter().map(ToString::to_string).collect()
}

/// The admin address of a service, and how to reach it.
pub(super) struct AdminServer<'a> {
    pub(super) addr: String,
    token_file: Option<&'a Path>,
    tls: Option<TlsClient>,
}

impl<'a> AdminServer<'a> {
    pub(super) fn new(addr: &str, access: &'a AdminAccess) -> Result<Self, String> {
        Self::named(host_of(addr), addr.to_owned(), access)
    }

    /// The server at one of the addresses of a host, whose certificate has the host's name.
    fn named(host: &str, addr: String, access: &'a AdminAccess) -> Result<Self, String> {
        let tls = access.tls.client(b"http/1.1", Some(host))?;
        let server = Self { addr, token_file: access.token_file.as_deref(), tls };
        server.authorization()?;
        Ok(server)
    }

    /// Sends one request, and returns the JSON of its answer.
    ///
    /// # Errors
    /// A message for the user, with the address: the connection failed, something else listens there, or the service
    /// refused.
    pub(super) fn ask(
        &self,
        method: Method,
        path_and_query: &str,
        body: String,
    ) -> Result<Value, String> {
        let mut request = Request::builder().method(method).uri(path_and_query);
        if let Some(authorization) = self.authorization()? {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::from(body)).map_err(|error| error.to_string())?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let answer = runtime.block_on(exchange(&self.addr, self.tls.as_ref(), request));
        answer.map_err(|failure| match failure {
            // What is wrong is the descriptor, not what listens at the address.
            Failure::Refused(problem) if problem.starts_with("no limit applies") => {
                format!("{problem}; `tollkeeper explain` with the same arguments says why")
            }
            failure => self.problem(self.advise(failure)),
        })
    }

    /// Reads a list page by page, to its end or until it has `max` items. Returns the items, and the last page.
    pub(super) fn ask_pages(
        &self,
        path: &str,
        name: &str,
        filters: [(&str, &Option<String>); 2],
        max: Option<usize>,
    ) -> Result<(Vec<Value>, Value), String> {
        let (mut items, mut after) = (Vec::new(), None);
        loop {
            let limit = max.map(|max| (max - items.len()).min(PAGE_MAX).to_string());
            let parameters = filters.into_iter().chain([("after", &after), ("limit", &limit)]);
            let given = parameters.filter_map(|(name, value)| Some((name, value.as_deref()?)));
            let page = self.ask(Method::GET, &path_and_query(path, given), String::new())?;
            items.extend_from_slice(list(&page, name));
            after = page.get("more").and_then(Value::as_str).map(str::to_owned);
            if after.is_none() || max.is_some_and(|max| items.len() >= max) {
                return Ok((items, page));
            }
        }
    }

    pub(super) fn not_tollkeeper(&self) -> String {
        self.problem(self.advise(Failure::NotTollkeeper))
    }

    /// Prints an answer, and what it lacks. The exit code is `complete`, or a failure's if it lacks anything.
    pub(super) fn say(&self, text: &str, incomplete: Option<&str>, complete: ExitCode) -> ExitCode {
        let Some(incomplete) = incomplete else { return say(text, complete) };
        let code = say(text, ExitCode::FAILURE);
        complain(self.problem(incomplete));
        code
    }

    /// The token of the file, which may have changed since the last request.
    fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let Some(path) = self.token_file else { return Ok(None) };
        let problem = |what: &str| format!("--token-file: {}: {what}", path.display());
        let bytes = fs::read(path).map_err(|error| problem(&error.to_string()))?;
        let token = bytes.trim_ascii();
        if token.is_empty() {
            return Err(problem("the file is empty"));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(problem(
                "the file must hold one token of visible ASCII characters, without its name",
            ));
        }
        let value = HeaderValue::from_bytes(&[b"Bearer ", token].concat());
        value.map(Some).map_err(|error| problem(&error.to_string()))
    }

    fn problem(&self, problem: impl fmt::Display) -> String {
        format!("{}: {problem}", printable(self.addr.as_bytes()))
    }

    fn advise(&self, failure: Failure) -> String {
        let tls = uses_tls(self.tls.as_ref());
        let target = ClientTarget { name: "admin", default: ADDR_DEFAULT, tls };
        match (failure, self.token_file) {
            (Failure::Refused(problem), _) => problem,
            (Failure::Unauthorized(problem), None) => {
                format!("{problem}; give its file by --token-file")
            }
            (Failure::Unauthorized(problem), Some(file)) => {
                let file = file.display();
                format!(
                    "{problem}; --token-file {file} must hold the token of the service's --admin-token-file"
                )
            }
            (Failure::NotTollkeeper, _) => target.ask_about("the answer is not tollkeeper's"),
            (Failure::Peer(error), _) => target.advise(&error),
        }
    }
}

/// Asks all replicas at once. Returns the address of each, and its answer.
pub(super) fn ask_each<'a>(
    servers: &'a [AdminServer<'_>],
    path: &str,
) -> Vec<(&'a str, Result<Value, String>)> {
    thread::scope(|scope| {
        let ask = |server: &'a AdminServer<'_>| {
            scope.spawn(move || (&*server.addr, server.ask(Method::GET, path, String::new())))
        };
        let asking: Vec<_> = servers.iter().map(ask).collect();
        asking.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// The address of each replica that gave an answer, and the answer.
type Answers<'a> = Vec<(&'a str, Value)>;

/// The answers of those replicas that give one, and the exit code: that of a failure if one gives none, which is printed.
///
/// # Errors
/// No replica gives an answer.
pub(super) fn answers<'a>(
    servers: &'a [AdminServer<'_>],
    path: &str,
) -> Result<(Answers<'a>, ExitCode), Failed> {
    let (mut answers, mut problems) = (Vec::new(), Vec::new());
    for (addr, answer) in ask_each(servers, path) {
        match answer {
            Ok(answer) => answers.push((addr, answer)),
            Err(problem) => problems.push(problem),
        }
    }
    let failed = Failed::problems(problems);
    if answers.is_empty() {
        return Err(failed);
    }
    let code = if answers.len() == servers.len() { ExitCode::SUCCESS } else { failed.report() };
    Ok((answers, code))
}

/// The answers of replicas as JSON: the one of the only replica, or a list.
pub(super) fn json_of(servers: &[AdminServer<'_>], answers: Answers<'_>) -> String {
    let mut answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
    pretty_json(&if servers.len() == 1 { answers.remove(0) } else { Value::Array(answers) })
}

/// What an answer lacks, as a sentence, if it lacks anything.
pub(super) fn incomplete(answer: &Value) -> Option<&str> {
    answer.get("incomplete").and_then(Value::as_str)
}

pub(super) fn path_and_query<'a>(
    path: &str,
    parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    format!("{path}?{}", query.extend_pairs(parameters).finish()).trim_end_matches('?').to_owned()
}

pub(super) fn list<'value>(value: &'value Value, name: &str) -> &'value [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn text<'value>(value: &'value Value, name: &str) -> &'value str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The last line of a list that lacks some, with what shows the others.
pub(super) fn more_exist(remedy: &str) -> String {
    format!("more exist: {remedy}\n")
}

pub(super) fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// A time in milliseconds since 1970, as a date.
pub(super) fn instant(millis: u64) -> String {
    Timestamp::from_millis(millis).date()
}

enum Failure {
    /// The service refused the request, for the reason in the text.
    Refused(String),
    /// The service requires another token; the text explains it.
    Unauthorized(String),
    NotTollkeeper,
    Peer(PeerError),
}

async fn exchange(
    addr: &str,
    tls: Option<&TlsClient>,
    mut request: Request<Full<Bytes>>,
) -> Result<Value, Failure> {
    let stream = peer::reach(addr, TIMEOUT).await.map_err(Failure::Peer)?;
    // The address, since the service refuses names: a web page could have chosen them.
    let host = stream.peer_addr().map_err(|_| Failure::Peer(PeerError::Ended))?.to_string();
    let host = HeaderValue::try_from(host).map_err(|error| Failure::Refused(error.to_string()))?;
    request.headers_mut().insert(header::HOST, host);
    let answer = async {
        let stream = peer::secure(stream, addr, tls, Protocol::Http1).await?;
        http1::exchange(stream, request, ANSWER_BYTES_MAX).await
    };
    match time::timeout(TIMEOUT, answer).await.unwrap_or(Err(PeerError::Silent(TIMEOUT))) {
        Ok(answer) => read_answer(answer.status(), answer.body()),
        Err(PeerError::Ended) => {
            let shown = peer::diagnose(addr, tls, Protocol::Http1, TIMEOUT).await;
            Err(Failure::Peer(shown.err().unwrap_or(PeerError::Ended)))
        }
        Err(error) => Err(Failure::Peer(error)),
    }
}

fn read_answer(status: StatusCode, body: &[u8]) -> Result<Value, Failure> {
    let body: Value = serde_json::from_slice(body).map_err(|_| Failure::NotTollkeeper)?;
    match body.get("error").and_then(Value::as_str) {
        Some(problem) if status == StatusCode::UNAUTHORIZED => {
            Err(Failure::Unauthorized(problem.to_owned()))
        }
        Some(problem) => Err(Failure::Refused(problem.to_owned())),
        None if status.is_success() || incomplete(&body).is_some() => Ok(body),
        None => Err(Failure::NotTollkeeper),
    }
}
