//! Escapes text from outside (requests, file names, arguments, other servers) for log lines, terminals and
//! answers.

/// The text, with control characters (including line ends) and invalid UTF-8 written as `\xHH`.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                push_escaped(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        push_escaped(&mut text, chunk.invalid());
    }
    text
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        *text += &format!("\\x{byte:02x}");
    }
}

/// Like [`printable`], but line ends remain.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| printable(line.as_bytes())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_invalid_utf_8_are_escaped() {
        assert_eq!(printable("plain ü \"quoted\"".as_bytes()), "plain ü \"quoted\"");
        assert_eq!(printable(b"a\r\nb\x00\xff\x1b[31m"), "a\\x0d\\x0ab\\x00\\xff\\x1b[31m");
        assert_eq!(printable("\u{85}".as_bytes()), "\\xc2\\x85");
        assert_eq!(printable_lines("a\x1b\nb\r\n"), "a\\x1b\nb\\x0d\n");
    }
}
