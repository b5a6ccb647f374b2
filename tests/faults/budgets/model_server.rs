//! A model server that streams: it keeps the ledger, and sends some commits once or twice more than Envoy does.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::mpsc, time::sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::{
    course::{Course, Plan, Schedule},
    ledger::{Ending, Ledger},
    replicas::Replicas,
};

use crate::support::prelude::*;

type Body = BoxBody<Bytes, Broken>;

/// The model server closes the connection.
#[derive(Debug, thiserror::Error)]
#[error("the stream breaks")]
pub struct Broken;

/// The model server of one budget.
pub struct ModelServer {
    pub address: SocketAddr,
    pub ledger: Arc<Ledger>,
}

/// What its connections share.
struct Desk {
    ledger: Arc<Ledger>,
    schedule: Schedule,
    replicas: Replicas,
}

/// Ends its stream in the ledger when Envoy has closed the connection.
struct Open {
    desk: Arc<Desk>,
    plan: Plan,
    /// The token of its hold, if Envoy has got one.
    token: Option<String>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.desk.ledger.end(self.plan.number, Ending::Cut(self.plan.used / 2));
    }
}

impl Open {
    /// Notes the end, then repeats the commit that Envoy sends.
    fn end(&self, ending: Ending, end: &str) {
        self.desk.ledger.end(self.plan.number, ending);
        let Some(token) = &self.token else { return };
        let used = if ending == Ending::Used { self.plan.used.to_string() } else { "none".into() };
        for (number, pause) in self.plan.repeats.into_iter().enumerate() {
            let Some(pause) = pause else { continue };
            let which = self.plan.number as usize + number;
            self.desk.replicas.commit_later(pause, which, token, &used, end);
        }
    }
}

impl ModelServer {
    pub async fn start(limit: u64, schedule: Schedule, replicas: Replicas) -> Self {
        let ledger = Arc::new(Ledger::new(limit));
        let desk = Arc::new(Desk { ledger: Arc::clone(&ledger), schedule, replicas });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                let desk = Arc::clone(&desk);
                let service = service_fn(move |request| answer(Arc::clone(&desk), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
            }
        });
        Self { address, ledger }
    }
}

async fn answer(desk: Arc<Desk>, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let plan = desk.schedule.plan(header("x-stream").unwrap().parse().unwrap());
    desk.ledger.admit(plan);
    let token = header("x-hold").filter(|token| token.len() > 1);
    let open = Open { desk, plan, token };
    // The request's end belongs to the request.
    request.into_body().collect().await.map_err(|_| Broken)?;
    match plan.course {
        Course::Streams | Course::Breaks | Course::ClientLeaves => Ok(stream(open)),
        Course::Answers => {
            sleep(plan.lasts).await;
            open.end(Ending::Used, "200 -");
            let text = format!(r#"{{"usage":{{"total_tokens":{}}}}}"#, plan.used);
            Ok(full("application/json", StatusCode::OK, text))
        }
        Course::Fails => {
            open.end(Ending::Unused, "503 -");
            Ok(full("text/plain", StatusCode::SERVICE_UNAVAILABLE, "overloaded".into()))
        }
        Course::Resets => {
            open.end(Ending::Unused, "503 UC");
            Err(Broken)
        }
        Course::ClientLeavesEarly => {
            sleep(Duration::from_secs(20)).await;
            Err(Broken)
        }
    }
}

fn full(kind: &str, status: StatusCode, text: String) -> Response<Body> {
    let body = Full::from(text).map_err(|never| match never {}).boxed();
    Response::builder().status(status).header("content-type", kind).body(body).unwrap()
}

/// Four events, then the usage.
fn stream(open: Open) -> Response<Body> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let event = |text: &str| Ok(Frame::data(Bytes::from(format!("data: {text}\n\n"))));
    sender.send(event(r#"{"choices":[]}"#)).unwrap();
    tokio::spawn(async move {
        let plan = open.plan;
        for _ in 0..4 {
            tokio::select! {
                () = sleep(plan.lasts / 4) => {}
                // Envoy has closed the connection; the guard notes it.
                () = sender.closed() => return,
            }
            let _ = sender.send(event(r#"{"choices":[]}"#));
        }
        match plan.course {
            Course::ClientLeaves => sender.closed().await,
            Course::Breaks => {
                open.end(Ending::Cut(plan.used / 2), "200 UPE");
                let _ = sender.send(Err(Broken));
            }
            _ => {
                open.end(Ending::Used, "200 -");
                let usage = format!(r#"{{"choices":[],"usage":{{"total_tokens":{}}}}}"#, plan.used);
                let _ = sender.send(event(&usage));
                let _ = sender.send(event("[DONE]"));
            }
        }
    });
    let body = StreamBody::new(UnboundedReceiverStream::new(receiver)).boxed();
    Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
}
