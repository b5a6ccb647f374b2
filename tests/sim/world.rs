//! One schedule: replicas of the service, clients that call them, a Redis or a Redis Cluster, and what goes wrong.
//!
//! `replica` is the service, `clients` call it, `proxies` have hits assigned, `faults` and `cluster` disturb it, and `ledger` with `places`, which know
//! nothing of its parts, hold what each client was answered against what the servers have.

mod clients;
mod cluster;
mod faults;
mod heavy;
mod histories;
mod ledger;
mod linearizable;
mod operator;
mod places;
mod proxies;
mod replica;
mod sentinel;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    mem,
    rc::Rc,
    time::Duration,
};

use tokio::{
    runtime::Builder,
    task::{LocalSet, spawn_local},
    time::{self, Instant},
};
use tollkeeper::process::pause;
use tollkeeper_sim::{
    dice::Dice,
    network::{Host, Network, Weather},
    redis::{
        cluster::View,
        database::Database,
        scripts::Plant,
        server::{Clock, Server},
    },
};

use self::{
    clients::Client,
    histories::Watcher,
    ledger::Ledger,
    proxies::Proxy,
    replica::{CONNECTIONS_MAX, Replica},
};

/// When the world begins, in Unix microseconds: late in a minute.
const BEGIN_US: u64 = 1_900_000_015_250_000;

/// After the faults: until then the service is back. It notices a connection that is half-open when its calls are late, and
/// tries a server again after a second at most.
pub const BACK_WITHIN: Duration = Duration::from_millis(2500);

/// The most places in flight of one counter.
const PLACES_MAX: usize = 2;

/// The first kind of fault that is a change of which server has what.
const CHANGES: u64 = 12;

/// How long the world goes on after the faults.
const CALM: Duration = Duration::from_secs(5);

/// How large a schedule is. The rest follows from the seed.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub replicas: usize,
    pub clients: usize,
    /// The most connections of a replica to one server.
    pub connections_max: u32,
    /// How long faults happen.
    pub lasts: Duration,
    /// How many faults begin, at most.
    pub faults_max: usize,
    /// What is wrong with the scripts.
    pub plant: Option<Plant>,
    /// Whether replicas lease hits of hot counters.
    pub leases: bool,
    /// How many callers lease, to decide calls themselves.
    pub processes: usize,
    /// How many proxies have hits assigned.
    pub proxies: usize,
    /// How many clients call counters whose whole histories are checked.
    pub watchers: usize,
    /// Whether they use a Redis Cluster.
    pub has_cluster: bool,
    /// Whether Sentinels name their Redis, which has a replica.
    pub has_sentinels: bool,
    /// Whether slots move and nodes fail over, and nothing else goes wrong.
    pub only_changes: bool,
    /// Whether replicas audit all windows, and what the servers lose meanwhile.
    pub audit: Audit,
    /// Whether it notes what happens, which takes half of its time.
    pub is_logged: bool,
}

impl Plan {
    pub fn of_seed(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let (replicas, clients) = (1 + dice.below(3) as usize, 1 + dice.below(8) as usize);
        let (faults_max, leases) = (dice.below(20) as usize, dice.hits(700));
        let has_cluster = dice.hits(500);
        Self {
            seed,
            replicas,
            clients,
            connections_max: CONNECTIONS_MAX,
            lasts: Duration::from_secs(15),
            faults_max,
            plant: None,
            leases,
            processes: if leases { seed as usize % 3 } else { 0 },
            proxies: if leases { seed as usize / 3 % 3 } else { 0 },
            watchers: 3,
            has_cluster,
            has_sentinels: !has_cluster && seed.is_multiple_of(2),
            only_changes: has_cluster && seed.is_multiple_of(5),
            audit: Audit::Off,
            is_logged: false,
        }
    }

