//! One stream: requests, responses, and the answers to them.

use std::{error::Error as _, future::pending, pin::pin, time::Duration};

use futures_util::stream;
use tokio::{
    sync::{
        Mutex,
        mpsc::{self, Sender},
    },
    time::{self, Instant},
};
use tollkeeper_base::{
    VERSION,
    net::grpc::{self, GrpcMethod},
};
use tonic::transport::Channel;

use super::{
    connection,
    control_plane::{ControlPlane, ResponseOutcome},
    pb::{
        AggregatedDiscoveryServiceClient, DiscoveryRequest, DiscoveryResponse, Node, Status,
        TYPE_URL,
    },
    subscription::{Answer, RuleSubscription, Vanished},
};
use crate::watch::Loaded;

/// The largest response, in bytes. A larger one ends the stream.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// A stream that the server has not refused within this time is open: Go's servers send the headers of their answer with
/// the first response, and so perhaps never.
const OPEN_AFTER: Duration = Duration::from_secs(1);

/// Requests that may wait for a server that does not read.
const REQUESTS_MAX: usize = 4;

/// For this time after the first response of another stream, domains that have vanished stay.
const KEEP_VANISHED: Duration = Duration::from_secs(10);

/// Pauses before the second refusal in a row, and the longest. A server answers a refusal at once with the same again.
const NACK_AFTER: Duration = Duration::from_secs(1);
const NACK_AFTER_MAX: Duration = Duration::from_secs(10);

const STREAM_RESOURCES: GrpcMethod = GrpcMethod {
    service: "discovery service",
    name: "envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
};

/// The acknowledgement or refusal of a response in a request.
struct StreamReply {
    nonce: String,
    /// Every problem, if the response is refused.
    refusal: Option<String>,
}

struct RuleStream<'a, F> {
    requests: Sender<DiscoveryRequest>,
    subscription: &'a Mutex<RuleSubscription<F>>,
    control_plane: &'a ControlPlane,
    version: String,
    /// Until when vanished domains stay; `None` before the first response.
    keep_until: Option<Instant>,
    is_first_of_all: bool,
    nacks_in_a_row: u32,
    /// The refusal to send, and when.
    nack: Option<(Instant, StreamReply)>,
}

/// Subscribes, and puts each response in force, until the stream ends. Returns why.
pub(super) async fn run<F: Fn(Loaded)>(
    channel: Channel,
    subscription: &Mutex<RuleSubscription<F>>,
    control_plane: &ControlPlane,
) -> String {
    let accepted = subscription.lock().await.accepted.clone();
    let (requests, mut outgoing) = mpsc::channel(REQUESTS_MAX);
    let mut stream = RuleStream {
        requests,
        version: first_version(accepted.as_deref()),
        is_first_of_all: accepted.is_none(),
        subscription,
        control_plane,
        keep_until: None,
        nacks_in_a_row: 0,
        nack: None,
    };
    if let Err(why) = stream.subscribe() {
        return why;
    }
    let outgoing = stream::poll_fn(move |context| outgoing.poll_recv(context));
    let client = AggregatedDiscoveryServiceClient::new(channel);
    let mut client = client.max_decoding_message_size(RESPONSE_BYTES_MAX);
    let opening = client.stream_aggregated_resources(outgoing);
    let mut responses = match open(opening, control_plane).await {
        Ok(response) => response.into_inner(),
        Err(why) => return why,
    };
    loop {
        let nack_at = stream.nack.as_ref().map(|(at, _)| *at);
        let keeps_vanished = subscription.lock().await.keeps_vanished();
        let remove_at = stream.keep_until.filter(|_| keeps_vanished);
        let done = tokio::select! {
            message = responses.message() => match message {
                Ok(Some(response)) => stream.answer(response).await,
                Ok(None) => Err("the control plane has ended the stream".to_owned()),
                Err(status) => Err(grpc::in_words(&status, &STREAM_RESOURCES)),
            },
            () = until(nack_at) => stream.send_nack(),
            () = until(remove_at) => {
                subscription.lock().await.remove_vanished().await;
                Ok(())
            }
        };
        if let Err(why) = done {
            return why;
        }
    }
}

