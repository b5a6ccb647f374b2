//! The targets: upper bounds on measured costs, and whether they are met.

use crate::{
    report::{Table, TableStyle, line},
    sample::Sample,
    scenarios::Backend::{
        self, ClusterOfOne, ClusterOfThree, Empty, EmptyOnWorkers, FewRules, ManyRules, Memory,
        NoSelfAudit, NoTopKeys, OneInHundred, Pairs, Recording, RecordingOnRedis, Redis, Script,
        Tls, TonicMemory, TonicRedis, TunedRatelimit, Unsampled, WithCandidate,
    },
};

/// One number of the table.
type Number = (&'static str, Backend, fn(&Sample) -> f64);

const SERVICE: fn(&Sample) -> f64 = |sample| sample.service_us;
const REDIS: fn(&Sample) -> f64 = |sample| sample.redis_us;
const P50: fn(&Sample) -> f64 = |sample| sample.p50_us;
const P999: fn(&Sample) -> f64 = |sample| sample.p999_us;

/// An upper bound on a number.
struct Target {
    name: &'static str,
    number: Number,
    /// The bound on the ratio of `number` to the sum of `of`; in microseconds where `of` is empty.
    at_most: f64,
    of: &'static [Number],
}

const fn target(name: &'static str, number: Number, at_most: f64, of: &'static [Number]) -> Target {
    Target { name, number, at_most, of }
}

const TARGETS: &[Target] = &[
    target(
        "service CPU a decision in batches of 1,000, memory, us",
        ("batch of 1,000", Memory, SERVICE),
        1.0,
        &[],
    ),
    target(
        "service CPU a decision in batches of 1,000, Redis store, us",
        ("batch of 1,000", Redis, SERVICE),
        2.5,
        &[],
    ),
    target(
        "Redis CPU a decision in batches of 1,000, us",
        ("batch of 1,000", Redis, REDIS),
        2.0,
        &[],
    ),
    target(
        "service CPU, Redis store, spread, 64 under way / empty handler's",
        ("spread 64", Redis, SERVICE),
        1.0,
        &[("spread 64", Empty, SERVICE)],
    ),
    target(
        "service CPU, Redis store, spread, 256 under way / empty handler's",
        ("spread 256", Redis, SERVICE),
        0.8,
        &[("spread 256", Empty, SERVICE)],
    ),
    target(
        "service CPU, memory, spread, 64 under way / empty handler's",
        ("spread 64", Memory, SERVICE),
        0.8,
        &[("spread 64", Empty, SERVICE)],
    ),
    target(
        "service CPU, Redis store, over limit, 64 under way / empty handler's",
        ("over 64", Redis, SERVICE),
        0.8,
        &[("over 64", Empty, SERVICE)],
    ),
    target(
        "Redis CPU, spread, 64 under way / INCRBY+EXPIRE",
        ("spread 64", Redis, REDIS),
        0.40,
        &[("spread 64", Pairs, REDIS)],
    ),
    target(
        "Redis CPU, spread, 256 under way / INCRBY+EXPIRE",
        ("spread 256", Redis, REDIS),
        0.28,
        &[("spread 256", Pairs, REDIS)],
    ),
    target(
        "Redis CPU, one key, 64 under way / INCRBY+EXPIRE",
        ("hot 64", Redis, REDIS),
        0.12,
        &[("hot 64", Pairs, REDIS)],
    ),
    target(
        "Redis CPU, one key, 256 under way / INCRBY+EXPIRE",
        ("hot 256", Redis, REDIS),
        0.06,
        &[("hot 256", Pairs, REDIS)],
    ),
    target(
        "Redis CPU, load B / empty handler's service CPU",
        ("load B", Redis, REDIS),
        0.10,
        &[("load B", Empty, SERVICE)],
    ),
    target(
        "Redis CPU, three descriptors, 64 under way / three INCRBY+EXPIRE",
        ("three 64", Redis, REDIS),
        0.45,
        &[("three 64", Pairs, REDIS)],
    ),
    target(
        "Redis CPU, take with a token, 64 under way / the same without hold",
        ("take 64", Redis, REDIS),
        1.02,
        &[("spread 64", Redis, REDIS)],
    ),
    target(
        "service CPU, Redis store, take with a token, 64 under way / the same without hold",
        ("take 64", Redis, SERVICE),
        1.05,
        &[("spread 64", Redis, SERVICE)],
    ),
    target(
        "Redis CPU, take and commit, 64 under way / INCRBY+EXPIRE",
        ("commit 64", Redis, REDIS),
        2.2,
        &[("commit 64", Pairs, REDIS)],
    ),
    target(
        "Redis CPU, 30,000 a second / INCRBY+EXPIRE",
        ("paced", Redis, REDIS),
        1.0,
        &[("paced", Pairs, REDIS)],
    ),
    target(
        "p50 of a lone call, Redis store / empty handler's + bare EVALSHA's",
        ("lone", Redis, P50),
        1.10,
        &[("lone", Empty, P50), ("lone", Script, P50)],
    ),
    target("p99.9 at half of the maximum, Redis store, us", ("half", Redis, P999), 5000.0, &[]),
    target(
        "service CPU, Redis store, three descriptors / one",
        ("three 64", Redis, SERVICE),
        1.25,
        &[("spread 64", Redis, SERVICE)],
    ),
    target(
        "service CPU, memory, spread, 64 under way / tonic on workers",
        ("spread 64", Memory, SERVICE),
        0.90,
        &[("spread 64", TonicMemory, SERVICE)],
    ),
    target(
        "service CPU, memory, spread, 256 under way / tonic on workers",
        ("spread 256", Memory, SERVICE),
        0.90,
        &[("spread 256", TonicMemory, SERVICE)],
    ),
    target(
        "service CPU, Redis store, spread, 64 under way / tonic on workers",
        ("spread 64", Redis, SERVICE),
        0.90,
        &[("spread 64", TonicRedis, SERVICE)],
    ),
    target(
        "service CPU, Redis store, spread, 256 under way / tonic on workers",
        ("spread 256", Redis, SERVICE),
        0.90,
        &[("spread 256", TonicRedis, SERVICE)],
    ),
    target(
        "service CPU, spread, 64 under way, empty handler on workers / on tokio's usual runtime",
        ("spread 64", EmptyOnWorkers, SERVICE),
        0.90,
        &[("spread 64", Empty, SERVICE)],
    ),
    target(
        "service CPU, memory, 10,000 rules / 10",
        ("rules", ManyRules, SERVICE),
        1.10,
        &[("rules", FewRules, SERVICE)],
    ),
    target(
        "service CPU, memory, keys counted / not counted",
        ("top keys", Memory, SERVICE),
        1.01,
        &[("top keys", NoTopKeys, SERVICE)],
    ),
    target(
        "service CPU, memory, calls recorded / not recorded",
        ("recording", Recording, SERVICE),
        1.03,
        &[("recording", Memory, SERVICE)],
    ),
    target(
        "service CPU, Redis store, calls recorded / not recorded",
        ("recording", RecordingOnRedis, SERVICE),
        1.03,
        &[("recording", Redis, SERVICE)],
    ),
    target(
        "service CPU, memory, a key in 16 judged by a candidate / none",
        ("candidate", WithCandidate, SERVICE),
        1.25,
        &[("candidate", Memory, SERVICE)],
    ),
    target(
        "service CPU, Redis store, windows audited / not audited",
        ("self-audit", Redis, SERVICE),
        1.01,
        &[("self-audit", NoSelfAudit, SERVICE)],
    ),
    target(
        "service CPU, memory, traces on and none sampled / off",
        ("traces", Unsampled, SERVICE),
        1.03,
        &[("traces", Memory, SERVICE)],
    ),
    target(
        "service CPU, memory, traces on and 1 % sampled / off",
        ("traces", OneInHundred, SERVICE),
        1.05,
        &[("traces", Memory, SERVICE)],
    ),
    target(
        "Redis CPU, TLS, spread, 64 under way / TCP",
        ("stores 64", Tls, REDIS),
        1.15,
        &[("stores 64", Redis, REDIS)],
    ),
    target(
        "Redis CPU, Cluster of 1, node-wide runs, 64 under way / single Redis",
        ("stores 64", ClusterOfOne, REDIS),
        1.25,
        &[("stores 64", Redis, REDIS)],
    ),
    target(
        "service CPU, Cluster of 3, spread, 64 under way / single Redis",
        ("stores 64", ClusterOfThree, SERVICE),
        1.20,
        &[("stores 64", Redis, SERVICE)],
    ),
    target(
        "service CPU, Cluster of 3, spread, 256 under way / single Redis",
        ("stores 256", ClusterOfThree, SERVICE),
        1.20,
        &[("stores 256", Redis, SERVICE)],
    ),
    target(
        "Redis CPU, Cluster of 3, three descriptors, 64 under way / one",
        ("stores three 64", ClusterOfThree, REDIS),
        3.5,
        &[("stores 64", ClusterOfThree, REDIS)],
    ),
    target(
        "service CPU, Cluster of 3, three descriptors, 64 under way / one",
        ("stores three 64", ClusterOfThree, SERVICE),
        3.5,
        &[("stores 64", ClusterOfThree, SERVICE)],
    ),
    target(
        "service CPU, spread, 64 under way / tuned ratelimit's",
        ("ratelimit 64", Redis, SERVICE),
        0.33,
        &[("ratelimit 64", TunedRatelimit, SERVICE)],
    ),
    target(
        "Redis CPU, spread, 64 under way / tuned ratelimit's",
        ("ratelimit 64", Redis, REDIS),
        0.50,
        &[("ratelimit 64", TunedRatelimit, REDIS)],
    ),
    target(
        "service CPU, three descriptors, 64 under way / tuned ratelimit's",
        ("ratelimit three 64", Redis, SERVICE),
        0.33,
        &[("ratelimit three 64", TunedRatelimit, SERVICE)],
    ),
    target(
        "service CPU, over limit, 64 under way / tuned ratelimit's",
        ("ratelimit over 64", Redis, SERVICE),
        0.50,
        &[("ratelimit over 64", TunedRatelimit, SERVICE)],
    ),
    target(
        "p50 of a lone call / tuned ratelimit's",
        ("ratelimit lone", Redis, P50),
        1.0,
        &[("ratelimit lone", TunedRatelimit, P50)],
    ),
];

/// The part of the calls that may fail, in percent.
const FAILED_MAX: f64 = 0.1;

/// The targets whose numbers were measured.
pub(crate) fn show(table: &Table, style: TableStyle) -> String {
    let head = ["measured", "rounds", "at most", ""].map(str::to_owned);
    let mut lines = vec![line(style, [&pad("target", style)], head)];
    if style == TableStyle::Markdown {
        lines.push("| --- | ---: | ---: | ---: | --- |\n".to_owned());
    }
    for target in TARGETS {
        if let Some(measured) = target.measure(table) {
            // A service that fails its calls may look cheap and fast on those that it answers.
            let failed = target.failed(table);
            let met = if failed > FAILED_MAX {
                format!("NOT met, {failed:.1} % failed")
            } else if measured > target.at_most {
                "NOT met".to_owned()
            } else {
                "met".to_owned()
            };
            let digits = if target.at_most >= 100.0 { 0 } else { 2 };
            let (lowest, highest) = target.extremes(table);
            let numbers = [
                format!("{measured:.digits$}"),
                format!("{lowest:.digits$}-{highest:.digits$}"),
                format!("{:.digits$}", target.at_most),
                format!(" {met}"),
            ];
            lines.push(line(style, [&pad(target.name, style)], numbers));
        }
    }
    lines.concat()
}

fn pad(text: &str, style: TableStyle) -> String {
    if style == TableStyle::Text { format!("{text:<88}") } else { text.to_owned() }
}

impl Target {
    /// The number by the medians of all rounds.
    fn measure(&self, table: &Table) -> Option<f64> {
        self.ratio(|(scenario, backend, number)| table.median(scenario, *backend, number))
    }

    /// The lowest and the highest of single rounds: how far the measurement can be trusted.
    fn extremes(&self, table: &Table) -> (f64, f64) {
        let rounds = (0..).map_while(|round| self.in_round(table, round));
        rounds.fold((f64::INFINITY, 0.0), |(low, high), ratio| (low.min(ratio), high.max(ratio)))
    }

    fn in_round(&self, table: &Table, round: usize) -> Option<f64> {
        self.ratio(|(scenario, backend, number)| {
            table.samples(scenario, *backend).get(round).map(number)
        })
    }

    fn failed(&self, table: &Table) -> f64 {
        let (scenario, backend, _) = self.number;
        table.median(scenario, backend, |sample| sample.failed).unwrap_or(0.0)
    }

    fn ratio(&self, value: impl Fn(&Number) -> Option<f64>) -> Option<f64> {
        let number = value(&self.number)?;
        if self.of.is_empty() {
            return Some(number);
        }
        let of: Option<f64> = self.of.iter().map(value).sum();
        Some(number / of?)
    }
}
