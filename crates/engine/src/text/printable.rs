//! Escapes text from outside (requests, file names, arguments, other servers) for log lines, terminals and
//! answers.

/// Whether a character is a control, or is not seen and changes how others are read: a mark of direction or of no width.
pub fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text, with [unseen characters](is_unseen) (including line ends) and invalid UTF-8 written as `\xHH`.
pub fn printable(bytes: &[u8]) -> String {
    printable_start(bytes, usize::MAX)
}

/// Like [`printable`]. What follows after about `bytes_max` bytes of the result is written as `…`, and costs nothing.
pub fn printable_start(bytes: &[u8], bytes_max: usize) -> String {
    let mut text = String::with_capacity(bytes.len().min(bytes_max));
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if text.len() >= bytes_max {
                return text + "…";
            }
            if is_unseen(character) {
                push_escaped(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        if text.len() >= bytes_max && !chunk.invalid().is_empty() {
            return text + "…";
        }
        push_escaped(&mut text, chunk.invalid());
    }
    text
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let digits = [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16));
        text.push_str("\\x");
        text.extend(digits.into_iter().flatten());
    }
}

/// Like [`printable`], but line ends remain.
pub fn printable_lines(text: &str) -> String {
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
        assert_eq!(printable("a\u{202e}b".as_bytes()), "a\\xe2\\x80\\xaeb");
        assert_eq!(
            printable("\u{ad}\u{61c}\u{e0041}".as_bytes()).matches("\\x").count(),
            2 + 2 + 4
        );
        assert_eq!(printable_lines("a\x1b\nb\r\n"), "a\\x1b\nb\\x0d\n");
    }
    #[test]
    fn the_start_of_a_text_ends_behind_a_whole_character() {
        for (text, start) in [
            (&b"abcd"[..], "abcd"),
            (b"abcde", "abcd…"),
            (b"abc\xc3\xbcd", "abcü…"),
            (b"abc\xff", "abc\\xff"),
            (b"abcd\xff", "abcd…"),
            (b"\xff\xffa", "\\xff…"),
        ] {
            assert_eq!(printable_start(text, 4), start);
        }
    }
}
