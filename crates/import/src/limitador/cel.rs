//! Reads limitador's CEL expressions as far as rules can express them: comparisons of entries of the first
//! descriptor with texts, joined by `&&`.

use tollkeeper_yaml::reader::shown;

/// Deepest nesting of parentheses.
const DEPTH_MAX: usize = 32;

/// A comparison of an entry with a text. If the entry is absent, it is false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryComparison {
    pub(super) key: String,
    pub(super) relation: Relation,
    pub(super) value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    NotEqual,
}

/// Reads a condition: all of these comparisons must be true.
pub(super) fn condition(text: &str) -> Result<Vec<EntryComparison>, String> {
    let mut expression = CelExpression::new(text)?;
    let mut comparisons = Vec::new();
    expression.conjunction(&mut comparisons, 0)?;
    expression.end()?;
    Ok(comparisons)
}

/// Reads a variable: the key of an entry.
pub(super) fn variable(text: &str) -> Result<String, String> {
    let mut expression = CelExpression::new(text)?;
    let operand = expression.operand()?;
    expression.end()?;
    match operand {
        Operand::Entry(key) => Ok(key),
        Operand::Text(_) => Err(expression.beyond()),
    }
}

#[derive(Debug, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Number(String),
    Symbol(&'static str),
}

enum Operand {
    Entry(String),
    Text(String),
}

/// An expression, and the tokens that have not been read yet.
struct CelExpression<'text> {
    text: &'text str,
    tokens: std::vec::IntoIter<Token>,
}

impl<'text> CelExpression<'text> {
    fn new(text: &'text str) -> Result<Self, String> {
        let tokens = tokens(text)?.into_iter();
        Ok(Self { text, tokens })
    }

    fn conjunction(
        &mut self,
        comparisons: &mut Vec<EntryComparison>,
        depth: usize,
    ) -> Result<(), String> {
        loop {
            if !self.take("(") {
                comparisons.push(self.comparison()?);
            } else if depth == DEPTH_MAX {
                let text = shown(self.text);
                return Err(format!("`{text}`: parentheses are nested deeper than {DEPTH_MAX}"));
            } else {
                self.conjunction(comparisons, depth + 1)?;
                self.expect(")")?;
            }
            if !self.take("&&") {
                return Ok(());
            }
        }
    }

    fn comparison(&mut self) -> Result<EntryComparison, String> {
        let left = self.operand()?;
        let relation = match self.next("`==` or `!=`")? {
            Token::Symbol("==") => Relation::Equal,
            Token::Symbol("!=") => Relation::NotEqual,
            _ => return Err(self.beyond()),
        };
        match (left, self.operand()?) {
            (Operand::Entry(key), Operand::Text(value))
            | (Operand::Text(value), Operand::Entry(key)) => {
                Ok(EntryComparison { key, relation, value })
            }
            _ => Err(self.beyond()),
        }
    }

    /// `descriptors[0].key`, `descriptors[0]['key']`, or a text.
    fn operand(&mut self) -> Result<Operand, String> {
        match self.next("an entry or a text")? {
            Token::Text(text) => return Ok(Operand::Text(text)),
            Token::Name(name) if name == "descriptors" => {}
            Token::Name(name) if is_old_variable(&name) && !self.belongs_to_next() => {
                return Err(format!(
                    "`{}`: limitador has matched no name alone since version 2; write \
                     descriptors[0]['{}']",
                    shown(self.text),
                    shown(&name)
                ));
            }
            _ => return Err(self.beyond()),
        }
        self.expect("[")?;
        match self.next("an index")? {
            Token::Number(index) if index == "0" => {}
            Token::Number(index) => {
                return Err(format!(
                    "descriptors[{}]: a rule sees one descriptor, wherever it is in the call; let Envoy put the \
                     entries of this limit into one descriptor, and write descriptors[0]",
                    shown(&index)
                ));
            }
            _ => return Err(self.beyond()),
        }
        self.expect("]")?;
        match (self.next("a key")?, self.next("a key")?) {
            (Token::Symbol("."), Token::Name(key)) => Ok(Operand::Entry(key)),
            (Token::Symbol("["), Token::Text(key)) => {
                self.expect("]")?;
                Ok(Operand::Entry(key))
            }
            _ => Err(self.beyond()),
        }
    }

    /// Whether the name before the next token is the name of a function or of an object.
    fn belongs_to_next(&self) -> bool {
        let next = self.tokens.as_slice().first();
        matches!(next, Some(Token::Symbol("(" | "." | "[")))
    }

    fn take(&mut self, symbol: &'static str) -> bool {
        let is_next = self.tokens.as_slice().first() == Some(&Token::Symbol(symbol));
        if is_next {
            self.tokens.next();
        }
        is_next
    }

