//! Group commit: calls that wait are sent to Redis in one batch, and each is still decided by itself: all or
//! nothing, with its own answer, failure and timeout.

use std::{iter, pin::pin};

use proptest::{
    prelude::*,
    test_runner::{TestRng, TestRunner},
};
use tokio::task::JoinSet;
use tollkeeper::{
    process::workers::Workers,
    store::{
        Store, StoreError,
        fallback::Fallback,
        guard::{Arrival, Guard, Timeouts},
        memory::MemoryStore,
        metrics::StoreMetrics,
        over_limit_cache::{Denials, OverLimitCache},
        redis::RedisStore,
    },
};

use crate::support::{
    charges::prelude::*,
    fault_proxy::Connect,
    prelude::*,
    redis_store::{self, PATIENT, answer, answers},
};

fn charge_on(user: &str, hits: u64, limit: Limit) -> Charge {
    charge(user, Hits::Charge(hits), &Arc::new(limit))
}

/// A charge on a limit of `requests` in a hundred years: no window ends while a test runs.
fn charge_hits(user: &str, hits: u64, requests: u64) -> Charge {
    charge_on(user, hits, Limit::new(requests, Unit::Year, 100).unwrap())
}

fn bucket_of_3() -> Limit {
    let algorithm = Algorithm::TokenBucket { burst: 3 };
    Limit { algorithm, ..Limit::new(1, Unit::Year, 100).unwrap() }
}

fn fits(remaining: u64) -> Fit {
    Fit::Fits { remaining }
}

fn fit(answer: &Result<Verdict, StoreError>) -> Fit {
    answer.as_ref().unwrap().tallies[0].fit
}

/// Charges hits on a limit of `requests`, and returns their fit.
async fn charged(store: &RedisStore, user: &str, hits: u64, requests: u64) -> Fit {
    fit(&answer(store, [charge_hits(user, hits, requests)]).await)
}

fn verdicts(answer: &Result<Verdict, StoreError>) -> Vec<Fit> {
    answer.as_ref().unwrap().tallies.iter().map(|tally| tally.fit).collect()
}

/// Records the script commands that clients send to Redis from its start on.
struct Monitor(redis::Connection);

impl Monitor {
    fn start(redis: &Redis) -> Self {
        let mut connection = redis.connect();
        connection.send_packed_command(&redis::cmd("MONITOR").get_packed_command()).unwrap();
        connection.recv_response().unwrap();
        Self(connection)
    }

    /// The commands so far; those that scripts run are left out.
    fn commands(mut self, redis: &Redis) -> Vec<String> {
        redis.query::<String>(&["ECHO", "the end"]);
        let mut lines = Vec::new();
        loop {
            let line: String = redis::from_redis_value(self.0.recv_response().unwrap()).unwrap();
            if line.contains("\"the end\"") {
                return lines;
            }
            if !line.contains(" lua] ")
                && line.contains("\"EVAL")
                && !line.contains("acl_check_cmd")
            {
                lines.push(line);
            }
        }
    }
}

/// Three hours fast: another hour, but no other century.
fn three_hours_fast() -> Timestamp {
    system_clock().shifted(3 * 3_600_000)
}

