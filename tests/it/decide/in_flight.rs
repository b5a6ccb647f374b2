//! Calls in flight: never more than the limit at once, on every store, however the calls end.

use tollkeeper::{
    engine::{
        hold::Abandoned,
        ledger::{self, GiveBack},
    },
    store::{
        StoreError,
        fallback::Fallback,
        redis::script::{KeyDeclaration, ScriptVerdict},
    },
};

use crate::support::{
    backends::{Backend, ScriptInRedis, memory},
    charges::prelude::*,
    cluster::ClusterSetup,
    model::Model,
    prelude::*,
};

const LIFETIME_MS: u64 = 60_000;
const STEPS_OF_A_CASE: u64 = 300;
const IN_FLIGHT: Algorithm = Algorithm::InFlight { remember: None };

/// A limit on calls that a commit finds in this way.
fn at_once(calls: u64, by: HoldBy) -> Arc<Limit> {
    let hold = Some(Arc::new(HoldPolicy { by, ..HoldPolicy::new(LIFETIME_MS) }));
    Arc::new(Limit { hold, ..limit(calls, Unit::Second, IN_FLIGHT) })
}

fn id(number: u64) -> HoldId {
    HoldId::from_caller(&number.to_be_bytes())
}

/// The limits of the steps, and the calls that may still be committed.
struct Steps {
    dice: Dice,
    /// Two limits of one counter, as if the rule had changed meanwhile.
    limits: [[Arc<Limit>; 2]; 3],
    fixed: Arc<Limit>,
    taken: Vec<(Charge, HoldId, Timestamp)>,
    reserved: Vec<GiveBack>,
    next_id: u64,
}

impl Steps {
    fn new(seed: u64) -> Self {
        Self {
            dice: Dice(seed),
            limits: HoldBy::ALL.map(|by| [at_once(4, by), at_once(7, by)]),
            fixed: Arc::new(limit(9, Unit::Minute, Algorithm::FixedWindow)),
            taken: Vec::new(),
            reserved: Vec::new(),
            next_id: 0,
        }
    }

    fn restart(&mut self) {
        (self.taken, self.reserved) = (Vec::new(), Vec::new());
    }

    /// A charge of any kind on a counter of any form.
    fn charge(&mut self, call_id: HoldId, now: Timestamp) -> Charge {
        let form = self.dice.below(3) as usize;
        let limit = Arc::clone(&self.limits[form][self.dice.below(5) as usize / 4]);
        let user = format!("{form}{}", self.dice.below(2));
        let with =
            |hits, hold: HoldAction| Charge { hold: Some(hold), ..charge(&user, hits, &limit) };
        let places = Hits::Charge(1 + self.dice.below(6) / 3);
        match (self.dice.below(12), HoldBy::ALL[form]) {
            (0, _) => charge(&user, Hits::Check, &limit),
            (1, _) => charge(&user, Hits::Refund(self.dice.below(3)), &limit),
            (2..=5, HoldBy::Token) => {
                self.commit(now).unwrap_or(charge(&user, Hits::Check, &limit))
            }
            (2..=5, HoldBy::Counter) => {
                with(places, HoldAction::EndOldest { abandoned: Abandoned::Keep })
            }
            (_, HoldBy::Id) => {
                let id = id(1_000_000 + self.dice.below(12));
                with(
                    places,
                    HoldAction::ById { id, used: None, is_end: false, lifetime_ms: LIFETIME_MS },
                )
            }
            _ => with(places, HoldAction::Occupy { id: call_id, lifetime_ms: LIFETIME_MS }),
        }
    }

    /// Commits a call that was taken, a second time, or one that nobody took.
    fn commit(&mut self, now: Timestamp) -> Option<Charge> {
        let index = self.dice.below(self.taken.len().max(1) as u64) as usize;
        let (taken, known, made) = self.taken.get(index)?.clone();
        let deadline = made.plus_millis(LIFETIME_MS);
        let (id, made) = if self.dice.below(9) == 0 { (id(7), now) } else { (known, made) };
        let hold = HoldAction::Commit { id, held: 1, used: 1, made, deadline };
        Some(Charge { hits: Hits::Commit, hold: Some(hold), caller: None, ..taken })
    }

    fn call(&mut self, now: Timestamp) -> Vec<Charge> {
        self.next_id += 1;
        let call_id = id(self.next_id);
        let count = 1 + self.dice.below(5) / 3;
        let mut charges: Vec<_> = (0..count).map(|_| self.charge(call_id, now)).collect();
        let ids = charges.iter().filter(|one| matches!(one.hold, Some(HoldAction::ById { .. })));
        if ids.count() > 1 {
            charges.truncate(1);
        }
        // What another limit refuses occupies nothing.
        if self.dice.below(3) == 0 {
            charges.push(charge("0", Hits::Charge(1 + self.dice.below(4)), &self.fixed));
        }
        charges
    }

