//! Overrides in the store. In Redis they are one hash: a field for each, and one that every change replaces, so that
//! replicas see by one short answer whether anything has changed.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use redis::{Cmd, FromRedisValue, Value, from_redis_value};
use tokio::time::Instant;

use super::{
    Overrides,
    known::KnownOverrides,
    written::{LASTS_MAX, NewOverride, OVERRIDES_MAX, Override, OverrideError},
};
use crate::{
    engine::{directive::Directives, time::Timestamp},
    process::pause::random,
    store::{
        StoreError,
        redis::{RedisStore, topology::by_key::Steps},
    },
    text::printable::printable_start,
};

/// The hash tag of the key.
const TAG: &str = "overrides";

/// The field that every change replaces. No id is spelled so.
const VERSION: &str = "version";

/// Most ids of unreadable overrides that are named, and most bytes of each, about.
const NAMED_MAX: usize = 5;
const ID_BYTES_MAX: usize = 32;

const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

impl Overrides {
    /// Sets an override: it is in force here when this returns, and on other replicas soon.
    pub async fn set(&self, new: &NewOverride, by: String) -> Result<Arc<Override>, OverrideError> {
        let _turn = self.turn().await?;
        self.read().await?;
        let one = self.known.lock().added(new, by)?;
        let count = self.write(&one).await?;
        // Another replica may have set one at the same time.
        if count > OVERRIDES_MAX {
            self.remove(&one.directive.id).await?;
            return Err(OverrideError::Full);
        }
        // It is set, even if it cannot be read now: then this replica finds it as others do.
        drop(self.read().await);
        Ok(one)
    }

    /// The override in force with this id, which another replica may have set just now.
    pub async fn find(&self, id: &str) -> Result<Arc<Override>, OverrideError> {
        if let Some(found) = self.known.lock().find(id) {
            return Ok(found);
        }
        let _turn = self.turn().await?;
        self.read().await?;
        self.known.lock().find(id).ok_or(OverrideError::Unknown)
    }

    /// Ends an override that was [found](Self::find).
    pub async fn end(&self, one: &Override) -> Result<(), OverrideError> {
        let _turn = self.turn().await?;
        self.read().await?;
        let is_removed = self.remove(&one.directive.id).await?;
        drop(self.read().await);
        if is_removed { Ok(()) } else { Err(OverrideError::Ended) }
    }

    /// A turn for an exchange with the store, of an operator's request. It fails at once while the store is silent, so that
    /// such requests do not keep [`look`](Self::look) waiting.
    async fn turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, StoreError> {
        let turn = self.turn.lock().await;
        match self.known.lock().silent.clone() {
            None => Ok(turn),
            Some(error) => Err(error),
        }
    }

    /// Learns the store's time, and its overrides if they have changed.
    pub(super) async fn poll(&self) -> Result<(), StoreError> {
        let Some(servers) = self.store.servers() else { return Ok(()) };
        let _turn = self.turn.lock().await;
        // The number of fields shows a change by hand too.
        let state = |key: &str| {
            let version = redis::cmd("HGET").arg(key).arg(VERSION).take();
            vec![version, redis::cmd("HLEN").arg(key).take()]
        };
        let (version, fields): (Option<Vec<u8>>, usize) = self.query(servers, state).await?;
        {
            let known = self.known.lock();
            let is_same = known.version == version.unwrap_or_default() && known.fields == fields;
            if known.is_known && is_same {
                return Ok(());
            }
        }
        self.read().await
    }

    /// Reads all overrides, and puts them in force. In memory, all are known.
    async fn read(&self) -> Result<(), StoreError> {
        let Some(servers) = self.store.servers() else { return Ok(()) };
        let all = |key: &str| vec![redis::cmd("HGETALL").arg(key).take()];
        let (mut fields,): (BTreeMap<Vec<u8>, Vec<u8>>,) = self.query(servers, all).await?;
        let mut known = self.known.lock();
        known.fields = fields.len();
        let version = fields.remove(VERSION.as_bytes()).unwrap_or_default();
        if version.is_empty() && !known.version.is_empty() {
            let lost = known.in_force().count();
            tracing::warn!("the store has lost all overrides: {lost} are no longer in force");
        }
        known.version = version;
        known.is_known = true;
        let mut unread = Vec::new();
        known.all.clear();
        for (id, text) in &fields {
            match Override::read(id, text) {
                Some(one) => known.all.push(Arc::new(one)),
                None => unread.push(printable_start(id, ID_BYTES_MAX)),
            }
        }
        let (count, more) = (unread.len(), if unread.len() > NAMED_MAX { ", …" } else { "" });
        unread.truncate(NAMED_MAX);
        let ids = unread.join(", ") + more;
        known.note_problem((count > 0).then(|| format!(
            "overrides that cannot be read, and are not in force here: {count} ({ids}); a newer version may have set them"
        )));
        self.put_in_force(&mut known);
        Ok(())
    }

