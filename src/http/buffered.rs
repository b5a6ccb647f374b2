//! What hyper keeps in buffers of a connection. One has what a client has sent and no request has taken yet: hyper never shrinks it,
//! and waits for the rest of a head as long as for the next request. The other has heads of answers: hyper does not bound it.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    edge::arriving::{ANSWERED_CALL_BYTES, BudgetSpent, ConnectionBudget, HeldBytes},
    net::tls::ByteStream,
};

/// The size of hyper's first buffer. hyper doubles it when a read fills it, and when a head needs more.
const READ_BYTES: usize = 8 << 10;

pub(super) struct Buffered {
    memory: Arc<ConnectionBudget>,
    state: Mutex<State>,
}

struct State {
    bytes: usize,
    /// Counts hyper's buffer at its largest so far.
    buffer: HeldBytes,
    /// Held while bytes wait, so that a connection whose head does not end is closed.
    waits: Option<HeldBytes>,
    /// Held for answers until all of them are written.
    unwritten: Option<HeldBytes>,
}

impl Buffered {
    pub(super) fn new(memory: Arc<ConnectionBudget>) -> Self {
        let buffer = memory.reserve();
        Self { memory, state: Mutex::new(State { bytes: 0, buffer, waits: None, unwritten: None }) }
    }

    fn arrived(&self, bytes: usize) -> Result<(), BudgetSpent> {
        let State { bytes: untaken, buffer, waits, .. } = &mut *self.state.lock();
        *untaken += bytes;
        buffer.grow_to(2 * *untaken)?;
        waits.get_or_insert_with(|| self.memory.reserve_briefly());
        Ok(())
    }

    /// A request has taken its head, or a part of its body.
    pub(super) fn taken(&self) {
        let mut state = self.state.lock();
        (state.bytes, state.waits) = (0, None);
    }

    /// An answer has been made, and is now written.
    pub(super) fn answered(&self) -> Result<(), BudgetSpent> {
        let unwritten = &mut self.state.lock().unwritten;
        unwritten.get_or_insert_with(|| self.memory.reserve_briefly()).add(ANSWERED_CALL_BYTES)
    }
}

/// A connection that is read in small steps. Its bytes count until a request takes them, and its answers until they are written.
pub(super) struct Socket {
    pub(super) stream: Box<dyn ByteStream>,
    pub(super) buffered: Arc<Buffered>,
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = to.remaining().min(READ_BYTES);
        let mut part = ReadBuf::new(to.initialize_unfilled_to(room));
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        let bytes = part.filled().len();
        to.advance(bytes);
        Poll::Ready(self.buffered.arrived(bytes).map_err(io::Error::other))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.buffered.state.lock().unwritten = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
