//! Middleware that limits an HTTP service, such as a router of axum or a server of tonic.

use std::task::{Context, Poll};
use std::{mem, pin::Pin};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode, request::Parts};
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt as _};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Client, Decision, Descriptor, Error};

const DENIED: &str = "too many requests";
const UNAVAILABLE: &str = "rate limits are unavailable";

/// Limits services. [`Client::layer`] makes it.
#[derive(Clone)]
pub struct LimitLayer<F> {
    client: Client,
    descriptors: F,
}

/// A service behind a [`LimitLayer`].
#[derive(Clone)]
pub struct Limited<S, F> {
    service: S,
    layer: LimitLayer<F>,
}

impl Client {
    /// Limits HTTP services. The function says what a request is limited by; a request without descriptors is not limited.
    ///
    /// A denied request gets 429 with Retry-After and the RateLimit headers, and 503 if
    /// [`Options::on_failure`](crate::Options::on_failure) has denied it. A denied call of gRPC gets RESOURCE_EXHAUSTED
    /// with the same headers and with `RetryInfo`, or UNAVAILABLE. An allowed one gets the RateLimit headers.
    pub fn layer<F>(&self, descriptors: F) -> LimitLayer<F>
    where
        F: Fn(&Parts) -> Vec<Descriptor>,
    {
        LimitLayer { client: self.clone(), descriptors }
    }
}

impl<S, F: Clone> Layer<S> for LimitLayer<F> {
    type Service = Limited<S, F>;

    fn layer(&self, service: S) -> Self::Service {
        Limited { service, layer: self.clone() }
    }
}

impl<S, F, Asked, Answer> Service<Request<Asked>> for Limited<S, F>
where
    S: Service<Request<Asked>, Response = Response<Answer>, Future: Send> + Clone + Send + 'static,
    F: Fn(&Parts) -> Vec<Descriptor>,
    Asked: Send + 'static,
    Answer: Default + Send,
{
    type Response = Response<Answer>;
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
        let descriptors = (self.layer.descriptors)(&parts);
        let kind = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        let request = Request::from_parts(parts, body);
        let client = self.layer.client.clone();
        Box::pin(async move {
            if descriptors.is_empty() {
                return service.call(request).await;
            }
            let decision = client.decide(descriptors).await;
            let mut response = match denial(&decision, is_grpc) {
                Some(response) => response,
                None => service.call(request).await?,
            };
            for (name, value) in decision.iter().flat_map(Decision::headers) {
                response.headers_mut().insert(name, value.into());
            }
            Ok(response)
        })
    }
}

/// The answer to a request that does not pass, without the headers of the decision.
fn denial<Body: Default>(
    decision: &Result<Decision, Error>,
    is_grpc: bool,
) -> Option<Response<Body>> {
    let (status, code, text) = match decision {
        Err(mistake) => (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, mistake.to_string()),
        Ok(decision) if decision.allowed => return None,
        Ok(decision) if decision.failed() => {
            (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, UNAVAILABLE.to_owned())
        }
        Ok(_) => (StatusCode::TOO_MANY_REQUESTS, Code::ResourceExhausted, DENIED.to_owned()),
    };
    if is_grpc {
        let mut details = ErrorDetails::new();
        if let Some(time) = decision.as_ref().ok().and_then(|decision| decision.retry_after) {
            details.set_retry_info(Some(time));
        }
        return Some(tonic::Status::with_error_details(code, text, details).into_http());
    }
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    if let Err(mistake) = decision {
        // For a layer that logs.
        response.extensions_mut().insert(mistake.clone());
    }
    Some(response)
}