#[tokio::test]
async fn twenty_calls_share_a_script_run_and_failures_of_some_do_not_affect_the_others() {
    let redis = Redis::start();
    // Loads the script into Redis.
    assert_eq!(charged(&redis_store::patient(&redis.url()), "full", 5, 5).await, fits(0));
    let poisoned = charge_hits("poisoned", 1, 10);
    let key = redis.key("full").replace("full", "poisoned");
    redis.query::<()>(&["RPUSH", &key, "planted"]);

    let store = redis_store::store(&redis.url(), 0, three_hours_fast, PATIENT);
    let names: Vec<String> = (0..17).map(|number| format!("user{}", number % 16)).collect();
    let mut calls: Vec<[Charge; 1]> = names.iter().map(|name| [charge_hits(name, 2, 10)]).collect();
    calls.insert(3, [charge_hits("full", 1, 5)]);
    calls.insert(7, [poisoned]);
    let hour = Limit::new(10, Unit::Hour, 1).unwrap();
    calls.insert(11, [charge_on("stale", 3, hour)]);
    assert_eq!(calls.len(), 20);

    let monitor = Monitor::start(&redis);
    let mut answers = answers(&store, &calls).await;
    let commands = monitor.commands(&redis);
    let [all, stale, corrupt, _eval] = &commands[..] else { panic!("two batches: {commands:?}") };
    assert_eq!(all.matches("{shop|user=").count(), 19, "equal counters are sent once: {all}");
    assert_eq!(stale.matches("{shop|user=").count(), 1, "the stale call, once more: {stale}");
    assert_eq!(
        corrupt.matches("{shop|user=").count(),
        1,
        "the call on the corrupt counter, by the ledger: {corrupt}"
    );

    assert_eq!(fit(&answers.remove(11)), fits(7), "the stale call");
    let unreadable = answers.remove(7);
    assert!(matches!(&unreadable, Err(StoreError::Corrupt(at)) if *at == [0]), "{unreadable:?}");
    assert_eq!(fit(&answers.remove(3)), Fit::Over);
    let last = answers.pop().unwrap();
    assert_eq!(fit(&last), fits(6), "the second call of user0");
    for answer in &answers {
        assert_eq!(fit(answer), fits(8));
    }
    for (user, count) in [("full", 5), ("user0}", 4), ("user15", 2), ("stale", 3)] {
        assert_eq!(redis.count(user), count, "{user}");
    }
    redis.query::<()>(&["DEL", &key]);
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn calls_of_different_algorithms_share_a_batch() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    let fixed = || charge_hits("alice", 1, 2);
    let calls = [
        vec![fixed()],
        vec![charge_on("bob", 2, bucket_of_3())],
        vec![fixed(), charge_on("bob", 1, bucket_of_3())],
        vec![fixed(), charge_on("bob", 1, bucket_of_3())],
    ];
    let answers = answers(&store, &calls).await;
    let verdicts: Vec<_> = answers.iter().map(verdicts).collect();
    assert_eq!(verdicts[0], [fits(1)]);
    assert_eq!(verdicts[1], [fits(1)]);
    assert_eq!(verdicts[2], [fits(0), fits(0)]);
    assert_eq!(verdicts[3], [Fit::Over, Fit::Over]);
}

#[tokio::test]
async fn a_script_run_has_at_most_96_keys_and_equal_calls_are_sent_once() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    let monitor = Monitor::start(&redis);
    let many: Vec<_> = (0..1000).map(|user| [charge_hits(&user.to_string(), 1, 10)]).collect();
    for answer in answers(&store, &many).await {
        assert_eq!(fit(&answer), fits(9));
    }
    let commands = monitor.commands(&redis);
    let most = commands.iter().map(|line| line.matches("{shop|user=").count()).max();
    assert_eq!(most, Some(96), "keys of one run");
    assert_eq!(commands.iter().filter(|line| line.contains("EVALSHA")).count(), 11);

    // Charges of the ledger script cost more, so fewer of them share a run.
    let monitor = Monitor::start(&redis);
    let over =
        |user: u32| [charge_on(&user.to_string(), 11, Limit::new(10, Unit::Year, 100).unwrap())];
    let many: Vec<_> = (0..100).map(over).collect();
    for answer in answers(&store, &many).await {
        assert_eq!(fit(&answer), Fit::Over);
    }
    let commands = monitor.commands(&redis);
    let most = commands.iter().map(|line| line.matches("{shop|user=").count()).max();
    assert_eq!(most, Some(16), "keys of one run");

    let monitor = Monitor::start(&redis);
    let calls = vec![[charge_hits("hot", 2, 100)]; 60];
    let answers = answers(&store, &calls).await;
    let admitted = answers.iter().filter(|answer| fit(answer) != Fit::Over).count();
    assert_eq!(admitted, 50);
    assert_eq!(monitor.commands(&redis).len(), 1, "one run for all");
    assert_eq!(redis.count("hot"), 100);
}

