//! `tollkeeper.v1`, in Protobuf: batches of items that are answered each for itself, through the limiter that decides
//! Envoy's calls.

pub(super) mod batch;
mod decode;
mod encode;
mod items;
mod json;
mod stream;

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use self::batch::{CALL_BYTES, CALLS_AT_A_TIME, ITEMS_MAX, check_items};
use super::{
    framing::Framed,
    precheck::repeated,
    refusal::Refusal,
    service::{BatchContext, Service},
};
use crate::{edge::arriving::ConnectionBudget, limiter::holds::Taken, net::grpc::ServedMethod};

/// What all requests of `tollkeeper.v1` have beside their items, which are decoded one by one.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct BatchHead {
    #[prost(string, tag = "1")]
    domain: String,
}

/// The field numbers of the items, and of their answers.
const ITEMS: u32 = 2;
const ANSWERS: u8 = 1;

/// About what the answer to an item with one descriptor takes, in bytes.
const ANSWER_BYTES: usize = 64;

impl Service {
    /// The answer to a message of one of the methods of `tollkeeper.v1`, framed, and what its calls have taken.
    pub async fn answer_batch(
        &self,
        method: ServedMethod,
        message: Bytes,
        memory: &Arc<ConnectionBudget>,
        context: BatchContext<'_>,
    ) -> Result<(Bytes, Taken), Refusal> {
        let items = repeated(&message, ITEMS);
        let count = items.clone().count();
        // Too many are refused by their number, whatever they are.
        let head = if count > ITEMS_MAX { &[] } else { &*message };
        let BatchHead { domain } =
            BatchHead::decode(head).map_err(|error| Refusal::Malformed(error.to_string()))?;
        let mut calls = memory.reserve();
        calls.add(count.min(CALLS_AT_A_TIME) * CALL_BYTES)?;
        let domain = &*domain;
        let mut answers = Framed::with_capacity(count.min(ITEMS_MAX) * ANSWER_BYTES);
        let (mut held, mut spent) = (memory.reserve(), Ok(()));
        let add = |answer: Vec<u8>| {
            spent = spent.and_then(|()| held.add(answer.len()));
            if spent.is_ok() {
                answers.add(ANSWERS, &answer);
            }
        };
        let taken = match method {
            ServedMethod::Commit => {
                check_items("commits", count, domain)?;
                let items = items.map(|item| decode::commit(message.slice_ref(item)));
                self.answer_each(domain, count, items, context, add).await?
            }
            ServedMethod::Renew => {
                check_items("renewals", count, domain)?;
                let items = items.map(|item| decode::renewal(message.slice_ref(item), self.bounds));
                self.answer_each(domain, count, items, context, add).await?
            }
            _ => {
                check_items("calls", count, domain)?;
                let items = items.map(|item| decode::call(item, &message, self.bounds));
                self.answer_each(domain, count, items, context, add).await?
            }
        };
        drop(calls);
        match spent.and_then(|()| answers.end(memory)) {
            Ok(answer) => Ok((answer, taken)),
            Err(spent) => {
                self.limiter.give_back(taken).await;
                Err(Refusal::Busy(spent))
            }
        }
    }
}
