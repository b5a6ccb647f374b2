//! The phase of the service, as gRPC health, `/readyz` and `/healthcheck` report it.

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use serde::Serialize;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::{
    ServingStatus,
    pb::{
        HealthCheckRequest, HealthCheckResponse, health_check_response, health_server::HealthServer,
    },
    server::{HealthReporter, HealthService},
};

use crate::net::grpc;

/// The names under which gRPC health answers: the server, the services, and the name of
/// envoyproxy/ratelimit. tonic-health would report the first as serving from the start.
const NAMES: [&str; 5] = ["", grpc::SERVICE, grpc::QUOTA_SERVICE, grpc::V1_SERVICE, "ratelimit"];

/// The largest request for gRPC health, in bytes: it holds a name.
const REQUEST_BYTES_MAX: usize = 4 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The store has not answered yet.
    Starting,
    Ready,
    /// The store fails, and the service is to be ready only while it answers.
    WithoutStore,
    /// There are no rules, and the service is to be ready only while there are.
    WithoutRules,
    /// Calls are still answered, but new ones should go to other replicas.
    Draining,
}

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

    /// Enters `phase`, unless the service is draining, which is final.
    pub async fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let is_draining = *current == Phase::Draining;
            if !is_draining {
                *current = phase;
            }
            !is_draining
        });
        let status = if self.ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Whether the service takes calls.
    pub fn ready(&self) -> bool {
        self.phase() == Phase::Ready
    }

    pub fn grpc(&self) -> HealthServer<impl tonic_health::pb::health_server::Health> {
        let service = KnownServices(HealthService::from_health_reporter(self.reporter.clone()));
        HealthServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX)
    }
}

/// The service of tonic-health, which refuses to watch a service that it does not know. The protocol wants SERVICE_UNKNOWN,
/// and an open stream: clients that watch one would ask again and again.
struct KnownServices(HealthService);

#[tonic::async_trait]
impl tonic_health::pb::health_server::Health for KnownServices {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.0.check(request).await
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        match self.0.watch(request).await {
            Ok(known) => Ok(known.map(StreamExt::boxed)),
            Err(_) => {
                let status = health_check_response::ServingStatus::ServiceUnknown.into();
                let unknown = stream::iter([Ok(HealthCheckResponse { status })]);
                Ok(Response::new(unknown.chain(stream::pending()).boxed()))
            }
        }
    }
}