/// Calls that cost Redis more share a run with fewer others.
#[tokio::test]
async fn the_calls_of_a_run_are_as_heavy_together_as_96_on_fixed_windows() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    let year = |algorithm| Limit { algorithm, ..Limit::new(1000, Unit::Year, 100).unwrap() };
    let bucket = || year(Algorithm::TokenBucket { burst: 1000 });
    let in_flight = || year(Algorithm::InFlight { remember: None });
    let held = |limit: Limit, id: usize, hold: fn(HoldId) -> HoldAction| {
        let hold = hold(HoldId::new(id as u128));
        let is_commit = matches!(hold, HoldAction::Commit { .. });
        let hits = if is_commit { Hits::Commit } else { Hits::Charge(1) };
        let limit = Limit { hold: Some(Arc::new(HoldPolicy::new(60_000))), ..limit };
        Charge { hold: Some(hold), ..charge("held", hits, &Arc::new(limit)) }
    };
    let occupy = |id| HoldAction::Occupy { id, lifetime_ms: 60_000 };
    let by_id = |id| HoldAction::ById { id, used: None, is_end: false, lifetime_ms: 60_000 };
    let commit = |id| {
        let (made, deadline) = (system_clock(), system_clock().plus_millis(60_000));
        HoldAction::Commit { id, held: 1, used: 1, made, deadline }
    };
    type Call<'a> = &'a dyn Fn(usize) -> Vec<Charge>;
    let calls: [(Call<'_>, usize); 8] = [
        (&|user| vec![charge_hits(&user.to_string(), 1, 1000)], 96),
        (&|user| vec![charge_hits(&user.to_string(), 1, 1000), charge_hits("all", 1, 1000)], 48),
        (&|id| vec![held(year(Algorithm::FixedWindow), id, commit)], 48),
        (&|user| vec![charge_on(&user.to_string(), 1, bucket())], 16),
        (&|_| vec![charge_on("log", 1, year(Algorithm::SlidingLog { remember: None }))], 8),
        (&|id| vec![held(in_flight(), id, occupy)], 8),
        (&|id| vec![held(bucket(), id, by_id)], 8),
        // Heavier than a run may be.
        (
            &|call| {
                (0..20).map(|user| charge_on(&(call + user).to_string(), 1, bucket())).collect()
            },
            1,
        ),
    ];
    // The script for commits leaves those on a counter without a key to the other.
    answer(&store, &[charge_hits("held", 1, 1000)]).await.unwrap();
    for (call, shares_a_run) in calls {
        // Redis knows the script then.
        answer(&store, &call(1000)).await.unwrap();
        let calls: Vec<Vec<Charge>> = (0..2 * shares_a_run).map(call).collect();
        let monitor = Monitor::start(&redis);
        for answer in answers(&store, &calls).await {
            assert!(!answer.unwrap().denied);
        }
        let runs = monitor.commands(&redis).len();
        assert_eq!(runs, 2, "of {} calls like {:?}", calls.len(), calls[0]);
    }
}

#[tokio::test]
async fn a_call_that_fills_a_batch_goes_behind_lighter_ones_if_another_has_just_gone() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    let heavy = |call: &str| -> Vec<Charge> {
        (0..20).map(|user| charge_on(&format!("{call}{user}"), 1, bucket_of_3())).collect()
    };
    let light = |user: &str| vec![charge_on(user, 1, bucket_of_3())];
    // Redis knows the script then.
    answer(&store, &light("known")).await.unwrap();
    let calls =
        [heavy("a"), heavy("b"), heavy("c"), light("d"), light("e"), heavy("f"), light("g")];
    let monitor = Monitor::start(&redis);
    for answer in answers(&store, &calls).await {
        assert!(!answer.unwrap().denied);
    }
    let commands = monitor.commands(&redis);
    let named = |line: &String| {
        let names = "abcdefg".chars().filter(|name| line.contains(&format!("user={name}")));
        names.collect::<String>()
    };
    let runs: Vec<String> = commands.iter().map(named).collect();
    assert_eq!(runs, ["a", "deg", "b", "c", "f"]);
}

