//! The service, from the request down to the bytes to Redis.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use tollkeeper::{
    app,
    engine::{request::Entry, time::Timestamp},
    limiter::Limiter,
    net::tls::ByteStream,
    overrides::Overrides,
    process::clock::Clock,
    rls::Service,
    rules::{self, LoadOptions, Rules},
    settings::{self, Environment},
    store::{
        Store,
        metrics::StoreMetrics,
        redis::{
            RedisStore,
            leases::LeaseTerms,
            node::{NodeOptions, unsent::Unsent},
            topology::{discovery::Finder, sentinel::Monitored},
            wire::{
                endpoint::{Access, Address, Dial, Server},
                server_info::{Expected, ServerMode},
            },
        },
    },
    telemetry::{Telemetry, label, value},
};
use tollkeeper_sim::network::Network;

use super::{Audit, BEGIN_US, Plan, cluster, sentinel};

/// What the world limits; `places` and `ledger` know the same numbers. LEASE is off or auto.
const RULES: &str = "
domain: shop
defaults: { on_store_failure: deny }
descriptors:
  - key: second
    rate_limit: { unit: second, requests_per_unit: 4 }
  - key: minute
    rate_limit: { unit: minute, requests_per_unit: 40, lease: LEASE }
  - key: nested
    rate_limits:
      - { unit: second, unit_multiplier: 10, requests_per_unit: 16 }
      - { unit: minute, requests_per_unit: 50 }
  - key: hot
    rate_limit: { unit: second, requests_per_unit: 200, lease: LEASE }
  - key: linear
    rate_limit: { unit: minute, requests_per_unit: 12 }
  - key: work
    rate_limit: { unit: day, requests_per_unit: 1000000 }
  - key: tokens
    rate_limit: { unit: hour, requests_per_unit: 1000, hold: 5m }
  - key: anonymous
    rate_limit:
      { unit: hour, requests_per_unit: 1000000, hold: { for: 3s, by: counter, estimate: 20, abandoned: release } }
  - key: slots
    rate_limit: { algorithm: in_flight, requests_per_unit: 2, hold: 10s }
";

/// The most connections of a replica to one server.
pub const CONNECTIONS_MAX: u32 = 4;

pub struct Replica {
    pub number: usize,
    pub service: Service,
    pub limiter: Arc<Limiter>,
    /// By server.
    pub seen: Vec<Seen>,
    /// When it began: it opens its connections then.
    pub began: Instant,
    /// Calls without an answer since the service was to be back.
    pub late: Cell<u32>,
    pub has_ended: Cell<bool>,
    /// Whether it has got the key that signs tokens from its server, which may stand still before.
    pub signs: Cell<bool>,
    /// The counter that it has reset last while it had credit of it, and when.
    pub reset: RefCell<Option<(Vec<Entry>, Instant)>>,
    network: Network,
    store: Arc<Store>,
    followers: Vec<JoinHandle<()>>,
    telemetry: Telemetry,
}

/// What is seen of a replica's way to one server.
#[derive(Default)]
pub struct Seen {
    /// When the server has answered a call last.
    pub answered: Cell<Option<Instant>>,
    /// Since when calls are answered at once, without it. A call at that very time may have been sent.
    pub refuses_since: Cell<Option<Instant>>,
    /// The calls one after the other that waited in vain since it stopped then, and when the last was answered.
    pub waited: Cell<Option<(Instant, u32, Instant)>>,
}

impl Replica {
    /// A replica on the servers of this network, whose background tasks run until the world ends.
    pub fn start(number: usize, plan: &Plan, network: &Network) -> Self {
        let network = network.of_another_process();
        let one_in = if plan.audit == Audit::Off { "1000000" } else { "1" };
        let flags = BTreeMap::from([
            ("store", vec!["redis://redis".into()]),
            ("audit-one-in", vec![one_in.into()]),
        ]);
        let settings = settings::resolve(&flags, &Environment::default()).settings;
        let telemetry = Telemetry::start(&settings.telemetry.export, app::instruments()).unwrap();
        let terms = LeaseTerms { above: 20, span_ms: 50, replicas: plan.replicas as u32 };
        let clock = CLOCKS[number % CLOCKS.len()];
        let store = store(&telemetry, dial(&network), plan, clock).with_lease_terms(terms);
        let store = Arc::new(Store::Redis(store));
        // Every third one has rules of its own.
        let leases = plan.leases && number % 3 != 2;
        let rules = RULES.replace("LEASE", if leases { "auto" } else { "off" });
        let rules = rules::parse("rules", &rules, LoadOptions::default()).unwrap();
        let overrides = Arc::new(Overrides::new(Arc::clone(&store)));
        let keys = settings.calls.hold_keys.clone();
        let service = app::service(
            &settings,
            &telemetry,
            Arc::new(Rules::new(rules)),
            Arc::clone(&overrides),
            Arc::clone(&store),
            None,
            None,
        );
        let [followed, keeps_keys] = [(); 2].map(|()| Arc::clone(&store));
        let mut followers = vec![
            tokio::spawn(async move { followed.servers().unwrap().follow().await }),
            tokio::spawn(async move { overrides.follow().await }),
            tokio::spawn(async move { keys.follow(&keeps_keys, || true).await }),
        ];
        if plan.audit != Audit::Off {
            let audit = service.limiter.self_audit().unwrap();
            audit.rules_changed(Timestamp::from_millis(BEGIN_US / 1000 - 60_000));
            followers.push(tokio::spawn(async move {
                audit.follow(CancellationToken::new()).await;
            }));
        }
        Self {
            number,
            limiter: Arc::clone(&service.limiter),
            service,
            seen: cluster::nodes().iter().map(|_| Seen::default()).collect(),
            began: Instant::now(),
            late: Cell::new(0),
            has_ended: Cell::new(false),
            signs: Cell::new(false),
            reset: RefCell::default(),
            network,
            store,
            followers,
            telemetry,
        }
    }

