//! The wiring: builds the parts, starts them, and ends them in order. Only this folder builds the store of the service.

mod grpc;
mod listeners;
mod observe;
mod ready;
mod renewal;
pub mod shutdown;
pub mod stores;

pub use self::observe::instruments;

use std::{
    error::Error,
    io::{self, IsTerminal as _},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    signal::unix::SignalKind,
    task::{JoinError, JoinSet},
    time,
};
use tokio_util::sync::CancellationToken;

use self::{
    listeners::{HttpListener, Listeners},
    ready::{ReadyLine, example_call, rule_sources},
    shutdown::Signals,
};
use crate::{
    VERSION,
    audit::Audit,
    candidate::Candidate,
    edge::{
        arriving::ArrivalBudget,
        health::{Health, Phase},
        metrics::EdgeMetrics,
        panics,
    },
    http::{self, History, HttpBounds, Reports},
    limiter::{
        Limiter,
        holds::{HoldKeys, Holds},
        metrics::CallMetrics,
    },
    net::tls::server::{ListenerTls, TlsUse},
    notices::Notices,
    overrides::Overrides,
    process::workers::Workers,
    recording::{Recorder, RecordingOptions},
    rls,
    rules::{
        self, InForce, Loaded, Rules, Watched,
        metrics::RuleMetrics,
        xds::{self, ControlPlane},
    },
    settings::{ReadyNeeds, RuleSettings, RuleSource, RulesNeeded, Settings},
    store::Store,
    telemetry::{EventKind, Telemetry, happened},
    text::printable::printable,
    top_keys::TopKeys,
};

/// After this time the service is ready even if the store has not answered, and `on_store_failure` applies; and even
/// if a control plane has sent no rules, and nothing is limited; unless the settings require either.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// How long the end waits for a disk that takes recorded calls.
const RECORDED_WITHIN: Duration = Duration::from_secs(3);

/// Longest time for calls in progress after the listeners have closed.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

const FOLLOW_EVERY: Duration = Duration::from_millis(100);

type Tasks = JoinSet<()>;

/// The parts that start and end with the service.
struct App {
    telemetry: Arc<Telemetry>,
    store: Arc<Store>,
    audit: Arc<Audit>,
    rules: Arc<Rules>,
    overrides: Arc<Overrides>,
    hold_keys: HoldKeys,
    recorder: Option<Arc<Recorder>>,
    candidate: Option<Arc<Candidate>>,
    health: Health,
    edge: EdgeMetrics,
    workers: Arc<Workers>,
    stop: CancellationToken,
    /// The source of the rules, if that is a control plane.
    control_plane: Option<Arc<ControlPlane>>,
}

/// Runs the service until a signal ends it.
pub async fn run(settings: Settings, rules: InForce) -> Result<(), Box<dyn Error>> {
    let mut signals = Signals::listen(settings.process.hang_up)?;
    let telemetry = Telemetry::start(&settings.telemetry.export, instruments())?;
    telemetry.install(&settings.telemetry.log);
    panics::report(EdgeMetrics::new(&telemetry.meter()));
    tracing::info!(workers = settings.process.workers, "tollkeeper {VERSION} starts");
    for warning in &settings.warnings {
        tracing::warn!("{}", printable(warning.as_bytes()));
    }
    match settings.rules.source.value {
        RuleSource::Files(_) => rules.log("rules"),
        // It has sent none yet.
        RuleSource::ControlPlane(_) => rules.warn(),
    }

    let listeners = Listeners::bind(&settings.listen)?;
    let ready = ReadyLine {
        addresses: listeners.addresses()?,
        store: settings.store.url.to_string(),
        rules: rule_sources(&settings.rules.source.value),
        counts: rules.rules.counts(),
        call: example_call(&rules.rules),
    };
    tracing::info!("listening: {}", ready.addresses);
    let ready = ready.format(settings.telemetry.log.format);

    let app = App::new(&settings, telemetry, rules).await?;
    let mut tasks = app.start(&settings, listeners)?;
    let mut drain = settings.process.drain;
    tokio::select! {
        () = app.be_ready(&ready, settings.store.ready, settings.rules.needed) => {}
        ended = tasks.join_next() => return Err(failure(ended)),
        signal = signals.next() => {
            // At a terminal, without connections, a drain would only delay the exit.
            let is_typed = signal == SignalKind::interrupt() && io::stdin().is_terminal();
            if is_typed && !app.edge.has_connections() {
                drain = Duration::ZERO;
            }
        }
    }
    tokio::select! {
        () = app.end(&mut tasks, drain) => {}
        _ = signals.next() => {
            tracing::warn!("second signal: stopping at once");
            // Dropping telemetry would flush it, and so delay the exit.
            std::mem::forget(app.telemetry);
        }
    }
    Ok(())
}

