//! The wiring: the only file that names concrete parts.

use std::{
    error::Error,
    future::pending,
    io::{self, Write as _},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::Router;
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet, time};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    engine::rule_set::RuleSet,
    health::{Health, Phase},
    http::{self, Http},
    limiter::Limiter,
    rls::{self, Served, decode::Bounds},
    rules::{self, Algorithms, InForce, Rules, Watched},
    settings::{Settings, StoreUrl},
    shutdown::Signals,
    store::{
        Store,
        fallback::Fallback,
        guard::Guard,
        memory::MemoryStore,
        outage::Outage,
        over_limit_cache::OverLimitCache,
        redis::{
            How, RedisStore,
            pool::{Pool, PoolOptions},
            script::Scripts,
        },
        system_clock,
    },
    telemetry::{CallMetrics, MemoryMetrics, RuleMetrics, StoreMetrics, Telemetry},
    workers::Workers,
};

/// The service is ready after this even if the store has not answered: its failure has an answer too.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// How long calls that were under way when the listeners closed may take to finish.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The largest request for reflection, in bytes: it holds a name.
const REFLECTION_BYTES_MAX: usize = 4 << 10;

/// What ends with an error of its own, or with the service.
type Tasks = JoinSet<Result<(), Box<dyn Error + Send + Sync>>>;

/// The parts that the start and the end of the service are about.
struct App {
    telemetry: Arc<Telemetry>,
    store: Arc<Store>,
    outage: Outage,
    health: Health,
    workers: Arc<Workers>,
    stop: CancellationToken,
}

/// Where the service listens.
struct Listeners {
    grpc: TcpListener,
    http: TcpListener,
    admin: Option<TcpListener>,
}

