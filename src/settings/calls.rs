//! Bounds on a request, and the content of its answer.

use std::{fs, sync::Arc};

use super::reader::{
    Setting, SettingReader,
    form::{Arity, HEADER_NAME, OnOff, OneOf, Size, WholeNumber},
};
use crate::{
    engine::rule::DeniedBody,
    limiter::holds::HoldKeys,
    rls::{
        decode::{Bounds, Echo},
        headers::Headers,
    },
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
    /// The headers of an answer, and the body of a denial.
    pub headers: Arc<Headers>,
    /// The keys that sign the tokens of holds.
    pub hold_keys: HoldKeys,
}

const HOLD_KEYS: &str = "hold-key-file";

/// The shortest key that signs tokens.
const HOLD_KEY_BYTES_MIN: usize = 32;

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
            help: "Maximum size of clients' incomplete or unread data",
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
            help: "Return request and rules' metadata as Envoy's dynamic metadata",
        });
        let bounds = Bounds { descriptors_max, echo };
        let headers = Arc::new(read_headers(reader));
        let hold_keys = read_hold_keys(reader);
        Self { message_bytes_max, arriving_bytes_max, bounds, headers, hold_keys }
    }
}

/// One key a line: the first signs, and all are accepted.
fn read_hold_keys(reader: &mut SettingReader<'_>) -> HoldKeys {
    let Some(path) = reader
        .read_path(HOLD_KEYS, "File with one or two keys, a line each, that sign tokens of holds; without it, the store has one")
    else {
        return HoldKeys::default();
    };
    let problem = match fs::read_to_string(&path) {
        Ok(text) => {
            let keys: Vec<&[u8]> = text.lines().map(|line| line.trim().as_bytes()).collect();
            let are_long = keys.iter().all(|key| key.len() >= HOLD_KEY_BYTES_MIN);
            if (1..=2).contains(&keys.len()) && are_long {
                return HoldKeys::new(keys.into_iter());
            }
            format!(
                "{}: must have one or two lines of at least {HOLD_KEY_BYTES_MIN} bytes",
                path.display()
            )
        }
        Err(error) => format!("{}: {error}", path.display()),
    };
    reader.problem(HOLD_KEYS, &problem);
    HoldKeys::default()
}

fn read_headers(reader: &mut SettingReader<'_>) -> Headers {
    let (classic, draft) = reader.read(&Setting {
        flag: "headers",
        form: HEADER_SETS,
        default: "none",
        help: "Headers: RateLimit-…, the IETF draft's, or both",
    });
    let limit = reader.read(&Setting {
        flag: "header-limit",
        form: HEADER_NAME,
        default: "RateLimit-Limit",
        help: "Header with the limit, for --headers ratelimit",
    });
    let remaining = reader.read(&Setting {
        flag: "header-remaining",
        form: HEADER_NAME,
        default: "RateLimit-Remaining",
        help: "Header with the remaining hits, for --headers ratelimit",
    });
    let reset = reader.read(&Setting {
        flag: "header-reset",
        form: HEADER_NAME,
        default: "RateLimit-Reset",
        help: "Header with the seconds until the reset, for --headers ratelimit",
    });
    if !classic {
        for flag in ["header-limit", "header-remaining", "header-reset"] {
            reader.warn_unused(flag, "--headers is not ratelimit or both");
        }
    }
    let rule = reader.read(&Setting {
        flag: "rule-header",
        form: OnOff { on: true, off: false, arity: Arity::Switch },
        default: "off",
        help: "Send x-ratelimit-rule with a denial",
    });
    let denied_body = reader.read(&Setting {
        flag: "denied-body",
        form: OneOf(&DeniedBody::NAMED),
        default: "none",
        help: "JSON body of a denial: by RFC 9457, or OpenAI's API",
    });
    Headers { classic: classic.then_some([limit, remaining, reset]), draft, rule, denied_body }
}
