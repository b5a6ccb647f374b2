//! The package in Rust has the messages of this build.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that panics has failed, which is its purpose"
)]

use std::{fs, path::Path};

#[test]
fn the_messages_of_the_rust_package_are_the_ones_of_the_build() {
    let copy = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../clients/rust/src/generated/tollkeeper.v1.rs");
    let text = fs::read(Path::new(env!("OUT_DIR")).join("client/tollkeeper.v1.rs")).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&copy, &text).unwrap();
    }
    assert!(fs::read(&copy).unwrap() == text, "{}: run clients/rust/generate", copy.display());
}
