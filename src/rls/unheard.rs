//! What was taken by calls whose answer waits to be written, which is given back if their client leaves before.

use std::{mem, sync::Arc};

use hyper::rt::Executor as _;

use crate::{
    limiter::{Limiter, holds::Taken},
    process::calls::CallTracker,
};

/// Gives back when it is dropped, unless the answer is heard.
pub(super) struct Unheard {
    pub(super) taken: Taken,
    pub(super) limiter: Arc<Limiter>,
    pub(super) calls: CallTracker,
}

impl Unheard {
    pub(super) fn heard(mut self) {
        self.taken = Taken::default();
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let (taken, limiter) = (mem::take(&mut self.taken), Arc::clone(&self.limiter));
        if !taken.is_empty() {
            self.calls.execute(async move { limiter.give_back(taken).await });
        }
    }
}
