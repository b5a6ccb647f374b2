//! TLS from PEM files. They are read whenever a connection or a listener needs them, so that renewed
//! certificates are in use without a restart.

mod certificate;
pub mod client;
mod client_chain;
pub mod last_good;
pub mod pem;
pub mod server;
mod words;

pub(crate) use self::words::demands_certificate;
pub use self::words::{in_words, is_end, of_client, root_cause};

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// Bytes to and from the other side, whatever carries them.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

pub fn crypto() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
