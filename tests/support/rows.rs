//! Tables of cases as text: one line for each, whose parts are separated by ` | `, below the name of its section in brackets.
//! `\n`, `\r`, `\t`, `\\` and `\u{1b}` are characters as in Rust, and `\{9*text\}` is a text nine times.

/// How a text of a table becomes an input.
pub type Form = fn(&str) -> String;

/// The cases of a section of `text`.
pub fn rows<const PARTS: usize>(text: &str, section: &str) -> Vec<[String; PARTS]> {
    let (_, rest) = text.split_once(&format!("\n[{section}]\n")).expect(section);
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let cases = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = |line: &str| -> Vec<String> { line.split(" | ").map(plain).collect() };
    let cases: Vec<_> =
        cases.map(|line| parts(line).try_into().unwrap_or_else(|_| panic!("{line}"))).collect();
    assert!(!cases.is_empty(), "{section} has no row");
    cases
}

/// What an escaped text stands for.
pub fn plain(escaped: &str) -> String {
    let Some((before, escape)) = escaped.split_once('\\') else { return escaped.to_owned() };
    let (kind, rest) = escape.split_at(1);
    let (text, rest) = match kind {
        "n" => ("\n".to_owned(), rest),
        "r" => ("\r".to_owned(), rest),
        "t" => ("\t".to_owned(), rest),
        "\\" => ("\\".to_owned(), rest),
        "u" => {
            let (code, rest) = rest[1..].split_once('}').expect(escaped);
            let code = u32::from_str_radix(code, 16).expect(escaped);
            (char::from_u32(code).expect(escaped).to_string(), rest)
        }
        "{" => {
            let (repeated, rest) = rest.split_once("\\}").expect(escaped);
            let (count, text) = repeated.split_once('*').expect(escaped);
            (plain(text).repeat(count.parse().expect(escaped)), rest)
        }
        _ => panic!("{escaped}"),
    };
    before.to_owned() + &text + &plain(rest)
}
