//! Which domains each client may use: a YAML mapping from a name in the client's certificate, a DNS name or a
//! URI such as a SPIFFE ID, to a list of domains; `"*"` is every domain.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use crate::yaml::{
    Problem, files,
    tree::{self, Content, YamlNode},
};

/// The domain that stands for all.
pub(crate) const EVERY_DOMAIN: &str = "*";

/// Which domains each client may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClientDomains(HashMap<String, HashSet<String>>);

impl ClientDomains {
    /// Reads a file.
    ///
    /// # Errors
    /// The first problem, with file, line and column.
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let source = files::read(path)?;
        Self::parse(&source.name, &source.text)
    }

    fn parse(file: &str, text: &str) -> Result<Self, Problem> {
        let (root, errors) = tree::parse(text);
        if let Some((location, message)) = errors.into_iter().next() {
            return Err(Problem::at(file, location, message));
        }
        let mut clients = HashMap::new();
        let Some(root) = root else { return Ok(Self(clients)) };
        let Content::Map(pairs) = &root.content else {
            let message = "must be a mapping from names of clients to lists of domains";
            return Err(Problem::at(file, root.location, message));
        };
        for (client, domains) in pairs {
            let name = text_of(file, client)?;
            let Content::List(items) = &domains.content else {
                return Err(Problem::at(file, domains.location, "must be a list of domains"));
            };
            let domains = items.iter().map(|item| text_of(file, item));
            if clients.insert(name, domains.collect::<Result<_, _>>()?).is_some() {
                return Err(Problem::at(file, client.location, "duplicate client"));
            }
        }
        Ok(Self(clients))
    }

    /// Whether a client with these names may use a domain.
    pub(crate) fn allow(&self, names: &[String], domain: &str) -> bool {
        let mut lists = names.iter().filter_map(|name| self.0.get(name));
        lists.any(|domains| domains.contains(domain) || domains.contains(EVERY_DOMAIN))
    }
}

fn text_of(file: &str, node: &YamlNode) -> Result<String, Problem> {
    let text = node.text().filter(|text| !text.is_empty());
    text.map(str::to_owned).ok_or_else(|| Problem::at(file, node.location, "must be a text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_client_may_ask_about_the_domains_of_any_of_its_names() {
        let text = "spiffe://cluster/shop: [shop, login]\nenvoy.example: ['*']\nother: []\n";
        let clients = ClientDomains::parse("clients.yaml", text).unwrap();
        for (who, domain, expected) in [
            (&["spiffe://cluster/shop"][..], "shop", true),
            (&["spiffe://cluster/shop"], "mail", false),
            (&["spiffe://cluster/shop"], "*", false),
            (&["other", "envoy.example"], "mail", true),
            (&["other"], "shop", false),
            (&["unknown"], "shop", false),
            (&[], "shop", false),
        ] {
            assert_eq!(clients.allow(&names(who), domain), expected, "{who:?} {domain}");
        }
        assert!(!ClientDomains::parse("empty.yaml", "").unwrap().allow(&names(&["a"]), "shop"));
    }

    #[test]
    fn a_problem_names_its_location() {
        for (text, expected) in [
            ("[a]", "c.yaml:1:1: must be a mapping from names of clients to lists of domains"),
            ("a: b", "c.yaml:1:4: must be a list of domains"),
            ("a: [[b]]", "c.yaml:1:5: must be a text"),
            ("a: [b, ~]", "c.yaml:1:8: must be a text"),
            ("null: [b]", "c.yaml:1:1: must be a text"),
            ("a:", "c.yaml:1:2: must be a list of domains"),
            ("a: []\na: []", "c.yaml:2:1: duplicate client"),
        ] {
            assert_eq!(ClientDomains::parse("c.yaml", text).unwrap_err().to_string(), expected);
        }
    }
}
