//! The socket under an HTTP/2 connection, which shows h2 the end of the input late.
//!
//! As soon as h2 sees the end of its input, or fails to write, it drops the calls that it has read but not yet
//! handed over. An Envoy that shuts down writes the debits of all its streams and closes the connection, so
//! the end of the input is hidden until every call before it has been handed over.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::preface::PREFACE;
use crate::tls::ServerStream;

/// A socket that shows the end of its input only when [`EndOfInput::run`] allows it.
pub(super) struct Socket {
    stream: ServerStream,
    end: EndOfInput,
    output: Output,
    /// The bytes of the preface that have not been read.
    preface_left: usize,
    /// The bytes that may still be read before other connections have their turn.
    turn: usize,
}

/// Most bytes that are read, and then worked on, before other connections of this worker have their turn. A client that
/// sends without a pause would otherwise delay their calls by what the system had buffered for it.
const TURN_BYTES: usize = 32 << 10;

enum Output {
    Open,
    /// A write failed. Data of the client may still be unread, so the socket stays open, and further output
    /// is discarded.
    Discarded,
}

/// Whether the end of a socket's input has been reached, and whether h2 may see it.
#[derive(Clone, Default)]
pub(super) struct EndOfInput(Arc<EndFlags>);

#[derive(Default)]
struct EndFlags {
    reached: AtomicBool,
    shown: AtomicBool,
    has_spoken: AtomicBool,
}

impl Socket {
    pub(super) fn new(stream: ServerStream) -> (Self, EndOfInput) {
        let end = EndOfInput::default();
        (
            Self {
                stream,
                end: end.clone(),
                output: Output::Open,
                turn: TURN_BYTES,
                preface_left: PREFACE.len(),
            },
            end,
        )
    }
}

impl EndOfInput {
    /// Whether a whole preface has been read.
    pub(super) fn has_spoken(&self) -> bool {
        self.0.has_spoken.load(Ordering::Relaxed)
    }

    /// Runs the connection that uses the socket.
    pub(super) async fn run<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|context| {
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
        let flags = Arc::clone(&self.end.0);
        if !flags.reached.load(Ordering::Relaxed) {
            if self.turn == 0 {
                self.turn = TURN_BYTES;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let before = buffer.filled().len();
            let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) else {
                self.turn = TURN_BYTES;
                return Poll::Pending;
            };
            let count = buffer.filled().len() - before;
            if read.is_ok() && count > 0 {
                self.turn = self.turn.saturating_sub(count);
                if self.preface_left > 0 {
                    self.preface_left = self.preface_left.saturating_sub(count);
                    flags.has_spoken.store(self.preface_left == 0, Ordering::Relaxed);
                }
                return Poll::Ready(Ok(()));
            }
            // An error, such as a reset, is treated like an orderly end.
            flags.reached.store(true, Ordering::Relaxed);
        }
        if flags.shown.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        // No wake-up is needed: `EndOfInput::run` polls again.
        Poll::Pending
    }
}

impl Socket {
    /// Writes with `write`. After a failure, `length` bytes are discarded instead.
    fn write(
        &mut self,
        length: usize,
        write: impl FnOnce(Pin<&mut ServerStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Output::Open = self.output {
            match ready!(write(Pin::new(&mut self.stream))) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(_) => self.output = Output::Discarded,
            }
        }
        Poll::Ready(Ok(length))
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
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
