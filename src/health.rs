//! The service's phase, as gRPC health, `/readyz` and `/healthcheck` tell it.

use tokio::sync::watch;
use tonic_health::{ServingStatus, pb::health_server::HealthServer, server::HealthReporter};

use crate::grpc;

/// The names under which gRPC health answers: the server, the service, and what
/// envoyproxy/ratelimit calls itself. tonic-health would report the first as serving from the start.
const NAMES: [&str; 3] = ["", grpc::SERVICE, "ratelimit"];

/// The largest request for gRPC health, in bytes: it holds a name.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// A step in the service's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The store has not answered yet.
    Starting,
    /// Calls are welcome.
    Ready,
    /// Calls are still answered, and new callers should go elsewhere.
    Draining,
}

/// Tells everyone the phase.
#[derive(Debug, Clone)]
pub struct Health {
    phase: watch::Sender<Phase>,
    reporter: HealthReporter,
}

impl Health {
    /// Starts in [`Phase::Starting`].
    pub async fn new() -> Self {
        let health =
            Self { phase: watch::Sender::new(Phase::Starting), reporter: HealthReporter::new() };
        health.enter(Phase::Starting).await;
        health
    }

    /// Enters `phase`, unless the service drains already: that is never taken back.
    pub async fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let enter = *now != Phase::Draining;
            if enter {
                *now = phase;
            }
            enter
        });
        let status = if self.ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// Whether calls are welcome.
    pub fn ready(&self) -> bool {
        *self.phase.borrow() == Phase::Ready
    }

    /// The gRPC health service.
    pub fn grpc(&self) -> HealthServer<impl tonic_health::pb::health_server::Health> {
        let service =
            tonic_health::server::HealthService::from_health_reporter(self.reporter.clone());
        HealthServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX)
    }
}
