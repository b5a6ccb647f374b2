//! Promise "an answer in time", under faults: each row stages one fault under load, ends it, and checks the answers, the admissions,
//! the recovery, and that nothing leaks. docs/internals/reliability.md has the outcome, and the commands of longer runs.
//!
//! To add a fault, add a row to `rows`, or to `topology_rows` if several servers are needed.

mod deployment;
mod load;
mod local;
mod outcome;
mod rows;
mod soak;
mod topology_rows;

use std::{collections::VecDeque, thread::JoinHandle};

use self::{
    deployment::Deployment,
    load::{Load, MODES, SPARED},
    outcome::{Durations, Outcome, Times},
};
use crate::support::{prelude::*, sentinels::Sentinels};

/// Limit of the user `small` of each rule; the others have [`LARGE`].
const SMALL: u64 = 40;
const LARGE: u64 = 1_000_000;

/// The decision budget. It is long, so that a busy test machine causes no outage.
const BUDGET: Duration = Duration::from_millis(200);
const POOL_SIZE: usize = 8;

/// How long a fault lasts, unless it is slow to take effect.
const HOLD: Duration = Duration::from_millis(800);

/// The most parts of a fault that are measured.
const PARTS_MAX: u32 = 10;

/// Fewer calls that the fault spares do not tell how they fare.
const SPARED_MIN: usize = 60;

/// One fault.
struct Row {
    /// Its number in docs/internals/reliability.md, and its name.
    fault: &'static str,
    setup: Setup,
    stage: Step,
    heal: Step,
    effect: Effect,
    reach: Reach,
    counters: Counters,
}

impl Row {
    const fn on(self, setup: Setup) -> Self {
        Self { setup, ..self }
    }

    const fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    const fn counters(self, counters: Counters) -> Self {
        Self { counters, ..self }
    }

    /// The decision budget. Six servers keep a small machine busy, and a healthy server must answer in time.
    fn budget(&self) -> Duration {
        match (self.effect, self.setup) {
            (Effect::Served, _) => Duration::from_secs(2),
            (_, Setup::Cluster | Setup::Shards) => Duration::from_millis(500),
            _ => BUDGET,
        }
    }
}

type Change = fn(&mut World);

/// What stages or heals a fault.
#[derive(Clone, Copy)]
enum Step {
    Does(Change),
    /// Commands to Redis, with `; ` between them.
    Orders(&'static str),
    /// Redis, or the first node of a Cluster, refuses writes with this error.
    Refuses(&'static str),
    /// The proxy does this with requests and with replies.
    Flows(Flow, Flow),
}

/// What runs, and how the service reaches Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setup {
    Direct,
    Proxy,
    /// Through a proxy, and the fault begins before the service starts.
    ProxyFromStart,
    /// No Redis: the memory store.
    Memory,
    /// A master with two replicas, and three Sentinels.
    Sentinel,
    /// A Cluster of three masters with a replica each.
    Cluster,
    /// A Cluster of three masters without replicas.
    Shards,
}

/// What calls get while the fault lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// As without the fault.
    Served,
    /// Each call gets Redis's answer, or the answer of its `on_store_failure`.
    Mixed,
    /// The answer of their `on_store_failure`.
    Outage,
    /// The answer of their `on_store_failure`, unless Redis denies them: it still knows what is over its limit.
    WritesRefused,
}

/// Which calls the fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    All,
    /// Those whose counters are on the first node of a Cluster: calls with the key [`SPARED`] are served as ever.
    FirstNode,
}

/// Whether counters survive the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counters {
    Kept,
    /// A replica has them, except the counters of a last batch.
    Replicated,
    /// They begin again from zero, or from an earlier count, this number of times.
    Lost(u64),
}

/// The servers of one run.
struct World {
    redis: Redis,
    proxy: FaultProxy,
    deployment: Deployment,
    /// None in rows whose fault begins before it starts.
    service: Option<Service>,
    /// Opened before the fault.
    admin: redis::Connection,
    background: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    /// How long the service stood still by signals, and since when it does.
    stopped: (Duration, Option<Instant>),
}

