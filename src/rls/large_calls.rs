//! The large calls and batches of a connection that wait to be decided.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

/// The service stops reading from the connection while this many of its large calls wait.
const LARGE_CALLS_MAX: usize = 64;

#[derive(Clone, Default)]
pub(crate) struct LargeCalls(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    count: AtomicUsize,
    reader: AtomicWaker,
}

/// Dropped when the call waits no longer.
pub(crate) struct LargeCall(LargeCalls);

impl LargeCalls {
    pub(crate) fn add(&self) -> LargeCall {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        LargeCall(self.clone())
    }

    /// Ready while there is room for more. The calls of a connection are on the thread that reads, so that none ends meanwhile.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        if self.0.count.load(Ordering::Relaxed) < LARGE_CALLS_MAX {
            return Poll::Ready(());
        }
        self.0.reader.register(context.waker());
        Poll::Pending
    }
}

impl Drop for LargeCall {
    fn drop(&mut self) {
        let Self(LargeCalls(waiting)) = self;
        if waiting.count.fetch_sub(1, Ordering::Relaxed) == LARGE_CALLS_MAX {
            waiting.reader.wake();
        }
    }
}
