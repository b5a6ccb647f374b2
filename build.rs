//! Compiles the wire's `.proto` files; protox needs no protoc on the machine.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use prost::Message as _;

#[expect(clippy::disallowed_methods, reason = "cargo passes OUT_DIR to build scripts so")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    name_build();
    let files = ["envoy/service/ratelimit/v3/rls.proto", "tollkeeper/v1/tollkeeper.proto"];
    let descriptors = protox::compile(files, ["proto"])?;

    // Reflection hands this set to its clients.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("services.binpb"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        // Entries borrow from the received message instead of copying it.
        .bytes(".envoy.extensions.common.ratelimit.v3")
        // A value of a descriptor must not reach a log through `{:?}`.
        .skip_debug([".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry"])
        // Equal calls have equal bytes.
        .btree_map(".tollkeeper.v1")
        // It is equal on the wire, so that one decoder reads both.
        .extern_path(".tollkeeper.v1.Descriptor", "crate::rls::pb::RateLimitDescriptor")
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
        .compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}

/// Passes the commit and the compiler on, as far as they are known. A development build asks for neither again when
/// only the commit changes.
#[expect(clippy::disallowed_methods, reason = "cargo passes RUSTC to build scripts so")]
fn name_build() {
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

/// The messages of clients/rust, which has a copy of them, and the service of its tests.
fn generate_client(out: &Path) -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(["tollkeeper/v1/tollkeeper.proto"], ["proto"])?;
    let folders = [out.join("client"), out.join("client/tests")];
    folders.iter().try_for_each(fs::create_dir_all)?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .skip_debug([".tollkeeper.v1.Descriptor.Entry"])
        .extern_path(".google.rpc", "::tonic_types::pb")
        .out_dir(&folders[0])
        .compile_fds(descriptors.clone())?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .extern_path(".tollkeeper.v1", "::tollkeeper_client::v1")
        .extern_path(".google.rpc", "::tonic_types::pb")
        .out_dir(&folders[1])
        .compile_fds(descriptors)?;
    Ok(())
}