    /// The next token. At the end of the text, an error that says that `expected` is missing.
    fn next(&mut self, expected: &str) -> Result<Token, String> {
        self.tokens.next().ok_or_else(|| {
            format!("`{}` is incomplete: {expected} is missing at its end", shown(self.text))
        })
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), String> {
        let next = self.next(&format!("`{symbol}`"))?;
        if next == Token::Symbol(symbol) { Ok(()) } else { Err(self.beyond()) }
    }

    fn end(&mut self) -> Result<(), String> {
        if self.tokens.next().is_some() { Err(self.beyond()) } else { Ok(()) }
    }

    fn beyond(&self) -> String {
        beyond(self.text)
    }
}

/// Whether a name alone may be an entry's key, as it was in limitador 1, and not a word of CEL or limitador's
/// `limit`.
fn is_old_variable(name: &str) -> bool {
    !["true", "false", "null", "in", "limit", "has"].contains(&name)
}

fn beyond(text: &str) -> String {
    format!(
        "`{}` is more than comparisons of entries with texts (==, != and &&); let Envoy decide it, send the \
         result as an entry, and compare that",
        shown(text)
    )
}

/// The message for a part of the text that is not supported; `rest` begins with it.
fn unsupported(text: &str, rest: &str, problem: &str) -> String {
    let character = text.chars().count().saturating_sub(rest.chars().count()) + 1;
    format!("`{}`, character {character}: {problem}", shown(text))
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '\'' | '"' => quoted(text, rest, first)?,
            '0'..='9' => {
                let number = prefix(rest, |c| c.is_ascii_alphanumeric() || c == '.');
                (Token::Number(number.to_owned()), number.len())
            }
            'a'..='z' | 'A'..='Z' | '_' => name(text, rest)?,
            _ => {
                let symbols = ["==", "!=", "&&", "(", ")", "[", "]", "."];
                let symbol = symbols.into_iter().find(|symbol| rest.starts_with(symbol));
                let symbol = symbol.ok_or_else(|| beyond(text))?;
                (Token::Symbol(symbol), symbol.len())
            }
        };
        tokens.push(token);
        rest = rest.get(length..).unwrap_or_default().trim_start();
    }
    Ok(tokens)
}