impl App {
    async fn new(
        settings: &Settings,
        telemetry: Telemetry,
        rules: InForce,
    ) -> Result<Self, Box<dyn Error>> {
        let store = Arc::new(stores::store(settings, &telemetry.meter()));
        let control_plane = match &settings.rules.source.value {
            RuleSource::Files(_) => None,
            RuleSource::ControlPlane(target) => Some(ControlPlane::new(Arc::clone(target))),
        };
        let (hold_keys, workers) = (settings.calls.hold_keys.clone(), settings.process.workers);
        let record = |options: &RecordingOptions| {
            let keys = hold_keys.clone();
            let key = Box::new(move || keys.derived(b"recorded values"));
            Recorder::new(options.clone(), key, workers, &telemetry.meter())
        };
        let recorder = settings.telemetry.recording.as_ref().map(record).map(Arc::new);
        let rules = Arc::new(Rules::new(rules));
        Ok(Self {
            recorder,
            candidate: stores::candidate(settings, &telemetry.meter(), &rules, &store),
            audit: Arc::new(Audit::new(Arc::clone(&store))),
            rules,
            overrides: Arc::new(Overrides::new(Arc::clone(&store))),
            hold_keys,
            health: Health::new().await,
            edge: EdgeMetrics::new(&telemetry.meter()),
            workers: Arc::new(Workers::start(workers)?),
            stop: CancellationToken::new(),
            control_plane: control_plane.map(Arc::new),
            telemetry: Arc::new(telemetry),
            store,
        })
    }

    /// Starts the tasks that run until [`App::stop`] is cancelled.
    fn start(&self, settings: &Settings, listeners: Listeners) -> Result<Tasks, Box<dyn Error>> {
        let meter = self.telemetry.meter();
        self.observe(&meter);
        let (rules, store) = (Arc::clone(&self.rules), Arc::clone(&self.store));
        let overrides = Arc::clone(&self.overrides);
        let recorder = self.recorder.clone();
        let candidate = self.candidate.clone();
        let service =
            service(settings, &self.telemetry, rules, overrides, store, recorder, candidate);
        let service = Arc::new(service);
        let reflection = settings.listen.reflection;
        let services = grpc::services(Arc::clone(&service), &self.health, reflection)?;
        let mut tasks = Tasks::new();
        let reports = Reports::new(
            Arc::clone(&self.telemetry),
            Arc::clone(&self.rules),
            self.control_plane.clone(),
            settings.listen.identifies_clients(TlsUse::Http),
        );
        let history = Arc::new(History::new(settings.store.timeouts.budget));
        let (grpc, http) = listeners.with_endpoints(
            &settings.listen,
            &service,
            reports,
            Arc::clone(&history),
            self.health.clone(),
            Arc::clone(&self.audit),
        );
        let grpc = rls::Listener {
            socket: grpc,
            services,
            slots: rls::ConnectionSlots::new(settings.listen.connections, &meter),
            tls: ListenerTls::new(settings.listen.tls_of(TlsUse::Grpc), TlsUse::Grpc),
            metrics: self.edge.of_listener("grpc"),
        };
        let (workers, stop) = (Arc::clone(&self.workers), self.stop.clone());
        tasks.spawn(rls::serve(grpc, workers, stop));
        let arriving = Arc::clone(&service.arriving);
        let connections_max = settings.listen.connections.connections_max;
        let bounds = HttpBounds { connections_max, arriving };
        for listener in http {
            let HttpListener { name, socket, tls, router } = listener;
            let (metrics, stop) = (self.edge.of_listener(name), self.stop.clone());
            tasks.spawn(http::serve(socket, router, tls, metrics, bounds.clone(), stop));
        }
        let (limiter, store) = (Arc::clone(&service.limiter), Arc::clone(&self.store));
        let (records, stop) = (self.telemetry.log_records(), self.stop.clone());
        let webhook = settings.telemetry.webhook.clone();
        tasks.spawn(async move {
            if let Some(notices) = limiter.notices() {
                notices.follow(&store, limiter.overrides(), records, webhook, stop).await;
            }
        });
        let mut background = self.background(settings, Arc::clone(&service.limiter));
        if let Some(recorder) = self.recorder.clone() {
            let stop = self.stop.clone();
            tasks.spawn(async move { recorder.follow(stop).await });
        }
        if self.candidate.is_some() {
            let (limiter, stop) = (Arc::clone(&service.limiter), self.stop.clone());
            tasks.spawn(async move { limiter.follow_candidate(stop).await });
        }
        if let Some(self_audit) = service.limiter.self_audit() {
            let stop = self.stop.clone();
            tasks.spawn(async move { self_audit.follow(stop).await });
        }
        background.push(Box::pin(history.follow(Arc::clone(&self.telemetry))));
        if let Some(statsd) = settings.telemetry.statsd.clone() {
            background.push(Box::pin(http::send_to_statsd(statsd, Arc::clone(&self.telemetry))));
        }
        for task in background {
            let stop = self.stop.clone();
            tasks.spawn(async move {
                stop.run_until_cancelled_owned(task).await;
            });
        }
        Ok(tasks)
    }

