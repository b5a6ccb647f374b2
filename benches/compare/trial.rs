//! One turn of one backend.

use std::{future, thread, time::Duration};

use tollkeeper::{
    bench::{self, Calls, Distribution, Load, Pace, Report},
    rls::pb::{Entry, RateLimitDescriptor, RateLimitRequest},
};

use crate::{
    baseline, cpu,
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
    let report = run(service, scenario, pace, slice)?;
    // With commits, every other call is one.
    let calls_each = if scenario.used.is_some() { 2.0 } else { 1.0 };
    let decisions = report.decisions() as f64;
    let service_us =
        micros_each(cpu::used(service.process.id())? - service_before, decisions / calls_each);
    let redis_us = match redis_before {
        Some(before) => {
            let after = used_by_redis(backends, backend)?.unwrap_or(before);
            micros_each(after - before, decisions / calls_each)
        }
        None => f64::NAN,
    };
    Ok(Sample {
        service_us,
        redis_us,
        per_second: report.per_second() / calls_each,
        p50_us: quantile_us(&report, 0.5),
        p99_us: quantile_us(&report, 0.99),
        p999_us: quantile_us(&report, 0.999),
        failed: 100.0 * (1.0 - decisions / (report.calls() + report.not_sent) as f64),
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

fn quantile_us(report: &Report, part: f64) -> f64 {
    report.quantile(part).as_secs_f64() * 1e6
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
