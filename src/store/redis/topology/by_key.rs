//! Commands on one key that no counter has: what the replicas share beside counters. They take a connection of the pool
//! for one round trip, and are no part of the path of a call.

use std::sync::Arc;

use redis::{Cmd, ErrorKind::Server, RedisResult, ServerErrorKind::Ask, Value};
use tokio::time;

use super::{
    directory::Directory,
    redirect::{REDIRECTIONS_MAX, WAIT, named},
};
use crate::store::{
    StoreError,
    redis::{
        node::{RedisNode, pool::unavailable},
        script,
        wire::{hash_slot::HashSlot, resp},
    },
};

/// Runs commands on a key of this hash slot, several of them in one atomic step, on the node that has the slot. Returns
/// their answers.
///
/// # Errors
/// See [`StoreError`]. The commands may have run, unless it is [`StoreError::NotPermitted`].
pub(crate) async fn run(
    directory: &Arc<Directory>,
    slot: HashSlot,
    commands: &[Cmd],
) -> Result<Vec<Value>, StoreError> {
    directory.searched().await;
    let (mut node, mut is_asking) = (directory.owner(slot)?, false);
    for _ in 0..=REDIRECTIONS_MAX {
        let error = match on_node(&node, commands, is_asking).await? {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        if error.code() == Some("NOPERM") {
            let user = node.server.access.user_in_words();
            // The server's text repeats the name of the user.
            return Err(StoreError::NotPermitted(user));
        }
        if error.code() == Some("WRONGTYPE") {
            return Err(StoreError::WrongType);
        }
        directory.search_due.notify_one();
        if !script::is_elsewhere(&error) {
            return Err(unavailable(&error));
        }
        is_asking = error.kind() == Server(Ask);
        match named(&error, &node) {
            Some(address) => {
                node = directory.node_at(&node.server.at(address));
                if !is_asking {
                    directory.move_slot(slot, &node);
                }
            }
            None => {
                time::sleep(WAIT).await;
                node = directory.owner(slot)?;
            }
        }
    }
    Err(directory.no_node())
}

/// The answers of a node, or the first error among them.
async fn on_node(
    node: &RedisNode,
    commands: &[Cmd],
    is_asking: bool,
) -> Result<RedisResult<Vec<Value>>, StoreError> {
    let state = &node.link.state;
    if let Some(refusal) = state.breaker.refusal() {
        return Err(refusal);
    }
    let [ask, multi, exec] = ["ASKING", "MULTI", "EXEC"].map(redis::cmd);
    let is_transaction = commands.len() > 1;
    let before = [(is_asking, &ask), (is_transaction, &multi)];
    let before = before.into_iter().filter_map(|(is_sent, command)| is_sent.then_some(command));
    let all: Vec<&Cmd> = before.chain(commands).chain(is_transaction.then_some(&exec)).collect();
    let mut bytes = Vec::new();
    all.iter().for_each(|command| command.write_packed_command(&mut bytes));
    let replies = state.pool.get().await?.exchange(&bytes, all.len(), resp::value).await;
    let replies: RedisResult<Vec<Value>> = replies.into_iter().collect();
    Ok(replies.map(|mut replies| match replies.pop() {
        Some(Value::Array(answers)) if is_transaction => answers,
        last => last.into_iter().collect(),
    }))
}