    fn background(
        &self,
        settings: &Settings,
        limiter: Arc<Limiter>,
    ) -> Vec<BoxFuture<'static, ()>> {
        let meter = self.telemetry.meter();
        let metrics = RuleMetrics::new(&meter);
        let on_load = move |loaded| {
            metrics.loaded(loaded);
            if loaded == Loaded::Good {
                limiter.rules_changed();
            }
        };
        let rules = Arc::clone(&self.rules);
        let RuleSettings { source, overlays, options, candidate, .. } = settings.rules.clone();
        let files = renewal::FileMetrics::of_meter(&meter);
        let mut tasks: Vec<BoxFuture<'static, ()>> =
            vec![Box::pin(renewal::renew(Arc::new(settings.clone()), files))];
        if let Some(rules) = self.candidate.as_ref().map(|candidate| candidate.rules()) {
            let watched = Watched { paths: candidate.paths, overlays: overlays.clone(), options };
            tasks.push(Box::pin(rules::watch(rules, watched, |_| {})));
        }
        let overrides = Arc::clone(&self.overrides);
        tasks.push(Box::pin(async move { overrides.follow().await }));
        let audit = Arc::clone(&self.audit);
        tasks.push(Box::pin(async move { audit.follow().await }));
        let (keys, store) = (self.hold_keys.clone(), Arc::clone(&self.store));
        let telemetry = &settings.telemetry;
        if telemetry.denial_lines.is_some()
            || telemetry.webhook.is_some()
            || self.recorder.is_some()
        {
            keys.make_digests();
        }
        let rules_of_keys = Arc::clone(&self.rules);
        tasks.push(Box::pin(async move {
            keys.follow(&store, || rules_of_keys.current().rules.has_tokens()).await;
        }));
        if self.store.servers().is_some() {
            let store = Arc::clone(&self.store);
            tasks.push(Box::pin(async move {
                if let Some(servers) = store.servers() {
                    servers.follow().await;
                }
            }));
        }
        if let Some(control_plane) = self.control_plane.clone() {
            tasks.push(Box::pin(xds::follow(rules, control_plane, overlays, options, on_load)));
        } else if let RuleSource::Files(paths) = source.value
            // The built-in rules cannot change.
            && !paths.is_empty()
        {
            let watched = Watched { paths, overlays, options };
            tasks.push(Box::pin(rules::watch(rules, watched, on_load)));
        }
        tasks
    }

    /// Enters [`Phase::Ready`] once the store has answered, the key of tokens is known if rules need it, and a control plane
    /// has sent rules, or [`READY_WITHIN`] has passed, prints the ready line, and never returns. From then on the phase
    /// follows what the settings require.
    async fn be_ready(&self, line: &str, store: ReadyNeeds, rules: RulesNeeded) {
        let reached = self.workers.each(|| {
            let store = Arc::clone(&self.store);
            async move {
                if let Some(servers) = store.servers() {
                    servers.reached().await;
                }
            }
        });
        let reached = async {
            match store {
                // If it is not reached in time, `on_store_failure` applies.
                ReadyNeeds::Start => drop(time::timeout(READY_WITHIN, reached).await),
                ReadyNeeds::Store => reached.await,
            }
        };
        // A control plane without rules never sends any.
        let has_rules = async {
            let Some(control_plane) = &self.control_plane else { return };
            if time::timeout(READY_WITHIN, control_plane.accepted()).await.is_err() {
                let target = &control_plane.target;
                tracing::warn!(
                    "no rules within {READY_WITHIN:?}: every call passes until the control plane {target} has sent some"
                );
                if rules != RulesNeeded::None {
                    control_plane.accepted().await;
                }
            }
        };
        let has_key = async {
            if self.recorder.is_some() || self.rules.current().rules.has_tokens() {
                self.hold_keys.within(READY_WITHIN, HoldKeys::can_sign).await;
            }
        };
        // A promoted candidate is in force from the first call on.
        let has_order = async {
            if let Some(candidate) = &self.candidate {
                drop(time::timeout(READY_WITHIN, candidate.asked()).await);
            }
        };
        tokio::join!(reached, has_rules, has_key, has_order);
        while self.phase(store, rules) != Phase::Ready {
            time::sleep(FOLLOW_EVERY).await;
        }
        self.health.enter(Phase::Ready).await;
        ready::print(line);
        loop {
            time::sleep(FOLLOW_EVERY).await;
            let phase = self.phase(store, rules);
            if phase != self.health.phase() {
                self.health.enter(phase).await;
            }
        }
    }

    fn phase(&self, store: ReadyNeeds, rules: RulesNeeded) -> Phase {
        if store == ReadyNeeds::Store
            && self.store.servers().is_some_and(|servers| !servers.is_up())
        {
            Phase::WithoutStore
        } else if rules == RulesNeeded::Always && self.rules.current().rules.domains().is_empty() {
            Phase::WithoutRules
        } else {
            Phase::Ready
        }
    }

    async fn end(&self, tasks: &mut Tasks, drain: Duration) {
        self.drain(tasks, drain).await;
        tasks.shutdown().await;
        self.audit.end().await;
        if let Some(servers) = self.store.servers() {
            servers.ended().await;
        }
        // A disk may hang.
        if let Some(recorder) = &self.recorder
            && time::timeout(RECORDED_WITHIN, recorder.end()).await.is_err()
        {
            tracing::warn!("the last recorded calls were not written within {RECORDED_WITHIN:?}");
        }
        self.telemetry.flush().await;
    }

    /// Reports NOT_SERVING, continues to serve for `drain`, and then closes the listeners.
    async fn drain(&self, tasks: &mut Tasks, drain: Duration) {
        tracing::info!(seconds = drain.as_secs_f64(), "draining");
        happened(EventKind::DrainBegan, format!("for {drain:?}"));
        self.health.enter(Phase::Draining).await;
        time::sleep(drain).await;
        self.stop.cancel();
        if time::timeout(FINISH_WITHIN, all_ended(tasks)).await.is_err() {
            tracing::warn!("some connections did not end within {FINISH_WITHIN:?} and were closed");
        }
    }
}

