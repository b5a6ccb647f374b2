//! What a domain gives to its limits: `defaults`, and overlays, whose keys are laid over the rules of other files or of a
//! control plane. Trees are changed before they are read, so that most keys need nothing here.

use std::{collections::HashMap, iter, mem};

use tollkeeper_engine::{
    calendar::Calendar,
    pattern::Pattern,
    rule::{Algorithm, Unit},
};
use tollkeeper_yaml::{problem::Findings, reader::Reader, tree::YamlNode};

use super::{
    keys::OF_ONE_ALGORITHM,
    written::{self, File, RuleTree},
};

/// Keys on which others depend: `defaults` give them first.
const FIRST: [&str; 2] = ["algorithm", "time_zone"];

/// Reads rules over which overlays are laid. A key of an overlay's descriptor replaces the same key of the rules that it
/// matches. `defaults` complete what is missing then: first the `defaults` of overlays, and of two files the first.
pub(super) fn read(
    mut trees: Vec<RuleTree>,
    overlays: &[RuleTree],
    findings: &mut Findings,
) -> Vec<File> {
    let problems = findings.problems.len();
    let mut files = Vec::new();
    for overlay in overlays {
        files.extend(written::read_overlay(overlay, findings));
    }
    let mut given = Vec::new();
    for tree in overlays.iter().chain(&trees) {
        if let (Some(domain), Some(defaults)) = (domain(tree), tree.root.get("defaults")) {
            written::check_defaults(&tree.origin, defaults, findings);
            given.push((domain.to_owned(), defaults.clone()));
        }
    }
    // A key that is wrong would be found again at each limit.
    if findings.problems.len() == problems {
        for overlay in overlays {
            lay(overlay, &mut trees, findings);
        }
        for (of, defaults) in &given {
            let trees = trees.iter_mut().filter(|tree| domain(tree) == Some(of));
            trees.for_each(|tree| complete(&mut tree.root, defaults));
        }
    }
    // An overlay adds no domain.
    files.retain(|file| trees.iter().any(|tree| domain(tree) == Some(&file.domain)));
    for tree in &trees {
        files.extend(written::read_tree(tree, findings));
    }
    files
}

fn domain(tree: &RuleTree) -> Option<&str> {
    tree.root.get("domain")?.text()
}

/// Lays an overlay over the trees of its domain. Before a control plane has sent rules, there are none to match.
fn lay(overlay: &RuleTree, trees: &mut [RuleTree], findings: &mut Findings) {
    if trees.is_empty() {
        return;
    }
    let of_domain = trees.iter_mut().filter(|tree| domain(tree) == domain(overlay));
    let mut roots: Vec<&mut YamlNode> = of_domain.map(|tree| &mut tree.root).collect();
    let mut reader = Reader { origin: &overlay.origin, findings };
    if roots.is_empty() {
        reader.warning(overlay.root.location, "domain: no other file or resource has this domain");
        return;
    }
    lay_level(&overlay.root, &mut roots, &mut reader);
}

fn lay_level(over: &YamlNode, rules: &mut [&mut YamlNode], reader: &mut Reader<'_>) {
    let items = over.get("descriptors").map_or(&[][..], YamlNode::items);
    let mut below: Vec<_> = rules.iter_mut().flat_map(|rule| descriptors_mut(rule)).collect();
    let matches = matches(items, &below);
    for (item, indices) in items.iter().zip(matches) {
        if indices.is_empty() {
            reader.warning(item.location, "no rule matches this descriptor, so it has no effect");
            continue;
        }
        let (mut rest, mut next) = (below.iter_mut(), 0);
        let mut rule_at = |index| rest.nth(index - mem::replace(&mut next, index + 1));
        let mut matched: Vec<_> = indices
            .into_iter()
            .filter_map(|index| rule_at(index).map(|rule| &mut **rule))
            .collect();
        let mut limits = 0;
        for rule in &mut matched {
            limits += lay_keys(item, rule);
        }
        if limits == 0
            && let Some(limit) = item.get("rate_limit")
        {
            let message = "rate_limit: no rule that this descriptor matches has a limit";
            reader.warning(limit.location, message);
        }
        lay_level(item, &mut matched, reader);
    }
}

/// Gives the keys of a descriptor to a rule. Returns the number of the rule's limits.
fn lay_keys(item: &YamlNode, rule: &mut YamlNode) -> usize {
    for (key, value) in item.pairs() {
        match key.name() {
            Some("key" | "value" | "descriptors") => {}
            Some("rate_limit") => {
                for limit in limits_mut(rule) {
                    value.pairs().iter().for_each(|(key, value)| limit.set(key, value));
                }
            }
            _ => rule.set(key, value),
        }
    }
    limits_mut(rule).len()
}

