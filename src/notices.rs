//! Notices: a counter has reached a part of its limit that `notify_at` names. A call only queues a notice. A task
//! records it in the store, so that only one replica logs it, exports it and sends it to the webhook.

mod event;
mod webhook;

use std::{fmt::Write as _, hash::BuildHasher as _, mem, sync::Arc, time::Duration};

use hashbrown::{DefaultHashBuilder, HashMap};
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};
use parking_lot::Mutex;
use redis::{Value as Reply, cmd};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

pub use self::webhook::Webhook;
use crate::{
    engine::{
        directive::DirectiveAction,
        ledger::{JudgedBy, Verdict},
        plan::{JudgedCharge, Plan},
        rule::{Algorithm, Limit},
        time::Timestamp,
    },
    process::clock::system_clock,
    store::{Store, redis::topology::by_key::Steps},
    telemetry::{LogRecords, instruments},
    top_keys::{KeyName, TopKeyNames},
};

instruments! {
    struct NoticeInstruments {
        notices: Counter<u64> => NOTICES = Counter("ratelimit.notices", ["outcome"],
            "notices of `notify_at`: `raised`; of these `sent` to the webhook, or `dropped`, because it did not take them");
    }
}

/// The most notices that wait, for the task or for the webhook.
const WAITING_MAX: usize = 1_000;

/// The most notices of windows under way that a replica knows by itself; the store knows all.
const KNOWN_MAX: usize = 100_000;

/// The time between two notices.
const PAUSE: Duration = Duration::from_millis(10);

/// The most lines in a second of the log, which callers who invent values could fill.
const LINES_MAX: u64 = 10;

/// What it means, in the log.
const TEXT: &str = "a counter has reached a part of its limit";

const NOTED_WITHIN: Duration = Duration::from_secs(1);

/// Notices of this replica.
#[derive(Debug)]
pub struct Notices {
    names: TopKeyNames,
    hasher: DefaultHashBuilder,
    /// Until when a notice is not given again.
    known: Mutex<HashMap<u64, Instant>>,
    queue: mpsc::Sender<Notice>,
    queued: tokio::sync::Mutex<mpsc::Receiver<Notice>>,
    metrics: NoticeInstruments,
}

/// One counter has reached one part of its limit.
#[derive(Clone)]
struct Notice {
    domain: Arc<str>,
    rule: String,
    /// The descriptor, or its digest.
    key: String,
    limit: Arc<Limit>,
    /// The part, in percent.
    at: u64,
    /// At least so many hits are used.
    used: u64,
    /// How long it is not given again: the rest of the window.
    lasts: Duration,
    raised: Timestamp,
    /// The same for the same counter and part on all replicas.
    id: String,
    /// The id that receivers see: made with a key, since the other one would let them guess values.
    event: String,
}

impl Notices {
    /// Notices that name keys as the lists of keys do.
    pub fn new(names: TopKeyNames, meter: &Meter) -> Self {
        let (queue, queued) = mpsc::channel(WAITING_MAX);
        let metrics = NoticeInstruments::of_meter(meter);
        for outcome in ["raised", "sent", "dropped"] {
            metrics.notices.add(0, &[KeyValue::new("outcome", outcome)]);
        }
        Self {
            names,
            hasher: DefaultHashBuilder::default(),
            known: Mutex::default(),
            queue,
            queued: queued.into(),
            metrics,
        }
    }

    /// Queues the notices of a call that was decided at `now`.
    pub fn record(
        &self,
        plan: &Plan,
        verdict: &Verdict,
        now: Instant,
        digest: impl Fn(u64) -> String,
    ) {
        if !plan.charges.iter().any(|charge| charge.counter.limit.notify_at.is_some()) {
            return;
        }
        let skipped = plan.skipped(verdict);
        for (index, judged) in plan.judged(verdict).enumerate() {
            let JudgedCharge { directive, charge, tally, .. } = judged;
            let is_set_aside =
                directive.is_some_and(|set| set.exempts() || set.action == DirectiveAction::Ban);
            if is_set_aside || tally.judged_by != JudgedBy::Counter || skipped.contains(&index) {
                continue;
            }
            let Some(used) = tally.used(charge) else { continue };
            for at in charge.counter.limit.reached(used) {
                self.queue(judged, at, used, now, &digest);
            }
        }
    }

