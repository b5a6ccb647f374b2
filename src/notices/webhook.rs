//! Sends notices as a batch of [CloudEvents](https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md)
//! by HTTP, signed as [Standard Webhooks](https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md)
//! says.

use std::{fmt, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use ring::hmac;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::event::Notice;
use crate::{
    net::{
        peer::{self, PeerError, Protocol, http1},
        tls::{client::TlsClient, last_good::OfFile},
    },
    process::clock::unix_seconds,
};

const BATCH_MAX: usize = 100;

/// How long a request may take, from the connection to the answer.
const WITHIN: Duration = Duration::from_secs(5);

/// The pauses before a batch is sent again.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Where notices are sent.
#[derive(Clone)]
pub struct Webhook {
    /// It may hold a secret.
    pub url: Uri,
    /// With `https`.
    pub tls: Option<Arc<TlsClient>>,
    pub key: Option<Arc<OfFile<Vec<u8>>>>,
}

/// Only what is no secret.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Webhook").field(&self.url.host()).finish()
    }
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error(transparent)]
    NoAnswer(#[from] PeerError),
    #[error("HTTP status {0}")]
    Status(StatusCode),
}

impl NotTaken {
    /// Whether it may be taken later.
    fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer(_) => true,
            Self::Status(status) => {
                status.is_server_error()
                    || matches!(
                        *status,
                        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
                    )
            }
        }
    }
}

impl Webhook {
    /// Sends what is waiting until there is no more. `report` gets `sent` or `dropped`, and how many.
    pub(super) async fn send_all(
        self,
        mut waiting: mpsc::Receiver<Notice>,
        stop: &CancellationToken,
        report: impl Fn(&'static str, usize),
    ) {
        let (mut batch, mut is_reached) = (Vec::new(), true);
        while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let count = batch.len();
            let body = body(&std::mem::take(&mut batch));
            let taken = self.send(&body, stop).await;
            report(if taken.is_ok() { "sent" } else { "dropped" }, count);
            if let (Err(error), true) = (&taken, is_reached) {
                let host = self.url.host().unwrap_or_default();
                tracing::warn!(%error, host, "the webhook takes no notices");
            }
            is_reached = taken.is_ok();
        }
    }

    /// Sends a batch, again while there is no answer or the server cannot take it, but only once after `stop`.
    async fn send(&self, body: &Bytes, stop: &CancellationToken) -> Result<(), NotTaken> {
        for pause in PAUSES {
            match self.send_once(body).await {
                Err(error) if error.may_pass() && !stop.is_cancelled() => {}
                ended => return ended,
            }
            stop.run_until_cancelled(sleep(pause)).await;
        }
        self.send_once(body).await
    }

    async fn send_once(&self, body: &Bytes) -> Result<(), NotTaken> {
        let exchange = async {
            let default_port = if self.tls.is_some() { 443 } else { 80 };
            let host = self.url.host().unwrap_or_default();
            let address = format!("{host}:{}", self.url.port_u16().unwrap_or(default_port));
            let stream = peer::open(&address, self.tls.as_deref(), Protocol::Http1, WITHIN).await?;
            http1::exchange(stream, self.request(body.clone()), ANSWER_BYTES_MAX).await
        };
        let answer = timeout(WITHIN, exchange).await.unwrap_or(Err(PeerError::Silent(WITHIN)))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(NotTaken::Status(status)),
        }
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let id = BASE64.encode(ring::digest::digest(&ring::digest::SHA256, &body));
        let seconds = unix_seconds().to_string();
        let key = self.key.as_ref().and_then(|file| Option::clone(&file.value()));
        let key = key.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key));
        let signature = key.map(|key| {
            let signed = [id.as_bytes(), b".", seconds.as_bytes(), b".", &body].concat();
            format!("v1,{}", BASE64.encode(hmac::sign(&key, &signed)))
        });
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        let path = self.url.path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        let host = self.url.authority().map(|authority| authority.as_str().to_owned());
        let headers = [
            (header::HOST.as_str(), host),
            ("content-type", Some("application/cloudevents-batch+json".to_owned())),
            ("webhook-id", Some(id)),
            ("webhook-timestamp", Some(seconds)),
            ("webhook-signature", signature),
        ];
        for (name, value) in headers {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                request.headers_mut().insert(name, value);
            }
        }
        request
    }
}

fn body(notices: &[Notice]) -> Bytes {
    notices.iter().map(Notice::event).collect::<Value>().to_string().into()
}

impl Notice {
    fn event(&self) -> Value {
        json!({
            "specversion": "1.0",
            "type": self.kind.event,
            "source": "tollkeeper",
            "id": self.event_id,
            "time": self.raised.date(),
            "subject": self.text("key").or(self.text("override")),
            "data": self.data.iter().cloned().collect::<Value>(),
        })
    }
}
