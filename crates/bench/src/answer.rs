//! Reads an answer: the overall code, or the error's code. The rest of the message is returned undecoded.

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use prost::Message as _;
use tollkeeper_base::net::grpc::PREFIX_BYTES;
use tonic::Code;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverallCode {
    Ok,
    OverLimit,
}

/// The one field of `RateLimitResponse` that is read.
#[derive(prost::Message)]
struct Head {
    #[prost(int32, tag = "1")]
    overall_code: i32,
}

/// The value of `RateLimitResponse.Code.OVER_LIMIT`.
const OVER_LIMIT: i32 = 2;

/// Reads an answer to its end. Returns the decision, and the whole message.
pub(super) async fn read(response: Response<Incoming>) -> Result<(OverallCode, Bytes), Code> {
    // A status in the headers is the whole answer.
    status(response.headers()).unwrap_or(Ok(()))?;
    let mut body = response.into_body();
    let (mut message, mut end) = (Bytes::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| Code::Unavailable)?.into_data() {
            Ok(data) if message.is_empty() => message = data,
            Ok(data) => message = Bytes::from([message, data].concat()),
            Err(frame) => end = frame.trailers_ref().and_then(status),
        }
    }
    end.unwrap_or(Err(Code::Unknown))?;
    if message.len() < PREFIX_BYTES {
        return Err(Code::Internal);
    }
    let message = message.slice(PREFIX_BYTES..);
    let head = Head::decode(&message[..]).map_err(|_| Code::Internal)?;
    let is_over = head.overall_code == OVER_LIMIT;
    Ok((if is_over { OverallCode::OverLimit } else { OverallCode::Ok }, message))
}

fn status(headers: &HeaderMap) -> Option<Result<(), Code>> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    Some(if code == Code::Ok { Ok(()) } else { Err(code) })
}
