//! Exporters by OTLP, over gRPC or HTTP/protobuf. Their connections and TLS are ours; headers, timeouts and the
//! preference for a temporality are read by the SDK from its variables.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, Protocol, SpanExporter, WithExportConfig,
    WithHttpConfig, WithTonicConfig,
};
use tonic::transport::{Channel, Endpoint};

use super::export_failure::ExportFailure;
use crate::net::{
    peer::{self, http1},
    tls::client::TlsClient,
};

/// Upper bound on a collector's response body, which reports how much it has rejected.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A collector, as the standard variables describe it.
#[derive(Clone)]
pub struct OtlpEndpoint {
    /// The environment variable that holds the endpoint, for log lines.
    pub variable: String,
    /// The endpoint, which has a host, and `http` or `https`. It may hold a secret.
    pub url: Uri,
    pub protocol: OtlpProtocol,
    /// What makes its connections secure, with `https`.
    pub tls: Option<Arc<TlsClient>>,
    /// The time for one export, from the connection to the answer.
    pub timeout: Duration,
    pub batches: Batches,
}

/// When spans, metrics or log records are exported. The SDK would take any number from the variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    /// The time between two exports.
    pub delay: Duration,
    /// The most spans or log records that wait.
    pub waiting_max: usize,
    /// The most spans or log records in one export.
    pub size_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpProtocol {
    Grpc,
    HttpProtobuf,
}

impl fmt::Debug for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtlpEndpoint").field(&self.variable).finish()
    }
}

impl OtlpEndpoint {
    /// An exporter of spans, which records its failures. It must be built in a tokio runtime.
    pub(super) fn span_exporter(
        &self,
        failure: &ExportFailure,
    ) -> Result<SpanExporter, ExporterBuildError> {
        let builder = SpanExporter::builder();
        match self.protocol {
            OtlpProtocol::Grpc => self.grpc(builder.with_tonic(), failure).build(),
            OtlpProtocol::HttpProtobuf => self.http(builder.with_http(), failure).build(),
        }
    }

    /// An exporter of metrics, which records its failures. It must be built in a tokio runtime.
    pub(super) fn metric_exporter(
        &self,
        failure: &ExportFailure,
    ) -> Result<MetricExporter, ExporterBuildError> {
        let builder = MetricExporter::builder();
        match self.protocol {
            OtlpProtocol::Grpc => self.grpc(builder.with_tonic(), failure).build(),
            OtlpProtocol::HttpProtobuf => self.http(builder.with_http(), failure).build(),
        }
    }

    /// An exporter of log records, which records its failures. It must be built in a tokio runtime.
    pub(super) fn log_exporter(
        &self,
        failure: &ExportFailure,
    ) -> Result<LogExporter, ExporterBuildError> {
        let builder = LogExporter::builder();
        match self.protocol {
            OtlpProtocol::Grpc => self.grpc(builder.with_tonic(), failure).build(),
            OtlpProtocol::HttpProtobuf => self.http(builder.with_http(), failure).build(),
        }
    }

    fn grpc<B: WithTonicConfig>(&self, builder: B, failure: &ExportFailure) -> B {
        builder.with_channel(self.channel(failure))
    }

    fn http<B: WithExportConfig + WithHttpConfig>(&self, builder: B, failure: &ExportFailure) -> B {
        builder.with_protocol(Protocol::HttpBinary).with_http_client(self.http_client(failure))
    }

    fn channel(&self, failure: &ExportFailure) -> Channel {
        let failure = failure.clone();
        Endpoint::from(self.url.clone()).timeout(self.timeout).connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let failure = failure.clone();
                async move { failure.connect().await.map(TokioIo::new) }
            }),
        )
    }

    fn http_client(&self, failure: &ExportFailure) -> OtlpHttp {
        let authority = self.url.authority().map(|authority| authority.as_str());
        let host = authority.and_then(|text| text.rsplit('@').next()).unwrap_or_default();
        OtlpHttp {
            failure: failure.clone(),
            // An authority is visible ASCII.
            host: HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static("")),
        }
    }

    /// What its connections will show. It must be made in a tokio runtime.
    pub(super) fn failure(&self) -> ExportFailure {
        let host = self.url.host().unwrap_or_default();
        let port = self.url.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let protocol = match self.protocol {
            OtlpProtocol::Grpc => peer::Protocol::Http2,
            OtlpProtocol::HttpProtobuf => peer::Protocol::Http1,
        };
        ExportFailure::new(format!("{host}:{port}"), self.tls.clone(), protocol, self.timeout)
    }
}

/// OTLP over HTTP/1.1, one connection for each export: there are few of them.
#[derive(Debug)]
struct OtlpHttp {
    failure: ExportFailure,
    host: HeaderValue,
}

#[tonic::async_trait]
impl HttpClient for OtlpHttp {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        request.headers_mut().insert(header::HOST, self.host.clone());
        let failure = self.failure.clone();
        self.failure.run(async move { exchange(&failure, request).await }).await?
    }
}

async fn exchange(
    failure: &ExportFailure,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().cloned();
    head.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    let request = Request::from_parts(head, Full::new(body));
    failure.forget();
    let answer = http1::exchange(failure.connect().await?, request, ANSWER_BYTES_MAX).await;
    match &answer {
        Ok(answer) if answer.status().is_success() => {}
        Ok(answer) => failure.record(format!("HTTP status {}", answer.status())),
        Err(error) => failure.record(error.to_string()),
    }
    Ok(answer?)
}
