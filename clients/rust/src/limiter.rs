//! Decides calls on hot keys in this process, by hits that the service has charged in advance.

mod lease;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash as _, Hasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::{select, sync::watch, time::sleep};

use crate::call::entry_bytes;
use crate::{Call, Client, Decision, Descriptor, Error, ServiceError, v1::Verdict};
use lease::{Entry, Moment, State};

const SHARDS: usize = 16;
const SHARD_ENTRIES_MAX: usize = 10_000 / SHARDS;
/// Callers may send long values. This bounds the memory that they take.
const KEPT_BYTES_MAX: usize = 1 << 10;
/// How long the answer to a lease is awaited.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// How often a full shard is searched for entries that are not in use.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// Decides calls as its [`Client`] does, those on hot keys in this process: without a request, in a fraction of a microsecond,
/// and never over the limit, since hits are charged before they are spent. Their limits need `lease: auto`.
///
/// While more than 200 calls a second have the same descriptors, it charges the hits of the next 100 ms in advance, at most a
/// twentieth of what the limit has left, and spends them for at most 200 ms. What is left then goes back. The service decides
/// the calls for which no such hits are left. It also decides every call that is not a [`Call::take`], or that has an id, hits
/// by kind, or a limit of its own.
///
/// Make one for the process: clones share its hits. It keeps at most 10,000 lists of descriptors, each of at most 1 KiB, and has
/// no task while it has no hits. [`Client::close`] gives all hits back.
#[derive(Clone)]
pub struct Limiter {
    pub(crate) client: Client,
    table: Arc<Table>,
}

/// A call that is made often. [`Limiter::prepare`] makes it.
#[derive(Clone)]
pub struct Prepared {
    limiter: Limiter,
    call: Call,
    /// The hits that a lease may pay for, and where.
    leased: Option<(u64, Arc<Entry>)>,
}

#[derive(Default)]
struct Table {
    hashes: RandomState,
    shards: [RwLock<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    /// By the hash of the descriptors. The next ones with the same hash get none.
    entries: HashMap<u64, Arc<Entry>, BuildHasherDefault<Hashed>>,
    sweeps_after: Option<Moment>,
}

/// Passes on what is a hash.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl Limiter {
    /// Decides calls by this client and its settings.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), table: Arc::default() }
    }

    /// Decides a call, as [`Client::decide`] does.
    ///
    /// If it is decided in this process, `remaining` is what the service last said, at most 200 ms ago, plus the hits in hand.
    /// [`Options::on_call`](crate::Options::on_call) gets requests only.
    ///
    /// # Errors
    ///
    /// Only by a mistake of the caller, such as no descriptor.
    pub async fn decide(&self, call: impl Into<Call>) -> Result<Decision, Error> {
        let call = call.into();
        let leased = call.hits_to_lease().and_then(|hits| Some((hits, self.table.find(&call)?)));
        match self.spend(leased.as_ref()) {
            Some(decision) => Ok(decision),
            // On the heap, so that a call that is decided here moves no large future.
            None => Box::pin(self.request(call, leased.as_ref())).await,
        }
    }

    /// Prepares a call that is made often, such as one on the tenant of a connection. It is decided as by [`Self::decide`], but in
    /// half the time, since nothing is built or looked up.
    ///
    /// # Errors
    ///
    /// By a mistake of the caller, such as no descriptor.
    pub fn prepare(&self, call: impl Into<Call>) -> Result<Prepared, Error> {
        let call = call.into();
        call.validate("hits")?;
        let entry = || {
            let found = self.table.find(&call);
            found.unwrap_or_else(|| Arc::new(Entry::new(call.descriptors.clone(), Moment::now())))
        };
        let leased = call.hits_to_lease().map(|hits| (hits, entry()));
        Ok(Prepared { limiter: self.clone(), call, leased })
    }

    /// Counts a call, and decides it if there is credit.
    #[inline]
    fn spend(&self, leased: Option<&(u64, Arc<Entry>)>) -> Option<Decision> {
        let (hits, entry) = leased?;
        entry.decide(*hits, Moment::now, |want| self.ask(entry, want))
    }

    async fn request(
        &self,
        call: Call,
        leased: Option<&(u64, Arc<Entry>)>,
    ) -> Result<Decision, Error> {
        let decision = self.client.decide(call).await?;
        if let (Some((_, entry)), None) = (leased, &decision.error) {
            entry.learn(&decision);
        }
        Ok(decision)
    }

    /// Asks for a lease beside the calls, and gives back what is left of it at its end.
    #[cold]
    #[expect(clippy::disallowed_methods, reason = "`close` awaits it")]
    fn ask(&self, entry: &Arc<Entry>, want: u64) {
        let closes = self.client.shared.closes.subscribe();
        // `close` would not await it.
        if *closes.borrow() {
            return;
        }
        let lease = lease(self.client.clone(), Arc::clone(entry), want, closes);
        self.client.shared.runtime.spawn(lease);
    }
}

