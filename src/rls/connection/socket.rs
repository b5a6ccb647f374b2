//! The socket under an HTTP/2 connection, which shows h2 its input in turns, and the end of the input late.
//!
//! Each time that h2 hands over a call it reads again. So a client that sends without a pause would be read until
//! nothing is left, and the other connections of its worker would wait. Within one poll of the connection, only so
//! much is read.
//!
//! What has arrived beyond a turn is still taken out of the system's buffer, since the system accepts no more than has
//! room there: an Envoy that ends closes its socket, and what it could not send by then is lost.
//!
//! As soon as h2 sees the end of its input, or fails to write, it drops the calls that it has read but not yet
//! handed over. An Envoy that shuts down writes the debits of all its streams and closes the connection, so
//! the end of the input is hidden until every call before it has been handed over.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take},
    time::{self, Sleep},
};
use tokio_util::io::poll_read_buf;

use super::header_blocks::{HeaderBlocks, PREFACE};
use crate::{
    edge::arriving::{ConnectionBudget, HeldBytes},
    net::tls::ByteStream,
    rls::large_calls::LargeCalls,
};

/// A socket that shows the end of its input only when [`InputGate::run`] allows it.
pub(crate) struct Socket {
    /// Its limit is what remains of the turn.
    stream: Take<Box<dyn ByteStream>>,
    /// What was read ahead of its turn, in parts that count meanwhile.
    ahead: VecDeque<BytesMut>,
    held: HeldBytes,
    /// Whether the stream has ended, or failed, behind `ahead`.
    ended: bool,
    gate: InputGate,
    large_calls: LargeCalls,
    output: Output,
    /// The reader, while it waits for room for output.
    waits: Option<Waker>,
    /// The bytes of the preface that have not been read.
    preface_remaining: u64,
    header_blocks: HeaderBlocks,
    memory: Arc<ConnectionBudget>,
    /// How long the client still has to close the connection, once it has ended.
    lingers: Option<Pin<Box<Sleep>>>,
}

/// How long a connection that has ended waits for its client to close it.
const LINGERS: Duration = Duration::from_millis(500);

/// Most parts that are read ahead, and the bytes of each.
const AHEAD_MAX: usize = 64;
const AHEAD_BYTES: usize = 16 << 10;

/// Most bytes that are read, and then worked on, before other connections of this worker have their turn: some tens of
/// small calls.
const TURN_BYTES: u64 = 4 << 10;

enum Output {
    Open,
    /// The client does not read: what it sends meanwhile is not read either, so that answers do not pile up.
    Blocked,
    /// A write failed. Data of the client may still be unread, so the socket stays open, and further output
    /// is discarded.
    Discarded,
}

/// How much of a socket's input h2 may see.
#[derive(Clone, Default)]
pub(crate) struct InputGate(Arc<GateState>);

#[derive(Default)]
struct GateState {
    reached: AtomicBool,
    shown: AtomicBool,
    has_spoken: AtomicBool,
    /// The bytes that may still be read in this turn.
    turn: AtomicU64,
}

impl Socket {
    pub(crate) fn new(
        stream: Box<dyn ByteStream>,
        gate: InputGate,
        large_calls: LargeCalls,
        memory: Arc<ConnectionBudget>,
    ) -> Self {
        Self {
            stream: stream.take(0),
            ahead: VecDeque::new(),
            held: memory.reserve(),
            ended: false,
            gate,
            large_calls,
            output: Output::Open,
            waits: None,
            preface_remaining: PREFACE.len() as u64,
            header_blocks: HeaderBlocks::new(Arc::clone(&memory)),
            memory,
            lingers: None,
        }
    }

    /// Reads what has arrived, while there is memory for it.
    fn read_ahead(&mut self, context: &mut Context<'_>) {
        while !self.ended {
            if self.ahead.back().is_none_or(|part| part.len() == part.capacity()) {
                let is_full = self.ahead.len() == AHEAD_MAX || !self.memory.has_room(AHEAD_BYTES);
                if is_full || self.held.add(AHEAD_BYTES).is_err() {
                    return;
                }
                self.ahead.push_back(BytesMut::with_capacity(AHEAD_BYTES));
            }
            let Some(part) = self.ahead.back_mut() else { return };
            let read = poll_read_buf(Pin::new(self.stream.get_mut()), context, part);
            if part.is_empty() {
                self.ahead.pop_back();
                drop(self.held.split(AHEAD_BYTES));
            }
            match read {
                Poll::Ready(Ok(1..)) => {}
                Poll::Pending => return,
                // An error, such as a reset, is treated like an orderly end.
                Poll::Ready(Ok(0) | Err(_)) => self.ended = true,
            }
        }
    }

