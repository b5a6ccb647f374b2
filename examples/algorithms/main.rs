//! Makes the pictures and tables of docs/algorithms.md with the engine.
//!
//! - `draw` writes the pictures into docs/algorithms/;
//! - `error` measures the sliding window against the log;
//! - `cost` measures what a decision costs, in memory and on a redis-server that it starts.

mod cost;
mod draw;
mod error;

use std::{env, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1).as_deref() {
        Some("draw") => {
            for (name, picture) in draw::pictures() {
                let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/algorithms").join(name);
                std::fs::write(file, picture)?;
            }
        }
        Some("error") => error::measure(),
        Some("cost") => cost::measure()?,
        _ => eprintln!("usage: algorithms draw|error|cost"),
    }
    Ok(())
}
