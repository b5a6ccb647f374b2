//! Addresses of services, and a service of tollkeeper.v1 that fails as its test wants.
#![allow(dead_code, reason = "each test uses a part")]

/// From the same source as the messages of the client.
mod generated {
    include!("generated/tollkeeper.v1.rs");
}

use std::{
    collections::VecDeque,
    env,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use generated::tollkeeper_server::{Tollkeeper, TollkeeperServer};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};
use tokio_stream::{Empty, wrappers::TcpListenerStream};
use tollkeeper_client::{
    Call, Client, Commit, Options,
    v1::{
        CommitRequest, CommitResponse, CommitResult, DecideRequest, DecideResponse, RenewRequest,
        RenewResponse, Verdict, verdict::Code,
    },
};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// An address that the tests of the repository set; ../conformance/README.md describes them. Without a service, a test
/// of one has nothing to do.
pub fn service(name: &str) -> Option<String> {
    let address = env::var(name).ok();
    if address.is_none() {
        println!("{name} is not set: not tested");
    }
    address
}

/// A timeout for busy machines.
pub fn patient() -> Options {
    Options { timeout: Duration::from_secs(10), ..Options::default() }
}

pub fn connect(address: &str, options: Options) -> Client {
    Client::new(address, "conformance", options).unwrap()
}

/// A text that no other run has, so that its counters are new.
pub fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{}-{:?}", now.as_nanos(), std::thread::current().id())
}

/// Holds every call, and fails as many commits as it has codes.
#[derive(Clone, Default)]
pub struct Unreliable {
    pub failures: Arc<Mutex<VecDeque<tonic::Code>>>,
    pub commits: Arc<Mutex<Vec<Commit>>>,
    pub calls: Arc<Mutex<Vec<Call>>>,
    /// Whether answers have no verdicts.
    pub is_short: bool,
}

impl Unreliable {
    /// Serves at an address, on a runtime of its own, with which its connections end.
    pub fn serve(&self, address: &str) -> (SocketAddr, Serving) {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = Server::builder().add_service(TollkeeperServer::new(self.clone()));
        runtime.spawn(async {
            let incoming = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            server.serve_with_incoming(incoming).await.unwrap();
        });
        (address, Serving(Some(runtime)))
    }
}

/// A service that runs until this is dropped.
pub struct Serving(Option<Runtime>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

#[tonic::async_trait]
impl Tollkeeper for Unreliable {
    type DecideStreamStream = Empty<Result<DecideResponse, Status>>;

    async fn decide(
        &self,
        request: Request<DecideRequest>,
    ) -> Result<Response<DecideResponse>, Status> {
        let verdict = Verdict { code: Code::Ok.into(), hold: "token".into(), ..Verdict::default() };
        let calls = request.into_inner().calls;
        let verdicts = vec![verdict; if self.is_short { 0 } else { calls.len() }];
        self.calls.lock().unwrap().extend(calls);
        Ok(Response::new(DecideResponse { verdicts }))
    }

    async fn commit(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        self.commits.lock().unwrap().extend(request.into_inner().commits);
        match self.failures.lock().unwrap().pop_front() {
            Some(code) => Err(Status::new(code, "lost")),
            None => Ok(Response::new(CommitResponse { results: vec![CommitResult::default()] })),
        }
    }

    async fn decide_stream(
        &self,
        _: Request<Streaming<DecideRequest>>,
    ) -> Result<Response<Self::DecideStreamStream>, Status> {
        Err(Status::unimplemented("not used"))
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        Err(Status::unimplemented("not used"))
    }
}
