//! One turn of one backend.

use std::{cell::RefCell, error::Error, future, sync::atomic::AtomicBool, thread, time::Duration};

use tokio::runtime::Builder;

use tollkeeper::bench::{self, Calls, Distribution, Load, Pace, Report};
use tollkeeper_proto::{Entry, RateLimitDescriptor, RateLimitRequest};

use crate::{
    baseline, batch_load, cpu,
    process::{Result, Service},
    processes::Backends,
    sample::Sample,
    scenarios::{Backend, LoadShape, Scenario},
};

/// Duration of the calls before the measurement, so that connections and caches are warm.
const WARMUP: Duration = Duration::from_millis(100);

/// Calls under way when the maximum rate is measured.
const PLENTY: usize = 256;

pub(crate) fn measure(
    scenario: &Scenario,
    backend: Backend,
    backends: &Backends,
    slice: Duration,
    maximum: Option<f64>,
) -> Result<Sample> {
    let Some(service) = backends.service(backend) else {
        return measure_redis(scenario, backend, backends, slice);
    };
    let pace = match (scenario.load, maximum) {
        (LoadShape::UnderWay(count), _) => Pace::Closed(count),
        (LoadShape::Paced(rate), _) => Pace::Open(rate),
        (LoadShape::HalfOfMaximum, Some(maximum)) => Pace::Open(maximum / 2.0),
        (LoadShape::HalfOfMaximum, None) => {
            Pace::Open(run(service, scenario, Pace::Closed(PLENTY), slice)?.per_second() / 2.0)
        }
    };
    run(service, scenario, pace, WARMUP)?;
    if backend == Backend::Replicas {
        return measure_replicas(scenario, backends, slice);
    }
    let service_before = cpu::used(service.process.id())?;
    let redis_before = used_by_redis(backends, backend)?;
    let Measured { decisions, per_second, quantiles_us: [p50_us, p99_us, p999_us], failed } =
        match scenario.batch {
            Some(size) => batches(service, scenario, size, slice)?,
            None => calls(service, scenario, pace, slice)?,
        };
    let service_us = micros_each(cpu::used(service.process.id())? - service_before, decisions);
    let redis_us = match redis_before {
        Some(before) => {
            let after = used_by_redis(backends, backend)?.unwrap_or(before);
            micros_each(after - before, decisions)
        }
        None => f64::NAN,
    };
    Ok(Sample { service_us, redis_us, per_second, p50_us, p99_us, p999_us, failed })
}

/// What the client has seen.
struct Measured {
    decisions: f64,
    per_second: f64,
    /// Of a half, 99 % and 99.9 % of all messages.
    quantiles_us: [f64; 3],
    /// In percent.
    failed: f64,
}

fn calls(service: &Service, scenario: &Scenario, pace: Pace, slice: Duration) -> Result<Measured> {
    let report = run(service, scenario, pace, slice)?;
    // With commits, every other call is one.
    let calls_each = if scenario.used.is_some() { 2.0 } else { 1.0 };
    let decisions = report.decisions() as f64;
    Ok(Measured {
        decisions: decisions / calls_each,
        per_second: report.per_second() / calls_each,
        quantiles_us: [0.5, 0.99, 0.999].map(|part| report.quantile(part).as_secs_f64() * 1e6),
        failed: 100.0 * (1.0 - decisions / (report.calls() + report.not_sent) as f64),
    })
}

/// Batches of `size` calls.
fn batches(
    service: &Service,
    scenario: &Scenario,
    size: usize,
    slice: Duration,
) -> Result<Measured> {
    let LoadShape::UnderWay(count) = scenario.load else { return Err("not under way".into()) };
    let ended = AtomicBool::new(false);
    let latencies = RefCell::new(Vec::new());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let decisions = runtime.block_on(async {
        let channel = batch_load::connect(&service.addr).await?;
        let load = batch_load::load(&channel, size, count, &ended, &latencies);
        let (decisions, ()) = tokio::join!(load, batch_load::after(slice, &ended));
        Ok::<_, Box<dyn Error>>(decisions as f64)
    })?;
    let mut latencies = latencies.into_inner();
    latencies.sort_unstable();
    let longest_us = |part| {
        let longest = latencies.iter().nth_back(latencies.len() / part);
        longest.map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    };
    let sent = (latencies.len() * size) as f64;
    Ok(Measured {
        decisions,
        per_second: decisions / slice.as_secs_f64(),
        quantiles_us: [2, 100, 1000].map(longest_us),
        failed: 100.0 * (1.0 - decisions / sent),
    })
}