/// The limit of each user.
const LIMITS: [u64; 4] = [3, 5, 8, 20];

/// A call: users and their hits.
type Asked = Vec<(usize, u64)>;

/// Calls on few counters with small limits: they compete, and share batches in every combination.
fn competing_calls() -> impl Strategy<Value = Vec<Asked>> {
    let call = prop::collection::vec((0..LIMITS.len(), 1..4_u64), 1..4);
    prop::collection::vec(call, 1..60)
}

/// The hits of a call on one user's counter.
fn hits_on(user: usize, call: &Asked) -> u64 {
    call.iter().filter(|(name, _)| *name == user).map(|(_, hits)| hits).sum()
}

fn charges(call: &Asked) -> Vec<Charge> {
    call.iter()
        .map(|(user, hits)| charge_hits(&format!("user{user}"), *hits, LIMITS[*user]))
        .collect()
}

/// Where counters only grow, verdicts are right if the admitted hits are those that were counted, and if no
/// denied call fits into what is left at the end.
#[test]
fn calls_of_a_batch_are_each_all_or_nothing_and_none_that_fits_is_denied() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = redis_store::patient(&redis.url());
    let count = |user: usize| redis.count(&format!("user{user}}}"));
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&competing_calls(), |calls| {
        redis.query::<()>(&["FLUSHALL"]);
        let charged: Vec<Vec<Charge>> = calls.iter().map(charges).collect();
        let answers = runtime.block_on(join_all(charged.iter().map(|call| answer(&store, call))));
        let is_denied = |number: usize| answers[number].as_ref().unwrap().denied;
        let (denied, admitted): (Vec<usize>, Vec<usize>) =
            (0..calls.len()).partition(|number| is_denied(*number));

        let counted: Vec<u64> = (0..LIMITS.len()).map(count).collect();
        for (user, limit) in LIMITS.into_iter().enumerate() {
            let admitted: u64 = admitted.iter().map(|number| hits_on(user, &calls[*number])).sum();
            prop_assert_eq!(admitted, counted[user]);
            prop_assert!(admitted <= limit);
        }
        for call in denied.iter().map(|number| &calls[*number]) {
            let fits = |user| counted[user] + hits_on(user, call) <= LIMITS[user];
            let would_fit = (0..LIMITS.len()).all(fits);
            prop_assert!(!would_fit, "{:?} was denied beside {:?}", call, counted);
        }
        Ok(())
    });
    outcome.unwrap();
    redis.assert_no_key_leaks();
}

/// `CANCELLED_CALLS` sets the number of calls; docs/internals/correctness.md has a long run.
#[tokio::test]
async fn calls_given_up_at_any_moment_mix_up_no_answers_and_leak_no_connection() {
    let calls = number("CANCELLED_CALLS", 20_000);
    const USERS: u64 = 50;
    const ROOM: u64 = 20_000_000;
    let redis = Redis::start();
    let store = Arc::new(redis_store::patient(&redis.url()));
    // Each user has another limit, so that an answer shows whose it is.
    let limit = |user: u64| (user + 1) * ROOM;
    let mut dice = Dice(1);
    let mut admitted = vec![0_u64; usize::try_from(USERS).unwrap()];
    let mut given_up = 0;
    for _ in 0..calls / 100 {
        let plans: Vec<(u64, u64)> =
            (0..100).map(|_| (dice.below(USERS), dice.below(1500))).collect();
        let call = |(user, timeout_micros): (u64, u64)| {
            let store = Arc::clone(&store);
            async move {
                let charge = [charge_hits(&format!("user{user}"), 1, limit(user))];
                let timeout = Duration::from_micros(timeout_micros);
                (user, tokio::time::timeout(timeout, answer(&store, &charge)).await)
            }
        };
        for (user, answer) in join_all(plans.into_iter().map(call)).await {
            let Ok(answer) = answer else {
                given_up += 1;
                continue;
            };
            let Fit::Fits { remaining } = fit(&answer) else { panic!("over: {user}") };
            assert!(
                (limit(user) - ROOM..limit(user)).contains(&remaining),
                "the answer of another call"
            );
            admitted[usize::try_from(user).unwrap()] += 1;
        }
    }
    assert!(given_up > calls / 100, "too few were given up: {given_up}");
    for (user, admitted) in admitted.into_iter().enumerate() {
        let charged = redis.count(&format!("user{user}}}"));
        assert!(admitted <= charged, "user{user}: {admitted} of {charged}");
    }
    let clients = redis.clients();
    assert!(clients.len() <= 2, "the pool has at most two: {clients:?}");
}

