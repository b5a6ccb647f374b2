//! The items of a batch: answered in groups, so that the calls of others come in between, and each for itself.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll};

use futures_util::future::{MaybeDone, maybe_done};
use opentelemetry::KeyValue;
use tokio::task;

use crate::{
    limiter::Deciding,
    rls::{
        pb::google::rpc,
        refusal::Refusal,
        service::{BatchContext, Service},
    },
    store::guard::Arrival,
    telemetry::in_call,
};

/// The most items in one request.
pub(crate) const ITEMS_MAX: usize = 1000;

/// Items that are decided at a time, so that calls of others do not wait for more (benches/batches.rs).
pub(super) const CALLS_AT_A_TIME: usize = 48;

/// About what a call takes while it is decided, in bytes.
pub(super) const CALL_BYTES: usize = 4 << 10;

/// What the items of a request have in common.
pub(crate) struct Batch<'call> {
    pub(super) service: &'call Service,
    pub(super) domain: &'call str,
    pub(super) arrival: Arrival,
    /// Common to all: a batch is decided by the rules of its arrival.
    pub(super) by: Deciding,
}

/// One item of a request, decoded. Its answer is a message of Protobuf.
pub(crate) trait BatchItem: Send + Sized {
    /// The name of the field that lists these items.
    const FIELD: &'static str;

    /// The answer.
    fn answer(self, batch: &Batch<'_>) -> impl Future<Output = Result<Vec<u8>, Refusal>> + Send;

    /// The answer to one that has failed.
    fn failed(error: rpc::Status) -> Vec<u8>;
}

/// Checks the number of items, and the domain.
pub(super) fn check_items(field: &str, count: usize, domain: &str) -> Result<(), Refusal> {
    match count {
        0 => Err(Refusal::Invalid(format!("{field}: at least 1"))),
        1..=ITEMS_MAX if domain.is_empty() => {
            Err(Refusal::Invalid("domain: must not be empty".to_owned()))
        }
        1..=ITEMS_MAX => Ok(()),
        _ => Err(Refusal::Invalid(format!("{field}: {count} exceeds {ITEMS_MAX}"))),
    }
}

impl Service {
    /// Answers all items, of this number, in their order, each to `to`. A span shows the decision of a single one.
    ///
    /// # Errors
    /// If the client may not use the domain.
    pub(super) async fn answer_each<Item: BatchItem>(
        &self,
        domain: &str,
        count: usize,
        items: impl Iterator<Item = Result<Item, Refusal>> + Send,
        BatchContext { client, arrival, span }: BatchContext<'_>,
        mut to: impl FnMut(Vec<u8>) + Send,
    ) -> Result<(), Refusal> {
        self.check_domain(client, domain)?;
        if let Some(span) = span {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            span.record([KeyValue::new("ratelimit.calls", count)]);
        }
        let (arrival, by) = (self.limiter.together(arrival), self.limiter.deciding());
        let batch = &Batch { service: self, domain, arrival, by };
        let answer = async |(index, item): (usize, Result<Item, Refusal>)| {
            let answer = match item {
                Ok(item) => item.answer(batch).await,
                Err(refusal) => Err(refusal),
            };
            answer.unwrap_or_else(|refusal| Item::failed(error(Item::FIELD, index, &refusal)))
        };
        let (mut items, mut left) = (items.enumerate(), count);
        if let (Some(span), 1) = (span, count) {
            for item in items {
                to(in_call(Arc::clone(span), answer(item)).await);
            }
            self.limiter.report_late(arrival, 1);
            return Ok(());
        }
        // Each call stays in its place, which others get later. One that is answered at once needs no place of its own.
        let mut places: Vec<Pin<Box<MaybeDone<_>>>> = Vec::new();
        while left > 0 {
            let size = left.min(CALLS_AT_A_TIME);
            left -= size;
            let (mut group, mut taken) = (items.by_ref().take(CALLS_AT_A_TIME), 0);
            poll_fn(|context| {
                let mut pending = 0;
                for place in places.iter_mut().take(taken) {
                    pending += usize::from(place.as_mut().poll(context).is_pending());
                }
                for item in group.by_ref() {
                    let call = maybe_done(answer(item));
                    match places.get_mut(taken) {
                        Some(place) => place.set(call),
                        None => places.push(Box::pin(call)),
                    }
                    let Some(place) = places.get_mut(taken) else { break };
                    let is_pending = place.as_mut().poll(context).is_pending();
                    pending += usize::from(is_pending);
                    if taken > 0 || is_pending {
                        taken += 1;
                    } else {
                        place.as_mut().take_output().into_iter().for_each(&mut to);
                    }
                }
                if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let answered = places.iter_mut().take(taken);
            answered.filter_map(|place| place.as_mut().take_output()).for_each(&mut to);
            self.limiter.report_late(arrival, size as u64);
            task::yield_now().await;
        }
        Ok(())
    }
}

/// The error of one item. Its text begins with the item's index.
fn error(field: &str, index: usize, refusal: &Refusal) -> rpc::Status {
    let separator = match refusal {
        Refusal::Invalid(_) | Refusal::Empty => ".",
        _ => ": ",
    };
    let message = format!("{field}[{index}]{separator}{refusal}");
    rpc::Status { code: refusal.codes().0.into(), message }
}
