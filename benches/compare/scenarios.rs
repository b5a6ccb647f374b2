//! The scenarios: which calls are made, how many, and to which backends.

use std::fmt;

/// A kind of load. The table has one row for each of its backends.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The descriptors of a call: key and value, with `{}` for the number of a key.
    pub(crate) descriptors: &'static [(&'static str, &'static str)],
    pub(crate) keys: usize,
    pub(crate) connections: usize,
    pub(crate) load: LoadShape,
    /// The hits that a commit states, for each hold that a call takes; a call and its commit count as one.
    pub(crate) used: Option<u64>,
    /// The calls in a message of `tollkeeper.v1`, of which the load is made then; Envoy's API if absent.
    pub(crate) batch: Option<usize>,
    pub(crate) backends: &'static [Backend],
}

/// How many calls are made, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadShape {
    /// This number of calls under way at any time.
    UnderWay(usize),
    /// Calls per second.
    Paced(f64),
    /// Half of the backend's maximum rate.
    HalfOfMaximum,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    /// A gRPC service that decides nothing, by tonic on tokio's usual runtime.
    Empty,
    /// The same on tollkeeper's workers.
    EmptyOnWorkers,
    /// tollkeeper's limiter and memory store, served by tonic on tollkeeper's workers.
    TonicMemory,
    /// tollkeeper's limiter and Redis store, served by tonic on tollkeeper's workers.
    TonicRedis,
    Memory,
    Redis,
    /// The same through a Unix socket.
    UnixSocket,
    /// The same by TLS.
    Tls,
    /// A Redis Cluster of one node, which has all hash slots.
    ClusterOfOne,
    ClusterOfThree,
    ClusterOfSix,
    /// Two services on one Redis, each with half of the calls.
    Replicas,
    /// The memory store, exporting traces of no call.
    Unsampled,
    /// The memory store, exporting traces of a hundredth of all calls.
    OneInHundred,
    /// The memory store, counting no keys.
    NoTopKeys,
    /// The memory store, recording all calls.
    Recording,
    /// The Redis store, recording all calls.
    RecordingOnRedis,
    /// The memory store, with a candidate.
    WithCandidate,
    /// The Redis store, auditing no windows.
    NoSelfAudit,
    /// The memory store, with 10 rules to search.
    FewRules,
    /// The memory store, with 10,000 rules to search.
    ManyRules,
    /// envoyproxy/ratelimit with its defaults.
    Ratelimit,
    /// envoyproxy/ratelimit with the settings that its documents advise for speed.
    TunedRatelimit,
    /// Redis itself: `INCRBY` and `EXPIRE` on plain connections.
    Pairs,
    /// Redis itself: a script that does nothing, one call at a time.
    Script,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Empty => "empty handler",
            Self::EmptyOnWorkers => "empty handler on workers",
            Self::TonicMemory => "tonic on workers, memory",
            Self::TonicRedis => "tonic on workers, Redis",
            Self::Memory => "memory",
            Self::Redis => "Redis store",
            Self::UnixSocket => "Unix socket",
            Self::Tls => "TLS",
            Self::ClusterOfOne => "Cluster of 1",
            Self::ClusterOfThree => "Cluster of 3",
            Self::ClusterOfSix => "Cluster of 6",
            Self::Replicas => "two replicas",
            Self::Unsampled => "traces of none",
            Self::OneInHundred => "traces of 1 %",
            Self::NoTopKeys => "no top keys",
            Self::Recording => "recording",
            Self::RecordingOnRedis => "recording, Redis store",
            Self::WithCandidate => "candidate",
            Self::NoSelfAudit => "no self-audit",
            Self::FewRules => "10 rules",
            Self::ManyRules => "10,000 rules",
            Self::Ratelimit => "ratelimit",
            Self::TunedRatelimit => "ratelimit, tuned",
            Self::Pairs => "INCRBY+EXPIRE",
            Self::Script => "bare EVALSHA",
        })
    }
}