#[test]
fn calls_of_all_workers_share_batches_and_get_their_own_answers() {
    let redis = Redis::start();
    let store = Arc::new(redis_store::store(&redis.url(), 2, system_clock, PATIENT));
    let workers = Workers::start(2).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let admitted = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for number in 0..32_usize {
            let store = Arc::clone(&store);
            workers.spawn(&mut tasks, async move {
                let user = number % LIMITS.len();
                let call = [charge_hits(&format!("user{user}"), 1, 1000 + LIMITS[user])];
                let mut admitted = 0;
                for _ in 0..300 {
                    let answer = answer(&store, &call).await;
                    admitted += u64::from(fit(&answer) != Fit::Over);
                }
                (user, admitted)
            });
        }
        let mut admitted = [0; LIMITS.len()];
        for (user, more) in tasks.join_all().await {
            admitted[user] += more;
        }
        admitted
    });
    assert_eq!(admitted, LIMITS.map(|limit| 1000 + limit), "of 2,400 calls each");
}

/// Loses the replies to connections that are open now.
const LOSE_REPLIES: Faults = Faults {
    connect: Connect::Accept,
    requests: Flow::Forward,
    replies: Flow::Drop,
    spares_new: true,
};

#[tokio::test]
async fn a_call_does_not_wait_for_the_late_answer_of_another() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.port, 0);
    // An answer is late after an eighth of the timeout.
    let store = redis_store::store(&proxy.url, 1, system_clock, Duration::from_secs(4));
    let call = || [charge_hits("alice", 1, 10)];
    assert_eq!(fit(&answer(&store, &call()).await), fits(9));
    proxy.set(LOSE_REPLIES);
    let held = call();
    let mut held = pin!(answer(&store, &held));
    // The pool's other open connections are held too; a new connection is not.
    let other = async {
        loop {
            let call = call();
            let timeout = Duration::from_millis(1500);
            if let Ok(answer) = tokio::time::timeout(timeout, answer(&store, &call)).await {
                return answer;
            }
        }
    };
    tokio::select! {
        biased;
        answer = &mut held => panic!("its reply is dropped: {answer:?}"),
        answer = other => assert!(matches!(fit(&answer), Fit::Fits { .. })),
    }
    assert!(held.await.is_err(), "it ends at its timeout");
}

#[tokio::test]
async fn a_redis_that_refuses_writes_keeps_its_connections() {
    let redis = Redis::start();
    let store = redis_store::patient(&redis.url());
    assert_eq!(charged(&store, "old", 1, 10).await, fits(9));
    let before = redis.clients();
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for user in ["old", "new"].repeat(10) {
        let refused = answer(&store, &[charge_hits(user, 1, 10)]).await.expect_err("no memory");
        assert!(refused.to_string().contains("out of memory (OOM)"), "{refused}");
    }
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(charged(&store, "old", 1, 10).await, fits(8));
    // Probes open and close connections of their own.
    let after = redis.clients();
    assert!(!before.is_empty() && before.is_subset(&after), "{before:?}, {after:?}");
}

#[test]
fn a_store_still_answers_after_the_runtime_that_it_used_has_ended() {
    let redis = Redis::start();
    let store = redis_store::store(&redis.url(), 0, system_clock, Duration::from_millis(500));
    let ask = |charges: &[Charge]| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(PATIENT, answer(&store, charges)).await })
    };
    let call = [charge_hits("alice", 1, 10)];
    assert_eq!(fit(&ask(&call).expect("an answer")), fits(9));
    assert_eq!(ask(&[]).expect("an answer").unwrap(), Verdict::default());
    // Its connections belonged to a runtime that has ended; it opens others.
    for left in (6..9).rev() {
        assert_eq!(fit(&ask(&call).expect("an answer")), fits(left));
    }
}

