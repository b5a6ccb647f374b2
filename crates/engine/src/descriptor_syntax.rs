//! The text form of a descriptor, for the command line and URLs: `key=value,key=value`.
//!
//! An entry is split at its first `=`. `\,` is a comma, `\\` a backslash, `\xHH` any byte.

use crate::{request::Entry, text::printable::printable_start};

/// Reads one descriptor.
///
/// # Errors
/// A message, which has no more of the text than the start of a part after the first.
pub fn parse(text: impl AsRef<[u8]>) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let (mut key, mut part) = (None, Vec::new());
    let mut bytes = text.as_ref().iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => part.push(escape(&mut bytes)?),
            b'=' if key.is_none() => key = Some(std::mem::take(&mut part)),
            b',' => {
                let entry = entry(&entries, key.take(), std::mem::take(&mut part))?;
                entries.push(entry);
            }
            _ => part.push(byte),
        }
    }
    let last = entry(&entries, key, part)?;
    entries.push(last);
    Ok(entries)
}

/// Whether a text is a digest, by which lists of keys show a descriptor.
pub fn is_digest(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The text from which [`parse`] reads these entries.
pub fn write(entries: &[Entry]) -> String {
    let mut text = String::new();
    for Entry { key, value } in entries {
        if !text.is_empty() {
            text.push(',');
        }
        push(&mut text, key, b"=");
        text.push('=');
        push(&mut text, value, b"");
    }
    text
}

/// Appends a part of an entry. Bytes of `special` are escaped, and all that are not printable ASCII.
fn push(text: &mut String, part: &[u8], special: &[u8]) {
    for &byte in part {
        match byte {
            b',' | b'\\' => text.extend(['\\', char::from(byte)]),
            0x20..=0x7e if !special.contains(&byte) => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
}

fn entry(before: &[Entry], key: Option<Vec<u8>>, value: Vec<u8>) -> Result<Entry, String> {
    match key {
        Some(key) if !key.is_empty() => Ok(Entry { key: key.into(), value: value.into() }),
        Some(_) => Err("an entry needs a key before its `=`".to_owned()),
        None if before.is_empty() => Err("must be key=value".to_owned()),
        None => {
            let part = printable_start(&value, 40);
            Err(format!("`{part}` must be key=value; a comma in a value is `\\,`"))
        }
    }
}

fn escape(bytes: &mut impl Iterator<Item = u8>) -> Result<u8, String> {
    const FORMS: &str = r"after a backslash, only `,`, `\` or `xHH` is allowed";
    match bytes.next() {
        Some(byte @ (b',' | b'\\')) => Ok(byte),
        Some(b'x') => {
            let digits: String = bytes.take(2).map(char::from).collect();
            let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            u8::from_str_radix(&digits, 16).ok().filter(|_| hex).ok_or_else(|| FORMS.to_owned())
        }
        _ => Err(FORMS.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (key, value) in
            [("user", "alice"), ("a=b", "c=d,e\\f"), ("k", "\u{0}\u{fc} x"), ("k", "")]
        {
            let entries = [key, value].map(|part| part.to_owned().into_bytes().into());
            let [key, value] = entries;
            let entries = vec![Entry { key, value }; 2];
            assert_eq!(parse(write(&entries)).unwrap(), entries, "{}", write(&entries));
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &[(&[u8], &[u8])]) {
        let entries = parse(text).unwrap();
        let entries: Vec<_> =
            entries.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect();
        assert_eq!(entries, expected, "for {text}");
    }

    #[test]
    fn entries_are_split_at_commas_and_their_first_equals_sign() {
        check("user=alice", &[(b"user", b"alice")]);
        check("path=/a?b=c,user=", &[(b"path", b"/a?b=c"), (b"user", b"")]);
    }

    #[test]
    fn escapes_write_commas_backslashes_and_any_byte() {
        check(r"user=a\,b\\c\xfF\x00", &[(b"user", b"a,b\\c\xff\x00")]);
    }

    #[test]
    fn printable_ascii_is_written_as_it_is() {
        let entry = Entry { key: "a=b c".into(), value: "d=e,\\\u{7f}~".into() };
        assert_eq!(write(&[entry.clone(), entry]), r"a\x3db c=d=e\,\\\x7f~,a\x3db c=d=e\,\\\x7f~");
    }

    #[test]
    fn sixteen_small_hexadecimal_digits_are_a_digest() {
        for (text, expected) in [
            ("0123456789abcdef", true),
            ("0123456789abcde", false),
            ("0123456789abcdef0", false),
            ("0123456789ABCDEF", false),
            ("0123456789abcdeg", false),
        ] {
            assert_eq!(is_digest(text), expected, "{text}");
        }
    }

    #[test]
    fn the_first_part_is_not_in_the_message_that_refuses_it_and_a_later_one_is() {
        assert_eq!(parse("secret").unwrap_err(), "must be key=value");
        let later = r"`bob` must be key=value; a comma in a value is `\,`";
        assert_eq!(parse("user=alice,bob").unwrap_err(), later);
        assert_eq!(parse("user=a,=b").unwrap_err(), "an entry needs a key before its `=`");
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            ["", "user", "=alice", "user=a,", r"user=\", r"user=\n", r"user=\x0", r"user=\x+1"]
        {
            parse(text).expect_err(text);
        }
    }
}
