//! The client: what it sends, how long it waits, and what it decides without an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::{runtime::Handle, sync::watch, time::timeout};
use tonic::{Code, Request, Response};

use crate::channel::{Channel, Target};
use crate::v1::{CommitRequest, DecideRequest, tollkeeper_client::TollkeeperClient};
use crate::{Call, Commit, Decision, Descriptor, Error, ServiceError, call::validate_all};

const LATE: &str = "no answer within the timeout";

/// Decides calls in one domain. Make one for the process: clones share its connections.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    domain: String,
    options: Options,
    service: TollkeeperClient<Channel>,
    pub(crate) runtime: Handle,
    /// Number of commits under way that may have no caller.
    pub(crate) under_way: watch::Sender<usize>,
}

/// Settings of a client.
#[derive(Clone)]
pub struct Options {
    /// Of a decision, and of each attempt of a commit. 50 ms by default.
    pub timeout: Duration,
    /// Decides calls that the service does not answer.
    pub on_failure: OnFailure,
    /// Encrypts the connections.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::Tls>,
    /// For metrics. It is called after each attempt of a request.
    pub on_call: Option<Arc<OnCall>>,
}

/// Gets `decide` or `commit`, the time, and `ok` or a gRPC code such as `DEADLINE_EXCEEDED`.
pub type OnCall = dyn Fn(&'static str, Duration, &'static str) + Send + Sync;

type Decide = dyn Fn(&ServiceError, &[Descriptor]) -> bool + Send + Sync;

/// What becomes of calls that the service does not answer.
#[derive(Clone, Default)]
pub enum OnFailure {
    /// They pass: the limit protects capacity.
    #[default]
    Allow,
    /// They are denied: the limit protects a password or money.
    Deny,
    /// A function of the error and the descriptors of the call decides. [`OnFailure::by`] makes it.
    By(Arc<Decide>),
}

impl OnFailure {
    /// The function returns whether the call may pass.
    pub fn by(
        decide: impl Fn(&ServiceError, &[Descriptor]) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::By(Arc::new(decide))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(50),
            on_failure: OnFailure::Allow,
            #[cfg(feature = "tls")]
            tls: None,
            on_call: None,
        }
    }
}

impl Client {
    /// Makes a client of the service at a target such as `host:port`, for a domain. It does not wait for the service.
    ///
    /// Calls go to all addresses of the name in turn. A target may be several names, separated by commas.
    ///
    /// # Errors
    ///
    /// If a setting is not valid, or outside of a tokio runtime.
    pub fn new(target: &str, domain: &str, options: Options) -> Result<Self, Error> {
        if domain.is_empty() {
            return Err(Error("domain: must not be empty".to_owned()));
        }
        let target = Target::new(target, &options)?;
        let runtime = Handle::try_current().map_err(|error| Error(format!("runtime: {error}")))?;
        let origin = target.origin.clone();
        let service = TollkeeperClient::with_origin(Channel::open(target), origin)
            // The answer to 1,000 calls may exceed the default of 4 MiB.
            .max_decoding_message_size(usize::MAX);
        let (domain, under_way) = (domain.to_owned(), watch::Sender::new(0));
        Ok(Self(Arc::new(Shared { domain, options, service, runtime, under_way })))
    }

    /// Charges one hit to each descriptor if all of them have room, or else nothing.
    ///
    /// It fails, like all methods, only by a mistake of the caller, such as no descriptor.
    pub async fn decide(&self, descriptors: impl Into<Vec<Descriptor>>) -> Result<Decision, Error> {
        self.decide_call(Call::take(1, descriptors)).await
    }

    /// [`Self::decide`] for a number of hits. With 0 hits it is [`Self::check`].
    pub async fn decide_n(
        &self,
        hits: u64,
        descriptors: impl Into<Vec<Descriptor>>,
    ) -> Result<Decision, Error> {
        self.decide_call(Call::take(hits, descriptors)).await
    }

    /// Charges nothing, and answers as for one hit.
    pub async fn check(&self, descriptors: impl Into<Vec<Descriptor>>) -> Result<Decision, Error> {
        self.decide_call(Call::check(descriptors)).await
    }

    /// Charges nothing and denies nothing: the decision has a status for each limit of each descriptor.
    pub async fn read(&self, descriptors: impl Into<Vec<Descriptor>>) -> Result<Decision, Error> {
        self.decide_call(Call::read(descriptors)).await
    }

