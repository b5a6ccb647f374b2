//! Budgets through a real Envoy: 1,000 parallel streams on a budget for ten. A ledger outside of the service, in the model
//! server, checks the bound at each admission: what was used, and the estimates of what is open, are at most the limit.
//!
//! `cargo test --test faults budgets -- --nocapture --test-threads 1` prints the figures of docs/internals/budgets.md.

mod course;
mod envoys;
mod ledger;
mod model_server;
mod replicas;
mod streams;

use std::sync::atomic::Ordering::Relaxed;

use tokio::time::sleep;

use self::{
    course::{Schedule, Usage},
    ledger::Report,
    model_server::ModelServer,
    replicas::Fleet,
    streams::Crowd,
};
use crate::support::{envoy::Envoy, prelude::*, redis_server::Setup};

/// What most streams hold, and about the most that they use.
const ESTIMATE: u64 = 300;

/// A budget for ten streams.
const LIMIT: u64 = 10 * ESTIMATE;

const STREAMS: usize = 1_000;
/// Before this number of admissions, nothing fails.
const ADMITTED_MIN: u64 = 5;

const PAUSE: Duration = Duration::from_millis(60);

const SCHEDULE: Schedule = Schedule {
    seed: 26,
    estimates: (200, 400),
    used: Usage::UpTo(ESTIMATE),
    lasts: Duration::from_millis(80),
    troubled: true,
    impatient: true,
};

const BY_TOKEN: &str = "
domain: llm
descriptors:
  - key: user
    rate_limit:
      { unit: year, requests_per_unit: 3000, on_store_failure: deny, hold: { for: 10m, estimate: 300, unused_on: [5xx] } }
";

const IN_FLIGHT: &str = "
domain: llm
descriptors:
  - key: user
    rate_limit: { algorithm: in_flight, requests_per_unit: 10, on_store_failure: deny, hold: { for: 10s } }
";

/// The rules for what AI Gateway sends, with these further keys of the limit.
fn quota(further: &str) -> String {
    format!(
        "
domain: ai-gateway-quota
descriptors:
  - key: backend_name
    descriptors:
      - key: model_name_override
        quota_mode: true
        rate_limit: {{ unit: year, requests_per_unit: 3000{further} }}
"
    )
}

/// Everything between the clients and the model server.
struct World {
    redis: Redis,
    fleet: Fleet,
    model: ModelServer,
    envoys: Vec<Envoy>,
    crowd: Arc<Crowd>,
    began: Instant,
}

