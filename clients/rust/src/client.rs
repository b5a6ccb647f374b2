//! The client: what it sends, how long it waits, and what it decides without an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, sync::Arc, time::Duration};

use prost::Message as _;
use tokio::{runtime::Handle, select, sync::watch, time::Instant, time::timeout};
use tonic::{Code, Request, Response};
use tracing::Level;

use crate::call::{Call, Error, in_batch, too_large, validate_all};
use crate::channel::{self, BoxError, Channel, Target};
use crate::denials::Denials;
use crate::log::{CALLS, Log, service_text};
use crate::v1::{self, DecideRequest, Verdict, tollkeeper_client::TollkeeperClient};
use crate::{Decision, Descriptor, Options, ServiceError, Status, options::OnFailure};

pub(crate) type Service = TollkeeperClient<Channel>;

/// gRPC has no number for much more.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// Decides calls in one domain. Make one for the process: clones share its connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) options: Arc<Options>,
    pub(crate) shared: Arc<Shared>,
}

/// A decision, and the mistake of a call for which it is not the result. What it holds is then given back.
pub(crate) type Judged = (Decision, Option<Error>);

/// What a client and its views have in common.
pub(crate) struct Shared {
    /// Absent at the end of [`Client::close`].
    pub(crate) service: watch::Sender<Option<Service>>,
    pub(crate) runtime: Handle,
    /// Whether [`Client::close`] was called: no new call is sent, and leases are given back. Each lease that is out has a
    /// receiver.
    pub(crate) closes: watch::Sender<bool>,
    /// Number of commits and holds under way that may have no caller.
    pub(crate) under_way: watch::Sender<usize>,
    /// Number of holds that are not dropped.
    pub(crate) open: watch::Sender<usize>,
    /// Number of requests whose calls are not decided yet.
    pub(crate) deciding: watch::Sender<usize>,
    pub(crate) log: Log,
    denials: Denials,
}

/// One of what a number counts, until it is dropped, also where its runtime ends.
pub(crate) struct Counted(watch::Sender<usize>);

impl Counted {
    pub(crate) fn new(number: &watch::Sender<usize>) -> Self {
        number.send_modify(|number| *number += 1);
        Self(number.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|number| *number -= 1);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, target) = (&self.options.domain, &self.shared.log.target);
        let mut shown = formatter.debug_struct("Client");
        shown.field("domain", domain).field("target", target).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client of the service at a target such as `host:port`, and connects in the background.
    ///
    /// Calls go to all addresses of the name in turn. A target may be several names, separated by commas.
    ///
    /// # Errors
    ///
    /// If a setting is not valid, or outside of a tokio runtime.
    pub fn new(target: &str, options: Options) -> Result<Self, Error> {
        let text =
            format!("{target}, {} TLS", if options.is_secured() { "with" } else { "without" });
        let target = Target::new(target, &options)?;
        let origin = target.origin.clone();
        Self::make(text, options, || TollkeeperClient::with_origin(target.open(), origin))
    }

    /// Makes a client on a channel of the caller's own: one of tonic, or any other service of tower that sends requests of
    /// gRPC, with interceptors or layers around it. Its connections are its own affair.
    ///
    /// # Errors
    ///
    /// Outside of a tokio runtime.
    pub fn over<S, Body>(service: S, options: Options) -> Result<Self, Error>
    where
        S: tower::Service<http::Request<tonic::body::Body>, Response = http::Response<Body>>,
        S: Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        Body: tonic::codegen::Body<Data = tonic::codegen::Bytes> + Send + 'static,
        Body::Error: Into<BoxError>,
    {
        let target = "a channel of the caller's own".to_owned();
        Self::make(target, options, || TollkeeperClient::new(channel::over(service)))
    }

    pub(crate) fn make(
        target: String,
        options: Options,
        service: impl FnOnce() -> Service,
    ) -> Result<Self, Error> {
        options.validate()?;
        let runtime = Handle::try_current().map_err(|error| Error(format!("runtime: {error}")))?;
        // The answer to 1,000 calls may exceed the default of 4 MiB.
        let service = service().max_decoding_message_size(usize::MAX);
        let (service, under_way) = (watch::Sender::new(Some(service)), watch::Sender::new(0));
        let shared = Arc::new(Shared {
            service,
            runtime,
            closes: watch::Sender::new(false),
            under_way,
            open: watch::Sender::new(0),
            deciding: watch::Sender::new(0),
            log: Log::new(target),
            denials: Denials::default(),
        });
        Ok(Self { options: Arc::new(options), shared })
    }

