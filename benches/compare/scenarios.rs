//! What is asked of whom.

use std::fmt;

/// One row of the table for each backend.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What descriptors are asked: key and value, with `{}` for the number of a key.
    pub(crate) descriptors: &'static [(&'static str, &'static str)],
    pub(crate) keys: usize,
    pub(crate) connections: usize,
    pub(crate) load: LoadShape,
    pub(crate) backends: &'static [Backend],
}

/// How calls follow each other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadShape {
    /// So many under way at any time.
    UnderWay(usize),
    /// So many a second.
    Paced(f64),
    /// Half as many as the backend can.
    HalfOfMaximum,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    /// A gRPC service that decides nothing.
    Empty,
    Memory,
    Redis,
    /// Two on one Redis, each with half of the calls.
    Replicas,
    /// In memory, among 10 rules.
    FewRules,
    /// In memory, among 10,000.
    ManyRules,
    /// Redis itself, asked for `INCRBY` and `EXPIRE` on plain connections.
    Pairs,
    /// Redis itself, asked for a script that does nothing, one call at a time.
    Script,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Empty => "empty handler",
            Self::Memory => "memory",
            Self::Redis => "Redis store",
            Self::Replicas => "two replicas",
            Self::FewRules => "10 rules",
            Self::ManyRules => "10,000 rules",
            Self::Pairs => "INCRBY+EXPIRE",
            Self::Script => "bare EVALSHA",
        })
    }
}

use Backend::{Empty, FewRules, ManyRules, Memory, Pairs, Redis, Replicas, Script};

const SPREAD: &[(&str, &str)] = &[("user", "u{}")];
const HOT: &[(&str, &str)] = &[("user", "hot")];
const ALL: &[Backend] = &[Empty, Memory, Redis, Pairs];

/// All of them, in the order of the table.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("spread 64", SPREAD, 10_000, LoadShape::UnderWay(64), ALL),
    scenario("spread 256", SPREAD, 10_000, LoadShape::UnderWay(256), ALL),
    scenario("hot 64", HOT, 1, LoadShape::UnderWay(64), ALL),
    scenario("hot 256", HOT, 1, LoadShape::UnderWay(256), ALL),
    scenario("load B", HOT, 1, LoadShape::UnderWay(200), &[Empty, Memory, Redis]),
    scenario("three 64", THREE, 10_000, LoadShape::UnderWay(64), ALL),
    scenario("over 64", &[("denied", "d{}")], 10, LoadShape::UnderWay(64), &[Empty, Memory, Redis]),
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
    scenario("replicas", SPREAD, 10_000, LoadShape::UnderWay(64), &[Redis, Replicas]),
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
    Scenario { name, descriptors, keys, connections: 4, load, backends }
}

/// The same on so many connections.
const fn on(connections: usize, scenario: Scenario) -> Scenario {
    Scenario { connections, ..scenario }
}

/// The rules of a service; `paths` of them are there to be searched among.
pub(crate) fn rules(paths: usize) -> String {
    const PLENTY: &str = "rate_limit: { unit: day, requests_per_unit: 4000000000 }";
    let mut rules = "domain: compare\ndescriptors:\n".to_owned();
    for key in ["user", "address", "token"] {
        rules += &format!("  - key: {key}\n    {PLENTY}\n");
    }
    rules += "  - key: denied\n    rate_limit: { unit: day, requests_per_unit: 1 }\n";
    for path in 0..paths {
        rules += &format!("  - key: path\n    value: /path/{path}\n    {PLENTY}\n");
    }
    rules
}
