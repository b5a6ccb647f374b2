//! Which domains each client may use: a YAML mapping from a name in the client's certificate, a DNS name or a
//! URI such as a SPIFFE ID, to a list of domains; `"*"` is every domain. A client that may change counters has a mapping
//! instead: `{ domains: [shop], operates: [shop] }`.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use super::right::Right;
use crate::yaml::{
    Problem, files,
    tree::{self, Content, YamlNode},
};

pub(crate) const EVERY_DOMAIN: &str = "*";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClientDomains(HashMap<String, OfClient>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OfClient {
    domains: HashSet<String>,
    /// What it reads and changes on the admin address.
    operates: HashSet<String>,
}

impl ClientDomains {
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let source = files::read(path)?;
        Self::parse(&source.name, &source.text)
    }

    fn parse(file: &str, text: &str) -> Result<Self, Problem> {
        let (root, errors) = tree::parse(text);
        if let Some((location, message)) = errors.into_iter().next() {
            return Err(Problem::at(file, location, message));
        }
        let Some(root) = root else {
            let message = "must name a client; `{}` lets nobody in".to_owned();
            return Err(Problem { file: file.to_owned(), location: None, message });
        };
        let mut clients = HashMap::new();
        let Content::Map(pairs) = &root.content else {
            let message = "must be a mapping from names of clients to lists of domains";
            return Err(Problem::at(file, root.location, message));
        };
        for (client, value) in pairs {
            let name = text_of(file, client)?;
            if clients.insert(name, OfClient::parse(file, value)?).is_some() {
                return Err(Problem::at(file, client.location, "duplicate client"));
            }
        }
        Ok(Self(clients))
    }

    /// The first of these names that gives the right.
    pub(crate) fn name_with<'name>(
        &self,
        names: &'name [String],
        domain: &str,
        right: Right,
    ) -> Option<&'name String> {
        let has = |list: &HashSet<String>| list.contains(domain) || list.contains(EVERY_DOMAIN);
        names.iter().find(|name| {
            self.0.get(*name).is_some_and(|client| match right {
                Right::Decide => has(&client.domains),
                Right::Read => has(&client.domains) || has(&client.operates),
                Right::Change => has(&client.operates),
            })
        })
    }
}

impl OfClient {
    fn parse(file: &str, node: &YamlNode) -> Result<Self, Problem> {
        let mut client = Self::default();
        let Content::Map(pairs) = &node.content else {
            client.domains = list_of(file, node)?;
            return Ok(client);
        };
        for (key, list) in pairs {
            let of_key = match key.text() {
                Some("domains") => &mut client.domains,
                Some("operates") => &mut client.operates,
                _ => {
                    let message = "must be one of: domains, operates";
                    return Err(Problem::at(file, key.location, message));
                }
            };
            of_key.extend(list_of(file, list)?);
        }
        Ok(client)
    }
}

fn list_of(file: &str, node: &YamlNode) -> Result<HashSet<String>, Problem> {
    let Content::List(items) = &node.content else {
        return Err(Problem::at(file, node.location, "must be a list of domains"));
    };
    items.iter().map(|item| text_of(file, item)).collect()
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
    fn a_client_has_the_rights_of_any_of_its_names() {
        let text = "spiffe://cluster/shop: [shop, login]\nenvoy.example: ['*']\nother: []\n\
            ops: { operates: [shop] }\nboth: { domains: [mail], operates: ['*'] }\n";
        let clients = ClientDomains::parse("clients.yaml", text).unwrap();
        let rights = [Right::Decide, Right::Read, Right::Change];
        for (who, domain, expected) in [
            (&["spiffe://cluster/shop"][..], "shop", [true, true, false]),
            (&["spiffe://cluster/shop"], "mail", [false, false, false]),
            (&["spiffe://cluster/shop"], "*", [false, false, false]),
            (&["other", "envoy.example"], "mail", [true, true, false]),
            (&["other"], "shop", [false, false, false]),
            (&["unknown"], "shop", [false, false, false]),
            (&[], "shop", [false, false, false]),
            (&["ops"], "shop", [false, true, true]),
            (&["ops"], "mail", [false, false, false]),
            (&["ops"], "*", [false, false, false]),
            (&["both"], "mail", [true, true, true]),
            (&["both"], "*", [false, true, true]),
        ] {
            let allowed =
                rights.map(|right| clients.name_with(&names(who), domain, right).is_some());
            assert_eq!(allowed, expected, "{who:?} {domain}");
        }
        let none = ClientDomains::parse("empty.yaml", "{}").unwrap();
        assert_eq!(none.name_with(&names(&["a"]), "shop", Right::Decide), None);
        let both = names(&["other", "both", "ops"]);
        assert_eq!(clients.name_with(&both, "shop", Right::Change), Some(&both[1]));
    }

    #[test]
    fn a_problem_names_its_location() {
        for (text, expected) in [
            ("# a: [b]", "c.yaml: must name a client; `{}` lets nobody in"),
            ("[a]", "c.yaml:1:1: must be a mapping from names of clients to lists of domains"),
            ("a: b", "c.yaml:1:4: must be a list of domains"),
            ("a: [[b]]", "c.yaml:1:5: must be a text"),
            ("a: [b, ~]", "c.yaml:1:8: must be a text"),
            ("null: [b]", "c.yaml:1:1: must be a text"),
            ("a:", "c.yaml:1:2: must be a list of domains"),
            ("a: []\na: []", "c.yaml:2:1: duplicate client"),
            ("a: { operate: [b] }", "c.yaml:1:6: must be one of: domains, operates"),
            ("a: { operates: b }", "c.yaml:1:16: must be a list of domains"),
        ] {
            assert_eq!(ClientDomains::parse("c.yaml", text).unwrap_err().to_string(), expected);
        }
    }
}