    /// How many windows its audit has found to be exact, over, and so on.
    pub fn audited(&self) -> Vec<(String, u64)> {
        let windows = app::instruments().find(|row| row.name == "ratelimit.audit.windows");
        let families = self.telemetry.families();
        let series = families.metrics(windows.unwrap()).iter();
        series.map(|one| (label(one, "outcome").to_owned(), value(one))).collect()
    }

    /// Whether it has read the overrides: before, it is not ready for calls.
    pub fn is_ready(&self) -> bool {
        self.limiter.overrides().problem().is_none()
    }

    /// Ends as by SIGTERM, after its last call: it sends what it has kept.
    pub async fn end(&self) {
        self.store.servers().unwrap().ended().await;
        self.end_at_once();
    }

    /// Ends as by SIGKILL.
    pub fn end_at_once(&self) {
        self.has_ended.set(true);
        self.network.end();
        self.followers.iter().for_each(JoinHandle::abort);
    }
}

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The world of this thread begins now.
pub fn begin() {
    BEGAN.set(Some(Instant::now()));
}

/// The clocks of the replicas, one after the other, which guess Redis's by them until Redis has answered. They are apart, and the
/// last one is a ten-thousandth fast until it is set back by a minute.
const CLOCKS: [Clock; 4] =
    [clock::<0, 0, 0>, clock::<-1700, 0, 0>, clock::<3_600_000, 0, 0>, clock::<40, 100, 60_000>];

/// When clocks are set back.
const SET_BACK_AT_US: u64 = 8_000_000;

fn clock<const APART_MS: i64, const FAST_PPM: u64, const SET_BACK_MS: i64>() -> Timestamp {
    let passed = BEGAN.get().expect("the world has begun").elapsed().as_micros() as u64;
    let passed_ms = (passed + passed * FAST_PPM / 1_000_000) / 1000;
    let set_back_ms = if passed < SET_BACK_AT_US { 0 } else { SET_BACK_MS };
    Timestamp::from_millis(BEGIN_US / 1000 + passed_ms).shifted(APART_MS - set_back_ms)
}

fn dial(network: &Network) -> Dial {
    let network = network.clone();
    Dial::new(move |address| {
        let Address::Tcp { host, .. } = address else { panic!("{address}") };
        let (network, host) = (network.clone(), host.clone());
        async move { Ok(Box::new(network.connect(host).await?) as Box<dyn ByteStream>) }.boxed()
    })
}

fn store(telemetry: &Telemetry, dial: Dial, plan: &Plan, clock: Clock) -> RedisStore {
    let access = Arc::new(Access { dial: Some(dial), ..Access::default() });
    let server = |host: &str| {
        Server::new(Address::Tcp { host: host.to_owned(), port: 6379 }, Arc::clone(&access))
    };
    let (mode, finder) = match plan {
        Plan { has_cluster: true, .. } => {
            (ServerMode::Cluster, Finder::Cluster(["node0", "node1"].map(server).into()))
        }
        Plan { has_sentinels: true, .. } => {
            let sentinels = ["sentinel0", "sentinel1"].map(server).into();
            let (name, access) = (sentinel::NAME.to_owned(), Arc::clone(&access));
            (ServerMode::Single, Finder::Sentinel(Monitored { name, sentinels, access }))
        }
        _ => (ServerMode::Single, Finder::Given(server("redis"))),
    };
    let metrics = StoreMetrics::new(&telemetry.meter());
    let options = NodeOptions {
        expected: Expected { mode, clients: 64, runs_scripts: true },
        connections_max: plan.connections_max,
        workers: 1,
        timeout: Duration::from_millis(15),
        clock,
        metrics: metrics.clone(),
        key_prefix: String::new(),
        wait_replicas: 0,
        unsent: Arc::new(Unsent::new(100_000, metrics)),
    };
    RedisStore::new(options, finder)
}
