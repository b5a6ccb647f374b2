//! What a failover has cost: charges that the old master acknowledged and the new one never received, by the
//! offsets of the replication stream.
//! <https://redis.io/docs/latest/operate/oss_and_stack/management/replication/#how-redis-replication-works>

use std::{io, time::Duration};

use redis::RedisResult;
use tollkeeper_base::telemetry::{EventKind, happened};

use crate::{
    metrics::StoreMetrics,
    redis::wire::{endpoint::Server, query_connection::KeptConnection},
};

/// How long a master may take to answer, with the time to connect.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);

/// What a charge takes in the stream at least. The stream also has a PING of 14 bytes now and then.
const CHARGE_BYTES_MIN: u64 = 50;

/// A master, and how far its replication stream was when it was last queried.
pub(crate) struct MasterWatch {
    pub(crate) server: Server,
    connection: KeptConnection,
    latest: Option<Reading>,
    pace: StreamPace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replication {
    pub(super) is_master: bool,
    stream: String,
    /// The length of the stream in bytes.
    offset: u64,
    /// The stream of the master that it has replaced.
    earlier_stream: String,
    /// How much it received of that, in bytes.
    received: u64,
}

/// A master's stream when this number of charges was acknowledged to us.
#[derive(Debug, Clone)]
struct Reading {
    stream: String,
    offset: u64,
    acknowledged: u64,
}

/// How far the stream moves with our charges. Charges of other processes move it too, so each process reports
/// its own share of a loss.
#[derive(Debug, Clone, Copy)]
struct StreamPace {
    bytes: u64,
    charges: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Acknowledged writes of all clients, in the stream's bytes.
    pub(crate) bytes: u64,
    /// About how many charges of this process that is.
    pub(crate) charges: u64,
}

/// Logs a failover, and counts what it has cost.
pub(super) fn report(failover: &str, cost: Option<Cost>, metrics: &StoreMetrics) {
    let text = format!("{failover}: {}", in_words(cost));
    tracing::warn!("{text}");
    happened(EventKind::Failover, text);
    metrics.failed_over(cost.map_or(0, |cost| cost.charges));
}

fn in_words(cost: Option<Cost>) -> String {
    match cost {
        Some(Cost { bytes: 0, .. }) => "no acknowledged write is known to be lost".to_owned(),
        Some(Cost { bytes, charges }) => format!(
            "about {bytes} bytes of acknowledged writes were lost, about {charges} charges of this process"
        ),
        None => "loss of acknowledged writes unknown".to_owned(),
    }
}

impl MasterWatch {
    pub(crate) fn new(server: Server) -> Self {
        let connection = KeptConnection::new(server.clone());
        Self { server, connection, latest: None, pace: StreamPace::UNKNOWN }
    }

    pub(crate) async fn ask(&mut self) -> RedisResult<Replication> {
        let command = redis::cmd("INFO").arg("replication").take();
        let info: String = self.connection.query(&command, ANSWER_WITHIN).await?;
        let replication = Replication::read(&info);
        replication.ok_or_else(|| io::Error::other("INFO has no replication").into())
    }

    /// Notes how far the stream is, if it is known. `acknowledged` is the number of charges when it has
    /// answered.
    pub(crate) fn note(&mut self, replication: Option<&Replication>, acknowledged: u64) {
        let Some(Replication { stream, offset, .. }) = replication.cloned() else { return };
        let earlier = self.latest.replace(Reading { stream, offset, acknowledged });
        let Some(earlier) = earlier else { return };
        let charges = acknowledged.saturating_sub(earlier.acknowledged);
        self.pace.learn(offset.saturating_sub(earlier.offset), charges);
    }

    /// Notes the end of the stream, if it still runs and has not learned of the failover. No call may be under way to it.
    pub(super) async fn note_end(&mut self, acknowledged: u64) {
        if let Ok(now) = self.ask().await
            && now.is_master
        {
            self.note(Some(&now), acknowledged);
        }
    }

