//! One schedule: replicas of the service, clients that call them, a Redis, and what goes wrong.
//!
//! `replica` is the service, `clients` call it, `faults` disturbs it, and `ledger` with `places`, which know nothing of its parts,
//! hold what each client was answered against what the server has.

mod clients;
mod faults;
mod ledger;
mod operator;
mod places;
mod replica;

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
        database::Database,
        scripts::Plant,
        server::{Clock, Server},
    },
};

use self::{clients::Client, ledger::Ledger, replica::Replica};

/// When the world begins, in Unix microseconds: late in a minute.
const BEGIN_US: u64 = 1_900_000_015_250_000;

/// After the faults: until then the service is back. It notices a connection that is half-open when its calls are late, and
/// tries a server again after a second at most.
pub const BACK_WITHIN: Duration = Duration::from_millis(2500);

/// The most places in flight of one counter.
const PLACES_MAX: usize = 2;

/// How long the world goes on after the faults.
const CALM: Duration = Duration::from_secs(5);

/// How large a schedule is. The rest follows from the seed.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub replicas: usize,
    pub clients: usize,
    /// How long faults happen.
    pub lasts: Duration,
    /// How many faults begin, at most.
    pub faults_max: usize,
    /// What is wrong with the scripts.
    pub plant: Option<Plant>,
    /// Whether replicas lease hits of hot counters.
    pub leases: bool,
    /// Whether it notes what happens, which takes half of its time.
    pub is_logged: bool,
}

impl Plan {
    pub fn of_seed(seed: u64) -> Self {
        let dice = Dice::new(seed);
        Self {
            seed,
            replicas: 1 + dice.below(3) as usize,
            clients: 1 + dice.below(8) as usize,
            lasts: Duration::from_secs(15),
            faults_max: dice.below(20) as usize,
            plant: None,
            leases: dice.hits(700),
            is_logged: false,
        }
    }
}

/// What has become of a schedule.
pub struct Outcome {
    pub log: Vec<String>,
    pub calls: u64,
    /// The promise that was broken.
    pub broken: Option<String>,
    answers: BTreeMap<&'static str, u64>,
}

impl Outcome {
    pub fn summary(&self) -> String {
        format!("{} calls: {:?}", self.calls, self.answers)
    }
}

/// What all parts of a schedule share.
pub struct World {
    pub plan: Plan,
    pub host: Rc<Host>,
    replicas: RefCell<Vec<Rc<Replica>>>,
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
    /// When Redis was stopped, if nothing else happens meanwhile.
    pub stopped_at: Cell<Option<Instant>>,
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

    /// Does this with what the server has.
    pub fn with_database<T>(&self, act: impl FnOnce(&mut Database) -> T) -> T {
        act(&mut self.host.server.borrow().state.borrow_mut().database)
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
        mem::replace(&mut self.replicas.borrow_mut()[place], replica)
    }

    /// Whether the faults ended so long ago that the service is back.
    pub fn is_back(&self) -> bool {
        self.calm_since.get().is_some_and(|since| since.elapsed() >= BACK_WITHIN)
    }

    pub fn breaks(&self, promise: String) {
        self.ledger.borrow_mut().breaks(promise);
    }

    pub fn note(&self, event: impl FnOnce() -> String) {
        if self.plan.is_logged {
            let line = format!("{:>9.3} {}", self.began.elapsed().as_secs_f64(), event());
            self.log.borrow_mut().push(line);
        }
    }
}

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
    let server = Server::new(Rc::clone(&redis_now_us));
    plan.plant.into_iter().for_each(|fault| server.plant(fault));
    let host = Host::new(server, dice.another());
    let network = Network::start(BTreeMap::from([("redis".to_owned(), Rc::clone(&host))]));
    let replicas = (0..plan.replicas).map(|number| Rc::new(Replica::start(number, plan, &network)));
    let world = Rc::new(World {
        plan: plan.clone(),
        host,
        replicas: RefCell::new(replicas.collect()),
        started: Cell::new(plan.replicas),
        network,
        ledger: RefCell::new(Ledger::of(plan)),
        redis_ahead_us,
        redis_now_us,
        jumps: Cell::new(0),
        jumped_at: Cell::new(None),
        stopped_at: Cell::new(None),
        calm_since: Cell::new(None),
        ends: Cell::new(false),
        began,
        log: RefCell::default(),
    });
    while world.replicas().iter().any(|replica| !replica.is_ready()) {
        time::sleep(Duration::from_millis(1)).await;
    }
    spawn_local(operator::bans(Rc::clone(&world), dice.another()));
    let clients = (0..plan.clients)
        .map(|number| spawn_local(Client::new(number, &world, dice.another()).call()));
    let clients: Vec<_> = clients.collect();
    faults::happen(&world, &dice).await;
    faults::note_cuts(&world);
    *world.host.weather.borrow_mut() = Weather::default();
    world.host.server.borrow().state.borrow_mut().refusal = None;
    world.host.stopped_until.set(None);
    world.calm_since.set(Some(Instant::now()));
    world.note(|| "the faults have ended".to_owned());
    faults::restart_all(&world).await;
    time::sleep_until(world.calm_since.get().unwrap_or(began) + CALM).await;
    world.ends.set(true);
    for client in clients {
        client.await.unwrap();
    }
    world.with_database(|database| world.ledger.borrow_mut().close(database));
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
