//! Calls that have an id, and may be repeated: a record in the store says which call has begun under an id, and what it was
//! answered.
//!
//! The record is a log of 60 s, in which every store keeps hits with a caller: the first hit, which only one call can charge,
//! has the digest of the call in place of a caller; the second one has the answer too.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use sha2::{Digest as _, Sha256};

use super::Limiter;
use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, Verdict},
        request::{Entry, Hits},
        rule::{Algorithm, Limit, Unit},
    },
    store::{Clear, CounterReading, StoreError, guard::Arrival},
};

/// Keys that begin like this are parameters, so that no counter of a rule has it.
pub(super) const ID_KEY: &[u8] = b"hold.once";

pub struct Once {
    counter: Counter,
    digest: String,
}

pub enum Begun {
    /// Nothing: this call is the first.
    Now,
    /// The same call was answered so.
    Answered(Vec<u8>),
    /// The same call has begun, and has no answer.
    Unanswered,
    ByAnother,
}

impl Once {
    pub fn new(domain: &str, id: &str, call: &[u8]) -> Self {
        let entry = Entry { key: ID_KEY.into(), value: id.to_owned().into() };
        let of_minute = Limit::new(1, Unit::Minute, 1).expect("a minute is a window");
        let limit = Limit { algorithm: Algorithm::SlidingLog { remember: None }, ..of_minute };
        let digest = BASE64.encode(Sha256::digest(call));
        Self { counter: Counter::new(domain, &[entry], Arc::new(limit)), digest }
    }

    /// A hit with this text, if there are fewer than `hits_max`.
    fn hit(&self, hits_max: u64, text: String) -> Charge {
        let limit = Limit { requests_per_unit: hits_max, ..Limit::clone(&self.counter.limit) };
        let charge = Charge::new(self.counter.with_limit(Arc::new(limit)), Hits::Charge(1));
        Charge { caller: Some(text.into()), ..charge }
    }
}

impl Limiter {
    /// Begins a call that has an id, unless it has begun before.
    pub async fn begin(&self, once: &Once, arrival: Arrival) -> Result<Begun, StoreError> {
        let begin = once.hit(1, once.digest.clone());
        match self.store.charge(&[begin], arrival).await {
            Ok(Verdict { denied: false, .. }) => return Ok(Begun::Now),
            Ok(_) | Err(StoreError::Corrupt(_)) => {}
            Err(error) => return Err(error),
        }
        let known = match self.store.read_counter(&once.counter, Clear::Show).await {
            CounterReading::State(state) => state.remembered,
            CounterReading::NoAnswer(_) | CounterReading::Corrupt => Vec::new(),
        };
        for text in known.iter().rev().filter_map(|hit| hit.caller.as_deref()) {
            let (digest, answer) = text.split_once('.').unwrap_or((text, ""));
            if digest != once.digest {
                return Ok(Begun::ByAnother);
            }
            if let (false, Ok(answer)) = (answer.is_empty(), BASE64.decode(answer)) {
                return Ok(Begun::Answered(answer));
            }
        }
        Ok(Begun::Unanswered)
    }

    /// Notes the answer to a call that has begun. Without it the call cannot be repeated.
    pub async fn note_answer(&self, once: &Once, answer: &[u8], arrival: Arrival) {
        let answer = BASE64.encode(answer);
        let noted = once.hit(2, format!("{}.{answer}", once.digest));
        drop(self.store.charge(&[noted], arrival).await);
    }
}