impl World {
    fn start(setup: Setup, budget: Duration, stage: Step, seed: u64) -> Self {
        let redis = Redis::start();
        let proxy = FaultProxy::start(redis.port, seed);
        let admin = redis.connect();
        let deployment = Deployment::start(setup);
        let (background, stopped) = (None, (Duration::ZERO, None));
        let mut world =
            Self { redis, proxy, deployment, service: None, admin, background, stopped };
        if setup == Setup::ProxyFromStart {
            world.does(stage);
        }
        let store = match setup {
            Setup::Direct => world.redis.url(),
            Setup::Proxy | Setup::ProxyFromStart => world.proxy.url.clone(),
            Setup::Memory => "memory://".to_owned(),
            Setup::Sentinel | Setup::Cluster | Setup::Shards => world.deployment.url(),
        };
        world.service = Some(service(&store, budget));
        world
    }

    fn service(&self) -> &Service {
        self.service.as_ref().expect("it has started")
    }

    fn sentinels(&mut self) -> &mut Sentinels {
        let Deployment::Sentinel(sentinels) = &mut self.deployment else { panic!("no Sentinels") };
        sentinels
    }

    fn cluster(&mut self) -> &mut Cluster {
        let Deployment::Cluster(cluster) = &mut self.deployment else { panic!("no Cluster") };
        cluster
    }

    /// The servers that may have counters now.
    fn servers(&self) -> Vec<&Redis> {
        match &self.deployment {
            Deployment::Single => vec![&self.redis],
            Deployment::Sentinel(sentinels) => vec![sentinels.master()],
            Deployment::Cluster(cluster) => {
                cluster.masters().into_iter().map(|master| &cluster.nodes[master]).collect()
            }
        }
    }

    /// The server that refuses writes in a fault.
    fn first(&self) -> &Redis {
        if let Deployment::Cluster(cluster) = &self.deployment {
            &cluster.nodes[0]
        } else {
            &self.redis
        }
    }

    /// Stops the service, or lets it go on.
    fn signal_service(&mut self, name: &str) {
        let service = self.service.as_mut().expect("it has started");
        service.process().signal(name);
        let since = self.stopped.1.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.stopped = (self.stopped.0 + since, (name == "STOP").then(Instant::now));
    }

    fn does(&mut self, step: Step) {
        match step {
            Step::Does(step) => step(self),
            Step::Orders(orders) => {
                for order in orders.split("; ") {
                    let words = order.split(' ').map(|word| word.trim_matches('\''));
                    self.order(&words.collect::<Vec<_>>());
                }
            }
            Step::Refuses(error) => self.first().refuse_writes(error),
            Step::Flows(requests, replies) => {
                self.proxy.set(Faults { requests, replies, ..Faults::default() });
            }
        }
    }

    /// Sends a command on the connection that was opened before the fault.
    fn order(&mut self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).exec(&mut self.admin).unwrap();
    }

    /// Sends a command again and again, on a connection of its own, until [`calm`](Self::calm).
    fn repeat(&mut self, words: &'static [&'static str], pause: Duration) {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, mut connection) = (Arc::clone(&stop), self.redis.connect());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let _ = redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection);
                thread::sleep(pause);
            }
        });
        self.background = Some((stop, thread));
    }

    /// Sends a command that takes long, on a connection of its own.
    fn in_background(&self, words: &'static [&'static str]) {
        let mut connection = self.redis.connect();
        // It ends with the command, at the latest with Redis.
        thread::spawn(move || redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection));
    }

    /// Ends [`repeat`](Self::repeat).
    fn calm(&mut self) {
        if let Some((stop, thread)) = self.background.take() {
            stop.store(true, Ordering::SeqCst);
            thread.join().unwrap();
        }
    }
}

