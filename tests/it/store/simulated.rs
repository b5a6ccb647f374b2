//! The simulated Redis answers what the real one does, command by command. `decide` runs the scripts on both.

use std::rc::Rc;

use redis::{ConnectionLike, Value};
use tollkeeper_sim::redis::{
    client::Client,
    cluster::{View, slot_of},
    server::Server,
};

use crate::support::{
    cluster::{Cluster, ClusterSetup},
    dice::{Dice, number},
    redis_server::Redis,
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

/// A random command on keys of three nodes: of a slot that is being moved from the first to the second, and of others.
fn command_in_cluster(dice: &mut Dice, tags: &[String]) -> Vec<String> {
    let mut key = || {
        let tag = &tags[dice.below(4).saturating_sub(1) as usize];
        format!("{{{tag}}}{}", dice.below(3))
    };
    let (one, other) = (key(), key());
    let line = match dice.below(12) {
        0 => format!("GET {one}"),
        1 => format!("SET {one} {}", dice.below(9)),
        2 => format!("DEL {one} {other}"),
        3 => format!("MGET {one} {other}"),
        4 => format!("EXISTS {one} {one}"),
        5 => format!("EVAL return(redis.pcall('GET',ARGV[1])) 0 {one}"),
        6 => format!("EVAL return(redis.pcall('SET',ARGV[1],'s')) 1 {one} {other}"),
        7 => format!("EVAL return{{redis.call('EXISTS',KEYS[1],KEYS[2])}} 2 {one} {other}"),
        8 => format!("EVALSHA {} 1 {one}", "0".repeat(40)),
        9 => "MULTI".to_owned(),
        10 => "EXEC".to_owned(),
        _ => "ASKING".to_owned(),
    };
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn each_command_answers_as_in_the_nodes_of_a_real_cluster() {
    let (steps, seed) = (number("REDIS_STEPS", 20_000), number("SEED", 1).max(1));
    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    let tags: Vec<String> = (0..3).map(|node| cluster.key_on(node)).collect();
    let moving = cluster.begin_move(slot_of(tags[0].as_bytes()), 1);
    let hosts: Vec<String> =
        cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let simulated = |node: usize| {
        let mut view = View::new(hosts.clone().into(), node, 3);
        view.migrating = (node == 0).then_some((moving.slot, 1));
        view.importing = (node == 1).then_some(moving.slot);
        let server = Server::new(Rc::new(|| 1_000_000 * (FAR_MS / 2000)));
        server.state.borrow_mut().cluster = Some(view);
        Client::new(server)
    };
    let mut nodes: Vec<_> =
        cluster.nodes.iter().map(Redis::connect).zip((0..3).map(simulated)).collect();
    let (mut dice, mut queues) = (Dice(seed), [false; 3]);
    for step in 0..steps {
        if dice.below(30) == 0 {
            let key = format!("{{{}}}{}", tags[0], dice.below(3));
            let [from, to] = [0, 1].map(|node| Rc::clone(&nodes[node].1.server.state));
            let (mut from, mut to) = (from.borrow_mut(), to.borrow_mut());
            // It is not moved onto another.
            if to.database.value(key.as_bytes()).is_none() {
                moving.move_key(&key);
                from.database.move_key(key.as_bytes(), &mut to.database);
            }
        }
        let node = dice.below(3) as usize;
        let mut command = command_in_cluster(&mut dice, &tags);
        if command == ["MULTI"] && queues[node] {
            command = vec!["EXEC".to_owned()];
        }
        queues[node] = command == ["MULTI"] || queues[node] && command != ["EXEC"];
        let (real, simulated) = &mut nodes[node];
        let (real, simulated) = (redirected(real, &command), redirected(simulated, &command));
        assert_eq!(simulated, real, "step {step} of seed {seed} at node {node}: {command:?}");
    }
}

/// The answer, or the code of an error and the node that it names.
fn redirected(
    connection: &mut dyn ConnectionLike,
    command: &[String],
) -> Result<Value, (String, Option<String>)> {
    let answer = connection.req_command(redis::cmd(&command[0]).arg(&command[1..]));
    // A transaction has errors among its answers.
    let is_array = matches!(answer, Ok(Value::Array(_)));
    answer.unwrap().extract_error().map_err(|error| {
        let code = if is_array { "EXEC" } else { error.code().unwrap_or("ERR") };
        (code.to_owned(), error.redirect_node().map(|(node, _)| node.to_owned()))
    })
}
