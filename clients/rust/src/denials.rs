//! Denials of the service, which are given again without a request.

use std::{collections::HashMap, sync::Mutex, sync::PoisonError, time::Duration};

use tokio::time::Instant;

use crate::Decision;

const DENIALS_MAX: usize = 10_000;
/// Callers may send long values. This bounds the memory that they take.
const REQUEST_BYTES_MAX: usize = 1 << 10;

/// When each came, by the bytes of its request.
#[derive(Default)]
pub(crate) struct Denials(Mutex<HashMap<Vec<u8>, (Instant, Decision)>>);

impl Denials {
    /// The denial of an equal request, unless it is older than `time`, or its call may be made again.
    pub(crate) fn find(&self, request: &[u8], time: Duration) -> Option<Decision> {
        let denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (came, decision) = denials.get(request)?;
        let age = came.elapsed();
        (age < time.min(decision.retry_after?)).then(|| decision.later(age, 0))
    }

    /// At one more than the most, all are forgotten.
    pub(crate) fn add(&self, request: Vec<u8>, decision: Decision) {
        if request.len() > REQUEST_BYTES_MAX {
            return;
        }
        let mut denials = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        denials.insert(request, (Instant::now(), decision));
        if denials.len() > DENIALS_MAX {
            denials.clear();
        }
    }
}
