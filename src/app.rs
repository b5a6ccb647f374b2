//! The wiring: the only file that names concrete parts.

mod listeners;
mod ready;

use std::{error::Error, future::pending, sync::Arc, time::Duration};

use axum::Router;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use self::{
    listeners::Listeners,
    ready::{ReadyLine, a_call_to_try, rules_named},
};
use crate::{
    VERSION,
    health::{Health, Phase},
    http::{self, Http},
    limiter::Limiter,
    printable::printable,
    rls::{self, GrpcServices},
    rules::{self, Algorithms, InForce, Rules, Watched},
    settings::{CallSettings, RuleSettings, Settings, StoreUrl},
    shutdown::Signals,
    store::{
        Store,
        fallback::Fallback,
        guard::Guard,
        memory::MemoryStore,
        outage::Outage,
        over_limit_cache::OverLimitCache,
        redis::{
            RedisStore, TransactionStore,
            node::RedisNode,
            pool::{Pool, PoolOptions},
            script::Scripts,
        },
        system_clock,
    },
    telemetry::{CallMetrics, MemoryMetrics, RuleMetrics, StoreMetrics, Telemetry},
    workers::Workers,
};

/// The service is ready after this even if the store has not answered: on_store_failure answers then.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// How long calls in progress may take to finish after the listeners have closed.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The largest request for reflection, in bytes: it holds a name.
const REFLECTION_BYTES_MAX: usize = 4 << 10;

/// Tasks that end with an error, or with the service.
type Tasks = JoinSet<TaskResult>;

type TaskResult = Result<(), Box<dyn Error + Send + Sync>>;

/// The parts that start and end with the service.
struct App {
    telemetry: Arc<Telemetry>,
    store: Arc<Store>,
    outage: Outage,
    health: Health,
    workers: Arc<Workers>,
    stop: CancellationToken,
}

/// Runs the service until a signal ends it.
///
/// # Errors
/// If an address is taken, or a listener fails.
pub async fn run(settings: Settings, rules: InForce) -> Result<(), Box<dyn Error>> {
    let mut signals = Signals::listen()?;
    let telemetry = Telemetry::start(&settings.telemetry.export)?;
    telemetry.install(settings.telemetry.log);
    tracing::info!("tollkeeper {VERSION} starts");
    for warning in &settings.warnings {
        tracing::warn!("{}", printable(warning.as_bytes()));
    }
    rules.warn();

    let listeners = Listeners::bind(&settings.listen).await?;
    let ready = ReadyLine {
        addresses: listeners.addresses()?,
        store: settings.store.url.to_string(),
        rules: rules_named(&settings.rules.paths),
        call: a_call_to_try(&rules.rules),
    };
    tracing::info!("listening: {}", ready.addresses);
    let ready = ready.written(settings.telemetry.log.format);

    let app = App::new(&settings, telemetry).await?;
    let mut tasks = app.start(&settings, rules, listeners);
    tokio::select! {
        () = app.be_ready(&ready) => {}
        ended = tasks.join_next() => return Err(why(ended)),
        () = signals.next() => {}
    }
    tokio::select! {
        () = app.end(&mut tasks, settings.process.drain) => {}
        () = signals.next() => {
            tracing::warn!("second signal: stopping at once");
            // Dropping it would flush it.
            std::mem::forget(app.telemetry);
        }
    }
    Ok(())
}

impl App {
    async fn new(settings: &Settings, telemetry: Telemetry) -> Result<Self, Box<dyn Error>> {
        let outage = Outage::default();
        let store = Arc::new(store(settings, &telemetry, outage.clone())?);
        let (telemetry, health) = (Arc::new(telemetry), Health::new().await);
        let workers = Arc::new(Workers::start(settings.process.workers)?);
        let stop = CancellationToken::new();
        Ok(Self { telemetry, store, outage, health, workers, stop })
    }

    /// Starts everything that runs until [`App::stop`] is cancelled.
    fn start(
        &self,
        settings: &Settings,
        rules: InForce,
        Listeners { grpc, http, admin }: Listeners,
    ) -> Tasks {
        let rules = Arc::new(Rules::new(rules));
        let limiter = Arc::new(self.limiter(settings, Arc::clone(&rules)));
        let CallSettings { message_bytes_max, bounds, ref headers } = settings.calls;

        let mut tasks = Tasks::new();
        let service =
            rls::Service::new(Arc::clone(&limiter), bounds, message_bytes_max, Arc::clone(headers));
        let health = self.health.clone();
        let (reflection, workers) = (settings.listen.reflection, Arc::clone(&self.workers));
        let stop = self.stop.clone();
        tasks.spawn(serve_grpc(grpc, service, health, reflection, workers, stop));
        let endpoints = Http {
            limiter: Arc::clone(&limiter),
            bounds,
            message_bytes_max,
            headers: Arc::clone(headers),
            health: self.health.clone(),
            telemetry: Arc::clone(&self.telemetry),
            rules: Arc::clone(&rules),
            request_slots: Arc::new(Semaphore::new(http::REQUESTS_MAX)),
        };
        if let Some(admin) = admin {
            let request_slots = Arc::new(Semaphore::new(http::REQUESTS_MAX));
            let router = http::admin::router(Http { request_slots, ..endpoints.clone() });
            tasks.spawn(serve_http(admin, router, self.stop.clone()));
        }
        tasks.spawn(serve_http(http, http::router(endpoints), self.stop.clone()));
        // The shipped rules are no file that could change.
        if !settings.rules.paths.is_empty() {
            let RuleSettings { paths, options } = settings.rules.clone();
            tasks.spawn(self.watch_rules(rules, limiter, Watched { paths, options }));
        }
        tasks
    }

