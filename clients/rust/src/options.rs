//! The settings of a client.

use std::{sync::Arc, time::Duration};

use tonic::metadata::MetadataMap;

use crate::{Descriptor, Error, ServiceError};

/// Settings of a client.
#[derive(Clone)]
#[must_use]
pub struct Options {
    pub(crate) domain: String,
    pub(crate) timeout: Duration,
    pub(crate) commit_timeout: Duration,
    pub(crate) on_failure: OnFailure,
    pub(crate) on_call: Option<Arc<OnCall>>,
    pub(crate) metadata: Option<Arc<Metadata>>,
    pub(crate) require_limit: bool,
    pub(crate) remember_denials: Duration,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::Tls>,
}

type OnCall = dyn Fn(&'static str, Duration, &'static str) + Send + Sync;
type Metadata = dyn Fn(&mut MetadataMap) + Send + Sync;
type Decide = dyn Fn(&ServiceError, &[Descriptor]) -> bool + Send + Sync;

/// What becomes of calls that the service does not answer.
#[derive(Clone)]
#[non_exhaustive]
pub enum OnFailure {
    /// They pass: the limit protects capacity.
    Allow,
    /// They are denied: the limit protects a password or money.
    Deny,
    /// A function of the error and the descriptors of the call decides. [`OnFailure::by`] makes it.
    By(Arc<Decide>),
}

impl OnFailure {
    /// The function returns whether the call may pass. If it panics, the call is denied.
    pub fn by(
        decide: impl Fn(&ServiceError, &[Descriptor]) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::By(Arc::new(decide))
    }

    pub(crate) fn decide(&self, error: &ServiceError, descriptors: &[Descriptor]) -> bool {
        match self {
            _ if error.is_refusal() => false,
            Self::Allow => true,
            Self::Deny => false,
            Self::By(decide) => decide(error, descriptors),
        }
    }
}

impl Options {
    /// The settings for a domain: 50 ms for a decision, 2 s for a commit, and calls without an answer pass.
    pub fn new(domain: impl Into<String>) -> Self {
        Self {
            domain: domain.into(),
            timeout: Duration::from_millis(50),
            commit_timeout: Duration::from_secs(2),
            on_failure: OnFailure::Allow,
            on_call: None,
            metadata: None,
            require_limit: false,
            remember_denials: Duration::ZERO,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The name of a set of rules.
    pub fn domain(self, domain: impl Into<String>) -> Self {
        Self { domain: domain.into(), ..self }
    }

    /// The time of a decision.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The time of a commit, with its repetitions.
    pub fn commit_timeout(self, commit_timeout: Duration) -> Self {
        Self { commit_timeout, ..self }
    }

    /// Decides calls that the service does not answer.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// For metrics. It gets `decide`, `renew` or `commit`, the time, and `ok` or a gRPC code such as `DEADLINE_EXCEEDED`.
    pub fn on_call(
        self,
        on_call: impl Fn(&'static str, Duration, &'static str) + Send + Sync + 'static,
    ) -> Self {
        Self { on_call: Some(Arc::new(on_call)), ..self }
    }

    /// Sets metadata of each request, such as the `traceparent` of the present span.
    pub fn metadata(self, set: impl Fn(&mut MetadataMap) + Send + Sync + 'static) -> Self {
        Self { metadata: Some(Arc::new(set)), ..self }
    }

    /// Makes a call that met no limit a mistake of the caller, for tests and staging: it shows a typo in a key.
    pub fn require_limit(self, require_limit: bool) -> Self {
        Self { require_limit, ..self }
    }

    /// Denies a call without a request while the service has denied an equal one: until its `retry_after` is over, at most for
    /// this time. Meanwhile it does not see an override, a commit, a refund or a reset that would let the call pass. Zero, the
    /// default, turns it off.
    pub fn remember_denials(self, remember_denials: Duration) -> Self {
        Self { remember_denials, ..self }
    }

    /// Encrypts the connections.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: crate::Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    pub(crate) fn is_secured(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        if self.domain.is_empty() {
            return Err(Error("domain: must not be empty".to_owned()));
        }
        for (name, timeout) in [("timeout", self.timeout), ("commit_timeout", self.commit_timeout)]
        {
            if timeout.is_zero() {
                return Err(Error(format!("{name}: must be positive")));
            }
        }
        Ok(())
    }
}
