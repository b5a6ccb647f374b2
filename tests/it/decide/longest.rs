//! The longest runs of the scripts for one call, whatever its rule allows: `cargo test --test it decide::longest -- --nocapture`
//! prints the table of docs/internals/performance.md. Times decide nothing here; that a call costs only itself is asserted
//! by the commands that Redis ran for it.

use std::sync::Arc;

use tollkeeper::{
    engine::{hold::Abandoned, ledger::CounterState},
    store::Clear,
};

use crate::support::{backends::*, charges::prelude::*};

const MOST: u64 = 10_000;
const LIFETIME_MS: u64 = 60_000;
/// The most commands for one call, of which 100 others leave with it.
const COMMANDS_MAX: u64 = 60;

struct Measured {
    redis: ScriptInRedis,
    rows: Vec<(String, u64)>,
}

impl Measured {
    /// Runs it, and notes how long Redis has taken for it.
    fn run<T>(&mut self, name: &str, call: impl FnOnce(&mut ScriptInRedis) -> T) -> T {
        self.redis.redis.query::<()>(&["CONFIG", "RESETSTAT"]);
        let answer = call(&mut self.redis);
        let stats: String = self.redis.redis.query(&["INFO", "commandstats"]);
        let of = |line: &str, name: &str| -> u64 {
            let value = line.split([':', ',']).find_map(|part| part.strip_prefix(name)).unwrap();
            value.parse().unwrap()
        };
        let is_script = |line: &&str| line.starts_with("cmdstat_evalsha:");
        let script = stats.lines().find(is_script).unwrap_or_else(|| panic!("{name}: {stats}"));
        let commands = stats.lines().filter(|line| line.starts_with("cmdstat_"));
        let commands: u64 = commands.map(|line| of(line, "calls=")).sum();
        assert_eq!(of(script, "calls="), 1, "{name}");
        assert!(commands <= COMMANDS_MAX, "{name}: {commands} commands");
        self.rows.push((name.to_owned(), of(script, "usec=")));
        answer
    }

    fn print(&self) {
        for (name, micros) in &self.rows {
            println!("| {name} | {}.{:02} ms |", micros / 1000, micros % 1000 / 10);
        }
    }
}

fn id(number: u64) -> HoldId {
    HoldId::from_caller(&number.to_be_bytes())
}

fn with(limit: &Arc<Limit>, hits: Hits, hold: HoldAction) -> [Charge; 1] {
    [Charge { hold: Some(hold), ..charge("a", hits, limit) }]
}

fn at(ms: u64) -> Timestamp {
    BEGIN.plus_millis(ms)
}

#[test]
fn a_call_costs_itself_beside_ten_thousand_calls_in_flight() {
    let hold = Some(Arc::new(HoldPolicy::new(LIFETIME_MS)));
    let in_flight = Algorithm::InFlight { remember: None };
    let limit = Arc::new(Limit { hold, ..limit(MOST, Unit::Second, in_flight) });
    let take = |number, hits| {
        let hold = HoldAction::Occupy { id: id(number), lifetime_ms: LIFETIME_MS };
        with(&limit, Hits::Charge(hits), hold)
    };
    let commit = |number, held, made: Timestamp| {
        let deadline = made.plus_millis(LIFETIME_MS);
        let hold = HoldAction::Commit { id: id(number), held, used: 0, made, deadline };
        with(&limit, Hits::Commit, hold)
    };
    let counter = charge("a", Hits::Check, &limit).counter;
    let mut measured = Measured { redis: ScriptInRedis::start(), rows: Vec::new() };
    measured.run("take of 10,000 places", |redis| redis.charge(&take(0, MOST), at(0)));
    measured.run("its commit", |redis| redis.charge(&commit(0, MOST, at(0)), at(1)));
    for number in 1..MOST {
        // All at once, so that no deadline tells them apart.
        measured.redis.charge(&take(number, 1), at(2));
    }
    measured.run("take of the last of 10,000 places", |redis| redis.charge(&take(0, 1), at(3)));
    measured.run("denied take of 1 place", |redis| redis.charge(&take(MOST, 1), at(4)));
    measured.run("denied take of 10,000 places", |redis| redis.charge(&take(MOST, MOST), at(5)));
    measured.run("commit of one of 10,000", |redis| redis.charge(&commit(77, 1, at(2)), at(6)));
    let read = measured.run("READ", |redis| redis.read(&counter, Clear::No, at(7)));
    assert_eq!(read.used, MOST - 1);
    let shown = measured.run("show", |redis| redis.read(&counter, Clear::Show, at(7)));
    assert_eq!(shown.remembered.len(), CounterState::REMEMBERED_MAX);
    let back = vec![charge("a", Hits::Refund(MOST), &limit); 32];
    measured.run("32 refunds of 10,000 places, which end 100", |redis| redis.charge(&back, at(8)));
    assert_eq!(measured.redis.read(&counter, Clear::No, at(8)).used, MOST - 101);
    measured.run("take as 9,000 deadlines pass, of which 100 leave", |redis| {
        redis.charge(&take(MOST, 1), at(2 + LIFETIME_MS))
    });
    measured.print();
}