    fn limiter(&self, settings: &Settings, rules: Arc<Rules>) -> Limiter {
        let fallback = Fallback::new(in_memory(settings, &self.telemetry), settings.store.replicas);
        let over_limit = over_limit_cache(settings, &self.telemetry);
        let (store, budget) = (Arc::clone(&self.store), settings.store.decision_budget);
        let guard = Guard::new(store, over_limit, fallback, budget, self.outage.clone());
        let near_ratio = settings.telemetry.near_limit_ratio;
        Limiter::new(rules, guard, CallMetrics::new(&self.telemetry.meter(), near_ratio))
    }

    /// Reloads the rules when their files change, until [`App::stop`] is cancelled.
    fn watch_rules(
        &self,
        rules: Arc<Rules>,
        limiter: Arc<Limiter>,
        watched: Watched,
    ) -> impl Future<Output = TaskResult> + use<> {
        let (metrics, stop) = (RuleMetrics::new(&self.telemetry.meter()), self.stop.clone());
        async move {
            let on_load = move |loaded| {
                metrics.loaded(loaded);
                limiter.forget_removed_rules();
            };
            let watch = rules::watch(rules, watched, on_load);
            stop.run_until_cancelled_owned(watch).await;
            Ok(())
        }
    }

    /// Prints the ready line once the service is ready, and then waits for ever.
    async fn be_ready(&self, line: &str) {
        let reached = self.workers.each(|| {
            let store = Arc::clone(&self.store);
            async move { store.reached().await }
        });
        if time::timeout(READY_WITHIN, reached).await.is_ok() {
            self.outage.ended();
        }
        self.health.enter(Phase::Ready).await;
        ready::say(line);
        pending().await
    }

    async fn end(&self, tasks: &mut Tasks, drain: Duration) {
        self.drain(tasks, drain).await;
        tasks.shutdown().await;
        self.telemetry.flush().await;
    }

    /// Reports NOT_SERVING, goes on serving for `drain`, and then closes the listeners.
    async fn drain(&self, tasks: &mut Tasks, drain: Duration) {
        tracing::info!("draining for {drain:?}");
        self.health.enter(Phase::Draining).await;
        time::sleep(drain).await;
        self.stop.cancel();
        let finished = async { while tasks.join_next().await.is_some() {} };
        if time::timeout(FINISH_WITHIN, finished).await.is_err() {
            tracing::warn!("some connections did not end within {FINISH_WITHIN:?}; cut");
        }
    }
}

fn store(
    settings: &Settings,
    telemetry: &Telemetry,
    outage: Outage,
) -> Result<Store, Box<dyn Error>> {
    match &settings.store.url {
        StoreUrl::Memory => Ok(Store::Memory(in_memory(settings, telemetry))),
        StoreUrl::Redis(server) => {
            let metrics = StoreMetrics::new(&telemetry.meter());
            let options = PoolOptions {
                server: server.clone(),
                connections_max: settings.store.pool_size,
                workers: settings.process.workers,
                timeout: settings.store.decision_budget,
                outage,
            };
            let node = RedisNode::new(Pool::new(options, metrics.clone()), system_clock, metrics);
            let key_prefix = settings.store.key_prefix.clone();
            Ok(match settings.rules.options.algorithms {
                Algorithms::All => Store::Redis(RedisStore::new(node, Scripts::new(key_prefix))),
                Algorithms::FixedWindow => {
                    Store::Transactions(TransactionStore::new(node, key_prefix))
                }
            })
        }
    }
}

/// None for memory, which is as fast as a cache; and none without scripts, where Redis may deny too
/// early for an instant, which must not last for a second.
fn over_limit_cache(settings: &Settings, telemetry: &Telemetry) -> OverLimitCache {
    let words_max = match (&settings.store.url, settings.rules.options.algorithms) {
        (StoreUrl::Redis(_), Algorithms::All) => settings.store.over_limit_cache,
        (StoreUrl::Memory, _) | (_, Algorithms::FixedWindow) => 0,
    };
    OverLimitCache::new(words_max, system_clock, StoreMetrics::new(&telemetry.meter()))
}

fn in_memory(settings: &Settings, telemetry: &Telemetry) -> MemoryStore {
    let metrics = MemoryMetrics::new(&telemetry.meter());
    MemoryStore::bounded(system_clock, settings.store.memory_counters_max, metrics)
}

async fn serve_grpc(
    listener: TcpListener,
    service: rls::Service,
    health: Health,
    reflection: bool,
    workers: Arc<Workers>,
    stop: CancellationToken,
) -> TaskResult {
    let reflect = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(rls::FILE_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = reflection.then(|| reflect().build_v1()).transpose()?;
    let v1alpha = reflection.then(|| reflect().build_v1alpha()).transpose()?;
    let mut others = Routes::builder();
    others.add_service(health.grpc());
    if let Some(v1) = v1 {
        others.add_service(v1.max_decoding_message_size(REFLECTION_BYTES_MAX));
    }
    if let Some(v1alpha) = v1alpha {
        others.add_service(v1alpha.max_decoding_message_size(REFLECTION_BYTES_MAX));
    }
    let served = GrpcServices { rate_limit: Arc::new(service), others: others.routes().prepare() };
    rls::serve(listener, served, workers, stop).await;
    Ok(())
}

async fn serve_http(listener: TcpListener, router: Router, stop: CancellationToken) -> TaskResult {
    http::serve(listener, router, stop).await;
    Ok(())
}

type Ended = Option<Result<TaskResult, tokio::task::JoinError>>;

fn why(ended: Ended) -> Box<dyn Error> {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => error.into(),
        Some(Ok(Ok(()))) | None => "a listener ended without a signal".into(),
    }
}
