//! Compiles the commit and the version of the compiler into the program.

use std::{env, path::Path, process::Command};

/// Passes the commit and the compiler on, as far as they are known. A development build asks for neither again when
/// only the commit changes.
#[expect(clippy::disallowed_methods, reason = "cargo passes RUSTC to build scripts so")]
fn main() {
    println!("cargo:rerun-if-env-changed=TOLLKEEPER_COMMIT");
    let ask = |program: &str, arguments: &[&str]| {
        let answer = Command::new(program).args(arguments).output().ok()?;
        answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    };
    // A source tree without a repository of its own may lie in another one.
    let of_repository =
        || Path::new(".git").exists().then(|| ask("git", &["rev-parse", "HEAD"])).flatten();
    let commit = env::var("TOLLKEEPER_COMMIT").ok().or_else(of_repository);
    let rustc = env::var("RUSTC").ok().and_then(|rustc| ask(&rustc, &["--version"]));
    for (name, value) in [("TOLLKEEPER_COMMIT", commit), ("TOLLKEEPER_RUSTC", rustc)] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            println!("cargo:rustc-env={name}={value}");
        }
    }
    if env::var("PROFILE").is_ok_and(|profile| profile == "release")
        && Path::new(".git/logs/HEAD").exists()
    {
        println!("cargo:rerun-if-changed=.git/logs/HEAD");
    }
}