/// The rules that each descriptor of an overlay matches, as ascending indices: a `*` in its key or value is any text, and
/// without a value it matches any, and none. Rules are found by hash, since both lists may have many thousands.
fn matches(items: &[YamlNode], rules: &[&mut YamlNode]) -> Vec<Vec<usize>> {
    let mut by_texts = HashMap::<_, Vec<_>>::new();
    let given_or_any = |text: Option<_>| iter::once(None).chain(text.map(Some));
    for (index, rule) in rules.iter().enumerate() {
        let texts @ [key, value] = texts(rule);
        for key in given_or_any(key) {
            for value in given_or_any(value) {
                by_texts.entry([key, value]).or_default().push((index, texts));
            }
        }
    }
    let rules_of = |item| {
        let patterns = texts(item).map(|text| text.and_then(Pattern::new));
        let exact = texts(item).map(|text| text.filter(|text| !text.contains('*')));
        let fits = |texts: &[Option<&str>; 2]| {
            patterns.iter().zip(texts).all(|(pattern, text)| {
                let Some(pattern) = pattern else { return true };
                text.is_some_and(|text| pattern.matches(text.as_bytes()))
            })
        };
        let found = by_texts.get(&exact).into_iter().flatten();
        found.filter(|(_, texts)| fits(texts)).map(|(index, _)| *index).collect()
    };
    items.iter().map(rules_of).collect()
}

/// The key and the value of a descriptor.
fn texts(descriptor: &YamlNode) -> [Option<&str>; 2] {
    ["key", "value"].map(|name| descriptor.text_at(name))
}

/// Gives these keys to each limit below that has not got them, not even empty, and to which they apply.
fn complete(level: &mut YamlNode, defaults: &YamlNode) {
    for descriptor in descriptors_mut(level) {
        for limit in limits_mut(descriptor) {
            let mut pairs: Vec<_> = defaults.pairs().iter().collect();
            let rank = |key: &YamlNode| FIRST.iter().position(|first| key.name() == Some(first));
            pairs.sort_by_key(|(key, _)| rank(key).unwrap_or(FIRST.len()));
            for (key, value) in pairs {
                let applies = |name| limit.get(name).is_none() && applies(name, value, limit);
                if key.name().is_some_and(applies) {
                    limit.set(key, value);
                }
            }
        }
        complete(descriptor, defaults);
    }
}

/// Whether a key of `defaults` with this value makes sense in a limit.
fn applies(name: &str, value: &YamlNode, limit: &YamlNode) -> bool {
    let word = |name| limit.get(name).and_then(YamlNode::text);
    let is = |expected: &str, word: &str| word.eq_ignore_ascii_case(expected);
    let algorithm = word("algorithm").unwrap_or(Algorithm::FixedWindow.name());
    let needed = OF_ONE_ALGORITHM.into_iter().find(|(key, ..)| *key == name);
    if needed.is_some_and(|(_, needed, _)| !needed.iter().any(|needed| is(needed, algorithm))) {
        return false;
    }
    let unit =
        Unit::ALL.into_iter().find(|unit| word("unit").is_some_and(|word| is(unit.name(), word)));
    match name {
        "time_zone" => {
            let units = word("unit_multiplier").unwrap_or("1");
            units == "1" && unit.is_some_and(|unit| calendar(unit).is_some())
        }
        "starts" => word("time_zone").is_some() && unit.is_some_and(|unit| starts(unit, value)),
        _ => true,
    }
}

/// Whether windows of this unit can start there. What suits no unit applies to all, so that it is reported.
fn starts(unit: Unit, value: &YamlNode) -> bool {
    let suits = |unit| calendar(unit)?.starting(value.text()?);
    suits(unit).is_some() || Unit::ALL.into_iter().all(|unit| suits(unit).is_none())
}

/// A calendar of this unit, if there are any.
fn calendar(unit: Unit) -> Option<Calendar> {
    Calendar::new(unit, "UTC").ok()
}

fn descriptors_mut(level: &mut YamlNode) -> &mut [YamlNode] {
    let found = level.pairs_mut().iter_mut().find(|(key, _)| key.name() == Some("descriptors"));
    found.map_or(&mut [][..], |(_, list)| list.items_mut())
}

