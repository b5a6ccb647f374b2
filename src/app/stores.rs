//! Builds the store, and what answers around it, from the settings.

use std::sync::Arc;

use crate::{
    rules::Algorithms,
    settings::{Settings, StoreUrl, TopologyKind},
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
            server::Server,
            server_info::{Expected, ServerMode},
        },
        system_clock,
    },
    telemetry::{MemoryMetrics, StoreMetrics, Telemetry},
};

/// The store of `--store`.
pub fn store(settings: &Settings, telemetry: &Telemetry, outage: Outage) -> Store {
    match &settings.store.url {
        StoreUrl::Memory => Store::Memory(memory_store(settings, telemetry)),
        StoreUrl::Redis(url) => {
            let mode = match url.topology {
                TopologyKind::Cluster => ServerMode::Cluster,
                TopologyKind::Single | TopologyKind::Sentinel { .. } => ServerMode::Single,
            };
            let replicas = u64::from(settings.store.replicas);
            let clients = replicas * u64::from(settings.store.pool_size);
            let metrics = StoreMetrics::new(&telemetry.meter());
            let options = PoolOptions {
                server: Server::new(url.address().clone(), Arc::clone(&url.access)),
                expected: Expected { mode, clients },
                connections_max: settings.store.pool_size,
                workers: settings.process.workers,
                timeout: settings.store.decision_budget,
                outage,
            };
            let node = RedisNode::new(Pool::new(options, metrics.clone()), system_clock, metrics);
            let key_prefix = settings.store.key_prefix.clone();
            match settings.rules.options.algorithms {
                Algorithms::All => Store::Redis(RedisStore::new(node, Scripts::new(key_prefix))),
                Algorithms::FixedWindow => {
                    Store::Transactions(TransactionStore::new(node, key_prefix))
                }
            }
        }
    }
}

/// The guard around `store`, with the over-limit cache and the fallback.
pub fn guard(
    settings: &Settings,
    telemetry: &Telemetry,
    store: Arc<Store>,
    outage: Outage,
) -> Guard {
    let fallback = Fallback::new(memory_store(settings, telemetry), settings.store.replicas);
    let over_limit = over_limit_cache(settings, telemetry);
    Guard::new(store, over_limit, fallback, settings.store.decision_budget, outage)
}

/// Disabled for memory, which is as fast as a cache. Also disabled without scripts: there Redis may deny too
/// early for an instant, and the cache would extend that to a second.
fn over_limit_cache(settings: &Settings, telemetry: &Telemetry) -> OverLimitCache {
    let entries_max = match (&settings.store.url, settings.rules.options.algorithms) {
        (StoreUrl::Redis(_), Algorithms::All) => settings.store.over_limit_cache,
        (StoreUrl::Memory, _) | (_, Algorithms::FixedWindow) => 0,
    };
    OverLimitCache::new(entries_max, system_clock, StoreMetrics::new(&telemetry.meter()))
}

fn memory_store(settings: &Settings, telemetry: &Telemetry) -> MemoryStore {
    let metrics = MemoryMetrics::new(&telemetry.meter());
    MemoryStore::bounded(system_clock, settings.store.memory_counters_max, metrics)
}
