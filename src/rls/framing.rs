//! The messages of a unary gRPC call: one is read from a request's body, and one written into an
//! answer's. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use std::{
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use prost::Message;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time,
};
use tonic::{Status, body::Body as TonicBody};

use super::refusal::Refusal;
use crate::grpc::{self, PREFIX_BYTES};

/// How long a request may take to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

/// Room for messages that have not arrived whole on one connection, in bytes: for as many calls as Envoy
/// makes at a time by default (1,024), each with all the headers that it takes by default (60 KiB); or for
/// one of the most that `--max-message-bytes` may say.
const ARRIVING_BYTES_MAX: usize = PREFIX_BYTES + (64 << 20);

/// Room for messages that arrive in parts.
pub(super) struct Room(Semaphore);

impl Default for Room {
    fn default() -> Self {
        Self(Semaphore::new(ARRIVING_BYTES_MAX))
    }
}

impl Room {
    /// Takes room for a message. To wait for others could be to wait for each other: what has been read of
    /// a message that waits fills the windows through which theirs must come.
    fn take(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Refusal> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.0.try_acquire_many(permits).map_err(|_| {
            Refusal::Busy(format!("messages that arrive in parts: over {ARRIVING_BYTES_MAX} bytes"))
        })
    }
}

/// Reads the message of a request.
///
/// # Errors
/// If it is longer than `bytes_max`, compressed, malformed or unfinished, takes over 10 s, or finds no room.
pub(super) async fn read(body: Incoming, bytes_max: usize, room: &Room) -> Result<Bytes, Refusal> {
    let mut message = pin!(read_all(body, bytes_max, room));
    // Nearly all have arrived already, and need no timer.
    match message.as_mut().now_or_never() {
        Some(message) => message,
        None => Box::pin(time::timeout(ARRIVES_WITHIN, message))
            .await
            .unwrap_or_else(|_| Err(Refusal::TooSlow)),
    }
}

async fn read_all(mut body: Incoming, bytes_max: usize, room: &Room) -> Result<Bytes, Refusal> {
    let (mut received, mut message) = (BytesMut::new(), None);
    loop {
        let is_whole = message.as_ref().is_some_and(|(end, _)| *end <= received.len());
        let data = match body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            // Whoever has sent a whole message and then goes does not take it back.
            Some(Err(_)) if !is_whole => {
                return Err(Refusal::Unfinished);
            }
            Some(Err(_)) | None => break,
        };
        // What comes behind a whole message is no part of it.
        if is_whole {
            continue;
        }
        if received.is_empty() && body.is_end_stream() {
            // Most messages come in one piece, which is not copied.
            if let Some(end) = end(&data, bytes_max)?.filter(|end| *end <= data.len()) {
                return Ok(data.slice(PREFIX_BYTES..end));
            }
        }
        // A slice would keep all that was read with it.
        received.extend_from_slice(&data);
        if message.is_none()
            && let Some(end) = end(&received, bytes_max)?
        {
            message = Some((end, room.take(end)?));
        }
    }
    match message {
        Some((end, _room)) if end <= received.len() => {
            Ok(received.split_to(end).freeze().slice(PREFIX_BYTES..))
        }
        _ if received.is_empty() => Err(Refusal::Malformed("the message is missing".to_owned())),
        _ => Err(Refusal::Malformed("the message is cut short".to_owned())),
    }
}

/// Where the message ends, once its prefix is there.
fn end(mut received: &[u8], bytes_max: usize) -> Result<Option<usize>, Refusal> {
    if received.len() < PREFIX_BYTES {
        return Ok(None);
    }
    match received.get_u8() {
        0 => {}
        1 => return Err(Refusal::Compressed),
        flag => return Err(Refusal::Malformed(format!("unknown flag {flag} before a message"))),
    }
    let bytes = usize::try_from(received.get_u32()).unwrap_or(usize::MAX);
    if bytes > bytes_max {
        return Err(Refusal::TooLong { bytes, bytes_max });
    }
    Ok(Some(PREFIX_BYTES + bytes))
}

/// A gRPC answer: one message, or none where the status stands in the headers.
#[derive(Debug, Default)]
pub(super) enum AnswerBody {
    /// The message comes first.
    Message(Bytes),
    /// Then the status.
    Trailers,
    /// Then it ends.
    #[default]
    End,
    /// Of another service.
    Other(TonicBody),
}

/// Writes a message as an answer.
pub(super) fn write(message: &impl Message) -> Response<AnswerBody> {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.extend_from_slice(&grpc::prefix(length));
    message.encode_raw(&mut framed);
    let mut response = Response::new(AnswerBody::Message(framed.freeze()));
    let grpc = HeaderValue::from_static(grpc::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    response
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Self::Other(body) = &mut *self {
            return Pin::new(body).poll_frame(context);
        }
        let frame = match std::mem::take(&mut *self) {
            Self::Message(message) => {
                *self = Self::Trailers;
                Frame::data(message)
            }
            Self::Trailers => {
                let ok = (Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Frame::trailers(HeaderMap::from_iter([ok]))
            }
            Self::End | Self::Other(_) => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(_) | Self::Trailers => false,
            Self::End => true,
            Self::Other(body) => body.is_end_stream(),
        }
    }
}
