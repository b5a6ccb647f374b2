//! When to stop: SIGTERM (Kubernetes) and SIGINT (a terminal) ask for an orderly end, and a second one
//! for an end at once. SIGHUP ends nothing.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that the service takes.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Takes the signals over from the system, which would end the process at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal to stop.
    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => tracing::info!(
                    "SIGHUP ignored: rule files are reloaded when they change, and other settings need a restart"
                ),
            }
        }
    }
}
