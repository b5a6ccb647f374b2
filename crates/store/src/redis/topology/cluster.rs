//! The map of a cluster: which node has which hash slots. One task keeps it up to date: every call would ask too
//! often, and a timer alone too late.

mod masters;

use std::{collections::HashSet, pin::pin, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use redis::{RedisResult, Value};
use tokio::{
    select,
    time::{self, Instant},
};
use tollkeeper_base::process::pause::{Pause, jittered, random};
use tollkeeper_engine::key::unused_key;

use self::masters::Masters;
use super::{
    directory::{DOWN, Directory},
    map::SlotRange,
    wrong_modes::WrongModes,
};
use crate::redis::{
    node::{RedisNode, batch::Runs, pool},
    wire::{
        connection::{self, CONNECT_WITHIN, Connection},
        endpoint::{Address, Server},
        hash_slot::HashSlot,
        server_info::{ServerInfo, ServerMode},
    },
};

/// How often the map is read without a reason.
const EVERY: Duration = Duration::from_secs(15);

/// The least time between two readings; while they fail, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many nodes are queried for the map at once.
const ASKED_AT_ONCE: usize = 6;

/// How long one node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// How long one node may take to connect and to send its map.
const MAP_WITHIN: Duration = CONNECT_WITHIN.saturating_add(ANSWER_WITHIN);

/// Reads the map when something shows that it has changed, and from time to time; never ends. `seeds` are queried if no
/// known node answers.
pub(crate) async fn follow(directory: &Directory, seeds: &[Server]) {
    let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
    let mut masters = Masters::new();
    let mut wrong_modes = WrongModes::new(directory.options.metrics.clone());
    loop {
        let began = Instant::now();
        match read_map(directory, seeds, &mut wrong_modes).await {
            Ok(ranges) => {
                wrong_modes.show(0);
                let left = directory.replace_cluster(&ranges);
                let report = masters.replace(&directory.map());
                // What is still under way to nodes that have left must not hold up the next map.
                directory.outliving.spawn(async {
                    left.await;
                    report.await;
                });
                probe_nodes(directory).await;
                // While a slot has no owner, each of its calls requests a search.
                if is_complete(&ranges) { pause.shortest() } else { pause.longer() }
            }
            Err(problem) => {
                directory.set_problem(problem);
                pause.longer();
                directory.search_due.notify_one();
            }
        }
        // One reading answers all requests until then.
        time::sleep_until(began + pause.time()).await;
        select! {
            biased;
            () = directory.search_due.notified() => {}
            () = time::sleep(jittered(EVERY)) => {}
            () = masters.note() => {}
        }
    }
}

/// The map: from the node to which a hash slot has just moved, since others may still have the old one; else from the
/// first node that answers and considers the cluster well. A map with an owner for each slot is preferred: for a moment
/// in a failover, a node may have heard that the old owner is a replica now, and not yet who has taken over.
async fn read_map(
    directory: &Directory,
    seeds: &[Server],
    wrong_modes: &mut WrongModes,
) -> Result<Vec<SlotRange>, String> {
    let mut incomplete = None;
    if let Some(moved_to) = directory.take_moved_to()
        && let Ok(Ok(MapAnswer::Map(ranges))) =
            time::timeout(ANSWER_WITHIN, ask_for_map(&moved_to)).await
    {
        if is_complete(&ranges) {
            return Ok(ranges);
        }
        incomplete = Some(ranges);
    }
    let map = directory.map();
    let mut servers: Vec<Server> = map.nodes().iter().map(|node| node.server.clone()).collect();
    // One that does not answer, or has an old map, is not always the first.
    let first = random() as usize % servers.len().max(1);
    servers.rotate_left(first);
    servers.extend(seeds.iter().filter(|seed| !map.has_address(&seed.address)).cloned());
    let answers = servers.into_iter().map(|server| async move {
        let answer = time::timeout(MAP_WITHIN, ask_for_map(&server)).await;
        (server, answer)
    });
    let mut answers = pin!(stream::iter(answers).buffer_unordered(ASKED_AT_ONCE));
    let mut problem = String::new();
    let mut of_wrong_mode = HashSet::new();
    while let Some((server, answer)) = answers.next().await {
        let cause = match answer {
            Ok(Ok(MapAnswer::Map(ranges))) if is_complete(&ranges) => return Ok(ranges),
            Ok(Ok(MapAnswer::Map(ranges))) => {
                incomplete.get_or_insert(ranges);
                continue;
            }
            Ok(Ok(MapAnswer::Down)) => DOWN.to_owned(),
            Ok(Ok(MapAnswer::WrongMode(problem))) => {
                // The connections to a node check it themselves.
                if !map.has_address(&server.address) {
                    of_wrong_mode.insert(server.address.clone());
                }
                problem
            }
            Ok(Err(error)) => pool::unavailable(&error).to_string(),
            Err(_) => format!("no answer within {MAP_WITHIN:?}"),
        };
        problem = format!("{}: {cause}", server.address);
    }
    if let Some(ranges) = incomplete {
        return Ok(ranges);
    }
    wrong_modes.show(of_wrong_mode.len());
    Err(format!("the map of the cluster cannot be read: {problem}"))
}

fn is_complete(ranges: &[SlotRange]) -> bool {
    let owned: usize = ranges.iter().map(|range| range.slots.len()).sum();
    owned >= usize::from(HashSlot::COUNT)
}

/// A node's answer to a request for the map.
enum MapAnswer {
    Map(Vec<SlotRange>),
    Down,
    /// It is not part of a cluster, for this reason.
    WrongMode(String),
}

async fn ask_for_map(server: &Server) -> RedisResult<MapAnswer> {
    let mut connection = connection::open(server).await?;
    // A user without the right to INFO may still be served.
    if let Ok(info) = connection.query::<String>(&redis::cmd("INFO")).await
        && let Err(problem) = ServerInfo(&info).check_mode(ServerMode::Cluster, server)
    {
        return Ok(MapAnswer::WrongMode(problem));
    }
    let info: String = connection.query(redis::cmd("CLUSTER").arg("INFO")).await?;
    if !info.contains("cluster_state:ok") {
        return Ok(MapAnswer::Down);
    }
    let slots: Value = connection.query(redis::cmd("CLUSTER").arg("SLOTS")).await?;
    Ok(MapAnswer::Map(read_slots(slots, server)))
}

/// The ranges in the answer to CLUSTER SLOTS. Each is an array: the first slot, the last, the master, and its
/// replicas. <https://redis.io/docs/latest/commands/cluster-slots/>
fn read_slots(answer: Value, answering: &Server) -> Vec<SlotRange> {
    let Value::Array(ranges) = answer else { return Vec::new() };
    ranges.into_iter().filter_map(|range| read_range(range, answering)).collect()
}

fn read_range(range: Value, answering: &Server) -> Option<SlotRange> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(first), Value::Int(last), master, replicas @ ..] = &range[..] else {
        return None;
    };
    let slots = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
    HashSlot::new(*slots.end())?;
    let replicas = replicas.iter().filter_map(|replica| read_server(replica, answering)).collect();
    Some(SlotRange { slots, server: read_server(master, answering)?, replicas })
}

