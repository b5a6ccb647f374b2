//! The messages of a gRPC call: reads them from the body of a request, and writes them into the body of
//! an answer. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use std::{
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Frame, Incoming},
    rt::Executor as _,
};
use prost::Message;
use tokio::{
    select,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{self, Instant},
};
use tonic::{Status, body::Body as TonicBody};

use super::{refusal::Refusal, unheard::Unheard};
use crate::{
    edge::arriving::{BudgetSpent, ConnectionBudget, HeldBuffer, HeldBytes},
    fields::write_bytes,
    net::grpc::{self, PREFIX_BYTES},
    process::calls::CallTracker,
};

pub(super) const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

/// About what a call takes that waits for its message, or for its turn, in bytes.
pub(super) const WAITING_CALL_BYTES: usize = 4 << 10;

/// Unread data that a client may send for one call, in bytes.
pub(super) const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Answers of a call that wait to be written, before its next message is read.
const ANSWERS_MAX: usize = 2;

/// Takes the answers of a call of several messages.
pub(super) type Answers = mpsc::Sender<Result<StreamedAnswer, Status>>;

/// One of them, framed, and what its calls have taken.
pub(super) type StreamedAnswer = (Bytes, Option<Unheard>);

/// What is read at least of a call's next messages while one is being answered, in bytes.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// About what a call of another service takes beside its message, in bytes.
const OTHER_CALL_BYTES: usize = 8 << 10;

/// A message, and what it holds until it is answered.
pub(super) type HeldMessage = (Bytes, HeldBytes);

/// Reads the message of a request.
///
/// # Errors
/// If it is longer than `bytes_max`, compressed, malformed or unfinished, takes over 10 s, or exceeds
/// `budget`.
pub(super) async fn read(
    body: Incoming,
    bytes_max: usize,
    budget: &Arc<ConnectionBudget>,
) -> Result<HeldMessage, Refusal> {
    let mut message = pin!(read_all(body, bytes_max, budget));
    // Nearly every message has already arrived, and needs no timer.
    match message.as_mut().now_or_never() {
        Some(message) => message,
        None => {
            let mut waiting = budget.reserve();
            waiting.add(WAITING_CALL_BYTES)?;
            Box::pin(time::timeout(ARRIVES_WITHIN, message))
                .await
                .unwrap_or_else(|_| Err(Refusal::TooSlow))
        }
    }
}

async fn read_all(
    mut body: Incoming,
    bytes_max: usize,
    budget: &Arc<ConnectionBudget>,
) -> Result<HeldMessage, Refusal> {
    let (mut received, mut message_end) = (HeldBuffer::new(budget), None);
    loop {
        let is_whole = message_end.is_some_and(|end| end <= received.len());
        let data = match body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            // A client that leaves after a whole message does not revoke it.
            Some(Err(_)) if !is_whole => return Err(Refusal::Unfinished),
            Some(Err(_)) | None => break,
        };
        // Data after a whole message does not belong to it.
        if is_whole {
            continue;
        }
        if received.is_empty() {
            message_end = end_of_message(&data, bytes_max)?;
            // Most messages arrive in one piece, which is not copied.
            if let Some(end) = message_end.filter(|end| *end <= data.len())
                && body.is_end_stream()
            {
                let (data, held) = received.hold(data)?;
                return Ok((data.slice(PREFIX_BYTES..end), held));
            }
        }
        // A copy, since a slice would keep everything that was read along with it.
        received.push(&data, message_end.unwrap_or_default())?;
        if message_end.is_none() {
            message_end = end_of_message(&received, bytes_max)?;
        }
    }
    match message_end {
        Some(end) if end <= received.len() => {
            let (message, held) = received.take(end)?;
            Ok((message.slice(PREFIX_BYTES..), held))
        }
        _ if received.is_empty() => Err(Refusal::Malformed("the message is missing".to_owned())),
        _ => Err(Refusal::Malformed("the message is cut short".to_owned())),
    }
}

