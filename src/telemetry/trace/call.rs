//! The server span of one call, by the RPC conventions, and what it says about the decision.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::{
    Array, KeyValue, StringValue, Value,
    trace::{Link, SpanContext, SpanId, SpanKind, Status as SpanStatus},
};
use tonic::Code as GrpcCode;

use super::tracer::{EndedSpan, SpanStart, Tracer};
use crate::{
    engine::{
        decision::{Code, Decision, Matched, Outcome},
        rule::OnStoreFailure,
    },
    grpc,
    telemetry::{is_server_error, status_name},
};

/// The span of a sampled call, while the call is under way.
#[derive(Debug)]
pub(crate) struct CallSpan {
    tracer: Arc<Tracer>,
    context: SpanContext,
    parent: Option<SpanId>,
    start: SpanStart,
    found: Mutex<Found>,
}

/// What is known of the call so far.
#[derive(Debug, Default)]
struct Found {
    attributes: Vec<KeyValue>,
    /// The script runs that have served it. The last one decided it.
    runs: Vec<Link>,
    /// How it waited for the last run.
    wait: Option<Wait>,
}

/// How a call waited for a script run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// The time from the question to the run, in seconds.
    pub(crate) seconds: f64,
    /// What it waited for, as a value of an attribute.
    pub(crate) reason: &'static str,
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
    pub(super) fn new(tracer: Arc<Tracer>, context: SpanContext, parent: Option<SpanId>) -> Self {
        let (start, found) = (SpanStart::now(), Mutex::default());
        Self { tracer, context, parent, start, found }
    }

    pub(super) const fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    /// The ids of its trace and its span.
    pub(crate) const fn context(&self) -> &SpanContext {
        &self.context
    }

    /// Records the decision, and the domain and rules that made it: names from the configuration only.
    pub(crate) fn decided(&self, decision: &Decision) {
        let statuses = &decision.statuses;
        let rules = statuses.iter().map(|status| rule_of(&status.matched)).collect();
        let verdicts = statuses.iter().map(|status| verdict(&status.outcome).into()).collect();
        let of_call = match decision.code {
            Code::Ok => "ok",
            Code::OverLimit => "over_limit",
        };
        let domain = statuses.first().map_or("other".into(), |status| domain_of(&status.matched));
        self.found().attributes.extend([
            KeyValue::new("ratelimit.domain", domain),
            KeyValue::new("ratelimit.rules", names(rules)),
            KeyValue::new("ratelimit.verdicts", names(verdicts)),
            KeyValue::new("ratelimit.verdict", of_call),
        ]);
    }

    /// Records the rules whose `on_store_failure` decided, since the store gave no answer.
    pub(crate) fn fell_back(&self, rules: Vec<(String, OnStoreFailure)>) {
        let (rules, modes): (Vec<StringValue>, Vec<StringValue>) =
            rules.into_iter().map(|(rule, mode)| (rule.into(), mode.name().into())).unzip();
        self.found().attributes.extend([
            KeyValue::new("ratelimit.fallback.rules", names(rules)),
            KeyValue::new("ratelimit.fallback.modes", names(modes)),
        ]);
    }

    /// Records that the store was not asked, since it denied the same within the last second.
    pub(crate) fn denied_by_cache(&self) {
        self.found().attributes.push(KeyValue::new("ratelimit.cached", true));
    }

    /// Records a script run that serves this call.
    pub(super) fn served_by(&self, run: SpanContext, wait: Wait) {
        let mut found = self.found();
        found.runs.push(Link::new(run, wait.attributes().to_vec(), 0));
        found.wait = Some(wait);
    }

    /// Ends the span with the call's gRPC status, and exports it.
    pub(crate) fn end(&self, code: GrpcCode) {
        let Found { attributes: of_decision, runs, wait } = std::mem::take(&mut *self.found());
        let mut attributes = Vec::with_capacity(of_decision.len() + 6);
        attributes.extend([
            KeyValue::new("rpc.system.name", "grpc"),
            KeyValue::new("rpc.method", grpc::METHOD),
            KeyValue::new("rpc.response.status_code", status_name(code)),
        ]);
        let mut status = SpanStatus::Unset;
        if is_server_error(code) {
            attributes.push(KeyValue::new("error.type", status_name(code)));
            status = SpanStatus::error("");
        }
        attributes.extend(of_decision);
        attributes.extend(wait.into_iter().flat_map(Wait::attributes));
        self.tracer.end(EndedSpan {
            context: self.context.clone(),
            parent: self.parent.map(|parent| (parent, true)),
            kind: SpanKind::Server,
            name: grpc::METHOD,
            start: self.start,
            attributes,
            links: runs,
            status,
        });
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn names(names: Vec<StringValue>) -> Value {
    Value::Array(Array::String(names))
}

/// The rule as it is configured, also if its metrics show values of requests.
fn rule_of(matched: &Matched) -> StringValue {
    match matched {
        Matched::Rule(_, rule) => Arc::clone(&rule.path).into(),
        Matched::Override(_) => "override".into(),
        Matched::NoLimit(_) => "none".into(),
        Matched::NoRule(_) | Matched::NoDomain => "other".into(),
    }
}

fn domain_of(matched: &Matched) -> StringValue {
    match matched {
        Matched::Rule(domain, _)
        | Matched::Override(domain)
        | Matched::NoLimit(domain)
        | Matched::NoRule(domain) => Arc::clone(domain).into(),
        Matched::NoDomain => "other".into(),
    }
}

const fn verdict(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Over { .. } => "over_limit",
        Outcome::Shadowed { .. } => "shadow",
        Outcome::NoLimit | Outcome::Unlimited | Outcome::Within { .. } => "ok",
    }
}