/// A service with a rule for each failure mode.
fn service(store: &str, budget: Duration) -> Service {
    let mut rules = "domain: faults\ndescriptors:\n".to_owned();
    for mode in MODES {
        for (value, limit) in [("\n    value: small", SMALL), ("", LARGE)] {
            rules += &format!(
                "  - key: {mode}{value}\n    rate_limit: {{ unit: year, requests_per_unit: {limit}, on_store_failure: {mode} }}\n"
            );
        }
    }
    rules += &format!(
        "  - {{ key: {SPARED}, rate_limit: {{ unit: year, requests_per_unit: {LARGE} }} }}\n"
    );
    let (budget, pool) = (format!("{}ms", budget.as_millis()), POOL_SIZE.to_string());
    let flags = [["--decision-budget", &budget], ["--store-pool-size", &pool], ["--workers", "2"]];
    Service::with(&rules).on(store).flags(&flags.concat()).start()
}

/// Stages the fault of a row once, and checks everything.
fn run(row: &Row, seed: u64) -> Outcome {
    let mut world = World::start(row.setup, row.budget(), row.stage, seed);
    let load = Load::start(world.service().grpc, row.reach);
    if row.setup != Setup::ProxyFromStart {
        thread::sleep(Duration::from_millis(300));
    }
    let before = outcome::Process::of(world.service.as_mut().unwrap());
    let began = Instant::now();
    if row.setup != Setup::ProxyFromStart {
        world.does(row.stage);
    }
    let staged = Instant::now();
    thread::sleep(HOLD / 2);
    let in_fault = measure(&world, row, &load, staged);
    let heals = Instant::now();
    world.does(row.heal);
    let healed = Instant::now();
    let recovery = load.recovered_after(healed, before.id);
    let ledger = load.stop();
    let times = Times { began, staged, heals, healed, recovery };
    outcome::judge(row, &mut world, &before, &ledger, &times, in_fault)
}

/// The service's measure of the calls in a part of the fault: the first part in which most are answered at once and that
/// leaves [`SPARED_MIN`] calls behind it, since a busy machine may take longer to see that Redis has failed.
fn measure(world: &World, row: &Row, load: &Load, staged: Instant) -> Durations {
    let mut before = durations(world, row);
    let last = Instant::now() + PARTS_MAX * (HOLD / 2);
    loop {
        thread::sleep(HOLD / 2);
        let now = durations(world, row);
        let part = now.since(&before);
        let is_sample = row.reach == Reach::All || load.spared_since(staged) >= SPARED_MIN;
        if (part.are_at_once() && is_sample) || Instant::now() >= last {
            return part;
        }
        before = now;
    }
}

/// The service's measure so far. A service without processor time cannot be asked.
fn durations(world: &World, row: &Row) -> Durations {
    if row.effect == Effect::Outage { Durations::of(world.service()) } else { Durations::default() }
}

/// Runs every row: `FAULT_RUNS` times (1), `FAULT_JOBS` at a time (3), from the seed `FAULT_SEED` (1), and only
/// rows whose name contains `FAULT_ROWS`.
#[test]
fn every_fault_is_answered_by_its_mode_and_full_service_returns() {
    let (runs, seed, jobs) =
        (number("FAULT_RUNS", 1), number("FAULT_SEED", 1), number("FAULT_JOBS", 3));
    let filter = std::env::var("FAULT_ROWS").unwrap_or_default();
    let all = || rows::ROWS.iter().chain(topology_rows::ROWS);
    let rows = || all().filter(|row| row.fault.contains(&filter));
    let waiting: VecDeque<(usize, &Row, u64)> = (0..runs)
        .flat_map(|run| rows().enumerate().map(move |(index, row)| (index, row, seed + run)))
        .collect();
    let waiting = Mutex::new(waiting);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let Some((index, row, seed)) = waiting.lock().unwrap().pop_front() else {
                        return;
                    };
                    let outcome = run(row, seed);
                    done.lock().unwrap().push((index, outcome));
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    let mut lines = Vec::new();
    let mut failures = Vec::new();
    for (index, row) in rows().enumerate() {
        let outcomes = done.iter().filter(|(of, _)| *of == index).map(|(_, outcome)| outcome);
        let outcome = outcomes.cloned().reduce(Outcome::worse).expect("each row ran");
        failures.extend(outcome.failures(row));
        lines.push(outcome.line(row));
    }
    println!("{}\n{}", outcome::HEADER, lines.join("\n"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    outcome::update_page(&lines, filter.is_empty());
}