    /// Charges hits in any case, for work that is done. The decision shows whether they fit.
    pub async fn debit(
        &self,
        hits: u64,
        descriptors: impl Into<Vec<Descriptor>>,
    ) -> Result<Decision, Error> {
        self.decide_call(Call::debit(hits, descriptors)).await
    }

    /// Gives hits back.
    pub async fn refund(
        &self,
        hits: u64,
        descriptors: impl Into<Vec<Descriptor>>,
    ) -> Result<Decision, Error> {
        self.decide_call(Call::refund(hits, descriptors)).await
    }

    /// Decides one call, such as [`Call::part`].
    pub async fn decide_call(&self, call: Call) -> Result<Decision, Error> {
        call.validate()?;
        Ok(self.0.decide(vec![call]).await.pop().expect("one decision for each call"))
    }

    /// Decides up to 1,000 calls in one request, each for itself. The decisions are in the order of the calls.
    pub async fn decide_all(&self, calls: impl Into<Vec<Call>>) -> Result<Vec<Decision>, Error> {
        let calls = calls.into();
        validate_all(&calls)?;
        Ok(if calls.is_empty() { Vec::new() } else { self.0.decide(calls).await })
    }
}

impl Shared {
    async fn decide(&self, calls: Vec<Call>) -> Vec<Decision> {
        let number = calls.len();
        let asked = match &self.options.on_failure {
            OnFailure::By(_) => calls.clone(),
            OnFailure::Allow | OnFailure::Deny => Vec::new(),
        };
        let request = self.timed(DecideRequest { domain: self.domain.clone(), calls });
        let mut service = self.service.clone();
        let answer = self.send("decide", service.decide(request), |answer| {
            if answer.verdicts.len() == number { Ok(answer.verdicts) } else { Err(not_ours()) }
        });
        let decisions: Vec<_> = match answer.await {
            Ok(verdicts) => verdicts.into_iter().map(Decision::decode).collect(),
            Err(error) => vec![Err(error); number],
        };
        let decisions = decisions.into_iter().enumerate();
        let decided = |(index, decision): (usize, Result<_, _>)| {
            decision.unwrap_or_else(|error| self.failed(error, asked.get(index)))
        };
        decisions.map(decided).collect()
    }

    fn failed(&self, error: ServiceError, call: Option<&Call>) -> Decision {
        let allowed = match &self.options.on_failure {
            OnFailure::Allow => true,
            OnFailure::Deny => false,
            OnFailure::By(decide) => decide(&error, call.map_or(&[], |call| &call.descriptors)),
        };
        Decision { allowed, error: Some(error), ..Decision::default() }
    }

    /// Makes one attempt. Returns whether the service has answered, and the error.
    pub(crate) async fn commit(&self, commit: Commit) -> (bool, Result<(), ServiceError>) {
        let request = CommitRequest { domain: self.domain.clone(), commits: vec![commit] };
        let mut service = self.service.clone();
        let mut is_answered = false;
        let answer = self.send("commit", service.commit(self.timed(request)), |mut answer| {
            is_answered = true;
            let result = answer.results.pop().ok_or_else(not_ours)?;
            result.error.map_or(Ok(()), |error| Err(error.into()))
        });
        let answer = answer.await;
        (is_answered, answer)
    }

    fn timed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.options.timeout);
        request
    }

    async fn send<T, Answer>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<Response<T>, tonic::Status>>,
        decode: impl FnOnce(T) -> Result<Answer, ServiceError>,
    ) -> Result<Answer, ServiceError> {
        let began = Instant::now();
        let answer = match timeout(self.options.timeout, call).await {
            Ok(Ok(response)) => decode(response.into_inner()),
            Ok(Err(status)) => Err(ServiceError::new(status.code(), status.message())),
            Err(_) => Err(ServiceError::new(Code::DeadlineExceeded, LATE)),
        };
        if let Some(on_call) = &self.options.on_call {
            let outcome = answer.as_ref().map_or_else(|error| error.code, |_| "ok");
            on_call(method, began.elapsed(), outcome);
        }
        answer
    }
}

/// The failure of a call whose answer does not fit its request.
fn not_ours() -> ServiceError {
    ServiceError::new(Code::Internal, "the answer has another number of items than the request")
}