impl World {
    /// Two Envoys with examples/envoy/budgets.yaml, and three replicas. Redis keeps what it has acknowledged.
    async fn own(
        rules: &str,
        limit: u64,
        schedule: Schedule,
        timeouts: (&str, &'static str),
    ) -> Self {
        let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
        let redis = Redis::start_as(Setup::default().with(&keeps));
        let fleet = Fleet::start(3, rules, &redis.url(), timeouts.1);
        let model = ModelServer::start(limit, schedule, fleet.clients()).await;
        let envoys = (0..2).map(|_| envoys::own(&fleet.addresses, model.address, timeouts.0));
        let envoys = envoys.collect();
        Self::new(redis, fleet, model, envoys, schedule)
    }

    /// An Envoy as AI Gateway configures it, and one replica.
    async fn ai_gateway(rules: &str, schedule: Schedule) -> Self {
        let redis = Redis::start();
        let fleet = Fleet::start(1, rules, &redis.url(), "10s");
        let model = ModelServer::start(LIMIT, schedule, fleet.clients()).await;
        let envoys = vec![envoys::ai_gateway(&fleet.addresses, model.address)];
        Self::new(redis, fleet, model, envoys, schedule)
    }

    fn new(
        redis: Redis,
        fleet: Fleet,
        model: ModelServer,
        envoys: Vec<Envoy>,
        schedule: Schedule,
    ) -> Self {
        let addresses = envoys.iter().map(|envoy| envoy.public).collect();
        let crowd = Crowd::new(addresses, "alice", schedule, Arc::clone(&model.ledger));
        Self { redis, fleet, model, envoys, crowd: Arc::new(crowd), began: Instant::now() }
    }

    fn print(&self, name: &str) -> Report {
        let (report, tally) = (self.model.ledger.report(), &self.crowd.tally);
        println!(
            "{name}, {:.1?}, {} errors of Envoy's: {} requests admitted, {} denied, {} failed, {} left unanswered, {} complete; at most {} at a \
             time; {} admissions over the bound, by at most {}; used {}, with estimates that stand {}; used above estimates {}",
            self.began.elapsed(),
            self.envoys.last().map_or(0, |envoy| envoy.count("cluster.model.ratelimit.error")),
            report.admitted,
            tally.denied.load(Relaxed),
            tally.failed.load(Relaxed),
            tally.unanswered.load(Relaxed),
            tally.whole.load(Relaxed),
            report.open_max,
            report.over,
            self.model.ledger.excess(),
            report.used,
            report.counted,
            report.overrun,
        );
        report
    }

    /// Waits until the user's counter shows a number within these bounds, and checks that it stays there.
    async fn counts(&self, least: u64, most: u64) {
        let (replicas, deadline) = (self.fleet.clients(), Instant::now() + PATIENCE);
        let mut stays_since = None;
        loop {
            let remaining = replicas.remaining("llm", &[("user", "alice")]).await;
            let counted = remaining.map(|remaining| LIMIT - remaining);
            if counted.is_some_and(|counted| (least..=most).contains(&counted)) {
                let since: Instant = *stays_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(500) {
                    println!("  the counter shows {counted:?}, of {least} to {most}");
                    return;
                }
            } else {
                stays_since = None;
            }
            assert!(
                Instant::now() < deadline,
                "the counter shows {counted:?}, of {least} to {most}"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Without holds a budget is only counted: what runs when it is used up is not bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_holds_parallel_streams_of_ai_gateway_pass_the_budget_many_times() {
    let schedule = Schedule { estimates: (ESTIMATE, ESTIMATE), ..SCHEDULE };
    let world = World::ai_gateway(&quota(""), schedule).await;
    world.crowd.run(STREAMS, 1, PAUSE).await;
    let report = world.print("AI Gateway, without holds");
    assert!(report.over > 0 && report.used > LIMIT, "{report:?}");
}

/// The gateway's own configuration, and streams that use exactly what is held, or at most that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_holds_by_counter_no_stream_of_ai_gateway_passes_the_budget() {
    let rules = quota(", hold: { for: 10m, by: counter, estimate: 300 }");
    let fixed = Usage::Exactly(ESTIMATE);
    for (name, used, troubled) in [
        ("fixed costs", fixed, false),
        ("random costs", Usage::UpTo(ESTIMATE), false),
        ("random costs and failures", Usage::UpTo(ESTIMATE), true),
    ] {
        let schedule = Schedule { estimates: (ESTIMATE, ESTIMATE), used, troubled, ..SCHEDULE };
        let world = World::ai_gateway(&rules, schedule).await;
        world.crowd.run(STREAMS, 2, PAUSE).await;
        let report = world.print(&format!("AI Gateway, by counter, {name}"));
        assert_eq!(report.over, 0, "{report:?}");
        // The take of a client that left may be one of the nine.
        let left = world.crowd.tally.unanswered.load(Relaxed);
        assert!(report.admitted + left >= 9, "{left} clients left, {report:?}");
    }
}

/// The estimate is the mean of the costs: the budget is passed at most by what streams used above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_holds_by_counter_and_random_costs_the_excess_is_at_most_their_deviation() {
    for (name, estimate) in [("mean", "150"), ("learned", "{ default: 300, learned: true }")] {
        let rules = quota(&format!(", hold: {{ for: 10m, by: counter, estimate: {estimate} }}"));
        let schedule = Schedule { estimates: (150, 150), troubled: false, ..SCHEDULE };
        let world = World::ai_gateway(&rules, schedule).await;
        world.crowd.run(STREAMS, 2, PAUSE).await;
        let report = world.print(&format!("AI Gateway, by counter, {name} estimate"));
        assert!(world.model.ledger.excess() <= report.overrun, "{report:?}");
        assert!(report.admitted >= 9, "{report:?}");
    }
}

/// Each commit arrives one to three times, at any of three replicas, in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_holds_by_token_no_stream_passes_the_budget_and_every_commit_counts_once() {
    let schedule = Schedule { used: Usage::MostlyLittle, impatient: false, ..SCHEDULE };
    let world = World::own(BY_TOKEN, LIMIT, schedule, ("30s", "10s")).await;
    world.crowd.run(STREAMS, 5, PAUSE).await;
    let report = world.print("by token");
    assert_eq!(report.over, 0, "{report:?}");
    assert!(report.admitted >= 10, "{report:?}");
    world.counts(report.counted, report.counted).await;
    let holds = |outcome| world.fleet.metric("ratelimit_holds_total", outcome);
    println!("  {} commits were repeated", holds("repeated"));
    assert_eq!(holds("taken"), report.admitted);
    assert_eq!(holds("committed") + holds("unused"), report.admitted);
    assert!(holds("repeated") > 0);
}

/// What happens while the streams run.
#[derive(Debug, Clone, Copy)]
enum Fault {
    ReplicasKilled,
    RedisKilled,
    RedisStopped,
    EnvoyEnds,
    EnvoyKilled,
}

impl Fault {
    async fn strike(self, world: &mut World) {
        let since = Instant::now();
        while world.model.ledger.report().admitted < ADMITTED_MIN
            && since.elapsed() < Duration::from_secs(30)
        {
            sleep(Duration::from_millis(5)).await;
        }
        match self {
            Self::ReplicasKilled => {
                for which in [1, 2] {
                    world.fleet.kill(which);
                    sleep(Duration::from_millis(300)).await;
                    world.fleet.start_again(which);
                }
            }
            Self::RedisKilled => {
                for _ in 0..2 {
                    world.redis.stop();
                    sleep(Duration::from_millis(300)).await;
                    world.redis.start_again();
                    sleep(Duration::from_millis(400)).await;
                }
            }
            Self::RedisStopped => {
                for seconds in [0.1, 2.5] {
                    world.redis.signal("STOP");
                    sleep(Duration::from_secs_f64(seconds)).await;
                    world.redis.signal("CONT");
                    sleep(Duration::from_millis(300)).await;
                }
            }
            Self::EnvoyEnds => world.envoys[0].process.signal("TERM"),
            Self::EnvoyKilled => world.envoys[0].process.signal("KILL"),
        }
    }
}

/// Replicas, Redis and Envoy fail. What they lose is a hold that stays until its deadline: nothing is admitted for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_holds_by_token_no_stream_passes_the_budget_in_a_fault() {
    use Fault::*;
    for fault in [ReplicasKilled, RedisKilled, RedisStopped, EnvoyEnds, EnvoyKilled] {
        holds_in(fault).await;
    }
}

async fn holds_in(fault: Fault) {
    let schedule = Schedule { used: Usage::MostlyLittle, ..SCHEDULE };
    let mut world = World::own(BY_TOKEN, LIMIT, schedule, ("2s", "1500ms")).await;
    let crowd = Arc::clone(&world.crowd);
    let streams = tokio::spawn(async move { crowd.run(STREAMS, 4, PAUSE).await });
    fault.strike(&mut world).await;
    streams.await.unwrap();
    let report = world.print(&format!("by token, {fault:?}"));
    assert_eq!(report.over, 0, "{report:?}");
    assert!(report.admitted >= ADMITTED_MIN, "{report:?}");
    let unanswered = world.crowd.tally.unanswered_hits.load(Relaxed);
    world.counts(report.used, (report.held + unanswered).min(LIMIT)).await;
}

/// The holds of a killed Envoy's streams end by their deadline, 10 s after they were taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_server_sees_ten_streams_at_most_and_ten_again_after_an_envoy_is_killed() {
    const SLOTS: usize = 10;
    let schedule = Schedule { estimates: (1, 1), used: Usage::Exactly(1), ..SCHEDULE };
    let schedule = Schedule { lasts: Duration::from_millis(400), impatient: false, ..schedule };
    let world = World::own(IN_FLIGHT, SLOTS as u64, schedule, ("30s", "10s")).await;
    let ledger = Arc::clone(&world.model.ledger);
    let reaches = async |what: &str| {
        let since = Instant::now();
        while ledger.open() < SLOTS {
            assert!(since.elapsed() < PATIENCE, "{what}: {} of {SLOTS}", ledger.open());
            sleep(Duration::from_millis(1)).await;
        }
        println!("{what}: {SLOTS} at a time after {:.1?}", since.elapsed());
    };
    let crowd = Arc::clone(&world.crowd);
    let streams = tokio::spawn(async move { crowd.run(40, usize::MAX, PAUSE).await });
    reaches("at first").await;
    sleep(Duration::from_secs(1)).await;
    reaches("with two Envoys").await;
    world.envoys[0].process.signal("KILL");
    sleep(Duration::from_millis(100)).await;
    reaches("after an Envoy was killed").await;
    world.crowd.stop.store(true, Relaxed);
    streams.await.unwrap();
    let report = world.print("in flight");
    assert_eq!(report.open_max, SLOTS, "{report:?}");
}
