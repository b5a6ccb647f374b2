//! When to stop: SIGTERM (Kubernetes) and SIGINT (a person) ask for an orderly end; a second one,
//! for the end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the service.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over from the system, whose way is to end the process at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