/// The index after the message's last byte, or `None` while its prefix is incomplete.
fn end_of_message(mut received: &[u8], bytes_max: usize) -> Result<Option<usize>, Refusal> {
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

/// The body of a gRPC answer: one message, several, or none if the headers already hold the status.
#[derive(Default)]
pub(super) enum AnswerBody {
    /// The message is next, and then the trailers.
    Message(Bytes),
    /// The trailers with the status are next.
    Trailers,
    /// Messages follow as they are sent here, and then the trailers: with this status, or with OK.
    Stream(mpsc::Receiver<Result<StreamedAnswer, Status>>),
    /// Nothing follows.
    #[default]
    End,
    /// The body of another service's answer.
    Other(Box<OtherCall>),
}

/// A call of another service, and what it holds until its answer ends.
pub(super) struct OtherCall {
    pub(super) body: TonicBody,
    memory: Arc<ConnectionBudget>,
    _held: HeldBytes,
    _slot: OwnedSemaphorePermit,
}

impl OtherCall {
    /// A call that may send up to `bytes` bytes, without an answer.
    pub(super) fn begin(
        bytes: usize,
        slots: &Arc<Semaphore>,
        memory: &Arc<ConnectionBudget>,
    ) -> Result<Self, Refusal> {
        let slot = Arc::clone(slots).try_acquire_owned();
        let (memory, mut held) = (Arc::clone(memory), memory.reserve());
        held.add(OTHER_CALL_BYTES + bytes)?;
        let slot = slot.map_err(|_| Refusal::TooMany)?;
        Ok(Self { body: TonicBody::empty(), memory, _held: held, _slot: slot })
    }

    fn hold(&self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Status> {
        match frame.into_data().map(|data| self.memory.hold_answer(data)) {
            Ok(held) => held.map(Frame::data).map_err(|spent| Refusal::Busy(spent).status()),
            Err(trailers) => Ok(trailers),
        }
    }
}

/// The messages of a call that sends several.
pub(super) struct Messages {
    /// `None` once it has ended: HTTP/2 keeps nothing of it then.
    body: Option<Incoming>,
    received: HeldBuffer,
    /// When the first byte of an unfinished message arrived.
    since: Option<Instant>,
    bytes_max: usize,
    budget: Arc<ConnectionBudget>,
    /// How the body has ended, behind what is received.
    end: Option<Result<(), Refusal>>,
    _waiting: HeldBytes,
}

impl Messages {
    /// The messages in `body`, each of at most `bytes_max` bytes.
    pub(super) fn new(
        body: Incoming,
        bytes_max: usize,
        budget: &Arc<ConnectionBudget>,
    ) -> Result<Self, Status> {
        let mut waiting = budget.reserve();
        waiting.add(WAITING_CALL_BYTES).map_err(|spent| Refusal::Busy(spent).status())?;
        let (budget, received) = (Arc::clone(budget), HeldBuffer::new(budget));
        let (body, since, end) = (Some(body), None, None);
        Ok(Self { body, received, since, bytes_max, budget, end, _waiting: waiting })
    }

    /// The next message; `None` if the client sends no more, also when it is asked again. If this future is dropped, nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Option<HeldMessage>, Refusal> {
        loop {
            if let Some(end) = self.end_of_first()? {
                return Ok(Some(self.take(end)?));
            }
            if self.body.is_none() {
                self.end.take().unwrap_or(Ok(()))?;
                return match self.received.is_empty() {
                    true => Ok(None),
                    false => Err(Refusal::Malformed("the message is cut short".to_owned())),
                };
            }
            self.read().await;
        }
    }

    /// Waits for `answered`. What the client sends meanwhile is read, so that it counts, up to [`READ_AHEAD_BYTES`].
    /// Beyond, HTTP/2 keeps a window at most.
    pub(super) async fn read_during<A>(&mut self, answered: impl Future<Output = A>) -> A {
        let mut answered = pin!(answered);
        while self.body.is_some() && self.received.len() < READ_AHEAD_BYTES {
            select! {
                biased;
                answer = &mut answered => {
                    self.begin_again();
                    return answer;
                }
                () = self.read() => {}
            }
        }
        let mut unread = self.budget.reserve();
        if self.body.is_some()
            && let Err(spent) = unread.add(STREAM_WINDOW_BYTES as usize)
        {
            self.end_with(Err(spent.into()));
        }
        let answer = answered.await;
        self.begin_again();
        answer
    }

    /// A message is not late for the time in which it was not read.
    fn begin_again(&mut self) {
        self.since = self.since.map(|_| Instant::now());
    }

    /// The index after the first message, if it has arrived whole.
    fn end_of_first(&self) -> Result<Option<usize>, Refusal> {
        let end = end_of_message(&self.received, self.bytes_max)?;
        Ok(end.filter(|end| *end <= self.received.len()))
    }

    /// Takes the first message, which ends at this index.
    fn take(&mut self, end: usize) -> Result<HeldMessage, BudgetSpent> {
        let (message, held) = self.received.take(end)?;
        self.since = (!self.received.is_empty()).then(Instant::now);
        Ok((message.slice(PREFIX_BYTES..), held))
    }

    /// Reads the next data. If this future is dropped, nothing is lost.
    async fn read(&mut self) {
        // A message that waits for its turn is not late.
        let since = self.since.filter(|_| matches!(self.end_of_first(), Ok(None)));
        let Some(body) = &mut self.body else { return };
        let frame = match since {
            None => Ok(body.frame().await),
            Some(since) => time::timeout_at(since + ARRIVES_WITHIN, body.frame()).await,
        };
        let data = match frame {
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            Ok(Some(Err(_))) => return self.end_with(Err(Refusal::Unfinished)),
            Ok(None) => return self.end_with(Ok(())),
            Err(_) => return self.end_with(Err(Refusal::TooSlow)),
        };
        // A message gets its memory once, when its length is known: buffers that grow leave freed parts, which nothing counts.
        let first = if self.received.is_empty() { &*data } else { &*self.received };
        let end = end_of_message(first, self.bytes_max).ok().flatten();
        let wanted = end.unwrap_or_default().max(READ_AHEAD_BYTES.min(2 * self.received.len()));
        if let Err(spent) = self.received.push(&data, wanted) {
            return self.end_with(Err(spent.into()));
        }
        if !self.received.is_empty() {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    fn end_with(&mut self, end: Result<(), Refusal>) {
        (self.end, self.body) = (Some(end), None);
    }
}

/// An answer that holds `message`, and counts towards `budget` until it is written.
pub(super) fn write(
    message: &impl Message,
    budget: &Arc<ConnectionBudget>,
) -> Result<Response<AnswerBody>, BudgetSpent> {
    Ok(answer(AnswerBody::Message(framed(message, budget)?)))
}

/// `message` behind its prefix, which counts towards `budget` until it is written.
pub(super) fn framed(
    message: &impl Message,
    budget: &Arc<ConnectionBudget>,
) -> Result<Bytes, BudgetSpent> {
    let length = message.encoded_len();
    let mut framed = Vec::with_capacity(PREFIX_BYTES + length);
    framed.extend_from_slice(&grpc::prefix(length));
    message.encode_raw(&mut framed);
    budget.hold_answer(framed)
}

pub(super) fn answer(body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static(grpc::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    response
}

/// The answer to a call of several messages: `work` sends its messages, and returns how it ends. The connection owns the task.
pub(super) fn answer_stream<Work>(
    calls: &CallTracker,
    work: impl FnOnce(Answers) -> Work,
) -> Response<AnswerBody>
where
    Work: Future<Output = Result<(), Status>> + Send + 'static,
{
    let (answers, to_write) = mpsc::channel(ANSWERS_MAX);
    let work = work(answers.clone());
    calls.execute(async move {
        if let Err(status) = work.await {
            drop(answers.send(Err(status)).await);
        }
    });
    answer(AnswerBody::Stream(to_write))
}

/// How a call of several messages ends when its connection does.
pub(super) fn connection_ends() -> Status {
    Status::unavailable("the connection ends; open another stream")
}

/// A message that is written field by field, behind its prefix: into a `Vec`, to which single bytes are added without a
/// call.
pub(super) struct Framed(Vec<u8>);

impl Framed {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        let mut framed = Vec::with_capacity(PREFIX_BYTES + bytes);
        framed.extend_from_slice(&grpc::prefix(0));
        Self(framed)
    }

    pub(super) fn add(&mut self, number: u8, field: &[u8]) {
        write_bytes(number, field, &mut self.0);
    }

    /// The whole, which counts towards `budget` until it is written.
    pub(super) fn end(self, budget: &Arc<ConnectionBudget>) -> Result<Bytes, BudgetSpent> {
        let Self(mut framed) = self;
        let prefix = grpc::prefix(framed.len() - PREFIX_BYTES);
        framed.iter_mut().zip(prefix).for_each(|(byte, of_prefix)| *byte = of_prefix);
        budget.hold_answer(framed)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Self::Other(call) = &mut *self {
            let frame = ready!(Pin::new(&mut call.body).poll_frame(context));
            return Poll::Ready(frame.map(|frame| call.hold(frame?)));
        }
        if let Self::Stream(messages) = &mut *self {
            return Poll::Ready(Some(Ok(match ready!(messages.poll_recv(context)) {
                Some(Ok((message, unheard))) => {
                    unheard.into_iter().for_each(Unheard::heard);
                    Frame::data(message)
                }
                ended => {
                    *self = Self::End;
                    let status = ended.and_then(Result::err).unwrap_or_else(|| Status::ok(""));
                    let mut trailers = HeaderMap::new();
                    status.add_header(&mut trailers)?;
                    Frame::trailers(trailers)
                }
            })));
        }
        let frame = match mem::take(&mut *self) {
            Self::Message(message) => {
                *self = Self::Trailers;
                Frame::data(message)
            }
            Self::Trailers => {
                let ok = (Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Frame::trailers(HeaderMap::from_iter([ok]))
            }
            Self::End | Self::Other(_) | Self::Stream(_) => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(_) | Self::Trailers | Self::Stream(_) => false,
            Self::End => true,
            Self::Other(call) => call.body.is_end_stream(),
        }
    }
}