use Backend::{
    ClusterOfOne, ClusterOfSix, ClusterOfThree, Empty, EmptyOnWorkers, FewRules, ManyRules, Memory,
    NoSelfAudit, NoTopKeys, OneInHundred, Pairs, Ratelimit, Recording, RecordingOnRedis, Redis,
    Replicas, Script, Tls, TonicMemory, TonicRedis, TunedRatelimit, UnixSocket, Unsampled,
    WithCandidate,
};

const SPREAD: &[(&str, &str)] = &[("user", "u{}")];
const OVER: &[(&str, &str)] = &[("denied", "d{}")];
const TAKE: &[(&str, &str)] = &[("take", "u{}")];
const HELD: &[(&str, &str)] = &[("held", "u{}")];
const HOT: &[(&str, &str)] = &[("user", "hot")];
const ALL: &[Backend] = &[Empty, Memory, Redis, Pairs];
const HELD_ON: &[Backend] = &[Memory, Redis, Pairs];
const RECORDED_ON: &[Backend] = &[Memory, Recording, Redis, RecordingOnRedis];
const BATCHED_ON: &[Backend] = &[Memory, Redis];
const STORES: &[Backend] = &[Redis, UnixSocket, Tls, ClusterOfOne, ClusterOfThree, ClusterOfSix];
const RATELIMIT: &[Backend] = &[Redis, Ratelimit, TunedRatelimit];
const ALL_AND_TONIC: &[Backend] =
    &[Empty, EmptyOnWorkers, TonicMemory, Memory, TonicRedis, Redis, Pairs];

/// All scenarios, in the order of the table.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("spread 64", SPREAD, 10_000, LoadShape::UnderWay(64), ALL_AND_TONIC),
    scenario("spread 256", SPREAD, 10_000, LoadShape::UnderWay(256), ALL_AND_TONIC),
    scenario("hot 64", HOT, 1, LoadShape::UnderWay(64), ALL),
    scenario("hot 256", HOT, 1, LoadShape::UnderWay(256), ALL),
    scenario("load B", HOT, 1, LoadShape::UnderWay(200), &[Empty, Memory, Redis]),
    scenario("three 64", THREE, 10_000, LoadShape::UnderWay(64), ALL),
    scenario("take 64", TAKE, 10_000, LoadShape::UnderWay(64), &[Memory, Redis]),
    committed(42, scenario("commit 64", HELD, 10_000, LoadShape::UnderWay(64), HELD_ON)),
    scenario("over 64", OVER, 10, LoadShape::UnderWay(64), &[Empty, Memory, Redis]),
    scenario("lone", SPREAD, 10_000, LoadShape::UnderWay(1), &[Empty, Memory, Redis, Script]),
    scenario("paced", SPREAD, 10_000, LoadShape::Paced(30_000.0), &[Empty, Redis, Pairs]),
    scenario("half", SPREAD, 10_000, LoadShape::HalfOfMaximum, &[Empty, Memory, Redis]),
    scenario("rules", &[("path", "/path/{}")], 10, LoadShape::UnderWay(64), &[FewRules, ManyRules]),
    scenario("eight 64", EIGHT, 10_000, LoadShape::UnderWay(64), &[Memory, Redis]),
    scenario("300,000 keys", SPREAD, 300_000, LoadShape::UnderWay(64), &[Memory, Redis]),
    on(
        1,
        scenario("1 connection", SPREAD, 10_000, LoadShape::UnderWay(64), &[Empty, Memory, Redis]),
    ),
    on(
        64,
        scenario(
            "64 connections",
            SPREAD,
            10_000,
            LoadShape::UnderWay(64),
            &[Empty, Memory, Redis],
        ),
    ),
    batched(1000, scenario("batch of 1,000", SPREAD, 10_000, LoadShape::UnderWay(1), BATCHED_ON)),
    batched(100, scenario("batch of 100", SPREAD, 10_000, LoadShape::UnderWay(8), BATCHED_ON)),
    on(1, scenario("batch, one by one", SPREAD, 10_000, LoadShape::UnderWay(64), BATCHED_ON)),
    scenario("stores 64", SPREAD, 10_000, LoadShape::UnderWay(64), STORES),
    scenario("stores 256", SPREAD, 10_000, LoadShape::UnderWay(256), STORES),
    scenario("stores three 64", THREE, 10_000, LoadShape::UnderWay(64), STORES),
    scenario("traces", SPREAD, 10_000, LoadShape::UnderWay(64), &[Memory, Unsampled, OneInHundred]),
    scenario("top keys", SPREAD, 10_000, LoadShape::UnderWay(64), &[Memory, NoTopKeys]),
    scenario("recording", SPREAD, 10_000, LoadShape::UnderWay(64), RECORDED_ON),
    scenario("candidate", SPREAD, 10_000, LoadShape::UnderWay(64), &[Memory, WithCandidate]),
    scenario("self-audit", SPREAD, 10_000, LoadShape::UnderWay(64), &[Redis, NoSelfAudit]),
    scenario("replicas", SPREAD, 10_000, LoadShape::UnderWay(64), &[Redis, Replicas]),
    scenario("ratelimit 64", SPREAD, 10_000, LoadShape::UnderWay(64), RATELIMIT),
    scenario("ratelimit 256", SPREAD, 10_000, LoadShape::UnderWay(256), RATELIMIT),
    scenario("ratelimit three 64", THREE, 10_000, LoadShape::UnderWay(64), RATELIMIT),
    scenario("ratelimit over 64", OVER, 10, LoadShape::UnderWay(64), RATELIMIT),
    scenario("ratelimit lone", SPREAD, 10_000, LoadShape::UnderWay(1), RATELIMIT),
    scenario("ratelimit paced", SPREAD, 10_000, LoadShape::Paced(5_000.0), RATELIMIT),
];

