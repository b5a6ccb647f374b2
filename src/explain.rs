//! What a call would match and charge, for people: the same for `tollkeeper explain`, which knows no
//! counter, and for `POST /explain`, which looks at them and foresees the verdict.

use serde::{Deserialize, Serialize};

use crate::{
    did_you_mean::hint,
    engine::{
        decision::Code,
        key,
        ledger::{self, Charge, CounterState},
        plan::Plan,
        request::{Descriptor, Entry, Hits, Request},
        rule::{Algorithm, Limit, Mode, Policy, WhenDenied},
        rule_set::{Domain, Found, RuleSet, Taken, Written},
        time::Timestamp,
    },
};

/// What a call would match and charge. It holds values of the request, so it has no `Debug`.
#[derive(Serialize, Deserialize)]
pub struct Explanation {
    /// The domain of the request.
    pub domain: String,
    /// What is wrong with the domain. Every call passes then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// One for each descriptor of the request; none where the domain is unknown.
    pub descriptors: Vec<DescriptorExplanation>,
    /// The decision, where the counters are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// What one descriptor would match and charge.
#[derive(Serialize, Deserialize)]
pub struct DescriptorExplanation {
    /// As the command line writes it, escaped.
    pub descriptor: String,
    /// How its entries were matched, up to the first that was not.
    pub steps: Vec<Step>,
    /// What it matches in the end.
    #[serde(flatten)]
    pub matched: Matched,
    /// Limits that other rules replace in this call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Replaced>,
    /// One for each limit that applies.
    pub charges: Vec<ChargeExplanation>,
}

/// How one entry was matched.
#[derive(Serialize, Deserialize)]
pub struct Step {
    /// The entry, escaped.
    pub entry: String,
    /// What matched, in words.
    pub taken: String,
    /// What was tried before and did not match, in words.
    pub passed_over: Vec<String>,
}

/// What a descriptor matches.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "met", rename_all = "snake_case")]
pub enum Matched {
    /// A rule with limits.
    Rule {
        /// Its path.
        rule: String,
        /// `file:line`.
        written_at: String,
    },
    /// A rule that is unlimited.
    UnlimitedRule {
        /// Its path.
        rule: String,
        /// `file:line`.
        written_at: String,
    },
    /// A configured descriptor without a limit.
    NoLimit,
    /// The limit that the request carries.
    OwnLimit,
    /// No rule.
    NoRule,
}

/// A limit that does not apply in this call.
#[derive(Debug, Serialize, Deserialize)]
pub struct Replaced {
    /// Its name.
    pub name: String,
    /// The limit, such as `10 per minute`.
    pub limit: String,
    /// The path of the rule that replaces it.
    pub by: String,
    /// `file:line` of that rule.
    pub written_at: String,
}

/// What would be charged to one counter.
#[derive(Serialize, Deserialize)]
pub struct ChargeExplanation {
    /// The limit, such as `10 per minute`.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Its mode and other settings.
    pub says: String,
    /// Hits: 0 checks without counting, a negative number gives back.
    pub charges: i64,
    /// The counter's key.
    pub key: String,
    /// Hits that count, where the counter is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Hits that would pass, where the counter is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<u32>,
}

/// The decision that the next such call would get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Verdict {
    Ok,
    OverLimit,
}

impl Explanation {
    /// Explains a request by these rules, from whose plan it comes, in the windows of `now`.
    pub fn new(rules: &RuleSet, request: &Request, plan: &Plan, now: Timestamp) -> Self {
        let mut explanation = Self {
            domain: key::caller(request.domain.as_bytes()).into(),
            problem: None,
            descriptors: Vec::new(),
            verdict: None,
        };
        let Some(domain) = rules.domain(&request.domain) else {
            let domains = rules.domains();
            let near = hint(&request.domain, domains.iter().map(|domain| &*domain.name));
            explanation.problem =
                Some(format!("no rule file has this domain, so every call passes{near}"));
            return explanation;
        };
        let mut found_by_each = Vec::new();
        let mut charges = plan.charges.iter();
        for (descriptor, count) in request.descriptors.iter().zip(plan.charges_of_each()) {
            let (steps, found) = walk(domain, descriptor);
            explanation.descriptors.push(DescriptorExplanation {
                descriptor: descriptor.entries.iter().map(spell).collect::<Vec<_>>().join(","),
                steps,
                matched: Matched::new(descriptor, &found),
                replaced: Vec::new(),
                charges: charges
                    .by_ref()
                    .take(count)
                    .map(|charge| ChargeExplanation::new(charge, now))
                    .collect(),
            });
            found_by_each.push(found);
        }
        for (explained, found) in explanation.descriptors.iter_mut().zip(&found_by_each) {
            explained.replaced = replaced(found, &found_by_each);
        }
        explanation
    }

