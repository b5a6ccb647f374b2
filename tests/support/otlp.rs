//! An OTLP receiver over gRPC and HTTP/protobuf, with or without TLS, that decodes what it receives, or refuses it.

use std::convert::Infallible;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::ExportLogsServiceRequest, metrics::v1::ExportMetricsServiceRequest,
        trace::v1::ExportTraceServiceRequest,
    },
    common::v1::{KeyValue, any_value::Value},
    logs::v1::LogRecord,
    trace::v1::Span,
};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use super::{certificates::Issued, prelude::*};

/// What it has received.
#[derive(Clone, Default)]
pub struct Receiver {
    pub refuses: Arc<AtomicBool>,
    pub refused: Arc<AtomicUsize>,
    pub traces: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    pub metrics: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
    pub logs: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
    /// The head of each request.
    pub heads: Arc<Mutex<Vec<(String, HeaderMap)>>>,
}

impl Receiver {
    /// A receiver, and its endpoint.
    pub async fn start() -> (Self, String) {
        Self::start_with(None).await
    }

    /// A receiver with TLS; its certificate must be for `localhost`.
    pub async fn start_with_tls(certificate: &Issued) -> (Self, String) {
        let chain = vec![CertificateDer::from_pem_file(&certificate.certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::start_with(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start_with(tls: Option<TlsAcceptor>) -> (Self, String) {
        let receiver = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let own = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                match &tls {
                    None => own.serve(stream),
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            own.serve(stream);
                        }
                    }
                }
            }
        });
        (receiver, format!("{scheme}://localhost:{port}"))
    }

    /// A receiver on a Unix socket.
    pub fn start_on(listener: UnixListener) -> Self {
        let receiver = Self::default();
        let own = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                own.serve(stream);
            }
        });
        receiver
    }

    fn serve(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let receiver = self.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| receiver.clone().answer(request));
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
        });
    }

    async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
        let (head, body) = request.into_parts();
        let is_grpc = head.headers["content-type"].as_bytes().starts_with(b"application/grpc");
        let mut body = body.collect().await?.to_bytes();
        if is_grpc {
            assert_eq!(body[0], 0, "not compressed");
            body = body.slice(5..);
        } else {
            assert_eq!(head.headers["content-type"], "application/x-protobuf");
        }
        let refuses = self.refuses.load(Ordering::Relaxed);
        if refuses {
            self.refused.fetch_add(1, Ordering::Relaxed);
        } else {
            self.heads.lock().unwrap().push((head.uri.path().to_owned(), head.headers));
            match head.uri.path() {
                "/v1/traces" | "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => {
                    let decoded = ExportTraceServiceRequest::decode(body).unwrap();
                    self.traces.lock().unwrap().push(decoded);
                }
                "/v1/metrics"
                | "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export" => {
                    let decoded = ExportMetricsServiceRequest::decode(body).unwrap();
                    self.metrics.lock().unwrap().push(decoded);
                }
                "/v1/logs" | "/opentelemetry.proto.collector.logs.v1.LogsService/Export" => {
                    let decoded = ExportLogsServiceRequest::decode(body).unwrap();
                    self.logs.lock().unwrap().push(decoded);
                }
                other => panic!("not OTLP: {other}"),
            }
        }
        Ok(if is_grpc { grpc_answer(refuses) } else { http_answer(refuses) })
    }

    /// Every span so far.
    pub fn spans(&self) -> Vec<Span> {
        let requests = self.traces.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Every log record so far.
    pub fn records(&self) -> Vec<LogRecord> {
        let requests = self.logs.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_logs);
        let scopes = resources.flat_map(|resource| &resource.scope_logs);
        scopes.flat_map(|scope| scope.log_records.clone()).collect()
    }

    /// The only span of this name in this trace, once it has arrived.
    #[track_caller]
    pub fn span(&self, name: &str, trace: &str) -> Span {
        eventually(&format!("a span {name} of {trace}"), || {
            let mut spans = self.spans();
            spans.retain(|span| span.name == name && hex(&span.trace_id) == trace);
            assert!(spans.len() <= 1, "one span {name} in {spans:?}");
            spans.pop()
        })
    }
}

fn grpc_answer(refuses: bool) -> Response<BoxBody<Bytes, Infallible>> {
    let response = Response::builder().header("content-type", "application/grpc");
    if refuses {
        let response = response.header("grpc-status", "7").header("grpc-message", "its own words");
        return response.body(Full::default().boxed()).unwrap();
    }
    let mut message = BytesMut::new();
    message.put_bytes(0, 5);
    let trailers = HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    let body = Full::new(message.freeze()).with_trailers(async { Some(Ok(trailers)) });
    response.body(body.boxed()).unwrap()
}

fn http_answer(refuses: bool) -> Response<BoxBody<Bytes, Infallible>> {
    let (status, text) = if refuses { (403, "its own words") } else { (200, "") };
    let response = Response::builder().status(status);
    response
        .header("content-type", "application/x-protobuf")
        .body(Full::from(text).boxed())
        .unwrap()
}

pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An attribute as text; lists are joined by commas, and an absent one is empty.
pub fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    let value = found.and_then(|found| found.value.clone()?.value);
    value.map_or_else(String::new, text)
}

fn text(value: Value) -> String {
    match value {
        Value::StringValue(text) => text,
        Value::BoolValue(truth) => truth.to_string(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        Value::ArrayValue(list) => {
            let items = list.values.into_iter().filter_map(|item| Some(text(item.value?)));
            items.collect::<Vec<_>>().join(",")
        }
        other => format!("{other:?}"),
    }
}
