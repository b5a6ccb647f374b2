//! Panics: each is counted and its location is logged; a call that panics is answered, and the others go on.

use std::panic::{self, AssertUnwindSafe, Location};

use futures_util::FutureExt as _;

use super::metrics::EdgeMetrics;
use crate::telemetry::{LogCause, due_line};

/// Counts every panic, and logs its location at most once a minute. The text of a panic may hold values of a request, so it
/// is not logged.
pub(crate) fn report(metrics: EdgeMetrics) {
    panic::set_hook(Box::new(move |panic| {
        metrics.of.panics.add(1, &[]);
        let place = panic.location().map(Location::to_string).unwrap_or_default();
        if let Some(line) = due_line(LogCause::Panic, &place) {
            tracing::error!(
                suppressed = line.suppressed,
                "a bug: panicked at {place}; please report it (logged at most once a minute)"
            );
        }
    }));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs a call. What it shares with others has to stay valid when it panics, as it has when a call is dropped.
pub(crate) async fn caught<F: Future>(call: F) -> Result<F::Output, Panicked> {
    AssertUnwindSafe(call).catch_unwind().await.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_panics_is_an_error_and_others_have_their_answers() {
        assert_eq!(caught(async { panic!("at once") }).await, Err::<(), _>(Panicked));
        let later = async {
            tokio::task::yield_now().await;
            panic!("after a wait")
        };
        assert_eq!(caught(later).await, Err::<(), _>(Panicked));
        assert_eq!(caught(async { 7 }).await, Ok(7));
    }
}
