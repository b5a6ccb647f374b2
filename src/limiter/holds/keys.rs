//! The keys that sign tokens: of a file, or one that the replicas keep in the store, each for an epoch.

use std::{
    fmt, future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use redis::{Value, from_redis_value};
use ring::{
    digest, hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use tokio::{sync::Notify, time};

use crate::{
    engine::{hold::HoldPolicy, time::Timestamp},
    store::{
        Store, StoreError,
        redis::{RedisStore, topology::by_key::Steps},
    },
};

/// The bytes of a key that is made here, and the least of one that the store has.
const SECRET_BYTES: usize = digest::SHA256_OUTPUT_LEN;

/// How long one key signs: a day longer than any token lives. A key is made in the epoch before, and accepted in the one
/// after.
const EPOCH_MS: u64 = HoldPolicy::LIFETIME_MS_MAX + 86_400_000;

/// How often the store is queried for keys, and while none is known.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const LOOK_UNKNOWN_EVERY: Duration = Duration::from_millis(250);

const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The most keys that are accepted. A store that lost its data may have had others.
const KEYS_MAX: usize = 8;

/// The keys that sign tokens: the first signs, and all are accepted. Clones share them.
#[derive(Clone, Default)]
pub struct HoldKeys(Arc<KnownKeys>);

#[derive(Default)]
struct KnownKeys {
    keys: ArcSwap<Vec<HoldKey>>,
    is_from_file: bool,
    /// Is notified when keys were learned.
    changed: Notify,
    /// Is notified when one is needed that is not known.
    needed: Notify,
    /// Whether the log says why none is known.
    is_reported: AtomicBool,
}

#[derive(Clone)]
struct HoldKey {
    /// When it signs, if it is kept in the store.
    epoch: u64,
    secret: Vec<u8>,
    key: hmac::Key,
}

/// Keys are secrets.
impl fmt::Debug for HoldKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldKeys({})", self.0.keys.load().len())
    }
}

impl HoldKey {
    fn new(epoch: u64, secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Self { epoch, secret: secret.to_owned(), key }
    }

    fn random(epoch: u64) -> Result<Self, StoreError> {
        let mut secret = [0; SECRET_BYTES];
        let no_random = |_| StoreError::Unavailable("the system gives no random bytes".to_owned());
        SystemRandom::new().fill(&mut secret).map_err(no_random)?;
        Ok(Self::new(epoch, &secret))
    }
}

