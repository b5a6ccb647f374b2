//! Answers, and their bytes: RESP2, <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Integer(i64),
    Bulk(Vec<u8>),
    Status(String),
    /// Its code, a space and its words.
    Error(String),
    Array(Vec<Self>),
    /// What EXEC answers if a watched key has changed.
    NilArray,
}

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub fn bulk(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    pub fn count(count: usize) -> Self {
        Self::Integer(count as i64)
    }

    pub fn bulks<T: Into<Vec<u8>>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::Array(texts.into_iter().map(Self::bulk).collect())
    }

    pub fn write(&self, bytes: &mut Vec<u8>) {
        let mut line = |text: String| bytes.extend_from_slice(text.as_bytes());
        match self {
            Self::Nil => line("$-1\r\n".to_owned()),
            Self::NilArray => line("*-1\r\n".to_owned()),
            Self::Integer(number) => line(format!(":{number}\r\n")),
            Self::Status(text) => line(format!("+{text}\r\n")),
            Self::Error(text) => line(format!("-{text}\r\n")),
            Self::Bulk(text) => {
                line(format!("${}\r\n", text.len()));
                bytes.extend_from_slice(text);
                bytes.extend_from_slice(b"\r\n");
            }
            Self::Array(items) => {
                line(format!("*{}\r\n", items.len()));
                items.iter().for_each(|item| item.write(bytes));
            }
        }
    }
}

/// The first command in the bytes, and how many bytes it takes; `None` if it is not complete.
pub fn parse_command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let count = number(bytes, &mut at, b'*')?;
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(bytes, &mut at, b'$')?;
        parts.push(bytes.get(at..at + length)?.to_vec());
        bytes.get(at + length..at + length + 2)?;
        at += length + 2;
    }
    Some((parts, at))
}

fn number(bytes: &[u8], at: &mut usize, kind: u8) -> Option<usize> {
    let rest = bytes.get(*at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    assert_eq!(rest[0], kind, "the service sends arrays of bulk strings");
    *at += end + 2;
    std::str::from_utf8(&rest[1..end]).unwrap().parse().ok()
}
