//! One request by HTTP/1.1, on a connection of its own.

use std::pin::pin;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{Request, Response, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::PeerError;

/// Sends a request, and reads its answer, whose body has at most `body_bytes_max`. The caller bounds the time.
///
/// # Errors
/// If the server ends the connection, or sends more. [`Ended`](PeerError::Ended) may also mean another protocol.
pub async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Full<Bytes>>,
    body_bytes_max: usize,
) -> Result<Response<Bytes>, PeerError> {
    let ended = |_| PeerError::Ended;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(ended)?;
    let answer = async {
        let (head, body) = sender.send_request(request).await.map_err(ended)?.into_parts();
        match Limited::new(body, body_bytes_max).collect().await {
            Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(PeerError::Failed(format!("the answer exceeds {body_bytes_max} bytes")))
            }
            Err(_) => Err(PeerError::Ended),
        }
    };
    let mut answer = pin!(answer);
    // The connection makes progress only while it is polled.
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // Its last poll may have read the whole answer.
        _ = connection => answer.await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// The body of the answer, or the error, where the server sends this and ends the connection.
    async fn answer_of(bytes: &[u8]) -> Result<Bytes, String> {
        let (mut server, client) = duplex(1024);
        let serve = async {
            assert!(server.read(&mut [0; 1024]).await.unwrap() > 0);
            server.write_all(bytes).await.unwrap();
            drop(server);
        };
        let asked = exchange(client, Request::new(Full::default()), 4);
        let (answer, ()) = tokio::join!(asked, serve);
        answer.map(Response::into_body).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn an_answer_is_read_though_the_connection_ends_with_it() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwell";
        assert_eq!(answer_of(whole).await, Ok(Bytes::from_static(b"well")));
        let until_the_end = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nwell";
        assert_eq!(answer_of(until_the_end).await, Ok(Bytes::from_static(b"well")));
    }

    #[tokio::test]
    async fn half_an_answer_and_a_long_one_are_errors() {
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwe";
        assert_eq!(answer_of(half).await, Err(PeerError::Ended.to_string()));
        let long = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwells";
        assert_eq!(answer_of(long).await, Err("the answer exceeds 4 bytes".to_owned()));
        // What else the server speaks is found out afterwards.
        assert_eq!(answer_of(b"-ERR\r\n").await, Err(PeerError::Ended.to_string()));
    }
}
