//! The items of a batch: answered in groups, so that the calls of others come in between, and each for itself.

use std::{future::poll_fn, mem, pin::Pin, sync::Arc, task::Poll};

use futures_util::future::{MaybeDone, maybe_done};
use opentelemetry::KeyValue;
use parking_lot::Mutex;
use tokio::task;
use tonic::Code;

use crate::{
    limiter::{Deciding, FEW_DESCRIPTORS, holds::Taken},
    process::calls::client_has_left,
    rls::{
        large_calls::LargeCalls,
        pb::google::rpc,
        refusal::Refusal,
        service::{BatchContext, Service},
    },
    store::{AtOnce, guard::Arrival},
    telemetry::in_call,
};

pub(crate) const ITEMS_MAX: usize = 1000;

/// The most items that are decided at a time (benches/batches.rs), and what they weigh at most, so that calls of others do
/// not wait longer: an item that is heavier goes by itself.
pub(super) const CALLS_AT_A_TIME: usize = 80;
const WEIGHT_AT_A_TIME: usize = CALLS_AT_A_TIME;

/// This many bytes of a token are as much work as a descriptor.
pub(super) const BYTES_OF_A_DESCRIPTOR: usize = 256;

/// About what a call takes while it is decided, in bytes.
pub(super) const CALL_BYTES: usize = 4 << 10;

/// What the items of a request have in common.
pub(crate) struct ItemContext<'call> {
    pub(super) service: &'call Service,
    pub(super) domain: &'call str,
    pub(super) arrival: Arrival,
    /// A batch is decided by the rules and overrides of its arrival.
    pub(super) by: Deciding,
    /// The store, if it answers at once, with the time of the batch's arrival.
    pub(super) at_once: Option<AtOnce<'call>>,
    /// What its calls have taken, without those that may be repeated.
    pub(super) taken: Mutex<Taken>,
}

/// One item of a request, decoded. Its answer is a message of Protobuf.
pub(crate) trait BatchItem: Send + Sized {
    const FIELD: &'static str;

    /// The work that it is, in descriptors.
    fn weight(&self) -> usize;

    /// The answer, if there is nothing to wait for; else the item.
    fn answer_at_once(self, _: &ItemContext<'_>) -> Result<Result<Vec<u8>, Refusal>, Self> {
        Err(self)
    }

    fn answer(
        self,
        batch: &ItemContext<'_>,
    ) -> impl Future<Output = Result<Vec<u8>, Refusal>> + Send;

    fn failed(error: rpc::Status) -> Vec<u8>;
}

pub(super) fn check_items(field: &str, count: usize, domain: &str) -> Result<(), Refusal> {
    match count {
        0 => Err(Refusal::Invalid(format!("{field}: must have 1 to {ITEMS_MAX} items"))),
        1..=ITEMS_MAX if domain.is_empty() => {
            Err(Refusal::Invalid("domain: must not be empty".to_owned()))
        }
        1..=ITEMS_MAX => Ok(()),
        _ => Err(Refusal::Invalid(format!("{field}: {count} exceeds {ITEMS_MAX}"))),
    }
}

