//! The package in Rust has the messages of this build.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that panics has failed, which is its purpose"
)]

use std::{fs, path::Path};

#[test]
fn the_messages_of_the_rust_package_are_the_ones_of_the_build() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/rust");
    let generated = Path::new(env!("OUT_DIR")).join("client");
    for (file, copy) in [
        ("tollkeeper.v1.rs", "src/generated/tollkeeper.v1.rs"),
        ("tests/tollkeeper.v1.rs", "tests/support/generated/tollkeeper.v1.rs"),
    ] {
        let (text, copy) = (fs::read(generated.join(file)).unwrap(), package.join(copy));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&copy, &text).unwrap();
        }
        assert!(fs::read(&copy).unwrap() == text, "{}: run clients/rust/generate", copy.display());
    }
}
