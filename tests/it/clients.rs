//! The packages in clients/: all tests of each, and the cases that they share, against real services.

mod applications;

use std::{
    io::BufReader,
    process::{Child, Output},
};

use crate::support::prelude::*;

/// The services of clients/conformance/faults.json, and the line with their addresses.
fn faults() -> (Child, String) {
    let mut faults = Command::new(tool("python"));
    faults.arg(root().join("clients/conformance/faults.py"));
    faults.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut faults = faults.spawn().unwrap();
    let mut addresses = String::new();
    BufReader::new(faults.stdout.as_mut().unwrap()).read_line(&mut addresses).unwrap();
    (faults, addresses.trim_end().to_owned())
}

/// With the programs that `tests/run` has installed.
fn path() -> String {
    let tools = root().join("target/tools");
    let ours = [tools.join("bin"), tools.join("venv/bin")];
    let ours = ours.map(|folder| folder.display().to_string()).join(":");
    format!("{ours}:{}", std::env::var("PATH").unwrap())
}

/// Runs a shell script in `clients/FOLDER` with the environment that clients/conformance/README.md describes. The programs that
/// `tests/run` has installed are in its path, and `$SCRATCH` is an empty folder.
#[track_caller]
fn passes(folder: &str, script: &str) {
    let rules = fs::read_to_string(root().join("clients/conformance/rules.yaml")).unwrap();
    let service = Service::with(&rules).start();
    let authority = Authority::new();
    let (server, client) = (authority.server(&["localhost", "127.0.0.1"]), authority.client());
    let text = |path: &PathBuf| path.display().to_string();
    let (certificate, key, ca) =
        (text(&server.certificate), text(&server.key), text(&authority.certificate));
    let flags = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &ca];
    let secured = Service::with(&rules).flags(&flags).start();
    // The system accepts its connections.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (faults, addresses) = faults();
    let scratch = TempDir::new().unwrap();

    let output = succeeds(
        Command::new("sh")
            .args(["-e", "-c", script])
            .current_dir(root().join("clients").join(folder))
            .env("PATH", path())
            .env("SCRATCH", scratch.path())
            .env("TOLLKEEPER_ADDR", service.grpc.to_string())
            .env("TOLLKEEPER_HTTP_ADDR", service.http.to_string())
            .env("TOLLKEEPER_TLS_ADDR", secured.grpc.to_string())
            .env("TOLLKEEPER_CA", ca)
            .env("TOLLKEEPER_CERT", client.certificate)
            .env("TOLLKEEPER_KEY", client.key)
            .env("TOLLKEEPER_GONE_ADDR", nobody().to_string())
            .env("TOLLKEEPER_SILENT_ADDR", silent.local_addr().unwrap().to_string())
            .env("TOLLKEEPER_FAULTS", addresses),
    );
    service.assert_metric("rule=\"slots\"");
    // Its input ends here, so it compares what it was sent, and that each row has run.
    let Output { status, stderr, .. } = faults.wait_with_output().unwrap();
    assert!(status.success(), "{output}{}", String::from_utf8_lossy(&stderr));
}

#[test]
fn the_go_package_passes_its_tests() {
    passes(
        "go",
        r#"
        test -z "$(gofmt -l .)"
        go vet ./...
        go mod tidy -diff
        go mod verify
        go test -count=1 ./...
        ./generate "$SCRATCH"
        diff -r tollkeeperv1 "$SCRATCH/tollkeeperv1"
        "#,
    );
}

/// It is installed from the files that the registry would get, which are built in a copy.
#[test]
fn the_python_package_passes_its_tests() {
    passes(
        "python",
        r#"
        export PYTHONDONTWRITEBYTECODE=1
        cp -r . "$SCRATCH/package"
        (cd "$SCRATCH/package" && python -c 'from setuptools.build_meta import *; build_sdist("dist"); build_wheel("dist")')
        python -m twine check --strict "$SCRATCH"/package/dist/*
        test -z "$(tar -tf "$SCRATCH"/package/dist/*.tar.gz | grep /tests/)"
        python -m pip install --quiet --no-deps --target "$SCRATCH/installed" "$SCRATCH"/package/dist/*.whl
        python -m mypy --cache-dir "$SCRATCH/mypy"
        export PYTHONPATH="$SCRATCH/installed"
        python -W error -m unittest discover tests
        python -W error -m pdoc --output-directory "$SCRATCH/reference" \
          tollkeeper tollkeeper.fastapi tollkeeper.interceptor tollkeeper.testing
        python -m ruff check --no-cache --config pyproject.toml . ../conformance
        python -m ruff format --no-cache --config pyproject.toml --check . ../conformance
        config=$PWD/pyproject.toml
        cd ../../examples/applications/fastapi
        python -m mypy --config-file= --strict --cache-dir "$SCRATCH/mypy" .
        python -m ruff check --no-cache --config "$config" .
        python -m ruff format --no-cache --config "$config" --check .
        "#,
    );
}

/// In a copy, since the package is built beside its sources.
#[test]
fn the_typescript_package_passes_its_tests() {
    passes(
        "typescript",
        r#"
        package=$SCRATCH/clients/typescript
        mkdir -p "$package"
        cp -r LICENSE README.md *.json examples scripts src test ../../examples/applications/express "$package"
        ln -s "$PWD/../conformance" "$SCRATCH/clients"
        ln -s "$PWD/../../proto" "$SCRATCH"
        tools=$PWD/../../target/tools
        ln -s "$tools/typescript/node_modules" "$package"
        cd "$package"
        npm run lint
        npm test
        node "$tools/typedoc/node_modules/typedoc/bin/typedoc" --readme none --out "$SCRATCH/reference" \
          --treatWarningsAsErrors --validation.notExported false
        "#,
    );
}

/// In a copy, since the package is built beside its sources.
#[test]
#[ignore = "needs a JDK and Maven; tests/java installs them and runs it"]
fn the_java_package_passes_its_tests() {
    passes(
        "java",
        r#"
        mkdir "$SCRATCH/clients"
        cp -r . "$SCRATCH/clients/java"
        ln -s "$PWD/../conformance" "$SCRATCH/clients"
        ln -s "$PWD/../../proto" "$SCRATCH"
        cd "$SCRATCH/clients/java"
        mvn --batch-mode --quiet --offline -Prelease clean verify
        "#,
    );
}

/// With the features of the service's own dependencies, so that what its build has compiled is used again.
#[test]
fn the_rust_package_passes_its_tests() {
    passes(
        "rust",
        r#"
        unset RUSTC_BOOTSTRAP
        cargo fmt --check
        cargo package --quiet --locked --offline --no-verify --allow-dirty --target-dir "$SCRATCH"
        RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps --package tollkeeper-client --all-features
        cargo test --locked --package tollkeeper --package tollkeeper-client \
          --features tollkeeper-client/tls,tollkeeper-client/tower \
          --lib --test conformance --test failure --test limiter --test middleware --test readme
        "#,
    );
}
