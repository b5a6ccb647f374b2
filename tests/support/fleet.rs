//! The fleet: an empty store of each kind and a service on it, started once in a test binary. A scenario takes a domain of its
//! own instead of processes of its own.

use std::sync::LazyLock;

use super::{
    cluster::ClusterSetup,
    prelude::*,
    sentinels::{NAME, sentinel_of},
    service::RULES,
};

/// Number of scenarios that a binary may have.
const DOMAINS: usize = 64;

/// A service of the fleet, and the servers that hold its counters.
struct Member {
    service: Service,
    servers: Vec<Redis>,
    _sentinel: Option<Redis>,
}

impl Member {
    /// A service on this store. Its rules are [`RULES`] in every domain.
    fn new(store: &str, flags: &[&str], servers: Vec<Redis>) -> Self {
        let folder = TempDir::new().unwrap();
        let rules = folder.path().join("rules");
        fs::create_dir(&rules).unwrap();
        for number in 0..DOMAINS {
            let text = RULES.replace("domain: shop", &format!("domain: {}", domain(number)));
            fs::write(rules.join(format!("{number}.yaml")), text).unwrap();
        }
        let mut command = serve();
        command.args(["--store", store, "--decision-budget", "10s", "--drain", "0s"]);
        command.arg("--rules").arg(rules).args(flags);
        let service = Service::spawn(command, folder);
        service.is_shared();
        for server in &servers {
            server.is_shared();
        }
        Self { service, servers, _sentinel: None }
    }
}

fn domain(number: usize) -> String {
    format!("shop-{number}")
}

static MEMORY: LazyLock<Member> = LazyLock::new(|| Member::new("memory://", &[], Vec::new()));

static SINGLE: LazyLock<Member> = LazyLock::new(|| {
    let redis = Redis::start();
    Member::new(&redis.url_with_minimal_rights(), &[], vec![redis])
});

static SENTINEL: LazyLock<Member> = LazyLock::new(|| {
    let redis = Redis::start();
    let sentinel = sentinel_of(&redis);
    let store = format!("redis+sentinel://127.0.0.1:{}/{NAME}", sentinel.port);
    sentinel.is_shared();
    Member { _sentinel: Some(sentinel), ..Member::new(&store, &[], vec![redis]) }
});

static WITHOUT_SCRIPTS: LazyLock<Member> = LazyLock::new(|| {
    let redis = Redis::start();
    Member::new(&redis.url_without_scripts(), &["--redis-scripts", "off"], vec![redis])
});

static CLUSTER: LazyLock<Member> = LazyLock::new(|| {
    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    Member::new(&cluster.url_with_minimal_rights(), &[], cluster.nodes)
});

/// A service, and a domain in which nobody has called it.
pub struct Scenario<'a> {
    pub service: &'a Service,
    pub domain: String,
    pub store: &'static str,
}

impl Scenario<'_> {
    pub fn request(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        request(&self.domain, descriptors)
    }

    pub async fn ask(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.service.ask(self.request(descriptors)).await.unwrap()
    }
}

/// Runs a scenario on a memory store, on a Redis, on one that a Sentinel names, on one that runs no scripts, and on a
/// Cluster, where most calls with several descriptors meet several nodes; most by the users of docs/redis.md. The scenario's
/// domain is new. No store may hold a key without a TTL afterwards.
pub async fn on_every_store(scenario: impl AsyncFn(&Scenario<'_>)) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < DOMAINS, "the fleet has rules for {DOMAINS} scenarios");
    for (store, member) in [
        ("memory", &MEMORY),
        ("a Redis", &SINGLE),
        ("a Redis by a Sentinel", &SENTINEL),
        ("a Redis without scripts", &WITHOUT_SCRIPTS),
        ("a Cluster", &CLUSTER),
    ] {
        scenario(&Scenario { service: &member.service, domain: domain(number), store }).await;
        for server in &member.servers {
            server.assert_no_key_leaks();
        }
    }
}
