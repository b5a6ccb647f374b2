//! The service's own way to Redis, without the service.

use std::time::Duration;

use redis::IntoConnectionInfo as _;
use tollkeeper::{
    store::{
        Clock,
        outage::Outage,
        redis::{
            How, RedisStore,
            pool::{Pool, PoolOptions},
            script::Scripts,
        },
    },
    telemetry::StoreMetrics,
};

/// A store of so many workers, on two connections, or 16 if there are workers.
pub fn store(url: &str, workers: usize, clock: Clock, patience: Duration) -> RedisStore {
    let options = PoolOptions {
        server: url.into_connection_info().unwrap(),
        connections_max: if workers == 0 { 2 } else { 16 },
        workers,
        wait_max: patience,
        outage: Outage::default(),
    };
    let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
    let how = How::Scripts(Scripts::new(String::new()));
    RedisStore::new(Pool::new(options, metrics.clone()), how, clock, metrics)
}