async fn lease(client: Client, entry: Arc<Entry>, want: u64, mut closes: watch::Receiver<bool>) {
    let sent = Moment::now();
    let answer = question(&client, Call::lease(want, entry.descriptors())).await;
    let hold = match entry.answered(answer, sent, Moment::now()) {
        // Without a limit there is nothing to give back.
        Ok(hold) if hold.is_empty() => return,
        Ok(hold) => hold,
        Err(refusal) => return client.log_refusal(entry.descriptors(), &refusal),
    };
    loop {
        let is_closing = *closes.borrow_and_update();
        match entry.look(&hold, Moment::now(), is_closing) {
            State::InUse(time) => select! {
                () = sleep(time) => {}
                _ = closes.changed() => {}
            },
            State::Ended(commit) => return drop(client.send_commit(commit)),
            State::Gone => return,
        }
    }
}

/// Sends a question without the hook and without a line of a failure: if a lease gets no answer, no call has failed.
async fn question(client: &Client, call: Call) -> Result<Verdict, ServiceError> {
    // One that is late has charged hits, which go back.
    let time = ANSWERED_WITHIN.max(client.options.timeout);
    let mut verdicts = client.ask(time, vec![call.encode()]).await?;
    client.shared.log.unknown(&client.options.domain, &verdicts);
    verdicts.pop().ok_or_else(ServiceError::not_ours)
}

impl Prepared {
    /// Decides the call once more, as [`Limiter::decide`] does.
    ///
    /// # Errors
    ///
    /// Only by [`Options::require_limit`](crate::Options::require_limit).
    pub async fn decide(&self) -> Result<Decision, Error> {
        match self.limiter.spend(self.leased.as_ref()) {
            Some(decision) => Ok(decision),
            None => Box::pin(self.limiter.request(self.call.clone(), self.leased.as_ref())).await,
        }
    }
}

impl Table {
    fn hash(&self, on: &[Descriptor]) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        on.iter().for_each(|descriptor| descriptor.text.hash(&mut hasher));
        hasher.finish()
    }

    /// The entry of the call's descriptors, which is made if there is room.
    fn find(&self, call: &Call) -> Option<Arc<Entry>> {
        let hash = self.hash(&call.descriptors);
        // The upper bits choose, since a shard's map goes by the lower ones.
        let shard = self.shards.get(usize::try_from(hash >> 32).unwrap_or_default() % SHARDS)?;
        let found =
            shard.read().unwrap_or_else(PoisonError::into_inner).entries.get(&hash).cloned();
        let found = found.or_else(|| {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            call.validate("hits").ok().and_then(|()| shard.add(hash, &call.descriptors))
        });
        found.filter(|entry| entry.descriptors() == call.descriptors)
    }
}

impl Shard {
    fn add(&mut self, hash: u64, on: &[Descriptor]) -> Option<Arc<Entry>> {
        if entry_bytes(on) > KEPT_BYTES_MAX {
            return None;
        }
        let (now, Self { entries, sweeps_after }) = (Moment::now(), self);
        if entries.len() >= SHARD_ENTRIES_MAX && sweeps_after.is_none_or(|after| now >= after) {
            *sweeps_after = Some(now.plus(SWEEP_PAUSE));
            entries.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.is_in_use(now));
        }
        let has_room = entries.len() < SHARD_ENTRIES_MAX;
        let made = || Arc::new(Entry::new(on.to_vec(), now));
        has_room.then(|| Arc::clone(entries.entry(hash).or_insert_with(made)))
    }
}
