//! `tollkeeper call`: requests one decision from a service and prints it.

use std::{process::ExitCode, sync::Arc};

use prost::Message as _;
use prost_types::value::Kind;
use tollkeeper_proto::{
    self as pb, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
    rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
};

use super::{
    address::ServiceAddr,
    channel::{self, ADDR_DEFAULT},
    output::{Ended, OutputFlag, complain, failure, say, usage},
    tls::TlsFlags,
};
use crate::{
    engine::{
        descriptor_syntax,
        request::{Entry, Hits},
    },
    net::{grpc::SHOULD_RATE_LIMIT, tls::client::TlsClient},
    rls::json,
    settings::{self, Environment},
    text::{duration::in_words, printable::printable},
};

/// Said of a descriptor that passes unlimited: it may be a typo.
pub(super) const NO_LIMIT: &str = "warning: no limit applies to a descriptor; `tollkeeper explain` with the same arguments says why";

/// The exit code of a call that is over its limit.
const OVER_LIMIT: u8 = 3;

#[derive(Debug, clap::Args)]
pub(super) struct CallFlags {
    #[command(flatten)]
    call: RequestFlags,
    /// Estimate of the hits that the call holds, by kind if the limit has weights; may be repeated
    #[arg(long, value_name = "[KIND=]N", conflicts_with = "commit")]
    hold: Vec<String>,
    /// Commit the hold of this token, in place of descriptors
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["hits", "descriptors"])]
    commit: Option<String>,
    /// Hits that were used, by kind if the limit has weights; may be repeated [default: what is held]
    #[arg(long, value_name = "[KIND=]N", requires = "commit", conflicts_with = "descriptors")]
    used: Vec<String>,
    /// How the work ended: code and response flags, such as "503 UF"
    #[arg(long, requires = "commit", conflicts_with = "descriptors")]
    end: Option<String>,
    /// Exit with 1 if no limit applies to one of the descriptors
    #[arg(long)]
    require_limit: bool,
    #[command(flatten)]
    output: OutputFlag,
    /// Descriptors, such as user=alice or path=/login,user=alice; `\,` is a comma, `\xHH` any byte
    #[arg(required_unless_present = "commit", value_name = "k=v,k=v")]
    descriptors: Vec<String>,
}

/// Whether it may commit a hold, which needs no limit.
fn may_commit(request: &RateLimitRequest) -> bool {
    let mut entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let is_of_commit = |key: &[u8]| key.starts_with(b"hold.") && !key.starts_with(b"hold.estimate");
    entries.any(|entry| is_of_commit(&entry.key))
}

/// The flags of a request, which `call` and `bench` share.
#[derive(Debug, clap::Args)]
pub(super) struct RequestFlags {
    /// gRPC address of the service [env: TOLLKEEPER_ADDR] [default: 127.0.0.1:8081]
    #[arg(short, long, value_name = "HOST:PORT")]
    addr: Option<String>,
    #[command(flatten)]
    tls: TlsFlags,
    /// Domain of the rules
    #[arg(short, long)]
    domain: String,
    /// Hits of each descriptor: 0 charges nothing, but takes a hold by id or counter; a negative number refunds
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true)]
    hits: Option<String>,
}

pub(super) fn main(flags: &CallFlags, environment: &Environment) -> Ended {
    let addr = flags.call.addr(environment).map_err(usage)?;
    let request = flags.request().map_err(usage)?;
    let tls = flags.call.tls().map_err(usage)?;
    let may_commit = may_commit(&request);
    let answer = channel::ask(addr, tls, &SHOULD_RATE_LIMIT, async |channel| {
        RateLimitServiceClient::new(channel).should_rate_limit(request).await
    });
    let response = answer.map_err(failure)?;
    let code = match response.overall_code() {
        Code::OverLimit => ExitCode::from(OVER_LIMIT),
        Code::Ok if flags.commit.is_some() && !has_effect(&response) => ExitCode::FAILURE,
        Code::Ok if flags.require_limit && lacks_limit(&response) => ExitCode::FAILURE,
        Code::Ok | Code::Unknown => ExitCode::SUCCESS,
    };
    let text = || describe(&response, &flags.descriptors) + &flags.describe_hold(&response);
    let ended = say(&flags.output.write(text, &json::response(&response)), code);
    if !may_commit && lacks_limit(&response) {
        complain(NO_LIMIT);
    }
    Ok(ended)
}

impl CallFlags {
    fn request(&self) -> Result<RateLimitRequest, String> {
        let mut request = self.call.request(&self.descriptors)?;
        let estimates = amounts("--hold", "hold.estimate", &self.hold)?;
        for descriptor in &mut request.descriptors {
            descriptor.entries.extend_from_slice(&estimates);
        }
        if let Some(token) = &self.commit {
            let mut entries = vec![entry("hold.commit".to_owned(), token)];
            entries.extend(amounts("--used", "hold.used", &self.used)?);
            entries.extend(self.end.as_ref().map(|end| entry("hold.end".to_owned(), end)));
            let commit =
                RateLimitDescriptor { entries, hits_addend: Some(0), ..Default::default() };
            request.descriptors.push(commit);
        }
        Ok(request)
    }

    /// The token of the hold that was taken, or what has become of the commit.
    fn describe_hold(&self, response: &RateLimitResponse) -> String {
        if let Some(token) = metadata(response, "hold") {
            return format!("hold: {}\n", printable(token.as_bytes()));
        }
        match (metadata(response, "commit"), &self.commit) {
            (Some(outcome), _) => format!("commit: {}\n", printable(outcome.as_bytes())),
            (None, Some(_)) => {
                "commit: bad: the token was not made by this service, or not for this domain\n"
                    .to_owned()
            }
            (None, None) if self.hold.is_empty() => String::new(),
            (None, None) if response.overall_code() == Code::OverLimit => {
                "hold: none: the call was denied\n".to_owned()
            }
            (None, None) => {
                "hold: none: no limit that counted this call has holds by token\n".to_owned()
            }
        }
    }
}