fn prefix(text: &str, is_part: fn(char) -> bool) -> &str {
    let end = text.find(|character| !is_part(character)).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// A name, and its length. The prefix of a text, such as the `r` of `r'x'`, is refused.
fn name(text: &str, rest: &str) -> Result<(Token, usize), String> {
    let name = prefix(rest, |c| c.is_ascii_alphanumeric() || c == '_');
    let is_prefix = name.bytes().all(|byte| b"bBrR".contains(&byte))
        && rest.get(name.len()..).is_some_and(|behind| behind.starts_with(['\'', '"']));
    if is_prefix {
        let problem =
            format!("the prefix `{name}` of a text is not supported; write the text without it");
        return Err(unsupported(text, rest, &problem));
    }
    Ok((Token::Name(name.to_owned()), name.len()))
}

fn quoted(text: &str, rest: &str, quote: char) -> Result<(Token, usize), String> {
    let inside = rest.get(1..).unwrap_or_default();
    let Some((value, behind)) = inside.split_once(quote) else {
        return Err(unsupported(text, rest, &format!("the quote `{quote}` is not closed")));
    };
    if value.is_empty() && behind.starts_with(quote) {
        return Err(unsupported(text, rest, "three quotes are not supported; write one"));
    }
    if let Some(escape) = value.find('\\').and_then(|at| inside.get(at..)) {
        let shown: String = escape.chars().take(2).collect();
        let problem =
            format!("the escape `{shown}` is not supported; let Envoy send a word without it");
        return Err(unsupported(text, escape, &problem));
    }
    Ok((Token::Text(value.to_owned()), value.len() + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(text: &str) -> Result<String, String> {
        let mut spelled = Vec::new();
        for EntryComparison { key, relation, value } in condition(text)? {
            let relation = if relation == Relation::Equal { "is" } else { "is not" };
            spelled.push(format!("{key} {relation} {value}"));
        }
        Ok(spelled.join(", "))
    }

    #[test]
    fn comparisons_of_entries_with_texts_are_read_in_each_spelling() {
        for (text, expected) in [
            ("descriptors[0].method == 'GET'", "method is GET"),
            ("descriptors[0]['req.method'] == \"GET\"", "req.method is GET"),
            ("'GET' != descriptors[0][\"method\"]", "method is not GET"),
            (" descriptors [ 0 ] . a=='x'&&descriptors[0].b!='y' ", "a is x, b is not y"),
            ("(descriptors[0].a == 'x') && ((descriptors[0].b == ' = ü'))", "a is x, b is  = ü"),
        ] {
            assert_eq!(spell(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(variable("descriptors[0]['user.id']").as_deref(), Ok("user.id"));
        assert_eq!(variable("descriptors[0].user_id").as_deref(), Ok("user_id"));
    }

    #[test]
    fn other_expressions_are_refused_with_a_way_out() {
        for text in [
            "()",
            "descriptors[0].a == 'x' || descriptors[0].b == 'y'",
            "!(descriptors[0].a == 'x')",
            "descriptors[0].a in ['x', 'y']",
            "'a' in descriptors[0]",
            "has(descriptors[0].a)",
            "descriptors[0].path.startsWith('/api')",
            "descriptors[0].a.b == 'x'",
            "descriptors[0].a == 5",
            "descriptors[0].a == descriptors[0].b",
            "'x' == 'x'",
            "true",
            "limit.name == 'x'",
            "int(descriptors[0].a) > 5",
            "descriptors.exists(d, d.a == 'x')",
            "descriptors[x].a == 'x'",
            "descriptors[0].a == 'x' 'y'",
            "\u{0}",
        ] {
            let message = spell(text).unwrap_err();
            assert!(message.contains("is more than comparisons"), "{text}: {message}");
        }
        for (text, expected) in [
            (
                "user_id == 'x'",
                "`user_id == 'x'`: limitador has matched no name alone since version 2",
            ),
            ("descriptors[1].a == 'x'", "descriptors[1]: a rule sees one descriptor"),
        ] {
            let message = spell(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        for text in ["'100'", "descriptors[0].a == 'x'", "size(descriptors[0].a)"] {
            assert!(variable(text).unwrap_err().contains("is more than comparisons"), "{text}");
        }
        assert!(variable("user_id").unwrap_err().ends_with("write descriptors[0]['user_id']"));
    }

    #[test]
    fn a_text_that_is_not_supported_is_named_with_its_place() {
        for (text, expected) in [
            (
                r"descriptors[0]['ä'] == 'a\nb'",
                r"`descriptors[0]['ä'] == 'a\nb'`, character 26: the escape `\n` is not supported; let Envoy send a word without it",
            ),
            (
                r"descriptors[0].a == 'it\'s'",
                r"`descriptors[0].a == 'it\'s'`, character 24: the escape `\'` is not supported; let Envoy send a word without it",
            ),
            (
                "descriptors[0].a == r'x'",
                "`descriptors[0].a == r'x'`, character 21: the prefix `r` of a text is not supported; write the text without it",
            ),
            (
                "descriptors[0][bR\"a\"] == 'x'",
                "`descriptors[0][bR\"a\"] == 'x'`, character 16: the prefix `bR` of a text is not supported; write the text without it",
            ),
            (
                "descriptors[0].a == '''x'''",
                "`descriptors[0].a == '''x'''`, character 21: three quotes are not supported; write one",
            ),
            (
                "descriptors[0].a == 'x",
                "`descriptors[0].a == 'x`, character 21: the quote `'` is not closed",
            ),
        ] {
            assert_eq!(spell(text).unwrap_err(), expected);
        }
    }

    #[test]
    fn an_expression_that_is_cut_off_is_refused_with_what_is_missing() {
        for (text, expected) in [
            ("", "an entry or a text"),
            ("descriptors", "`[`"),
            ("descriptors[", "an index"),
            ("descriptors[0", "`]`"),
            ("descriptors[0]", "a key"),
            ("descriptors[0].", "a key"),
            ("descriptors[0][", "a key"),
            ("descriptors[0]['a'", "`]`"),
            ("descriptors[0].a", "`==` or `!=`"),
            ("'x'", "`==` or `!=`"),
            ("descriptors[0].a ==", "an entry or a text"),
            ("descriptors[0].a == 'x' &&", "an entry or a text"),
            ("(descriptors[0].a == 'x'", "`)`"),
        ] {
            let expected = format!("`{text}` is incomplete: {expected} is missing at its end");
            assert_eq!(spell(text), Err(expected));
        }
        assert_eq!(variable("descriptors[0]"), spell("descriptors[0]"));
    }

    #[test]
    fn parentheses_are_read_up_to_a_depth() {
        let nested =
            |depth| format!("{}descriptors[0].a == 'x'{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(spell(&nested(32)).as_deref(), Ok("a is x"));
        let message = spell(&nested(33)).unwrap_err();
        assert!(message.ends_with("`: parentheses are nested deeper than 32"), "{message}");
    }

    #[test]
    fn a_long_expression_is_shown_in_part() {
        let text = format!("descriptors[0].a == 5 || {}", "x".repeat(200));
        let message = spell(&text).unwrap_err();
        let shown: String = text.chars().take(100).collect();
        assert!(message.starts_with(&format!("`{shown}…` is more than comparisons")), "{message}");
    }
}
