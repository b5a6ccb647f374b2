//! Backends that judge a call at a given time: the model, the memory store, and the scripts in a Redis.

use std::{
    ops::{Deref, DerefMut},
    rc::Rc,
};

use redis::{ConnectionLike, FromRedisValue, Value};
use tollkeeper::{
    engine::ledger::{CounterState, GiveBack},
    store::{
        Clear,
        memory::MemoryStore,
        redis::script::{
            self, KeyDeclaration, Reply, ScriptVerdict,
            commit::{self, CommitRun},
            fixed::{self, FixedRun},
            ledger::LedgerRun,
        },
    },
};
use tollkeeper_sim::redis::{client::Client, server::Server};

use super::{
    charges::prelude::*,
    cluster::ClusterSetup,
    model::{Model, holds::HoldModel},
    prelude::*,
};

/// Judges one call after the other.
pub trait Backend {
    fn name(&self) -> &'static str;
    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally>;
    /// Gives back what a reservation charged. No tally where the model has none.
    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally>;
    /// The state of a counter, which is removed with [`Clear::Yes`]; without what it remembers.
    fn read(&mut self, counter: &Counter, clear: Clear, now: Timestamp) -> CounterState;
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

    fn read(&mut self, _: &Counter, _: Clear, _: Timestamp) -> CounterState {
        unimplemented!("the model of holds reads counters")
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

    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        Self::give_back(self, give_back, now)
    }

    fn read(&mut self, counter: &Counter, clear: Clear, now: Timestamp) -> CounterState {
        Self::read(self, counter, clear, now)
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

    fn read(&mut self, counter: &Counter, clear: Clear, now: Timestamp) -> CounterState {
        CounterState { remembered: Vec::new(), ..self.read_counter_at(counter, clear, now) }
    }

    fn clear(&mut self) {
        *self = memory();
    }
}

/// Replaces Redis's clock by two keys.
const CLOCK: &str = "local time = redis.call('MGET', 'seconds', 'micros')\n";

/// The scripts on one server, on a clock that the test sets. Its time must be later than the real time: an expiry in the
/// past would delete the key.
pub struct Scripts {
    connection: Box<dyn ConnectionLike>,
    keys: KeyDeclaration,
    ledger: String,
    fixed: String,
    commit: String,
    counter: String,
    /// Number of calls that `commit` has decided.
    pub committed: u64,
    /// The keys of the clock.
    clock: [String; 2],
}

/// The scripts in a Redis, a real one or a simulated one.
pub struct ScriptInRedis<S = Redis> {
    pub redis: S,
    name: &'static str,
    scripts: Scripts,
}

/// The scripts on each node of a Cluster. All counters of a call must be on one node.
pub struct ScriptsInCluster {
    pub cluster: Cluster,
    nodes: Vec<Scripts>,
    /// For each node, two users whose counters it has.
    pub users: Vec<[String; 2]>,
}

impl ScriptInRedis {
    pub fn start() -> Self {
        Self::start_with(KeyDeclaration::Declared)
    }

    /// The scripts as they take their keys in this way.
    pub fn start_with(keys: KeyDeclaration) -> Self {
        let redis = Redis::start();
        Self { scripts: Scripts::on(Box::new(redis.connect()), keys), name: "redis", redis }
    }
}

impl ScriptInRedis<()> {
    /// The scripts in a simulated Redis.
    pub fn simulate(keys: KeyDeclaration) -> Self {
        let client = Client::new(Server::new(Rc::new(|| 0)));
        Self { scripts: Scripts::on(Box::new(client), keys), name: "the simulation", redis: () }
    }
}

impl<S> Deref for ScriptInRedis<S> {
    type Target = Scripts;

    fn deref(&self) -> &Scripts {
        &self.scripts
    }
}

impl<S> DerefMut for ScriptInRedis<S> {
    fn deref_mut(&mut self) -> &mut Scripts {
        &mut self.scripts
    }
}

impl ScriptsInCluster {
    /// Three masters. Each batch of the service on a node takes its keys as these scripts do.
    pub fn start() -> Self {
        let setup = ClusterSetup { replicas: false, ..ClusterSetup::default() };
        let cluster = Cluster::start_as(&setup);
        let (mut nodes, mut users) = (Vec::new(), Vec::new());
        for (number, node) in cluster.nodes.iter().enumerate() {
            let key = cluster.key_on(number);
            let clock = ["seconds", "micros"].map(|name| format!("{{{key}}}{name}"));
            let [seconds, micros] = &clock;
            let source = format!("local time = redis.call('MGET', '{seconds}', '{micros}')\n");
            let connection = Box::new(node.connect());
            nodes.push(Scripts::load(connection, KeyDeclaration::Undeclared, &source, clock));
            let here = |user: &String| {
                cluster.node_of(cluster.slot_of(&format!("{{shop|user={user}}}"))) == number
            };
            let mut here = (0..).map(|user| format!("user{user}.")).filter(here);
            users.push([here.next().unwrap(), here.next().unwrap()]);
        }
        Self { cluster, nodes, users }
    }