    fn queue(
        &self,
        judged: JudgedCharge<'_>,
        at: u64,
        used: u64,
        now: Instant,
        digest: impl Fn(u64) -> String,
    ) {
        let JudgedCharge { matched, directive, charge, tally } = judged;
        let (counter, limit) = (&charge.counter, &charge.counter.limit);
        let lasts = match limit.algorithm {
            Algorithm::FixedWindow | Algorithm::FirstHitWindow { .. } => tally.reset,
            // They have no end at which they are empty.
            _ => Duration::from_millis(limit.window.millis()),
        };
        let of_limit = (limit.requests_per_unit, limit.window.seconds(), at);
        let key = self.hasher.hash_one((counter.hash_of_identity(&self.hasher), of_limit));
        let mut known = self.known.lock();
        if known.get(&key).is_some_and(|until| now < *until) {
            return;
        }
        if known.len() >= KNOWN_MAX {
            known.retain(|_, until| now < *until);
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        // What finds no place is queued by a later call.
        let Ok(place) = self.queue.try_reserve() else { return };
        known.insert(key, now + lasts);
        drop(known);
        let name = KeyName::new(matched, directive, counter, self.names);
        let id = Sha256::digest(format!("{}\n{of_limit:?}", counter.business_id().0));
        place.send(Notice {
            domain: Arc::clone(&name.domain),
            rule: name.rule_path().to_owned(),
            key: name.text(&digest),
            event: digest(id.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))),
            limit: Arc::clone(limit),
            at,
            used,
            lasts,
            raised: system_clock(),
            id: id.iter().take(16).fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            }),
        });
    }

    /// Tells of what is queued, until `stop`.
    pub async fn follow(
        &self,
        store: &Store,
        records: Option<LogRecords>,
        webhook: Option<Webhook>,
        stop: CancellationToken,
    ) {
        let (outbox, waiting) = mpsc::channel(WAITING_MAX);
        let sending = async {
            match webhook {
                Some(webhook) => {
                    webhook
                        .send_all(waiting, &stop, |outcome, notices| {
                            self.count(outcome, notices);
                        })
                        .await
                }
                None => drop(waiting),
            }
        };
        let telling = async {
            let mut queued = self.queued.lock().await;
            let mut log = NoticeLog { records, began: Instant::now(), lines: 0, suppressed: 0 };
            while let Some(Some(notice)) = stop.run_until_cancelled(queued.recv()).await {
                self.tell(store, notice, &mut log, &outbox).await;
                sleep(PAUSE).await;
            }
            while let Ok(notice) = queued.try_recv() {
                self.tell(store, notice, &mut log, &outbox).await;
            }
            drop(outbox);
        };
        tokio::join!(telling, sending);
    }

    async fn tell(
        &self,
        store: &Store,
        notice: Notice,
        log: &mut NoticeLog,
        outbox: &mpsc::Sender<Notice>,
    ) {
        if !notice.is_first(store).await {
            return;
        }
        self.count("raised", 1);
        log.write(&notice);
        if !outbox.is_closed() && outbox.try_send(notice).is_err() {
            self.count("dropped", 1);
        }
    }

    fn count(&self, outcome: &'static str, notices: usize) {
        let notices = u64::try_from(notices).unwrap_or(u64::MAX);
        self.metrics.notices.add(notices, &[KeyValue::new("outcome", outcome)]);
    }
}

/// The lines of the log about notices, and the records of OTLP.
struct NoticeLog {
    records: Option<LogRecords>,
    /// When the second began in which these were written.
    began: Instant,
    lines: u64,
    suppressed: u64,
}

impl NoticeLog {
    fn write(&mut self, notice: &Notice) {
        if let Some(records) = &self.records {
            notice.emit(records);
        }
        let now = Instant::now();
        if now.duration_since(self.began) >= Duration::from_secs(1) {
            (self.began, self.lines) = (now, 0);
        }
        if self.lines >= LINES_MAX {
            self.suppressed += 1;
            return;
        }
        self.lines += 1;
        let Notice { domain, rule, key, limit, at, used, .. } = notice;
        let suppressed = Some(mem::take(&mut self.suppressed)).filter(|count| *count > 0);
        tracing::info!(
            %domain, rule, key, %limit, at, used, suppressed,
            "{TEXT}"
        );
    }
}

impl Notice {
    /// Whether no replica has told of it. A store that gives no answer cannot say so.
    async fn is_first(&self, store: &Store) -> bool {
        let Some(servers) = store.servers() else { return true };
        // It may have waited.
        let waited = u64::try_from(system_clock().millis_since(self.raised)).unwrap_or_default();
        let lasts = millis(self.lasts).saturating_sub(waited).max(1);
        let note = |key: &str| {
            let mut set = cmd("SET");
            set.arg(key).arg(1).arg("NX").arg("PX").arg(lasts);
            vec![set]
        };
        let tag = format!("notice:{}", self.id);
        let answers = servers.run(&tag, NOTED_WITHIN, Steps::Several, note).await;
        !answers.is_ok_and(|answers| answers.first() == Some(&Reply::Nil))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
