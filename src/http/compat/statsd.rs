//! Sends the counters of `/stats` to statsd over TCP, as envoyproxy/ratelimit does: by how much each has grown.

use std::{collections::BTreeMap, fmt::Write as _, io, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{sleep, timeout},
};

use super::stats::counters;
use crate::telemetry::Telemetry;

/// The interval of envoyproxy/ratelimit.
const EVERY: Duration = Duration::from_secs(10);

/// How long a connection and all lines may take.
const WITHIN: Duration = Duration::from_secs(2);

/// Sends to `address`, a host and a port, until it is dropped. What does not arrive is sent with the next growth.
pub async fn follow(address: String, telemetry: Arc<Telemetry>) {
    let (mut sent, mut is_reached) = (BTreeMap::new(), true);
    loop {
        sleep(EVERY).await;
        let now = counters(&telemetry.families());
        let lines = growth(&sent, &now);
        let answer = timeout(WITHIN, send(&address, lines.as_bytes()));
        match answer.await.unwrap_or_else(|late| Err(late.into())) {
            Ok(()) => (sent, is_reached) = (now, true),
            Err(error) => {
                if is_reached {
                    tracing::warn!("statsd at {address} gets no metrics: {error}");
                }
                is_reached = false;
            }
        }
    }
}

async fn send(address: &str, lines: &[u8]) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut connection = TcpStream::connect(address).await?;
    connection.write_all(lines).await?;
    connection.shutdown().await
}

fn growth(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> String {
    let mut lines = String::new();
    for (name, count) in now {
        let grown = count.saturating_sub(before.get(name).copied().unwrap_or_default());
        if grown > 0 {
            writeln!(lines, "{name}:{grown}|c").expect("writing to a String cannot fail");
        }
    }
    lines
}
