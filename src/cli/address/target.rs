//! What to try when a command cannot talk to the server at an address, in the terms of its flags.

use std::fmt;

use crate::net::peer::PeerError;

#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct ClientTarget {
    /// Which of a service's addresses it should be.
    pub(in crate::cli) name: &'static str,
    pub(in crate::cli) default: &'static str,
    pub(in crate::cli) tls: UsesTls,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum UsesTls {
    Yes,
    No,
}

impl ClientTarget {
    pub(in crate::cli) fn advise(self, error: &PeerError) -> String {
        match error {
            PeerError::SpeaksTls => format!("{error}; connect by TLS with --tls-ca"),
            PeerError::DemandsCertificate => {
                format!("{error}; show one by --tls-cert and --tls-key")
            }
            PeerError::NotReached(_) | PeerError::NotHttp1 | PeerError::NotHttp2 => {
                self.ask_about(error)
            }
            PeerError::EndedBeforeHttp2 | PeerError::Ended | PeerError::Silent(_) => {
                let asked = self.ask_about(error);
                match self.tls {
                    UsesTls::Yes => asked,
                    UsesTls::No => format!("{asked}. If it speaks TLS, give --tls-ca"),
                }
            }
            PeerError::Failed(_) => error.to_string(),
        }
    }

    /// The cause, and whether the address is the right one.
    pub(in crate::cli) fn ask_about(self, cause: impl fmt::Display) -> String {
        let Self { name, default, .. } = self;
        format!("{cause}; is this the {name} address of a service? Default: {default}")
    }
}
