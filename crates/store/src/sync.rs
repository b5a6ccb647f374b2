//! What threads share, and the tasks and the time of the code that does so. `tests/threads` compiles that code with others in
//! their place, which run it in many orders.

pub(crate) use std::sync::atomic;

pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use tokio::{
    sync::{Notify, oneshot},
    task, time,
};
use tokio_util::task::TaskTracker;

/// Starts a task that this tracker waits for.
pub(crate) fn spawn(tracker: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
    drop(tracker.spawn(task));
}
