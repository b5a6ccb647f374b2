//! The socket under an HTTP/2 connection, as h2 may see it.
//!
//! h2 forgets the calls that it has read and not yet handed over as soon as it sees the end of its input, or
//! fails to write. An Envoy that ends writes the debits of all its streams and closes, so the end of the
//! input is hidden until every call before it has been handed over.

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

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A socket whose end h2 sees late.
pub(super) struct Socket {
    stream: TcpStream,
    end: End,
    output: Output,
}

enum Output {
    Open,
    /// The peer takes nothing more, but what it has sent may not all have been read: what is written is
    /// dropped.
    Dropped,
}

/// Tells a connection that its peer has ended it.
#[derive(Clone, Default)]
pub(super) struct End(Arc<Flags>);

#[derive(Default)]
struct Flags {
    reached: AtomicBool,
    shown: AtomicBool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> (Self, End) {
        let end = End::default();
        (Self { stream, end: end.clone(), output: Output::Open }, end)
    }
}

impl End {
    /// Runs the connection above the socket.
    pub(super) async fn run<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|context| {
            loop {
                let polled = connection.as_mut().poll(context);
                // A connection waits for input only when it has handed over all calls.
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
            let before = buffer.filled().len();
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
            if read.is_ok() && buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            // An error, such as a reset, is an end like any other.
            flags.reached.store(true, Ordering::Relaxed);
        }
        match flags.shown.load(Ordering::Relaxed) {
            true => Poll::Ready(Ok(())),
            // `End::run` polls again.
            false => Poll::Pending,
        }
    }
}

impl Socket {
    /// Writes by `write`; where that fails, `length` bytes are dropped instead.
    fn write(
        &mut self,
        length: usize,
        write: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Output::Open = self.output {
            match ready!(write(Pin::new(&mut self.stream))) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(_) => self.output = Output::Dropped,
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
