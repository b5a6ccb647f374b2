//! What one turn of one backend has measured.

/// The measurements of one turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// Processor time of the service per decision, in microseconds; NaN for backends without a service.
    pub(crate) service_us: f64,
    /// Processor time of Redis per decision, in microseconds; NaN if Redis is not asked.
    pub(crate) redis_us: f64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// The part of the calls that got no decision or could not be made, in percent.
    pub(crate) failed: f64,
}
