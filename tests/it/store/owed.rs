//! What a call charges for done work, commits, gives back or occupies is neither lost nor counted twice, whatever keeps it
//! from its server, and callers that have left: each cause with each kind of work, on the store itself.

use std::thread::JoinHandle;

use tokio::time::Instant;
use tollkeeper::{
    engine::{hold::Abandoned, key::SlotBy},
    store::{Clear, redis::RedisStore},
};

use crate::support::{
    charges::prelude::*,
    cluster_calls,
    prelude::*,
    redis_store::{self, PATIENT},
};

const LIFETIME_MS: u64 = 600_000;

/// The time that a server may take, and how soon a caller leaves.
const LATE: Duration = Duration::from_millis(100);
const IMPATIENT: Duration = Duration::from_millis(20);

fn years(limit: Limit) -> Arc<Limit> {
    Arc::new(limit)
}

fn limit(requests: u64) -> Limit {
    Limit::new(requests, Unit::Year, 40).unwrap()
}

/// A limit whose holds are found in this way.
fn holding(by: HoldBy, limit: Limit) -> Arc<Limit> {
    let hold = Some(Arc::new(HoldPolicy { by, ..HoldPolicy::new(LIFETIME_MS) }));
    Arc::new(Limit { hold, ..limit })
}

fn debit(user: &str, hits: u64) -> Charge {
    let limit = Limit { when_denied: WhenDenied::Counted, ..limit(1000) };
    charge(user, Hits::Charge(hits), &years(limit))
}

fn refund(user: &str, hits: u64) -> Charge {
    charge(user, Hits::Refund(hits), &years(limit(1000)))
}

/// The commit of 10 hits, of which 2 were used.
fn commit(user: &str) -> Charge {
    committing(charge(user, Hits::Commit, &holding(HoldBy::Token, limit(1000))), 10, 2)
}

fn committing(charge: Charge, held: u64, used: u64) -> Charge {
    let made = system_clock();
    let deadline = made.plus_millis(LIFETIME_MS);
    let hold = HoldAction::Commit { id: HoldId::new(1), held, used, made, deadline };
    Charge { hits: Hits::Commit, hold: Some(hold), ..charge }
}

/// A take of 10 hits by an id, or its end.
fn by_id(user: &str, used: Option<u64>) -> Charge {
    let hold = HoldAction::ById {
        id: HoldId::new(1),
        used,
        is_end: used.is_some(),
        lifetime_ms: LIFETIME_MS,
    };
    let limit = holding(HoldBy::Id, limit(1000));
    Charge { hold: Some(hold), ..charge(user, Hits::Charge(10), &limit) }
}

/// A call in flight, where there is one place.
fn occupy(user: &str, id: u64) -> Charge {
    let in_flight = Limit { algorithm: Algorithm::InFlight { remember: None }, ..limit(1) };
    let hold = HoldAction::Occupy { id: HoldId::new(id.into()), lifetime_ms: LIFETIME_MS };
    let limit = holding(HoldBy::Token, in_flight);
    Charge { hold: Some(hold), ..charge(user, Hits::Charge(1), &limit) }
}

/// A hold without an id of its own.
fn open(user: &str) -> Charge {
    let limit = holding(HoldBy::Counter, limit(10));
    let (lifetime_ms, abandoned) = (LIFETIME_MS, Abandoned::Release);
    let hold = HoldAction::Open { id: HoldId::new(1), estimate: 4, lifetime_ms, abandoned };
    Charge { hold: Some(hold), ..charge(user, Hits::Check, &limit) }
}

/// A take with a token, of 10 hits of 10.
fn take(user: &str) -> Charge {
    charge(user, Hits::Charge(10), &holding(HoldBy::Token, limit(10)))
}

async fn ask(store: &RedisStore, charge: &Charge) -> Option<bool> {
    ask_within(store, charge, PATIENT).await
}

/// Whether a call is admitted; `None` without an answer in this time.
async fn ask_within(store: &RedisStore, charge: &Charge, time: Duration) -> Option<bool> {
    let until = Instant::now() + time;
    let charges = [charge.clone()];
    let answer = tokio::time::timeout_at(until, store.charge(&charges, until)).await;
    answer.ok()?.ok().map(|verdict| !verdict.denied)
}

