//! The wiring: the only file that names concrete parts.

use std::{
    error::Error,
    future::pending,
    io::{self, Write as _},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::serve::ListenerExt as _;
use tokio::{net::TcpListener, task::JoinSet, time};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Server, server::TcpIncoming};

use crate::{
    engine::rule_set::RuleSet,
    health::{Health, Phase},
    http::{self, Http},
    limiter::Limiter,
    rls::{self, decode::Bounds},
    rules::{self, InForce, Rules, Watched},
    settings::{Settings, StoreUrl},
    shutdown::Signals,
    store::{
        Store,
        guard::Guard,
        memory::MemoryStore,
        outage::Outage,
        redis::{
            RedisStore,
            pool::{Pool, PoolOptions},
        },
        system_clock,
    },
    telemetry::{CallMetrics, RuleMetrics, StoreMetrics, Telemetry},
};

/// The service is ready after this even if the store has not answered: its failure has an answer too.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// How long calls that were under way when the listeners closed may take to finish.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Bounds on what one HTTP/2 connection may ask of us.
const STREAMS_MAX: u32 = 1024;
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// tonic passes "no limit" on where hyper's own default is this; see RUSTSEC-2024-0003.
const LOCAL_RESETS_MAX: usize = 1024;
/// A peer that has vanished is noticed within the sum of both.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);

/// Runs the service until a signal ends it.
///
/// # Errors
/// If an address is taken, or a listener fails.
pub async fn run(settings: Settings, rules: InForce) -> Result<(), Box<dyn Error>> {
    let mut signals = Signals::listen()?;
    let telemetry = Arc::new(Telemetry::start(&settings.telemetry)?);
    telemetry.install(settings.log);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }

    let grpc = bind("--grpc-addr", settings.grpc_addr).await?;
    let http = bind("--http-addr", settings.http_addr).await?;
    let addresses = format!("grpc {}, http {}", grpc.local_addr()?, http.local_addr()?);
    tracing::info!("listening: {addresses}");
    let ready_line = format!(
        "tollkeeper ready: {addresses}, store {}, rules {}; try: tollkeeper call --addr {} {}",
        settings.store,
        rules_named(&settings),
        grpc.local_addr()?,
        a_call_to_try(&rules.rules),
    );

    let outage = Outage::default();
    let store = Arc::new(store(&settings, &telemetry, outage.clone())?);
    let guard = Guard::new(Arc::clone(&store), settings.decision_budget, outage.clone());
    let rules = Arc::new(Rules::new(rules));
    let metrics = CallMetrics::new(&telemetry.meter());
    let limiter = Arc::new(Limiter::new(Arc::clone(&rules), guard, metrics));
    let health = Health::new().await;
    let bounds = Bounds { descriptors_max: settings.max_descriptors };

    let stop = CancellationToken::new();
    let mut tasks: JoinSet<Result<(), Box<dyn Error + Send + Sync>>> = JoinSet::new();
    let service = rls::Service::new(Arc::clone(&limiter), bounds, settings.max_message_bytes);
    tasks.spawn(serve_grpc(grpc, service, health.clone(), settings.reflection, stop.clone()));
    let endpoints = Http {
        limiter,
        bounds,
        message_bytes_max: settings.max_message_bytes,
        health: health.clone(),
        telemetry: Arc::clone(&telemetry),
        rules: Arc::clone(&rules),
    };
    tasks.spawn(serve_http(http, endpoints, stop.clone()));

    let reloads = RuleMetrics::new(&telemetry.meter());
    let watched = Watched { paths: settings.rules.clone(), when_denied: settings.when_denied };
    if !watched.paths.is_empty() {
        let stopped = stop.clone();
        tasks.spawn(async move {
            let watch = rules::watch(rules, watched, move |loaded| reloads.loaded(loaded));
            stopped.run_until_cancelled_owned(watch).await;
            Ok(())
        });
    }

    let ready = async {
        if time::timeout(READY_WITHIN, store.reached()).await.is_ok() {
            outage.ended();
        }
        health.enter(Phase::Ready).await;
        say(&ready_line);
        pending::<()>().await
    };
    tokio::select! {
        () = ready => {}
        ended = tasks.join_next() => return Err(why(ended)),
        () = signals.next() => {}
    }

    tracing::info!("draining for {:?}", settings.drain);
    health.enter(Phase::Draining).await;
    let orderly = async {
        time::sleep(settings.drain).await;
        stop.cancel();
        let finished =
            time::timeout(FINISH_WITHIN, async { while tasks.join_next().await.is_some() {} });
        if finished.await.is_err() {
            tracing::warn!("some connections did not end within {FINISH_WITHIN:?}; cut");
        }
    };
    tokio::select! {
        () = orderly => {}
        () = signals.next() => tracing::warn!("second signal: stopping at once"),
    }
    tasks.shutdown().await;
    tokio::task::spawn_blocking(move || telemetry.flush()).await?;
    Ok(())
}

fn store(
    settings: &Settings,
    telemetry: &Telemetry,
    outage: Outage,
) -> Result<Store, Box<dyn Error>> {
    match &settings.store {
        StoreUrl::Memory => Ok(Store::Memory(MemoryStore::new(system_clock))),
        StoreUrl::Redis(server) => {
            let metrics = StoreMetrics::new(&telemetry.meter());
            let options = PoolOptions {
                server: server.clone(),
                connections_max: settings.store_pool_size,
                wait_max: settings.decision_budget,
                outage,
            };
            let pool = Pool::new(options, metrics.clone())?;
            Ok(Store::Redis(RedisStore::new(pool, system_clock, metrics)))
        }
    }
}

async fn serve_grpc(
    listener: TcpListener,
    service: rls::Service,
    health: Health,
    reflection: bool,
    stop: CancellationToken,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let reflect = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(rls::FILE_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = reflection.then(|| reflect().build_v1()).transpose()?;
    let v1alpha = reflection.then(|| reflect().build_v1alpha()).transpose()?;
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_WITHIN))
        .add_service(service)
        .add_service(health.grpc())
        .add_optional_service(v1)
        .add_optional_service(v1alpha)
        .serve_with_incoming_shutdown(
            // With a listener of our own, the server's setting for this is not applied.
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            stop.cancelled_owned(),
        )
        .await?;
    Ok(())
}

async fn serve_http(
    listener: TcpListener,
    endpoints: Http,
    stop: CancellationToken,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Without it a small answer may wait for the acknowledgement of the one before.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, http::router(endpoints))
        .with_graceful_shutdown(stop.cancelled_owned())
        .await?;
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
