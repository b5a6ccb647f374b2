//! Promise "exactly the limit", while four replicas and two processes lease the hits of one counter: no window admits more,
//! whatever happens to a replica or to Redis. `LEASE_ROUNDS` sets how often the faults happen; docs/internals/correctness.md has a long run.

use tokio::{task::JoinSet, time::sleep};
use tollkeeper_client::{Client, Limiter, OnFailure, on};

use crate::support::{
    prelude::*,
    sentinels::Sentinels,
    service::service_at,
    windows::{self, Admitted, now_ms},
};

/// Of three windows, calls use up the limit of the first. In the second, credit is in hand when it ends. In the third, one
/// call takes all that is left as soon as it begins, so that each hit of older credit is one too many.
const RULES: &str = "
domain: shop
descriptors:
  - { key: scarce, rate_limit: { unit: second, requests_per_unit: 500, lease: auto } }
  - { key: plenty, rate_limit: { unit: second, requests_per_unit: 1000000, lease: auto } }
";
const LIMITS: [(&str, u64); 2] = [("scarce", 500), ("plenty", 1_000_000)];

const CLIENTS: usize = 16;

/// Each asks one of the first replicas, from four tasks at a time.
const PROCESSES: usize = 2;
const TASKS: usize = 4;

fn window() -> u64 {
    now_ms() / 1000
}

/// What was admitted of which key.
type OfKey = (&'static str, Admitted);

/// Four replicas, and clients that call them until it ends.
struct World {
    replicas: Vec<Service>,
    ends: Arc<AtomicBool>,
    clients: JoinSet<Vec<OfKey>>,
    admitted: Vec<OfKey>,
    /// The windows in which Redis may have lost its data, by the first and the last for each time.
    losses: Vec<(u64, u64)>,
}

impl World {
    /// Starts it, and waits until all replicas spend credit.
    async fn start(store: &str) -> Self {
        let environment = [("TOLLKEEPER_REPLICAS", "4"), ("TOLLKEEPER_WORKERS", "1")];
        let replica = |clock| service_at(clock, RULES, store, &environment);
        let replicas = ["+0", "+0.4", "-0.4", "+10800"].map(replica).into_iter().collect();
        let (ends, clients) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        let mut world = Self { replicas, ends, clients, admitted: Vec::new(), losses: Vec::new() };
        for number in 0..CLIENTS {
            let client = world.replicas[number % world.replicas.len()].client().await;
            world.clients.spawn(call(client, Arc::clone(&world.ends)));
        }
        for replica in world.replicas.iter().take(PROCESSES) {
            let options = tollkeeper_client::Options::new("shop").on_failure(OnFailure::Deny);
            let limiter = Limiter::new(&Client::new(&replica.grpc.to_string(), options).unwrap());
            for _ in 0..TASKS {
                world.clients.spawn(decide(limiter.clone(), Arc::clone(&world.ends)));
            }
        }
        for (number, replica) in world.replicas.iter().enumerate() {
            has_happened(replica, "spent");
            if number < PROCESSES {
                has_happened(replica, "lent");
            }
        }
        world
    }

    /// Waits until a window of `plenty` will soon end, does this, and returns in the next one.
    async fn before_the_end(&mut self, fault: impl FnOnce(&mut Self)) {
        while window() % 3 != 1 || now_ms() % 1000 < 850 {
            sleep(Duration::from_millis(5)).await;
        }
        fault(self);
        while window() % 3 == 1 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Takes all that is left in a window of `plenty`.
    fn take_what_is_left(&mut self) {
        let (key, limit) = LIMITS[1];
        let entries = [json!({ "key": key, "value": "all" })];
        let call =
            json!({ "mode": "PART", "hits": limit, "descriptors": [{ "entries": entries }] });
        let (body, sent) = (json!({ "domain": "shop", "calls": [call] }).to_string(), window());
        let (_, _, answer) = self.replicas[0].exchange("POST", "/v1/decide", body.as_bytes());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let hits = answer["verdicts"][0]["hits"].as_u64().unwrap_or(0);
        self.admitted.push((key, Admitted { hits, sent, answered: window() }));
    }

    /// Redis loses its data by this.
    fn loses(&mut self, fault: impl FnOnce()) {
        let first = window();
        fault();
        self.losses.push((first, window()));
    }

    /// Ends the clients, and fails if windows in a row have admitted more than their limits, and once more for each loss.
    async fn check(mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.admitted.extend(self.clients.join_all().await.concat());
        for (key, limit) in LIMITS {
            let of_key = self.admitted.iter().filter(|(of, _)| *of == key);
            let of_key: Vec<_> = of_key.map(|(_, admitted)| *admitted).collect();
            windows::check(key, limit, &of_key, &self.losses);
        }
    }
}

/// Waits until something has become of hits that a replica has leased or lent.
fn has_happened(replica: &Service, event: &str) {
    let name = format!("ratelimit_lease_hits_total{{event=\"{event}\"}} ");
    wait_until(event, || replica.metric(&name) > 0.0);
}

/// Decides calls in this process until `ends`, and returns what was admitted.
async fn decide(limiter: Limiter, ends: Arc<AtomicBool>) -> Vec<OfKey> {
    let mut admitted = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let sent = window();
        let (key, _) = LIMITS[(sent % 3).min(1) as usize];
        if limiter.decide(on(key, "all")).await.unwrap().allowed {
            admitted.push((key, Admitted { hits: 1, sent, answered: window() }));
        }
        // More would use up `plenty`, and keep the replicas from their CPU.
        sleep(Duration::from_micros(500)).await;
    }
    admitted
}

/// Calls one replica until `ends`, and returns what was admitted.
async fn call(mut client: RateLimitServiceClient<Channel>, ends: Arc<AtomicBool>) -> Vec<OfKey> {
    let mut admitted = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let sent = window();
        let (key, _) = LIMITS[(sent % 3).min(1) as usize];
        match client.should_rate_limit(shop(&format!("{key}=all"))).await {
            Ok(answer) if answer.get_ref().overall_code() == Code::Ok => {
                admitted.push((key, Admitted { hits: 1, sent, answered: window() }));
            }
            Ok(_) => {}
            // It was killed, or Redis is away.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_admits_more_than_its_limit_whatever_happens_to_replicas_that_lease_or_to_redis()
{
    let redis = Redis::start();
    let mut world = World::start(&redis.url()).await;
    for _ in 0..number("LEASE_ROUNDS", 1) {
        world.before_the_end(|_| {}).await;
        world.take_what_is_left();

        world.before_the_end(|world| world.replicas[1].process().signal("STOP")).await;
        world.take_what_is_left();
        world.replicas[1].process().signal("CONT");

        world.before_the_end(|_| redis.signal("STOP")).await;
        redis.signal("CONT");
        world.take_what_is_left();

        world.before_the_end(|world| world.loses(|| redis.query(&["FLUSHALL"]))).await;
        world.take_what_is_left();
    }

    world.before_the_end(|world| world.replicas[2].process().signal("KILL")).await;
    world.take_what_is_left();
    world.check().await;
    redis.assert_no_key_leaks();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_costs_replicas_that_lease_at_most_what_was_not_replicated() {
    let mut sentinels = Sentinels::start();
    let mut world = World::start(&sentinels.url()).await;
    world.before_the_end(|world| world.loses(|| sentinels.kill_master())).await;
    sentinels.announced();
    for _ in 0..2 {
        world.before_the_end(|_| {}).await;
        world.take_what_is_left();
    }
    world.check().await;
    sentinels.master().assert_no_key_leaks();
}
