//! Text from outside (requests, file names, arguments, other servers) in a form that any log line, terminal
//! or answer can hold.

/// The text, with control characters (line ends included) and what is no UTF-8 written `\xHH`.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |text: &mut String, bytes: &[u8]| {
        bytes.iter().for_each(|byte| *text += &format!("\\x{byte:02x}"));
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character.is_control() {
                true => escape(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes()),
                false => text.push(character),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// As [`printable`], but for the ends of its lines.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| printable(line.as_bytes())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_what_is_no_utf_8_are_escaped() {
        assert_eq!(printable("plain ü \"quoted\"".as_bytes()), "plain ü \"quoted\"");
        assert_eq!(printable(b"a\r\nb\x00\xff\x1b[31m"), "a\\x0d\\x0ab\\x00\\xff\\x1b[31m");
        assert_eq!(printable("\u{85}".as_bytes()), "\\xc2\\x85");
        assert_eq!(printable_lines("a\x1b\nb\r\n"), "a\\x1b\nb\\x0d\n");
    }
}