    /// What it has acknowledged and `next` lacks; `None` if it is not known.
    pub(crate) fn cost(&self, acknowledged: u64, next: &Replication) -> Option<Cost> {
        cost(self.latest.as_ref()?, acknowledged, self.pace, next)
    }
}

/// What the new master lacks of the old one's stream, whose end is known or is guessed from what was acknowledged
/// since it was.
fn cost(old: &Reading, acknowledged: u64, pace: StreamPace, next: &Replication) -> Option<Cost> {
    if old.stream != next.earlier_stream {
        return None;
    }
    let since = pace.bytes_of(acknowledged.saturating_sub(old.acknowledged));
    let bytes = old.offset.saturating_add(since).saturating_sub(next.received);
    // The guess is good to a tenth.
    let bytes = if bytes < CHARGE_BYTES_MIN.max(since / 10) { 0 } else { bytes };
    Some(Cost { bytes, charges: pace.charges_of(bytes) })
}

impl StreamPace {
    const UNKNOWN: Self = Self { bytes: CHARGE_BYTES_MIN, charges: 1 };

    /// Adds what was measured. Earlier measurements count half.
    const fn learn(&mut self, bytes: u64, charges: u64) {
        if charges > 0 {
            self.bytes = self.bytes / 2 + bytes;
            self.charges = self.charges / 2 + charges;
        }
    }

    const fn bytes_of(self, charges: u64) -> u64 {
        charges.saturating_mul(self.bytes) / self.charges
    }

    /// Rounded up.
    fn charges_of(self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.charges).div_ceil(self.bytes.max(1))
    }
}

impl Replication {
    fn read(info: &str) -> Option<Self> {
        let field = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name));
        Some(Self {
            is_master: field("role:")? == "master",
            stream: field("master_replid:")?.to_owned(),
            offset: field("master_repl_offset:")?.parse().ok()?,
            earlier_stream: field("master_replid2:")?.to_owned(),
            // It names the first byte that it did not receive, or -1 if it has replaced no master.
            received: field("second_repl_offset:")?
                .parse()
                .map_or(0, |next: u64| next.saturating_sub(1)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(earlier_stream: &str, received: u64) -> Replication {
        Replication {
            is_master: true,
            stream: "b".to_owned(),
            offset: 0,
            earlier_stream: earlier_stream.to_owned(),
            received,
        }
    }

    fn old(offset: u64) -> Reading {
        Reading { stream: "a".to_owned(), offset, acknowledged: 100 }
    }

    #[test]
    fn the_new_master_lacks_what_is_between_the_offsets() {
        let cost = |old| cost(&old, 100, StreamPace::UNKNOWN, &next("a", 1000));
        assert_eq!(cost(old(1500)), Some(Cost { bytes: 500, charges: 10 }));
        assert_eq!(cost(old(1028)), Some(Cost { bytes: 0, charges: 0 }), "two PINGs");
        assert_eq!(cost(old(1000)), Some(Cost { bytes: 0, charges: 0 }));
        assert_eq!(cost(old(900)), Some(Cost { bytes: 0, charges: 0 }));
    }

    #[test]
    fn what_was_acknowledged_after_the_last_reading_is_part_of_the_stream() {
        let cost = cost(&old(900), 110, StreamPace::UNKNOWN, &next("a", 1000));
        assert_eq!(cost, Some(Cost { bytes: 400, charges: 8 }));
    }

    #[test]
    fn a_guess_that_fits_what_was_received_tells_no_loss() {
        let cost = cost(&old(900), 140, StreamPace::UNKNOWN, &next("a", 2750));
        assert_eq!(cost, Some(Cost { bytes: 0, charges: 0 }));
    }

    #[test]
    fn a_charge_takes_what_was_measured_last() {
        let mut pace = StreamPace::UNKNOWN;
        pace.learn(8000, 100);
        assert_eq!((pace.bytes_of(100), pace.charges_of(8000)), (8025, 100));
        pace.learn(90, 0);
        assert_eq!(pace.bytes_of(100), 8025, "without our charges nothing is known");
    }

    #[test]
    fn a_master_of_another_stream_cannot_be_compared() {
        assert_eq!(cost(&old(900), 110, StreamPace::UNKNOWN, &next("c", 1000)), None);
    }

    #[test]
    fn the_answer_to_info_is_read() {
        let info = "# Replication\r\nrole:master\r\nmaster_replid:b\r\nmaster_replid2:a\r\n\
            master_repl_offset:1200\r\nsecond_repl_offset:1001\r\n";
        let read = Replication { offset: 1200, ..next("a", 1000) };
        assert_eq!(Replication::read(info), Some(read));
    }
}