    /// Notes what an admitted call has taken.
    fn learn(&mut self, charges: &[Charge], tallies: &[Tally], now: Timestamp) {
        if ledger::denies(charges, tallies) {
            return;
        }
        for (charge, tally) in charges.iter().zip(tallies) {
            let (Some(hold), Hits::Charge(hits)) = (charge.hold, charge.hits) else { continue };
            if !matches!(tally.fit, Fit::Fits { .. }) {
                continue;
            }
            if let HoldAction::Occupy { id, .. } = hold {
                self.taken.push((charge.clone(), id, now));
            }
            let counter = charge.counter.clone();
            self.reserved.push(GiveBack {
                counter,
                hits,
                made: now,
                caller: None,
                hold: Some(hold),
            });
        }
        self.taken.drain(..self.taken.len().saturating_sub(12));
        self.reserved.drain(..self.reserved.len().saturating_sub(4));
    }
}

/// Runs this number of steps on both, and panics where they differ.
fn compare(steps: u64, seed: u64, one: &mut dyn Backend, other: &mut dyn Backend) {
    let (mut random, mut now) = (Steps::new(seed), BEGIN);
    let (mut over, mut commits) = (0, 0);
    for step in 0..steps {
        if step % STEPS_OF_A_CASE == 0 {
            one.clear();
            other.clear();
            random.restart();
            now = BEGIN;
        }
        let passed = match random.dice.below(20) {
            0..=8 => 0,
            9..=15 => random.dice.below(9_000) as i64,
            16..=17 => random.dice.below(70_000) as i64,
            18 => 60_000,
            _ => -(random.dice.below(90_000) as i64),
        };
        now = now.shifted(passed);
        if random.dice.below(12) == 0
            && let Some(give_back) = random.reserved.pop()
        {
            let tallies = [one.give_back(&give_back, now), other.give_back(&give_back, now)];
            assert!(tallies[0].is_none() || tallies[0] == tallies[1], "{give_back:?}: {tallies:?}");
        }
        let call = random.call(now);
        let (ours, theirs) = (one.charge(&call, now), other.charge(&call, now));
        let (one, other) = (one.name(), other.name());
        assert_eq!(
            ours, theirs,
            "{one}, {other} at step {step} of seed {seed}: {call:?} at {now:?}"
        );
        over += ours.iter().filter(|tally| tally.fit == Fit::Over).count();
        commits += ours.iter().filter(|tally| matches!(tally.fit, Fit::Commit(_))).count();
        random.learn(&call, &ours, now);
    }
    assert!(
        over as u64 > steps / 20 && commits as u64 > steps / 20,
        "{over} over, {commits} commits"
    );
}

fn seed() -> u64 {
    number("SEED", 1).max(1)
}

#[test]
fn memory_counts_calls_in_flight_as_the_model_does() {
    compare(number("MODEL_STEPS", 20_000), seed(), &mut Model::default(), &mut memory());
}

#[test]
fn redis_counts_calls_in_flight_as_memory_does() {
    let steps = number("REDIS_STEPS", 10_000);
    for keys in [KeyDeclaration::Declared, KeyDeclaration::Undeclared] {
        let mut redis = ScriptInRedis::start_with(keys);
        compare(steps, seed(), &mut memory(), &mut redis);
        redis.redis.assert_no_key_leaks();
    }
}

#[test]
fn another_value_at_the_key_is_a_corrupt_counter() {
    let mut redis = ScriptInRedis::start();
    let hold = HoldAction::Occupy { id: id(1), lifetime_ms: LIFETIME_MS };
    let call = charge("a", Hits::Charge(1), &at_once(3, HoldBy::Token));
    let call = [Charge { hold: Some(hold), ..call }];
    let key = call[0].counter.key(BEGIN);
    for plant in [
        &["SET", &key, "1", "EX", "100"][..],
        &["RPUSH", &key, "1"],
        &["ZADD", &key, "1", "junk"],
        &["ZADD", &key, "inf", &format!("{} 1 1000", id(2))],
        &["ZADD", &key, "inf", "=1"],
        &["ZADD", &key, "inf", "=1", "-0.5", &format!("{} 1 1000", id(2))],
        &["ZADD", &key, "inf", "=x", "-9", &format!("{} 1 1000", id(2))],
    ] {
        redis.clear();
        redis.redis.query::<redis::Value>(plant);
        assert_eq!(redis.answer(&call, BEGIN), ScriptVerdict::Corrupt(vec![0]), "{plant:?}");
    }
}

