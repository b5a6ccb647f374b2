//! Middleware that limits an HTTP service, such as a router of axum or a server of tonic.

use std::task::{Context, Poll};
use std::{mem, pin::Pin, sync::Arc};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode, request::Parts};
use tonic::{Code, body::Body, codegen::Body as HttpBody, codegen::Bytes};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::{Layer, Service};

use crate::{Client, Decision, Descriptor, Error, Limiter, channel::BoxError};

const NOTHING: &str = "descriptors: the layer's function has found nothing to limit the request by";

type Denied = dyn Fn(&Decision) -> Response<Body> + Send + Sync;

/// Limits services. [`Client::layer`] makes it.
#[derive(Clone)]
pub struct LimitLayer<F> {
    client: Client,
    limiter: Option<Limiter>,
    descriptors: F,
    denied: Option<Arc<Denied>>,
}

/// A service behind a [`LimitLayer`].
#[derive(Clone)]
pub struct Limited<S, F> {
    service: S,
    layer: LimitLayer<F>,
}

impl Client {
    /// Limits HTTP services. The function says what a request is limited by. A request with an empty list is not limited. With
    /// `None`, such as for a request without an identity, it is not served, and the log says so.
    ///
    /// A denied request gets 429 with Retry-After and the RateLimit headers, and 503 if
    /// [`Options::on_failure`](crate::Options::on_failure) has denied it. A denied call of gRPC gets RESOURCE_EXHAUSTED
    /// with the same headers and with `RetryInfo`, or UNAVAILABLE. An allowed one gets the RateLimit headers.
    pub fn layer<F, On>(&self, descriptors: F) -> LimitLayer<F>
    where
        F: Fn(&Parts) -> On,
        On: Into<Option<Vec<Descriptor>>>,
    {
        LimitLayer { client: self.clone(), limiter: None, descriptors, denied: None }
    }
}

impl Limiter {
    /// Limits HTTP services as [`Client::layer`] does, those on hot keys in this process.
    pub fn layer<F, On>(&self, descriptors: F) -> LimitLayer<F>
    where
        F: Fn(&Parts) -> On,
        On: Into<Option<Vec<Descriptor>>>,
    {
        LimitLayer { limiter: Some(self.clone()), ..self.client.layer(descriptors) }
    }
}

impl<F> LimitLayer<F> {
    /// Makes the body and the headers of a denial. Its status becomes 429 or 503 unless the function sets one.
    #[must_use]
    pub fn denied<B>(
        mut self,
        response: impl Fn(&Decision) -> Response<B> + Send + Sync + 'static,
    ) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.denied = Some(Arc::new(move |decision| response(decision).map(Body::new)));
        self
    }
}

impl<S, F: Clone> Layer<S> for LimitLayer<F> {
    type Service = Limited<S, F>;

    fn layer(&self, service: S) -> Self::Service {
        Limited { service, layer: self.clone() }
    }
}

impl<S, F, On, Asked, Answer> Service<Request<Asked>> for Limited<S, F>
where
    S: Service<Request<Asked>, Response = Response<Answer>, Future: Send> + Clone + Send + 'static,
    F: Fn(&Parts) -> On,
    On: Into<Option<Vec<Descriptor>>>,
    Asked: Send + 'static,
    Answer: HttpBody<Data = Bytes> + Send + 'static,
    Answer::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Asked>) -> Self::Future {
        // The service that is ready, not its clone.
        let next = self.service.clone();
        let mut service = mem::replace(&mut self.service, next);
        let (parts, body) = request.into_parts();
        let descriptors = (self.layer.descriptors)(&parts).into();
        let is_grpc = is_grpc(&parts);
        let request = Request::from_parts(parts, body);
        let LimitLayer { client, limiter, denied, .. } = &self.layer;
        let (client, limiter, denied) = (client.clone(), limiter.clone(), denied.clone());
        Box::pin(async move {
            let decision = match descriptors {
                Some(descriptors) if descriptors.is_empty() => {
                    return Ok(service.call(request).await?.map(Body::new));
                }
                Some(descriptors) => match limiter {
                    Some(limiter) => limiter.decide(descriptors).await,
                    None => client.decide(descriptors).await,
                },
                None => Err(Error(NOTHING.to_owned())),
            };
            decision.as_ref().inspect_err(|mistake| client.log_mistake(mistake)).ok();
            let mut response = match denial(&decision, is_grpc, denied.as_deref()) {
                Some(response) => response,
                None => service.call(request).await?.map(Body::new),
            };
            for (name, value) in decision.iter().flat_map(Decision::headers) {
                response.headers_mut().insert(name, value.into());
            }
            Ok(response)
        })
    }
}

/// Whether it is a call of gRPC or gRPC-Web. No other client gets the status 200 by a header that looks alike.
fn is_grpc(request: &Parts) -> bool {
    let kind = request.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let more = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    let ends = |more: &[u8]| {
        more.is_empty()
            || more.starts_with(b"+")
            || more.starts_with(b"-web")
            || more.starts_with(b";")
    };
    request.method == Method::POST && more.is_some_and(ends)
}

/// The answer to a request that does not pass, without the headers of the decision.
fn denial(
    decision: &Result<Decision, Error>,
    is_grpc: bool,
    denied: Option<&Denied>,
) -> Option<Response<Body>> {
    let (status, code) = match decision {
        Ok(decision) if decision.allowed => return None,
        Ok(decision) if decision.failed() => (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
        Ok(_) => (StatusCode::TOO_MANY_REQUESTS, Code::ResourceExhausted),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
    };
    let text = status.canonical_reason().unwrap_or_default();
    if is_grpc {
        let mut details = ErrorDetails::new();
        if let Some(time) = decision.as_ref().ok().and_then(|decision| decision.retry_after) {
            details.set_retry_info(Some(time));
        }
        return Some(tonic::Status::with_error_details(code, text, details).into_http());
    }
    let mut response = match (decision, denied) {
        (Ok(decision), Some(denied)) => denied(decision),
        _ => {
            let mut response = Response::new(Body::new(format!("{text}\n")));
            let kind = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
    };
    if response.status() == StatusCode::OK {
        *response.status_mut() = status;
    }
    Some(response)
}
