//! What threads of the store share, in many orders of their steps: files of the store, compiled with the locks and tasks of
//! shuttle in `sync.rs`. What they need beside that has the least here that will do (`peers.rs`).
//!
//! `THREADS_SCHEDULES` is the number of orders that each test tries. A failed test prints how to replay its order.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "a test that panics has failed, which is its purpose; the files of the store have more than is used here"
)]

mod batches;
mod counters;
mod kept;
mod peers;
mod sync;

#[path = "../../crates/store/src/redis/node/batcher/arrivals.rs"]
mod arrivals;
#[path = "../../crates/store/src/redis/node/batcher/dispatcher.rs"]
mod dispatcher;
#[path = "../../crates/store/src/redis/node/batcher/heavy.rs"]
mod heavy;
#[path = "../../crates/store/src/redis/node/owed.rs"]
mod owed;
#[path = "../../crates/store/src/redis/node/batcher/queue.rs"]
mod queue;
#[path = "../../crates/store/src/redis/topology/resend.rs"]
mod resend;
#[path = "../../crates/store/src"]
mod store {
    pub use super::peers::Clear;

    pub mod memory;
}
#[path = "../../crates/store/src/redis/node/unsent.rs"]
mod unsent;

/// Where the files of the store look for each other, and for their peers.
mod redis {
    pub mod node {
        pub(crate) use crate::{
            owed,
            peers::{batch, decided, link, pool},
            unsent,
        };
    }
    pub mod script {
        pub(crate) use crate::peers::work;
    }
}
use peers::{StoreError, exchange, lateness, metrics, waiting};

/// Runs a test in many orders: half of them at random, half with few changes of the thread at random moments.
fn in_many_orders(test: fn()) {
    let schedules = std::env::var("THREADS_SCHEDULES");
    let schedules: usize = schedules.map_or(10_000, |number| number.parse().unwrap());
    let each = move || {
        sync::time::start();
        test();
    };
    shuttle::check_random(each, schedules / 2);
    shuttle::check_pct(each, schedules / 2, 3);
}