/// The mappings of `rate_limit` and `rate_limits`.
fn limits_mut(descriptor: &mut YamlNode) -> Vec<&mut YamlNode> {
    let mut limits = Vec::new();
    for (key, value) in descriptor.pairs_mut() {
        match key.name() {
            Some("rate_limit") if !value.is_null() => limits.push(value),
            Some("rate_limits") => limits.extend(value.items_mut()),
            _ => {}
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollkeeper_engine::rule::{Limit, Policy, Rule, WhenDenied};
    use tollkeeper_yaml::files::Source;

    use crate::{
        keys::LIMIT,
        load::{RuleFiles, compile_files},
        options::LoadOptions,
    };

    const SHOP: &str = "\
domain: shop
descriptors:
- key: user
  rate_limit: { unit: minute, requests_per_unit: 5 }
- key: user
  value: alice
  rate_limit: { unit: day, requests_per_unit: 9, algorithm: first_hit_window }
- key: path
  value: /login
  descriptors:
  - key: user
    rate_limits:
    - { unit: hour, requests_per_unit: 1 }
    - { unit: day, requests_per_unit: 2, on_store_failure: }
";

    /// Compares every limit of the domains `shop` and `till`, or the problems, and then the warnings.
    #[track_caller]
    fn check(files: &[&str], overlays: &[&str], expected: &str) {
        let named = |name: &str, texts: &[&str]| {
            let texts = texts.iter().enumerate();
            let named = texts.map(|(index, text)| Source {
                name: format!("{name}{index}"),
                text: (*text).to_owned(),
            });
            named.collect()
        };
        let (sources, overlays) = (named("f", files), named("o", overlays));
        let read = RuleFiles { sources, overlays, ..RuleFiles::default() };
        let (mut lines, warnings) = match compile_files(read, LoadOptions::default()) {
            Ok(loaded) => (
                loaded
                    .rules
                    .domains()
                    .into_iter()
                    .flat_map(|domain| domain.rules())
                    .flat_map(|rule| limits(rule))
                    .collect(),
                loaded.warnings,
            ),
            Err(problems) => (problems.iter().map(ToString::to_string).collect::<Vec<_>>(), vec![]),
        };
        lines.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
        assert_eq!(lines.join("\n"), expected);
    }

    fn limits(rule: &Rule) -> Vec<String> {
        let Policy::Limited(limits) = &rule.policy else { return vec![] };
        let line = |limit: &Arc<Limit>| {
            let counted = if limit.when_denied == WhenDenied::Counted { ", counted" } else { "" };
            let window = limit.window.to_string();
            let zone = if window.contains('@') { format!(", {window}") } else { String::new() };
            let (name, mode) = (limit.algorithm.name(), limit.on_store_failure.name());
            format!("{}: {limit} by {name}, {mode}{counted}{zone}", rule.path)
        };
        limits.iter().map(line).collect()
    }

    const DEFAULTS: &str =
        "domain: shop\ndefaults: { on_store_failure: deny, count_denied: true }\n";

    #[test]
    fn defaults_go_to_all_limits_of_the_domain_that_do_not_have_the_key() {
        check(
            &[
                SHOP,
                DEFAULTS,
                "domain: till\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]",
            ],
            &[],
            "\
path=/login|user: 1 per hour by fixed_window, deny, counted
path=/login|user: 2 per day by fixed_window, error, counted
user: 5 per minute by fixed_window, deny, counted
user=alice: 9 per day by first_hit_window, deny, counted
a: 1 per day by fixed_window, error",
        );
    }

    #[test]
    fn a_default_goes_only_where_it_makes_sense() {
        let zone = "domain: shop\ndefaults: { time_zone: Europe/Berlin, burst: 20 }\n";
        check(
            &[SHOP, zone],
            &[],
            "\
path=/login|user: 1 per hour by fixed_window, error
path=/login|user: 2 per day by fixed_window, error, day@Europe/Berlin
user: 5 per minute by fixed_window, error
user=alice: 9 per day by first_hit_window, error",
        );
        let bucket = "domain: shop\ndefaults: { burst: 20, algorithm: token_bucket }\n";
        check(
            &[
                bucket,
                "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 5 } }]",
            ],
            &[],
            "user: 5 per day by token_bucket, error",
        );
    }

    #[test]
    fn a_default_start_of_windows_goes_to_calendars_of_its_unit_alone() {
        let limits = "\
domain: shop
descriptors:
- key: user
  rate_limits:
  - { unit: month, requests_per_unit: 1 }
  - { unit: month, requests_per_unit: 2, time_zone: }
  - { unit: day, requests_per_unit: 3 }
  - { unit: hour, requests_per_unit: 4 }
  - { unit: day, unit_multiplier: 2, requests_per_unit: 5 }
  - { unit: month, requests_per_unit: 6, algorithm: sliding_window }
";
        let defaults = |starts: &str| {
            format!("domain: shop\ndefaults: {{ starts: {starts}, time_zone: Europe/Berlin }}\n")
        };
        check(
            &[limits, &defaults("15")],
            &[],
            "\
user: 1 per month by fixed_window, error, month.15@Europe/Berlin
user: 2 per month by fixed_window, error
user: 3 per day by fixed_window, error, day@Europe/Berlin
user: 4 per hour by fixed_window, error
user: 5 per 2 days by fixed_window, error
user: 6 per month by sliding_window, error",
        );
        let days = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: day } }]\n";
        check(
            &[days, &defaults("noon")],
            &[],
            "f0:2:40: starts: `noon` is not a time such as \"06:00\", for unit day",
        );
    }

    #[test]
    fn a_problem_of_defaults_is_reported_once_where_it_is_written() {
        check(
            &[SHOP, "domain: shop\ndefaults: { burst: x, unit: day, name: a }\n"],
            &[],
            "\
f1:2:20: burst: must be a whole number from 1 to 9007199254740991; not `x`
f1:2:29: unit: not in `defaults`; each limit has its own
f1:2:40: name: not in `defaults`; each limit has its own",
        );
        let names: Vec<_> = LIMIT.names().collect();
        let expected =
            format!("f1:2:11: a rate_limit must be a mapping with the keys {}", names.join(", "));
        check(&[SHOP, "domain: shop\ndefaults: 5"], &[], &expected);
    }

    #[test]
    fn an_overlay_gives_its_keys_to_the_rules_that_it_matches() {
        let overlay = "\
domain: shop
defaults: { on_store_failure: allow }
descriptors:
- key: us*
  rate_limit: { count_denied: true, on_store_failure: local }
- key: user
  value: ali*
  rate_limit: { algorithm: first_hit_window }
- key: path
  descriptors: [{ key: user, rate_limit: { name: a } }]
";
        check(
            &[SHOP, DEFAULTS],
            &[overlay],
            "\
path=/login|user: 1 per hour by fixed_window, allow, counted
path=/login|user: 2 per day by fixed_window, error, counted
user: 5 per minute by fixed_window, local, counted
user=alice: 9 per day by first_hit_window, local, counted",
        );
    }

    /// Compared in pairs, these four hundred million would take many minutes.
    #[test]
    fn thousands_of_descriptors_are_laid_over_thousands_of_rules() {
        let paths =
            || (0..20_000).map(|path| format!("- {{ key: path, value: p{path:05}, rate_limit: "));
        let file = |limit: &str| {
            let descriptors: String = paths().map(|path| format!("{path}{limit} }}\n")).collect();
            format!("domain: shop\ndescriptors:\n{descriptors}")
        };
        let rules = file("{ unit: day, requests_per_unit: 1 }");
        let line = |path| format!("path=p{path:05}: 1 per day by fixed_window, deny");
        let expected: Vec<_> = (0..20_000).map(line).collect();
        check(&[&rules], &[&file("{ on_store_failure: deny }")], &expected.join("\n"));
    }

    #[test]
    fn what_an_overlay_names_and_no_rule_matches_is_a_warning() {
        let overlay = "\
domain: shop
descriptors:
- { key: user, value: bob, rate_limit: { count_denied: true } }
- key: path
  value: /log*
  rate_limit: { count_denied: true }
  descriptors: [{ key: role }]
";
        check(
            &[
                "domain: shop\ndescriptors:\n- key: path\n  value: /login\n  descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }]",
            ],
            &[overlay, "domain: till"],
            "\
path=/login|user: 1 per day by fixed_window, error
warning: o0:3:3: no rule matches this descriptor, so it has no effect
warning: o0:6:15: rate_limit: no rule that this descriptor matches has a limit
warning: o0:7:17: no rule matches this descriptor, so it has no effect
warning: o1:1:1: domain: no other file or resource has this domain",
        );
    }

    #[test]
    fn problems_of_an_overlay_are_its_own_and_those_of_a_key_that_does_not_fit_name_the_limit() {
        let bad = "domain: shop\ndescriptors:\n- { key: user, rate_limit: { unit: day, requests_per_unit: 5 } }\n- { key: user, rate_limits: [], limit: 3 }";
        check(
            &[SHOP],
            &[bad, "descriptors: []"],
            "\
o0:3:36: unit: not in an overlay; each limit has its own
o0:3:60: requests_per_unit: not in an overlay; each limit has its own
o0:4:33: unknown key `limit`; allowed here: key, value, rate_limit, rate_limits, descriptors, shadow_mode, quota_mode, share_threshold, secret, detailed_metric, value_to_metric, metadata
o1:1:1: domain: missing",
        );
        check(
            &[SHOP],
            &[
                "domain: shop\ndescriptors:\n- { key: '*', rate_limit: { burst: 7 } }\n- { key: path, descriptors: [{ key: user, rate_limit: { burst: 7 } }] }",
            ],
            "\
f0:4:15: burst: only for algorithm token_bucket, not fixed_window
f0:7:15: burst: only for algorithm token_bucket, not first_hit_window
f0:13:7: burst: only for algorithm token_bucket, not fixed_window
f0:14:7: burst: only for algorithm token_bucket, not fixed_window",
        );
    }
}
