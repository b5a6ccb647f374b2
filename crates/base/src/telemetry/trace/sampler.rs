//! Which calls are sampled, by the caller's flag and the standard samplers. It is decided before anything is built.

use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample as _,
};

use super::parent::{Caller, SampledFlag};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    pub parent: ParentUse,
    /// The decision where no caller has made one.
    pub root: RootSampling,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentUse {
    Followed,
    Ignored,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RootSampling {
    All,
    Nothing,
    /// This part, 0 to 1, chosen by the trace id, so that every service chooses the same traces.
    Ratio(f64),
}

/// By `OTEL_TRACES_SAMPLER`'s default, `parentbased_always_on`.
impl Default for Sampling {
    fn default() -> Self {
        Self { parent: ParentUse::Followed, root: RootSampling::All }
    }
}

impl Sampling {
    /// The trace of a call that is sampled; `None` if it is not.
    pub(super) fn sample(&self, caller: &Caller, ids: &RandomIdGenerator) -> Option<TraceId> {
        let trace = || caller.span.map_or_else(|| ids.new_trace_id(), |(trace, _)| trace);
        match (self.parent, caller.flag) {
            (ParentUse::Followed, SampledFlag::NotSampled) => None,
            (ParentUse::Followed, SampledFlag::Sampled) => Some(trace()),
            (ParentUse::Followed, SampledFlag::Absent) | (ParentUse::Ignored, _) => match self.root
            {
                RootSampling::All => Some(trace()),
                RootSampling::Nothing => None,
                RootSampling::Ratio(ratio) => Some(trace()).filter(|trace| is_among(*trace, ratio)),
            },
        }
    }
}

/// Whether a trace belongs to this part of all, as the SDK decides it.
fn is_among(trace: TraceId, ratio: f64) -> bool {
    let sampler = Sampler::TraceIdRatioBased(ratio);
    let sampled = sampler.should_sample(None, trace, "", &SpanKind::Server, &[], &[]);
    sampled.decision == SamplingDecision::RecordAndSample
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::SpanId;

    use super::*;

    fn samples(parent: ParentUse, root: RootSampling, flag: SampledFlag, trace: u128) -> bool {
        let caller = Caller { span: Some((TraceId::from(trace), SpanId::from(1))), flag };
        let sampled = Sampling { parent, root }.sample(&caller, &RandomIdGenerator::default());
        assert!(
            sampled.is_none_or(|sampled| sampled == TraceId::from(trace)),
            "the caller's trace"
        );
        sampled.is_some()
    }

    #[test]
    fn the_callers_decision_wins_only_if_it_is_followed() {
        use SampledFlag::{Absent, NotSampled, Sampled};
        for (parent, root, flag, expected) in [
            (ParentUse::Followed, RootSampling::All, NotSampled, false),
            (ParentUse::Followed, RootSampling::Nothing, Sampled, true),
            (ParentUse::Followed, RootSampling::All, Absent, true),
            (ParentUse::Followed, RootSampling::Nothing, Absent, false),
            (ParentUse::Ignored, RootSampling::All, NotSampled, true),
            (ParentUse::Ignored, RootSampling::Nothing, Sampled, false),
        ] {
            assert_eq!(samples(parent, root, flag, 7), expected, "{parent:?} {root:?} {flag:?}");
        }
    }

    #[test]
    fn a_ratio_chooses_traces_by_the_low_half_of_their_ids() {
        let chosen = |low: u64, ratio| {
            let trace = (0xff_u128 << 64) | u128::from(low);
            samples(ParentUse::Ignored, RootSampling::Ratio(ratio), SampledFlag::Absent, trace)
        };
        assert!(chosen(0, 0.01) && chosen(u64::MAX / 4, 0.5));
        assert!(!chosen(u64::MAX / 4 * 3, 0.5) && !chosen(u64::MAX, 0.99));
        assert!(chosen(u64::MAX / 4 * 3, 1.0) && !chosen(0, 0.0));
    }

    #[test]
    fn a_call_without_a_trace_starts_one() {
        let caller = Caller::default();
        let trace = Sampling::default().sample(&caller, &RandomIdGenerator::default());
        assert_ne!(trace.expect("sampled"), TraceId::INVALID);
    }
}
