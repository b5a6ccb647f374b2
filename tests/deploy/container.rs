//! What the service does for containers: threads within the CPU limit, health for probes, addresses of both families.

use tollkeeper::settings::{self, CONFIG, Environment, TypedFlags};

use crate::support::prelude::*;

/// Mounts its own files over the kernel's files, and then becomes the command. Each file is `PATH=TEXT`.
const WITH_FILES: &str = r#"
set -e
mount -t tmpfs none /sys/fs/cgroup
printf '%s' "$CGROUP" >/sys/fs/cgroup/own
mount --bind /sys/fs/cgroup/own /proc/$$/cgroup
for file in $FILES; do
  mkdir -p "$(dirname "/sys/fs/cgroup/${file%%=*}")"
  printf '%s\n' "${file#*=}" | tr _ ' ' >"/sys/fs/cgroup/${file%%=*}"
done
if [ -n "$MOUNTS" ]; then
  printf '%s\n' "$MOUNTS" >/sys/fs/cgroup/mounts
  mount --bind /sys/fs/cgroup/mounts /proc/$$/mountinfo
fi
exec "$@"
"#;

/// The number of workers of a service that finds these files of the kernel. Spaces in a text are written as `_`.
fn workers(cgroup: &str, files: &str, mounts: &str) -> usize {
    let service = serve();
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", WITH_FILES, "sh"])
        .arg(service.get_program())
        .args(service.get_args())
        .env("CGROUP", cgroup)
        .env("FILES", files)
        .env("MOUNTS", mounts);
    let log = Service::spawn(command, TempDir::new().unwrap()).log();
    let (_, rest) = log.split_once(" starts workers=").unwrap_or_else(|| panic!("{log}"));
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn workers_follow_the_cpu_quota_of_cgroups_rounded_down() {
    let pod = "pods/pod1/cgroup.controllers=cpu pods/cpu.max=max_100000 pods/pod1/cpu.max=";
    let docker = "cpu/docker/a/cpu.cfs_period_us=100000 cpu/docker/a/cpu.cfs_quota_us=";
    let docker_group = "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/\n";
    let both = "cpu,cpuacct/cpu.cfs_period_us=100000 cpu,cpuacct/cpu.cfs_quota_us=";
    let mount = "41 40 0:27 /docker/a /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct";
    let cores = thread::available_parallelism().unwrap().get();
    for (version, cgroup, files, quota, mounts, expected) in [
        ("part of a core", "0::/pods/pod1\n", pod, "20000_100000", "", 1),
        ("v2", "0::/pods/pod1\n", pod, "199999_100000", "", 1),
        ("v2", "0::/pods/pod1\n", pod, "200000_100000", "", cores.min(2)),
        ("v2", "0::/pods/pod1\n", pod, "max_100000", "", cores),
        ("a namespace of v2", "0::/\n", "cgroup.controllers=cpu cpu.max=", "150000_100000", "", 1),
        ("v1", docker_group, docker, "150000", "", 1),
        ("v1", docker_group, docker, "-1", "", cores),
        ("v1 by the mounts alone", "4:cpu,cpuacct:/docker/a\n", both, "100000", mount, 1),
    ] {
        let found = workers(cgroup, &format!("{files}{quota}"), mounts);
        assert_eq!(found, expected, "{version}: {quota}");
    }
}

#[test]
fn the_address_of_all_interfaces_serves_ipv4_and_ipv6() {
    let everywhere = ["--grpc-addr", "[::]:0", "--http-addr", "[::]:0"];
    let service = Service::shop().flags(&everywhere).ready();
    for host in ["127.0.0.1", "[::1]"] {
        let address = format!("{host}:{}", service.grpc.port());
        let (code, out, error) = healthcheck(&["--addr", &address]);
        assert_eq!((code, out.as_str()), (Some(0), "SERVING\n"), "{address}: {error}");
        let http: SocketAddr = format!("{host}:{}", service.http.port()).parse().unwrap();
        assert_eq!(service.exchange_at(http, "GET", "/readyz", b"").0, 200, "{http}");
    }
}

/// Runs a command in a kernel that refuses to create IPv6 sockets, as with `ipv6.disable=1`.
const WITHOUT_IPV6: &str = r"
import ctypes, os, platform, struct, sys
socket_call = {'x86_64': 41, 'aarch64': 198}[platform.machine()]
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EAFNOSUPPORT = 0x7fff0000, 0x00050000 | 97
steps = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 3, socket_call), (LOAD, 0, 0, 16),
         (JUMP_IF_EQUAL, 0, 1, 10), (RETURN, 0, 0, EAFNOSUPPORT), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn the_address_of_all_interfaces_serves_ipv4_where_the_kernel_has_no_ipv6() {
    let everywhere = serve();
    let mut command = Command::new(tool("python"));
    command
        .args(["-c", WITHOUT_IPV6])
        .arg(everywhere.get_program())
        .args(everywhere.get_args())
        .args(["--grpc-addr", "[::]:0"]);
    let service = Service::spawn(command, TempDir::new().unwrap());
    assert!(service.grpc.is_ipv4(), "{}", service.grpc);
    let address = format!("127.0.0.1:{}", service.grpc.port());
    service.wait_until_ready();
    assert_eq!(healthcheck(&["--addr", &address]).0, Some(0));
}