/// What is used of a counter and held, once its server answers.
async fn used(store: &RedisStore, charge: &Charge) -> u64 {
    let deadline = Instant::now() + PATIENT;
    loop {
        match store.read_counter(&charge.counter, Clear::No).await {
            Ok(state) => return state.used + state.held,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Done work of each kind; what its counter holds before, after it, and if it is lost. And what charges nothing unless it
/// is answered.
struct DoneWork {
    before: Vec<Charge>,
    work: Vec<(Charge, u64, u64)>,
    takes: Vec<Charge>,
}

impl DoneWork {
    fn new(has_scripts: bool) -> Self {
        let before = ["refunded", "committed"]
            .map(|user| charge(user, Hits::Charge(10), &years(limit(1000))));
        let mut work = vec![
            (debit("debited", 7), 7, 0),
            (refund("refunded", 3), 7, 10),
            (commit("committed"), 2, 10),
        ];
        let mut before = Vec::from(before);
        let mut takes = vec![charge("charged", Hits::Charge(10), &years(limit(10))), take("taken")];
        if has_scripts {
            before.push(by_id("by id", None));
            work.push((by_id("by id", Some(2)), 2, 10));
            takes.extend([by_id("taken by id", None), occupy("place", 1), open("held")]);
        }
        Self { before, work, takes }
    }

    /// With the release of a place, which needs no memory and no INCRBY.
    fn with_a_release(mut self) -> Self {
        if self.before.len() > 2 {
            self.before.push(occupy("released", 1));
            self.work.push((committing(occupy("released", 1), 1, 0), 0, 1));
        }
        self
    }

    fn calls(&self) -> impl Iterator<Item = &Charge> {
        self.work.iter().map(|(charge, ..)| charge).chain(&self.takes)
    }

    async fn begin(&self, store: &RedisStore) {
        for charge in &self.before {
            assert_eq!(ask(store, charge).await, Some(true), "{charge:?}");
        }
    }

    /// All is counted once the store has ended.
    async fn check(&self, store: &RedisStore, cause: &str) {
        store.ended().await;
        for (charge, after, lost) in &self.work {
            let found = used(store, charge).await;
            assert_eq!(found, *after, "{cause}: {:?} (lost: {lost})", charge.counter);
        }
        for take in &self.takes {
            assert_eq!(used(store, take).await, 0, "{cause}: {:?}", take.counter);
        }
    }
}

fn stores(redis: &Redis) -> [(RedisStore, bool); 2] {
    let with_scripts = redis_store::patient(&redis.url());
    [(with_scripts, true), (redis_store::transactions(&redis.url()), false)]
}

#[tokio::test]
async fn done_work_whose_write_is_refused_is_counted_once_redis_takes_writes() {
    for code in ["READONLY", "NOREPLICAS", "OOM", "MISCONF"] {
        for index in 0..2 {
            let redis = Redis::start();
            let (store, has_scripts) = stores(&redis).into_iter().nth(index).unwrap();
            let done = DoneWork::new(has_scripts);
            done.begin(&store).await;
            redis.refuse_writes(code);
            for charge in done.calls() {
                assert_eq!(ask(&store, charge).await, None, "{code}: {charge:?}");
            }
            redis.accept_writes();
            done.check(&store, &format!("{code}, scripts {has_scripts}")).await;
            redis.assert_no_key_leaks();
        }
    }
}

/// A Redis that answers every call with an error: each on a store of its own, whose breaker is closed.
#[tokio::test]
async fn done_work_that_redis_answers_with_a_refusal_is_counted_once_it_takes_calls() {
    for code in ["BUSY", "LOADING", "MASTERDOWN"] {
        for index in 0..2 {
            let redis = Redis::start();
            let done = DoneWork::new(index == 0).with_a_release();
            let store = async || {
                let (store, _) = stores(&redis).into_iter().nth(index).unwrap();
                assert_eq!(ask(&store, &refund("nobody", 0)).await, Some(true));
                store
            };
            let first = store().await;
            done.begin(&first).await;
            let of_each = join_all(done.calls().map(|_| store())).await;
            let refusing = Refusing::begin(&redis, code);
            for (store, charge) in of_each.iter().zip(done.calls()) {
                assert_eq!(ask(store, charge).await, None, "{code}: {charge:?}");
            }
            refusing.end();
            for store in &of_each {
                store.ended().await;
            }
            done.check(&first, &format!("{code}, scripts {}", index == 0)).await;
        }
    }
}

/// A Redis that answers with an error, until it is ended.
struct Refusing {
    code: &'static str,
    keeping: JoinHandle<()>,
    connection: redis::Connection,
}

impl Refusing {
    fn begin(redis: &Redis, code: &'static str) -> Self {
        let keeps_busy = match code {
            "BUSY" => {
                redis.query::<()>(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
                redis::cmd("EVAL").arg("while true do end").arg(0).take()
            }
            "LOADING" => {
                redis.query::<()>(&["DEBUG", "POPULATE", "3000", "other", "1000"]);
                redis.query::<()>(&["CONFIG", "SET", "key-load-delay", "10000"]);
                let interval = "loading-process-events-interval-bytes";
                redis.query::<()>(&["CONFIG", "SET", interval, "1024"]);
                redis::cmd("DEBUG").arg("RELOAD").take()
            }
            _ => {
                redis.query::<()>(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
                redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).take()
            }
        };
        let (mut keeping, mut connection) = (redis.connect(), redis.connect());
        // A script that is ended is an error.
        let keeping = thread::spawn(move || drop(keeps_busy.query::<()>(&mut keeping)));
        eventually("redis refuses", || {
            let refused = redis::cmd("GET").arg("other").query::<()>(&mut connection);
            (refused.err()?.code() == Some(code)).then_some(())
        });
        Self { code, keeping, connection }
    }

    fn end(mut self) {
        let (name, words) = match self.code {
            "BUSY" => ("SCRIPT", &["KILL"][..]),
            "LOADING" => ("CONFIG", &["SET", "key-load-delay", "0"][..]),
            _ => ("REPLICAOF", &["NO", "ONE"][..]),
        };
        redis::cmd(name).arg(words).query::<()>(&mut self.connection).unwrap();
        self.keeping.join().unwrap();
    }
}

#[tokio::test]
async fn done_work_that_finds_no_connection_is_counted_once_there_is_one() {
    for index in 0..2 {
        let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let (store, has_scripts) = stores(&redis).into_iter().nth(index).unwrap();
        let done = DoneWork::new(has_scripts).with_a_release();
        done.begin(&store).await;
        redis.stop();
        // What is written to a connection before it is known to be closed may have run.
        for _ in 0..3 {
            assert_eq!(ask_within(&store, &refund("nobody", 0), PATIENT).await, None);
        }
        for charge in done.calls() {
            assert_eq!(ask_within(&store, charge, IMPATIENT).await, None, "{charge:?}");
        }
        redis.start_again();
        done.check(&store, &format!("no connection, scripts {has_scripts}")).await;
    }
}

/// Connections are closed, and new ones are not answered.
#[tokio::test]
async fn debits_without_scripts_that_wait_for_a_connection_are_counted_once_there_is_one() {
    let redis = Redis::start();
    let store = redis_store::transactions(&redis.url());
    assert_eq!(ask(&store, &debit("debited", 1)).await, Some(true));
    redis.close_connections();
    // What is written to a connection before it is known to be closed may have run.
    ask(&store, &refund("nobody", 0)).await;
    redis.signal("STOP");
    let lost = debit("debited", 100);
    let answers = join_all((0..3).map(|_| ask(&store, &lost))).await;
    assert_eq!(answers, [None; 3]);
    redis.signal("CONT");
    store.ended().await;
    assert_eq!(used(&store, &lost).await, 301);
}

/// A Redis whose INCRBY is renamed answers every use of it with an error that has no code of its own.
#[tokio::test]
async fn done_work_that_redis_answers_with_an_unknown_error_is_not_sent_again() {
    let redis = Redis::start_with(&["--rename-command", "INCRBY", ""]);
    let store = redis_store::patient(&redis.url());
    let done = DoneWork::new(true);
    done.begin(&store).await;
    assert_eq!(ask(&store, &debit("debited", 1)).await, Some(true));
    for (charge, ..) in &done.work {
        assert_eq!(ask(&store, charge).await, None, "{charge:?}");
    }
    let runs = redis.runs_of("evalsha");
    store.ended().await;
    assert_eq!(redis.runs_of("evalsha"), runs);
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn kept_work_outlives_the_task_that_sends_it() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    let done = DoneWork::new(true);
    done.begin(&store).await;
    redis.refuse_writes("OOM");
    for (charge, ..) in &done.work {
        assert_eq!(ask(&store, charge).await, None, "{charge:?}");
    }
    redis.signal("STOP");
    // It has taken them out of the queue, and waits for answers.
    drop(tokio::time::timeout(Duration::from_millis(300), store.follow()).await);
    redis.signal("CONT");
    redis.accept_writes();
    done.check(&store, "an ended sender").await;
}

/// The caller leaves while Redis is stopped; the answer comes late, or is not waited for any more.
#[tokio::test]
async fn what_a_caller_without_an_answer_has_taken_is_given_back() {
    for timeout in [PATIENT, LATE] {
        let redis = Redis::start();
        let store = redis_store::store(&redis.url(), 0, system_clock, timeout);
        let mut takes = vec![occupy("place", 1), open("held")];
        if timeout == PATIENT {
            takes.push(take("estimate"));
        }
        // It is over its limit, and counts.
        let denied = debit("denied", 1007);
        for take in takes.iter().chain([&denied]) {
            // Redis knows the script then.
            while ask(&store, &debit("connects", 1)).await.is_none() {
                tokio::time::sleep(IMPATIENT).await;
            }
            redis.signal("STOP");
            assert_eq!(ask_within(&store, take, IMPATIENT).await, None);
            // As long as an answer is waited for, unless that is for ever.
            tokio::time::sleep(3 * LATE).await;
            redis.signal("CONT");
        }
        let sending = async {
            for take in &takes {
                while used(&store, take).await > 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        tokio::select! {
            () = store.follow() => {}
            ended = tokio::time::timeout(PATIENT, sending) => ended.expect("it is given back"),
        }
        store.ended().await;
        assert_eq!(used(&store, &denied).await, 1007);
        assert_eq!(ask(&store, &occupy("place", 2)).await, Some(true));
        redis.assert_no_key_leaks();
    }
}

#[tokio::test]
async fn a_call_that_is_answered_keeps_what_it_has_taken() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    assert_eq!(ask(&store, &occupy("place", 1)).await, Some(true));
    assert_eq!(ask(&store, &take("estimate")).await, Some(true));
    assert_eq!(ask(&store, &open("held")).await, Some(true));
    store.ended().await;
    assert_eq!(used(&store, &open("held")).await, 4);
    assert_eq!(ask(&store, &occupy("place", 2)).await, Some(false));
    assert_eq!(ask(&store, &take("estimate")).await, Some(false));
}

/// While Redis refuses writes, what waits asks it a few times a second, however much waits.
#[tokio::test]
async fn a_long_queue_leaves_a_redis_alone_that_refuses_writes() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    assert_eq!(ask(&store, &debit("connects", 1)).await, Some(true));
    redis.refuse_writes("READONLY");
    let commits: Vec<Charge> = (0..900).map(|user| commit(&format!("user{user}"))).collect();
    for commit in &commits {
        assert_eq!(ask(&store, commit).await, None);
    }
    let before = redis.runs_of("evalsha");
    drop(tokio::time::timeout(Duration::from_secs(3), store.follow()).await);
    let runs = redis.runs_of("evalsha") - before;
    assert!((1..100).contains(&runs), "{runs} runs in 3 s");
    redis.accept_writes();
    let before = redis.runs_of("evalsha");
    store.ended().await;
    let runs = redis.runs_of("evalsha") - before;
    assert!(runs < 450, "{runs} runs for 900 commits");
    for commit in commits.iter().step_by(100) {
        // Nothing was held, so that nothing is given back.
        assert_eq!(used(&store, commit).await, 0);
    }
}

/// The old owner of a slot says that it has moved only when the caller has gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_debit_that_hears_too_late_where_its_slot_is_counts_there() {
    let cluster = cluster_calls::masters(Version::Redis7);
    let store = redis_store::patient(&cluster.url());
    let debit = debit("moved", 7);
    let slot = cluster.slot_of(&debit.counter.key(Timestamp::from_millis(0)));
    let from = cluster.node_of(slot);
    // It has a map and a connection, and learns of no change by itself.
    tokio::select! {
        () = store.follow() => {}
        answer = ask(&store, &debit) => assert_eq!(answer, Some(true)),
    }
    cluster.move_slot(slot, (from + 1) % 3);
    cluster.nodes[from].signal("STOP");
    for _ in 0..3 {
        assert_eq!(ask_within(&store, &debit, IMPATIENT).await, None);
    }
    cluster.nodes[from].signal("CONT");
    let deadline = Instant::now() + PATIENT;
    while used(&store, &debit).await < 4 * 7 {
        assert!(Instant::now() < deadline, "{} of 28", used(&store, &debit).await);
        store.ended().await;
    }
    assert_eq!(used(&store, &debit).await, 4 * 7);
}

/// While a slot is being moved, no node has all keys of a call.
#[tokio::test(flavor = "multi_thread")]
async fn done_work_whose_slot_is_half_moved_counts_where_the_slot_is_then() {
    let cluster = cluster_calls::masters(Version::Redis7);
    let store = redis_store::patient(&cluster.url());
    let in_one_slot = |charge: &Charge| {
        let counter = charge.counter.clone().with_slot_by(SlotBy::Domain);
        Charge { counter, ..charge.clone() }
    };
    let DoneWork { before, work, .. } = DoneWork::new(true);
    let work = work.iter().map(|(charge, after, lost)| (in_one_slot(charge), *after, *lost));
    let before = before.iter().map(in_one_slot).collect();
    let done = DoneWork { before, work: work.collect(), takes: Vec::new() };
    let moved = in_one_slot(&debit("moved", 1));
    tokio::select! {
        () = store.follow() => {}
        () = done.begin(&store) => assert_eq!(ask(&store, &moved).await, Some(true)),
    }
    let key = moved.counter.key(moved.terms(system_clock()).span.start);
    let slot = cluster.slot_of(&key);
    let migration = cluster.begin_move(slot, (cluster.node_of(slot) + 1) % 3);
    migration.move_key(&key);
    for (charge, _, has_a_key) in &done.work {
        let (charges, until) = ([charge.clone(), moved.clone()], Instant::now() + IMPATIENT);
        let answer = tokio::time::timeout_at(until, store.charge(&charges, until)).await;
        // One that has no key yet may be created where the other is.
        assert!(*has_a_key == 0 || !matches!(answer, Ok(Ok(_))), "{charge:?}: {answer:?}");
    }
    migration.move_keys();
    migration.finish();
    done.check(&store, "TRYAGAIN").await;
    assert_eq!(used(&store, &moved).await, 1 + done.work.len() as u64);
}

/// One node is stopped; the place of the other is released when the caller has gone, and its own when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn places_on_several_nodes_are_released_where_a_caller_has_no_answer() {
    let cluster = cluster_calls::masters(Version::Redis7);
    let store = cluster_calls::follow(&cluster.url(), LATE);
    let on = |node: usize| {
        let is_there = |user: &String| {
            let key = occupy(user, 1).counter.key(Timestamp::from_millis(0));
            cluster.node_of(cluster.slot_of(&key)) == node
        };
        (0..).map(|user| format!("place{user}")).find(is_there).unwrap()
    };
    let users = [on(0), on(1)];
    let call = |id| users.clone().map(|user| occupy(&user, id));
    let until = || Instant::now() + PATIENT;
    let scripts = users.clone().map(|user| debit(&user, 1));
    for debit in &scripts {
        assert_eq!(ask(&store, debit).await, Some(true));
    }
    cluster.nodes[0].signal("STOP");
    for id in 2..5 {
        let charges = call(id);
        let until = Instant::now() + IMPATIENT;
        let answer = tokio::time::timeout_at(until, store.charge(&charges, until)).await;
        // The other node may deny it, once the stopped one is known to be away.
        assert!(!matches!(&answer, Ok(Ok(verdict)) if !verdict.denied), "{answer:?}");
    }
    cluster.nodes[0].signal("CONT");
    let deadline = until();
    for place in call(9) {
        while used(&store, &place).await > 0 {
            assert!(Instant::now() < deadline, "{:?} is still taken", place.counter);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(!store.charge(&call(10), until()).await.unwrap().denied);
    cluster.assert_no_key_leaks();
}