pub fn service(
    settings: &Settings,
    telemetry: &Telemetry,
    rules: Arc<Rules>,
    overrides: Arc<Overrides>,
    store: Arc<Store>,
    recorder: Option<Arc<Recorder>>,
    candidate: Option<Arc<Candidate>>,
) -> rls::Service {
    let near_ratio = settings.telemetry.near_limit_ratio;
    let metrics = CallMetrics::new(&telemetry.meter(), near_ratio);
    let top_keys = TopKeys::new(settings.telemetry.top_keys, settings.process.workers, near_ratio)
        .logging_denials(settings.telemetry.denial_lines);
    let calls = &settings.calls;
    let holds = Holds::new(calls.hold_keys.for_store(&store), &telemetry.meter());
    let meter = telemetry.meter();
    let self_audit = stores::self_audit(settings, &meter, &store);
    let guard = stores::guard(settings, &meter, store);
    let weight_max = calls.weight_max;
    let limiter = Limiter::new(rules, overrides, guard, metrics, top_keys, holds, weight_max)
        .on_workers(settings.process.workers)
        .listing_limits(calls.headers.draft)
        .giving(Notices::new(settings.telemetry.top_keys, &telemetry.meter()))
        .recording(recorder)
        .auditing(self_audit)
        .judging(candidate);
    rls::Service {
        limiter: Arc::new(limiter),
        bounds: calls.bounds,
        message_bytes_max: calls.message_bytes_max,
        headers: Arc::clone(&calls.headers),
        arriving: ArrivalBudget::new(calls.arriving_bytes_max),
        access: settings.listen.access.clone(),
        tracer: telemetry.tracer(),
        quotas: rls::Claims::new(&meter),
    }
}

async fn all_ended(tasks: &mut Tasks) {
    while tasks.join_next().await.is_some() {}
}

/// Why a task ended before the service was to stop.
fn failure(ended: Option<Result<(), JoinError>>) -> Box<dyn Error> {
    match ended {
        Some(Err(error)) => error.into(),
        Some(Ok(())) | None => "a listener ended without a signal".into(),
    }
}
