//! Clients: many streams at a time, each on a connection of its own to one of the Envoys.

use std::{pin::pin, sync::atomic::Ordering::Relaxed};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    course::{Course, Plan, Schedule},
    ledger::Ledger,
};

use crate::support::prelude::*;

/// What became of the requests.
#[derive(Default)]
pub struct Tally {
    /// Streams that came to their end.
    pub whole: AtomicU64,
    pub denied: AtomicU64,
    /// Other statuses, and connections that ended early, of clients that did not leave.
    pub failed: AtomicU64,
    /// Clients that left without an answer.
    pub unanswered: AtomicU64,
    /// Estimates of requests without an answer, whose takes may have been charged.
    pub unanswered_hits: AtomicU64,
}

/// Where the streams go, and who they are.
pub struct Crowd {
    pub envoys: Vec<SocketAddr>,
    pub user: String,
    pub schedule: Schedule,
    pub ledger: Arc<Ledger>,
    pub tally: Tally,
    next: AtomicU64,
    /// No further request is made.
    pub stop: AtomicBool,
}

impl Crowd {
    pub fn new(
        envoys: Vec<SocketAddr>,
        user: &str,
        schedule: Schedule,
        ledger: Arc<Ledger>,
    ) -> Self {
        let (user, tally) = (user.to_owned(), Tally::default());
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { envoys, user, schedule, ledger, tally, next, stop }
    }

    /// `clients` at a time, each with this number of requests, one after the other; returns when all have ended.
    pub async fn run(self: &Arc<Self>, clients: usize, tries: usize, pause: Duration) {
        let mut all = JoinSet::new();
        for client in 0..clients {
            let crowd = Arc::clone(self);
            all.spawn(async move {
                for number in 0..tries {
                    crowd.request(client + number).await;
                    if crowd.stop.load(Relaxed) {
                        return;
                    }
                    sleep(pause).await;
                }
            });
        }
        all.join_all().await;
    }

    /// One request, by the plan of the next stream.
    async fn request(&self, turn: usize) {
        let plan = self.schedule.plan(self.next.fetch_add(1, Relaxed));
        let envoy = self.envoys[turn % self.envoys.len()];
        if plan.course == Course::ClientLeavesEarly {
            let waits = Duration::from_millis(30) + plan.lasts;
            // It is dropped, and its connection closed, after the ledger knows.
            let mut exchange = pin!(self.exchange(envoy, &plan));
            if timeout(waits, exchange.as_mut()).await.is_err() {
                self.ledger.leave(&plan, 0);
                self.tally.unanswered.fetch_add(1, Relaxed);
                self.tally.unanswered_hits.fetch_add(plan.estimate, Relaxed);
            }
        } else {
            let ended = timeout(Duration::from_secs(40), self.exchange(envoy, &plan)).await;
            assert!(ended.is_ok(), "{plan:?} has no end");
        }
    }

    async fn exchange(&self, envoy: SocketAddr, plan: &Plan) {
        match self.send(envoy, plan).await {
            Err(_) => {
                self.tally.failed.fetch_add(1, Relaxed);
                self.tally.unanswered_hits.fetch_add(plan.estimate, Relaxed);
            }
            Ok(response) => self.read(response, plan).await,
        }
    }

    async fn send(
        &self,
        envoy: SocketAddr,
        plan: &Plan,
    ) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
        let socket = TcpStream::connect(envoy).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        // The connection ends with the response or with the task that waits for it.
        tokio::spawn(connection);
        let body = match plan.announces {
            true => format!(r#"{{"max_tokens":{},"stream":true}}"#, plan.estimate),
            false => r#"{"max_tokens":"many","stream":true}"#.to_owned(),
        };
        let request = Request::post("/v1/chat/completions")
            .header("host", "model")
            .header("connection", "close")
            .header("content-type", "application/json")
            .header("x-user", &self.user)
            .header("x-stream", plan.number)
            .body(Full::new(Bytes::from(body)))?;
        Ok(sender.send_request(request).await?)
    }

    async fn read(&self, response: Response<Incoming>, plan: &Plan) {
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status == 429 {
            self.tally.denied.fetch_add(1, Relaxed);
            return;
        }
        if status == 200 && plan.course == Course::ClientLeaves {
            let _ = body.frame().await;
            self.ledger.leave(plan, plan.used / 2);
            return;
        }
        let whole = body.collect().await.is_ok() && status == 200;
        let expected = matches!(plan.course, Course::Streams | Course::Answers);
        if whole {
            self.tally.whole.fetch_add(1, Relaxed);
        } else if expected {
            self.tally.failed.fetch_add(1, Relaxed);
            // Envoy denies with 500 if the take had no answer.
            self.tally.unanswered_hits.fetch_add(plan.estimate, Relaxed);
        }
    }
}
