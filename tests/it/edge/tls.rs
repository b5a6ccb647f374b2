//! TLS of the listeners: who is let in, who may ask what, and certificates that change.

use tokio_rustls::rustls::{
    ALL_VERSIONS,
    HandshakeKind::{Full, Resumed},
    StreamOwned,
    version::{TLS12, TLS13},
};
use tollkeeper::net::tls::server::{ServerFiles, TlsServer};

use crate::support::{
    certificates::Issued,
    http::*,
    http2::{self, Frames},
    prelude::*,
    secured::*,
};

#[test]
fn every_address_speaks_tls_and_nothing_else() {
    let secured = Secured::start(&[]);
    let service = &secured.service;
    let (code, stdout, stderr) = run(&mut secured.call(None));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("9 left of 10 per year"), "{stdout}");
    assert_eq!(secured.get(service.http, "/healthz", "", None), Some((200, "OK".to_owned())));
    let (status, metrics) = secured.get(service.http, "/metrics", "", None).unwrap();
    assert_eq!(status, 200);
    let expiry = r#"ratelimit_tls_certificate_expires_in_seconds{files="certificates"} "#;
    assert!(metrics.contains(expiry), "{metrics}");
    assert!(metrics.contains(r#"ratelimit_tls_files_in_use{files="certificates"} 1"#), "{metrics}");

    let plain = ["call", "--addr", &service.grpc.to_string(), "--domain", "shop", "user=a"];
    assert_eq!(run(tollkeeper().args(plain)).0, Some(1));
    assert_eq!(service.exchange("GET", "/healthz", b"").0, 0, "no answer without TLS");
    let mut counter = tollkeeper();
    counter.args(["counter", "show", "--addr", &service.admin.to_string()]);
    add_tls(&mut counter, &secured.authority.certificate, None);
    let stdout = succeeds(counter.args(["--domain", "shop", "user=a"]));
    assert!(stdout.contains("1 used"), "{stdout}");
    let mut bench = tollkeeper();
    bench.args(["bench", "--addr", &service.grpc.to_string(), "--calls", "10", "--json"]);
    add_tls(&mut bench, &secured.authority.certificate, None);
    assert_eq!(run(bench.args(["--domain", "shop", "user={}"])).0, Some(0));

    let strangers = Authority::new();
    let mut call = tollkeeper();
    call.args(["call", "--addr", &service.grpc.to_string()]);
    add_tls(&mut call, &strangers.certificate, None);
    let (code, _, stderr) = run(call.args(["--domain", "shop", "user=a"]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("the server's certificate is not"), "{stderr}");
}

#[test]
fn clients_need_a_certificate_of_the_given_authority_except_for_health() {
    let secured = Secured::start(&["--tls-client-ca", "CLIENTS"]);
    let (service, client) = (&secured.service, secured.authority.client());
    let others = Authority::new();
    assert_eq!(run(&mut secured.call(Some(&client))).0, Some(0));
    assert_eq!(run(&mut secured.call(None)).0, Some(1));
    assert_eq!(run(&mut secured.call(Some(&others.client()))).0, Some(1));
    for (path, without, with) in
        [("/healthz", 200, 200), ("/metrics", 403, 200), ("/rules", 403, 200)]
    {
        let status = |client| secured.get(service.http, path, "", client).unwrap().0;
        assert_eq!((status(None), status(Some(&client))), (without, with), "{path}");
    }
    let show = "/counters?domain=shop&descriptor=user%3Da";
    assert_eq!(secured.get(service.admin, show, "", None), None);
    assert_eq!(secured.get(service.admin, show, "", Some(&client)).unwrap().0, 200);
}

/// If sessions were resumed, a client would still get in after its certificate has expired, or its CA was removed.
#[test]
fn each_connection_of_a_client_with_a_certificate_shows_it() {
    for (flags, again) in [(&["--tls-client-ca", "CLIENTS"][..], Full), (&[][..], Resumed)] {
        let secured = Secured::start(flags);
        let client = secured.authority.client();
        for version in [&TLS12, &TLS13] {
            let chain = vec![certificate(&client.certificate)];
            let config = secured.config(Some((&client, chain)), &[version]);
            let connect = || {
                let stream = TcpStream::connect(secured.service.http).unwrap();
                let mut stream = StreamOwned::new(connection(Arc::clone(&config)), stream);
                stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
                stream.read_exact(&mut [0; 12]).unwrap();
                stream.conn.handshake_kind().unwrap()
            };
            assert_eq!([connect(), connect()], [Full, again], "{flags:?}, {version:?}");
        }
    }
}

/// Each certificate of a chain may cost a check of a signature, and names of a client are kept.
#[test]
fn a_chain_of_a_client_has_bounds_before_it_is_verified() {
    let secured = Secured::start(&["--tls-client-ca", "CLIENTS"]);
    let (service, authority) = (&secured.service, &secured.authority);
    let intermediates: Vec<_> = (0..9)
        .map(|number| certificate(&authority.intermediate(&format!("{number}")).certificate))
        .collect();
    let names: Vec<_> = (0..101).map(|number| format!("{number}.example")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (usual, many_names) = (authority.client(), authority.client_named(&names[..100]));
    let (too_many, large) = (
        authority.client_named(&names),
        authority.client_named(&[&format!("x://{}", "x".repeat(16 << 10))]),
    );
    let twice = [&intermediates[..2], &intermediates[..1]].concat();
    for (client, intermediates, problem) in [
        (&usual, &intermediates[..8], Some("has over 8 certificates in its chain")),
        (&usual, &intermediates[..7], None),
        (&usual, &twice[..], Some("has two CA certificates of the same name in its chain")),
        (&usual, &twice[..2], None),
        (&too_many, &[][..], Some("has over 100 DNS names and URIs")),
        (&many_names, &[][..], None),
        (&large, &[][..], Some("takes over 16 KiB with its chain")),
    ] {
        let mut chain = vec![certificate(&client.certificate)];
        chain.extend_from_slice(intermediates);
        let stream = TcpStream::connect(service.http).unwrap();
        let config = secured.config(Some((client, chain)), ALL_VERSIONS);
        let mut stream = StreamOwned::new(connection(config), stream);
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(stream.read_exact(&mut [0; 12]).is_ok(), problem.is_none(), "{problem:?}");
    }
    // The log has one line a minute.
    service.wait_for_log("the client's certificate has over 8 certificates in its chain");
}

/// Probes of the port connect and leave.
#[test]
fn handshakes_that_fail_are_counted_and_logged_and_probes_are_not() {
    let secured = Secured::start(&["--tls-client-ca", "CLIENTS"]);
    let (service, client) = (&secured.service, secured.authority.client());
    drop(TcpStream::connect(service.grpc).unwrap());
    for text in ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(service.grpc).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (others, stream) = (Authority::new(), TcpStream::connect(service.grpc).unwrap());
    let mut stream = StreamOwned::new(secured.connection(Some(&others.client())), stream);
    let _ = stream.write_all(&http2::opening());
    stream.read_exact(&mut [0; 1]).expect_err("its authority is another one");
    eventually("the three are counted", || {
        let (_, metrics) = secured.get(service.http, "/metrics", "", Some(&client))?;
        let series = r#"ratelimit_connections_refused_total{listener="grpc",reason="tls"} 3"#;
        metrics.contains(series).then_some(())
    });
    let log = service.log();
    let line = log.lines().find(|line| line.contains("grpc: a TLS handshake failed")).unwrap();
    assert!(line.contains("the client does not speak TLS"), "{line}");
    assert!(line.contains("WARN"), "{line}");
}

#[test]
fn a_client_may_ask_only_about_its_domains_and_the_file_may_change() {
    let file = TextFile::new("clients.yaml", "spiffe://test/shop: [shop]\nother.example: [mail]\n");
    let flags = ["--tls-client-ca", "CLIENTS", "--client-domains", &file];
    let secured = Secured::start(&flags);
    let shop = secured.authority.client_named(&["spiffe://test/shop"]);
    let other = secured.authority.client_named(&["other.example"]);
    let denied = "PERMISSION_DENIED: domain: this client may not use `shop`";
    assert_eq!(run(&mut secured.call(Some(&shop))).0, Some(0));
    for client in [&other, &secured.authority.client()] {
        let (code, _, stderr) = run(&mut secured.call(Some(client)));
        assert_eq!(code, Some(1));
        assert!(stderr.contains(denied), "{stderr}");
    }
    fs::write(&*file, "other.example: [mail").unwrap();
    secured.service.wait_for_log("cannot be used, the last good ones stay");
    fs::write(&*file, "").unwrap();
    secured.service.wait_for_log("clients.yaml: must name a client");
    assert_eq!(run(&mut secured.call(Some(&shop))).0, Some(0), "the last good file is in use");
    fs::write(&*file, "other.example: ['*']\n").unwrap();
    wait_until("the new file is in use", || run(&mut secured.call(Some(&other))).0 == Some(0));
    assert_eq!(run(&mut secured.call(Some(&shop))).0, Some(1));
}

#[test]
fn calls_without_descriptors_are_counted_by_the_name_in_the_certificate() {
    let secured = Secured::start(&["--tls-client-ca", "CLIENTS"]);
    let client = secured.authority.client_named(&["spiffe://test/shop", "shop.example"]);
    let stream = TcpStream::connect(secured.service.grpc).unwrap();
    let mut stream = StreamOwned::new(secured.connection(Some(&client)), stream);
    let call = Frames::default().call(&request("shop", vec![]).encode_to_vec());
    stream.write_all(&[http2::opening(), call.bytes()].concat()).unwrap();
    let series = r#"ratelimit_empty_calls_total{peer="spiffe://test/shop"} 1"#;
    eventually("the call is counted", || {
        let (_, metrics) = secured.get(secured.service.http, "/metrics", "", Some(&client))?;
        metrics.contains(series).then_some(())
    });
}

#[test]
fn certificates_for_grpc_alone_identify_nobody_on_the_plain_addresses() {
    let secured = Secured::start(&["--tls-scope", "grpc", "--tls-client-ca", "CLIENTS"]);
    let service = &secured.service;
    assert_eq!(run(&mut secured.call(Some(&secured.authority.client()))).0, Some(0));
    assert_eq!(ask_admin(service, &["host: localhost"]), "200");
    assert_eq!(ask_admin(service, &["host: evil.example"]), "403", "a name that others control");
    for (request, expected) in [("GET /metrics", 200), ("GET /rules", 200), ("POST /json", 403)] {
        let (method, path) = request.split_once(' ').unwrap();
        assert_eq!(service.exchange(method, path, CALL.as_bytes()).0, expected, "{request}");
    }
}

const OVERRIDE: &str =
    r#"{"domain":"shop","descriptor":"user=z","action":"shadow","for":"1m","because":"x"}"#;

/// Whether the admin address refuses these requests, all of them or none.
#[track_caller]
fn is_refused(secured: &Secured, requests: &[(&str, &str)], header: &str, client: &Issued) -> bool {
    let mut refused = Vec::new();
    for (request, body) in requests {
        let answer = secured.ask(secured.service.admin, request, header, body, Some(client));
        refused.push(answer.unwrap().0 == 403);
    }
    assert!(refused.iter().all(|other| *other == refused[0]), "{requests:?}: {refused:?}");
    refused[0]
}

#[test]
fn the_admin_address_asks_what_a_certificate_may_read_and_change() {
    let folder = TempDir::new().unwrap();
    let (clients, token) = (folder.path().join("clients.yaml"), folder.path().join("token"));
    let domains = "shop.example: [shop]\nreader.example: ['*']\n\
        of-shop.example: { operates: [shop] }\noperator.example: { domains: [], operates: ['*'] }\n";
    fs::write(&clients, domains).unwrap();
    fs::write(&token, "0123456789abcdef").unwrap();
    let clients = clients.display().to_string();
    let flags = ["--tls-client-ca", "CLIENTS", "--client-domains", &clients];
    let secured = Secured::start(&flags);
    let reads_shop =
        [("GET /counters?domain=shop&descriptor=user%3Da", ""), ("POST /explain", CALL)];
    let changes_shop = [
        ("POST /counters/reset?domain=shop&descriptor=user%3Da", ""),
        ("POST /counters/set?domain=shop&descriptor=user%3Da&used=3", ""),
        ("POST /overrides", OVERRIDE),
    ];
    let call_of_mail = CALL.replace("shop", "mail");
    let override_of_mail = OVERRIDE.replace("shop", "mail");
    let reads_mail = [
        ("GET /counters?domain=mail&descriptor=user%3Da", ""),
        ("POST /explain", call_of_mail.as_str()),
    ];
    let changes_mail = [
        ("POST /counters/reset?domain=mail&descriptor=user%3Da", ""),
        ("POST /counters/set?domain=mail&descriptor=user%3Da&used=3", ""),
        ("POST /overrides", override_of_mail.as_str()),
    ];
    let reads_all = [
        "GET /status",
        "GET /top",
        "GET /log",
        "GET /stats",
        "GET /recording",
        "GET /candidate",
        "GET /audit",
        "GET /overrides",
    ];
    let reads_all = reads_all.map(|request| (request, ""));
    let changes_all = [
        ("POST /log?filter=info", ""),
        ("POST /recording?for=10m", ""),
        ("POST /candidate?order=abort&version=a", ""),
    ];
    let requests =
        [&reads_shop[..], &changes_shop, &reads_mail, &changes_mail, &reads_all, &changes_all];
    let client = |name| secured.authority.client_named(&[name]);
    for (client, refused) in [
        (client("shop.example"), [false, true, true, true, true, true]),
        (client("reader.example"), [false, true, false, true, false, true]),
        (client("of-shop.example"), [false, false, true, true, true, true]),
        (client("operator.example"), [false; 6]),
        (secured.authority.client(), [true; 6]),
    ] {
        let found = requests.map(|requests| is_refused(&secured, requests, "", &client));
        assert_eq!(found, refused, "{client:?}");
    }
    let denied = "this client may not use `shop`";
    let (_, _, stderr) = run(&mut secured.call(Some(&client("operator.example"))));
    assert!(stderr.contains(denied), "who operates decides no calls: {stderr}");

    let token = token.display().to_string();
    let secured = Secured::start(&[&flags[..], &["--admin-token-file", &token]].concat());
    let (bearer, nobody) =
        ("authorization: Bearer 0123456789abcdef\r\n", secured.authority.client());
    for requests in requests {
        assert!(
            !is_refused(&secured, requests, bearer, &nobody),
            "the token is that of an operator"
        );
    }
}

#[test]
fn a_renewed_certificate_is_used_and_a_bad_pair_is_not() {
    let secured = Secured::start(&[]);
    let in_use = |secured: &Secured| {
        let mut stream = TcpStream::connect(secured.service.grpc).unwrap();
        let mut connection = secured.connection(None);
        connection.complete_io(&mut stream).ok()?;
        Some(connection.peer_certificates()?.first()?.clone().into_owned())
    };
    let first = certificate(&secured.folder.path().join("certificate"));
    assert_eq!(in_use(&secured), Some(first.clone()));

    let second = secured.authority.server(&["127.0.0.1"]);
    fs::copy(&second.certificate, secured.folder.path().join("certificate")).unwrap();
    let metrics = || secured.get(secured.service.http, "/metrics", "", None).unwrap().1;
    wait_until("the pair does not fit", || metrics().contains(r#"in_use{files="certificates"} 0"#));
    assert!(secured.service.log().contains("the last good ones stay"), "{}", secured.service.log());
    assert_eq!(in_use(&secured), Some(first));
    install(&second, secured.folder.path());
    let second = certificate(&second.certificate);
    eventually("the new certificate is in use", || (in_use(&secured)? == second).then_some(()));
    wait_until("the metric", || metrics().contains(r#"in_use{files="certificates"} 1"#));
    install(&secured.authority.expired_server(&["127.0.0.1"]), secured.folder.path());
    secured.service.wait_for_log("has expired");
    assert_eq!(in_use(&secured), Some(second));
}

/// A bundle that is half written may be whole as far as it goes.
#[test]
fn new_files_are_used_once_two_reads_have_found_the_same() {
    let (authority, folder) = (Authority::new(), TempDir::new().unwrap());
    install(&authority.client_until(2100), folder.path());
    let (certificate, key) = (folder.path().join("certificate"), folder.path().join("key"));
    let server = TlsServer::load(ServerFiles { certificate, key, client_ca: None }).unwrap();
    let first = server.expires_in();
    let ends_later = || server.expires_in() - first > 31_536_000;
    install(&authority.client_until(2200), folder.path());
    assert!(server.renew() && !ends_later(), "seen once");
    assert!(server.renew() && ends_later(), "seen twice");
}

#[test]
fn the_admin_address_asks_for_its_token() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "0123456789abcdef\n").unwrap();
    let path = file.display().to_string();
    let service = Service::shop().flags(&["--admin-token-file", &path]).start();
    let show = |token: Option<&Path>| {
        let mut command = tollkeeper();
        command.args(["counter", "show", "--addr", &service.admin.to_string()]);
        if let Some(token) = token {
            command.arg("--token-file").arg(token);
        }
        run(command.args(["--domain", "shop", "user=a"]))
    };
    let admin = service.admin;
    let wrong = folder.path().join("wrong");
    fs::write(&wrong, "0123456789abcdeF").unwrap();
    assert_eq!(show(Some(&file)).0, Some(0));
    for (token, problem) in [
        (None, "a bearer token is required; give its file by --token-file".to_owned()),
        (
            Some(wrong.as_path()),
            format!(
                "invalid bearer token; --token-file {} must hold the token of the service's --admin-token-file",
                wrong.display()
            ),
        ),
    ] {
        let outcome = (Some(1), String::new(), format!("{admin}: {problem}\n"));
        assert_eq!(show(token), outcome);
    }
    fs::write(&file, "0123456789abcdeF").unwrap();
    wait_until("the new token is in use", || show(Some(&wrong)).0 == Some(0));
}

#[test]
fn a_token_file_that_cannot_be_used_is_bad_usage_that_names_the_flag_and_the_file() {
    let service = Service::shop().start();
    let (folder, admin) = (TempDir::new().unwrap(), service.admin.to_string());
    let file = folder.path().join("token");
    let path = file.display().to_string();
    for (content, problem) in [
        (None, "No such file or directory (os error 2)"),
        (Some(&b""[..]), "the file is empty"),
        (Some(b" \n"), "the file is empty"),
        (
            Some(b"s3cret\nand more"),
            "the file must hold one token of visible ASCII characters, without its name",
        ),
        (
            Some(b"s3cr\xc3\xa9t"),
            "the file must hold one token of visible ASCII characters, without its name",
        ),
        (
            Some(b"s3cret\xff"),
            "the file must hold one token of visible ASCII characters, without its name",
        ),
    ] {
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        for command in [
            &["top", "--addr", &admin][..],
            &["counter", "show", "--domain", "shop", "user=a", "--addr", &admin],
            &["explain", "--domain", "shop", "user=a", "--admin-addr", &admin],
        ] {
            let outcome = run(tollkeeper().args(command).args(["--token-file", &path]));
            let line = format!("--token-file: {path}: {problem}\n");
            assert_eq!(outcome, (Some(2), String::new(), line), "{command:?}");
        }
    }
}

/// What the service says about these flags when it refuses to start.
fn refused(flags: &[&str]) -> String {
    let (code, _, stderr) = run(serve().args(flags));
    assert_eq!(code, Some(2), "{stderr}");
    stderr
}

#[test]
fn flags_that_would_leave_an_address_open_or_without_a_certificate_are_refused() {
    let (authority, folder) = (Authority::new(), TempDir::new().unwrap());
    let good = authority.server(&["127.0.0.1"]);
    let (expired, other) = (authority.expired_server(&["a"]), authority.server(&["a"]));
    let text = |path: &PathBuf| path.display().to_string();
    let short = folder.path().join("short");
    fs::write(&short, "secret").unwrap();
    let short = text(&short);
    let (certificate, key) = (text(&good.certificate), text(&good.key));
    let pair = ["--tls-cert", &certificate, "--tls-key", &key];
    let with = |more: &[&str]| refused(&[&pair[..], more].concat());
    let beyond = "--admin-addr: must be a loopback address, unless --admin-token-file or --tls-client-ca is set\n";
    assert_eq!(refused(&["--admin-addr", "0.0.0.0:0"]), beyond);
    assert_eq!(with(&["--admin-addr", "[::]:0"]), beyond, "TLS alone identifies nobody");
    let domains = with(&["--client-domains", "/dev/null"]);
    assert!(domains.starts_with("--client-domains: needs --tls-client-ca\n"), "{domains}");
    assert_eq!(refused(&pair[..2]), "--tls-cert: needs --tls-key\n");
    assert_eq!(refused(&pair[2..]), "--tls-key: needs --tls-cert\n");
    assert_eq!(
        refused(&["--tls-client-ca", &certificate]),
        "--tls-client-ca: needs --tls-cert and --tls-key\n"
    );
    let message = "the token must be at least 16 visible ASCII characters";
    assert_eq!(
        refused(&["--admin-token-file", &short]),
        format!("--admin-token-file: {short}: line 1: {message}\n")
    );
    for (certificate, key, problem) in [
        (&expired.certificate, &expired.key, "has expired"),
        (&good.certificate, &other.key, "does not fit the certificate"),
        (&good.key, &good.key, "no certificate in PEM format"),
        (&good.certificate, &good.certificate, "no private key in PEM format"),
    ] {
        let message = refused(&["--tls-cert", &text(certificate), "--tls-key", &text(key)]);
        assert!(message.starts_with("--tls-cert: /") && message.contains(problem), "{message}");
    }
}

/// Clients that stop in the middle: before the handshake, in it, and after it.
#[test]
fn an_unfinished_handshake_delays_neither_calls_nor_the_exit() {
    let mut secured = Secured::start(&[]);
    let grpc = secured.service.grpc;
    let mut unfinished = Vec::new();
    for sent in [&b""[..], b"\x16\x03\x01\x02\x00\x01", b"\x16"] {
        let mut stream = TcpStream::connect(grpc).unwrap();
        stream.write_all(sent).unwrap();
        unfinished.push(stream);
    }
    let mut finished = TcpStream::connect(grpc).unwrap();
    secured.connection(None).complete_io(&mut finished).unwrap();
    assert_eq!(run(&mut secured.call(None)).0, Some(0));
    secured.service.end();
    let log = secured.service.log();
    assert!(!log.contains("did not end"), "{log}");
}

/// The first byte of a handshake, and nothing else.
#[test]
fn unfinished_handshakes_on_all_connections_keep_no_new_client_out() {
    let secured = Secured::start(&["--max-connections", "50"]);
    let unfinished: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(secured.service.grpc).unwrap();
            stream.write_all(b"\x16").unwrap();
            stream
        })
        .collect();
    for _ in 0..10 {
        succeeds(&mut secured.call(None));
    }
    drop(unfinished);
}

#[test]
fn a_handshake_that_begins_after_the_stop_is_finished() {
    let mut secured = Secured::start(&[]);
    let mut stream = TcpStream::connect(secured.service.grpc).unwrap();
    let mut connection = secured.connection(None);
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    stream.write_all(&hello[..20]).unwrap();
    eventually("it is accepted", || {
        let metrics = secured.get(secured.service.http, "/metrics", "", None)?.1;
        metrics.contains("ratelimit_connections{listener=\"grpc\"} 1").then_some(())
    });
    secured.service.process().signal("TERM");
    secured.service.wait_for_log("draining");
    stream.write_all(&hello[20..]).unwrap();
    connection.complete_io(&mut stream).unwrap();
    assert!(!connection.is_handshaking());
    assert!(secured.service.process().0.wait().unwrap().success());
}

/// The time that the process has computed, in clock ticks, of which a second has 100.
fn ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// `TOLLKEEPER_TLS_SECONDS=5 cargo test --release --test it decisions_over_tls -- --nocapture` prints the figures of
/// docs/internals/performance.md.
#[test]
fn decisions_over_tls_cost_little_more() {
    let time =
        std::env::var("TOLLKEEPER_TLS_SECONDS").map_or("100ms".to_owned(), |text| text + "s");
    let mut secured = Secured::start(&[]);
    let mut plain = Service::shop().start();
    let ca = secured.authority.certificate.clone();
    let measure = |service: &mut Service, ca: Option<&Path>| {
        let process = service.process().0.id();
        let before = ticks(process);
        let mut bench = tollkeeper();
        bench.args(["bench", "--addr", &service.grpc.to_string(), "--domain", "shop", "--json"]);
        bench.args(["--duration", &time, "--keys", "1000", "user={}"]);
        if let Some(ca) = ca {
            add_tls(&mut bench, ca, None);
        }
        let stdout = succeeds(&mut bench);
        let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let calls = report["calls"].as_u64().unwrap();
        (ticks(process) - before) as f64 * 10_000.0 / calls as f64
    };
    let rounds: Vec<_> = (0..3)
        .map(|_| (measure(&mut plain, None), measure(&mut secured.service, Some(&ca))))
        .collect();
    for (plain, with_tls) in rounds {
        println!("without TLS {plain:.2} us, with TLS {with_tls:.2} us: {:.2}", with_tls / plain);
    }
}
