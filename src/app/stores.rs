//! Builds the store, and what answers around it, from the settings.

use std::sync::Arc;

use opentelemetry::{global, metrics::Meter};

use crate::{
    candidate::Candidate,
    engine::key::{Counter, OF_CANDIDATE},
    rules::{self, Algorithms, Rules, xds},
    self_audit::SelfAudit,
    settings::{RuleSettings, Settings, StoreUrl, TopologyKind},
    store::{
        Store,
        fallback::Fallback,
        guard::Guard,
        memory::{
            MemoryStore,
            metrics::{MemoryMetrics, OBSERVED},
        },
        metrics::StoreMetrics,
        over_limit_cache::{Denials, OverLimitCache},
        redis::{
            RedisStore,
            leases::LeaseTerms,
            node::{NodeOptions, unsent::Unsent},
            topology::{discovery::Finder, sentinel::Monitored},
            wire::{
                endpoint::{Address, Server},
                server_info::{Expected, ServerMode},
            },
        },
        system_clock,
    },
    telemetry::observe_together,
};

/// What log lines call the rules of a candidate.
const CANDIDATE_RULES: &str = "candidate rules";

/// The most connections to each server for the counters of a candidate, and counters that are known as over their limit.
const CANDIDATE_CONNECTIONS_MAX: u32 = 4;
const CANDIDATE_CACHED_MAX: usize = 10_000;

/// The counters of a candidate may take a quarter of what the others may take, and at least [`MEMORY_MIN`] bytes.
const CANDIDATE_MEMORY_PART: usize = 4;
const MEMORY_MIN: usize = 1 << 20;

pub fn store(settings: &Settings, meter: &Meter) -> Store {
    let StoreUrl::Redis(url) = &settings.store.url else {
        return Store::Memory(memory_store(settings, meter, "store"));
    };
    let server = |address: &Address| Server::new(address.clone(), Arc::clone(&url.access));
    let (mode, finder) = match &url.topology {
        TopologyKind::Single => (ServerMode::Single, Finder::Given(server(url.address()))),
        TopologyKind::Sentinel { master } => {
            let sentinel =
                |address: &Address| Server::new(address.clone(), Arc::clone(&url.sentinel_access));
            let monitored = Monitored {
                name: master.clone(),
                sentinels: url.addresses.iter().map(sentinel).collect(),
                access: Arc::clone(&url.access),
            };
            (ServerMode::Single, Finder::Sentinel(monitored))
        }
        TopologyKind::Cluster => {
            let seeds = url.addresses.iter().map(server).collect();
            (ServerMode::Cluster, Finder::Cluster(seeds))
        }
    };
    let replicas = u64::from(settings.store.replicas);
    let clients = replicas * u64::from(settings.store.pool_size);
    let runs_scripts = settings.rules.options.algorithms == Algorithms::All;
    let metrics = StoreMetrics::new(meter);
    let options = NodeOptions {
        expected: Expected { mode, clients, runs_scripts },
        connections_max: settings.store.pool_size,
        workers: settings.process.workers,
        timeout: settings.store.timeouts.budget,
        clock: system_clock,
        metrics: metrics.clone(),
        key_prefix: settings.store.key_prefix.clone(),
        wait_replicas: settings.store.wait_replicas,
        unsent: Arc::new(Unsent::new(settings.store.debits_queued_max, metrics)),
    };
    let terms = LeaseTerms { replicas: settings.store.replicas, ..LeaseTerms::default() };
    Store::Redis(RedisStore::new(options, finder).with_lease_terms(terms))
}

/// The guard around `store`, with the over-limit cache and the fallback.
pub fn guard(settings: &Settings, meter: &Meter, store: Arc<Store>) -> Guard {
    let fallback =
        Fallback::new(memory_store(settings, meter, "fallback"), settings.store.replicas);
    let over_limit = over_limit_cache(settings, meter);
    let metrics = StoreMetrics::new(meter);
    Guard::new(store, over_limit, fallback, settings.store.timeouts, metrics)
}

/// The candidate, with counters and connections of its own, so that calls do not wait for it. They show in no metric.
pub fn candidate(
    settings: &Settings,
    meter: &Meter,
    in_force: &Arc<Rules>,
    store: &Arc<Store>,
) -> Option<Arc<Candidate>> {
    let RuleSettings { candidate, overlays, options, .. } = &settings.rules;
    if candidate.paths.is_empty() {
        return None;
    }
    let first = match rules::load(&candidate.paths, overlays, *options) {
        Ok(first) => {
            first.log(CANDIDATE_RULES);
            Some(first)
        }
        // The watcher of its files logs why.
        Err(_) => xds::none_yet(&[], *options).ok(),
    };
    let mut own = settings.clone();
    own.store.key_prefix += OF_CANDIDATE;
    own.store.pool_size = own.store.pool_size.min(CANDIDATE_CONNECTIONS_MAX);
    own.store.over_limit_cache = own.store.over_limit_cache.min(CANDIDATE_CACHED_MAX);
    own.store.memory_max.bytes =
        (own.store.memory_max.bytes / CANDIDATE_MEMORY_PART).max(MEMORY_MIN);
    let nowhere = global::meter("candidate");
    let own_store = Arc::new(self::store(&own, &nowhere));
    let counters = guard(&own, &nowhere, own_store).for_operator();
    let rules = Arc::new(Rules::named(CANDIDATE_RULES, first?));
    let (in_force, store) = (Arc::clone(in_force), Arc::clone(store));
    Some(Candidate::new(rules, in_force, store, counters, candidate.one_in, meter))
}

/// Replicas audit what they share.
pub fn self_audit(settings: &Settings, meter: &Meter, store: &Arc<Store>) -> Option<SelfAudit> {
    let StoreUrl::Redis(url) = &settings.store.url else { return None };
    let one_in = settings.telemetry.audit_one_in;
    if one_in == 0 {
        return None;
    }
    let denies_exactly: fn(&Counter) -> bool =
        match (&url.topology, settings.rules.options.algorithms) {
            (_, Algorithms::FixedWindow) => |_| false,
            (TopologyKind::Cluster, _) => Counter::is_in_slot_of_domain,
            _ => |_| true,
        };
    let store = Arc::clone(store);
    Some(SelfAudit::new(store, one_in, denies_exactly, settings.telemetry.top_keys, meter))
}

/// Disabled for memory, which is as fast as a cache. Also disabled without scripts: there Redis may deny too
/// early for an instant, and the cache would extend that to a second.
fn over_limit_cache(settings: &Settings, meter: &Meter) -> OverLimitCache {
    let entries_max = match (&settings.store.url, settings.rules.options.algorithms) {
        (StoreUrl::Redis(_), Algorithms::All) => settings.store.over_limit_cache,
        (StoreUrl::Memory, _) | (_, Algorithms::FixedWindow) => 0,
    };
    let denials = match &settings.store.url {
        StoreUrl::Redis(url) if url.topology == TopologyKind::Cluster => Denials::MayBeReserved,
        StoreUrl::Redis(_) | StoreUrl::Memory => Denials::Exact,
    };
    let metrics = StoreMetrics::new(meter);
    OverLimitCache::new(entries_max, denials, metrics)
}

/// Counters in memory, observed as those for this use.
fn memory_store(settings: &Settings, meter: &Meter, used_for: &'static str) -> MemoryStore {
    let metrics = MemoryMetrics::of_meter(meter);
    let store = MemoryStore::bounded(system_clock, settings.store.memory_max, metrics);
    let report = store.reporter();
    observe_together(meter, move || (used_for, report()), OBSERVED);
    store
}
