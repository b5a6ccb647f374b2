//! The age at which a connection is closed by request, so that its client connects again, perhaps to a newer replica.

use std::{future::pending, time::Duration};

use tokio::time;

use crate::process::pause;

/// How long a connection may continue after its end was requested: its calls take less.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// Ends when a connection that begins now has reached its age, which is within a tenth of `age`. Without the
/// difference all connections of a deployment would end at once.
pub(crate) async fn reached(age: Option<Duration>) {
    match age {
        Some(age) => time::sleep(pause::between(age - age / 10, age + age / 10)).await,
        None => pending().await,
    }
}
