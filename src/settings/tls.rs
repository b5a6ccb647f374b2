//! TLS to Redis and to a control plane: `--store-tls-ca`, `--rules-tls-ca` and their siblings. How each connects is left
//! to its component.

use std::sync::Arc;

use super::reader::{SettingReader, form::CERTIFICATE_NAME};
use crate::net::tls::client::{TlsClient, TlsFiles};

/// The settings of TLS to one kind of server. Files are only named: each is read when it is needed.
pub(super) struct TlsSettings {
    /// For the CAs, our certificate, its key, and the name of the server.
    flags: [&'static str; 4],
    files: TlsFiles,
    name: Option<String>,
}

impl TlsSettings {
    pub(super) fn read(reader: &mut SettingReader<'_>, flags: [&'static str; 4]) -> Self {
        let [ca, certificate, key, name] = flags;
        let files = TlsFiles {
            ca: reader.read_path(ca, "PEM file of CAs to trust instead of the system's"),
            trusts_system: reader.is_of_envoyproxy_ratelimit(ca),
            identity: reader
                .read_path(certificate, "PEM file with the client certificate and chain")
                .zip(reader.read_path(key, "PEM file with the client's key")),
        };
        let help = "Name in the server's certificate, if not its host";
        let name = reader.read_optional(name, &CERTIFICATE_NAME, "", help);
        reader.check_pair(certificate, key);
        Self { flags, files, name }
    }

    /// Warns about each that is set.
    pub(super) fn warn_unused(&self, reader: &mut SettingReader<'_>, why: &str) {
        for flag in self.flags {
            reader.warn_unused(flag, why);
        }
    }

    /// TLS with these files, and this name of the server. A file that cannot be used is a problem, and of the setting
    /// `url` if the system has none.
    pub(super) fn client(
        self,
        reader: &mut SettingReader<'_>,
        url: &'static str,
        connect: impl FnOnce(TlsFiles, Option<String>) -> TlsClient,
    ) -> Arc<TlsClient> {
        let [ca, certificate, key, _] = self.flags;
        let client = connect(self.files, self.name);
        if let Err(problem) = client.check() {
            reader.problem(problem.part.among([ca, certificate, key, url]), &problem.problem);
        }
        Arc::new(client)
    }
}
