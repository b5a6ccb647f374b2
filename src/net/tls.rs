//! TLS from PEM files. They are read whenever a connection or a listener needs them, so that renewed
//! certificates are in use without a restart.

mod certificate;
pub mod client;
pub mod last_good;
pub mod pem;
pub mod server;
mod stream;
mod words;

pub(crate) use self::{
    stream::{ByteStream, ServerStream},
    words::{demands_certificate, in_words, is_end, root_cause},
};

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// The cryptography of all TLS connections.
pub(crate) fn crypto() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
