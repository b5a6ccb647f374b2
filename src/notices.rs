//! Notices: of a limit with `notify_at`, that a counter has reached a part of it, that a ban has closed one, or that a
//! commit has used more than its hold; and that an override has ended. A call only queues a notice. A task records it in
//! the store, so that only one replica logs it, exports it and sends it to the webhook.

mod event;
mod webhook;

use std::{fmt::Write as _, hash::BuildHasher as _, iter, mem, sync::Arc, time::Duration};

use hashbrown::{DefaultHashBuilder, HashMap};
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};
use parking_lot::Mutex;
use redis::{Value as Reply, cmd};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::{
    select,
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::event::{CLOSED, Kind, Notice, OVERRUN, REACHED};
pub use self::webhook::Webhook;
use crate::{
    engine::{
        decision::{Committed, Matched},
        directive::DirectiveAction,
        key,
        ledger::{CommitOutcome, Fit, HoldAction, JudgedBy, Tally, Verdict},
        plan::{JudgedCharge, Plan},
        request::Hits,
        rule::{Algorithm, Limit},
        rule_set::RuleSet,
        time::Timestamp,
    },
    overrides::Overrides,
    process::clock::system_clock,
    store::{Store, StoreError, redis::topology::by_key::Steps},
    telemetry::{LogRecords, instruments},
    top_keys::{KeyName, TopKeyNames},
};

instruments! {
    struct NoticeInstruments {
        notices: Counter<u64> => NOTICES = Counter("ratelimit.notices", ["outcome"],
            "notices: `raised`; of these `sent` to the webhook, or `dropped`, because it did not take them");
    }
}

/// The most notices that wait, for the task or for the webhook.
const WAITING_MAX: usize = 1_000;

/// The most notices of windows under way that a replica knows by itself; the store knows all.
const KNOWN_MAX: usize = 100_000;

/// Of a late commit, the [mark](Cause::mark): more than every percentage.
const LATE_MARK: u64 = 101;

/// The time between two notices.
const PAUSE: Duration = Duration::from_millis(10);

/// The most lines in a second of the log, which callers who invent values could fill.
const LINES_MAX: u64 = 10;

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

/// What has happened to a counter.
#[derive(Clone, Copy)]
struct Cause<'call> {
    kind: &'static Kind,
    matched: &'call Matched,
    rule: &'call str,
    counter: &'call key::Counter,
    limit: &'call Arc<Limit>,
    /// A number that differs between the notices of one counter: the percentage, the end of a ban, or 0.
    mark: u64,
    /// How long it is not given again: the rest of the window.
    lasts: Duration,
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
        rules: &RuleSet,
        plan: &Plan,
        verdict: &Verdict,
        now: Instant,
        digest: impl Fn(u64) -> String,
    ) {
        self.record_overruns(rules, plan, verdict, now, &digest);
        if !plan.charges.iter().any(|charge| charge.counter.limit.notify_at.is_some()) {
            return;
        }
        let skipped = plan.skipped(verdict);
        for (index, judged) in plan.judged(verdict).enumerate() {
            let JudgedCharge { matched, directive, charge, tally } = judged;
            let (counter, limit) = (&charge.counter, &charge.counter.limit);
            let is_set_aside =
                directive.is_some_and(|set| set.exempts() || set.action == DirectiveAction::Ban);
            if is_set_aside
                || limit.notify_at.is_none()
                || tally.judged_by != JudgedBy::Counter
                || skipped.contains(&index)
            {
                continue;
            }
            let (rule, lasts) = (matched.rule_label(), rest_of_window(limit, tally));
            let reached = Cause { kind: &REACHED, matched, rule, counter, limit, mark: 0, lasts };
            // The cache of denials knows no time, and so not exactly when the ban ends.
            if let Some(HoldAction::Ban { for_ms }) = charge.hold
                && (tally.fit, charge.hits == Hits::Check) == (Fit::Over, false)
                && let Some(at) = verdict.at.get(index).or(verdict.at.first())
            {
                let until = at.plus_millis(millis(tally.reset));
                // Longer than the ban, for replicas that are late.
                let lasts = Duration::from_millis(2 * for_ms);
                let closed = Cause { kind: &CLOSED, mark: until.as_millis(), lasts, ..reached };
                self.queue(closed, now, &digest, || vec![("until", until.date().into())]);
            }
            let Some(used) = tally.used(charge) else { continue };
            for at in limit.reached(used) {
                let data = || vec![("at", at.into()), ("used", used.into()), resets_in(lasts)];
                self.queue(Cause { mark: at, ..reached }, now, &digest, data);
            }
        }
    }

    /// Queues a notice of each hold that a call commits, if more was used.
    fn record_overruns(
        &self,
        rules: &RuleSet,
        plan: &Plan,
        verdict: &Verdict,
        now: Instant,
        digest: impl Fn(u64) -> String,
    ) {
        for (charge, tally) in plan.charges.iter().zip(&verdict.tallies) {
            let counter = &charge.counter;
            if let Some(commit) = Committed::of(charge, tally)
                && let Some((held, used)) = commit.overrun()
                && let Some(CommitOutcome::Applied | CommitOutcome::Late) = commit.outcome
                // The limit in the token has only what a commit needs.
                && let Some(policy) = &counter.limit.hold
                && let Some(holding) = rules.holding_limit(policy.number)
                && holding.limit.notify_at.is_some()
            {
                let matched = &Matched::Override(Arc::clone(&holding.domain));
                let (rule, limit) = (&*holding.rule, &holding.limit);
                let lasts = rest_of_window(limit, tally);
                let is_late = commit.outcome == Some(CommitOutcome::Late);
                let mark = if is_late { LATE_MARK } else { 0 };
                let cause = Cause { kind: &OVERRUN, matched, rule, counter, limit, mark, lasts };
                self.queue(cause, now, &digest, || {
                    let outcome = ("outcome", commit.name().into());
                    vec![outcome, ("held", held.into()), ("used", used.into()), resets_in(lasts)]
                });
            }
        }
    }

    /// Queues a notice with the common data and its own, if it was not given.
    fn queue(
        &self,
        cause: Cause<'_>,
        now: Instant,
        digest: impl Fn(u64) -> String,
        own: impl FnOnce() -> Vec<(&'static str, Value)>,
    ) {
        let Cause { kind, matched, rule, counter, limit, mark, lasts } = cause;
        let of_limit = (limit.requests_per_unit, limit.window.seconds(), mark);
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
        let name = KeyName::new(matched, None, counter, self.names);
        let mut data = vec![
            ("domain", Value::from(&*name.domain)),
            ("rule", rule.into()),
            ("key", name.text(&digest).into()),
            ("limit", limit.to_string().into()),
            ("name", limit.name.as_deref().into()),
            ("capacity", limit.capacity().into()),
        ];
        data.extend(own());
        let raised = system_clock();
        // The replicas' clocks differ by less than half a second.
        let window_ends = raised.plus_millis(millis(lasts).saturating_add(500));
        let ends = if *kind == CLOSED { Timestamp::from_millis(mark) } else { window_ends };
        let id = Sha256::digest(format!("{}\n{of_limit:?}", counter.business_id().0));
        let event = digest(id.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte)));
        place.send(Notice {
            kind,
            data,
            lasts,
            raised,
            event_id: format!("{event}-{}", ends.as_secs()),
            id: id.iter().take(16).fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            }),
        });
    }

    /// Sends queued notices, and one for each override that ends, until `stop`.
    pub async fn follow(
        &self,
        store: &Store,
        overrides: &Overrides,
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
            let (mut queued, mut ended) = (self.queued.lock().await, overrides.ended());
            let mut log = NoticeLog { records, began: Instant::now(), lines: 0, suppressed: 0 };
            loop {
                let notice = select! {
                    biased;
                    () = stop.cancelled() => break,
                    Some(one) = ended.recv() => Notice::of_override(&one, self.names),
                    Some(notice) = queued.recv() => notice,
                };
                self.tell(store, notice, &mut log, &outbox).await;
                sleep(PAUSE).await;
            }
            let ended = iter::from_fn(|| ended.try_recv().ok());
            let ended = ended.map(|one| Notice::of_override(&one, self.names));
            for notice in ended.chain(iter::from_fn(|| queued.try_recv().ok())) {
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
        let (text, number) = (|name| notice.text(name), |name| notice.number(name));
        tracing::info!(
            domain = text("domain").map(display),
            rule = text("rule"),
            key = text("key"),
            limit = text("limit").map(display),
            at = number("at"),
            outcome = text("outcome"),
            held = number("held"),
            used = number("used"),
            "override" = text("override").map(display),
            action = text("action"),
            descriptor = text("descriptor"),
            because = text("because"),
            by = text("by"),
            until = text("until").map(display),
            end = text("end").map(display),
            suppressed = Some(mem::take(&mut self.suppressed)).filter(|count| *count > 0),
            "{}",
            notice.kind.text
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
        match servers.run(&tag, NOTED_WITHIN, Steps::Several, note).await {
            Ok(answers) => answers.first() != Some(&Reply::Nil),
            // It has not taken the ban either.
            Err(StoreError::TakesNoWrites(_)) => *self.kind != CLOSED,
            Err(_) => true,
        }
    }
}

/// How long a counter does not reach a part of its limit again.
fn rest_of_window(limit: &Limit, tally: &Tally) -> Duration {
    match limit.algorithm {
        Algorithm::FixedWindow | Algorithm::FirstHitWindow { .. } => tally.reset,
        // They have no end at which they are empty.
        _ => Duration::from_millis(limit.window.millis()),
    }
}

fn resets_in(lasts: Duration) -> (&'static str, Value) {
    ("resets_in", millis(lasts).div_ceil(1000).into())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
