//! The fleet: a store of each kind, started once in a test binary. Who counts on them takes domains of its own.

use std::sync::LazyLock;

use super::{
    cluster::ClusterSetup,
    prelude::*,
    sentinels::{NAME, sentinel_of},
};

/// A store, and the servers that hold its counters.
pub struct Store {
    pub name: &'static str,
    url: String,
    servers: Vec<Redis>,
    _sentinel: Option<Redis>,
}

/// Memory, a Redis, one that a Sentinel names, one that runs no scripts, and a Cluster, where most calls with several descriptors
/// meet several nodes; most by the users of docs/redis.md.
pub static STORES: LazyLock<[Store; 5]> = LazyLock::new(|| {
    let [single, named, plain] = [(); 3].map(|()| Redis::start());
    let sentinel = sentinel_of(&named);
    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    let store = |name, url: String, servers| Store { name, url, servers, _sentinel: None };
    let by_sentinel = format!("redis+sentinel://127.0.0.1:{}/{NAME}", sentinel.port);
    sentinel.is_shared();
    let stores = [
        store("memory", "memory://".to_owned(), Vec::new()),
        store("a Redis", single.url_with_minimal_rights(), vec![single]),
        Store {
            _sentinel: Some(sentinel),
            ..store("a Redis by a Sentinel", by_sentinel, vec![named])
        },
        store(WITHOUT_SCRIPTS, plain.url_without_scripts(), vec![plain]),
        store("a Cluster", cluster.url_with_minimal_rights(), cluster.nodes),
    ];
    stores.iter().flat_map(|store| &store.servers).for_each(Redis::is_shared);
    stores
});

const WITHOUT_SCRIPTS: &str = "a Redis without scripts";

impl Store {
    pub fn has_scripts(&self) -> bool {
        self.name != WITHOUT_SCRIPTS
    }

    /// Whether it decides the calls of a batch on the same counters in their order.
    pub fn keeps_order(&self) -> bool {
        self.has_scripts() && self.servers.len() < 2
    }

    /// Starts a service on it, with the rules of these domains.
    pub fn serve(&self, rules: &[(String, String)], flags: &[&str]) -> Service {
        let folder = TempDir::new().unwrap();
        let files = folder.path().join("rules");
        fs::create_dir(&files).unwrap();
        for (domain, text) in rules {
            fs::write(files.join(domain).with_extension("yaml"), text).unwrap();
        }
        let mut command = serve();
        command.args(["--store", &self.url, "--decision-budget", "10s", "--drain", "0s"]);
        command.args(["--audit-one-in", "0", "--rules"]).arg(files).args(flags);
        if !self.has_scripts() {
            command.args(["--redis-scripts", "off"]);
        }
        Service::spawn(command, folder)
    }

    /// Checks that it holds no key without a TTL.
    #[track_caller]
    pub fn assert_no_key_leaks(&self) {
        self.servers.iter().for_each(Redis::assert_no_key_leaks);
    }
}

/// The rule file of a domain of a service of the fleet.
pub fn rules_of(service: &Service, domain: &str) -> PathBuf {
    service.rules.with_file_name("rules").join(domain).with_extension("yaml")
}
