//! One turn of one backend.

use std::{future, thread, time::Duration};

use tollkeeper::{
    bench::{self, Calls, Distribution, Load, Pace, Report},
    rls::pb::{Entry, RateLimitDescriptor, RateLimitRequest},
};

use crate::{
    Result, baseline, cpu,
    processes::{Service, Subjects},
    scenarios::{Backend, LoadShape, Scenario},
};

/// What one turn has shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// Processor time of the service for a decision, in microseconds; NaN where there is no service.
    pub(crate) service_us: f64,
    /// The same of Redis.
    pub(crate) redis_us: f64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// The part of the calls, in percent, that got no decision or could not be made.
    pub(crate) failed: f64,
}

/// Calls before those that count: connections, caches and the store's own warm up.
const WARMUP: Duration = Duration::from_millis(100);

/// Under way where the maximum is asked for.
const PLENTY: usize = 256;

pub(crate) fn measure(
    scenario: &Scenario,
    backend: Backend,
    backends: &Subjects,
    slice: Duration,
    maximum: Option<f64>,
) -> Result<Sample> {
    let redis = backends.redis_port;
    let Some(service) = backends.service(backend) else {
        let measure = |slice| match backend {
            Backend::Script => baseline::script(redis, slice),
            _ => baseline::pairs(redis, scenario, slice),
        };
        measure(WARMUP)?;
        let before = cpu::used(backends.redis.id())?;
        let sample = measure(slice)?;
        let used = cpu::used(backends.redis.id())? - before;
        let decisions = sample.per_second * slice.as_secs_f64();
        let redis_us = used as f64 / 1e3 / decisions;
        return Ok(Sample { service_us: f64::NAN, redis_us, ..sample });
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
        return replicas(scenario, backends, slice);
    }
    let ids = [service.process.id(), backends.redis.id()];
    let before = ids.map(cpu::used);
    let report = run(service, scenario, pace, slice)?;
    let after = ids.map(cpu::used);
    let decisions = report.decisions() as f64;
    let [service_us, redis_us] = used(before, after)?.map(|nanos| nanos as f64 / 1e3 / decisions);
    let redis_us = if backend == Backend::Redis { redis_us } else { f64::NAN };
    let micros = |part| report.quantile(part).as_secs_f64() * 1e6;
    Ok(Sample {
        service_us,
        redis_us,
        per_second: report.per_second(),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        failed: 100.0 * (1.0 - decisions / (report.calls() + report.not_sent) as f64),
    })
}

/// Two services at once, each with half of the calls under way.
fn replicas(scenario: &Scenario, backends: &Subjects, slice: Duration) -> Result<Sample> {
    let services = backends.replicas();
    let LoadShape::UnderWay(count) = scenario.load else { return Err("not under way".into()) };
    let pace = Pace::Closed(count / services.len().max(1));
    let ids = services.iter().map(|it| it.process.id()).chain([backends.redis.id()]);
    let used = || ids.clone().map(cpu::used).collect::<Result<Vec<u64>>>();
    let before = used()?;
    let decisions: f64 = thread::scope(|scope| {
        let run =
            |service| move || run(service, scenario, pace, slice).map_err(|it| it.to_string());
        let runs: Vec<_> = services.iter().map(|it| scope.spawn(run(*it))).collect();
        let reports =
            runs.into_iter().map(|run| run.join().map_err(|_| "a run has ended early")?);
        reports
            .map(|report| report.map(|it| it.decisions() as f64))
            .sum::<std::result::Result<f64, String>>()
    })?;
    let mut used = used()?.into_iter().zip(before).map(|(after, before)| after - before);
    let micros = |nanos: u64| nanos as f64 / 1e3 / decisions;
    let redis_us = used.next_back().map_or(f64::NAN, micros);
    let per_second = decisions / slice.as_secs_f64();
    let [p50_us, p99_us, p999_us] = [f64::NAN; 3];
    let service_us = micros(used.sum());
    Ok(Sample { service_us, redis_us, per_second, p50_us, p99_us, p999_us, failed: 0.0 })
}

fn used(before: [Result<u64>; 2], after: [Result<u64>; 2]) -> Result<[u64; 2]> {
    let ([service_before, redis_before], [service, redis]) = (before, after);
    Ok([service? - service_before?, redis? - redis_before?])
}

fn run(service: &Service, scenario: &Scenario, pace: Pace, time: Duration) -> Result<Report> {
    let load = Load {
        addr: service.addr.clone(),
        calls: Calls::new(&request(scenario), scenario.keys, Distribution::Uniform),
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
    let descriptor = |(key, value): &(&'static str, &'static str)| RateLimitDescriptor {
        entries: vec![Entry { key: (*key).into(), value: (*value).into() }],
        ..Default::default()
    };
    RateLimitRequest {
        domain: "compare".to_owned(),
        descriptors: scenario.descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}
