//! Compiles the wire's `.proto` files; protox needs no protoc on the machine.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

#[expect(clippy::disallowed_methods, reason = "cargo passes OUT_DIR to build scripts so")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;

    // Reflection hands this set to its clients.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("rls.binpb"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        // Entries borrow from the received message instead of copying it.
        .bytes(".envoy.extensions.common.ratelimit.v3")
        // A value of a descriptor must not reach a log through `{:?}`.
        .skip_debug([".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry"])
        .compile_fds(descriptors)?;
    Ok(())
}