#[test]
fn a_replica_without_store_admits_its_share() {
    let fallback = Fallback::new(memory_on_a_clock(), 3);
    let on_store_failure = tollkeeper::engine::rule::FailureMode::Local;
    let limit = Arc::new(Limit { on_store_failure, ..(*at_once(10, HoldBy::Token)).clone() });
    let call = |hold, hits| {
        let charge = Charge { hold: Some(hold), ..charge("a", hits, &limit) };
        let failed = StoreError::TakesNoWrites("it has failed".to_owned());
        fallback.answer(&[charge], failed).unwrap().tallies[0].fit
    };
    let take = |number| HoldAction::Occupy { id: id(number), lifetime_ms: LIFETIME_MS };
    for number in 0..4 {
        assert_eq!(call(take(number), Hits::Charge(1)), Fit::Fits { remaining: 3 - number });
    }
    assert_eq!(call(take(4), Hits::Charge(1)), Fit::Over);
    let (made, deadline) = (BEGIN, BEGIN.plus_millis(LIFETIME_MS));
    let commit = HoldAction::Commit { id: id(2), held: 1, used: 1, made, deadline };
    call(commit, Hits::Commit);
    assert_eq!(call(take(4), Hits::Charge(1)), Fit::Fits { remaining: 0 });
}

fn memory_on_a_clock() -> tollkeeper::store::memory::MemoryStore {
    tollkeeper::store::memory::MemoryStore::new(|| BEGIN)
}

const RULES: &str = "
domain: shop
descriptors:
  - key: door
    rate_limit: { algorithm: in_flight, requests_per_unit: 10, hold: { for: 10m, by: id } }
  - key: room
    descriptors:
      - key: guest
        rate_limit: { algorithm: in_flight, requests_per_unit: 3, hold: { for: 10m, by: id }, remember: guest }
";

fn at_door(id: &str) -> RateLimitDescriptor {
    descriptor(&[("door", "a"), ("hold.id", id)])
}

/// Four replicas, 64 clients: each call is counted here from its answer until its commit is sent.
#[tokio::test(flavor = "multi_thread")]
async fn four_replicas_never_have_more_calls_in_flight_than_the_limit() {
    let redis = Redis::start();
    let store = redis.url();
    let start = || Service::with(RULES).on(&store).start();
    let services = [start(), start(), start(), start()];
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..64 {
        let mut client = services[number % services.len()].client().await;
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        clients.spawn(async move {
            for call in 0..60 {
                let ask = || request("shop", vec![at_door(&format!("{number}-{call}"))]);
                let answer = client.should_rate_limit(ask()).await.unwrap();
                if answer.into_inner().overall_code() == Code::Ok {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    // Once more than needed: a repeated commit changes nothing.
                    client.should_rate_limit(ask()).await.unwrap();
                    client.should_rate_limit(ask()).await.unwrap();
                }
            }
        });
    }
    clients.join_all().await;
    let most = most.load(Ordering::SeqCst);
    assert!((5..=10).contains(&most), "{most} at once");
    let left = spell(&services[0].ask(request("shop", vec![at_door("last")])).await.unwrap());
    assert_eq!(left, "OK: OK 9/10 UNKNOWN");
    redis.assert_no_key_leaks();
}

fn counter(service: &Service, action: &str, descriptor: &str) -> String {
    let addr = service.admin.to_string();
    let words = ["counter", action, "--addr", &addr, "--domain", "shop", descriptor];
    let stdout = succeeds(tollkeeper().args(words));
    // Without times.
    let lines = stdout.lines().map(|line| line.split(", resets").next().unwrap());
    let words = lines.map(|line| line.split(' ').filter(|word| !word.ends_with('Z')));
    words.map(|words| words.collect::<Vec<_>>().join(" ") + "\n").collect()
}

async fn calls_are_shown_and_reset(service: &Service) {
    let guest =
        |name: &str, id: &str| descriptor(&[("room", "1"), ("guest", name), ("hold.id", id)]);
    let ask = async |asked: RateLimitDescriptor| {
        spell(&service.ask(request("shop", vec![asked])).await.unwrap())
    };
    assert_eq!(ask(hits(guest("ann", "x"), 2)).await, "OK: OK 1/3 UNKNOWN");
    let of_ann = "room=1,guest=ann";
    let shown = counter(service, "show", of_ann);
    assert_eq!(shown, "in_flight: 2 used of 3 at once, 1 left\n  2 until by ann\n");
    assert_eq!(ask(guest("ann", "y")).await, "OK: OK 0/3 UNKNOWN");
    assert_eq!(ask(guest("ann", "z")).await, "OVER_LIMIT: OVER_LIMIT 0/3 UNKNOWN");
    ask(guest("ann", "x")).await;
    assert_eq!(ask(hits(guest("ann", "z"), 2)).await, "OK: OK 0/3 UNKNOWN");
    let reset = counter(service, "reset", of_ann);
    assert_eq!(reset, "in_flight: 3 of 3 at once were used; now 0\n");
    assert_eq!(counter(service, "show", of_ann), "in_flight: 0 used of 3 at once, 3 left\n");
}

#[tokio::test]
async fn calls_in_flight_are_shown_and_reset_on_every_store() {
    let options = || Service::with(RULES);
    calls_are_shown_and_reset(&Service::start(options())).await;
    let redis = Redis::start();
    calls_are_shown_and_reset(&Service::start(Options { store: &redis.url(), ..options() })).await;
    redis.assert_no_key_leaks();
    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    calls_are_shown_and_reset(&Service::start(Options { store: &cluster.url(), ..options() }))
        .await;
}
