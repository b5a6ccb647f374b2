//! Makes a call for each line of stdin, such as `user=alice` or `path=/login,user=alice`:
//!
//! `echo user=alice | cargo run --example client -- localhost:8081 example [DEADLINE_MS]`

use std::{env, error::Error, io, time::Duration};

use tollkeeper_client::{Client, Decision, Descriptor, Options};

// On several threads, since reading blocks this one.
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [address, domain, deadline @ ..] = arguments.as_slice() else {
        return Err("usage: client HOST:PORT DOMAIN [DEADLINE_MS]".into());
    };
    let deadline = deadline.first().map_or(Ok(50), |text| text.parse())?;
    let options = Options::new(domain).timeout(Duration::from_millis(deadline));
    let client = Client::new(address, options)?;
    for line in io::stdin().lines() {
        println!("{}", describe(&client.decide(descriptor(&line?)).await?));
    }
    Ok(())
}

fn descriptor(line: &str) -> Descriptor {
    let entries = line.split(',').filter_map(|entry| entry.split_once('='));
    entries.fold(Descriptor::default(), |descriptor, (key, value)| descriptor.and(key, value))
}

fn describe(decision: &Decision) -> String {
    let verdict = if decision.allowed { "allowed" } else { "denied" };
    if decision.failed() {
        return format!("{verdict}, no answer");
    }
    let Some(limit) = decision.limit else { return format!("{verdict}, no limit") };
    let (remaining, reset) = (decision.remaining, decision.reset.as_secs());
    let mut text = format!("{verdict}, {remaining} of {limit} left, resets in {reset} s");
    for (name, value) in decision.headers() {
        text += &format!("; {name}: {value}");
    }
    text
}
