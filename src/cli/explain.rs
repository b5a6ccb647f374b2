//! `tollkeeper explain`: which rules a call would match, and why, by rule files or by a running service.

use std::{path::PathBuf, process::ExitCode};

use hyper::Method;

use super::{
    admin::{self, AdminServer},
    call::{self, CallRequest},
    output::{Ended, OutputFlag, failure, say, usage},
};
use crate::{
    engine::{descriptor_syntax::is_digest, plan::Plan, request::Request},
    explain::{
        ChargeExplanation, DescriptorExplanation, Explanation, ForeseenCode, MatchExplanation,
    },
    rls::{
        decode::{self, Bounds},
        refusal::Refusal,
    },
    rules::{self, LoadOptions},
    settings::{self, Environment, Given, RuleSettings, RuleSource, TypedFlags},
    store::system_clock,
};

#[derive(Debug, clap::Args)]
pub(super) struct ExplainFlags {
    /// Rule file or folder, or `-` for standard input; may be repeated [default: the rules of a running service]
    #[arg(short, long, value_name = "PATH", conflicts_with = "addr")]
    rules: Vec<PathBuf>,
    /// File or folder that is laid over the rules; may be repeated
    #[arg(long, value_name = "PATH", requires = "rules")]
    rules_overlay: Vec<PathBuf>,
    /// Admin address of a running service, for its rules and counters [env: TOLLKEEPER_ADMIN_ADDR] [default: 127.0.0.1:6070]
    #[arg(short, long, alias = "admin-addr", value_name = "HOST:PORT")]
    addr: Option<String>,
    #[command(flatten)]
    access: admin::AdminAccess,
    /// Domain of the rules
    #[arg(short, long)]
    domain: String,
    #[command(flatten)]
    output: OutputFlag,
    /// Hits of each descriptor: 0 checks without counting, a negative number refunds [default: 1]
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true)]
    hits: Option<String>,
    /// Descriptors, such as user=alice or path=/login,user=alice, or digests of a service; `\,` is a comma, `\xHH` any byte
    #[arg(required = true, value_name = "k=v,k=v")]
    descriptors: Vec<String>,
}

pub(super) fn main(flags: &ExplainFlags, environment: &Environment) -> Ended {
    let source = source(flags, environment).map_err(usage)?;
    let request = request(flags, &source).map_err(usage)?;
    let explanation = match &source {
        ExplainedBy::Service(server) => by_service(server, flags),
        ExplainedBy::Files { rules, overlays, .. } => {
            by_files(rules, overlays, settings::rule_options(environment), request)
        }
    };
    let explanation = explanation.map_err(|problem| {
        let is_named = flags.addr.is_some() || matches!(source, ExplainedBy::Files { .. });
        let hint = if is_named { "" } else { "; or name rule files by --rules" };
        failure(format_args!("{problem}{hint}"))
    })?;
    let complete = if explanation.is_unknown() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    // What the command line names needs no line.
    let found = match &source {
        ExplainedBy::Service(server) if flags.addr.is_none() => &server.addr,
        ExplainedBy::Files { found: Some(variable), .. } => variable,
        _ => "",
    };
    let head = if found.is_empty() { String::new() } else { format!("by the rules of {found}\n") };
    let text = flags.output.write(|| head + &text(&explanation), &explanation);
    Ok(match &source {
        ExplainedBy::Service(server) => {
            server.say(&text, explanation.incomplete.as_deref(), complete)
        }
        ExplainedBy::Files { .. } => say(&text, complete),
    })
}

enum ExplainedBy<'given> {
    Service(Box<AdminServer<'given>>),
    Files {
        rules: Vec<PathBuf>,
        overlays: Vec<PathBuf>,
        /// The setting that names them, unless the command line does.
        found: Option<String>,
    },
}

/// The rule files of the command line, else the service that it or a variable names, else the rule files of a service with
/// this environment, else the service at the default address.
fn source<'given>(
    flags: &'given ExplainFlags,
    environment: &'given Environment,
) -> Result<ExplainedBy<'given>, String> {
    if !flags.rules.is_empty() {
        let (rules, overlays) = (flags.rules.clone(), flags.rules_overlay.clone());
        return Ok(ExplainedBy::Files { rules, overlays, found: None });
    }
    if flags.addr.is_none() && environment.admin_addr().is_none() {
        let RuleSettings { source, overlays, .. } =
            settings::resolve(&TypedFlags::new(), environment).settings.rules;
        if let Given { value: RuleSource::Files(rules), name } = source
            && !rules.is_empty()
        {
            return Ok(ExplainedBy::Files { rules, overlays, found: Some(name) });
        }
    }
    let addr = admin::address(flags.addr.as_deref(), environment)?;
    let server = AdminServer::new(addr, &flags.access)?;
    Ok(ExplainedBy::Service(Box::new(server)))
}

/// Reads the flags of the request, but for digests, which only a service knows. Other problems than theirs are left to its
/// own checks.
fn request(flags: &ExplainFlags, source: &ExplainedBy<'_>) -> Result<CallRequest, String> {
    let is_for_service = matches!(source, ExplainedBy::Service(_));
    let mut descriptors = flags.descriptors.clone();
    descriptors.retain(|text| !is_for_service || !is_digest(text));
    call::request(&flags.domain, flags.hits.as_deref(), &descriptors)
}

