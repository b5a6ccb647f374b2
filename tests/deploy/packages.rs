//! The deb and the rpm of a release, made from the binary that the tests use; the deb is unpacked, checked and started.

use crate::support::prelude::*;

/// Makes both packages in a folder.
fn packages(binary: &Path, folder: &Path) -> [Vec<u8>; 2] {
    let nfpm = tool("nfpm");
    let path = format!("{}:{}", nfpm.parent().unwrap().display(), env!("PATH"));
    let mut package = Command::new(root().join("image/package"));
    succeeds(package.arg(binary).arg("amd64").arg(folder).env("PATH", path));
    let version = env!("CARGO_PKG_VERSION");
    let names =
        [format!("tollkeeper_{version}_amd64.deb"), format!("tollkeeper-{version}-1.x86_64.rpm")];
    names.map(|name| fs::read(folder.join(name)).unwrap())
}

#[test]
fn the_deb_has_a_confined_unit_that_serves_the_packaged_rules() {
    let folder = TempDir::new().unwrap();
    // Debug information would take most of the time.
    let binary = folder.path().join("stripped");
    succeeds(Command::new("strip").arg("-o").arg(&binary).arg(tollkeeper().get_program()));
    let [deb, rpm] = packages(&binary, folder.path());
    assert!(rpm.starts_with(b"\xed\xab\xee\xdb"), "the magic number of an rpm");
    let file = folder.path().join("deb");
    fs::write(&file, deb).unwrap();
    let needed = succeeds(Command::new("dpkg-deb").arg("--field").arg(&file).arg("Depends"));
    let libc = needed.strip_prefix("libc6 (>= 2.").and_then(|rest| rest.split_once(')'));
    let (minor, others) = libc.unwrap_or_else(|| panic!("{needed}"));
    assert!(minor.parse::<u32>().is_ok(), "{needed}");
    assert_eq!(others, ", libgcc-s1, ca-certificates\n");
    let unpacked = folder.path().join("unpacked");
    succeeds(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&unpacked));

    let mut confinement = Command::new("systemd-analyze");
    confinement.args(["security", "--offline=true", "--threshold=15", "tollkeeper.service"]);
    // Units are rated from 0, confined, to 100.
    succeeds(confinement.arg(format!("--root={}", unpacked.display())));
    let unit = fs::read_to_string(unpacked.join("usr/lib/systemd/system/tollkeeper.service"));
    let here = |path: &str| unpacked.join(path).display().to_string();
    let unit = unit.unwrap().replace("/usr/bin/", &here("usr/bin/"));
    let copy = folder.path().join("tollkeeper.service");
    fs::write(&copy, &unit).unwrap();
    // It also has an opinion of the machine's own units.
    let (code, out, error) = run(Command::new("systemd-analyze").arg("verify").arg(&copy));
    let of_ours: Vec<&str> =
        out.lines().chain(error.lines()).filter(|line| line.contains("tollkeeper")).collect();
    assert_eq!((code, of_ours), (Some(0), Vec::new()), "{out}{error}");

    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let (program, arguments) = start.split_once(' ').unwrap();
    let settings = fs::read_to_string(unpacked.join("etc/tollkeeper/tollkeeper.env")).unwrap();
    let settings = settings.replace("/etc/tollkeeper/", &here("etc/tollkeeper/"));
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).env_clear();
    command.envs(settings.lines().filter_map(|line| line.split_once('=')));
    for name in ["GRPC", "HTTP", "ADMIN"] {
        command.env(format!("TOLLKEEPER_{name}_ADDR"), "127.0.0.1:0");
    }
    let service = Service::spawn(command, TempDir::new().unwrap());
    service.wait_until_ready();
    let address = service.grpc.to_string();
    let call = ["call", "--addr", &address, "--domain", "example", "path=/login,user=alice"];
    let answer = succeeds(tollkeeper().args(call));
    assert!(answer.contains("2 left of 3 per minute"), "{answer}");
}

#[test]
fn every_setting_that_the_packages_name_exists() {
    let settings = fs::read_to_string(root().join("image/systemd/tollkeeper.env")).unwrap();
    let page = fs::read_to_string(root().join("docs/settings.md")).unwrap();
    let words = settings.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let names: Vec<&str> = words.filter_map(|word| word.strip_prefix("TOLLKEEPER_")).collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let flag = format!("| `--{}` |", name.to_lowercase().replace('_', "-"));
        assert!(page.contains(&flag), "{flag}");
    }
}

#[test]
fn two_packages_of_the_same_files_are_the_same() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let small = Path::new("/bin/true");
    assert!(packages(small, folders[0].path()) == packages(small, folders[1].path()));
}