/// Runs the service until a signal ends it.
///
/// # Errors
/// If an address is taken, or a listener fails.
pub async fn run(settings: Settings, rules: InForce) -> Result<(), Box<dyn Error>> {
    let mut signals = Signals::listen()?;
    let telemetry = Telemetry::start(&settings.telemetry)?;
    telemetry.install(settings.log);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    rules.warn();

    let grpc = bind("--grpc-addr", settings.grpc_addr).await?;
    let http = bind("--http-addr", settings.http_addr).await?;
    let admin = match settings.admin_addr {
        Some(address) => Some(bind("--admin-addr", address).await?),
        None => None,
    };
    let mut addresses = format!("grpc {}, http {}", grpc.local_addr()?, http.local_addr()?);
    if let Some(admin) = &admin {
        addresses += &format!(", admin {}", admin.local_addr()?);
    }
    tracing::info!("listening: {addresses}");
    let ready_line = format!(
        "tollkeeper ready: {addresses}, store {}, rules {}; try: tollkeeper call --addr {} {}",
        settings.store,
        rules_named(&settings),
        grpc.local_addr()?,
        a_call_to_try(&rules.rules),
    );

    let app = App::new(&settings, telemetry).await?;
    let mut tasks = app.start(&settings, rules, Listeners { grpc, http, admin });
    tokio::select! {
        () = app.be_ready(&ready_line) => {}
        ended = tasks.join_next() => return Err(why(ended)),
        () = signals.next() => {}
    }
    tokio::select! {
        () = app.end(&mut tasks, settings.drain) => {}
        () = signals.next() => {
            tracing::warn!("second signal: stopping at once");
            // To drop it would flush it.
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
        let workers = Arc::new(Workers::start(settings.workers)?);
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
        let meter = self.telemetry.meter();
        let rules = Arc::new(Rules::new(rules));
        let fallback = Fallback::new(in_memory(settings, &self.telemetry), settings.replicas);
        let (store, budget) = (Arc::clone(&self.store), settings.decision_budget);
        let over_limit = over_limit_cache(settings, &self.telemetry);
        let guard = Guard::new(store, over_limit, fallback, budget, self.outage.clone());
        let limiter = Limiter::new(
            Arc::clone(&rules),
            guard,
            CallMetrics::new(&meter, settings.near_limit_ratio),
        );
        let limiter = Arc::new(limiter);
        let bounds = Bounds { descriptors_max: settings.max_descriptors, echo: settings.echo };
        let message_bytes_max = settings.max_message_bytes;

        let mut tasks = Tasks::new();
        let service = rls::Service::new(
            Arc::clone(&limiter),
            bounds,
            message_bytes_max,
            Arc::clone(&settings.headers),
        );
        let health = self.health.clone();
        let (reflection, workers) = (settings.reflection, Arc::clone(&self.workers));
        let stop = self.stop.clone();
        tasks.spawn(serve_grpc(grpc, service, health, reflection, workers, stop));
        let endpoints = Http {
            limiter,
            bounds,
            message_bytes_max,
            headers: Arc::clone(&settings.headers),
            health: self.health.clone(),
            telemetry: Arc::clone(&self.telemetry),
            rules: Arc::clone(&rules),
            places: Arc::new(Semaphore::new(http::REQUESTS_MAX)),
        };
        if let Some(admin) = admin {
            let places = Arc::new(Semaphore::new(http::REQUESTS_MAX));
            let router = http::counters::router(Http { places, ..endpoints.clone() });
            tasks.spawn(serve_http(admin, router, self.stop.clone()));
        }
        tasks.spawn(serve_http(http, http::router(endpoints), self.stop.clone()));
        // The shipped rules are no file that could change.
        if !settings.rules.is_empty() {
            let (paths, basis) = (settings.rules.clone(), settings.basis);
            let metrics = RuleMetrics::new(&meter);
            let stop = self.stop.clone();
            tasks.spawn(async move {
                let on_load = move |loaded| metrics.loaded(loaded);
                let watch = rules::watch(rules, Watched { paths, basis }, on_load);
                stop.run_until_cancelled_owned(watch).await;
                Ok(())
            });
        }
        tasks
    }

    /// Says so once the service is ready, and then waits for ever.
    async fn be_ready(&self, line: &str) {
        let reached = self.workers.each(|| {
            let store = Arc::clone(&self.store);
            async move { store.reached().await }
        });
        if time::timeout(READY_WITHIN, reached).await.is_ok() {
            self.outage.ended();
        }
        self.health.enter(Phase::Ready).await;
        say(line);
        pending().await
    }

    async fn end(&self, tasks: &mut Tasks, drain: Duration) {
        self.drain(tasks, drain).await;
        tasks.shutdown().await;
        self.telemetry.flush().await;
    }

    /// Sends callers elsewhere, answers those who come all the same, and then closes the doors.
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
    match &settings.store {
        StoreUrl::Memory => Ok(Store::Memory(in_memory(settings, telemetry))),
        StoreUrl::Redis(server) => {
            let metrics = StoreMetrics::new(&telemetry.meter());
            let options = PoolOptions {
                server: server.clone(),
                connections_max: settings.store_pool_size,
                workers: settings.workers,
                wait_max: settings.decision_budget,
                outage,
            };
            let pool = Pool::new(options, metrics.clone());
            let key_prefix = settings.key_prefix.clone();
            let how = match settings.basis.algorithms {
                Algorithms::All => How::Scripts(Scripts::new(key_prefix)),
                Algorithms::FixedWindow => How::Transactions { key_prefix },
            };
            Ok(Store::Redis(RedisStore::new(pool, how, system_clock, metrics)))
        }
    }
}

/// Memory is asked as quickly as a cache; and without scripts Redis may deny too early for an instant,
/// which must not last.
fn over_limit_cache(settings: &Settings, telemetry: &Telemetry) -> OverLimitCache {
    let words_max = match (&settings.store, settings.basis.algorithms) {
        (StoreUrl::Redis(_), Algorithms::All) => settings.over_limit_cache,
        (StoreUrl::Memory, _) | (_, Algorithms::FixedWindow) => 0,
    };
    OverLimitCache::new(words_max, system_clock, StoreMetrics::new(&telemetry.meter()))
}

fn in_memory(settings: &Settings, telemetry: &Telemetry) -> MemoryStore {
    let metrics = MemoryMetrics::new(&telemetry.meter());
    MemoryStore::bounded(system_clock, settings.memory_counters_max, metrics)
}

async fn serve_grpc(
    listener: TcpListener,
    service: rls::Service,
    health: Health,
    reflection: bool,
    workers: Arc<Workers>,
    stop: CancellationToken,
) -> Result<(), Box<dyn Error + Send + Sync>> {
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
    let served = Served { service: Arc::new(service), others: others.routes().prepare() };
    rls::serve(listener, served, workers, stop).await;
    Ok(())
}

async fn serve_http(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    http::serve(listener, router, stop).await;
    Ok(())
}

async fn bind(setting: &str, address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("{setting} {address}: {error}"))
}

fn rules_named(settings: &Settings) -> String {
    if settings.rules.is_empty() {
        return "examples/rules.yaml (built in)".to_owned();
    }
    let names: Vec<_> = settings.rules.iter().map(|path| path.display().to_string()).collect();
    names.join(" ")
}

/// A domain and a descriptor that meets the first rule.
fn a_call_to_try(rules: &RuleSet) -> String {
    let first = rules.domains().into_iter().find_map(|domain| {
        let rule = domain.rules().into_iter().next()?;
        let step = |step: &str| match step.contains('=') {
            true => step.to_owned(),
            false => format!("{step}=alice"),
        };
        // A configured value may hold a `|` of its own; this is only a hint.
        let path: Vec<_> = rule.path.split('|').map(step).collect();
        Some(format!("--domain {} {}", domain.name, path.join(",")))
    });
    first.unwrap_or_else(|| "--domain NAME key=value".to_owned())
}

/// Nobody may be reading; that is no reason to stop.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

type Ended = Option<Result<Result<(), Box<dyn Error + Send + Sync>>, tokio::task::JoinError>>;

fn why(ended: Ended) -> Box<dyn Error> {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => error.into(),
        Some(Ok(Ok(()))) | None => "a listener ended without a signal".into(),
    }
}
