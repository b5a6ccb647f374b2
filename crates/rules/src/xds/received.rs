//! The resources of one response: decoded, in an order of their own, and compiled.

use std::collections::HashSet;

use prost::Message as _;
use prost_types::Any;
use tollkeeper_engine::text::printable::printable;
use tollkeeper_yaml::{Problem, origin::Origin, problem::Findings};

use super::{
    pb::{RateLimitConfig, RateLimitDescriptor, TYPE_URL},
    resource,
};
use crate::{
    load::{InForce, RuleFiles, Version, compile_all},
    options::LoadOptions,
};

#[derive(Debug, Clone, Default)]
pub(super) struct ReceivedRules {
    configs: Vec<RateLimitConfig>,
    problems: Vec<Problem>,
    /// The resources with fields that this version does not know.
    newer: Vec<String>,
}

impl ReceivedRules {
    /// Decodes the resources, and puts them in order: control planes send them in a random one.
    pub(super) fn decode(resources: &[Any]) -> Self {
        let mut received = Self::default();
        for (index, resource) in resources.iter().enumerate() {
            let origin = Origin::text(&format!("resource {}", index + 1));
            let problem =
                |message: String| Problem { file: origin.name.clone(), location: None, message };
            if resource.type_url != TYPE_URL {
                let found = printable(resource.type_url.as_bytes());
                received.problems.push(problem(format!("its type is `{found}`, not {TYPE_URL}")));
                continue;
            }
            match RateLimitConfig::decode(resource.value.as_slice()) {
                Ok(config) => received.add(config, resource.value.len()),
                Err(error) => received.problems.push(problem(format!("malformed: {error}"))),
            }
        }
        received.configs.sort_by(|a, b| (&a.name, &a.domain).cmp(&(&b.name, &b.domain)));
        received
    }

    fn add(&mut self, mut config: RateLimitConfig, bytes: usize) {
        // A newer control plane may send more than this version knows.
        if config.encoded_len() < bytes {
            self.newer.push(printable(resource::name(&config).as_bytes()));
        }
        sort(&mut config.descriptors);
        self.configs.push(config);
    }

    /// The version of the content and its overlays, whatever the control plane calls it.
    pub(super) fn version(&self, overlays: &RuleFiles) -> Version {
        let configs = self.configs.iter().map(prost::Message::encode_to_vec);
        let problems = self.problems.iter().map(ToString::to_string);
        let texts = problems.chain(overlays.parts());
        Version::of(configs.chain(texts.map(String::into_bytes)))
    }

    /// Adds the resources of `before` whose domain is absent here. Returns these domains.
    pub(super) fn keep_vanished(&mut self, before: &Self) -> Vec<String> {
        let present: HashSet<&str> =
            self.configs.iter().map(|config| config.domain.as_str()).collect();
        let vanished = before.configs.iter().filter(|old| !present.contains(old.domain.as_str()));
        let vanished: Vec<RateLimitConfig> = vanished.cloned().collect();
        let domains = vanished.iter().map(|config| config.domain.clone()).collect();
        self.configs.extend(vanished);
        domains
    }

    pub(super) fn compile(
        &self,
        options: LoadOptions,
        overlays: &RuleFiles,
    ) -> Result<InForce, Vec<Problem>> {
        let Self { configs, problems, newer } = self;
        let mut findings = Findings { problems: problems.clone(), warnings: Vec::new() };
        if let Some(first) = newer.first() {
            let count = newer.len();
            let message = format!(
                "the first of {count} with fields that this version does not know; they are ignored"
            );
            findings.warnings.push(Problem { file: first.clone(), location: None, message });
        }
        let problems = &mut findings.problems;
        let trees = configs.iter().map(|config| resource::tree(config, problems)).collect();
        compile_all(trees, overlays, self.version(overlays), options, findings)
    }
}

/// Sorts descriptors by key and value. Patterns stay in their order, in which they are tried.
fn sort(descriptors: &mut [RateLimitDescriptor]) {
    let exact = |descriptor: &RateLimitDescriptor| {
        Some(descriptor.value.clone()).filter(|value| !value.contains('*'))
    };
    descriptors.sort_by_cached_key(|descriptor| (descriptor.key.clone(), exact(descriptor)));
    for descriptor in descriptors {
        sort(&mut descriptor.descriptors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xds::pb::RateLimitPolicy;

    /// Descriptors within each other, as many as this.
    fn nested(levels: usize) -> Any {
        let mut descriptors = Vec::new();
        for level in 0..levels {
            let limit = RateLimitPolicy { unit: 1, requests_per_unit: 1, ..Default::default() };
            let (key, rate_limit) = (format!("level {level}"), Some(limit));
            descriptors =
                vec![RateLimitDescriptor { key, rate_limit, descriptors, ..Default::default() }];
        }
        let config = RateLimitConfig { name: "n".to_owned(), domain: "d".to_owned(), descriptors };
        Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
    }

    fn check(resource: Any) -> Result<InForce, Vec<Problem>> {
        ReceivedRules::decode(&[resource]).compile(LoadOptions::default(), &RuleFiles::default())
    }

    #[test]
    fn no_bytes_cause_a_panic() {
        let good = nested(3);
        check(good.clone()).unwrap();
        for index in 0..good.value.len() {
            drop(check(Any { value: good.value[..index].to_vec(), ..good.clone() }));
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad.value[index] = byte;
                drop(check(bad));
            }
        }
    }

    #[test]
    fn descriptors_nested_too_deeply_are_a_problem() {
        check(nested(90)).unwrap();
        let problems = check(nested(200)).unwrap_err();
        assert!(problems[0].message.contains("recursion limit"), "{problems:?}");
    }
}
