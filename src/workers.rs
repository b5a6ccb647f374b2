//! A thread and a runtime for each core. A connection stays where it was put, and all that its calls
//! need is there, so that no call waits for another thread to wake up.

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
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Which of so many things this thread uses, where each worker has its own or shares with others. The
/// first is for whoever is no worker.
pub fn share(of: usize) -> usize {
    HERE.get().map_or(0, |worker| worker + 1) % of.max(1)
}

/// The workers. Dropped, each ends what it does.
#[derive(Debug)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// Tasks that were put here and have not ended.
    tasks: Arc<AtomicUsize>,
    /// The thread ends when this is dropped.
    _end: oneshot::Sender<()>,
}

impl Workers {
    /// Starts so many.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(count: usize) -> io::Result<Self> {
        (0..count).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    /// Runs `task` on the worker that has the fewest, as a task of `owner`.
    pub fn spawn<T: Send + 'static>(
        &self,
        owner: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        let Some(worker) = self.0.iter().min_by_key(|it| it.tasks.load(Ordering::Relaxed)) else {
            return;
        };
        let counted = Counted::new(&worker.tasks);
        let task = async move {
            let _counted = counted;
            task.await
        };
        owner.spawn_on(task, &worker.runtime);
    }

    /// Runs a task on every worker, and waits for all.
    pub async fn each<T: Future<Output = ()> + Send + 'static>(&self, task: impl Fn() -> T) {
        let mut tasks = JoinSet::new();
        for worker in &self.0 {
            tasks.spawn_on(task(), &worker.runtime);
        }
        tasks.join_all().await;
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
            HERE.set(Some(number));
            // An error says that the sender was dropped, which is how it ends.
            drop(runtime.block_on(ended));
        })?;
        Ok(Self { runtime: handle, tasks: Arc::default(), _end: end })
    }
}

/// A task that is counted until it ends.
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