fn read_server(server: &Value, answering: &Server) -> Option<Server> {
    let Value::Array(server) = server else { return None };
    let [host, Value::Int(port), rest @ ..] = &server[..] else { return None };
    let host = text(host).filter(|host| !host.is_empty() && host != "?");
    let host = match (host, &answering.address) {
        (Some(host), _) => host,
        (None, Address::Tcp { host, .. }) => host.clone(),
        (None, Address::Unix(_)) => return None,
    };
    let address = Address::Tcp { host, port: u16::try_from(*port).ok()? };
    let name = answering.access.tls.as_ref().and_then(|_| host_name(rest.get(1)?));
    Some(answering.at(address).named(name))
}

/// The host name among what a node announces besides its address: names and values in turn.
fn host_name(announced: &Value) -> Option<String> {
    let Value::Array(announced) = announced else { return None };
    let pairs = announced.chunks_exact(2);
    let mut names = pairs.filter(|pair| pair.first().and_then(text).as_deref() == Some("hostname"));
    names.next()?.get(1).and_then(text).filter(|name| !name.is_empty())
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// Finds out which nodes take node-wide runs. Some services refuse undeclared keys.
async fn probe_nodes(directory: &Directory) {
    let map = directory.map();
    for node in map.nodes() {
        if node.batcher.runs() == Runs::NodeWide {
            continue;
        }
        let keys = probe_keys(map.slots_of(node), &directory.options.key_prefix);
        if let Some(keys) = keys
            && let Ok(Ok(true)) = time::timeout(ANSWER_WITHIN, takes_undeclared(node, &keys)).await
        {
            node.batcher.set_runs(Runs::NodeWide);
        }
    }
}

/// Two keys that do not exist, in different hash slots of one node; `None` if it has only one.
fn probe_keys(slots: impl Iterator<Item = HashSlot>, key_prefix: &str) -> Option<[String; 2]> {
    let slots: HashSet<HashSlot> = slots.collect();
    if slots.len() < 2 {
        return None;
    }
    let mut found: Option<(HashSlot, String)> = None;
    for number in 0..1_000_000 {
        let tag = format!("probe-{number}");
        let slot = HashSlot::of_tag(tag.as_bytes());
        if !slots.contains(&slot) {
            continue;
        }
        let key = key_prefix.to_owned() + &unused_key(&tag);
        match found {
            Some((first, first_key)) if first != slot => return Some([first_key, key]),
            Some(_) => {}
            None => found = Some((slot, key)),
        }
    }
    None
}

/// Whether a script may read undeclared keys of two hash slots. It writes nothing.
async fn takes_undeclared(node: &Arc<RedisNode>, keys: &[String; 2]) -> RedisResult<bool> {
    const SCRIPT: &str = "local found = 0 \
        for _, key in ipairs(ARGV) do \
          if type(redis.pcall('EXISTS', key)) == 'number' then found = found + 1 end \
        end \
        return found";
    let Ok(mut connection) = node.link.state.pool.get().await else { return Ok(false) };
    let connection: &mut Connection = &mut connection;
    let found: usize = connection.query(redis::cmd("EVAL").arg(SCRIPT).arg(0).arg(keys)).await?;
    Ok(found == keys.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_takes_keys_of_two_slots_of_the_node() {
        let slots = || [12_182, 3443, 42].into_iter().filter_map(HashSlot::new);
        let [one, other] = probe_keys(slots(), "").expect("the node has three");
        let slot = |key: &str| {
            let tag = key.split(['{', '}']).nth(1).unwrap();
            HashSlot::of_tag(tag.as_bytes())
        };
        assert_ne!(slot(&one), slot(&other));
        assert!(
            slots().any(|known| known == slot(&one)) && slots().any(|known| known == slot(&other))
        );
        assert_eq!(probe_keys(slots().take(1), ""), None);
    }
}
