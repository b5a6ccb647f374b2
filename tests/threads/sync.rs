//! What the store has in its own `sync.rs`, by shuttle: each use of a lock or an atomic number, and each wait, may be where
//! another thread goes on. Notices and answers are tokio's, whose steps are not taken apart.

use std::fmt;

pub use shuttle::{
    future as task,
    sync::{MutexGuard, atomic},
};
pub use tokio::sync::{Notify, oneshot};
use tokio_util::task::TaskTracker;

pub fn spawn(tracker: &TaskTracker, run: impl Future<Output = ()> + Send + 'static) {
    drop(task::spawn(tracker.track_future(run)));
}

/// A lock with the methods of parking_lot's.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap()
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// A time that stands still, so that no timer hides what nobody is woken for; or, once it may pass, one that goes on to
/// whatever is waited for within an hour.
pub mod time {
    use std::{
        ops::Add,
        pin::{Pin, pin},
        sync::atomic::{AtomicBool, AtomicU64, Ordering},
        task::{Context, Poll},
        time::Duration,
    };

    use futures_util::future::{Either, select};

    thread_local! {
        static NOW_NS: AtomicU64 = const { AtomicU64::new(0) };
        static PASSES: AtomicBool = const { AtomicBool::new(false) };
    }

    /// The beginning, at which it stands still.
    pub fn start() {
        NOW_NS.with(|now| now.store(0, Ordering::Relaxed));
        PASSES.with(|passes| passes.store(false, Ordering::Relaxed));
    }

    pub fn may_pass() {
        PASSES.with(|passes| passes.store(true, Ordering::Relaxed));
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Instant(Duration);

    impl Instant {
        pub fn now() -> Self {
            Self(Duration::from_nanos(NOW_NS.with(|now| now.load(Ordering::Relaxed))))
        }

        pub fn elapsed(self) -> Duration {
            Self::now().saturating_duration_since(self)
        }

        pub fn saturating_duration_since(self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, time: Duration) -> Self {
            Self(self.0 + time)
        }
    }

    #[derive(Debug)]
    pub struct Sleep {
        deadline: Instant,
        has_waited: bool,
    }

    pub fn sleep(time: Duration) -> Sleep {
        Sleep { deadline: Instant::now() + time, has_waited: false }
    }

    impl Sleep {
        pub fn deadline(&self) -> Instant {
            self.deadline
        }

        pub fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
            *self = Self { deadline, has_waited: false };
        }
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            if Instant::now() >= self.deadline {
                return Poll::Ready(());
            }
            let is_soon = self.deadline <= Instant::now() + Duration::from_secs(3600);
            if is_soon && PASSES.with(|passes| passes.load(Ordering::Relaxed)) {
                if self.has_waited {
                    NOW_NS.with(|now| {
                        now.store(self.deadline.0.as_nanos() as u64, Ordering::Relaxed)
                    });
                    return Poll::Ready(());
                }
                self.has_waited = true;
                context.waker().wake_by_ref();
            }
            Poll::Pending
        }
    }

    #[derive(Debug)]
    pub struct Elapsed;

    /// The output of a future, unless its time comes first.
    pub async fn timeout<F: Future>(time: Duration, future: F) -> Result<F::Output, Elapsed> {
        match select(pin!(future), sleep(time)).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(_) => Err(Elapsed),
        }
    }
}