    /// The node that has this counter.
    fn node_of(&mut self, counter: &Counter) -> &mut Scripts {
        let key = counter.key(Timestamp::from_millis(0));
        let is_here = |users: &[String; 2]| users.iter().any(|user| key.contains(user));
        &mut self.nodes[self.users.iter().position(is_here).expect("a user of a node")]
    }
}

impl Scripts {
    fn on(connection: Box<dyn ConnectionLike>, keys: KeyDeclaration) -> Self {
        Self::load(connection, keys, CLOCK, ["seconds", "micros"].map(str::to_owned))
    }

    fn load(
        mut connection: Box<dyn ConnectionLike>,
        keys: KeyDeclaration,
        clock: &str,
        clock_keys: [String; 2],
    ) -> Self {
        let mut load = |source: String| {
            redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut *connection).unwrap()
        };
        let sources = [
            script::ledger(clock, keys),
            script::fixed(clock, keys),
            script::commit(clock, keys),
            script::counter(clock),
        ];
        let [ledger, fixed, commit, counter] = sources.map(&mut load);
        Self { keys, ledger, fixed, commit, counter, committed: 0, clock: clock_keys, connection }
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
            let reply: Vec<i64> = self.run(&command, now);
            let (time, mut outcomes) = run.read(&reply).expect("a valid reply");
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
        let reply: Vec<i64> = self.run(&command, now);
        let (time, mut outcomes) = run.read(&reply).expect("a valid reply");
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

    /// The state of a counter, which is removed with [`Clear::Yes`].
    fn read_counter(&mut self, counter: &Counter, clear: Clear, now: Timestamp) -> CounterState {
        let mut run = LedgerRun::default();
        run.add_reading(counter, clear, now, "");
        let command = run.command("EVALSHA", &self.counter, KeyDeclaration::Declared);
        let reply: Vec<Value> = self.run(&command, now);
        let Some(Reply { verdict: ScriptVerdict::Read(state), .. }) = script::counter::read(reply)
        else {
            panic!("no state of {counter:?}");
        };
        state
    }

    /// Runs the ledger script for the one call of `run`.
    fn answer_to(&mut self, run: &LedgerRun, now: Timestamp) -> ScriptVerdict {
        let command = run.command("EVALSHA", &self.ledger, self.keys);
        let reply: Vec<i64> = self.run(&command, now);
        let (time, mut outcomes) = run.read(&reply).expect("a valid reply");
        assert_eq!(time, now);
        outcomes.remove(0)
    }

    /// Sets the clock, and runs a script's command.
    fn run<T: FromRedisValue>(&mut self, command: &redis::Cmd, now: Timestamp) -> T {
        let (seconds, micros) = (now.as_secs(), now.as_millis() % 1000 * 1000);
        let mut commands = Vec::new();
        for (key, value) in self.clock.iter().zip([seconds, micros]) {
            let set = redis::cmd("SET").arg(key).arg(value).arg("EX").arg(1_000_000_000).take();
            commands.extend(set.get_packed_command());
        }
        command.write_packed_command(&mut commands);
        let mut replies = self.connection.req_packed_commands(&commands, 2, 1).unwrap().into_iter();
        redis::from_redis_value(replies.next().unwrap()).unwrap()
    }
}

/// The tallies of a call that must be decided.
#[track_caller]
fn decided(verdict: ScriptVerdict) -> Vec<Tally> {
    match verdict {
        ScriptVerdict::Decided(verdict) => verdict.tallies,
        other => panic!("{other:?}"),
    }
}

impl<S> Backend for ScriptInRedis<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        decided(self.answer(charges, now))
    }

    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        decided(self.answer_give_back(give_back, now)).pop()
    }

    fn read(&mut self, counter: &Counter, clear: Clear, now: Timestamp) -> CounterState {
        self.read_counter(counter, clear, now)
    }

    fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut *self.connection).unwrap();
    }
}

impl Backend for ScriptsInCluster {
    fn name(&self) -> &'static str {
        "the cluster"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        decided(self.node_of(&charges[0].counter).answer(charges, now))
    }

    fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        decided(self.node_of(&give_back.counter).answer_give_back(give_back, now)).pop()
    }

    fn read(&mut self, counter: &Counter, clear: Clear, now: Timestamp) -> CounterState {
        self.node_of(counter).read_counter(counter, clear, now)
    }

    fn clear(&mut self) {
        for node in &mut self.nodes {
            redis::cmd("FLUSHALL").exec(&mut *node.connection).unwrap();
        }
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
