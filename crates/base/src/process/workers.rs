//! A thread with a runtime for each core. A connection stays on its worker, together with everything its calls
//! need, so that no call waits for another thread to wake up.

use std::{
    cell::Cell,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinSet,
};

thread_local! {
    /// The index of this thread's worker; `None` outside of the workers.
    static WORKER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// This thread's index among `count` resources that workers do not share or share evenly, below `count`. Index 0
/// is for other threads.
pub fn share(count: usize) -> usize {
    WORKER.get().map_or(0, |worker| worker + 1) % count.max(1)
}

/// The workers. When dropped, each ends, and drops its tasks.
#[derive(Debug)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// Number of tasks that were spawned here and have not ended.
    tasks: Arc<AtomicUsize>,
    /// The thread ends when this is dropped.
    _end: oneshot::Sender<()>,
}

impl Workers {
    pub fn start(count: usize) -> io::Result<Self> {
        (0..count).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// Runs `task` on the worker with the fewest tasks; `owner` awaits it.
    pub fn spawn<T: Send + 'static>(
        &self,
        owner: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        let fewest = self.0.iter().min_by_key(|worker| worker.tasks.load(Ordering::Relaxed));
        let Some(worker) = fewest else { return };
        let counted = Counted::new(&worker.tasks);
        let task = async move {
            let _counted = counted;
            task.await
        };
        owner.spawn_on(task, &worker.runtime);
    }

    /// Runs a task on every worker, and waits for all of these.
    pub async fn each<T: Future<Output = ()> + Send + 'static>(&self, task: impl Fn() -> T) {
        let mut tasks = JoinSet::new();
        for worker in &self.0 {
            tasks.spawn_on(task(), &worker.runtime);
        }
        tasks.join_all().await;
    }
}

impl Worker {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            WORKER.set(Some(index));
            // The sender sends nothing: the worker ends when it is dropped.
            drop(runtime.block_on(ended));
        })?;
        Ok(Self { runtime: handle, tasks: Arc::default(), _end: end })
    }
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(tasks: &Arc<AtomicUsize>) -> Self {
        tasks.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(tasks))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
