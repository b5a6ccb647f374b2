//! The span of the call that a task decides. It is kept beside the task, so that what lies between the wire and
//! the store need not know of it; a call that is not sampled has none, and asking for it allocates nothing.

use std::sync::Arc;

use tracing::Instrument as _;

use super::CallSpan;

tokio::task_local! {
    static CALL: Arc<CallSpan>;
}

/// Runs the decision of a sampled call. Its log lines have the ids of its trace and its span.
pub async fn in_call<T>(span: Arc<CallSpan>, decision: impl Future<Output = T>) -> T {
    let context = span.context();
    let (trace, id) = (context.trace_id(), context.span_id());
    // At this level it is in lines of every level.
    let in_lines = tracing::error_span!("call", trace_id = %trace, span_id = %id);
    CALL.scope(span, decision.instrument(in_lines)).await
}

/// The span of the call that this task decides, if the call is sampled.
pub fn current() -> Option<Arc<CallSpan>> {
    CALL.try_with(Arc::clone).ok()
}

/// Has a task that goes on without its caller record in the span of the call that is decided here, if it is sampled.
pub fn in_span_of_caller<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let call = current();
    async move {
        match call {
            Some(call) => CALL.scope(call, work).await,
            None => work.await,
        }
    }
}

/// Records something in the span of the call that this task decides, if the call is sampled.
pub fn with_call(record: impl FnOnce(&CallSpan)) {
    let _ = CALL.try_with(|span| record(span));
}
