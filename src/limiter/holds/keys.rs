//! The keys that sign tokens: of a file, or one that the replicas keep in the store, each for an epoch. The one that signs
//! makes digests too, so that they are the same on all replicas.

use std::{
    fmt, fs, future,
    hash::{BuildHasher as _, RandomState},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use redis::{Value, from_redis_value};
use ring::{
    digest, hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use tokio::{select, sync::Notify, time};

use crate::{
    engine::{hold::HoldPolicy, time::Timestamp},
    net::tls::last_good::LastGood,
    store::{
        Store, StoreError,
        redis::{RedisStore, topology::by_key::Steps},
    },
};

/// The bytes of a key that is made here, and the least of any other.
const SECRET_BYTES: usize = digest::SHA256_OUTPUT_LEN;

/// How long one key signs: a day longer than any token lives. A key is made in the epoch before, and accepted in the one
/// after.
const EPOCH_MS: u64 = HoldPolicy::LIFETIME_MS_MAX + 86_400_000;

/// How often the store is queried for keys; while it has none, or a token came that none has signed; and while it gives no
/// answer.
const POLL_EVERY: Duration = Duration::from_secs(5);
const POLL_AGAIN_AFTER: Duration = Duration::from_secs(1);
const POLL_UNANSWERED_AFTER: Duration = Duration::from_millis(250);

const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The most keys that are accepted. A store that lost its data may have had others.
const KEYS_MAX: usize = 8;

/// What is signed for a digest begins with this, as no token does.
const DIGEST_OF: &[u8] = b"digest ";

/// The keys that sign tokens. Clones share them.
#[derive(Clone, Default)]
pub struct HoldKeys(Arc<KnownKeys>);

#[derive(Default)]
struct KnownKeys {
    /// `None` until they were read.
    keys: ArcSwapOption<TokenKeys>,
    file: Option<KeyFile>,
    changed: Notify,
    /// Is notified when one is needed that is not known.
    needed: Notify,
    /// Is notified of tokens that none has signed.
    missed: Notify,
    /// Whether digests were shown, which need a key too.
    makes_digests: AtomicBool,
    /// Whether the store gave none when it was last queried, since it has failed or takes no writes.
    are_refused: AtomicBool,
    /// Makes digests until a key is known.
    own: RandomState,
    /// Whether the log says why none is known.
    is_reported: AtomicBool,
}

/// One may sign, and all are accepted.
#[derive(Default)]
struct TokenKeys {
    signing: Option<HoldKey>,
    accepted: Vec<HoldKey>,
}

struct KeyFile {
    path: PathBuf,
    last_good: LastGood<Vec<Vec<u8>>, TokenKeys>,
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
        let count = self.0.keys.load().as_ref().map(|keys| keys.accepted.len());
        write!(f, "HoldKeys({count:?})")
    }
}

impl HoldKey {
    fn new(epoch: u64, secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Self { epoch, secret: secret.to_owned(), key }
    }

    fn digest(&self, id: u64) -> String {
        let signed = hmac::sign(&self.key, &[DIGEST_OF, &id.to_be_bytes()].concat());
        signed.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    fn random(epoch: u64) -> Result<Self, StoreError> {
        let mut secret = [0; SECRET_BYTES];
        let no_random = |_| StoreError::Unavailable("the system gives no random bytes".to_owned());
        SystemRandom::new().fill(&mut secret).map_err(no_random)?;
        Ok(Self::new(epoch, &secret))
    }
}

impl TokenKeys {
    /// The first signs.
    fn new(accepted: Vec<HoldKey>) -> Self {
        Self { signing: accepted.first().cloned(), accepted }
    }

    fn of_secrets<'secret>(secrets: impl Iterator<Item = &'secret [u8]>) -> Self {
        Self::new(secrets.map(|secret| HoldKey::new(0, secret)).collect())
    }
}

impl KeyFile {
    fn renew(&self) -> Result<Arc<TokenKeys>, String> {
        let made = |secrets: &Vec<_>| Ok(TokenKeys::of_secrets(secrets.iter().map(Vec::as_slice)));
        self.last_good.renew(secrets_in(&self.path), made)
    }
}

impl HoldKeys {
    /// The keys of these secrets, of any length: the first signs, and all are accepted.
    pub fn new<'secret>(secrets: impl Iterator<Item = &'secret [u8]>) -> Self {
        let keys = ArcSwapOption::from_pointee(TokenKeys::of_secrets(secrets));
        Self(Arc::new(KnownKeys { keys, ..KnownKeys::default() }))
    }

    /// The keys in a file, one a line: the first signs, and all are accepted.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn load(path: PathBuf) -> Result<Self, String> {
        let file = KeyFile { path, last_good: LastGood::new("the keys that sign tokens of holds") };
        let keys = ArcSwapOption::new(Some(file.renew()?));
        Ok(Self(Arc::new(KnownKeys { keys, file: Some(file), ..KnownKeys::default() })))
    }

    /// Reads the file again, if there is one. A bad one is logged once, and the last good one stays. Returns whether the file is
    /// in use.
    pub fn renew(&self) -> Option<bool> {
        let file = self.0.file.as_ref()?;
        if let Ok(keys) = file.renew() {
            self.0.keys.store(Some(keys));
        }
        Some(file.last_good.is_newest())
    }

    /// The keys for holds in this store. In memory, without a file, the process has a key of its own.
    #[must_use]
    pub fn for_store(&self, store: &Store) -> Self {
        if store.servers().is_none() && self.0.file.is_none() {
            let random = HoldKey::random(0).into_iter().collect();
            self.0.keys.store(Some(Arc::new(TokenKeys::new(random))));
        }
        self.clone()
    }

    /// The signature of these bytes; `None` while no key is known.
    pub(super) fn sign(&self, bytes: &[u8]) -> Option<hmac::Tag> {
        let keys = self.0.keys.load();
        let signing = keys.as_ref()?.signing.as_ref()?;
        Some(hmac::sign(&signing.key, bytes))
    }

    /// The digest by which lists and log lines show [`Counter::id`](crate::engine::key::Counter::id). Until a key is
    /// known, it is of this process alone.
    pub fn digest(&self, id: u64) -> String {
        let keys = self.0.keys.load();
        if let Some(signing) = keys.as_ref().and_then(|keys| keys.signing.as_ref()) {
            return signing.digest(id);
        }
        self.make_digests();
        format!("{:016x}", self.0.own.hash_one(id))
    }

    /// A key for another purpose, which does not tell this one; `None` while none is known.
    pub fn derived(&self, purpose: &[u8]) -> Option<[u8; 16]> {
        self.sign(&[DIGEST_OF, purpose].concat())?.as_ref().first_chunk().copied()
    }

    /// The digest of an id, and those that it had.
    pub fn digests(&self, id: u64) -> Vec<String> {
        let keys = self.0.keys.load();
        let accepted = keys.iter().flat_map(|keys| &keys.accepted);
        accepted.map(|key| key.digest(id)).chain([self.digest(id)]).collect()
    }

    /// Has the key of digests made, before the first of them if it can be known that they are shown.
    pub fn make_digests(&self) {
        self.0.makes_digests.store(true, Ordering::Relaxed);
        self.0.needed.notify_one();
    }

    /// Waits a moment for the key of digests, if none has been waited for yet.
    pub async fn prepare_digests(&self) {
        if !self.can_sign() && !self.0.makes_digests.swap(true, Ordering::Relaxed) {
            self.within(ANSWER_WITHIN, Self::can_sign).await;
        }
    }

    pub(super) fn have_signed(&self, bytes: &[u8], signature: &[u8]) -> bool {
        let keys = self.0.keys.load();
        let mut accepted = keys.iter().flat_map(|keys| &keys.accepted);
        let is_known = accepted.any(|known| hmac::verify(&known.key, bytes, signature).is_ok());
        if !is_known {
            // Another replica may have made its key since.
            self.0.missed.notify_one();
        }
        is_known
    }

    /// Whether it is known which keys there are, even if there are none.
    pub fn can_read(&self) -> bool {
        self.0.keys.load().is_some()
    }

    pub fn can_sign(&self) -> bool {
        self.0.keys.load().as_ref().is_some_and(|keys| keys.signing.is_some())
    }

    /// Whether they may be known soon: the store has not failed to give them when it was last queried.
    pub fn may_come(&self) -> bool {
        !self.0.are_refused.load(Ordering::Relaxed)
    }

    /// Waits until they can do this, for this long at most. Returns whether they can.
    pub async fn within(&self, span: Duration, can: fn(&Self) -> bool) -> bool {
        self.0.needed.notify_one();
        let known = async {
            while !can(self) {
                let mut changed = std::pin::pin!(self.0.changed.notified());
                changed.as_mut().enable();
                if !can(self) {
                    changed.await;
                }
            }
        };
        time::timeout(span, known).await.is_ok()
    }

    /// Follows the keys in the store, and makes them while tokens or digests need them; never ends.
    pub async fn follow(&self, store: &Store, are_needed: impl Fn() -> bool) {
        let Some(servers) = store.servers().filter(|_| self.0.file.is_none()) else {
            return future::pending().await;
        };
        loop {
            let signs = are_needed();
            let makes = signs || self.0.makes_digests.load(Ordering::Relaxed);
            let polled = self.poll(servers, makes).await;
            self.0.are_refused.store(polled.is_err(), Ordering::Relaxed);
            if signs {
                self.report(&polled);
            }
            let pause = async {
                if polled.is_err() {
                    return time::sleep(POLL_UNANSWERED_AFTER).await;
                }
                time::sleep(POLL_AGAIN_AFTER).await;
                if self.can_sign() {
                    drop(time::timeout(POLL_EVERY, self.0.missed.notified()).await);
                }
            };
            select! {
                biased;
                () = pause => {}
                // New rules, or a digest, need one.
                () = self.0.needed.notified(), if polled.is_ok() && !makes => {}
            }
        }
    }

    async fn poll(&self, servers: &RedisStore, makes: bool) -> Result<(), StoreError> {
        let clock =
            servers.run("hold-key", ANSWER_WITHIN, Steps::One, |_| vec![redis::cmd("TIME")]);
        let Some((seconds, _)) = clock.await?.pop().and_then(read::<(u64, u64)>) else {
            return Err(unexpected());
        };
        self.poll_at(servers, Timestamp::from_secs(seconds), makes).await
    }

    /// Learns the keys that the replicas have at this time by the store's clock, and `makes` those that are missing. What was
    /// known stays accepted.
    pub async fn poll_at(
        &self,
        servers: &RedisStore,
        now: Timestamp,
        makes: bool,
    ) -> Result<(), StoreError> {
        let epoch = now.as_millis() / EPOCH_MS;
        let kept = self.kept(servers, epoch, now, makes).await;
        let before = self.0.keys.load_full();
        let (signing, polled) = match kept {
            Ok(signing) => (signing, Ok(())),
            // A store that answers has no other.
            Err(
                error @ (StoreError::TakesNoWrites(_)
                | StoreError::NotPermitted(_)
                | StoreError::WrongType),
            ) => (before.as_ref().and_then(|keys| keys.signing.clone()), Err(error)),
            Err(error) => return Err(error),
        };
        let mut accepted: Vec<_> = signing.iter().cloned().collect();
        // Without the one that signs next, or has signed, it can sign.
        for other in [epoch + 1, epoch.saturating_sub(1)] {
            accepted.extend(self.kept(servers, other, now, makes).await.ok().flatten());
        }
        let is_new = |old: &&HoldKey| accepted.iter().all(|key| key.secret != old.secret);
        let old = before.iter().flat_map(|keys| &keys.accepted).filter(is_new);
        let old: Vec<_> = old.cloned().collect();
        accepted.extend(old);
        accepted.truncate(KEYS_MAX);
        self.0.keys.store(Some(Arc::new(TokenKeys { signing, accepted })));
        self.0.changed.notify_waiters();
        polled
    }

    /// The key of an epoch. If the store has none and this `makes` one, the store gets the one that was known, or a new one.
    async fn kept(
        &self,
        servers: &RedisStore,
        epoch: u64,
        now: Timestamp,
        makes: bool,
    ) -> Result<Option<HoldKey>, StoreError> {
        let tag = format!("hold-key-{epoch}");
        let get = |key: &str| redis::cmd("GET").arg(key).take();
        let answers = servers.run(&tag, ANSWER_WITHIN, Steps::One, |key| vec![get(key)]).await?;
        let found_key = found(epoch, answers)?;
        if found_key.is_some() || !makes {
            return Ok(found_key);
        }
        let keys = self.0.keys.load_full();
        let mut known = keys.iter().flat_map(|keys| &keys.accepted);
        let known = known.find(|known| known.epoch == epoch).cloned();
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
        found(epoch, answers)?.ok_or_else(unexpected).map(Some)
    }

    /// Logs that no token can be made, once, and that they can be again.
    fn report(&self, polled: &Result<(), StoreError>) {
        let is_reported = &self.0.is_reported;
        match polled {
            Ok(()) if is_reported.swap(false, Ordering::Relaxed) => {
                tracing::info!("the key that signs tokens of holds is known");
            }
            Err(error) if !self.can_sign() && !is_reported.swap(true, Ordering::Relaxed) => {
                tracing::warn!(
                    "the key that signs tokens of holds is not known, and on_store_failure decides calls that take or commit \
                     holds by token: {error}"
                );
            }
            _ => {}
        }
    }
}

/// The secrets in a file, one or two, one a line.
fn secrets_in(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let secrets: Vec<Vec<u8>> = text.lines().map(|line| line.trim().into()).collect();
    let are_long = secrets.iter().all(|secret| secret.len() >= SECRET_BYTES);
    if (1..=2).contains(&secrets.len()) && are_long {
        return Ok(secrets);
    }
    Err(format!("{}: must have one or two lines of at least {SECRET_BYTES} bytes", path.display()))
}

/// The key that the last of these answers holds.
fn found(epoch: u64, mut answers: Vec<Value>) -> Result<Option<HoldKey>, StoreError> {
    match answers.pop().and_then(read::<Option<Vec<u8>>>).ok_or_else(unexpected)? {
        Some(secret) if secret.len() < SECRET_BYTES => Err(StoreError::WrongType),
        secret => Ok(secret.map(|secret| HoldKey::new(epoch, &secret))),
    }
}

fn read<T: redis::FromRedisValue>(value: Value) -> Option<T> {
    from_redis_value(value).ok()
}

fn unexpected() -> StoreError {
    StoreError::Unavailable("it has no key of tokens, and takes none".to_owned())
}
