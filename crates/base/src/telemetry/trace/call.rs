//! The server span of one call, by the RPC or the HTTP conventions, and what it records about the decision.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use opentelemetry::{
    KeyValue, StringValue,
    trace::{Link, SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState},
};
use parking_lot::Mutex;
use tonic::Code as GrpcCode;

use super::tracer::{EndedSpan, SpanStart, Tracer};
use crate::net::grpc::{self, ServedMethod, is_server_error};

/// The span of a sampled call, while the call is under way.
#[derive(Debug)]
pub struct CallSpan {
    tracer: Arc<Tracer>,
    context: SpanContext,
    parent: Option<SpanId>,
    start: SpanStart,
    details: Mutex<CallDetails>,
}

/// What is known of the call so far.
#[derive(Debug, Default)]
struct CallDetails {
    attributes: Vec<KeyValue>,
    /// The script runs that have served it, of which the last one decided it, and the takes of holds that it commits.
    links: Vec<Link>,
    wait: Option<Wait>,
}

/// How a call waited for a script run.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// The time from the call's arrival in the queue to the run, in seconds.
    pub seconds: f64,
    /// What it waited for, as a value of an attribute.
    pub reason: &'static str,
}

impl Wait {
    fn attributes(self) -> [KeyValue; 2] {
        [
            KeyValue::new("ratelimit.wait.duration", self.seconds),
            KeyValue::new("ratelimit.wait.reason", self.reason),
        ]
    }
}

impl CallSpan {
    /// The span of a call with these headers, if it is sampled; else nothing is built.
    pub fn begin(tracer: &Arc<Tracer>, headers: &HeaderMap) -> Option<Arc<Self>> {
        let (context, parent) = tracer.sample(headers)?;
        let (start, details) = (SpanStart::now(), Mutex::default());
        Some(Arc::new(Self { tracer: Arc::clone(tracer), context, parent, start, details }))
    }

    pub(super) const fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    pub const fn context(&self) -> &SpanContext {
        &self.context
    }

    /// Records what its tasks know about the call.
    pub fn record(&self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.details.lock().attributes.extend(attributes);
    }

    /// Records a script run that serves this call.
    pub(super) fn served_by(&self, run: SpanContext, wait: Wait) {
        let mut details = self.details.lock();
        details.links.push(Link::new(run, wait.attributes().to_vec(), 0));
        details.wait = Some(wait);
    }

    pub fn ids(&self) -> ([u8; 16], [u8; 8]) {
        (self.context.trace_id().to_bytes(), self.context.span_id().to_bytes())
    }

    pub fn link(&self, (trace, span): ([u8; 16], [u8; 8])) {
        let ids = (TraceId::from_bytes(trace), SpanId::from_bytes(span));
        let other = SpanContext::new(ids.0, ids.1, TraceFlags::SAMPLED, true, TraceState::NONE);
        self.details.lock().links.push(Link::new(other, Vec::new(), 0));
    }

    /// Ends the span of a gRPC call with its status, and exports it.
    pub fn end(&self, method: ServedMethod, code: GrpcCode) {
        let of_call = vec![
            KeyValue::new("rpc.system.name", "grpc"),
            KeyValue::new("rpc.method", method.name()),
            KeyValue::new("rpc.response.status_code", grpc::status_name(code)),
        ];
        let error_type = is_server_error(code).then(|| grpc::status_name(code).into());
        self.export(method.name(), of_call, error_type);
    }

    /// Ends the span of an HTTP call with its status, and exports it. Its name is a method and a path.
    pub fn end_http(&self, name: &'static str, scheme: &'static str, status: StatusCode) {
        let (method, path) = name.split_once(' ').unwrap_or((name, ""));
        let of_call = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", path),
            KeyValue::new("url.path", path),
            KeyValue::new("url.scheme", scheme),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
        ];
        let error_type = status.is_server_error().then(|| status.as_str().to_owned().into());
        self.export(name, of_call, error_type);
    }

    fn export(
        &self,
        name: &'static str,
        mut attributes: Vec<KeyValue>,
        error_type: Option<StringValue>,
    ) {
        let CallDetails { attributes: of_decision, links, wait } =
            std::mem::take(&mut *self.details.lock());
        attributes.extend(of_decision);
        attributes.extend(wait.into_iter().flat_map(Wait::attributes));
        self.tracer.end(EndedSpan {
            context: self.context.clone(),
            parent: self.parent.map(|parent| (parent, true)),
            kind: SpanKind::Server,
            name,
            start: self.start,
            attributes,
            links,
            error_type,
        });
    }
}
