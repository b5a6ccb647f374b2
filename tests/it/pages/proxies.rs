//! docs/proxies.md: each of its proxies limits a browser's requests, and does what the page says while no service answers.

use std::os::unix::net::UnixStream;

use crate::support::{application::Application, envoy::replace, prelude::*};

/// A proxy with the page's configuration, which listens on a socket in its folder.
struct Proxy {
    folder: TempDir,
    application: Application,
    service: Option<Service>,
    _process: Process,
}

impl Proxy {
    /// Starts a program with a block of the page. `replacements` are for the place where the test runs; SOCKET is the
    /// path of its socket.
    fn start(
        language: &str,
        file: &str,
        replacements: &[(&str, usize, &str)],
        program: impl FnOnce(&Path) -> Command,
    ) -> Self {
        let page = page("proxies.md");
        let rules = blocks(&page, "yaml")[0].replace("unit: minute", "unit: year");
        let service = Service::with(&rules).flags(&["--headers", "draft"]).start();
        let folder = TempDir::new().unwrap();
        let application = Application::start();
        let local = |text: &str| {
            text.replace("127.0.0.1:8080", &service.http.to_string())
                .replace("127.0.0.1:8001", &application.address.to_string())
                .replace("SOCKET", folder.path().join("socket").to_str().unwrap())
        };
        let config = local(&replace(blocks(&page, language)[0], replacements));
        fs::write(folder.path().join(file), config).unwrap();
        for script in blocks(&page, "lua") {
            // A busy machine is slower than the page's bound allows.
            let script = replace(script, &[("timeout = 1000,", 1, "timeout = 30000,")]);
            fs::write(folder.path().join("limit.lua"), local(&script)).unwrap();
        }
        let mut command = program(folder.path());
        command
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("XDG_DATA_HOME", folder.path());
        let log = fs::File::create(folder.path().join("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let process = Process::spawn(&mut command);
        let proxy = Self { folder, application, service: Some(service), _process: process };
        eventually("the proxy listens", || UnixStream::connect(proxy.socket()).ok());
        proxy
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The status and the head of the answer to a browser's request.
    fn get(&self, user: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let request = format!(
            "GET / HTTP/1.1\r\nhost: shop.example\r\norigin: https://shop.example\r\nsec-fetch-site: same-origin\r\n\
             x-user: {user}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.unwrap_or(0), answer.to_lowercase())
    }

    /// The status without a service.
    fn without_service(&mut self) -> u16 {
        self.service = None;
        self.get("alice").0
    }

    /// Denies a user whose three requests have passed, on as many connections at once as he likes.
    fn limits_a_crowd(&self) {
        let served = self.application.served();
        for _ in 0..3 {
            let mut crowd: Vec<_> =
                (0..500).map(|_| UnixStream::connect(self.socket()).unwrap()).collect();
            for stream in &mut crowd {
                stream.write_all(b"GET / HTTP/1.0\r\nx-user: alice\r\n\r\n").unwrap();
            }
            for mut stream in crowd {
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert_eq!(answer.split(' ').nth(1), Some("429"), "{answer}");
            }
        }
        assert_eq!(self.application.served(), served);
    }

    /// Lets three requests of a user pass, and denies the fourth. Returns the head of the denial.
    fn limits(&self) -> String {
        let answers = [(); 4].map(|()| self.get("alice"));
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
        assert_eq!(
            answers.each_ref().map(|(status, _)| *status),
            [200, 200, 200, 429],
            "{answers:?}\n{log}"
        );
        assert_eq!(self.application.served(), 3);
        assert_eq!(self.get("bob").0, 200);
        let [.., (_, denial)] = answers;
        assert!(denial.contains("\r\nretry-after: "), "{denial}");
        denial
    }
}

#[test]
fn nginx_limits_with_auth_request() {
    let replacements = [
        (
            "http {",
            1,
            "http {\n  access_log off;\n  client_body_temp_path body;\n  proxy_temp_path proxy;\n  fastcgi_temp_path fastcgi;\n  uwsgi_temp_path uwsgi;\n  scgi_temp_path scgi;",
        ),
        ("listen 8000;", 1, "listen unix:SOCKET;"),
        // A busy machine is slower than the page's bounds allow.
        ("_timeout 100ms", 1, "_timeout 30s"),
        ("_timeout 1s", 1, "_timeout 30s"),
    ];
    let mut proxy = Proxy::start("nginx", "nginx.conf", &replacements, |folder| {
        let mut command = Command::new("/usr/sbin/nginx");
        command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "stderr", "-g"]);
        command.arg("daemon off; master_process off; pid nginx.pid;");
        command
    });
    assert!(proxy.limits().contains("\r\nratelimit: \"user\";r=0;t="));
    proxy.limits_a_crowd();
    assert_eq!(proxy.without_service(), 503);
}

#[test]
fn caddy_limits_with_forward_auth() {
    let replacements = [(":8000 {", 1, "{\n\tadmin off\n}\n:8000 {\n\tbind unix/SOCKET")];
    let mut proxy = Proxy::start("caddyfile", "Caddyfile", &replacements, |_| {
        let mut command = Command::new("/usr/bin/caddy");
        command.arg("run");
        command
    });
    assert!(proxy.limits().contains("\r\nratelimit: \"user\";r=0;t="));
    assert_eq!(proxy.without_service(), 502);
}

#[test]
fn haproxy_limits_with_lua() {
    let replacements = [("bind :8000", 1, "bind unix@SOCKET")];
    let mut proxy = Proxy::start("haproxy", "haproxy.cfg", &replacements, |_| {
        let mut command = Command::new("/usr/sbin/haproxy");
        command.args(["-db", "-f", "haproxy.cfg"]);
        command
    });
    proxy.limits();
    proxy.limits_a_crowd();
    assert_eq!(proxy.without_service(), 503);
}
