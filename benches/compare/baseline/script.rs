//! The round trip of a script that does nothing.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{histogram, nanos, sample};
use crate::{process::Result, sample::Sample};

/// Calls a script that does nothing, one call at a time, on one blocking connection.
pub(crate) fn script(port: u16, slice: Duration) -> Result<Sample> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let mut redis = BufReader::new(stream);
    // The reply is the line `$40` and then the line with the hash.
    ask(&mut redis, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$8\r\nreturn 1\r\n")?;
    let hash = read_line(&mut redis)?;
    let command = format!("*3\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n0\r\n", hash.trim_end());
    let mut latency = histogram()?;
    let end = Instant::now() + slice;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(sample(&latency, slice));
        }
        match ask(&mut redis, &command)?.as_str() {
            ":1\r\n" => latency.saturating_record(nanos(began.elapsed())),
            other => return Err(format!("EVALSHA: {other}").into()),
        }
    }
}

fn ask(redis: &mut BufReader<TcpStream>, command: &str) -> Result<String> {
    redis.get_mut().write_all(command.as_bytes())?;
    read_line(redis)
}

fn read_line(redis: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    redis.read_line(&mut line)?;
    Ok(line)
}
