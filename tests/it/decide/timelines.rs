//! Decisions over time as text: the tables of `timelines/` run on a model, in memory and in a Redis. Their form is that of
//! tests/support/scenarios.rs, with these steps:
//!
//! - `limit 3 5*minute token_bucket burst:9`: what follows is about another counter, which has this limit.
//! - `limit after: 3 minute fixed_window`: a further limit, which may be on the same counter.
//! - `from 1900000000`: times count from this second, and not from [`BEGIN`].
//! - `0.2s +2, ?`: a call at this time. Each charge has its answer, such as `ok 1 left` or `over in 0.8s`. With limits that have
//!   holds, `until` is the reset of what passes.
//! - `0.9s <2@0.2`: two hits of a reservation, which were charged after 0.2 s, are given back.
//! - `0.9s read`, `0.9s reset`: an operator reads the counter, or resets it.
//!
//! A charge is a number of hits such as `+2`, a refund such as `-2`, a check `?`, `open ID ESTIMATE`, `occupy ID HITS`,
//! `commit ID HELD USED`, `id ID HITS`, `id ID HITS USED`, or `end HITS` of the oldest hold; `beside` comes before hits on a
//! counter that may have open holds. Behind it, `made` is when the hold of a commit began, `for` the seconds of a hold, and `of`
//! a limit by its name.

use std::sync::Arc;

use tollkeeper::{
    engine::{
        calendar::Calendar,
        hold::{Abandoned, Estimate},
        ledger::GiveBack,
        window::Window,
    },
    store::Clear,
};

use crate::support::{
    backends::*,
    charges::prelude::*,
    model::{Model, holds::HoldModel},
    prelude::*,
    scenarios::scenarios,
};

/// A limit from its number, unit and algorithm, and options.
fn limit_of(text: &str) -> Limit {
    let words: Vec<&str> = text.split(' ').collect();
    let option = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
    let number = |name: &str| option(name).map(|number| number.parse::<u64>().expect(text));
    let (multiplier, unit) = words[1].split_once('*').unwrap_or(("1", words[1]));
    let unit = Unit::ALL.into_iter().find(|one| one.name() == unit).expect(text);
    let algorithm = match words[2] {
        "fixed_window" => Algorithm::FixedWindow,
        "first_hit_window" => Algorithm::FirstHitWindow { idle_ms: number("idle_ms:") },
        "sliding_window" => Algorithm::SlidingWindow,
        "sliding_log" => LOG,
        "token_bucket" => Algorithm::TokenBucket { burst: number("burst:").expect(text) },
        "in_flight" => Algorithm::InFlight { remember: None },
        _ => panic!("{text}"),
    };
    let limit = Limit::new(words[0].parse().unwrap(), unit, multiplier.parse().unwrap());
    let mut limit = Limit { algorithm, ..limit.expect(text) };
    if words.contains(&"counted") {
        limit.when_denied = WhenDenied::Counted;
    }
    if let Some(zone) = option("zone:") {
        limit.window = Window::of_calendar(Calendar::new(unit, zone).expect(text));
    }
    limit.hold = option("by:").map(|by| {
        let by = match by {
            "token" => HoldBy::Token,
            "id" => HoldBy::Id,
            "counter" => HoldBy::Counter,
            _ => panic!("{text}"),
        };
        let policy = HoldPolicy::new(option("for:").map_or(5000, millis));
        let estimate = Estimate { default: Some(4), ..policy.estimate };
        Arc::new(HoldPolicy { by, estimate, ..policy })
    });
    limit
}

fn millis(seconds: &str) -> u64 {
    (seconds.parse::<f64>().expect(seconds) * 1000.0).round() as u64
}

/// A scenario on a backend.
struct Timeline<'a> {
    backend: &'a mut dyn Backend,
    begin: Timestamp,
    user: String,
    limits: HashMap<String, Arc<Limit>>,
}

