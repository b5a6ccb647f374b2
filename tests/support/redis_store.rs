//! The service's Redis stores, without the service.

use tokio::time::Instant;
use tollkeeper::{
    settings::{StoreUrl, TopologyKind},
    store::{
        Clock,
        metrics::StoreMetrics,
        redis::{
            RedisStore,
            node::{NodeOptions, unsent::Unsent},
            topology::{discovery::Finder, sentinel::Monitored},
            wire::{
                endpoint::Server,
                server_info::{Expected, ServerMode},
            },
        },
        system_clock,
    },
};

use super::prelude::*;

/// When a caller gives up that waits far longer than any call takes.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A store for this number of workers, with at most 16 connections to a server, or 2 without workers.
pub fn store(url: &str, workers: usize, clock: Clock, timeout: Duration) -> RedisStore {
    let connections_max = if workers == 0 { 2 } else { 16 };
    let (options, finder) = options(url, connections_max, workers, clock, timeout);
    RedisStore::new(options, finder)
}

/// A store for a Redis that runs no scripts, on one connection.
pub fn transactions(url: &str, timeout: Duration) -> RedisStore {
    let (mut options, finder) = options(url, 1, 0, system_clock, timeout);
    options.expected.runs_scripts = false;
    RedisStore::new(options, finder)
}

fn options(
    url: &str,
    connections_max: u32,
    workers: usize,
    clock: Clock,
    timeout: Duration,
) -> (NodeOptions, Finder) {
    let StoreUrl::Redis(url) = url.parse().unwrap() else { panic!("{url}") };
    let server = |address: &_| Server::new(Clone::clone(address), Arc::clone(&url.access));
    let (mode, finder) = match &url.topology {
        TopologyKind::Single => (ServerMode::Single, Finder::Given(server(url.address()))),
        TopologyKind::Cluster => {
            (ServerMode::Cluster, Finder::Cluster(url.addresses.iter().map(server).collect()))
        }
        TopologyKind::Sentinel { master } => {
            let sentinel =
                |address: &_| Server::new(Clone::clone(address), Arc::clone(&url.sentinel_access));
            let monitored = Monitored {
                name: master.clone(),
                sentinels: url.addresses.iter().map(sentinel).collect(),
                access: Arc::clone(&url.access),
            };
            (ServerMode::Single, Finder::Sentinel(monitored))
        }
    };
    let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
    let options = NodeOptions {
        expected: Expected { mode, clients: connections_max.into(), runs_scripts: true },
        connections_max,
        workers,
        timeout,
        clock,
        metrics: metrics.clone(),
        key_prefix: String::new(),
        wait_replicas: 0,
        unsent: Arc::new(Unsent::new(1000, metrics)),
    };
    (options, finder)
}
