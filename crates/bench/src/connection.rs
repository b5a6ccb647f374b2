//! One HTTP/2 connection to the service. After it is lost, the next call connects again.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header, uri};
use hyper::{
    body::{Body, Frame},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::time;
use tollkeeper_base::net::{
    grpc,
    peer::{self, PeerError, Protocol},
    tls::{client::TlsClient, root_cause},
};
use tonic::Code;

use super::answer::{self, OverallCode};

/// How long connecting by TCP may take, and how long the rest.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Pause after a failed attempt to connect, so that calls to a service that is gone do not spin.
const PAUSE: Duration = Duration::from_millis(20);

/// Most connections that are tried for a call while each ends before the call is sent.
const SENT_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct ClientConnection {
    addr: String,
    tls: Option<Arc<TlsClient>>,
    uri: Uri,
    headers: HeaderMap,
    sender: Mutex<SendRequest<Message>>,
    /// Held by the call that connects again.
    repair: tokio::sync::Mutex<()>,
    pub(super) reconnects: AtomicU64,
}

impl ClientConnection {
    pub(super) async fn open(addr: &str, tls: Option<Arc<TlsClient>>) -> Result<Self, PeerError> {
        let uri = Uri::builder()
            .scheme(uri::Scheme::HTTP)
            .authority(addr)
            .path_and_query(grpc::METHOD_PATH);
        let uri = uri.build().map_err(PeerError::not_reached)?;
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE)),
            (header::TE, HeaderValue::from_static("trailers")),
        ];
        Ok(Self {
            sender: Mutex::new(connect(addr, tls.as_deref()).await?),
            addr: addr.to_owned(),
            tls,
            uri,
            headers: headers.into_iter().collect(),
            repair: tokio::sync::Mutex::default(),
            reconnects: AtomicU64::new(0),
        })
    }

    pub(super) async fn ask(&self, request: Bytes) -> Result<(OverallCode, Bytes), Code> {
        let mut request = Request::new(Message(Some(request)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        for _ in 0..SENT_MAX {
            let mut sender = self.sender();
            if sender.is_closed() {
                sender = self.reconnect().await?;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return answer::read(response).await,
                Err(mut error) => request = error.take_message().ok_or(Code::Unavailable)?,
            }
        }
        Err(Code::Unavailable)
    }

    fn sender(&self) -> SendRequest<Message> {
        self.sender.lock().clone()
    }

    async fn reconnect(&self) -> Result<SendRequest<Message>, Code> {
        let _repair = self.repair.lock().await;
        let sender = self.sender();
        if !sender.is_closed() {
            return Ok(sender);
        }
        match connect(&self.addr, self.tls.as_deref()).await {
            Ok(sender) => {
                self.reconnects.fetch_add(1, Relaxed);
                *self.sender.lock() = sender.clone();
                Ok(sender)
            }
            Err(_) => {
                time::sleep(PAUSE).await;
                Err(Code::Unavailable)
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the task ends with its socket, or with the runtime of its thread"
)]
async fn connect(addr: &str, tls: Option<&TlsClient>) -> Result<SendRequest<Message>, PeerError> {
    let stream = peer::open(addr, tls, Protocol::Http2, CONNECT_WITHIN).await?;
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| PeerError::Failed(root_cause(&error)))?;
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

/// A body of one frame. No header has its length, as with other gRPC clients.
#[derive(Debug)]
struct Message(Option<Bytes>);

impl Body for Message {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|message| Ok(Frame::data(message))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}
