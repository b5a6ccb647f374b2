//! Decides which calls are sampled, and hands spans that have ended to the exporter.

use std::time::{Instant, SystemTime};

use http::HeaderMap;
use opentelemetry::{
    InstrumentationScope, KeyValue, StringValue,
    trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{
        BatchSpanProcessor, IdGenerator as _, RandomIdGenerator, SpanData, SpanLinks, SpanProcessor,
    },
};

use super::{
    Propagator, Sampling,
    parent::{self, header},
};
use crate::VERSION;

/// The most that one span holds; the rest is counted as dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLimits {
    pub attributes: usize,
    pub links: usize,
}

impl Default for SpanLimits {
    fn default() -> Self {
        Self { attributes: 128, links: 128 }
    }
}

#[derive(Debug)]
pub struct Tracer {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    ids: RandomIdGenerator,
    sampling: Sampling,
    propagators: Vec<Propagator>,
    limits: SpanLimits,
}

/// When a span began, by the wall clock and for measuring.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanStart {
    pub(super) at: SystemTime,
    pub(super) measured: Instant,
}

impl SpanStart {
    #[expect(clippy::disallowed_methods, reason = "collectors compare spans of several hosts")]
    pub(super) fn now() -> Self {
        Self { at: SystemTime::now(), measured: Instant::now() }
    }
}

pub(super) struct EndedSpan {
    pub(super) context: SpanContext,
    /// Its parent, and whether that is in another process.
    pub(super) parent: Option<(SpanId, bool)>,
    pub(super) kind: SpanKind,
    pub(super) name: &'static str,
    pub(super) start: SpanStart,
    pub(super) attributes: Vec<KeyValue>,
    pub(super) links: Vec<Link>,
    /// The type of its error, if it has failed.
    pub(super) error_type: Option<StringValue>,
}

impl Tracer {
    /// Hands spans to `processor`.
    pub(in crate::telemetry) fn new(
        processor: BatchSpanProcessor,
        sampling: Sampling,
        propagators: Vec<Propagator>,
        limits: SpanLimits,
    ) -> Self {
        let scope = InstrumentationScope::builder("tollkeeper").with_version(VERSION).build();
        Self { processor, scope, ids: RandomIdGenerator::default(), sampling, propagators, limits }
    }

    /// A span in the trace of a call with these headers, and the caller's span, if the call is sampled.
    pub(super) fn sample(&self, headers: &HeaderMap) -> Option<(SpanContext, Option<SpanId>)> {
        let caller = parent::caller(headers, &self.propagators);
        let trace = self.sampling.sample(&caller, &self.ids)?;
        let parent = caller.span.map(|(_, span)| span);
        let state = header(headers, "tracestate").filter(|_| parent.is_some());
        let state = state.and_then(|state| state.parse().ok()).unwrap_or_default();
        Some((self.context(trace, state), parent))
    }

    /// Exports what is left; blocks.
    pub(in crate::telemetry) fn shutdown(&self) -> OTelSdkResult {
        self.processor.shutdown()
    }

    pub(super) fn context(&self, trace: TraceId, state: TraceState) -> SpanContext {
        SpanContext::new(trace, self.ids.new_span_id(), TraceFlags::SAMPLED, false, state)
    }

    pub(super) fn end(&self, ended: EndedSpan) {
        let EndedSpan { context, parent, kind, name, start, .. } = ended;
        let (mut attributes, links) = (ended.attributes, ended.links);
        let mut status = Status::Unset;
        if let Some(error_type) = ended.error_type {
            attributes.insert(0, KeyValue::new("error.type", error_type));
            status = Status::error("");
        }
        let dropped_attributes_count = truncate(&mut attributes, self.limits.attributes);
        let mut kept = SpanLinks::default();
        kept.links = links;
        kept.dropped_count = truncate(&mut kept.links, self.limits.links);
        let (parent_span_id, parent_span_is_remote) = parent.unwrap_or((SpanId::INVALID, false));
        self.processor.on_end(SpanData {
            span_context: context,
            parent_span_id,
            parent_span_is_remote,
            span_kind: kind,
            name: name.into(),
            start_time: start.at,
            end_time: start.at + start.measured.elapsed(),
            attributes,
            dropped_attributes_count,
            events: Default::default(),
            links: kept,
            status,
            instrumentation_scope: self.scope.clone(),
        });
    }
}

/// Drops what is beyond the limit, and returns how much that is.
fn truncate<T>(items: &mut Vec<T>, max: usize) -> u32 {
    let dropped = items.len().saturating_sub(max);
    items.truncate(max);
    u32::try_from(dropped).unwrap_or(u32::MAX)
}