    /// A view on the same connections with other settings, such as `client.with(|options| options.timeout(long))`. It is cheap
    /// enough for one call.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(Options) -> Options) -> Self {
        let options = Arc::new(change(Options::clone(&self.options)));
        Self { options, shared: Arc::clone(&self.shared) }
    }

    /// Decides a call. Without more than descriptors, it charges one hit to each of them if all have room, or else nothing.
    ///
    /// # Errors
    ///
    /// Only by a mistake of the caller, as all methods have it, such as no descriptor.
    pub async fn decide(&self, call: impl Into<Call>) -> Result<Decision, Error> {
        let call = call.into();
        call.validate("hits")?;
        let (decision, mistake) = self.decide_one(call).await?;
        mistake.map_or(Ok(decision), Err)
    }

    /// Decides up to 1,000 calls in one request, each for itself. The decisions are in the order of the calls.
    pub async fn decide_all<C: Into<Call>>(
        &self,
        calls: impl IntoIterator<Item = C>,
    ) -> Result<Vec<Decision>, Error> {
        let calls: Vec<Call> = calls.into_iter().map(Into::into).collect();
        validate_all(&calls)?;
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let decisions = self.decide_each(calls).await?.into_iter().enumerate();
        let checked = |(index, (decision, mistake)): (_, Judged)| {
            mistake.map_or(Ok(decision), |mistake| Err(in_batch(index)(mistake)))
        };
        decisions.map(checked).collect()
    }

    pub(crate) async fn decide_one(&self, call: Call) -> Result<Judged, Error> {
        Ok(self.decide_each(vec![call]).await?.pop().expect("one decision for each call"))
    }

    async fn decide_each(&self, calls: Vec<Call>) -> Result<Vec<Judged>, Error> {
        let (denials, time) = (&self.shared.denials, self.options.remember_denials);
        let request = self.memorable(&calls);
        if let Some(denial) = request.as_ref().and_then(|request| denials.find(request, time)) {
            return Ok(vec![(denial, None)]);
        }
        let ask = |calls| self.ask(self.options.timeout, calls);
        let decisions = self.judge("decide", calls, ask).await?;
        if let (Some(request), [(decision, None)]) = (request, &*decisions)
            && decision.retry_after.is_some()
        {
            denials.add(request, decision.clone());
        }
        Ok(decisions)
    }

    /// The request for these calls, if its denial is remembered.
    fn memorable(&self, calls: &[Call]) -> Option<Vec<u8>> {
        let [call] = calls else { return None };
        let is_on = !self.options.remember_denials.is_zero()
            && call.is_deniable_again()
            && too_large(calls).is_none();
        // A closed client decides by `on_failure`.
        if !is_on || self.is_closed() {
            return None;
        }
        let (domain, calls) = (self.options.domain.clone(), vec![call.clone().encode()]);
        Some(DecideRequest { domain, calls }.encode_to_vec())
    }

    fn is_closed(&self) -> bool {
        *self.shared.closes.borrow()
    }

    /// Asks for a verdict on each call, and decides the calls that have none.
    pub(crate) async fn judge<Asking>(
        &self,
        method: &'static str,
        calls: Vec<Call>,
        ask: impl FnOnce(Vec<v1::Call>) -> Asking,
    ) -> Result<Vec<Judged>, Error>
    where
        Asking: Future<Output = Result<Vec<Verdict>, ServiceError>>,
    {
        let (options, began) = (&self.options, Instant::now());
        options.validate()?;
        let _deciding = Counted::new(&self.shared.deciding);
        let sizes: Vec<_> = calls.iter().map(|call| call.descriptors.len()).collect();
        let number = sizes.len();
        let is_kept = options.require_limit || matches!(options.on_failure, OnFailure::By(_));
        let descriptors = calls.iter().map(|call| call.descriptors.clone());
        let asked: Vec<_> = if is_kept { descriptors.collect() } else { Vec::new() };
        let answer = match too_large(&calls) {
            Some(error) => Err(error),
            None if self.is_closed() => Err(closed()),
            None => ask(calls.into_iter().map(Call::encode).collect()).await,
        };
        let decisions = match answer {
            Ok(verdicts) if verdicts.len() == number => {
                self.shared.log.unknown(&options.domain, &verdicts);
                let verdicts = verdicts.into_iter().zip(sizes);
                verdicts.map(|(verdict, size)| Decision::decode(verdict, size)).collect()
            }
            Ok(_) => vec![Err(ServiceError::not_ours()); number],
            Err(error) => vec![Err(error); number],
        };
        let errors = decisions.iter().filter_map(|decision| decision.as_ref().err());
        self.observe(method, began, errors.clone().next());
        let failures = errors.filter(|error| !error.is_refusal());
        self.shared.log.errors(&CALLS, &options.domain, failures);
        let decide = |(index, decision)| {
            let on = asked.get(index).map_or(&[][..], Vec::as_slice);
            match decision {
                Ok(decision) => {
                    let mistake = self.without_limit(&decision, on);
                    (decision, mistake)
                }
                Err(error) => {
                    let decide = || options.on_failure.decide(&error, on);
                    let allowed = self.contained("on_failure", decide).unwrap_or_default();
                    (Decision { allowed, error: Some(error), ..Decision::default() }, None)
                }
            }
        };
        Ok(decisions.into_iter().enumerate().map(decide).collect())
    }

    /// The error if `require_limit` is set, and a descriptor meets neither a limit nor a rule.
    fn without_limit(&self, decision: &Decision, on: &[Descriptor]) -> Option<Error> {
        let is_free = |status: &&Status| {
            self.options.require_limit && status.limit.is_none() && status.rule.is_empty()
        };
        let free = decision.statuses.iter().find(is_free)?;
        let (index, domain) = (free.descriptor, &self.options.domain);
        let keys = on.get(index as usize).cloned().unwrap_or_default();
        let text = format!("no limit applies to {keys:?} in the domain {domain} (require_limit)");
        Some(Error(format!("descriptors[{index}]: {text}")))
    }

    /// Asks for verdicts, in one attempt.
    pub(crate) async fn ask(
        &self,
        time: Duration,
        calls: Vec<v1::Call>,
    ) -> Result<Vec<Verdict>, ServiceError> {
        let request = DecideRequest { domain: self.options.domain.clone(), calls };
        let rpc = async |mut service: Service, request| service.decide(request).await;
        Ok(self.send(time, request, rpc).await?.verdicts)
    }

    /// Makes one attempt.
    pub(crate) async fn send<Asked, Answer, Sending>(
        &self,
        time: Duration,
        message: Asked,
        rpc: impl FnOnce(Service, Request<Asked>) -> Sending,
    ) -> Result<Answer, ServiceError>
    where
        Sending: Future<Output = Result<Response<Answer>, tonic::Status>>,
    {
        let mut request = Request::new(message);
        request.set_timeout(time.min(TIMEOUT_MAX));
        if let Some(metadata) = &self.options.metadata {
            self.contained("metadata", || metadata(request.metadata_mut()));
        }
        let mut service = self.shared.service.subscribe();
        let open = service.borrow().clone().ok_or_else(closed)?;
        let answer = select! {
            biased;
            answer = timeout(time, rpc(open, request)) => answer,
            _ = service.wait_for(Option::is_none) => return Err(closed()),
        };
        match answer {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(ServiceError::new(status.code(), status.message())),
            Err(_) => {
                Err(ServiceError::new(Code::DeadlineExceeded, "no answer within the timeout"))
            }
        }
    }

    /// Calls the hook.
    pub(crate) fn observe(
        &self,
        method: &'static str,
        began: Instant,
        error: Option<&ServiceError>,
    ) {
        if let Some(on_call) = &self.options.on_call {
            let outcome = error.map_or("ok", |error| error.code);
            self.contained("on_call", || on_call(method, began.elapsed(), outcome));
        }
    }

    /// Calls a function of the user, whose panic must not reach the caller.
    fn contained<T>(&self, name: &'static str, call: impl FnOnce() -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(call)).ok();
        if result.is_none() {
            let line =
                move |times| format!("{name} panicked ({times} times since the last such line)");
            self.shared.log.add(Level::ERROR, name, 1, line);
        }
        result
    }

    /// Logs a mistake of the application, which its users may cause.
    #[cfg(feature = "tower")]
    pub(crate) fn log_mistake(&self, mistake: &Error) {
        let mistake = mistake.clone();
        let line = move |_| format!("a request was not served: {mistake}");
        self.shared.log.add(Level::ERROR, "mistake", 1, line);
    }

    /// Logs that the service does not lease hits for these descriptors. That is not a fault.
    pub(crate) fn log_refusal(&self, descriptors: &[Descriptor], refusal: &ServiceError) {
        let domain = &self.options.domain;
        let call = format!("each call on {descriptors:?} in the domain {domain:?} is a request");
        let refusal = service_text(refusal);
        let line = move |_| format!("{call}, since the service leases no hits for it: {refusal}");
        self.shared.log.add(Level::INFO, "refusal", 1, line);
    }
}

fn closed() -> ServiceError {
    ServiceError::new(Code::Cancelled, "the client is closed")
}
