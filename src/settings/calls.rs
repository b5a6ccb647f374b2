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

/// Which headers an answer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeaderSet {
    None,
    Classic,
    Draft,
    Both,
}

const HEADER_SETS: OneOf<HeaderSet> = OneOf(&[
    ("none", HeaderSet::None),
    ("ratelimit", HeaderSet::Classic),
    ("draft", HeaderSet::Draft),
    ("both", HeaderSet::Both),
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
            help: "Maximum size of all that clients have sent in part or not yet read; more is refused",
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
    let set = reader.read(&Setting {
        flag: "headers",
        form: HEADER_SETS,
        default: "none",
        help: "Headers of an answer: the three RateLimit-… ones, those of the IETF draft, or both",
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
        help: "Name of the header with the hits that are left, for --headers ratelimit",
    });
    let reset = reader.read(&Setting {
        flag: "header-reset",
        form: HEADER_NAME,
        default: "RateLimit-Reset",
        help: "Name of the header with the seconds until the reset, for --headers ratelimit",
    });
    let classic = matches!(set, HeaderSet::Classic | HeaderSet::Both);
    if !classic {
        for flag in ["header-limit", "header-remaining", "header-reset"] {
            reader.warn_unused(flag, "--headers is not ratelimit or both");
        }
    }
    Headers {
        classic: classic.then_some([limit, remaining, reset]),
        draft: matches!(set, HeaderSet::Draft | HeaderSet::Both),
    }
}