fn lacks_limit(response: &RateLimitResponse) -> bool {
    let is_free = |status: &DescriptorStatus| {
        status.current_limit.is_none() && status.limit_remaining != u32::MAX
    };
    response.statuses.iter().any(is_free)
}

/// The same of an encoded answer.
pub(super) fn lacks_limit_in(answer: &[u8]) -> bool {
    RateLimitResponse::decode(answer).is_ok_and(|response| lacks_limit(&response))
}

/// Whether a commit counts now, or has counted before.
fn has_effect(response: &RateLimitResponse) -> bool {
    metadata(response, "commit").is_some_and(|outcome| !outcome.contains("late"))
}

/// A text of the answer's dynamic metadata.
fn metadata<'response>(
    response: &'response RateLimitResponse,
    name: &str,
) -> Option<&'response str> {
    match &response.dynamic_metadata.as_ref()?.fields.get(name)?.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

/// The entries for numbers as they were typed: `42`, or `output=17` for a kind.
fn amounts(flag: &str, name: &str, texts: &[String]) -> Result<Vec<pb::Entry>, String> {
    let amount = |text: &String| {
        let (key, number) = match text.split_once('=') {
            Some((kind, number)) => (format!("{name}.{kind}"), number),
            None => (name.to_owned(), &**text),
        };
        let number = settings::whole_number(&printable(number.as_bytes()), &0, &Hits::MAX)
            .map_err(|problem| format!("{flag}: {problem}"))?;
        Ok(entry(key, &number.to_string()))
    };
    texts.iter().map(amount).collect()
}

fn entry(key: String, value: &str) -> pb::Entry {
    pb::Entry { key: key.into(), value: value.to_owned().into() }
}

impl RequestFlags {
    pub(super) fn addr<'text>(
        &'text self,
        environment: &'text Environment,
    ) -> Result<&'text str, String> {
        let variable = ("TOLLKEEPER_ADDR", environment.call_addr());
        ServiceAddr { flag: self.addr.as_deref(), variable, default: ADDR_DEFAULT }.checked()
    }

    pub(super) fn tls(&self) -> Result<Option<Arc<TlsClient>>, String> {
        Ok(self.tls.client(b"h2", None)?.map(Arc::new))
    }

    /// The request for descriptors as they were typed.
    pub(super) fn request(&self, descriptors: &[String]) -> Result<RateLimitRequest, String> {
        request(&self.domain, self.hits.as_deref(), descriptors)
    }
}

pub(super) type CallRequest = RateLimitRequest;

/// The request for a domain, hits and descriptors as they were typed.
pub(super) fn request(
    domain: &str,
    hits: Option<&str>,
    descriptors: &[String],
) -> Result<RateLimitRequest, String> {
    let hits = hits.map(read_hits).transpose()?;
    let mut request = RateLimitRequest { domain: domain.to_owned(), ..RateLimitRequest::default() };
    for text in descriptors {
        let entries = descriptor_syntax::parse(text)
            .map_err(|problem| format!("{}: {problem}", printable(text.as_bytes())))?;
        request.descriptors.push(descriptor(entries, hits));
    }
    Ok(request)
}

fn read_hits(text: &str) -> Result<i64, String> {
    settings::whole_number(&printable(text.as_bytes()), &i64::MIN, &i64::MAX)
        .map_err(|problem| format!("--hits: {problem}"))
}

fn descriptor(entries: Vec<Entry>, hits: Option<i64>) -> RateLimitDescriptor {
    let entries = entries.into_iter().map(|Entry { key, value }| pb::Entry { key, value });
    RateLimitDescriptor {
        entries: entries.collect(),
        hits_addend: hits.map(i64::unsigned_abs),
        is_negative_hits: hits.is_some_and(i64::is_negative),
        limit: None,
    }
}

fn describe(response: &RateLimitResponse, descriptors: &[String]) -> String {
    let mut text = format!("{}\n", response.overall_code().as_str_name());
    for (status, descriptor) in response.statuses.iter().zip(descriptors) {
        let (descriptor, code) = (printable(descriptor.as_bytes()), status.code().as_str_name());
        text += &format!("  {descriptor}: {code}, {}\n", describe_limit(status));
    }
    text
}

fn describe_limit(status: &DescriptorStatus) -> String {
    match &status.current_limit {
        Some(limit) => {
            let reset = status.duration_until_reset.unwrap_or_default().seconds;
            let reset = match u64::try_from(reset).unwrap_or(0) {
                0 => String::new(),
                seconds => format!(", resets in {}", in_words(seconds)),
            };
            format!("{} left of {}{reset}", number(status.limit_remaining), spell(limit))
        }
        None if status.limit_remaining == u32::MAX => "unlimited".to_owned(),
        None => "no limit".to_owned(),
    }
}

/// A limit without a unit counts what runs at once.
fn spell(limit: &RateLimit) -> String {
    let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
    let (requests, name) = (number(limit.requests_per_unit), unit.as_str_name().to_lowercase());
    match limit.unit_multiplier {
        _ if unit == Unit::Unknown => format!("{requests} at once"),
        None | Some(1) => format!("{requests} per {name}"),
        Some(several) => format!("{requests} per {several} {name}s"),
    }
}

/// The protocol shows no larger number than 32 bits have.
fn number(number: u32) -> String {
    if number == u32::MAX { format!("at least {number}") } else { number.to_string() }
}
