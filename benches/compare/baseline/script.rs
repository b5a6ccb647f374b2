//! The bare round trip of a script.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{histogram, nanos, sample};
use crate::{Result, trial::Sample};

/// A script that does nothing, on one connection, one call at a time, with no runtime between.
pub(crate) fn script(port: u16, slice: Duration) -> Result<Sample> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let (mut writer, mut reader) = (stream.try_clone()?, BufReader::new(stream));
    let mut ask = |command: &str| -> Result<String> {
        writer.write_all(command.as_bytes())?;
        let mut line = String::new();
        reader.read_line(&mut line)?;
        Ok(line)
    };
    // The answer is `$40` and then the hash; nothing else asks in between.
    ask("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$8\r\nreturn 1\r\n")?;
    let hash = ask("")?;
    let command = format!("*3\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n0\r\n", hash.trim_end());
    let mut latency = histogram()?;
    let end = Instant::now() + slice;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(sample(&latency, slice));
        }
        match ask(&command)?.as_str() {
            ":1\r\n" => latency.saturating_record(nanos(began.elapsed())),
            other => return Err(format!("EVALSHA: {other}").into()),
        }
    }
}
