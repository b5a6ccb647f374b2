//! Backends that judge a call at a given time: the model, the memory store, and the scripts in a Redis.

use redis::ConnectionLike as _;
use tollkeeper::{
    engine::{
        ledger::{Charge, GiveBack, Tally},
        time::Timestamp,
    },
    store::{
        memory::MemoryStore,
        redis::script::{
            self, KeyDeclaration, ScriptVerdict,
            commit::{self, CommitRun},
            fixed::{self, FixedRun},
            ledger::LedgerRun,
        },
    },
};

use super::model::{Model, holds::HoldModel};
use super::redis_server::Redis;

/// Judges one call after the other.
pub trait Backend {
    fn name(&self) -> &'static str;
    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally>;
    /// Gives back what a reservation charged. No tally where the model has none.
    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally>;
    /// Removes all counters.
    fn clear(&mut self);
}

impl Backend for Model {
    fn name(&self) -> &'static str {
        "the model"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        Model::charge(self, charges, now)
    }

    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        Model::give_back(self, give_back, now)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Backend for HoldModel {
    fn name(&self) -> &'static str {
        "the model of holds"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        Self::charge(self, charges, now)
    }

    fn give_back(&mut self, _: &GiveBack, _: Timestamp) -> Option<Tally> {
        None
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

pub fn memory() -> MemoryStore {
    MemoryStore::new(|| unreachable!("time is an argument"))
}

impl Backend for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        self.charge_at(charges, now).tallies
    }

    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        Some(self.give_back_at(give_back, now))
    }

    fn clear(&mut self) {
        *self = memory();
    }
}

/// Replaces Redis's clock by two keys.
const CLOCK: &str = "local time = redis.call('MGET', 'seconds', 'micros')\n";

/// The scripts, on a clock that the test sets. Its time must be later than the real time: an expiry in the
/// past would delete the key.
pub struct ScriptInRedis {
    pub redis: Redis,
    connection: redis::Connection,
    keys: KeyDeclaration,
    ledger: String,
    fixed: String,
    commit: String,
    /// Number of calls that `commit` has decided.
    pub committed: u64,
}

impl ScriptInRedis {
    pub fn start() -> Self {
        Self::start_with(KeyDeclaration::Declared)
    }

    /// The scripts as they take their keys in this way.
    pub fn start_with(keys: KeyDeclaration) -> Self {
        let redis = Redis::start();
        let mut connection = redis.connect();
        let mut load = |source: String| {
            redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection).unwrap()
        };
        let [ledger, fixed, commit] =
            [script::ledger, script::fixed, script::commit].map(|source| load(source(CLOCK, keys)));
        Self { keys, ledger, fixed, commit, committed: 0, redis, connection }
    }

    pub fn answer(&mut self, charges: &[Charge], now: Timestamp) -> ScriptVerdict {
        self.answer_stamped(charges, now, now)
    }

    /// Judges a call of a service that assumes another time. As in the service, the cheapest script runs that can decide
    /// the call.
    pub fn answer_stamped(
        &mut self,
        charges: &[Charge],
        assumed_now: Timestamp,
        now: Timestamp,
    ) -> ScriptVerdict {
        if commit::accepts(charges) {
            let mut run = CommitRun::default();
            run.add(charges, assumed_now, "");
            let command = run.command("EVALSHA", &self.commit, self.keys);
            let (time, mut outcomes) = run.read(&self.run(&command, now)).expect("a valid reply");
            assert_eq!(time, now);
            let outcome = outcomes.remove(0);
            if outcome != ScriptVerdict::Corrupt(Vec::new()) {
                self.committed += 1;
                return outcome;
            }
        }
        if !fixed::accepts(charges) {
            return self.run_ledger(charges, assumed_now, now);
        }
        let mut run = FixedRun::default();
        run.add(charges, assumed_now, "");
        let command = run.command("EVALSHA", &self.fixed, self.keys);
        let (time, mut outcomes) = run.read(&self.run(&command, now)).expect("a valid reply");
        assert_eq!(time, now);
        outcomes.remove(0)
    }

    /// Judges a call by the ledger script, which takes calls of any kind.
    pub fn answer_by_ledger(&mut self, charges: &[Charge], now: Timestamp) -> ScriptVerdict {
        self.run_ledger(charges, now, now)
    }

    fn run_ledger(
        &mut self,
        charges: &[Charge],
        assumed_now: Timestamp,
        now: Timestamp,
    ) -> ScriptVerdict {
        let mut run = LedgerRun::default();
        run.add(&charges.into(), assumed_now, "");
        self.answer_to(&run, now)
    }

    /// Gives back what a reservation charged.
    pub fn answer_give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> ScriptVerdict {
        let mut run = LedgerRun::default();
        run.add_give_back(give_back, "");
        self.answer_to(&run, now)
    }

    /// Runs the ledger script for the one call of `run`.
    fn answer_to(&mut self, run: &LedgerRun, now: Timestamp) -> ScriptVerdict {
        let command = run.command("EVALSHA", &self.ledger, self.keys);
        let (time, mut outcomes) = run.read(&self.run(&command, now)).expect("a valid reply");
        assert_eq!(time, now);
        outcomes.remove(0)
    }

    /// Sets the clock, and runs a script's command.
    fn run(&mut self, command: &redis::Cmd, now: Timestamp) -> Vec<i64> {
        let (seconds, micros) = (now.as_secs(), now.as_millis() % 1000 * 1000);
        let mut commands = Vec::new();
        for (key, value) in [("seconds", seconds), ("micros", micros)] {
            let set = redis::cmd("SET").arg(key).arg(value).arg("EX").arg(1_000_000_000).take();
            commands.extend(set.get_packed_command());
        }
        command.write_packed_command(&mut commands);
        let mut replies = self.connection.req_packed_commands(&commands, 2, 1).unwrap().into_iter();
        redis::from_redis_value(replies.next().unwrap()).unwrap()
    }
}

impl Backend for ScriptInRedis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        match self.answer(charges, now) {
            ScriptVerdict::Decided(verdict) => verdict.tallies,
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        match self.answer_give_back(give_back, now) {
            ScriptVerdict::Decided(verdict) => Some(verdict.tallies[0]),
            other => panic!("{other:?}"),
        }
    }

    fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }
}

#[test]
fn the_clock_is_the_only_difference_from_the_scripts_in_use() {
    let sources: [fn(&str) -> String; 7] = [
        |clock| script::ledger(clock, KeyDeclaration::Declared),
        |clock| script::ledger(clock, KeyDeclaration::Undeclared),
        |clock| script::fixed(clock, KeyDeclaration::Declared),
        |clock| script::fixed(clock, KeyDeclaration::Undeclared),
        |clock| script::commit(clock, KeyDeclaration::Declared),
        |clock| script::commit(clock, KeyDeclaration::Undeclared),
        script::counter,
    ];
    for source in sources {
        let (ours, theirs) = (source(CLOCK), source(script::CLOCK));
        let differ: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!(differ, [(CLOCK.trim_end(), script::CLOCK.trim_end())]);
        assert_eq!(ours.lines().count(), theirs.lines().count());
        assert_eq!(theirs.matches("'TIME'").count(), 1, "the clock is read once");
    }
}
