//! The tokens of the admin address: a file with a line for each, `NAME TOKEN` or `NAME TOKEN read-only`. A token alone has
//! the name `admin`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};

use super::right::Right;
use crate::net::tls::last_good::OfFile;

/// The tokens that clients of the admin address show. Only their digests are kept.
#[derive(Debug)]
pub struct AdminTokens(OfFile<Vec<NamedToken>>);

#[derive(Clone, PartialEq)]
pub(crate) struct NamedToken {
    digest: [u8; 32],
    /// The name of its holder, for the audit.
    pub(crate) name: Arc<str>,
    /// [`Right::Read`] or [`Right::Change`].
    pub(crate) right: Right,
}

/// The name of a token that has none.
const UNNAMED: &str = "admin";

const TOKEN_BYTES_MIN: usize = 16;

const NAME_BYTES_MAX: usize = 64;

impl AdminTokens {
    pub fn load(path: PathBuf) -> Result<Self, String> {
        OfFile::load("the tokens of the admin address", path, read).map(Self)
    }

    /// Reads the file again. A bad one is logged once, and the last good one stays. Returns whether the file is in use.
    pub fn renew(&self) -> bool {
        self.0.renew()
    }

    /// The token that a client has shown. Digests are compared, in a time that does not depend on them.
    pub(crate) fn find(&self, shown: &[u8]) -> Option<NamedToken> {
        let (tokens, shown) = (self.0.value(), digest(shown));
        let mut found = None;
        for token in tokens.iter().flat_map(|tokens| tokens.iter()) {
            let differences = token.digest.iter().zip(shown).fold(0, |all, (a, b)| all | (a ^ b));
            if differences == 0 {
                found = Some(token);
            }
        }
        found.cloned()
    }
}

fn read(path: &Path) -> Result<Vec<NamedToken>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))
}

fn parse(text: &str) -> Result<Vec<NamedToken>, String> {
    let mut tokens: Vec<NamedToken> = Vec::new();
    for (line, words) in (1..).zip(text.lines().map(|line| line.split_whitespace().collect())) {
        let words: Vec<&str> = words;
        let (name, token, right) = match words[..] {
            [] => continue,
            [token] => (UNNAMED, token, Right::Change),
            [name, token] => (name, token, Right::Change),
            [name, token, "read-only"] => (name, token, Right::Read),
            _ => return Err(format!("line {line}: must be NAME TOKEN or NAME TOKEN read-only")),
        };
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if token.len() < TOKEN_BYTES_MIN || !is_visible(token) {
            let problem = "the token must be at least 16 visible ASCII characters";
            return Err(format!("line {line}: {problem}"));
        }
        if name.len() > NAME_BYTES_MAX || !is_visible(name) {
            return Err(format!(
                "line {line}: the name must be at most 64 visible ASCII characters"
            ));
        }
        let digest = digest(token.as_bytes());
        if tokens.iter().any(|other| other.digest == digest) {
            return Err(format!("line {line}: duplicate token"));
        }
        tokens.push(NamedToken { digest, name: name.into(), right });
    }
    if tokens.is_empty() {
        return Err("must hold a token".to_owned());
    }
    Ok(tokens)
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_token_with_the_name_and_the_right_of_its_holder() {
        let text =
            "0123456789abcdef\n\n  alice  fedcba9876543210\r\nalice 1111111111111111 read-only";
        let tokens = parse(text).unwrap();
        let tokens: Vec<(&str, Right)> =
            tokens.iter().map(|token| (&*token.name, token.right)).collect();
        let expected = [("admin", Right::Change), ("alice", Right::Change), ("alice", Right::Read)];
        assert_eq!(tokens, expected);
    }

    #[test]
    fn a_problem_names_the_line_and_no_token() {
        let short = "the token must be at least 16 visible ASCII characters";
        for (text, expected) in [
            ("", "must hold a token".to_owned()),
            (" \n", "must hold a token".to_owned()),
            ("\n0123456789abcde", format!("line 2: {short}")),
            ("alice 0123456789abcde", format!("line 1: {short}")),
            ("alice 0123456789abcdé", format!("line 1: {short}")),
            (
                "alice 0123456789abcdef readonly",
                "line 1: must be NAME TOKEN or NAME TOKEN read-only".to_owned(),
            ),
            (
                "älice 0123456789abcdef",
                "line 1: the name must be at most 64 visible ASCII characters".to_owned(),
            ),
            ("a 0123456789abcdef\n0123456789abcdef", "line 2: duplicate token".to_owned()),
        ] {
            assert_eq!(parse(text).err(), Some(expected), "{text:?}");
        }
    }
}
