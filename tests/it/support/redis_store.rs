//! The service's Redis stores, without the service.

use std::{sync::Arc, time::Duration};

use tollkeeper::{
    settings::StoreUrl,
    store::{
        Clock,
        outage::Outage,
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
    telemetry::StoreMetrics,
};

/// A store for this number of workers, with at most 16 connections, or 2 without workers.
pub fn store(url: &str, workers: usize, clock: Clock, timeout: Duration) -> RedisStore {
    let connections_max = if workers == 0 { 2 } else { 16 };
    RedisStore::new(
        node(url, connections_max, workers, clock, timeout),
        Scripts::new(String::new()),
    )
}

/// A store for a Redis that runs no scripts, on one connection.
pub fn transactions(url: &str, timeout: Duration) -> TransactionStore {
    TransactionStore::new(node(url, 1, 0, system_clock, timeout), String::new())
}

fn node(
    url: &str,
    connections_max: u32,
    workers: usize,
    clock: Clock,
    timeout: Duration,
) -> RedisNode {
    let StoreUrl::Redis(url) = url.parse().unwrap() else { panic!("{url}") };
    let options = PoolOptions {
        server: Server::new(url.address().clone(), Arc::clone(&url.access)),
        expected: Expected { mode: ServerMode::Single, clients: connections_max.into() },
        connections_max,
        workers,
        timeout,
        outage: Outage::default(),
    };
    let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
    RedisNode::new(Pool::new(options, metrics.clone()), clock, metrics)
}