#[test]
fn a_call_costs_itself_beside_ten_thousand_open_holds() {
    let policy = HoldPolicy { by: HoldBy::Counter, ..HoldPolicy::new(LIFETIME_MS) };
    let first_hit = Algorithm::FirstHitWindow { idle_ms: None };
    let hold = Some(Arc::new(policy));
    let limit = Arc::new(Limit { hold, ..limit(10 * MOST, Unit::Hour, first_hit) });
    let (lifetime_ms, abandoned) = (LIFETIME_MS, Abandoned::Keep);
    let take = |number, user: &str| {
        let hold = HoldAction::Open { id: id(number), estimate: 10, lifetime_ms, abandoned };
        Charge { hold: Some(hold), ..charge(user, Hits::Check, &limit) }
    };
    let end = |user: &str| {
        let hold = Some(HoldAction::EndOldest { abandoned });
        Charge { hold, ..charge(user, Hits::Charge(7), &limit) }
    };
    let mut measured = Measured { redis: ScriptInRedis::start(), rows: Vec::new() };
    for number in 1..MOST {
        measured.redis.charge(&[take(number, "a")], at(0));
    }
    measured.run("the last of 10,000 open holds", |redis| redis.charge(&[take(0, "a")], at(1)));
    measured.run("a denied one", |redis| redis.charge(&[take(MOST, "a")], at(2)));
    measured.run("commit of the oldest", |redis| redis.charge(&[end("a")], at(3)));
    let counter = take(0, "a").counter;
    let read = measured.run("READ", |redis| redis.read(&counter, Clear::No, at(4)));
    assert_eq!((read.used, read.held), (7, 10 * (MOST - 1)));
    let takes: Vec<Charge> = (0..20).map(|number| take(MOST + number, "a")).collect();
    measured.run("20 takes as 10,000 deadlines pass, of which 100 are charged", |redis| {
        redis.charge(&takes, at(LIFETIME_MS))
    });
    let read = measured.redis.read(&counter, Clear::No, at(LIFETIME_MS));
    // The takes are denied. Another hundred are about to leave.
    assert_eq!((read.used, read.held), (7 + 200 * 10, 10 * (MOST - 1 - 200)));
    measured.print();
}

#[test]
fn a_call_costs_itself_beside_a_full_log() {
    let limit = Arc::new(limit(MOST, Unit::Minute, LOG));
    let hit = |hits| [charge("a", Hits::Charge(hits), &limit)];
    let counter = charge("a", Hits::Check, &limit).counter;
    let mut measured = Measured { redis: ScriptInRedis::start(), rows: Vec::new() };
    measured.run("10,000 hits of a log", |redis| redis.charge(&hit(MOST), at(0)));
    for number in 0..MOST - 1 {
        measured.redis.charge(&hit(1), at(60_000 + number));
    }
    let now = at(60_000 + MOST);
    measured.run("the last of 10,000 hits", |redis| redis.charge(&hit(1), now));
    measured.run("a denied hit", |redis| redis.charge(&hit(1), now));
    measured.run("denied hits, 5,000", |redis| redis.charge(&hit(MOST / 2), now));
    measured.run("READ", |redis| redis.read(&counter, Clear::No, now));
    let shown = measured.run("show", |redis| redis.read(&counter, Clear::Show, now));
    assert_eq!(shown.remembered.len(), CounterState::REMEMBERED_MAX);
    let back = [charge("a", Hits::Refund(MOST / 2), &limit)];
    measured.run("refund of 5,000 hits", |redis| redis.charge(&back, now));
    measured.run("a hit after all others", |redis| redis.charge(&hit(1), at(200_000)));
    measured.print();
}