/// Redis on its own.
fn measure_redis(
    scenario: &Scenario,
    backend: Backend,
    backends: &Backends,
    slice: Duration,
) -> Result<Sample> {
    baseline(scenario, backend, backends, WARMUP)?;
    let before = cpu::used(backends.redis.id())?;
    let sample = baseline(scenario, backend, backends, slice)?;
    let used = cpu::used(backends.redis.id())? - before;
    let redis_us = micros_each(used, sample.per_second * slice.as_secs_f64());
    Ok(Sample { service_us: f64::NAN, redis_us, ..sample })
}

fn baseline(
    scenario: &Scenario,
    backend: Backend,
    backends: &Backends,
    slice: Duration,
) -> Result<Sample> {
    match backend {
        Backend::Script => baseline::script(backends.redis_port, slice),
        _ => baseline::pairs(backends.redis_port, scenario, slice),
    }
}

/// Two services at once, each with half of the calls under way.
fn measure_replicas(scenario: &Scenario, backends: &Backends, slice: Duration) -> Result<Sample> {
    let LoadShape::UnderWay(count) = scenario.load else { return Err("not under way".into()) };
    let services = backends.replicas();
    let pace = Pace::Closed(count / services.len().max(1));
    let services_before = used_by_all(&services)?;
    let redis_before = cpu::used(backends.redis.id())?;
    let decisions = thread::scope(|scope| {
        let mut runs = Vec::new();
        for service in &services {
            runs.push(scope.spawn(|| decisions(service, scenario, pace, slice)));
        }
        let mut sum = 0.0;
        for run in runs {
            sum += run.join().map_err(|_| "a run has ended early")??;
        }
        Ok::<f64, String>(sum)
    })?;
    Ok(Sample {
        service_us: micros_each(used_by_all(&services)? - services_before, decisions),
        redis_us: micros_each(cpu::used(backends.redis.id())? - redis_before, decisions),
        per_second: decisions / slice.as_secs_f64(),
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        p999_us: f64::NAN,
        failed: 0.0,
    })
}

fn decisions(
    service: &Service,
    scenario: &Scenario,
    pace: Pace,
    time: Duration,
) -> std::result::Result<f64, String> {
    let report = run(service, scenario, pace, time).map_err(|error| error.to_string())?;
    Ok(report.decisions() as f64)
}

/// Processor time of all Redis servers of a backend; `None` if it has none.
fn used_by_redis(backends: &Backends, backend: Backend) -> Result<Option<u64>> {
    let servers = backends.redis_of(backend);
    if servers.is_empty() {
        return Ok(None);
    }
    servers.iter().map(|server| cpu::used(server.id())).sum::<Result<u64>>().map(Some)
}

fn used_by_all(services: &[&Service]) -> Result<u64> {
    services.iter().map(|service| cpu::used(service.process.id())).sum()
}

fn micros_each(nanos: u64, decisions: f64) -> f64 {
    nanos as f64 / 1e3 / decisions
}

fn run(service: &Service, scenario: &Scenario, pace: Pace, time: Duration) -> Result<Report> {
    let load = Load {
        tls: None,
        addr: service.addr.clone(),
        calls: Calls::new(&request(scenario), scenario.keys, Distribution::Uniform)
            .committing(scenario.used),
        pace,
        connections: scenario.connections,
        threads: 1,
        warmup: Duration::ZERO,
        duration: time,
        calls_max: None,
    };
    let report = bench::run(&load, future::pending(), |_| {})?;
    match report.decisions() {
        0 => Err(format!("{}: no decision: {:?}", scenario.name, report.errors).into()),
        _ => Ok(report),
    }
}

fn request(scenario: &Scenario) -> RateLimitRequest {
    let mut request = RateLimitRequest { domain: "compare".to_owned(), ..Default::default() };
    for (key, value) in scenario.descriptors {
        let entry = Entry { key: (*key).into(), value: (*value).into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        request.descriptors.push(descriptor);
    }
    request
}
