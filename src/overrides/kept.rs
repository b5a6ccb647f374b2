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
    store::{StoreError, redis::RedisStore},
};

/// The hash tag of the key.
const TAG: &str = "overrides";

/// The field that every change replaces. No id is spelled so.
const VERSION: &str = "version";

/// How long the store may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

impl Overrides {
    /// Sets an override: it is in force here when this returns, and on other replicas soon.
    ///
    /// # Errors
    /// See [`OverrideError`].
    pub async fn set(&self, new: &NewOverride, by: String) -> Result<Arc<Override>, OverrideError> {
        let _turn = self.turn.lock().await;
        let Some(servers) = self.store.servers() else {
            let mut known = self.known.lock();
            let (one, now) = (known.added(new, by)?, known.now());
            known.all.retain(|one| one.directive.until > now);
            known.all.push(Arc::clone(&one));
            self.put_in_force(&mut known);
            return Ok(one);
        };
        self.read(servers).await?;
        let one = self.known.lock().added(new, by)?;
        let count = self.write(servers, Some(&one), None).await?;
        // Another replica may have set one at the same time.
        if count > OVERRIDES_MAX {
            self.write(servers, None, Some(&one.directive.id)).await?;
            return Err(OverrideError::Full);
        }
        // It is set, even if it cannot be read now: then this replica finds it as others do.
        drop(self.read(servers).await);
        Ok(one)
    }

    /// The override in force with this id, which another replica may have set just now.
    ///
    /// # Errors
    /// See [`OverrideError`].
    pub async fn find(&self, id: &str) -> Result<Arc<Override>, OverrideError> {
        let known = self.known.lock().find(id);
        match (known, self.store.servers()) {
            (Err(OverrideError::Unknown), Some(servers)) => {
                let _turn = self.turn.lock().await;
                self.read(servers).await?;
                self.known.lock().find(id)
            }
            (known, _) => known,
        }
    }

    /// Ends an override.
    ///
    /// # Errors
    /// See [`OverrideError`].
    pub async fn end(&self, id: &str) -> Result<Arc<Override>, OverrideError> {
        let _turn = self.turn.lock().await;
        let Some(servers) = self.store.servers() else {
            let mut known = self.known.lock();
            let found = known.find(id)?;
            known.all.retain(|one| !Arc::ptr_eq(one, &found));
            self.put_in_force(&mut known);
            return Ok(found);
        };
        self.read(servers).await?;
        let found = self.known.lock().find(id)?;
        self.write(servers, None, Some(id)).await?;
        drop(self.read(servers).await);
        Ok(found)
    }

    /// Learns the store's time, and its overrides if they have changed.
    pub(super) async fn look(&self, servers: &RedisStore) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        let sent = Instant::now();
        let asked =
            |key: &str| vec![redis::cmd("HGET").arg(key).arg(VERSION).take(), redis::cmd("TIME")];
        let [version, time] = exchange(servers, asked).await?;
        let version: Option<Vec<u8>> = read(version)?;
        {
            let mut known = self.known.lock();
            known.learn(timestamp(time)?, sent);
            if known.is_known && known.version == version.unwrap_or_default() {
                return Ok(());
            }
        }
        self.read(servers).await
    }

    /// Reads all overrides, and puts them in force.
    async fn read(&self, servers: &RedisStore) -> Result<(), StoreError> {
        let sent = Instant::now();
        let asked = |key: &str| vec![redis::cmd("HGETALL").arg(key).take(), redis::cmd("TIME")];
        let [fields, time] = exchange(servers, asked).await?;
        let mut fields: BTreeMap<String, Vec<u8>> = read(fields)?;
        let mut known = self.known.lock();
        known.learn(timestamp(time)?, sent);
        let version = fields.remove(VERSION).unwrap_or_default();
        if version.is_empty() && !known.version.is_empty() {
            let lost = known.in_force().count();
            tracing::warn!("the store has lost all overrides: {lost} are no longer in force");
        }
        known.version = version;
        known.is_known = true;
        let (count, read) =
            (fields.len(), |(id, text): (String, Vec<u8>)| Override::read(&id, &text));
        known.all = fields.into_iter().filter_map(read).map(Arc::new).collect();
        if known.all.len() < count {
            let unread = count - known.all.len();
            tracing::warn!(
                "{unread} overrides were written by a newer version, and are not in force here"
            );
        }
        self.put_in_force(&mut known);
        Ok(())
    }

    /// Writes and removes overrides by their ids, and removes those that have ended. Returns the number that the store
    /// keeps then.
    async fn write(
        &self,
        servers: &RedisStore,
        set: Option<&Override>,
        removed: Option<&str>,
    ) -> Result<usize, StoreError> {
        let mut removed: Vec<String> = removed.map(str::to_owned).into_iter().collect();
        removed.extend(self.known.lock().ended());
        let version = format!("{:08x}{:08x}", random(), random());
        let asked = |key: &str| {
            let mut write = redis::cmd("HSET").arg(key).arg(VERSION).arg(version).take();
            if let Some(one) = set {
                write.arg(&*one.directive.id).arg(one.kept());
            }
            let remove = redis::cmd("HDEL").arg(key).arg(&removed).take();
            let remove = (!removed.is_empty()).then_some(remove);
            let lives_ms = u64::try_from(LASTS_MAX.as_millis()).unwrap_or(u64::MAX);
            let expire = redis::cmd("PEXPIRE").arg(key).arg(lives_ms).take();
            let count = redis::cmd("HLEN").arg(key).take();
            remove.into_iter().chain([write, expire, count]).collect()
        };
        let answers = servers.run(TAG, WRITTEN_WITHIN, asked).await?;
        let count: usize = read(answers.into_iter().next_back().unwrap_or(Value::Nil))?;
        Ok(count.saturating_sub(1))
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
        self.changed.notify_one();
    }
}

/// Runs two commands on the key of the overrides.
async fn exchange(
    servers: &RedisStore,
    commands: impl FnOnce(&str) -> Vec<Cmd>,
) -> Result<[Value; 2], StoreError> {
    let answers = servers.run(TAG, ANSWER_WITHIN, commands).await?;
    answers.try_into().map_err(|_| unexpected())
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    from_redis_value(value).map_err(|_| unexpected())
}

/// An answer to TIME.
fn timestamp(time: Value) -> Result<Timestamp, StoreError> {
    let (seconds, micros): (u64, u64) = read(time)?;
    Ok(Timestamp::from_millis(seconds.saturating_mul(1000) + micros / 1000))
}

fn unexpected() -> StoreError {
    StoreError::Unavailable("its answer has an unexpected form".to_owned())
}
