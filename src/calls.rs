//! Calls as tasks with an owner. A call runs to its end although its peer is gone: what it charges may be the
//! debit of work that is done.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper::rt::Executor;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// The calls of a connection, or of a listener.
#[derive(Clone)]
pub(crate) struct Calls(Arc<Shared>);

struct Shared {
    tasks: TaskTracker,
    runtime: Handle,
}

impl Calls {
    /// Calls on the runtime of this thread.
    pub(crate) fn here() -> Self {
        Self(Arc::new(Shared { tasks: TaskTracker::new(), runtime: Handle::current() }))
    }

    /// Runs a call. Dropped before its end, it goes on as a task.
    pub(crate) fn run<F: Future<Output: Send> + Send + 'static>(&self, call: F) -> Call<F> {
        Call { call: Some(Box::pin(call)), calls: self.clone() }
    }

    /// Waits until all have ended. No more may come.
    pub(crate) async fn ended(self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

/// hyper runs each stream of HTTP/2 as a task.
impl<F: Future<Output: Send + 'static> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, stream: F) {
        drop(self.0.tasks.spawn_on(stream, &self.0.runtime));
    }
}

/// A call under way.
pub(crate) struct Call<F: Future<Output: Send + 'static> + Send + 'static> {
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

/// hyper drops a call's future when its peer gives it up, or when the connection is lost.
impl<F: Future<Output: Send + 'static> + Send + 'static> Drop for Call<F> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.calls.execute(call);
        }
    }
}
