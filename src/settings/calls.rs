//! Bounds on a request, and the content of its answer.

use std::sync::Arc;

use super::reader::{
    Setting, SettingReader,
    form::{Arity, HEADER_NAME, OnOff, OneOf, Size, WholeNumber},
};
use crate::rls::{
    decode::{Bounds, Echo},
    headers::Headers,
};

/// Bounds on a request, and the content of its answer.
#[derive(Debug, Clone)]
pub struct CallSettings {
    /// The largest request, in bytes.
    pub message_bytes_max: usize,
    /// Most bytes of what clients have sent in part or not yet read.
    pub arriving_bytes_max: usize,
    /// The bounds of a request, and whether its answer repeats it.
    pub bounds: Bounds,
    /// The headers of an answer.
    pub headers: Arc<Headers>,
}

/// Whether a response has the classic headers, and the draft's headers.
const HEADER_SETS: OneOf<(bool, bool)> = OneOf(&[
    ("none", (false, false)),
    ("ratelimit", (true, false)),
    ("draft", (false, true)),
    ("both", (true, true)),
]);

impl CallSettings {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let message_bytes_max = reader.read(&Setting {
            flag: "max-message-bytes",
            form: Size { min: 1 << 10, max: 64 << 20 },
            default: "4MiB",
            help: "Maximum size of a request",
        });
        let arriving_bytes_max = reader.read(&Setting {
            flag: "max-arriving-bytes",
            form: Size { min: 128 << 20, max: 64 << 30 },
            default: "256MiB",
            help: "Maximum size of client data that is incomplete or not yet read; more is refused",
        });
        let descriptors_max = reader.read(&Setting {
            flag: "max-descriptors",
            form: WholeNumber { min: 1, max: 1000 },
            default: "64",
            help: "Maximum number of descriptors in a request",
        });
        let echo = reader.read(&Setting {
            flag: "dynamic-metadata",
            form: OnOff { on: Echo::On, off: Echo::Off, arity: Arity::Switch },
            default: "off",
            help: "Return the request, and the metadata of its rules, as Envoy's dynamic metadata",
        });
        let bounds = Bounds { descriptors_max, echo };
        let headers = Arc::new(read_headers(reader));
        Self { message_bytes_max, arriving_bytes_max, bounds, headers }
    }
}

fn read_headers(reader: &mut SettingReader<'_>) -> Headers {
    let (classic, draft) = reader.read(&Setting {
        flag: "headers",
        form: HEADER_SETS,
        default: "none",
        help: "Headers of a response: the three RateLimit-… headers, the IETF draft's, or both",
    });
    let limit = reader.read(&Setting {
        flag: "header-limit",
        form: HEADER_NAME,
        default: "RateLimit-Limit",
        help: "Name of the header with the limit, for --headers ratelimit",
    });
    let remaining = reader.read(&Setting {
        flag: "header-remaining",
        form: HEADER_NAME,
        default: "RateLimit-Remaining",
        help: "Name of the header with the remaining hits, for --headers ratelimit",
    });
    let reset = reader.read(&Setting {
        flag: "header-reset",
        form: HEADER_NAME,
        default: "RateLimit-Reset",
        help: "Name of the header with the seconds until the reset, for --headers ratelimit",
    });
    if !classic {
        for flag in ["header-limit", "header-remaining", "header-reset"] {
            reader.warn_unused(flag, "--headers is not ratelimit or both");
        }
    }
    Headers { classic: classic.then_some([limit, remaining, reset]), draft }
}
