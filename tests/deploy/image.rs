//! The image's root folder, made by the script of the Dockerfile, and entered as a container would be: nothing else can be
//! seen, nothing can be written, and the user is 65532 without any capability. And the archives of a release.

use crate::support::prelude::*;

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
    succeeds(Command::new(root().join("image/root")).arg(binary).arg(&image));
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
    succeeds(&mut in_image(&image, &by_name));

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

/// Makes the archive of a release with this program, by a user whose new files have these permissions.
fn archive(folder: &Path, umask: &str, binary: &Path) -> PathBuf {
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask "$0"; exec "$@""#, umask]).arg(root().join("image/archive"));
    command.arg(binary).arg("x86_64-unknown-linux-gnu").arg(folder);
    succeeds(&mut command);
    folder.join(format!("{}.tar.gz", archive_name()))
}

fn archive_name() -> String {
    concat!("tollkeeper-", env!("CARGO_PKG_VERSION"), "-x86_64-unknown-linux-gnu").to_owned()
}

#[test]
fn a_release_archive_holds_the_binary_its_documents_and_the_list_of_its_crates() {
    let folder = TempDir::new().unwrap();
    // Debug information would take most of the time.
    let binary = folder.path().join("stripped");
    let mut strip = Command::new("strip");
    succeeds(strip.arg("-o").arg(&binary).arg(tollkeeper().get_program()));
    let archive = archive(folder.path(), "022", &binary);
    let sums = format!("{}.sha256", archive.display());
    let mut check = Command::new("sha256sum");
    succeeds(check.args(["--check", &sums]).current_dir(&folder));

    succeeds(Command::new("tar").arg("-xzf").arg(&archive).current_dir(&folder));
    let content = folder.path().join(archive_name());
    let expected = ["CHANGELOG.md", "LICENSE", "README.md", "sbom.cdx.json", "tollkeeper"];
    let expected = expected.map(|file| format!("/{file}"));
    assert_eq!(files(&content, &content), expected.into());
    let (code, version, _) = run(Command::new(content.join("tollkeeper")).arg("--version"));
    assert_eq!((code, version.contains(env!("CARGO_PKG_VERSION"))), (Some(0), true), "{version}");

    let bill = fs::read_to_string(content.join("sbom.cdx.json")).unwrap();
    let bill: serde_json::Value = serde_json::from_str(&bill).unwrap();
    assert_eq!(bill["metadata"]["timestamp"], "1970-01-01T00:00:00+00:00");
    assert!(bill["serialNumber"].as_str().unwrap().starts_with("urn:uuid:"), "{bill}");
    let components = bill["components"].as_array().unwrap();
    let listed: BTreeSet<&str> =
        components.iter().map(|component| component["purl"].as_str().unwrap()).collect();
    // Another way to ask what the binary is made of.
    let mut tree = Command::new("cargo");
    tree.args(["tree", "--locked", "--edges", "normal", "--target", "x86_64-unknown-linux-gnu"]);
    let (_, tree, error) = run(tree.args(["--prefix", "none"]).current_dir(root()));
    let mut count = 0;
    for line in tree.lines().skip(1).filter(|line| !line.is_empty()) {
        let (name, rest) = line.split_once(" v").unwrap_or_else(|| panic!("{line}{error}"));
        let version = rest.split(' ').next().unwrap();
        let purl = format!("pkg:cargo/{name}@{version}");
        assert!(listed.contains(purl.as_str()), "{purl}");
        count += 1;
    }
    assert!(count > 100, "{error}");
    assert!(!listed.iter().any(|purl| purl.contains("/proptest@")), "tests are no part of it");
}

#[test]
fn two_archives_of_the_same_files_are_the_same() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let script = root().join("image/archive");
    let first = fs::read(archive(folders[0].path(), "022", &script)).unwrap();
    assert!(fs::read(archive(folders[1].path(), "077", &script)).unwrap() == first);
}

#[test]
fn the_dockerfile_agrees_with_the_manifest_and_the_chart() {
    let text = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let dockerfile = text("Dockerfile");
    for line in [
        format!("ARG VERSION={}", env!("CARGO_PKG_VERSION")),
        format!("ARG RUST_IMAGE=rust:{}-slim-bookworm", env!("CARGO_PKG_RUST_VERSION")),
        format!("LABEL org.opencontainers.image.title=\"{}\" \\", env!("CARGO_PKG_NAME")),
        "USER 65532:65532".to_owned(),
        "ENTRYPOINT [\"/tollkeeper\"]".to_owned(),
    ] {
        assert!(dockerfile.lines().any(|found| found == line), "no line `{line}`");
    }
    assert!(text("helm/values.yaml").contains("runAsUser: 65532"));
}

/// The paths that .dockerignore admits; it has no other patterns.
fn admitted() -> Vec<String> {
    let text = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("*"));
    lines.map(|line| line.strip_prefix('!').expect("a path").to_owned()).collect()
}

/// The files that the sources of a folder include.
fn included(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for file in files(folder, root()).into_iter().filter(|file| file.ends_with(".rs")) {
        let file = root().join(file.trim_start_matches('/'));
        let text = fs::read_to_string(&file).unwrap();
        for part in text.split("include_str!(").chain(text.split("include_bytes!(")).skip(1) {
            if let Some((path, _)) =
                part.trim_start().strip_prefix('"').and_then(|path| path.split_once('"'))
            {
                let path = file.parent().unwrap().join(path);
                found.insert(
                    path.canonicalize()
                        .unwrap_or_else(|error| panic!("{}: {error}", path.display())),
                );
            }
        }
    }
    found
}

#[test]
fn the_context_of_the_image_has_what_the_build_needs() {
    let context = TempDir::new().unwrap();
    for path in admitted() {
        let link = context.path().join(&path);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        assert!(root().join(&path).exists(), "{path}");
        std::os::unix::fs::symlink(root().join(&path), link).unwrap();
    }
    let included = &included(&root().join("src")) | &included(&root().join("crates"));
    assert!(included.len() > 10, "{included:?}");
    for file in included {
        let path = file.strip_prefix(root()).unwrap();
        assert!(context.path().join(path).exists(), "{}", path.display());
    }
    // Cargo refuses a manifest if a member or the file of a target is missing.
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--locked", "--format-version", "1"]).current_dir(&context);
    succeeds(&mut metadata);
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    for script in ["image/build", "image/root"] {
        assert!(dockerfile.contains(script) && context.path().join(script).exists(), "{script}");
    }
}
