//! The end of a service under load: clients that honour GOAWAY, with another replica to go to, lose no call.
//!
//! `TOLLKEEPER_EXITS=200 cargo test --release --test faults loses_no_call -- --nocapture` ends as many services.

use std::process::Child;

use crate::support::{
    envoy::{Envoy, exchange},
    http2::{self, Frames},
    prelude::*,
};

/// How often a service is ended.
fn exits() -> u64 {
    number("TOLLKEEPER_EXITS", 3)
}

/// grpcio, another implementation than ours: it calls until its stdin ends, and a hundred times at least, and prints its failures and its calls.
const CALLER: &str = "
import sys, threading, grpc
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import RateLimitDescriptor, RateLimitDescriptorEntry
from envoy_data_plane.envoy.service.ratelimit.v3 import RateLimitRequest
request = bytes(RateLimitRequest(domain='shop', descriptors=[RateLimitDescriptor(
    entries=[RateLimitDescriptorEntry(key='calls', value='a')])]))
calls, failures, ended = [0], [], threading.Event()
def run(ask):
    while not ended.is_set() or calls[0] + len(failures) <= 100:
        try:
            ask(request, timeout=30, wait_for_ready=True)
            calls[0] += 1
        except grpc.RpcError as error:
            failures.append((error.code().name, error.details()))
# The authority of several addresses would be no host.
options = [('grpc.default_authority', 'tollkeeper')]
with grpc.insecure_channel(sys.argv[1], options) as channel:
    ask = channel.unary_unary('/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit', bytes, bytes)
    threads = [threading.Thread(target=run, args=(ask,)) for _ in range(8)]
    for thread in threads: thread.start()
    print('started', flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads: thread.join()
print(len(failures), calls[0], failures[:3])
";

const RULES: &str = "
domain: shop
descriptors:
  - { key: calls, rate_limit: { unit: year, requests_per_unit: 4000000000 } }
";

/// Starts eight threads of grpcio that call one of these addresses.
fn grpcio(addresses: &str) -> Child {
    let mut caller = Command::new(tool("python"))
        .args(["-c", CALLER, addresses])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    caller.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    caller
}

/// Ends the caller; returns what it prints.
fn end(mut caller: Child) -> String {
    drop(caller.stdin.take());
    String::from_utf8(caller.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
}

#[track_caller]
fn none_failed(report: &str) {
    let mut words = report.split_whitespace();
    assert_eq!(words.next(), Some("0"), "{report}");
    let calls: u64 = words.next().unwrap().parse().unwrap();
    println!("{calls} calls, none failed");
    assert!(calls > 100, "{report}");
}

#[test]
fn grpcio_loses_no_call_when_services_end_one_after_the_other() {
    let redis = Redis::start();
    let start = || Service::with(RULES).on(&redis.url()).flags(&["--drain", "50ms"]).ready();
    for _ in 0..exits() {
        let (mut leaving, staying) = (start(), start());
        let caller = grpcio(&format!("ipv4:{},{}", leaving.grpc, staying.grpc));
        thread::sleep(Duration::from_millis(300));
        leaving.end();
        assert!(!leaving.log().contains("did not end"), "{}", leaving.log());
        thread::sleep(Duration::from_millis(200));
        none_failed(&end(caller));
    }
}

#[test]
fn grpcio_loses_no_call_when_its_connections_reach_their_age() {
    let service = Service::with(RULES).flags(&["--connection-age", "1s"]).ready();
    let caller = grpcio(&format!("ipv4:{}", service.grpc));
    thread::sleep(Duration::from_secs(4));
    none_failed(&end(caller));
}

/// Requests of each thread to Envoy, however slow the machine is.
const REQUESTS_MIN: u32 = 20;

/// Envoy asks each replica for its health, as it does behind a headless Service.
#[test]
fn envoy_loses_no_call_when_a_service_ends() {
    let redis = Redis::start();
    let start =
        || Service::with("domain: envoy").on(&redis.url()).flags(&["--drain", "1s"]).ready();
    for _ in 0..exits() {
        let (mut leaving, staying) = (start(), start());
        let envoy = envoy(leaving.grpc, staying.grpc);
        eventually("both replicas are healthy", || (status(envoy.public)? == 200).then_some(()));
        let ended = Arc::new(AtomicBool::new(false));
        let requests = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut requests = 0;
                        while requests < REQUESTS_MIN || !ended.load(Ordering::Relaxed) {
                            assert_eq!(status(envoy.public), Some(200));
                            requests += 1;
                        }
                        requests
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(300));
            leaving.end();
            thread::sleep(Duration::from_millis(200));
            ended.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>()
        });
        println!("{requests} requests through Envoy, none failed");
        assert!(!leaving.log().contains("did not end"), "{}", leaving.log());
    }
}

/// The status of a request to Envoy; `None` while it does not listen.
fn status(address: SocketAddr) -> Option<u16> {
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    exchange(address, request)?.split(' ').nth(1)?.parse().ok()
}

/// An Envoy that denies what fails, with these two replicas.
fn envoy(first: SocketAddr, second: SocketAddr) -> Envoy {
    let folder = TempDir::new().unwrap();
    let port = |address: SocketAddr| address.port().to_string();
    let endpoint = |port: &str| {
        format!(
            "        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}\n"
        )
    };
    let health = "    health_checks:
    - timeout: 5s
      interval: 0.1s
      no_traffic_interval: 0.1s
      unhealthy_threshold: 1
      healthy_threshold: 1
      grpc_health_check: {}
    load_assignment:
      cluster_name: rls
";
    let config = include_str!("../support/envoy.yaml")
        .replace("@FOLDER@", folder.path().to_str().unwrap())
        .replace("@TIMEOUT@", "5s")
        .replace(
            "              domain: envoy\n",
            "              domain: envoy\n              failure_mode_deny: true\n",
        )
        .replace("    load_assignment:\n      cluster_name: rls\n", health)
        .replace(&endpoint("@RLS_PORT@"), &(endpoint(&port(first)) + &endpoint(&port(second))));
    assert!(config.contains("failure_mode_deny") && config.contains(&port(second)));
    Envoy::run(&config, folder)
}

/// A client that never answers the PING after which a connection may end.
#[test]
fn a_client_that_ignores_goaway_delays_the_exit_by_the_deadline_only() {
    let mut service = Service::shop().ready();
    let mut client = TcpStream::connect(service.grpc).unwrap();
    let call = http2::opening().into_iter().chain(Frames::default().headers().bytes());
    client.write_all(&call.collect::<Vec<_>>()).unwrap();
    service.wait_for_metric("ratelimit_connections{listener=\"grpc\"} 1");
    let began = Instant::now();
    service.end();
    assert!(service.log().contains("were closed"), "{}", service.log());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_port_in_use_ends_the_process_with_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--grpc-addr", "--http-addr", "--admin-addr"] {
        let (code, _, stderr) = run(serve().args([flag, &address]));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(&format!("{flag} {address}: ")), "{stderr}");
    }
}