fn healthcheck(flags: &[&str]) -> (Option<i32>, String, String) {
    run(tollkeeper().arg("healthcheck").args(flags))
}

#[test]
fn healthcheck_exits_with_0_only_if_the_service_serves() {
    let service = Service::shop().flags(&["--drain", "60s"]).ready();
    let address = service.grpc.to_string();
    for name in [&[][..], &["--service", ""], &["--service", "ratelimit"]] {
        let flags = [&["--addr", &address], name].concat();
        assert_eq!(healthcheck(&flags), (Some(0), "SERVING\n".to_owned(), String::new()));
    }
    let (code, out, error) = healthcheck(&["--addr", &address, "--service", "other"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(error.contains("NOT_FOUND"), "{error}");

    let mut service = service;
    service.process().signal("TERM");
    wait_until("draining", || service.exchange("GET", "/readyz", b"").0 == 503);
    let draining = healthcheck(&["--addr", &address]);
    assert_eq!(draining, (Some(1), "NOT_SERVING\n".to_owned(), String::new()));
}

#[test]
fn healthcheck_exits_with_1_if_nothing_answers_and_with_2_on_bad_flags() {
    // No test binds the port 1.
    let (code, _, error) = healthcheck(&["--addr", "127.0.0.1:1"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.starts_with("127.0.0.1:1"), "{error}");
    for flags in [["--addr", "nonsense"], ["--config", "/does/not/exist"]] {
        assert_eq!(healthcheck(&flags).0, Some(2), "{flags:?}");
    }
}

#[test]
fn healthcheck_finds_the_address_in_the_settings_of_the_service() {
    let everywhere = ["--grpc-addr", "0.0.0.0:0"];
    let service = Service::shop().flags(&everywhere).ready();
    for host in ["0.0.0.0", "[::]", "127.0.0.1"] {
        let address = format!("{host}:{}", service.grpc.port());
        let mut by_variable = tollkeeper();
        by_variable.arg("healthcheck").env("TOLLKEEPER_GRPC_ADDR", &address);
        assert_eq!(run(&mut by_variable).0, Some(0), "{address}");
        let path = TextFile::new("settings.yaml", format!("grpc-addr: '{address}'\n"));
        assert_eq!(healthcheck(&["--config", &path]).0, Some(0), "{address}");
        let mut by_file = tollkeeper();
        by_file.arg("healthcheck").env("TOLLKEEPER_CONFIG", &*path);
        assert_eq!(run(&mut by_file).0, Some(0), "{address}");
    }
}

#[test]
fn a_file_of_settings_starts_the_service() {
    let path = TextFile::new("settings.yaml", "max-descriptors: 1\nlog-format: json\n");
    let service = Service::shop().flags(&["--config", &path]).start();
    let two = ["call", "--addr", &service.grpc.to_string(), "--domain", "shop", "user=a", "user=b"];
    let (code, _, error) = run(tollkeeper().args(two));
    assert_eq!((code, error.contains("INVALID_ARGUMENT")), (Some(1), true), "{error}");
}

#[test]
fn the_file_of_settings_on_the_page_is_valid() {
    let file = TextFile::new("settings.yaml", blocks(&page("settings.md"), "yaml")[0]);
    let mut flags = TypedFlags::new();
    flags.insert(CONFIG, vec![(&*file).into()]);
    let resolved = settings::resolve(&flags, &Environment::default());
    assert_eq!(resolved.problems, [""; 0]);
    assert_eq!(resolved.settings.listen.grpc.value.to_string(), "[::]:8081");
}