impl Service {
    /// Answers all items, of this number, in their order, each to `to`. A span shows the decision of a single one. Returns what they
    /// have taken, unless it is given back since their client has left.
    pub(super) async fn answer_each<Item: BatchItem>(
        &self,
        domain: &str,
        count: usize,
        items: impl Iterator<Item = Result<Item, Refusal>> + Send,
        BatchContext { client, arrival, span, large_calls }: BatchContext<'_>,
        mut to: impl FnMut(Vec<u8>) + Send,
    ) -> Result<Taken, Refusal> {
        self.check_domain(client, domain)?;
        if let Some(span) = span {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            span.record([KeyValue::new("ratelimit.calls", count)]);
        }
        let (mut by, at_once) = (self.limiter.deciding(), self.limiter.at_once());
        by.keeps_order = count > 1;
        let taken = Mutex::default();
        let batch = &ItemContext { service: self, domain, arrival, by, at_once, taken };
        let written = |index: usize, answer: Result<Vec<u8>, Refusal>| {
            answer.unwrap_or_else(|refusal| Item::failed(error(Item::FIELD, index, &refusal)))
        };
        let at_once = |item: Result<Item, Refusal>| match item {
            Ok(item) => item.answer_at_once(batch),
            Err(refusal) => Ok(Err(refusal)),
        };
        let answer = async |index: usize, item: Item| written(index, item.answer(batch).await);
        let mut items = items.enumerate();
        // A call that waits, and all behind it, stay in their places, which others get later.
        let mut places: Vec<Pin<Box<MaybeDone<_>>>> = Vec::new();
        let (mut next, mut large) = (items.next(), None);
        while next.is_some() {
            let (mut size, mut weight, mut taken, mut is_full) = (0, 0, 0, false);
            let weight_of = |item: &Result<Item, Refusal>| item.as_ref().map_or(1, Item::weight);
            let is_large = count > FEW_DESCRIPTORS
                || next.as_ref().is_some_and(|(_, item)| weight_of(item) > FEW_DESCRIPTORS);
            let most = if is_large { WEIGHT_AT_A_TIME } else { FEW_DESCRIPTORS };
            if is_large {
                large = large.or_else(|| large_calls.map(LargeCalls::add));
            }
            let answered = poll_fn(|context| {
                let mut pending = 0;
                for place in places.iter_mut().take(taken) {
                    pending += usize::from(place.as_mut().poll(context).is_pending());
                }
                let mut fits = |(_, item): &mut (usize, Result<Item, Refusal>)| {
                    weight += weight_of(item);
                    is_full |= size == CALLS_AT_A_TIME || size > 0 && weight > most;
                    size += usize::from(!is_full);
                    !is_full
                };
                while let Some((index, item)) = next.take_if(&mut fits) {
                    next = items.next();
                    let call = match at_once(item) {
                        Ok(answer) if taken == 0 => {
                            to(written(index, answer));
                            continue;
                        }
                        Ok(answer) => MaybeDone::Done(written(index, answer)),
                        Err(item) => maybe_done(answer(index, item)),
                    };
                    match places.get_mut(taken) {
                        Some(place) => place.set(call),
                        None => places.push(Box::pin(call)),
                    }
                    let Some(place) = places.get_mut(taken) else { break };
                    pending += usize::from(place.as_mut().poll(context).is_pending());
                    taken += 1;
                }
                if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
            });
            let answered = async {
                match span.filter(|_| count == 1) {
                    Some(span) => Box::pin(in_call(Arc::clone(span), answered)).await,
                    None => answered.await,
                }
            };
            match is_large {
                true => self.limiter.turns().take().await.begin(answered).await,
                false => answered.await,
            }
            let answered = places.iter_mut().take(taken);
            answered.filter_map(|place| place.as_mut().take_output()).for_each(&mut to);
            self.limiter.report_late(arrival, size as u64);
            if !is_large {
                task::yield_now().await;
            }
        }
        let taken = mem::take(&mut *batch.taken.lock());
        if !client_has_left() {
            return Ok(taken);
        }
        self.limiter.give_back(taken).await;
        Ok(Taken::default())
    }
}

/// The error of one item. Its text begins with the item's index.
fn error(field: &str, index: usize, refusal: &Refusal) -> rpc::Status {
    let separator = match refusal {
        Refusal::Invalid(_) | Refusal::Empty => ".",
        _ => ": ",
    };
    let message = format!("{field}[{index}]{separator}{refusal}");
    let code = match refusal {
        // The request itself could be read.
        Refusal::Malformed(_) => Code::InvalidArgument,
        _ => refusal.codes().0,
    };
    rpc::Status { code: code.into(), message }
}