fn by_files(
    rules: &[PathBuf],
    overlays: &[PathBuf],
    options: LoadOptions,
    message: CallRequest,
) -> Result<Explanation, String> {
    let loaded = rules::load(rules, overlays, options);
    let loaded = loaded.map_err(|problems| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })?;
    let request = decode(message).map_err(|refusal| refusal.to_string())?;
    let plan = Plan::draw(&loaded.rules, &request);
    Ok(Explanation::new(&loaded.rules, &request, &plan, system_clock()))
}

/// Decodes as a service with default settings does, with its bounds.
fn decode(message: CallRequest) -> Result<Request, Refusal> {
    let bounds = Bounds::default();
    bounds.check_descriptors(message.descriptors.len())?;
    for (index, descriptor) in message.descriptors.iter().enumerate() {
        bounds.check_entries(index, descriptor.entries.len())?;
    }
    decode::request(message, bounds.echo).map(|decoded| decoded.request)
}

fn by_service(server: &AdminServer<'_>, flags: &ExplainFlags) -> Result<Explanation, String> {
    let hits = flags.hits.as_deref().map(|hits| ("hits", hits));
    let descriptors = flags.descriptors.iter().map(|descriptor| ("d", descriptor.as_str()));
    let parameters = [("domain", &*flags.domain)].into_iter().chain(hits).chain(descriptors);
    let path = admin::path_and_query("/explain", parameters);
    let answer = server.ask(Method::POST, &path, String::new())?;
    serde_json::from_value(answer).map_err(|_| server.not_tollkeeper())
}

fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    if let Some(problem) = &explanation.problem {
        text += &format!("domain `{}`: {problem}\n", explanation.domain);
    }
    for descriptor in &explanation.descriptors {
        push_descriptor(&mut text, descriptor);
    }
    match explanation.verdict {
        None => {}
        Some(ForeseenCode::Ok) => text += "verdict: OK\n",
        Some(ForeseenCode::OverLimit) => text += "verdict: OVER_LIMIT\n",
    }
    text
}

fn push_descriptor(text: &mut String, descriptor: &DescriptorExplanation) {
    let has_path = !descriptor.descriptor.is_empty();
    push_line(text, 0, if has_path { &descriptor.descriptor } else { "commit" });
    if !descriptor.parameters.is_empty() {
        push_line(text, 2, &format!("parameters: {}", descriptor.parameters.join(", ")));
    }
    for step in &descriptor.steps {
        let skipped = match step.skipped.as_slice() {
            [] => String::new(),
            others => format!("; did not match: {}", others.join(", ")),
        };
        push_line(text, 2, &format!("{}: {}{skipped}", step.entry, step.matched_by));
    }
    push_line(text, 2, &matched(&descriptor.matched));
    if let Some(directive) = &descriptor.directive {
        push_line(text, 2, &format!("override: {directive}"));
    }
    for replaced in &descriptor.replaced {
        let (limit, name, by) = (&replaced.limit, &replaced.name, &replaced.by);
        let written_at = &replaced.written_at;
        push_line(
            text,
            2,
            &format!("{limit} (name {name}): replaced by rule {by}, written at {written_at}"),
        );
    }
    for charge in &descriptor.charges {
        let ChargeExplanation { limit, algorithm, details, .. } = charge;
        push_line(text, 2, &format!("{limit} by {algorithm} ({details})"));
        push_line(text, 4, &charges(charge));
        if let Some(hold) = &charge.hold {
            push_line(text, 4, hold);
        }
        if let (Some(used), Some(remaining)) = (charge.used, charge.remaining) {
            let held = charge.held.map(|held| format!("{held} held, ")).unwrap_or_default();
            let credit =
                charge.credit.map(|credit| format!(" (with {credit} of this replica's credit)"));
            let credit = credit.unwrap_or_default();
            push_line(text, 4, &format!("{used} used{credit}, {held}{remaining} left"));
        }
        if let Some(drawn) = charge.drawn {
            push_line(text, 4, if drawn { "drawn by this call" } else { "not drawn by this call" });
        }
        let tier = charge.tier.as_ref().map(|tier| format!("tier at {tier}"));
        for line in [&tier, &charge.closed, &charge.problem].into_iter().flatten() {
            push_line(text, 4, line);
        }
    }
}

fn push_line(text: &mut String, indent: usize, line: &str) {
    *text += &format!("{:indent$}{line}\n", "");
}

fn matched(matched: &MatchExplanation) -> String {
    match matched {
        MatchExplanation::Rule { rule, written_at } => {
            format!("matches rule {rule}, written at {written_at}")
        }
        MatchExplanation::UnlimitedRule { rule, written_at } => {
            format!("matches rule {rule}, written at {written_at}: unlimited, passes")
        }
        MatchExplanation::NoLimit => "matches a descriptor without a limit: passes".to_owned(),
        MatchExplanation::Commit => "commits the hold that its token names".to_owned(),
        MatchExplanation::OwnLimit => "has its own limit".to_owned(),
        MatchExplanation::NoRule => "matches no rule: passes".to_owned(),
    }
}

fn charges(ChargeExplanation { hits, key, .. }: &ChargeExplanation) -> String {
    match hits {
        0 => format!("charges nothing, checks {key}"),
        1.. => format!("charges {hits} to {key}"),
        _ => format!("gives back {} to {key}", hits.unsigned_abs()),
    }
}
