//! Makes a call for each line of stdin, such as `user=alice` or `path=/login,user=alice`:
//!
//! `echo user=alice | cargo run --example client -- localhost:8081 example [DEADLINE_MS]`

#[path = "rate_limit.rs"]
#[allow(unreachable_pub, reason = "a library that copies the file needs `pub`")]
mod rate_limit;

use std::{env, error::Error, io, time::Duration};

use rate_limit::{Decision, Limiter};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [address, domain, deadline @ ..] = arguments.as_slice() else {
        return Err("usage: client HOST:PORT DOMAIN [DEADLINE_MS]".into());
    };
    let deadline = deadline.first().map_or(Ok(50), |text| text.parse())?;
    let limiter = Limiter::new(format!("http://{address}"), Duration::from_millis(deadline))?;
    for line in io::stdin().lines() {
        let line = line?;
        let descriptor: Vec<_> =
            line.split(',').filter_map(|entry| entry.split_once('=')).collect();
        println!("{}", describe(&limiter.allow(domain, &descriptor).await));
    }
    Ok(())
}

fn describe(decision: &Decision) -> String {
    let verdict = if decision.allowed { "allowed" } else { "denied" };
    if decision.failure.is_some() {
        return format!("{verdict}, no answer");
    }
    if decision.limit == 0 {
        return format!("{verdict}, no limit");
    }
    let (remaining, limit) = (decision.remaining, decision.limit);
    let reset = decision.reset.as_secs();
    let mut text = format!("{verdict}, {remaining} of {limit} left, resets in {reset} s");
    for (name, value) in &decision.headers {
        text += &format!("; {name}: {value}");
    }
    text
}
