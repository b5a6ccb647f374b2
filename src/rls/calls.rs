//! The calls of one connection, as tasks that it owns. A call runs to its end although its stream or its
//! connection is gone: what it charges may be the debit of work that is done.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper::rt::Executor;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
};
use tokio_util::task::TaskTracker;
use tonic::Status;

/// Room for messages that have not arrived whole on one connection, in bytes: for as many calls as Envoy
/// makes at a time by default (1,024), each with all the headers that it takes by default (60 KiB).
pub(super) const ARRIVING_BYTES_MAX: usize = 64 << 20;

/// The calls of a connection.
#[derive(Clone)]
pub(super) struct Calls(Arc<Shared>);

struct Shared {
    tasks: TaskTracker,
    /// The worker's.
    runtime: Handle,
    room: Semaphore,
}

impl Calls {
    /// For a connection of this worker.
    pub(super) fn here() -> Self {
        let (tasks, room) = (TaskTracker::new(), Semaphore::new(ARRIVING_BYTES_MAX));
        Self(Arc::new(Shared { tasks, runtime: Handle::current(), room }))
    }

    /// Runs a call. Dropped before its end, it goes on as a task of the connection.
    pub(super) fn run<F: Future<Output: Send> + Send + 'static>(&self, call: F) -> Call<F> {
        Call { call: Some(Box::pin(call)), calls: self.clone() }
    }

    /// Room for a message of so many bytes that arrives in parts.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if others take it. To wait for them could be to wait for each other: what has
    /// been read of a message that waits fills the windows through which theirs must come.
    pub(super) fn room(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Status> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.0.room.try_acquire_many(permits).map_err(|_| {
            let message = format!("messages that arrive in parts: over {ARRIVING_BYTES_MAX} bytes");
            Status::resource_exhausted(message)
        })
    }

    /// Waits until all have ended. No more may come.
    pub(super) async fn ended(self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

/// hyper runs each stream as a task.
impl<F: Future<Output: Send + 'static> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, stream: F) {
        drop(self.0.tasks.spawn_on(stream, &self.0.runtime));
    }
}

/// A call under way.
pub(super) struct Call<F: Future<Output: Send + 'static> + Send + 'static> {
    /// Taken when it ends.
    call: Option<Pin<Box<F>>>,
    calls: Calls,
}

impl<F: Future<Output: Send + 'static> + Send + 'static> Future for Call<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answer = ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(answer)
    }
}

/// hyper drops a stream's future when its peer gives it up, or when the connection is lost.
impl<F: Future<Output: Send + 'static> + Send + 'static> Drop for Call<F> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.calls.execute(call);
        }
    }
}
