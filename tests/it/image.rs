//! The image's root folder, made by the script of the Dockerfile, and entered as a container would be: nothing else can be
//! seen, nothing can be written, and the user is 65532 without any capability.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::support::{
    root, run,
    service::{Service, serve, tollkeeper},
};

/// Becomes a command in a folder as its read-only root. Root in a namespace may mount, and the user in the next one may
/// do nothing.
const ENTER: &str = r#"
set -e
image=$1; shift
mount --bind "$image" "$image"
mount -o remount,bind,ro "$image"
exec unshare --user --map-user=65532 --map-group=65532 --root="$image" --wd=/ "$@"
"#;

/// Makes the root folder of the image with the binary that the tests use.
fn image(folder: &TempDir) -> PathBuf {
    let image = folder.path().join("root");
    let binary = tollkeeper().get_program().to_owned();
    let (code, _, error) = run(Command::new(root().join("image/root")).arg(binary).arg(&image));
    assert_eq!(code, Some(0), "{error}");
    image
}

/// A command of the image: what the program is called with.
fn in_image(image: &Path, command: &Command) -> Command {
    entered(image, "/tollkeeper", command)
}

fn entered(image: &Path, program: &str, command: &Command) -> Command {
    let mut entered = Command::new("unshare");
    entered
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", ENTER, "sh"])
        .arg(image)
        .arg(program)
        .args(command.get_args());
    entered
}

/// Every file below a folder, by its path from there.
fn files(folder: &Path, from: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, from));
        } else {
            found.insert(format!("/{}", path.strip_prefix(from).unwrap().display()));
        }
    }
    found
}

#[test]
fn the_image_holds_the_binary_its_libraries_and_the_cas_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let (_, libraries, _) = run(Command::new("ldd").arg(tollkeeper().get_program()));
    let own = ["/tollkeeper", "/bin/ratelimit", "/etc/ssl/certs/ca-certificates.crt"];
    let mut expected: BTreeSet<String> = own.map(str::to_owned).into();
    let words = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    expected.extend(words.map(str::to_owned));
    assert_eq!(files(&image, &image), expected);
}

#[test]
fn the_image_serves_calls_from_a_read_only_root_as_an_unprivileged_user() {
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let mut service = Service::spawn(in_image(&image, &serve()), TempDir::new().unwrap());
    service.wait_until_ready();
    let address = service.grpc.to_string();
    let call = ["call", "--addr", &address, "--domain", "example", "user=alice"];
    let (code, out, error) = run(tollkeeper().args(call));
    assert_eq!((code, out.starts_with("OK\n")), (Some(0), true), "{out}{error}");

    // Kubernetes writes this file; names of DNS are found by the same code of the C library.
    fs::write(image.join("etc/hosts"), "127.0.0.1 limiter.example\n").unwrap();
    let mut by_name = tollkeeper();
    let name = format!("limiter.example:{}", service.grpc.port());
    by_name.args(["call", "--addr", &name, "--domain", "example", "user=alice"]);
    let (code, _, error) = run(&mut in_image(&image, &by_name));
    assert_eq!(code, Some(0), "{error}");

    // What a probe runs in the container.
    let mut probe = tollkeeper();
    probe.args(["healthcheck", "--addr", &address]);
    let probed = run(&mut in_image(&image, &probe));
    assert_eq!(probed, (Some(0), "SERVING\n".to_owned(), String::new()));

    let process = format!("/proc/{}", service.process().0.id());
    let of_process = |file: &str| fs::read_to_string(format!("{process}/{file}")).unwrap();
    let status = of_process("status");
    for set in ["CapEff", "CapPrm", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
    assert_eq!(of_process("uid_map").split_whitespace().next(), Some("65532"));
    let mounts = of_process("mountinfo");
    let own_root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    assert!(own_root.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro"));
}

/// Control planes run it by this name.
#[test]
fn the_image_has_the_program_of_envoyproxy_ratelimit_which_reads_its_variables() {
    let folder = TempDir::new().unwrap();
    let mut program = entered(&image(&folder), "/bin/ratelimit", &tollkeeper());
    let (code, _, error) = run(program.env("BACKEND_TYPE", "memcache"));
    assert_eq!((code, error.contains("BACKEND_TYPE: memcache is not supported")), (Some(2), true));
}

#[test]
fn the_image_has_the_cas_that_a_redis_with_tls_needs() {
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let mut command = serve();
    command.args(["--store", "rediss://127.0.0.1:1"]);
    Service::spawn(in_image(&image, &command), TempDir::new().unwrap());

    fs::remove_dir_all(image.join("etc")).unwrap();
    let (code, _, error) = run(&mut in_image(&image, &command));
    assert_eq!(code, Some(2), "{error}");
}

#[test]
fn the_dockerfile_agrees_with_the_manifest_and_the_chart() {
    let text = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let dockerfile = text("Dockerfile");
    for line in [
        format!("ARG VERSION={}", env!("CARGO_PKG_VERSION")),
        format!("FROM rust:{}-slim-bookworm AS build", env!("CARGO_PKG_RUST_VERSION")),
        format!("LABEL org.opencontainers.image.title=\"{}\" \\", env!("CARGO_PKG_NAME")),
        "USER 65532:65532".to_owned(),
        "ENTRYPOINT [\"/tollkeeper\"]".to_owned(),
    ] {
        assert!(dockerfile.lines().any(|found| found == line), "no line `{line}`");
    }
    assert!(text("helm/values.yaml").contains("runAsUser: 65532"));
    let chart = text("helm/Chart.yaml");
    assert!(chart.contains(&format!("appVersion: \"{}\"", env!("CARGO_PKG_VERSION"))));
}
