//! docs/getting-started.md, step by step: what a new user types, and what the page says that they see.

use crate::support::{envoy::*, pages::without_times, prelude::*};

/// The user's folder, and the programs that they have started.
struct Desk {
    folder: TempDir,
    redis: Redis,
    service: Option<Service>,
    envoy: Option<Envoy>,
}

impl Desk {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        symlink(root().join("examples"), folder.path().join("examples")).unwrap();
        Self { folder, redis: Redis::start(), service: None, envoy: None }
    }

    /// Types the lines of a block. A program that does not end by itself is the last of its block.
    fn follow(&mut self, block: &str) {
        let (before, last) = block.trim_end().rsplit_once('\n').unwrap_or(("", block.trim_end()));
        if let Some(flags) = last.strip_prefix("tollkeeper serve ") {
            self.shell(before);
            self.serve(flags);
        } else if last == "envoy -c examples/envoy/envoy.yaml" {
            let config = fs::read_to_string(root().join("examples/envoy/envoy.yaml")).unwrap();
            // Envoy lets a request pass if the answer takes longer.
            let config = config.replace("timeout: 0.020s", "timeout: 30s");
            self.envoy = Some(envoy(&config, PUBLIC, RLS, self.service()));
        } else {
            let version = self.service.as_ref().map(|service| (service, rules_version(service)));
            self.shell(block);
            if let Some((service, version)) =
                version.filter(|_| block.contains("my-rules/rules.yaml"))
            {
                wait_until("a reload", || rules_version(service) != version);
            }
        }
    }

    fn serve(&mut self, flags: &str) {
        self.service = None;
        let flags = flags.replace("redis://localhost:6379", &self.redis.url());
        let mut command = serve();
        command.args(["--drain", "0s", "--decision-budget", "10s"]).args(flags.split(' '));
        command.current_dir(self.folder.path());
        self.service = Some(Service::spawn(command, TempDir::new().unwrap()));
    }

    fn service(&self) -> &Service {
        self.service.as_ref().expect("the page starts the service first")
    }

    /// What the commands print.
    fn shell(&self, commands: &str) -> String {
        let binary = PathBuf::from(tollkeeper().get_program());
        let path = [binary.parent().unwrap(), Path::new("/usr/bin"), Path::new("/bin")];
        let mut command = Command::new("bash");
        command.args(["-euc", commands]).current_dir(self.folder.path());
        command.env("PATH", std::env::join_paths(path).unwrap());
        if let Some(service) = &self.service {
            command.env("TOLLKEEPER_ADDR", service.grpc.to_string());
            command.env("TOLLKEEPER_ADMIN_ADDR", service.admin.to_string());
        }
        let (code, output, errors) = run(&mut command);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{commands}");
        output.replace('\r', "")
    }

    /// The command with the addresses of this test.
    fn addressed(&self, command: &str) -> String {
        let admin = self.service().admin.to_string();
        let command = command.replace("localhost:6070", &admin);
        match &self.envoy {
            Some(envoy) => command.replace("localhost:10000", &envoy.public.to_string()),
            None => command,
        }
    }
}

fn rules_version(service: &Service) -> String {
    let rules: serde_json::Value = serde_json::from_str(&service.get("/rules")).unwrap();
    rules["version"].to_string()
}

/// Without the header that says when the window ends, and that holds its length.
fn comparable(text: &str) -> String {
    let is_time = |line: &&str| line.starts_with("x-ratelimit-reset") || line.contains(";w=");
    let lines: Vec<_> = text.lines().filter(|line| !is_time(line)).collect();
    without_times(&lines.join("\n"))
}

#[test]
fn every_step_of_getting_started_shows_what_the_page_says() {
    let page = fs::read_to_string(root().join("docs/getting-started.md")).unwrap();
    // No day ends during the test if a day is a year.
    let page = page
        .replace("unit: day", "unit: year")
        .replace("per day", "per year")
        .replace(":86400s:", ":31536000s:");
    let mut desk = Desk::new();
    let mut blocks = page.split("\n```").skip(1).step_by(2);
    assert!(blocks.next().unwrap().contains("cargo build --release"));
    for block in blocks {
        let (language, block) = block.split_once('\n').unwrap();
        if language == "sh" {
            desk.follow(block);
            continue;
        }
        assert_eq!(language, "console");
        for sample in block.split("$ ").skip(1) {
            let (command, expected) = sample.split_once('\n').unwrap();
            let shown = desk.shell(&desk.addressed(command));
            assert_eq!(comparable(&shown), comparable(expected), "{command}");
        }
    }
}