/// The leader's worker may be blocked, and then sends nothing.
#[test]
fn calls_do_not_wait_for_a_leader_whose_thread_is_blocked() {
    let redis = Redis::start();
    let store = Arc::new(redis_store::store(&redis.url(), 2, system_clock, PATIENT));
    let workers = Workers::start(2).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        // A task goes to the worker with the fewest tasks.
        let (blocked, is_blocked) = tokio::sync::oneshot::channel();
        let (unblock, is_unblocked) = std::sync::mpsc::channel::<()>();
        let first = Arc::clone(&store);
        workers.spawn(&mut tasks, async move {
            let call = [charge_hits("alice", 1, 10)];
            assert_eq!(fit(&answer(&first, &call).await), fits(9));
            let mut next = pin!(answer(&first, &call));
            // The call is queued; its dispatcher is the leader, and has not run yet.
            assert!(futures_util::poll!(&mut next).is_pending());
            blocked.send(()).unwrap();
            is_unblocked.recv().unwrap();
            assert!(!next.await.unwrap().denied);
        });
        is_blocked.await.unwrap();
        let second = Arc::clone(&store);
        workers.spawn(&mut tasks, async move {
            let answer = answer(&second, &[charge_hits("bob", 1, 10)]).await;
            unblock.send(()).unwrap();
            assert_eq!(fit(&answer), fits(9));
        });
        tasks.join_all().await;
    });
}

/// As in the service, until the test ends.
fn sends_what_it_keeps(store: &Arc<RedisStore>) -> JoinSet<()> {
    let store = Arc::clone(store);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { store.follow().await });
    tasks
}

fn debit(user: &str) -> Charge {
    let limit = Limit::new(10, Unit::Year, 100).unwrap();
    charge_on(user, 1, Limit { when_denied: WhenDenied::Counted, ..limit })
}

/// Waits until the counter of this user has this number of hits. It does not block the runtime, on which the calls are sent.
async fn until_counted(redis: &Redis, user: &str, hits: u64) {
    let deadline = Instant::now() + PATIENCE;
    while redis.count(user) != hits {
        assert!(Instant::now() < deadline, "{user}: {} of {hits}", redis.count(user));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A debit is for work already done, so it must be charged though its client has left.
#[tokio::test]
async fn a_debit_whose_caller_has_gone_is_charged_and_any_other_call_is_not() {
    let redis = Redis::start();
    let store = Arc::new(redis_store::patient(&redis.url()));
    let _sends = sends_what_it_keeps(&store);
    assert_eq!(charged(&store, "alice", 1, 10).await, fits(9));
    for _ in 0..5 {
        for call in [[charge_hits("alice", 1, 10)], [debit("carol")]] {
            let mut given_up = pin!(answer(&store, &call));
            assert!(futures_util::poll!(&mut given_up).is_pending());
        }
    }
    until_counted(&redis, "carol", 5).await;
    assert_eq!(charged(&store, "alice", 1, 10).await, fits(8));
}

/// A late answer carries an old time of Redis; the next calls must not be refused as stale for that.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_if_answers_are_late_and_windows_end_every_second() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.port, 1);
    let replies = Flow::Delay { ms: 2, jitter: 9, percent: 30 };
    proxy.set(Faults { replies, ..Faults::default() });
    let store = Arc::new(redis_store::store(&proxy.url, 1, system_clock, PATIENT));
    let mut tasks = JoinSet::new();
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    for user in 0..8_u32 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let limit = Limit::new(1_000_000, Unit::Second, 1).unwrap();
            let call = [charge_on(&user.to_string(), 1, limit)];
            while tokio::time::Instant::now() < until {
                answer(&store, &call).await.expect("a window turns once a second");
            }
        });
    }
    tasks.join_all().await;
}

