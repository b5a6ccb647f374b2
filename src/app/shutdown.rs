//! Signals: SIGTERM (Kubernetes) and SIGINT (a terminal) ask for an orderly shutdown, a second one for an
//! immediate one. SIGHUP is ignored, unless it is to stop the service too.
//! SIGXFSZ only makes a write fail.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::settings::HangUp;

/// A file would exceed the size that `ulimit -f` or `LimitFSIZE` allows.
const SIGXFSZ: i32 = 25;

#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    on_hang_up: HangUp,
}

impl Signals {
    /// Handles the signals, whose default would end the process at once.
    pub fn listen(on_hang_up: HangUp) -> io::Result<Self> {
        drop(signal(SignalKind::from_raw(SIGXFSZ))?);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            on_hang_up,
        })
    }

    /// Waits for the next signal that asks for a shutdown, and returns it.
    pub async fn next(&mut self) -> SignalKind {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return SignalKind::terminate(),
                _ = self.interrupt.recv() => return SignalKind::interrupt(),
                _ = self.hang_up.recv() => match self.on_hang_up {
                    HangUp::Stops => return SignalKind::hangup(),
                    HangUp::Ignored => tracing::info!(
                        "SIGHUP ignored: rule files are reloaded when they change, and other settings need a restart"
                    ),
                },
            }
        }
    }
}
