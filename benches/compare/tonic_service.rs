//! tollkeeper's limiter and stores behind tonic's generated server code: what the hand-written gRPC
//! service is compared with.

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Instant};

use tollkeeper::{
    app::{self, instruments, stores},
    overrides::Overrides,
    process::workers::Workers,
    rls::{self, decode},
    rules::{self, Rules},
    settings::{self, Environment, Settings, TypedFlags},
    store::{Store, guard::Arrival},
    telemetry::Telemetry,
};
use tollkeeper_proto::{
    RateLimitRequest, RateLimitResponse,
    envoy::service::ratelimit::v3::rate_limit_service_server::{
        RateLimitService, RateLimitServiceServer,
    },
};
use tonic::{Code, Request, Response, Status, service::Routes};

use crate::{process::Result, tonic_server};

struct Service(rls::Service);

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> std::result::Result<Response<RateLimitResponse>, Status> {
        let began = Instant::now();
        let answer = self.decide(request.into_inner()).await;
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.0.limiter.metrics().call(began.into(), code);
        answer.map(Response::new)
    }
}

impl Service {
    async fn decide(
        &self,
        request: RateLimitRequest,
    ) -> std::result::Result<RateLimitResponse, Status> {
        let request =
            decode::request(request, self.0.bounds.echo).map_err(|refusal| refusal.status())?;
        let answer = self.0.decide(request, None, Arrival::now()).await;
        answer.map_err(|refusal| refusal.status())
    }
}

/// Serves with the default settings, but for the store and the rules.
pub(crate) async fn serve(store: &str, rules: &[PathBuf]) -> Result<()> {
    let settings = settings(store, rules)?;
    let rules = rules::load(rules, &[], settings.rules.options)
        .map_err(|problems| format!("{problems:?}"))?;
    let rules = Arc::new(Rules::new(rules));
    let telemetry = Telemetry::start(&settings.telemetry.export, instruments())?;
    telemetry.install(&settings.telemetry.log);
    let store = Arc::new(stores::store(&settings, &telemetry.meter()));
    let count = settings.process.workers;
    let workers = Workers::start(count)?;
    let reached = Arc::clone(&store);
    workers.each(move || reached_by(Arc::clone(&reached))).await;
    let overrides = Arc::new(Overrides::new(Arc::clone(&store)));
    let service = app::service(&settings, &telemetry, rules, overrides, store, None, None);
    let server = RateLimitServiceServer::new(Service(service))
        .max_decoding_message_size(settings.calls.message_bytes_max);
    tonic_server::on_workers(Routes::new(server), &workers, count).await
}

fn settings(store: &str, rules: &[PathBuf]) -> Result<Settings> {
    let flags = TypedFlags::from([
        ("store", vec![OsString::from(store)]),
        ("rules", rules.iter().map(OsString::from).collect()),
        ("log-level", vec!["error".into()]),
    ]);
    let resolved = settings::resolve(&flags, &Environment::default());
    if resolved.problems.is_empty() {
        Ok(resolved.settings)
    } else {
        Err(resolved.problems.join("; ").into())
    }
}

async fn reached_by(store: Arc<Store>) {
    if let Some(servers) = store.servers() {
        servers.reached().await;
    }
}