    /// Reads up to `turn` bytes, at first those that were read ahead. Returns their number; 0 is the end.
    fn poll_turn(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        turn: u64,
    ) -> Poll<u64> {
        let Some(part) = self.ahead.front_mut() else {
            if self.ended {
                return Poll::Ready(0);
            }
            self.stream.set_limit(turn);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
            return Poll::Ready(read.map_or(0, |()| turn - self.stream.limit()));
        };
        let most = usize::try_from(turn).unwrap_or(usize::MAX).min(buffer.remaining());
        let shown = most.min(part.len());
        buffer.put_slice(part.get(..shown).unwrap_or_default());
        part.advance(shown);
        if part.is_empty() {
            self.ahead.pop_front();
            drop(self.held.split(AHEAD_BYTES));
        }
        Poll::Ready(shown as u64)
    }
}

impl InputGate {
    /// Whether a whole preface has been read.
    pub(super) fn has_spoken(&self) -> bool {
        self.0.has_spoken.load(Ordering::Relaxed)
    }

    /// Runs the connection that uses the socket. Each poll is a turn.
    pub(crate) async fn run<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|context| {
            self.0.turn.store(TURN_BYTES, Ordering::Relaxed);
            loop {
                let polled = connection.as_mut().poll(context);
                // A connection that waits for input has handed over all of its calls.
                let is_hidden = self.0.reached.load(Ordering::Relaxed)
                    && !self.0.shown.swap(true, Ordering::Relaxed);
                if polled.is_ready() || !is_hidden {
                    return polled;
                }
            }
        })
        .await
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let gate = Arc::clone(&self.gate.0);
        if let Output::Blocked = self.output {
            self.waits = Some(context.waker().clone());
            self.read_ahead(context);
            return Poll::Pending;
        }
        ready!(self.large_calls.poll_room(context));
        if !gate.reached.load(Ordering::Relaxed) {
            let turn = gate.turn.load(Ordering::Relaxed);
            if turn == 0 {
                self.read_ahead(context);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let filled = buffer.filled().len();
            let read = ready!(self.poll_turn(context, buffer, turn));
            if read > 0 {
                gate.turn.store(turn - read, Ordering::Relaxed);
                let bytes = buffer.filled().get(filled..).unwrap_or_default();
                self.header_blocks.follow(bytes).map_err(io::Error::other)?;
                if self.preface_remaining > 0 {
                    self.preface_remaining = self.preface_remaining.saturating_sub(read);
                    gate.has_spoken.store(self.preface_remaining == 0, Ordering::Relaxed);
                }
                return Poll::Ready(Ok(()));
            }
            // An error, such as a reset, is treated like an orderly end.
            gate.reached.store(true, Ordering::Relaxed);
        }
        if gate.shown.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        // No wake-up is needed: `InputGate::run` polls again.
        Poll::Pending
    }
}

impl Socket {
    /// Writes with `write`. After a failure, `length` bytes are discarded instead.
    fn write(
        &mut self,
        length: usize,
        write: impl FnOnce(Pin<&mut dyn ByteStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Output::Discarded = self.output {
            return Poll::Ready(Ok(length));
        }
        let written = write(Pin::new(&mut **self.stream.get_mut()));
        self.output = match &written {
            Poll::Ready(Ok(_)) => Output::Open,
            Poll::Ready(Err(_)) => Output::Discarded,
            Poll::Pending => Output::Blocked,
        };
        if written.is_ready()
            && let Some(reader) = self.waits.take()
        {
            reader.wake();
        }
        written.map(|written| written.or(Ok(length)))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(bytes.len(), |stream| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.write(length, |stream| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(context)
    }

    /// Waits for the client to close too: if something that it has sent remained unread, the system would reset the
    /// connection, and the client might not get the last answers.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, lingers, .. } = &mut *self;
        let mut stream = Pin::new(stream.get_mut());
        ready!(stream.as_mut().poll_shutdown(context))?;
        let lingers = lingers.get_or_insert_with(|| Box::pin(time::sleep(LINGERS)));
        if lingers.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut unread = [0; AHEAD_BYTES];
        let mut unread = ReadBuf::new(&mut unread);
        match ready!(stream.poll_read(context, &mut unread)) {
            Ok(()) if !unread.filled().is_empty() => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}
