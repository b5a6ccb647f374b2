//! A surge: calls arrive at three times the rate that the service can decide. The generator writes raw frames, so the service
//! is what limits.
//!
//! docs/internals/reliability.md has the command for figures.

use crate::support::{prelude::*, raw_load::*};

const RULES: &str = "
domain: shop
descriptors:
  - { key: wide, rate_limit: { unit: year, requests_per_unit: 4000000000 } }
  - { key: narrow, rate_limit: { unit: year, requests_per_unit: 100 } }
";
const NARROW: usize = 100;

/// One call of this number is on the narrow limit.
const CYCLE: u64 = 16;
const CONNECTIONS: u64 = 4;

/// A service with one worker, on the processors `SURGE_CORES` if that is set.
fn start(redis: &Redis, budget: Duration) -> Service {
    let mut command = serve();
    if let Ok(cores) = std::env::var("SURGE_CORES") {
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", &cores]).arg(command.get_program()).args(command.get_args());
        command = pinned;
    }
    let budget = format!("{}ms", budget.as_millis());
    let flags = ["--workers", "1", "--decision-budget", &budget];
    let options = Service::with(RULES).flags(&flags);
    let service = Service::start_with(command, options.on(&redis.url()));
    service.wait_until_ready();
    service
}

fn message(key: &str, value: &str) -> Vec<u8> {
    request("shop", vec![descriptor(&[(key, value)])]).encode_to_vec()
}

/// What came of the calls that were due in one phase.
struct Phase {
    name: &'static str,
    began: Instant,
    time: Duration,
    unsent: u64,
}

impl Phase {
    /// Runs the same on each connection.
    fn run(
        name: &'static str,
        clients: &mut [RawClient],
        time: Duration,
        send: impl Fn(&mut RawClient) -> u64 + Sync,
    ) -> Self {
        let began = Instant::now();
        let unsent = thread::scope(|scope| {
            let send = &send;
            let senders: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(move || send(client))).collect();
            senders.into_iter().map(|sender| sender.join().unwrap()).sum()
        });
        Self { name, began, time, unsent }
    }

    /// Decisions per second that arrived within `patience` of when their calls were due. Prints what became of all.
    fn goodput(&self, calls: &[RawCall], patience: Duration) -> f64 {
        let within =
            calls.iter().filter(|call| (self.began..self.began + self.time).contains(&call.due));
        let is_in_time = |call: &&RawCall| call.answered - call.due <= patience;
        let is_decided = |call: &&RawCall| call.answer != RawAnswer::Failed;
        let answered = within.clone().count();
        let decided = within.clone().filter(is_decided).count();
        let failed_late =
            within.clone().filter(|call| !is_decided(call) && !is_in_time(call)).count();
        let good = within.clone().filter(is_decided).filter(is_in_time).count();
        let mut took: Vec<Duration> = within.map(|call| call.answered - call.due).collect();
        took.sort_unstable();
        let quantile = |part: f64| took.get((took.len() as f64 * part) as usize).copied();
        let goodput = good as f64 / self.time.as_secs_f64();
        println!(
            "{}: {goodput:.0} decisions/s in time; of {answered} calls {decided} were decided, {} of them late; \
             {} got on_store_failure, {failed_late} of them late; {} could not be sent; p50 {:.1?}, p99 {:.1?}",
            self.name,
            decided - good,
            answered - decided,
            self.unsent,
            quantile(0.5).unwrap_or_default(),
            quantile(0.99).unwrap_or_default(),
        );
        goodput
    }
}

/// `SURGE_SECONDS` (0.3) is the length of each phase. Callers have at most `SURGE_OPEN` (1024) calls open: Envoy's default too. The
/// decision budget is so long that a service which answers them in turn is never late. A shorter one, `SURGE_BUDGET_MS`, makes
/// this a measurement, for callers that wait a third longer, as Envoy's 20 ms are to the default budget of 15.
#[test]
fn a_surge_beyond_what_the_service_can_decide_admits_exactly_the_limit_and_decides_every_call() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().unwrap());
    let time = Duration::from_secs_f64(number("SURGE_SECONDS").unwrap_or(0.3));
    let measured = number("SURGE_BUDGET_MS");
    let budget = Duration::from_secs_f64(measured.unwrap_or(20_000.0) / 1000.0);
    let patience = budget * 4 / 3;
    let open_max = number("SURGE_OPEN").unwrap_or(1024.0) as u64 / CONNECTIONS;
    let redis = Redis::start();
    let service = start(&redis, budget);
    let messages: Vec<_> = (0..CYCLE)
        .map(|number| match number {
            0 => message("narrow", "all"),
            _ => message("wide", &format!("user{number}")),
        })
        .collect();
    let mut clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| RawClient::connect(service.grpc, messages.clone(), open_max))
        .collect();

    let peak = Phase::run("peak", &mut clients, time, |client| {
        client.send_in_turn(128, time);
        0
    });
    let decided = decided(&service);
    let rate = decided / time.as_secs_f64() / CONNECTIONS as f64;
    let at = |name, clients: &mut [RawClient], rate| {
        Phase::run(name, clients, time, move |client| client.send_at(rate, time))
    };
    let paced = at("paced", &mut clients, rate / 5.0);
    let surge = at("surge", &mut clients, rate * 3.0);
    let after = at("paced again", &mut clients, rate / 5.0);

    let calls: Vec<_> = clients.into_iter().flat_map(RawClient::finish).collect();
    let goodput = [peak, paced, surge, after].map(|phase| phase.goodput(&calls, patience));
    println!("goodput in the surge: {:.0} % of the peak", 100.0 * goodput[2] / goodput[0]);
    let narrow = |answer| {
        let calls = calls.iter().filter(|call| call.number % CYCLE == 0);
        calls.filter(|call| call.answer == answer).count()
    };
    let (admitted, denied) = (narrow(RawAnswer::Ok), narrow(RawAnswer::OverLimit));
    let failed = narrow(RawAnswer::Failed);
    let counted = redis.count("narrow=all") as usize;
    println!("a limit of {NARROW}: {admitted} admitted, {failed} answered by on_store_failure");
    // What was answered too late for the budget may have been charged.
    assert!(admitted <= counted && counted <= admitted + failed, "{counted} counted");
    assert_eq!(counted, NARROW.min(admitted + denied + failed), "{admitted}, {denied}, {failed}");
    let undecided = calls.iter().filter(|call| call.answer == RawAnswer::Failed).count();
    assert!(measured.is_some() || undecided == 0, "{undecided} of {} calls", calls.len());
}

/// Number of decisions so far.
fn decided(service: &Service) -> f64 {
    service.metric("ratelimit_decisions_total{")
}