    /// The answers to commands on the key of the overrides. Learns the store's time with them.
    async fn query<T: FromRedisValue>(
        &self,
        servers: &RedisStore,
        commands: impl FnOnce(&str) -> Vec<Cmd>,
    ) -> Result<T, StoreError> {
        let sent = Instant::now();
        let commands = |key: &str| [commands(key), vec![redis::cmd("TIME")]].concat();
        let answers = servers.run(TAG, ANSWER_WITHIN, Steps::Several, commands).await;
        self.known.lock().silent = match &answers {
            Err(
                error @ (StoreError::TimedOut
                | StoreError::NoConnection
                | StoreError::Unavailable(_)),
            ) => Some(error.clone()),
            _ => None,
        };
        let mut answers = answers?;
        let (seconds, micros): (u64, u64) = read(answers.pop().unwrap_or(Value::Nil))?;
        let now = Timestamp::from_millis(seconds.saturating_mul(1000) + micros / 1000);
        self.known.lock().learn(now, sent);
        read(Value::Array(answers))
    }

    /// Writes an override, and removes those that have ended. Returns the number that the store keeps then.
    async fn write(&self, one: &Arc<Override>) -> Result<usize, OverrideError> {
        let Some(servers) = self.store.servers() else {
            let mut known = self.known.lock();
            let now = known.now();
            known.all.retain(|one| one.directive.until > now);
            known.all.push(Arc::clone(one));
            self.put_in_force(&mut known);
            return Ok(known.all.len());
        };
        let ended = self.known.lock().ended();
        let version = format!("{:08x}{:08x}", random(), random());
        let commands = |key: &str| {
            let mut write = redis::cmd("HSET").arg(key).arg(VERSION).arg(version).take();
            write.arg(&*one.directive.id).arg(one.kept().to_string());
            let remove_ended = redis::cmd("HDEL").arg(key).arg(&ended).take();
            let remove_ended = (!ended.is_empty()).then_some(remove_ended);
            let lives_ms = u64::try_from(LASTS_MAX.as_millis()).unwrap_or(u64::MAX);
            let expire = redis::cmd("PEXPIRE").arg(key).arg(lives_ms).take();
            let count = redis::cmd("HLEN").arg(key).take();
            remove_ended.into_iter().chain([write, expire, count]).collect()
        };
        let count = count(servers.run(TAG, WRITTEN_WITHIN, Steps::One, commands).await)?;
        Ok(count.saturating_sub(1))
    }

    /// Removes an override. Returns whether it was there. A Redis that is full does it too: no command of it needs memory, and
    /// replicas see by the number of fields that one is gone.
    async fn remove(&self, id: &str) -> Result<bool, OverrideError> {
        let Some(servers) = self.store.servers() else {
            let mut known = self.known.lock();
            let before = known.all.len();
            known.all.retain(|one| &*one.directive.id != id);
            let is_removed = known.all.len() < before;
            self.put_in_force(&mut known);
            return Ok(is_removed);
        };
        let commands = |key: &str| vec![redis::cmd("HDEL").arg(key).arg(id).take()];
        Ok(count(servers.run(TAG, WRITTEN_WITHIN, Steps::Several, commands).await)? == 1)
    }

    /// Puts those that are known and have not ended in force.
    pub(super) fn put_in_force(&self, known: &mut KnownOverrides) {
        known.all.sort_by_key(|one| Reverse((one.directive.set_at, Arc::clone(&one.directive.id))));
        let now = known.now();
        let in_force = known.all.iter().filter(|one| one.directive.until > now);
        let in_force: Vec<_> =
            in_force.take(OVERRIDES_MAX).map(|one| Arc::clone(&one.directive)).collect();
        let directives = (!in_force.is_empty()).then(|| Arc::new(Directives::new(in_force)));
        if let Some(directives) = &directives {
            directives.learn(now);
        }
        self.in_force.store(directives);
        known.record_changes();
        self.changed.notify_one();
    }
}

/// The number that the last command of a change has answered.
fn count(answers: Result<Vec<Value>, StoreError>) -> Result<usize, OverrideError> {
    let count = answers.and_then(|mut answers| read(answers.pop().unwrap_or(Value::Nil)));
    count.map_err(|error| match error {
        // No command was sent, or none has run.
        StoreError::NoConnection | StoreError::NotPermitted(_) | StoreError::TakesNoWrites(_) => {
            OverrideError::Unchanged(error)
        }
        _ => OverrideError::Unsure(error),
    })
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    from_redis_value(value).map_err(|_| unexpected())
}

fn unexpected() -> StoreError {
    StoreError::Unavailable("its answer has an unexpected form".to_owned())
}
