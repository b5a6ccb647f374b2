//! Recovery where a connection to Redis takes long to open, as with TLS across zones, though answers are fast.
//! `SLOW_CONNECTS=1 cargo test --release --locked --test faults slow_connects -- --nocapture` prints the table of
//! docs/internals/reliability.md.

use crate::support::{
    fault_proxy::Cut,
    prelude::*,
    raw_load::{RawAnswer, RawCall, RawClient},
    sentinels::{self, sentinel_of_port},
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 4000000000 } }
";

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// None: the service starts under load.
    ColdStart,
    /// Redis stops for 300 ms.
    Stall,
    /// All connections end.
    Cut,
    Restart,
    /// Sentinel names another master.
    Failover,
}

const FAULTS: [Fault; 5] =
    [Fault::ColdStart, Fault::Stall, Fault::Cut, Fault::Restart, Fault::Failover];

/// How long recovery is waited for. It takes the time of a connection and a second.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);

/// Two servers behind proxies that delay what is sent first, and a Sentinel that names one of them.
struct Servers {
    redises: [Redis; 2],
    proxies: [FaultProxy; 2],
    sentinel: Redis,
}

impl Servers {
    fn start(connect: Duration) -> Self {
        let redises = [Redis::start(), Redis::start()];
        let proxies = [0, 1].map(|index| FaultProxy::start(redises[index].port, 1));
        for proxy in &proxies {
            proxy.delay_connects(connect);
        }
        let sentinel = sentinel_of_port(proxies[0].port());
        Self { redises, proxies, sentinel }
    }

    fn url(&self, fault: Fault) -> String {
        match fault {
            Fault::Failover => {
                format!("redis+sentinel://127.0.0.1:{}/{}", self.sentinel.port, sentinels::NAME)
            }
            _ => self.proxies[0].url.clone(),
        }
    }

    /// Stages a fault, and ends it.
    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::ColdStart => {}
            Fault::Stall => {
                self.redises[0].signal("STOP");
                thread::sleep(Duration::from_millis(300));
                self.redises[0].signal("CONT");
            }
            Fault::Cut => self.proxies[0].cut(Cut::Rst),
            Fault::Restart => {
                self.redises[0].stop();
                self.redises[0].start_again();
            }
            Fault::Failover => {
                let port = self.proxies[1].port().to_string();
                self.sentinel.query::<()>(&["SENTINEL", "REMOVE", sentinels::NAME]);
                let monitor = ["SENTINEL", "MONITOR", sentinels::NAME, "127.0.0.1", &port, "1"];
                self.sentinel.query::<()>(&monitor);
                self.proxies[0].cut(Cut::Rst);
                self.redises[0].stop();
            }
        }
    }
}

/// How long after the end of the fault the last call failed before half a second in which at most this share of the calls
/// did, at this rate of calls per second; `None` if there was none when [`RECOVERS_WITHIN`] was over.
fn recovery(connect: Duration, rate: f64, fault: Fault, may_fail: f64) -> Option<Duration> {
    let mut servers = Servers::start(connect);
    let url = servers.url(fault);
    let service = Service::with(RULES).on(&url).flags(&["--decision-budget", "40ms"]).start();
    let message = shop("user=a").encode_to_vec();
    let calls = |time: Duration| {
        let mut client = RawClient::connect(service.grpc, vec![message.clone()], 8_000);
        client.send_at(rate, time);
        client.finish()
    };
    if !matches!(fault, Fault::ColdStart) {
        service.wait_until_ready();
        calls(Duration::from_millis(500));
    }
    let (before, ended) = thread::scope(|scope| {
        let load = scope.spawn(|| calls(Duration::from_secs(1)));
        thread::sleep(Duration::from_millis(100));
        servers.fail(fault);
        let ended = Instant::now();
        (load.join().unwrap(), ended)
    });
    let is_failed = |call: &&RawCall| call.answer == RawAnswer::Failed;
    let mut last = before.iter().filter(is_failed).map(|call| call.answered).max();
    while ended.elapsed() < RECOVERS_WITHIN {
        let more = calls(Duration::from_millis(500));
        let failed: Vec<Instant> =
            more.iter().filter(is_failed).map(|call| call.answered).collect();
        if failed.len() as f64 <= may_fail * more.len() as f64 {
            return Some(last.unwrap_or(ended).saturating_duration_since(ended));
        }
        last = failed.into_iter().max();
    }
    None
}

#[test]
fn calls_are_decided_again_after_every_fault_however_long_connecting_takes() {
    let measured = std::env::var("SLOW_CONNECTS").is_ok();
    let (connects, rates): (&[u64], &[f64]) = match measured {
        true => (&[0, 20, 60, 250, 900], &[20.0, 250.0, 2000.0]),
        false => (&[60, 900], &[250.0]),
    };
    for connect in connects {
        for rate in rates {
            let connect = Duration::from_millis(*connect);
            // A machine that is busy beside the test fails single calls at their budget; without recovery all fail.
            let may_fail = if measured { 0.0 } else { 0.5 };
            let run = |fault| recovery(connect, *rate, fault, may_fail);
            let times: Vec<_> = match measured {
                true => FAULTS.map(run).into(),
                // These runs wait most of the time.
                false => thread::scope(|scope| {
                    let runs = FAULTS.map(|fault| scope.spawn(move || run(fault)));
                    runs.into_iter().map(|run| run.join().unwrap()).collect()
                }),
            };
            println!("| {connect:?} | {rate} | {times:.2?} |");
            assert!(times.iter().all(Option::is_some), "{FAULTS:?}: {times:?}");
        }
    }
}