    /// Adds how the counters stand, one for each charge of the plan, and the verdict.
    pub fn foresee(&mut self, plan: Plan, standings: &[CounterState]) {
        let charges = self.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.charges);
        for (charge, standing) in charges.zip(standings) {
            charge.used = Some(standing.used);
            charge.left = Some(standing.remaining);
        }
        let tallies = ledger::foresee(&plan.charges, standings);
        let denied = ledger::denies(&plan.charges, &tallies);
        self.verdict = Some(match plan.settle(tallies, denied).code {
            Code::Ok => Verdict::Ok,
            Code::OverLimit => Verdict::OverLimit,
        });
    }

    /// Whether something in the request is unknown to the rules: its domain, a key or a value.
    pub fn is_unknown(&self) -> bool {
        let mut matched = self.descriptors.iter().map(|descriptor| &descriptor.matched);
        self.problem.is_some() || matched.any(|matched| matches!(matched, Matched::NoRule))
    }
}

/// The same walk as a decision's, with its steps.
fn walk<'rules>(domain: &'rules Domain, descriptor: &Descriptor) -> (Vec<Step>, Found<'rules>) {
    let mut steps = Vec::new();
    let found = match descriptor.limit {
        // The rules are not asked.
        Some(_) => Found::NoLimit,
        None => domain.walk(&descriptor.entries, |entry, written, taken| {
            steps.push(Step::new(entry, written, taken));
        }),
    };
    (steps, found)
}

impl Step {
    fn new(entry: &Entry, written: Written<'_>, taken: Taken) -> Self {
        let patterns_before = match taken {
            Taken::Value => 0,
            Taken::Pattern(index) => index,
            Taken::Key | Taken::Nothing => usize::MAX,
        };
        let mut passed_over = Vec::new();
        match written.values() {
            _ if taken == Taken::Value => {}
            0 => {}
            1 => passed_over.push("1 other value".to_owned()),
            several => passed_over.push(format!("{several} other values")),
        }
        for pattern in written.patterns().take(patterns_before) {
            passed_over.push(format!("pattern `{pattern}`"));
        }
        let taken = match taken {
            Taken::Value => "exact value match".to_owned(),
            Taken::Pattern(index) => {
                format!("matches pattern `{}`", written.patterns().nth(index).unwrap_or_default())
            }
            Taken::Key => "matches the key, with any value".to_owned(),
            Taken::Nothing if written.has_key() => {
                "the key is known, but not this value".to_owned()
            }
            Taken::Nothing => {
                let known = written.keys().filter_map(|key| std::str::from_utf8(key).ok());
                format!("unknown key{}", hint(&String::from_utf8_lossy(&entry.key), known))
            }
        };
        Self { entry: spell(entry), taken, passed_over }
    }
}

impl Matched {
    fn new(descriptor: &Descriptor, found: &Found<'_>) -> Self {
        if descriptor.limit.is_some() {
            return Self::OwnLimit;
        }
        match found {
            Found::NoLimit => Self::NoLimit,
            Found::Nothing => Self::NoRule,
            Found::Rule(found) => {
                let (rule, written_at) = (found.path.to_string(), found.location.clone());
                match found.policy {
                    Policy::Limited(_) => Self::Rule { rule, written_at },
                    Policy::Unlimited => Self::UnlimitedRule { rule, written_at },
                }
            }
        }
    }
}

/// Which limits of one rule the rules of this call replace, and which rule does.
fn replaced(found: &Found<'_>, found_by_each: &[Found<'_>]) -> Vec<Replaced> {
    let Found::Rule(rule) = found else { return Vec::new() };
    let Policy::Limited(limits) = &rule.policy else { return Vec::new() };
    let mut all = Vec::new();
    for limit in limits {
        let Some(name) = &limit.name else { continue };
        let replaces = |other: &&Found<'_>| other.replaces().any(|replaced| replaced == name);
        if let Some(Found::Rule(by)) = found_by_each.iter().find(replaces) {
            all.push(Replaced {
                name: name.to_string(),
                limit: limit.to_string(),
                by: by.path.to_string(),
                written_at: by.location.clone(),
            });
        }
    }
    all
}

impl ChargeExplanation {
    fn new(charge: &Charge, now: Timestamp) -> Self {
        let limit = &charge.counter.limit;
        let hits = |hits| i64::try_from(hits).unwrap_or(i64::MAX);
        Self {
            limit: limit.to_string(),
            algorithm: limit.algorithm.name().to_owned(),
            says: says(limit),
            charges: match charge.hits {
                Hits::Charge(taken) => hits(taken),
                Hits::Look => 0,
                Hits::Refund(given) => -hits(given),
            },
            key: charge.counter.key(limit.window.at(now).start),
            used: None,
            left: None,
        }
    }
}

fn says(limit: &Limit) -> String {
    let mut says = vec![match limit.mode {
        Mode::Enforced => "enforced".to_owned(),
        Mode::Shadow => "shadow".to_owned(),
        Mode::Quota => "quota".to_owned(),
    }];
    if let Algorithm::TokenBucket { burst } = limit.algorithm {
        says.push(format!("burst {burst}"));
    }
    if limit.when_denied == WhenDenied::Counted {
        says.push("count_denied".to_owned());
    }
    says.push(format!("on_store_failure {}", limit.on_store_failure.name()));
    says.join(", ")
}

fn spell(Entry { key, value }: &Entry) -> String {
    format!("{}={}", key::caller(key), key::caller(value))
}
