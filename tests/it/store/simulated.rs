//! The simulated Redis answers what the real one does, command by command. `decide` runs the scripts on both.

use std::{collections::HashMap, rc::Rc};

use redis::{ConnectionLike, Value, from_redis_value_ref};
use tollkeeper_sim::redis::{client::Client, sentinel::Monitor, server::Server};

use crate::support::{
    dice::*,
    redis_server::Redis,
    sentinels::{NAME, sentinel_of},
};

/// After the time of any real server, so that no key ends while both run.
const FAR_MS: u64 = 4_102_444_800_000;

/// A random command. What it names may not exist, have another type, or make no sense. The order of HGETALL is not promised.
fn command(dice: &mut Dice) -> Vec<String> {
    let key = format!("k{}", dice.below(4));
    let member = format!("m{}", dice.below(6));
    let index = (dice.below(9) as i64 - 4).to_string();
    let other = (dice.below(9) as i64 - 4).to_string();
    let score =
        if dice.below(9) == 0 { "x".to_owned() } else { (dice.below(7) as i64 - 3).to_string() };
    let time = (FAR_MS + dice.below(1000)).to_string();
    let (from, to) = match dice.below(3) {
        0 => ("-inf".to_owned(), format!("({score}")),
        1 => (score.clone(), "+inf".to_owned()),
        _ => (format!("({index}"), score.clone()),
    };
    let number = ["0", "1", "-7", "007", "x", "9007199254740993", "9223372036854775807", "-1"];
    let number = number[dice.below(8) as usize].to_owned();
    let line = match dice.below(30) {
        0 => format!("GET {key}"),
        1 => format!("SET {key} {number}"),
        2 => format!("SET {key} {member} NX PXAT {time}"),
        3 => format!("SET {key} {member} XX"),
        4 => format!("INCR {key}"),
        5 => format!("INCRBY {key} {number}"),
        6 => format!("DEL {key} k1"),
        7 => format!("EXISTS {key} {key} k2"),
        8 => format!("PEXPIREAT {key} {time}"),
        9 => format!("PEXPIRETIME {key}"),
        10 => format!("PEXPIREAT {key} 1000"),
        11 => format!("RPUSH {key} {member} {number}"),
        12 => format!("LLEN {key}"),
        13 => format!("LINDEX {key} {index}"),
        14 => format!("LSET {key} {index} {member}"),
        15 => format!("LRANGE {key} {index} {other}"),
        16 => format!("LTRIM {key} {index} {other}"),
        17 | 18 => format!("ZADD {key} {score} {member} {index} m0"),
        19 => format!("ZREM {key} {member} m1"),
        20 => format!("ZSCORE {key} {member}"),
        21 => format!("ZCOUNT {key} {from} {to}"),
        22 => format!("ZRANGE {key} {index} {other} WITHSCORES"),
        23 => format!("ZRANGE {key} {from} {to} BYSCORE WITHSCORES LIMIT 0 2"),
        24 => format!("ZRANGE {key} {to} {from} BYSCORE REV LIMIT 1 3"),
        25 => format!("ZRANGE {key} {index} {other} REV"),
        26 => format!("HSET {key} {member} {number} m1 x"),
        27 => format!("HGET {key} {member}"),
        28 => format!("HDEL {key} {member} m1"),
        _ => {
            ["HLEN", "TYPE", "ZCARD", "MGET", "GET"][dice.below(5) as usize].to_owned() + " " + &key
        }
    };
    line.split(' ').map(str::to_owned).collect()
}

/// The answer, or the code of an error.
fn answer(connection: &mut dyn ConnectionLike, command: &[String]) -> Result<Value, String> {
    let answer = connection.req_command(redis::cmd(&command[0]).arg(&command[1..]));
    answer.unwrap().extract_error().map_err(|error| error.code().unwrap_or("ERR").to_owned())
}

#[test]
fn each_command_answers_as_in_a_real_redis() {
    let (steps, seed) = (number("REDIS_STEPS", 20_000), number("SEED", 1).max(1));
    let redis = Redis::start();
    let mut real = redis.connect();
    let mut simulated = Client::new(Server::new(Rc::new(|| 1_000_000 * (FAR_MS / 2000))));
    let mut dice = Dice(seed);
    for step in 0..steps {
        let command = command(&mut dice);
        let (real, simulated) = (answer(&mut real, &command), answer(&mut simulated, &command));
        assert_eq!(simulated, real, "step {step} of seed {seed}: {command:?}");
    }
}

/// The answer of a Sentinel: of one that names a server, what the service reads.
fn answer_of_sentinel(connection: &mut dyn ConnectionLike, command: &str) -> String {
    let (name, arguments) = command.split_once(' ').unwrap();
    let answer =
        connection.req_command(redis::cmd(name).arg(arguments.split(' ').collect::<Vec<_>>()));
    match answer.unwrap().extract_error() {
        Ok(answer) => match from_redis_value_ref::<HashMap<String, String>>(&answer) {
            Ok(fields) if fields.contains_key("ip") => {
                format!("{:?}", ["ip", "port", "flags", "config-epoch"].map(|name| &fields[name]))
            }
            _ => format!("{answer:?}"),
        },
        Err(error) => error.to_string().split(',').next().unwrap().to_owned(),
    }
}

#[test]
fn a_sentinel_answers_as_a_real_one() {
    let redis = Redis::start();
    let sentinel = sentinel_of(&redis);
    let (mut real, mut simulated) = (sentinel.connect(), Client::new(Server::new(Rc::new(|| 0))));
    simulated.server.state.borrow_mut().sentinel = Some(Monitor {
        name: NAME,
        master: format!("127.0.0.1:{}", redis.port),
        epoch: 0,
        is_in_failover: false,
        others: Vec::new(),
    });
    for command in [
        "SENTINEL MASTER counters",
        "SENTINEL MASTER other",
        "SENTINEL SENTINELS counters",
        "SENTINEL SENTINELS other",
        "GET x",
        "SUBSCRIBE +switch-master",
    ] {
        let answers = [&mut real as &mut dyn ConnectionLike, &mut simulated]
            .map(|connection| answer_of_sentinel(connection, command));
        assert_eq!(answers[1], answers[0], "{command}");
    }
}