    /// How many kinds of faults there are: those from [`CHANGES`] on need several servers.
    pub const fn kinds_of_faults(&self) -> u64 {
        match self {
            Self { has_cluster: true, .. } => 18,
            Self { has_sentinels: true, .. } => 16,
            _ => CHANGES,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audit {
    Off,
    On,
    /// They lose all data, ten times.
    OfLostData,
}

/// What has become of a schedule.
pub struct Outcome {
    pub log: Vec<String>,
    pub calls: u64,
    /// The promise that was broken.
    pub broken: Option<String>,
    answers: BTreeMap<&'static str, u64>,
    /// What the audits of the replicas have found, by outcome.
    pub audited: BTreeMap<String, u64>,
}

impl Outcome {
    pub fn summary(&self) -> String {
        format!("{} calls: {:?}", self.calls, self.answers)
    }
}

/// What all parts of a schedule share.
pub struct World {
    pub plan: Plan,
    /// The Redis, or the nodes of the cluster.
    pub hosts: Vec<Rc<Host>>,
    pub sentinels: Vec<Rc<Host>>,
    replicas: RefCell<Vec<Rc<Replica>>>,
    /// Those whose places others have taken.
    replaced: RefCell<Vec<Rc<Replica>>>,
    network: Network,
    pub ledger: RefCell<Ledger>,
    /// The number of replicas until now.
    started: Cell<usize>,
    /// How far the clock of Redis is from the world's, in microseconds.
    pub redis_ahead_us: Rc<Cell<i64>>,
    redis_now_us: Clock,
    /// How often it has jumped.
    pub jumps: Cell<usize>,
    /// When it has jumped last.
    pub jumped_at: Cell<Option<Instant>>,
    /// When a server was stopped, and which, if nothing else happens meanwhile.
    pub stopped_at: Cell<Option<(Instant, usize)>>,
    /// Whether slots move, or another node takes over.
    is_changing: Cell<bool>,
    /// The slots that have moved, from which node and when: a replica hears of it when it asks there next.
    moved: RefCell<Vec<(u16, usize, Instant)>>,
    /// When the faults ended.
    pub calm_since: Cell<Option<Instant>>,
    pub ends: Cell<bool>,
    began: Instant,
    log: RefCell<Vec<String>>,
}

impl World {
    /// The time by the clock of Redis, in Unix milliseconds.
    pub fn redis_now_ms(&self) -> u64 {
        (self.redis_now_us)() / 1000
    }

    /// What the servers have.
    pub fn database(&self) -> Database {
        let servers: Vec<_> = self.hosts.iter().map(|host| host.server.borrow()).collect();
        let states: Vec<_> = servers.iter().map(|server| server.state.borrow()).collect();
        let own = states.iter().filter(|state| state.replicates.is_none());
        Database::of_all(own.map(|state| &state.database), (self.redis_now_us)())
    }

    /// A server loses what is not in `kept`.
    pub fn loses(&self, node: usize, kept: &mut Database) {
        let server = self.hosts[node].server.borrow();
        let mut state = server.state.borrow_mut();
        // A replica has all of it again at once.
        if state.replicates.is_some() {
            return;
        }
        let database = &mut state.database;
        database.now_us = (self.redis_now_us)();
        let (lost, now_ms) = (database.lost_in(kept), database.now_ms());
        database.clear();
        self.ledger.borrow_mut().lost(&lost, kept, now_ms, self.began.elapsed());
    }

    /// The replicas that take calls.
    pub fn replicas(&self) -> Vec<Rc<Replica>> {
        self.replicas.borrow().clone()
    }

    /// Starts a replica that takes the place of one of them, which is returned, as soon as it is ready.
    pub async fn replace(&self, place: usize) -> Rc<Replica> {
        let number = self.started.get();
        self.started.set(number + 1);
        let replica = Rc::new(Replica::start(number, &self.plan, &self.network));
        while !replica.is_ready() {
            time::sleep(Duration::from_millis(1)).await;
        }
        self.note(|| format!("replica {number} takes the calls of another"));
        let replaced = mem::replace(&mut self.replicas.borrow_mut()[place], replica);
        self.replaced.borrow_mut().push(Rc::clone(&replaced));
        replaced
    }

    /// What the audits of all replicas have found.
    fn audited(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for replica in self.replicas.borrow().iter().chain(self.replaced.borrow().iter()) {
            for (outcome, windows) in replica.audited() {
                *sums.entry(outcome).or_default() += windows;
            }
        }
        sums
    }

    /// Whether the faults ended so long ago that the service is back.
    pub fn is_back(&self) -> bool {
        self.calm_since.get().is_some_and(|since| since.elapsed() >= BACK_WITHIN)
    }

    pub fn breaks(&self, promise: String) {
        self.note(|| format!("broken: {promise}"));
        self.ledger.borrow_mut().breaks(promise);
    }

    pub fn note(&self, event: impl FnOnce() -> String) {
        if self.plan.is_logged {
            let line = format!("{:>9.3} {}", self.began.elapsed().as_secs_f64(), event());
            self.log.borrow_mut().push(line);
        }
    }
}

/// How long after a window it is audited.
const AUDITED_WITHIN: Duration = Duration::from_secs(7);

/// Runs a schedule to its end.
pub fn run(plan: &Plan) -> Outcome {
    pause::begin_with(plan.seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = LocalSet::new();
    let world = local.block_on(&runtime, live(plan));
    drop(local);
    drop(runtime);
    let ledger = world.ledger.borrow();
    Outcome {
        log: world.log.take(),
        calls: ledger.calls(),
        broken: ledger.broken(),
        answers: ledger.answers(),
        audited: if plan.audit == Audit::Off { BTreeMap::new() } else { world.audited() },
    }
}

async fn live(plan: &Plan) -> Rc<World> {
    replica::begin();
    let (began, dice) = (Instant::now(), Dice::new(plan.seed));
    let redis_ahead_us = Rc::new(Cell::new(0_i64));
    let ahead = Rc::clone(&redis_ahead_us);
    let redis_now_us: Clock = Rc::new(move || {
        (BEGIN_US + began.elapsed().as_micros() as u64).saturating_add_signed(ahead.get())
    });
    let nodes = match plan {
        Plan { has_cluster: true, .. } => cluster::nodes(),
        Plan { has_sentinels: true, .. } => sentinel::SERVERS.map(str::to_owned).into(),
        _ => Rc::new(["redis:6379".to_owned()]),
    };
    let host = |node: usize| {
        let server = Server::new(Rc::clone(&redis_now_us));
        plan.plant.into_iter().for_each(|fault| server.plant(fault));
        let view = || View::new(Rc::clone(&nodes), node, cluster::MASTERS);
        server.state.borrow_mut().cluster = plan.has_cluster.then(view);
        Host::new(server, dice.another())
    };
    let hosts: Vec<Rc<Host>> = (0..nodes.len()).map(host).collect();
    if plan.has_sentinels {
        sentinel::follow(&hosts);
    }
    let sentinels = sentinel::hosts(plan, &redis_now_us, &dice);
    let names = nodes.iter().map(|node| &**node).chain(sentinel::SENTINELS);
    let named = names.zip(hosts.iter().chain(&sentinels));
    let named = named.map(|(name, host)| {
        let (name, _) = name.split_once(':').expect("host and port");
        (name.to_owned(), Rc::clone(host))
    });
    let network = Network::start(named.collect());
    let replicas = (0..plan.replicas).map(|number| Rc::new(Replica::start(number, plan, &network)));
    let world = Rc::new(World {
        plan: plan.clone(),
        hosts,
        sentinels,
        replicas: RefCell::new(replicas.collect()),
        replaced: RefCell::default(),
        started: Cell::new(plan.replicas),
        network,
        ledger: RefCell::new(Ledger::of(plan)),
        redis_ahead_us,
        redis_now_us,
        jumps: Cell::new(0),
        jumped_at: Cell::new(None),
        stopped_at: Cell::new(None),
        is_changing: Cell::new(false),
        moved: RefCell::default(),
        calm_since: Cell::new(None),
        ends: Cell::new(false),
        began,
        log: RefCell::default(),
    });
    while world.replicas().iter().any(|replica| !replica.is_ready()) {
        time::sleep(Duration::from_millis(1)).await;
    }
    spawn_local(operator::bans(Rc::clone(&world), dice.another()));
    if plan.leases {
        // With dice of its own, so that known seeds keep their clients and faults.
        spawn_local(operator::resets(Rc::clone(&world), Dice::new(!plan.seed)));
    }
    let leasing = (0..plan.processes).map(|number| {
        let dice = Dice::new(plan.seed ^ (1 << (32 + number)));
        spawn_local(Client::new(plan.clients + number, &world, dice).lease_all())
    });
    let leasing: Vec<_> = leasing.collect();
    let proxies = (0..plan.proxies).map(|number| {
        let dice = Dice::new(plan.seed ^ (1 << (48 + number)));
        spawn_local(Proxy::new(&world, dice).decide_all())
    });
    let proxies: Vec<_> = proxies.collect();
    let watchers = (0..plan.watchers).map(|number| {
        let dice = Dice::new(plan.seed ^ (1 << (40 + number)));
        let number = plan.clients + plan.processes + number;
        spawn_local(Watcher::new(number, &world, dice).call())
    });
    let watchers: Vec<_> = watchers.collect();
    let clients = (0..plan.clients)
        .map(|number| spawn_local(Client::new(number, &world, dice.another()).call()));
    let clients: Vec<_> = clients.collect();
    let losses = if plan.audit == Audit::OfLostData { 10 } else { 0 };
    for _ in 0..losses {
        time::sleep(plan.lasts / losses).await;
        (0..world.hosts.len()).for_each(|node| world.loses(node, &mut Database::default()));
    }
    faults::happen(&world, &dice).await;
    while world.is_changing.get() {
        time::sleep(Duration::from_millis(1)).await;
    }
    faults::note_cuts(&world);
    for host in &world.hosts {
        *host.weather.borrow_mut() = Weather::default();
        host.server.borrow().state.borrow_mut().refusal = None;
        host.resume();
    }
    world.troubles_all();
    world.calm_since.set(Some(Instant::now()));
    world.note(|| "the faults have ended".to_owned());
    faults::restart_all(&world).await;
    time::sleep_until(world.calm_since.get().unwrap_or(began) + CALM).await;
    world.ends.set(true);
    for client in clients.into_iter().chain(leasing).chain(proxies).chain(watchers) {
        client.await.unwrap();
    }
    world.ledger.borrow_mut().close(&mut world.database());
    if plan.audit != Audit::Off {
        time::sleep(AUDITED_WITHIN).await;
    }
    world
}

/// The smallest schedule of the seed that still breaks a promise, as far as halving finds it.
pub fn shrink(plan: &Plan) -> (Plan, Outcome) {
    let mut plan = Plan { is_logged: true, ..plan.clone() };
    let mut outcome = run(&plan);
    loop {
        let smaller = [
            Plan { faults_max: plan.faults_max / 2, ..plan.clone() },
            Plan { faults_max: plan.faults_max.saturating_sub(1), ..plan.clone() },
            Plan { clients: (plan.clients / 2).max(1), ..plan.clone() },
            Plan { replicas: (plan.replicas / 2).max(1), ..plan.clone() },
            Plan { lasts: plan.lasts / 2, ..plan.clone() },
            Plan { watchers: 0, ..plan.clone() },
        ];
        let differs = |other: &&Plan| format!("{other:?}") != format!("{plan:?}");
        let failing = smaller.iter().filter(differs).find_map(|smaller| {
            let outcome = run(smaller);
            outcome.broken.is_some().then(|| (smaller.clone(), outcome))
        });
        match failing {
            Some(found) => (plan, outcome) = found,
            None => return (plan, outcome),
        }
    }
}
