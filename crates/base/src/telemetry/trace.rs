//! Spans of sampled calls: a server span for each call, and a client span for each script run that serves one,
//! with links between the two, since one run decides many calls. A call that is not sampled has none of this.

mod call;
mod current;
mod parent;
mod sampler;
mod store;
mod tracer;

pub use {
    call::{CallSpan, Wait},
    current::{current, in_call, in_span_of_caller, with_call},
    store::StoreSpan,
};
pub use {
    parent::Propagator,
    sampler::{ParentUse, RootSampling, Sampling},
    tracer::{SpanLimits, Tracer},
};
