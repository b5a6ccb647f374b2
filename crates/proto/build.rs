//! Compiles the wire's `.proto` files; protox needs no protoc on the machine.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use prost::Message as _;

/// At the top of the repository.
const PROTO: &str = "../../proto";

#[expect(clippy::disallowed_methods, reason = "cargo passes OUT_DIR to build scripts so")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let services = [
        "envoy/service/ratelimit/v3/rls.proto",
        "envoy/service/rate_limit_quota/v3/rlqs.proto",
        "tollkeeper/v1/tollkeeper.proto",
    ];
    let descriptors = protox::compile(services, [PROTO])?;

    // Reflection hands this set to its clients.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("services.binpb"), descriptors.encode_to_vec())?;

    let recording = "tollkeeper/recording/v1/recording.proto";
    let descriptors = protox::compile(services.into_iter().chain([recording]), [PROTO])?;
    tonic_prost_build::configure()
        // Entries borrow from the received message instead of copying it.
        .bytes(".envoy.extensions.common.ratelimit.v3")
        .bytes(".tollkeeper.recording.v1")
        // A value of a descriptor must not reach a log through `{:?}`.
        .skip_debug([
            ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
            ".envoy.service.rate_limit_quota.v3.BucketId",
        ])
        // Equal calls have equal bytes, and entries are in the order of their keys.
        .btree_map(".tollkeeper.v1")
        .btree_map(".envoy.service.rate_limit_quota.v3")
        // It is equal on the wire, so that one decoder reads both.
        .extern_path(".tollkeeper.v1.Descriptor", "crate::RateLimitDescriptor")
        .compile_fds(descriptors)?;

    generate_client(&out)?;

    // In a folder of its own, since both sets have a part of the package envoy.config.core.v3.
    let xds = out.join("xds");
    fs::create_dir_all(&xds)?;
    let files =
        ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(xds)
        .compile_fds(protox::compile(files, [PROTO])?)?;
    Ok(())
}

/// The messages of clients/rust, which has a copy of them.
fn generate_client(out: &Path) -> Result<(), Box<dyn Error>> {
    let folder = out.join("client");
    fs::create_dir_all(&folder)?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .extern_path(".google.rpc", "::tonic_types::pb")
        // Equal calls have equal bytes.
        .btree_map(".tollkeeper.v1.Call")
        .out_dir(folder)
        .compile_fds(protox::compile(["tollkeeper/v1/tollkeeper.proto"], [PROTO])?)?;
    Ok(())
}
