//! The audit: an entry for each change on the admin address, also for one that was refused. It is a log line, and an
//! entry of a bounded stream that the replicas share in Redis; without Redis, of a list in this process. Refusals have
//! a stream of their own, so that nobody can push changes out of theirs.

mod refusals;

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Value as Reply, cmd, from_redis_value};
use serde_json::{Value, json};
use tokio::time;

pub use self::refusals::RefusalKind;
use self::refusals::{Refusals, WINDOW};
use crate::{
    members::set_member,
    store::{Store, StoreError, redis::topology::by_key::Steps},
    text::printable::printable_start,
};

/// The hash tags of the streams.
const CHANGES: &str = "audit";
const REFUSALS: &str = "audit-refused";

const ENTRIES_MAX: usize = 10_000;

const KEPT_MS: u64 = 366 * 86_400_000;

const WITHIN: Duration = Duration::from_secs(1);

/// How often windows are looked for that have ended.
const COUNTED_EVERY: Duration = Duration::from_secs(5);

const READ_AT_A_TIME: usize = 500;

/// Most bytes of a text in an entry, about: a client chooses some.
const TEXT_BYTES_MAX: usize = 512;

#[derive(Debug)]
pub struct Audit {
    store: Arc<Store>,
    /// The streams without Redis, by their hash tags: entries, the newest last.
    in_memory: Mutex<HashMap<&'static str, VecDeque<(EntryId, String)>>>,
    refusals: Refusals,
}

/// Milliseconds since 1970 by the store's clock, and a number that distinguishes entries of one millisecond. Later
/// entries have larger ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(u64, u64);

#[derive(Debug)]
pub struct Attempt<'attempt> {
    /// The name of a certificate or of a token, or an address.
    pub who: &'attempt str,
    /// What was to be done, such as `reset counters`.
    pub action: &'attempt str,
    /// What it was to be done to: an object of texts, lists and numbers.
    pub details: Value,
    /// Why it is not done.
    pub refused: Option<(RefusalKind, String)>,
}

#[derive(Debug, Default)]
pub struct AuditQuery {
    pub limit: usize,
    /// Only entries before this one.
    pub after: Option<EntryId>,
    /// Only entries whose JSON contains this text, in any case.
    pub text: Option<String>,
    /// Only entries of clients whose name contains this text, in any case.
    pub who: Option<String>,
}