impl HoldKeys {
    /// The keys of these secrets, of any length.
    pub fn new<'secret>(secrets: impl Iterator<Item = &'secret [u8]>) -> Self {
        let keys: Vec<_> = secrets.map(|secret| HoldKey::new(0, secret)).collect();
        let known = KnownKeys { keys: ArcSwap::from_pointee(keys), ..KnownKeys::default() };
        Self(Arc::new(KnownKeys { is_from_file: true, ..known }))
    }

    /// The keys for holds in this store. In memory, without a file, the process has a key of its own.
    #[must_use]
    pub fn for_store(&self, store: &Store) -> Self {
        if store.servers().is_none() && !self.0.is_from_file {
            self.0.keys.store(Arc::new(HoldKey::random(0).into_iter().collect()));
        }
        self.clone()
    }

    /// The signature of these bytes; `None` while no key is known.
    pub(super) fn sign(&self, bytes: &[u8]) -> Option<hmac::Tag> {
        self.0.keys.load().first().map(|first| hmac::sign(&first.key, bytes))
    }

    pub(super) fn have_signed(&self, bytes: &[u8], signature: &[u8]) -> bool {
        let keys = self.0.keys.load();
        keys.iter().any(|known| hmac::verify(&known.key, bytes, signature).is_ok())
    }

    pub fn are_known(&self) -> bool {
        !self.0.keys.load().is_empty()
    }

    /// Waits until tokens can be made, for this long at most. Returns whether they can.
    pub async fn known_within(&self, span: Duration) -> bool {
        self.0.needed.notify_one();
        let known = async {
            while !self.are_known() {
                let mut changed = std::pin::pin!(self.0.changed.notified());
                changed.as_mut().enable();
                if !self.are_known() {
                    changed.await;
                }
            }
        };
        time::timeout(span, known).await.is_ok()
    }

    /// Follows the keys in the store while they are needed; never ends.
    pub async fn follow(&self, store: &Store, are_needed: impl Fn() -> bool) {
        let Some(servers) = store.servers().filter(|_| !self.0.is_from_file) else {
            return future::pending().await;
        };
        loop {
            if are_needed() {
                let looked = self.look(servers).await;
                self.report(&looked);
                time::sleep(if self.are_known() { LOOK_EVERY } else { LOOK_UNKNOWN_EVERY }).await;
            } else {
                // New rules may need them.
                drop(time::timeout(LOOK_UNKNOWN_EVERY, self.0.needed.notified()).await);
            }
        }
    }

    async fn look(&self, servers: &RedisStore) -> Result<(), StoreError> {
        let clock =
            servers.run("hold-key", ANSWER_WITHIN, Steps::One, |_| vec![redis::cmd("TIME")]);
        let Some((seconds, _)) = clock.await?.pop().and_then(read::<(u64, u64)>) else {
            return Err(unexpected());
        };
        self.look_at(servers, Timestamp::from_secs(seconds)).await
    }

    /// Learns the keys that the replicas have at this time by the store's clock, and makes those that are missing. What was
    /// known stays accepted.
    pub async fn look_at(&self, servers: &RedisStore, now: Timestamp) -> Result<(), StoreError> {
        let epoch = now.as_millis() / EPOCH_MS;
        let signing = self.kept(servers, epoch, now).await?;
        let before = self.0.keys.load_full();
        let mut keys = vec![signing];
        // Without the one that signs next, or has signed, it can sign.
        for other in [epoch + 1, epoch.saturating_sub(1)] {
            keys.extend(self.kept(servers, other, now).await.ok());
        }
        let is_new = |old: &&HoldKey| keys.iter().all(|key| key.secret != old.secret);
        let old: Vec<_> = before.iter().filter(is_new).cloned().collect();
        keys.extend(old);
        keys.truncate(KEYS_MAX);
        self.0.keys.store(Arc::new(keys));
        self.0.changed.notify_waiters();
        Ok(())
    }

    /// The key of an epoch. If the store has none, it gets the one that was known, or a new one.
    async fn kept(
        &self,
        servers: &RedisStore,
        epoch: u64,
        now: Timestamp,
    ) -> Result<HoldKey, StoreError> {
        let tag = format!("hold-key-{epoch}");
        let get = |key: &str| redis::cmd("GET").arg(key).take();
        let answers = servers.run(&tag, ANSWER_WITHIN, Steps::One, |key| vec![get(key)]).await?;
        if let Some(known) = found(epoch, answers)? {
            return Ok(known);
        }
        let known = self.0.keys.load().iter().find(|known| known.epoch == epoch).cloned();
        let ends = Timestamp::from_millis((epoch + 2).saturating_mul(EPOCH_MS));
        let ours = match known {
            Some(known) => known,
            None if ends > now.plus_millis(EPOCH_MS) => HoldKey::random(epoch)?,
            // It has signed no token that is open.
            None => return Err(unexpected()),
        };
        let lives_ms = now.until(ends).as_millis().max(1);
        // Another replica may be faster.
        let set_and_get = |key: &str| {
            let mut set = redis::cmd("SET");
            set.arg(key).arg(&ours.secret).arg("NX").arg("PX").arg(lives_ms.to_string());
            vec![set, get(key)]
        };
        let answers = servers.run(&tag, ANSWER_WITHIN, Steps::Several, set_and_get).await;
        let answers = answers.map_err(|error| match error {
            // Its text may repeat the arguments.
            StoreError::Unavailable(_) => unexpected(),
            other => other,
        })?;
        found(epoch, answers)?.ok_or_else(unexpected)
    }

    /// Logs that no token can be made, once, and that they can be again.
    fn report(&self, looked: &Result<(), StoreError>) {
        let is_reported = &self.0.is_reported;
        match looked {
            Ok(()) if is_reported.swap(false, Ordering::Relaxed) => {
                tracing::info!("the key that signs tokens of holds is known");
            }
            Err(error) if !self.are_known() && !is_reported.swap(true, Ordering::Relaxed) => {
                tracing::warn!(
                    "the key that signs tokens of holds is not known, and on_store_failure decides takes by token: {error}"
                );
            }
            _ => {}
        }
    }
}

/// The key that the last of these answers holds.
fn found(epoch: u64, mut answers: Vec<Value>) -> Result<Option<HoldKey>, StoreError> {
    match answers.pop().and_then(read::<Option<Vec<u8>>>).ok_or_else(unexpected)? {
        Some(secret) if secret.len() < SECRET_BYTES => Err(unexpected()),
        secret => Ok(secret.map(|secret| HoldKey::new(epoch, &secret))),
    }
}

fn read<T: redis::FromRedisValue>(value: Value) -> Option<T> {
    from_redis_value(value).ok()
}

fn unexpected() -> StoreError {
    StoreError::Unavailable("it has no key of tokens, and takes none".to_owned())
}
