//! Commands on one key that no counter has: what the replicas share beside counters. They take a connection of the pool
//! for one round trip, and are no part of the path of a call.

use std::{pin::pin, sync::Arc, time::Duration};

use redis::{Cmd, ErrorKind::Server, RedisResult, ServerErrorKind::Ask, Value};
use tokio::time;

use super::{
    directory::Directory,
    redirect::{REDIRECTIONS_MAX, WAIT, named},
};
use crate::{
    StoreError,
    redis::{
        node::{
            RedisNode,
            pool::{not_permitted, unavailable},
        },
        script::{self, WriteRefusal},
        wire::{hash_slot::HashSlot, resp},
    },
};

/// A connection that was idle for longer is first tried by a PING. If the network has forgotten it, a command would wait for a
/// second, and an override must be in force everywhere within that time.
const TRIED_AFTER: Duration = Duration::from_secs(1);

/// In how many steps commands run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// In one, which is atomic. A Redis that is full takes none, even if its commands only read.
    One,
    /// Each by itself.
    Several,
}

/// Runs commands on a key of this hash slot, on the node that has the slot. Returns their answers.
///
/// # Errors
/// See [`StoreError`]. The commands may have run, unless it is [`StoreError::NotPermitted`] or
/// [`StoreError::TakesNoWrites`].
pub(crate) async fn run(
    directory: &Arc<Directory>,
    slot: HashSlot,
    steps: Steps,
    commands: &[Cmd],
) -> Result<Vec<Value>, StoreError> {
    directory.searched().await;
    let (mut node, mut is_asking) = (directory.owner(slot)?, false);
    for _ in 0..=REDIRECTIONS_MAX {
        let error = match on_node(&node, steps, commands, is_asking).await? {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        if let Some(refusal) = not_permitted(&error, &node.server) {
            return Err(refusal);
        }
        if error.code() == Some("WRONGTYPE") {
            return Err(StoreError::WrongType);
        }
        directory.search_due.notify_one();
        if let Some(refusal) = WriteRefusal::from_error(&error) {
            return Err(refusal.into());
        }
        if !script::is_elsewhere(&error) {
            return Err(unavailable(&error));
        }
        is_asking = error.kind() == Server(Ask);
        match named(&error, &node) {
            Some(address) => {
                let moved = (!is_asking).then_some(slot);
                node = directory.node_at(&node.server.at(address), moved);
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
    steps: Steps,
    commands: &[Cmd],
    is_asking: bool,
) -> Result<RedisResult<Vec<Value>>, StoreError> {
    let state = &node.link.state;
    if let Some(refusal) = state.breaker.refusal() {
        return Err(refusal);
    }
    let [ask, multi, exec] = ["ASKING", "MULTI", "EXEC"].map(redis::cmd);
    let is_transaction = steps == Steps::One && commands.len() > 1;
    let asked = is_asking.then_some(&ask);
    let all: Vec<&Cmd> = if is_transaction {
        asked.into_iter().chain([&multi]).chain(commands).chain([&exec]).collect()
    } else {
        // It holds for one command.
        commands.iter().flat_map(|command| asked.into_iter().chain([command])).collect()
    };
    let mut bytes = Vec::new();
    all.iter().for_each(|command| command.write_packed_command(&mut bytes));
    let mut connection = state.pool.get_tried_after(TRIED_AFTER).await?;
    // These commands may use up the connections while the server stands still, and no call is left to notice it.
    let exchange = pin!(connection.exchange(&bytes, all.len(), resp::value));
    let replies = node.link.owed(exchange, state.answer_within()).await;
    let replies: RedisResult<Vec<Value>> = replies.into_iter().collect();
    if replies.is_ok() {
        state.answered();
    }
    Ok(replies.map(|mut replies| match replies.pop() {
        Some(Value::Array(answers)) if is_transaction => answers,
        last => {
            let others = replies.into_iter().skip(usize::from(is_asking));
            others.step_by(1 + usize::from(is_asking)).chain(last).collect()
        }
    }))
}
