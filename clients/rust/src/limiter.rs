//! Decides calls on hot keys in this process, by hits that the service has charged in advance.

mod lease;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::{select, sync::watch, time::sleep};

use crate::v1::{DecideRequest, Verdict, descriptor};
use crate::{Call, Client, Decision, Descriptor, Error, Options, ServiceError, client::Service};
use lease::{Entry, Moment, State, nanos};

const SHARDS: usize = 16;
const SHARD_ENTRIES_MAX: usize = 10_000 / SHARDS;
/// Callers may send long values. This bounds the memory that they take.
const ENTRY_BYTES_MAX: usize = 1 << 10;
/// How long the answer to a lease is awaited.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// How often a full shard is searched for entries that are not in use.
const SWEEP_PAUSE_NS: u64 = 1_000_000_000;

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

struct Table {
    hashes: RandomState,
    began: Instant,
    shards: [RwLock<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    /// By the hash of the descriptors. The next ones with the same hash get none.
    entries: HashMap<u64, Entry, BuildHasherDefault<Hashed>>,
    swept: u64,
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
        let (hashes, began) = (RandomState::new(), Instant::now());
        let table = Table { hashes, began, shards: Default::default() };
        Self { client: client.clone(), table: Arc::new(table) }
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
        let Some(hits) = call.hits_to_lease() else { return self.client.decide(call).await };
        let hash = self.table.hash(&call.descriptors);
        if let Some(decision) = self.spend(hash, hits, &call) {
            return Ok(decision);
        }
        let decision = self.client.decide(call).await?;
        if decision.error.is_none() {
            self.table.read(hash, |entry| entry.learn(&decision));
        }
        Ok(decision)
    }

    /// Counts a call, and decides it if there is credit.
    fn spend(&self, hash: u64, hits: u64, call: &Call) -> Option<Decision> {
        let (table, on) = (&self.table, &*call.descriptors);
        let decide = |entry: &Entry| match entry.is_of(on) {
            true => entry.decide(hits, || table.now()),
            false => (None, None),
        };
        let Some((decision, want)) = table.read(hash, decide) else {
            if call.validate("hits").is_ok() {
                table.add(hash, on);
            }
            return None;
        };
        if let Some(want) = want {
            self.ask(hash, Call::lease(want, on));
        }
        decision
    }

    /// Asks for a lease beside the calls, and gives back what is left of it at its end.
    #[expect(clippy::disallowed_methods, reason = "`close` awaits it")]
    fn ask(&self, hash: u64, call: Call) {
        let (limiter, closes) = (self.clone(), self.client.shared.closes.subscribe());
        // `close` would not await it.
        if *closes.borrow() {
            return;
        }
        self.client.shared.runtime.spawn(async move { limiter.lease(hash, call, closes).await });
    }

    async fn lease(&self, hash: u64, call: Call, mut closes: watch::Receiver<bool>) {
        let table = &self.table;
        let (sent, answer) = (table.now(), self.question(call).await);
        let mut hold = String::new();
        table.write(hash, |entry| hold = entry.answered(answer, sent, table.now()));
        // Without a limit there is nothing to give back.
        while !hold.is_empty() {
            let (is_closing, mut state) = (*closes.borrow_and_update(), State::Gone);
            table.write(hash, |entry| state = entry.look(&hold, table.now(), is_closing));
            match state {
                State::InUse(time) => select! {
                    () = sleep(time) => {}
                    _ = closes.changed() => {}
                },
                State::Ended(commit) => return drop(self.client.send_commit(commit)),
                State::Gone => return,
            }
        }
    }

    /// Sends a question without the log and the hook: if a lease gets no answer, no call has failed.
    async fn question(&self, call: Call) -> Result<Verdict, ServiceError> {
        let Options { domain, timeout, .. } = &*self.client.options;
        let request = DecideRequest { domain: domain.clone(), calls: vec![call.encode()] };
        let rpc = async |mut service: Service, request| service.decide(request).await;
        // One that is late has charged hits, which go back.
        let time = ANSWERED_WITHIN.max(*timeout);
        let mut answer = self.client.send(time, request, rpc).await?;
        answer.verdicts.pop().ok_or_else(ServiceError::not_ours)
    }
}

impl Table {
    fn hash(&self, on: &[Descriptor]) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        for descriptor::Entry { key, value } in
            on.iter().flat_map(|descriptor| &descriptor.0.entries)
        {
            [key, value].into_iter().for_each(|text| {
                hasher.write(text);
                hasher.write_u8(0);
            });
        }
        hasher.finish()
    }

    #[expect(clippy::disallowed_methods, reason = "it runs on while the machine is suspended")]
    fn now(&self) -> Moment {
        Moment { at: nanos(self.began.elapsed()), clock: SystemTime::now() }
    }

    /// The upper bits choose, since a shard's map goes by the lower ones.
    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        let [first, ..] = &self.shards;
        let index = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        self.shards.get(index).unwrap_or(first)
    }

    fn read<T>(&self, hash: u64, work: impl FnOnce(&Entry) -> T) -> Option<T> {
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        shard.entries.get(&hash).map(work)
    }

    fn write(&self, hash: u64, work: impl FnOnce(&mut Entry)) {
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        shard.entries.get_mut(&hash).map(work);
    }

    fn add(&self, hash: u64, on: &[Descriptor]) {
        let entries = on.iter().flat_map(|descriptor| &descriptor.0.entries);
        if entries.map(|it| it.key.len() + it.value.len()).sum::<usize>() > ENTRY_BYTES_MAX {
            return;
        }
        let (now, mut shard) =
            (self.now(), self.shard(hash).write().unwrap_or_else(PoisonError::into_inner));
        let Shard { entries, swept } = &mut *shard;
        if entries.len() >= SHARD_ENTRIES_MAX && now.at >= swept.saturating_add(SWEEP_PAUSE_NS) {
            *swept = now.at;
            entries.retain(|_, entry| entry.is_in_use(now));
        }
        if entries.len() < SHARD_ENTRIES_MAX {
            entries.entry(hash).or_insert_with(|| Entry::new(on.to_vec(), now));
        }
    }
}
