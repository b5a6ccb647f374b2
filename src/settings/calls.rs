//! Bounds on a request, and the content of its answer.

use std::sync::Arc;

use super::reader::{
    SettingReader,
    form::{
        Custom, Form as _, HEADER_NAME, OneOf, OrOff, SWITCH, Size, WholeNumber, invalid, switch,
    },
};
use crate::{
    engine::rule::DeniedBody,
    limiter::holds::HoldKeys,
    rls::{
        decode::{Bounds, Echo},
        headers::Headers,
    },
};

#[derive(Debug, Clone)]
pub struct CallSettings {
    pub message_bytes_max: usize,
    /// Most bytes of what clients have sent in part or not yet read.
    pub arriving_bytes_max: usize,
    /// The bounds of a request, and whether its answer repeats it.
    pub bounds: Bounds,
    /// The most that the charges of one call weigh.
    pub weight_max: usize,
    /// The headers of an answer, and the body of a denial.
    pub headers: Arc<Headers>,
    /// The keys that sign the tokens of holds.
    pub hold_keys: HoldKeys,
}

const HOLD_KEYS: &str = "hold-key-file";

/// Whether a response has the classic headers, and the draft's headers.
const HEADER_SETS: OneOf<(bool, bool)> = OneOf(&[
    ("none", (false, false)),
    ("ratelimit", (true, false)),
    ("draft", (false, true)),
    ("both", (true, true)),
]);

const HEADER_NAMES: Custom<[String; 3]> = Custom { name: "NAME,NAME,NAME", read: header_names };

fn header_names(text: &str) -> Result<[String; 3], String> {
    let names: Result<Vec<_>, _> = text.split(',').map(|name| HEADER_NAME.read(name)).collect();
    names?
        .try_into()
        .map_err(|_| invalid(text, "three names with commas, such as X-Limit,X-Left,X-Reset"))
}

impl CallSettings {
    #[rustfmt::skip]
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let message_bytes_max = reader.read("max-message-bytes", Size(1 << 10..=64 << 20), "4MiB", "Maximum size of a request");
        let arriving_bytes_max = reader.read("max-arriving-bytes", Size(128 << 20..=64 << 30), "256MiB", "Maximum size of clients' incomplete or unread data");
        let descriptors_max = reader.read("max-descriptors", WholeNumber(1..=1000), "64", "Maximum number of descriptors in a request");
        let weight_max = reader.read("max-charges", WholeNumber(64..=65_536), "512", "Maximum weight of a call's charges: 1 to 4 for each limit of each descriptor");
        let echo = reader.read("dynamic-metadata", switch(Echo::On, Echo::Off), "off", "Return request and rules' metadata as Envoy's dynamic metadata");
        let bounds = Bounds { descriptors_max, echo };
        let headers = Arc::new(read_headers(reader));
        let hold_keys = read_hold_keys(reader);
        Self { message_bytes_max, arriving_bytes_max, bounds, weight_max, headers, hold_keys }
    }
}

fn read_hold_keys(reader: &mut SettingReader<'_>) -> HoldKeys {
    let help = "File with one or two keys, a line each, that sign tokens of holds; without it, the store has one";
    let loaded = reader.read_path(HOLD_KEYS, help).map(HoldKeys::load);
    loaded.transpose().map(Option::unwrap_or_default).unwrap_or_else(|problem| {
        reader.problem(HOLD_KEYS, &problem);
        HoldKeys::default()
    })
}

#[rustfmt::skip]
fn read_headers(reader: &mut SettingReader<'_>) -> Headers {
    let (classic, draft) = reader.read("headers", HEADER_SETS, "none", "Headers: RateLimit-…, the IETF draft's, or both");
    let limit = reader.read("header-limit", HEADER_NAME, "RateLimit-Limit", "Header with the limit, for --headers ratelimit");
    let remaining = reader.read("header-remaining", HEADER_NAME, "RateLimit-Remaining", "Header with the remaining hits, for --headers ratelimit");
    let reset = reader.read("header-reset", HEADER_NAME, "RateLimit-Reset", "Header with the seconds until the reset, for --headers ratelimit");
    if !classic {
        for flag in ["header-limit", "header-remaining", "header-reset"] {
            reader.warn_unused(flag, "--headers is not ratelimit or both");
        }
    }
    let in_request = reader.read("request-headers", OrOff(HEADER_NAMES), "off", "Headers for the service behind Envoy: limit, remaining hits and reset of a call that passes");
    let rule = reader.read("rule-header", SWITCH, "off", "Send x-ratelimit-rule with a denial");
    let denied_body = reader.read("denied-body", OneOf(&DeniedBody::NAMED), "none", "JSON body of a denial: by RFC 9457, or OpenAI's API");
    let classic = classic.then_some([limit, remaining, reset]);
    Headers { classic, in_request, draft, rule, denied_body }
}