fn guard(redis: &Redis) -> Guard {
    let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
    Guard::new(
        Arc::new(Store::Redis(redis_store::patient(&redis.url()))),
        OverLimitCache::new(100, Denials::Exact, metrics.clone()),
        Fallback::new(MemoryStore::new(system_clock), 1),
        Timeouts { budget: PATIENT, announced_max: PATIENT },
        metrics,
    )
}

fn is_too_many<T>(answer: &&Result<T, StoreError>) -> bool {
    matches!(answer, Err(error) if error.to_string() == "too many calls wait for the store")
}

#[tokio::test]
async fn of_131_105_charges_in_large_calls_a_call_does_not_wait_unless_it_has_few_or_counts_work() {
    let mut redis = Redis::start();
    let guard = guard(&redis);
    redis.stop();
    let many: Vec<_> = (0..512).map(|user| charge_hits(&user.to_string(), 1, 5)).collect();
    let refund =
        charge("alice", Hits::Refund(1), &Arc::new(Limit::new(5, Unit::Year, 100).unwrap()));
    let with_refund: Vec<_> = many.iter().cloned().chain([refund]).collect();
    for (last, refused) in [(&many[..33], 1), (&many[..32], 0), (&with_refund[..], 0)] {
        let calls = iter::repeat_n(&many[..], 256).chain([last]);
        let answers = join_all(calls.map(|call| guard.charge(call, Arrival::now()))).await;
        assert_eq!(answers.iter().filter(is_too_many).count(), refused, "{} charges", last.len());
    }
}

#[tokio::test]
async fn of_65_569_charges_in_large_calls_that_count_work_the_last_are_kept_unless_a_call_has_few()
{
    let mut redis = Redis::start();
    let guard = Arc::new(guard(&redis));
    redis.stop();
    let others = (0..511).map(|user| charge_hits(&user.to_string(), 1, 5));
    let many: Vec<_> = others.chain([debit("carol")]).collect();
    let last: Vec<_> = many[..32].iter().cloned().chain([debit("dave")]).collect();
    let calls = iter::repeat_n(&many[..], 128).chain([&last[..32], &last[32..], &last[..]]);
    let answers = join_all(calls.map(|call| guard.charge(call, Arrival::now()))).await;
    assert_eq!(answers.iter().filter(is_too_many).count(), 1);
    assert!(is_too_many(&answers.last().unwrap()));
    redis.start_again();
    let mut sends = JoinSet::new();
    sends.spawn(async move { guard.servers().unwrap().follow().await });
    until_counted(&redis, "dave", 2).await;
}

#[tokio::test]
async fn of_65_537_charges_to_be_read_the_last_does_not_wait() {
    let mut redis = Redis::start();
    let guard = guard(&redis);
    redis.stop();
    let many: Vec<_> = (0..512).map(|user| charge_hits(&user.to_string(), 1, 5)).collect();
    let until = tokio::time::Instant::now() + PATIENT;
    let calls = iter::repeat_n(&many[..], 128).chain([&many[..1]]);
    let answers = join_all(calls.map(|call| guard.states(call, until))).await;
    assert_eq!(answers.iter().filter(is_too_many).count(), 1);
}

/// A batch runs the script for fixed windows first, so that a refund that was queued earlier runs later.
#[tokio::test]
async fn a_refund_in_the_batch_of_a_denial_removes_the_cached_denial() {
    let redis = Redis::start();
    let guard = guard(&redis);
    let charge_all =
        async |charges: &[Charge]| guard.charge(charges, Arrival::now()).await.unwrap();
    assert!(!charge_all(&[charge_hits("alice", 5, 5)]).await.denied);
    let limit = Limit::new(5, Unit::Year, 100).unwrap();
    let refund = [charge("alice", Hits::Refund(1), &Arc::new(limit))];
    let one = [charge_hits("alice", 1, 5)];
    let answers = join_all([charge_all(&refund), charge_all(&one)]).await;
    assert!(answers[1].denied, "the charge ran before the refund");
    assert!(!charge_all(&one).await.denied);
}
