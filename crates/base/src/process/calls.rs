//! Calls as tasks with an owner. A call runs to its end even if its client has left: its charge may be the
//! debit for work that is already done.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper::rt::Executor;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

tokio::task_local! {
    static CLIENT_HAS_LEFT: ();
}

/// Whether the client has left that waited for the answer to this call.
pub fn client_has_left() -> bool {
    CLIENT_HAS_LEFT.try_with(|()| ()).is_ok()
}

/// Does the work of a call whose client has left.
pub fn after_client_left<Work: Future>(work: Work) -> impl Future<Output = Work::Output> {
    CLIENT_HAS_LEFT.scope((), work)
}

/// Owns the calls of one connection, or of one listener.
#[derive(Clone)]
pub struct CallTracker(Arc<Spawner>);

struct Spawner {
    tasks: TaskTracker,
    runtime: Handle,
}

impl CallTracker {
    /// A tracker that spawns its tasks on the current runtime.
    pub fn on_this_runtime() -> Self {
        Self(Arc::new(Spawner { tasks: TaskTracker::new(), runtime: Handle::current() }))
    }

    /// Runs a call. If the returned future is dropped before its end, the call continues as a task.
    pub fn run<F: Future<Output: Send> + Send + 'static>(&self, call: F) -> TrackedCall<F> {
        TrackedCall { call: Some(Box::pin(call)), tracker: self.clone() }
    }

    pub fn in_progress(&self) -> usize {
        self.0.tasks.len()
    }

    /// Waits until every call has ended. No call may be started afterwards.
    pub async fn wait(self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

/// hyper runs each HTTP/2 stream as a task.
impl<F: Future<Output: Send + 'static> + Send + 'static> Executor<F> for CallTracker {
    fn execute(&self, stream: F) {
        drop(self.0.tasks.spawn_on(stream, &self.0.runtime));
    }
}

pub struct TrackedCall<F: Future<Output: Send + 'static> + Send + 'static> {
    /// `None` once the call has ended.
    call: Option<Pin<Box<F>>>,
    tracker: CallTracker,
}

impl<F: Future<Output: Send + 'static> + Send + 'static> Future for TrackedCall<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answer = ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(answer)
    }
}

/// hyper drops a call's future when the client cancels the call, or when the connection is lost.
impl<F: Future<Output: Send + 'static> + Send + 'static> Drop for TrackedCall<F> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.tracker.execute(after_client_left(call));
        }
    }
}
