//! The client span of one round trip to the store, by the database conventions.

use std::sync::Arc;

use opentelemetry::{
    KeyValue,
    trace::{Link, SpanContext, SpanId, SpanKind},
};

use super::{
    CallSpan, Wait,
    tracer::{EndedSpan, SpanStart, Tracer},
};

/// The span of a round trip. Dropped before it [ends](Self::end), it got no answer in time.
#[derive(Debug)]
pub struct StoreSpan {
    tracer: Arc<Tracer>,
    context: SpanContext,
    parent: SpanId,
    operation: &'static str,
    start: SpanStart,
    attributes: Vec<KeyValue>,
    links: Vec<Link>,
    state: RoundTrip,
}

#[derive(Debug, PartialEq, Eq)]
enum RoundTrip {
    UnderWay,
    Ended,
}

impl StoreSpan {
    pub fn begin(operation: &'static str, attributes: Vec<KeyValue>, call: &CallSpan) -> Self {
        let (tracer, parent) = (Arc::clone(call.tracer()), call.context());
        let context = tracer.context(parent.trace_id(), parent.trace_state().clone());
        let start = SpanStart::now();
        let (links, state) = (Vec::new(), RoundTrip::UnderWay);
        let parent = parent.span_id();
        Self { tracer, context, parent, operation, start, attributes, links, state }
    }

    /// A script run that serves these calls: a child of the first, with a link to each, which gets one to the run.
    /// `None` if there are none.
    pub fn begin_run(
        operation: &'static str,
        attributes: Vec<KeyValue>,
        calls: &[(&CallSpan, Wait)],
    ) -> Option<Self> {
        let ((first, _), others) = calls.split_first()?;
        let mut span = Self::begin(operation, attributes, first);
        span.links.reserve_exact(others.len() + 1);
        for (call, wait) in calls {
            span.links.push(Link::with_context(call.context().clone()));
            call.served_by(span.context.clone(), *wait);
        }
        Some(span)
    }

    /// Ends the span with the type of the error, if there was one, and exports it.
    pub fn end(mut self, error_type: Option<String>) {
        self.export(error_type);
    }

    fn export(&mut self, error_type: Option<String>) {
        self.state = RoundTrip::Ended;
        let mut attributes = vec![
            KeyValue::new("db.system.name", "redis"),
            KeyValue::new("db.operation.name", self.operation),
        ];
        attributes.append(&mut self.attributes);
        self.tracer.end(EndedSpan {
            context: self.context.clone(),
            parent: Some((self.parent, false)),
            kind: SpanKind::Client,
            name: self.operation,
            start: self.start,
            attributes,
            links: std::mem::take(&mut self.links),
            error_type: error_type.map(Into::into),
        });
    }
}

impl Drop for StoreSpan {
    fn drop(&mut self) {
        if self.state == RoundTrip::UnderWay {
            self.export(Some("timeout".to_owned()));
        }
    }
}
