//! What can judge a call at a given time: the model, the memory store, and the script in a Redis.

use tollkeeper::{
    engine::{
        ledger::{Charge, Tally},
        time::Timestamp,
    },
    store::{
        memory::MemoryStore,
        redis::script::{self, Answer, Call},
    },
};

use super::redis_server::Redis;
use crate::model::Model;

/// Judges calls, one after the other.
pub trait Subject {
    fn name(&self) -> &'static str;
    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally>;
    /// Forgets everything.
    fn clear(&mut self);
}

impl Subject for Model {
    fn name(&self) -> &'static str {
        "the model"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        Model::charge(self, charges, now)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

pub fn memory() -> MemoryStore {
    MemoryStore::new(|| unreachable!("time is an argument"))
}

impl Subject for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        self.charge_at(charges, now)
    }

    fn clear(&mut self) {
        *self = memory();
    }
}

/// In place of Redis's own clock: the last two keys.
const CLOCK: &str = "local time = { KEYS[#KEYS - 1], KEYS[#KEYS] }\n";

/// The script, on a clock that the test sets. Its time must lie after real time: an expiry that has
/// passed would delete the key.
pub struct ScriptInRedis {
    pub redis: Redis,
    connection: redis::Connection,
    hash: String,
}

impl ScriptInRedis {
    pub fn start() -> Self {
        let redis = Redis::start();
        let mut connection = redis.connect();
        let load =
            redis::cmd("SCRIPT").arg("LOAD").arg(script::ledger(CLOCK)).query(&mut connection);
        Self { hash: load.unwrap(), redis, connection }
    }

    pub fn answer(&mut self, charges: &[Charge], now: Timestamp) -> Answer {
        self.answer_stamped(charges, now, now)
    }

    /// The same, where the service takes the time for another.
    pub fn answer_stamped(
        &mut self,
        charges: &[Charge],
        stamp: Timestamp,
        now: Timestamp,
    ) -> Answer {
        let mut call = Call::write(charges, stamp);
        let (seconds, millis) = (now.as_secs(), now.as_millis() % 1000);
        call.keys.extend([seconds.to_string(), (millis * 1000).to_string()]);
        let reply: Vec<i64> =
            call.command("EVALSHA", &self.hash).query(&mut self.connection).unwrap();
        let read = script::read(&reply, &[charges.len()]);
        let (told, mut answers) = read.expect("a reply of this form");
        assert_eq!(told, now);
        answers.remove(0)
    }
}

impl Subject for ScriptInRedis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        match self.answer(charges, now) {
            Answer::Judged(tallies) => tallies,
            other => panic!("{other:?}"),
        }
    }

    fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }
}

#[test]
fn the_clock_is_the_only_difference_to_the_script_in_use() {
    for source in [script::ledger, script::counter] {
        let (ours, theirs) = (source(CLOCK), source(script::CLOCK));
        let differ: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!(differ, [(CLOCK.trim_end(), script::CLOCK.trim_end())]);
        assert_eq!(ours.lines().count(), theirs.lines().count());
        assert_eq!(theirs.matches("'TIME'").count(), 1, "the clock is read once");
    }
}