impl Audit {
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, in_memory: Mutex::default(), refusals: Refusals::default() }
    }

    /// Writes the entry of an attempt. One that failed may be only counted: see [`Refusals`].
    pub async fn note(&self, attempt: Attempt<'_>) {
        let Attempt { who, action, details, refused } = attempt;
        let (stream, outcome) = match refused {
            None => (CHANGES, "done".to_owned()),
            Some((kind, _)) if !self.refusals.is_written(who, kind, Instant::now()) => return,
            // It may have changed something.
            Some((RefusalKind::Failed, reason)) => (CHANGES, format!("failed: {reason}")),
            Some((_, reason)) => (REFUSALS, format!("refused: {reason}")),
        };
        self.write(stream, who, action, details, &outcome).await;
    }

    /// Writes entries about attempts that were only counted, a minute later; never ends.
    pub async fn follow(&self) {
        loop {
            time::sleep(COUNTED_EVERY).await;
            self.write_counted(Instant::now()).await;
        }
    }

    /// Writes entries about the attempts that were only counted, also of this minute.
    pub async fn end(&self) {
        drop(time::timeout(WITHIN, self.write_counted(Instant::now() + WINDOW)).await);
    }

    async fn write_counted(&self, now: Instant) {
        for ((who, kind), count) in self.refusals.counted(now) {
            let outcome = format!("refused: {count} further attempts in a minute, {}", kind.name());
            self.write(REFUSALS, &who, "attempt", json!({}), &outcome).await;
        }
    }

    async fn write(
        &self,
        stream: &'static str,
        who: &str,
        action: &str,
        details: Value,
        outcome: &str,
    ) {
        let mut entry = bounded_texts(details);
        let details = entry.to_string();
        let [who, outcome] = [who, outcome].map(bounded);
        for (name, text) in [("who", who.as_str()), ("action", action), ("outcome", &outcome)] {
            set_member(&mut entry, name, text);
        }
        let stored = self.store(stream, entry.to_string()).await;
        tracing::info!(who, action, details, outcome, "audit");
        if let Err(error) = stored {
            tracing::warn!(%error, "Redis has not stored the last entry of the audit, which is only in this log");
        }
    }

    async fn store(&self, stream: &'static str, entry: String) -> Result<(), StoreError> {
        let servers = match &*self.store {
            Store::Redis(servers) => servers,
            Store::Memory(store) => {
                self.keep(stream, store.now().as_millis(), entry);
                return Ok(());
            }
        };
        let add = |key: &str| {
            let mut add = cmd("XADD");
            add.arg(key).arg("MAXLEN").arg("~").arg(ENTRIES_MAX).arg("*").arg("entry").arg(entry);
            let mut expire = cmd("PEXPIRE");
            expire.arg(key).arg(KEPT_MS);
            vec![add, expire]
        };
        servers.run(stream, WITHIN, Steps::One, add).await.map(drop)
    }

    fn keep(&self, stream: &'static str, now: u64, entry: String) {
        let mut in_memory = self.in_memory.lock();
        let newest =
            in_memory.values().filter_map(|entries| entries.back()).map(|(id, _)| *id).max();
        let id = match newest {
            Some(EntryId(last, number)) if last >= now => EntryId(last, number + 1),
            _ => EntryId(now, 0),
        };
        let entries = in_memory.entry(stream).or_default();
        if entries.len() >= ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back((id, entry));
    }

    /// Entries, the newest first, and the id after which there are more.
    pub async fn read(
        &self,
        query: &AuditQuery,
    ) -> Result<(Vec<Value>, Option<EntryId>), StoreError> {
        let lowercase = |text: &Option<String>| text.as_ref().map(|text| text.to_lowercase());
        let (text, who) = (lowercase(&query.text), lowercase(&query.who));
        let has = |wanted: &Option<String>, text: &str| {
            wanted.as_ref().is_none_or(|wanted| text.to_lowercase().contains(wanted))
        };
        let (mut found, mut last_shown, mut before) = (Vec::new(), None, query.after);
        loop {
            let some = self.before(before).await?;
            let Some((last, _)) = some.last() else { return Ok((found, None)) };
            before = Some(*last);
            for (id, entry) in some {
                let Ok(mut value) = serde_json::from_str::<Value>(&entry) else { continue };
                let name = value.get("who").and_then(Value::as_str).unwrap_or_default();
                if !has(&text, &entry) || !has(&who, name) {
                    continue;
                }
                // Redis may have given entries of both streams the same id.
                if found.len() >= query.limit && last_shown != Some(id) {
                    return Ok((found, last_shown));
                }
                set_member(&mut value, "id", id.to_string());
                set_member(&mut value, "at_ms", id.0);
                last_shown = Some(id);
                found.push(value);
            }
        }
    }

    /// Some of the entries before this one, the newest first.
    async fn before(&self, id: Option<EntryId>) -> Result<Vec<(EntryId, String)>, StoreError> {
        let mut entries = Vec::new();
        let mut from = EntryId(0, 0);
        for stream in [CHANGES, REFUSALS] {
            let some = self.of_stream(stream, id).await?;
            // Older ones than the last of a part may follow entries that were not read.
            if let (READ_AT_A_TIME, Some((last, _))) = (some.len(), some.last()) {
                from = from.max(*last);
            }
            entries.extend(some);
        }
        entries.retain(|(id, _)| *id >= from);
        entries.sort_by_key(|(id, _)| Reverse(*id));
        Ok(entries)
    }

    async fn of_stream(
        &self,
        stream: &'static str,
        id: Option<EntryId>,
    ) -> Result<Vec<(EntryId, String)>, StoreError> {
        let Some(servers) = self.store.servers() else {
            let in_memory = self.in_memory.lock();
            let entries = in_memory.get(stream).into_iter().flatten().rev();
            let before = entries.filter(|(other, _)| id.is_none_or(|id| *other < id));
            return Ok(before.take(READ_AT_A_TIME).cloned().collect());
        };
        let read = |key: &str| {
            let mut read = cmd("XREVRANGE");
            read.arg(key).arg(id.map_or("+".to_owned(), |id| format!("({id}"))).arg("-");
            read.arg("COUNT").arg(READ_AT_A_TIME);
            vec![read]
        };
        let reply = servers.run(stream, WITHIN, Steps::One, read).await?.pop();
        let entries: Vec<(String, Vec<String>)> = from_redis_value(reply.unwrap_or(Reply::Nil))
            .map_err(|_| StoreError::Unavailable("the audit is not a stream".to_owned()))?;
        let entries = entries
            .into_iter()
            .filter_map(|(id, fields)| Some((id.parse().ok()?, fields.into_iter().nth(1)?)));
        Ok(entries.collect())
    }
}

impl std::fmt::Display for EntryId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

impl std::str::FromStr for EntryId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once('-')
            .and_then(|(ms, number)| Some(Self(ms.parse().ok()?, number.parse().ok()?)))
            // Redis has no entry with this id, and refuses to read before it.
            .filter(|id| *id != Self(0, 0));
        parts.ok_or_else(|| "must be the id of an entry, such as 1764103200000-0".to_owned())
    }
}

/// A text with the start of one that a client has chosen, escaped.
pub(crate) fn bounded(text: &str) -> String {
    printable_start(text.as_bytes(), TEXT_BYTES_MAX)
}

fn bounded_texts(value: Value) -> Value {
    match value {
        Value::String(text) => bounded(&text).into(),
        Value::Array(items) => items.into_iter().map(bounded_texts).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, bounded_texts(value))).collect()
        }
        other => other,
    }
}