const THREE: &[(&str, &str)] = &[("user", "u{}"), ("address", "a{}"), ("token", "t{}")];

const EIGHT: &[(&str, &str)] = &[
    ("user", "u{}"),
    ("address", "a{}"),
    ("token", "t{}"),
    ("user", "v{}"),
    ("address", "b{}"),
    ("token", "s{}"),
    ("user", "w{}"),
    ("address", "c{}"),
];

const fn scenario(
    name: &'static str,
    descriptors: &'static [(&'static str, &'static str)],
    keys: usize,
    load: LoadShape,
    backends: &'static [Backend],
) -> Scenario {
    Scenario { name, descriptors, keys, connections: 4, load, used: None, batch: None, backends }
}

/// `scenario` with a commit of `used` hits for each hold.
const fn committed(used: u64, scenario: Scenario) -> Scenario {
    Scenario { used: Some(used), ..scenario }
}

/// `scenario` with batches of `size` calls, on one connection.
const fn batched(size: usize, scenario: Scenario) -> Scenario {
    Scenario { batch: Some(size), connections: 1, ..scenario }
}

/// `scenario` on another number of connections.
const fn on(connections: usize, scenario: Scenario) -> Scenario {
    Scenario { connections, ..scenario }
}

impl Scenario {
    /// Whether it measures envoyproxy/ratelimit, which has to be built first.
    pub(crate) fn measures_ratelimit(&self) -> bool {
        self.backends.contains(&Ratelimit)
    }
}

/// The rules of a service; `paths` of them are for exact values of one key.
pub(crate) fn rules(paths: usize) -> String {
    const PLENTY: &str = "rate_limit: { unit: day, requests_per_unit: 4000000000 }";
    let mut rules = "domain: compare\ndescriptors:\n".to_owned();
    for key in ["user", "address", "token"] {
        rules += &format!("  - key: {key}\n    {PLENTY}\n");
    }
    rules += "  - key: denied\n    rate_limit: { unit: day, requests_per_unit: 1 }\n";
    for (key, estimate) in [("take", 1), ("held", 300)] {
        let hold = format!("hold: {{ for: 10m, estimate: {estimate} }}");
        rules += &format!(
            "  - key: {key}\n    rate_limit: {{ unit: day, requests_per_unit: 4000000000, {hold} }}\n"
        );
    }
    for path in 0..paths {
        rules += &format!("  - key: path\n    value: /path/{path}\n    {PLENTY}\n");
    }
    rules
}