impl Timeline<'_> {
    fn at(&self, seconds: &str) -> Timestamp {
        self.begin.plus_millis(millis(seconds))
    }

    fn has_holds(&self) -> bool {
        self.limits.values().any(|limit| limit.hold.is_some())
    }

    fn charge(&self, text: &str) -> Charge {
        let (text, name) = text.split_once(" of ").unwrap_or((text, ""));
        let limit = &self.limits[name];
        let (text, lifetime) = text.split_once(" for ").unwrap_or((text, ""));
        let (text, made) = text.split_once(" made ").unwrap_or((text, "0"));
        let (is_beside, text) = text.strip_prefix("beside ").map_or((false, text), |of| (true, of));
        let of_limit = || limit.hold.as_ref().map_or(0, |hold| hold.lifetime_ms);
        let lifetime_ms = if lifetime.is_empty() { of_limit() } else { millis(lifetime) };
        let words: Vec<&str> = text.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().expect(text);
        let id = || HoldId::new(number(1).into());
        let abandoned = Abandoned::Keep;
        let (hits, hold) = match words[0] {
            "open" => {
                let (id, estimate) = (id(), number(2));
                (Hits::Check, Some(HoldAction::Open { id, estimate, lifetime_ms, abandoned }))
            }
            "occupy" => {
                (Hits::Charge(number(2)), Some(HoldAction::Occupy { id: id(), lifetime_ms }))
            }
            "commit" => {
                let (id, held, used, made) = (id(), number(2), number(3), self.at(made));
                let deadline = made.plus_millis(lifetime_ms);
                (Hits::Commit, Some(HoldAction::Commit { id, held, used, made, deadline }))
            }
            "id" => {
                let (id, used) = (id(), words.get(3).map(|used| used.parse().expect(text)));
                let hold = HoldAction::ById { id, used, is_end: false, lifetime_ms };
                (Hits::Charge(number(2)), Some(hold))
            }
            "end" => (Hits::Charge(number(1)), Some(HoldAction::EndOldest { abandoned })),
            "?" => (Hits::Check, None),
            _ => match text.split_at(1) {
                ("+", count) => (Hits::Charge(count.parse().expect(text)), None),
                ("-", count) => (Hits::Refund(count.parse().expect(text)), None),
                _ => panic!("{text}"),
            },
        };
        let hold = if is_beside { Some(HoldAction::Beside { abandoned }) } else { hold };
        Charge { hold, ..charge(&self.user, hits, limit) }
    }

    fn read(&mut self, of: &str, clear: Clear, now: Timestamp) -> String {
        let Charge { counter, .. } = self.charge(&format!("?{of}"));
        let state = self.backend.read(&counter, clear, now);
        let seconds = state.reset.as_millis() as f64 / 1000.0;
        let (used, held, left) = (state.used, state.held, state.remaining);
        format!("{used} used, {held} held by {}, {left} left until {seconds}s", state.open_holds)
    }

    /// What the tallies of a call say.
    fn call(&mut self, call: &str, now: Timestamp) -> String {
        let charges: Vec<_> = call.split(", ").map(|text| self.charge(text)).collect();
        let tallies = self.backend.charge(&charges, now);
        assert_eq!(tallies.len(), charges.len());
        let spell = |tally: &Tally| {
            let seconds = tally.reset.as_millis() as f64 / 1000.0;
            match tally.fit {
                Fit::Fits { remaining } if self.has_holds() => {
                    format!("ok {remaining} left until {seconds}s")
                }
                Fit::Fits { remaining } => format!("ok {remaining} left"),
                Fit::Over => format!("over in {seconds}s"),
                Fit::Commit(outcome) => format!("{outcome:?} until {seconds}s"),
            }
        };
        tallies.iter().map(spell).collect::<Vec<_>>().join(", ")
    }

    fn step(&mut self, step: &str) -> String {
        let (first, rest) = step.split_once(' ').expect(step);
        match first {
            "limit" => {
                let (name, limit) = rest.split_once(": ").unwrap_or(("", rest));
                if name.is_empty() {
                    self.limits.clear();
                    self.user += "'";
                }
                self.limits.insert(name.to_owned(), Arc::new(limit_of(limit)));
                return String::new();
            }
            "from" => {
                self.begin = Timestamp::from_secs(rest.parse().expect(step));
                return String::new();
            }
            _ => {}
        }
        let now = self.at(first.strip_suffix('s').expect(step));
        if let Some(reservation) = rest.strip_prefix('<') {
            let (hits, made) = reservation.split_once('@').expect(step);
            let (hits, made) = (hits.parse().expect(step), self.at(made));
            let Charge { counter, caller, .. } = self.charge("?");
            self.backend.give_back(&GiveBack { counter, hits, made, caller, hold: None }, now);
            String::new()
        } else if let Some(of) = rest.strip_prefix("read") {
            self.read(of, Clear::No, now)
        } else if let Some(of) = rest.strip_prefix("reset") {
            self.read(of, Clear::Yes, now)
        } else {
            self.call(rest, now)
        }
    }
}

/// Runs all scenarios of a table on this model, on memory and on a Redis.
#[track_caller]
fn check(table: &'static str, model: &mut dyn Backend) {
    let mut redis = ScriptInRedis::start();
    let backends: [&mut dyn Backend; 3] = [model, &mut memory(), &mut redis];
    let mut differences = Vec::new();
    for backend in backends {
        for scenario in scenarios(table) {
            let (user, limits) = (scenario.name.to_owned(), HashMap::new());
            let name = format!("{} on {}", scenario.name, backend.name());
            let mut timeline = Timeline { backend: &mut *backend, begin: BEGIN, user, limits };
            for (step, expected) in &scenario.steps {
                let found = timeline.step(step);
                if found != expected.as_deref().unwrap_or_default() {
                    differences.push(format!("{name}: {step} = {found}, not {expected:?}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    redis.redis.assert_no_key_leaks();
}

#[test]
fn every_algorithm_decides_alike_on_the_model_in_memory_and_in_redis() {
    check(include_str!("timelines/algorithms.txt"), &mut Model::default());
}

#[test]
fn holds_are_taken_and_committed_alike_on_the_model_in_memory_and_in_redis() {
    check(include_str!("timelines/holds.txt"), &mut HoldModel::default());
}