/// Waits for the headers of the server's answer. Once it has not refused the stream, and has shown that it speaks HTTP/2,
/// there is a connection.
async fn open<T>(
    opening: impl Future<Output = Result<T, tonic::Status>>,
    control_plane: &ControlPlane,
) -> Result<T, String> {
    let in_words = |status: tonic::Status| grpc::in_words(&status, &STREAM_RESOURCES);
    let mut opening = pin!(opening);
    let opened = match time::timeout(OPEN_AFTER, &mut opening).await {
        Ok(Err(status)) if status.source().is_some() => {
            connection::diagnose(&control_plane.target).await?;
            return Err(in_words(status));
        }
        Ok(opened) => Some(opened.map_err(in_words)?),
        Err(_) => {
            connection::diagnose(&control_plane.target).await?;
            None
        }
    };
    control_plane.connected();
    match opened {
        Some(opened) => Ok(opened),
        None => opening.await.map_err(in_words),
    }
}

/// The version in the first request of a stream. A server is silent if it is the server's own, which may by now stand
/// for other content; none has this one.
fn first_version(accepted: Option<&str>) -> String {
    accepted.map(|version| format!("{version}#reconnect")).unwrap_or_default()
}

impl<F: Fn(Loaded)> RuleStream<'_, F> {
    fn subscribe(&mut self) -> Result<(), String> {
        let node = Node {
            id: self.control_plane.target.node.clone(),
            user_agent_name: "tollkeeper".to_owned(),
            user_agent_version: VERSION.to_owned(),
        };
        let request = self.request(StreamReply { nonce: String::new(), refusal: None });
        self.send(DiscoveryRequest { node: Some(node), ..request })
    }

    /// Takes a response, and answers it, at once or later.
    async fn answer(&mut self, response: DiscoveryResponse) -> Result<(), String> {
        if response.type_url != TYPE_URL {
            return Err(format!(
                "the control plane sends resources of another type than {TYPE_URL}"
            ));
        }
        let now = Instant::now();
        let keep_until = *self.keep_until.get_or_insert(now + KEEP_VANISHED);
        let vanished = if self.is_first_of_all || now >= keep_until {
            Vanished::Removed
        } else {
            Vanished::Kept
        };
        let (nonce, version) = (response.nonce.clone(), response.version_info.clone());
        // A refusal that was not sent yet is of an older response.
        self.nack = None;
        match self.subscription.lock().await.take(response, vanished).await {
            Answer::Ack(outcome) => {
                self.control_plane.responded(&version, outcome);
                self.nacks_in_a_row = 0;
                self.version = version;
                self.send(self.request(StreamReply { nonce, refusal: None }))
            }
            Answer::Nack(refusal) => {
                self.control_plane.responded(&version, ResponseOutcome::Refused);
                let at = now + nack_after(self.nacks_in_a_row);
                self.nacks_in_a_row = self.nacks_in_a_row.saturating_add(1);
                self.nack = Some((at, StreamReply { nonce, refusal: Some(refusal) }));
                Ok(())
            }
        }
    }

    fn send_nack(&mut self) -> Result<(), String> {
        let Some((_, reply)) = self.nack.take() else { return Ok(()) };
        self.control_plane.nacked();
        self.send(self.request(reply))
    }

    fn request(&self, StreamReply { nonce, refusal }: StreamReply) -> DiscoveryRequest {
        let code = tonic::Code::InvalidArgument.into();
        DiscoveryRequest {
            version_info: self.version.clone(),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail: refusal.map(|message| Status { code, message }),
            ..DiscoveryRequest::default()
        }
    }

    fn send(&self, request: DiscoveryRequest) -> Result<(), String> {
        let sent = self.requests.try_send(request);
        sent.map_err(|_| "the control plane reads no requests".to_owned())
    }
}

/// The pause before a refusal that follows this many others.
fn nack_after(nacks_in_a_row: u32) -> Duration {
    match nacks_in_a_row.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => {
            NACK_AFTER.saturating_mul(2_u32.saturating_pow(doublings)).min(NACK_AFTER_MAX)
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => time::sleep_until(at).await,
        None => pending().await,
    }
}
