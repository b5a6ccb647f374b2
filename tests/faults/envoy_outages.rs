//! Outages of Redis under load, as a client of Envoy sees them.
//!
//! Envoy passes a request whose call takes too long or fails, whatever the rule says. It waits `ENVOY_WAITS_MS` (2000),
//! a hundred times its default, since the test machine is shared; the decision budget is three quarters of that. Clients
//! make up to `ENVOY_RATE` (500) requests a second.

use std::io::BufReader;

use crate::support::{envoy::Envoy, fault_proxy::Connect, prelude::*};

/// By then the breaker is open.
const OPENS_WITHIN: Duration = Duration::from_millis(50);

const CLIENTS: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disruption {
    Killed,
    Stopped,
    BlackHole,
}

/// What came of the requests that were sent in an outage, once it had lasted 50 ms, and of the later ones.
struct EnvoySaw {
    statuses: Vec<u16>,
    /// Answers that Envoy counts as errors.
    errors: u64,
    /// Calls that Envoy gave up.
    timeouts: u64,
    /// Requests per second before the outage.
    rate: f64,
    /// The status and the time after the outage of each later request.
    later: Vec<(u16, Duration)>,
}

/// Makes requests on one connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(envoy: SocketAddr) -> Self {
        let stream = TcpStream::connect(envoy).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// The status of a request.
    fn get(&mut self) -> u16 {
        self.0.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-user: alice\r\n\r\n").unwrap();
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            match line.trim_end().split_once(' ') {
                Some((_, rest)) if status.is_none() => status = rest[..3].parse().ok(),
                Some(("content-length:", bytes)) => length = bytes.parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        status.expect("a status line")
    }
}

/// Makes requests all the time, through an outage of a second, and until service is back.
fn seen_in(outage: Disruption, mode: &str) -> EnvoySaw {
    let rules = format!(
        "
domain: envoy
descriptors:
  - key: generic_key
    value: api
    descriptors:
      - key: user
        rate_limit: {{ unit: year, requests_per_unit: 1000000, on_store_failure: {mode} }}
"
    );
    let waits = Duration::from_millis(number("ENVOY_WAITS_MS", 2000));
    let pause = Duration::from_secs(1) * CLIENTS / number("ENVOY_RATE", 500) as u32;
    let budget = format!("{}ms", waits.as_millis() * 3 / 4);
    let mut redis = Redis::start();
    let proxy = FaultProxy::start(redis.port, 1);
    let store = if outage == Disruption::BlackHole { proxy.url.clone() } else { redis.url() };
    let service = Service::with(&rules).on(&store).flags(&["--decision-budget", &budget]).ready();
    let envoy = Envoy::start_waiting(service.grpc, &format!("{}s", waits.as_secs_f64()));
    wait_until("a call is counted", || {
        envoy.get(b"alice");
        redis.keys().iter().any(|key| key.contains("user=alice"))
    });
    let counts = || {
        let errors = envoy.count("cluster.upstream.ratelimit.error");
        (errors, envoy.count("cluster.rls.upstream_rq_timeout"))
    };

    let (end, ledger) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (began, before, after, ends, ended) = thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (end, ledger, address) = (&end, &ledger, envoy.public);
            scope.spawn(move || {
                let mut client = Client::connect(address);
                let mut due = Instant::now() + pause / CLIENTS * number;
                while !end.load(Ordering::Relaxed) {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let sent = Instant::now();
                    let status = client.get();
                    ledger.lock().unwrap().push((sent, Instant::now(), status));
                    due = (due + pause).max(sent);
                }
            });
        }
        thread::sleep(Duration::from_millis(500));
        match outage {
            Disruption::Killed => redis.stop(),
            Disruption::Stopped => redis.signal("STOP"),
            Disruption::BlackHole => proxy.set(Faults {
                connect: Connect::Unreachable,
                requests: Flow::Drop,
                replies: Flow::Drop,
                ..Faults::default()
            }),
        }
        let began = Instant::now();
        // Every call from before the breaker opened has ended.
        thread::sleep(OPENS_WITHIN + waits);
        let before = counts();
        thread::sleep(Duration::from_secs(1));
        let after = counts();
        let ends = Instant::now();
        match outage {
            Disruption::Killed => redis.start_again(),
            Disruption::Stopped => redis.signal("CONT"),
            Disruption::BlackHole => proxy.heal(),
        }
        let ended = Instant::now();
        wait_until("full service is back", || {
            let later = ledger.lock().unwrap();
            let mut later = later.iter().rev().take(CLIENTS as usize);
            later.all(|(sent, _, status)| *sent > ended && *status == 200)
        });
        end.store(true, Ordering::Relaxed);
        (began, before, after, ends, ended)
    });
    let mut ledger = ledger.into_inner().unwrap();
    ledger.sort_unstable();
    let down = ledger.iter().filter(|(sent, at, _)| *sent >= began + OPENS_WITHIN && *at <= ends);
    let first = ledger[0].0;
    let early = ledger.iter().filter(|(sent, ..)| *sent < began).count();
    let rate = early as f64 / (began - first).as_secs_f64();
    let later = ledger.iter().filter(|(_, at, _)| *at > ended);
    EnvoySaw {
        statuses: down.map(|(.., status)| *status).collect(),
        rate,
        errors: after.0 - before.0,
        timeouts: after.1 - before.1,
        later: later.map(|(_, at, status)| (*status, *at - ended)).collect(),
    }
}

const DISRUPTIONS: [Disruption; 3] =
    [Disruption::Killed, Disruption::Stopped, Disruption::BlackHole];

#[test]
fn with_deny_no_request_passes_in_an_outage_and_service_returns_with_redis() {
    for outage in DISRUPTIONS {
        let seen = seen_in(outage, "deny");
        let passed = seen.statuses.iter().filter(|status| **status == 200).count();
        let denied = seen.later.iter().filter(|(status, _)| *status != 200);
        let back = denied.map(|(_, at)| *at).max().unwrap_or_default();
        println!(
            "{outage:?}: {passed} of {} requests passed; back {back:?} later; {:.0}/s before",
            seen.statuses.len(),
            seen.rate
        );
        assert!(!seen.statuses.is_empty(), "{outage:?}");
        assert_eq!(passed, 0, "{outage:?}");
    }
}

/// Envoy passes these requests too, but knows and counts why.
#[test]
fn with_error_envoy_gets_unavailable_in_an_outage_and_never_waits_in_vain() {
    for outage in DISRUPTIONS {
        let seen = seen_in(outage, "error");
        let asked = seen.statuses.len();
        println!(
            "{outage:?}: {asked} requests, {} errors, {} timeouts; {:.0}/s before",
            seen.errors, seen.timeouts, seen.rate
        );
        assert!(seen.errors > 0, "{outage:?}");
        assert_eq!(seen.timeouts, 0, "{outage:?}");
    }
}
