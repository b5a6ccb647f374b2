//! What a call would meet and charge, for people: the same for `tollkeeper explain`, which knows no
//! counter, and for the admin address, which looks at them.

use serde_json::{Value, json};

use crate::engine::{
    explain::explain,
    key,
    ledger::{Charge, Standing},
    plan::Plan,
    request::{Descriptor, Entry, Hits, Request},
    rule::{Algorithm, Limit, Mode, Policy, WhenDenied},
    rule_set::{Domain, Found, RuleSet},
    time::Timestamp,
};

/// Explains a request by these rules, in the windows of `now`. Where `standings` has one for each charge
/// of its plan, it tells how they stand.
pub fn describe(
    rules: &RuleSet,
    request: &Request,
    standings: Option<&[Standing]>,
    now: Timestamp,
) -> Value {
    let Some(domain) = rules.domain(&request.domain) else {
        return json!({ "domain": "unknown: no rule file has it, and every call passes" });
    };
    let plan = Plan::draw(rules, request);
    let counts = plan.charges_of_each();
    let mut charges = plan.charges.iter().enumerate().map(|(number, charge)| {
        let standing = standings.and_then(|standings| standings.get(number));
        describe_charge(charge, standing, now)
    });
    let mut descriptor = |it: &Descriptor, count: usize| {
        let mut told = describe_descriptor(domain, it);
        let charges: Vec<Value> = charges.by_ref().take(count).collect();
        if let Some(told) = told.as_object_mut() {
            told.insert("charges".to_owned(), Value::Array(charges));
        }
        told
    };
    let descriptors: Vec<Value> =
        request.descriptors.iter().zip(counts).map(|(it, count)| descriptor(it, count)).collect();
    json!({ "domain": &*domain.name, "descriptors": descriptors })
}

fn describe_descriptor(domain: &Domain, descriptor: &Descriptor) -> Value {
    let spell =
        |Entry { key, value }: &Entry| format!("{}={}", key::caller(key), key::caller(value));
    let entries = &descriptor.entries;
    let text = entries.iter().map(spell).collect::<Vec<_>>().join(",");
    if descriptor.limit.is_some() {
        return json!({ "descriptor": text, "met": "its own limit", "steps": [] });
    }
    let explanation = explain(domain, entries);
    let steps = entries.iter().zip(&explanation.steps).map(|(entry, step)| {
        json!({ "entry": spell(entry), "taken": step.taken, "passed_over": step.passed_over })
    });
    let steps: Vec<Value> = steps.collect();
    match explanation.found {
        Found::Rule(rule) => json!({
            "descriptor": text,
            "steps": steps,
            "met": match &rule.policy {
                Policy::Unlimited => "a rule that is unlimited",
                Policy::Limited(_) => "a rule",
            },
            "rule": *rule.path,
            "written_at": rule.place,
        }),
        Found::NoLimit => {
            json!({ "descriptor": text, "steps": steps, "met": "a place without a limit" })
        }
        Found::Nothing => json!({ "descriptor": text, "steps": steps, "met": "no rule" }),
    }
}

fn describe_charge(charge: &Charge, standing: Option<&Standing>, now: Timestamp) -> Value {
    let limit = &charge.counter.limit;
    let mut told = json!({
        "limit": limit.to_string(),
        "algorithm": limit.algorithm.name(),
        "says": says(limit),
        "charges": match charge.hits {
            Hits::Take(hits) => format!("{hits}"),
            Hits::Look => "nothing: it looks".to_owned(),
            Hits::GiveBack(hits) => format!("-{hits}"),
        },
        "key": charge.counter.key(limit.window.at(now).start),
    });
    if let (Some(standing), Some(told)) = (standing, told.as_object_mut()) {
        told.insert("used".to_owned(), json!(standing.used));
        told.insert("left".to_owned(), json!(standing.remaining));
    }
    told
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
