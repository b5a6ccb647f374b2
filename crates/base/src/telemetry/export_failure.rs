//! Why an export failed: the SDK repeats the cause over gRPC, and hides it over HTTP.

use std::{sync::Arc, time::Duration};

use opentelemetry_http::HttpError;
use opentelemetry_sdk::error::OTelSdkError;
use parking_lot::Mutex;
use tokio::{runtime::Handle, time};

use crate::net::{
    peer::{self, PeerError, Protocol},
    tls::{ByteStream, client::TlsClient},
};

/// The server of one exporter, and why it does not take the data.
#[derive(Debug, Clone)]
pub(super) struct ExportFailure {
    addr: String,
    tls: Option<Arc<TlsClient>>,
    protocol: Protocol,
    timeout: Duration,
    /// The exporter's own thread has no runtime.
    runtime: Handle,
    /// The cause of the last failure, as the server's answer shows it.
    recorded: Arc<Mutex<Option<String>>>,
}

impl ExportFailure {
    pub(super) fn new(
        addr: String,
        tls: Option<Arc<TlsClient>>,
        protocol: Protocol,
        timeout: Duration,
    ) -> Self {
        Self { addr, tls, protocol, timeout, runtime: Handle::current(), recorded: Arc::default() }
    }

    pub(super) async fn connect(&self) -> Result<Box<dyn ByteStream>, PeerError> {
        peer::open(&self.addr, self.tls.as_deref(), self.protocol, self.timeout).await
    }

    pub(super) fn forget(&self) {
        *self.recorded.lock() = None;
    }

    pub(super) fn record(&self, cause: String) {
        *self.recorded.lock() = Some(cause);
    }

    /// Runs work for at most the time of one export.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, HttpError> {
        let timeout = self.timeout;
        #[expect(clippy::disallowed_methods, reason = "it is awaited here, and bounded in time")]
        let running = self.runtime.spawn(async move { time::timeout(timeout, work).await });
        Ok(running.await??)
    }

    /// The cause of an export that failed after the time `took`.
    pub(super) async fn cause(&self, error: &OTelSdkError, took: Duration) -> String {
        let recorded = self.recorded.lock().take();
        if recorded.is_none() && took >= self.timeout {
            return PeerError::Silent(self.timeout).to_string();
        }
        let Self { addr, tls, protocol, timeout, .. } = self.clone();
        let shown = async move { peer::diagnose(&addr, tls.as_deref(), protocol, timeout).await };
        if let Ok(Err(error)) = self.run(shown).await {
            return in_words(&error);
        }
        // The SDK begins with a name for the signal.
        let text = error.to_string();
        let cause = text.split_once(" export failed with ").map(|(_, cause)| cause.to_owned());
        recorded.or(cause).unwrap_or(text)
    }
}

fn in_words(error: &PeerError) -> String {
    match error {
        PeerError::SpeaksTls => format!("{error}; use https:// in the endpoint"),
        PeerError::DemandsCertificate => {
            format!("{error}; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn the_cause_is_what_was_recorded_then_the_time_then_what_the_sdk_says() {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let speaks_http2 = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            }
        };
        let failure = ExportFailure::new(addr, None, Protocol::Http2, TIMEOUT);
        let cause = async |took| {
            let text = "TonicTracesClient export failed with gRPC code: Unimplemented";
            failure.cause(&OTelSdkError::InternalFailure(text.to_owned()), took).await
        };
        let causes = async {
            failure.record("no route".to_owned());
            assert_eq!(cause(TIMEOUT).await, "no route");
            assert_eq!(cause(TIMEOUT).await, "no answer within 1s", "a cause explains one failure");
            failure.record("no route".to_owned());
            failure.forget();
            assert_eq!(cause(Duration::ZERO).await, "gRPC code: Unimplemented");
        };
        tokio::select! { () = causes => {} () = speaks_http2 => {} }
    }
}
