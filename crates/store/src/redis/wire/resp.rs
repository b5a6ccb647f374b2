//! Redis's wire, RESP 2: where a reply ends, and its value.
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

use redis::{ErrorKind, RedisResult, Value, from_redis_value, parse_redis_value};

/// Upper bound on a reply's size. No reply to our commands comes near it.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Upper bound on a line of a reply. Long texts come with their length.
const LINE_BYTES_MAX: usize = 64 << 10;

/// How many bytes the first reply takes; `None` while it is incomplete.
pub fn reply_length(received: &[u8]) -> RedisResult<Option<usize>> {
    let (mut at, mut missing) = (0_usize, 1_usize);
    while missing > 0 {
        let rest = received.get(at..).unwrap_or_default();
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return if rest.len() > LINE_BYTES_MAX { Err(malformed()) } else { Ok(None) };
        };
        let line = rest.get(..end).unwrap_or_default().trim_ascii_end();
        at += end + 1;
        missing -= 1;
        match line.split_first() {
            Some((b'+' | b'-' | b':', _)) => {}
            Some((b'$', count)) => at += length(count)?.map_or(0, |bytes| bytes + 2),
            Some((b'*', count)) => missing += length(count)?.unwrap_or(0),
            _ => return Err(malformed()),
        }
    }
    Ok((at <= received.len()).then_some(at))
}

/// The length after `$` and `*`; `None` for -1, which means a null value.
fn length(digits: &[u8]) -> RedisResult<Option<usize>> {
    if digits == b"-1" {
        return Ok(None);
    }
    let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    length.filter(|length| *length <= REPLY_BYTES_MAX).map(Some).ok_or_else(malformed)
}

/// The integers of a reply that is an array of nothing else.
pub fn integers(reply: &[u8]) -> RedisResult<Vec<i64>> {
    if reply.first() == Some(&b'-') {
        value::<Value>(reply)?;
    }
    let mut lines = reply.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let count = lines.next().and_then(|line| line.strip_prefix(b"*"));
    let count = length(count.ok_or_else(malformed)?)?.ok_or_else(malformed)?;
    let integers: Option<Vec<i64>> = lines.take(count).map(integer).collect();
    integers.filter(|integers| integers.len() == count).ok_or_else(malformed)
}

fn integer(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line.strip_prefix(b":")?).ok()?.parse().ok()
}

pub fn value<T: redis::FromRedisValue>(reply: &[u8]) -> RedisResult<T> {
    Ok(from_redis_value(parse_redis_value(reply)?.extract_error()?)?)
}

fn malformed() -> redis::RedisError {
    (ErrorKind::Parse, "the server does not speak redis's protocol").into()
}
