//! Reads certificates, passwords, keys, the domains of clients and the admin token again while the service runs.

use std::{sync::Arc, time::Duration};

use opentelemetry::{KeyValue, metrics::Gauge};
use tokio::{task::spawn_blocking, time};

use crate::{
    net::tls::client::TlsClient,
    settings::{RuleSource, Settings, StoreUrl},
    store::redis::wire::{endpoint::Access, password::Password},
    telemetry::instruments,
};

instruments! {
    /// Metrics of certificates, and of files about clients.
    pub(super) struct FileMetrics {
        in_use: Gauge<u64> => FILES_IN_USE = Gauge("ratelimit.tls.files.in_use", ["files"],
            "1 if the newest content of the files is in use, 0 while an older one is kept: `certificates`, `client_domains`, `admin_token`, `hold_keys`, `notices_key`, `rules_certificates`, `otlp_traces_certificates`, `otlp_metrics_certificates`, `otlp_logs_certificates`, `store_certificates`, `store_password`, `store_sentinel_password`");
        expires_in: Gauge<i64> => CERTIFICATE_EXPIRES_IN = Gauge(
            "ratelimit.tls.certificate.expires_in", ["files"],
            "seconds until the certificate expires, negative afterwards"
        ) in Seconds;
    }
}

const READ_EVERY: Duration = Duration::from_secs(1);

/// Renews what the listeners and the store have from files, and never returns.
pub(super) async fn renew(settings: Arc<Settings>, metrics: FileMetrics) {
    loop {
        let (settings, metrics) = (Arc::clone(&settings), metrics.clone());
        drop(spawn_blocking(move || renew_once(&settings, &metrics)).await);
        time::sleep(READ_EVERY).await;
    }
}

fn renew_once(settings: &Settings, metrics: &FileMetrics) {
    let listen = &settings.listen;
    if let Some(tls) = &listen.tls {
        metrics.in_use("certificates", tls.renew());
        metrics.expires_in("certificates", tls.expires_in());
    }
    if let Some(access) = &listen.access {
        metrics.in_use("client_domains", access.renew());
    }
    if let Some(tokens) = &listen.admin_tokens {
        metrics.in_use("admin_token", tokens.renew());
    }
    if let Some(in_use) = settings.calls.hold_keys.renew() {
        metrics.in_use("hold_keys", in_use);
    }
    if let Some(key) = settings.telemetry.webhook.as_ref().and_then(|webhook| webhook.key.as_ref())
    {
        metrics.in_use("notices_key", key.renew());
    }
    if let RuleSource::ControlPlane(target) = &settings.rules.source.value
        && let Some(tls) = &target.tls
    {
        renew_tls("rules_certificates", tls, metrics);
    }
    let export = &settings.telemetry.export;
    for (files, endpoint) in [
        ("otlp_traces_certificates", &export.export_traces),
        ("otlp_metrics_certificates", &export.export_metrics),
        ("otlp_logs_certificates", &export.export_logs),
    ] {
        if let Some(tls) = endpoint.as_ref().and_then(|endpoint| endpoint.tls.as_ref()) {
            renew_tls(files, tls, metrics);
        }
    }
    if let StoreUrl::Redis(url) = &settings.store.url {
        // Sentinels and Redis use the same files.
        if let Some(tls) = &url.access.tls {
            renew_tls("store_certificates", tls, metrics);
        }
        renew_password("store_password", &url.access, metrics);
        renew_password("store_sentinel_password", &url.sentinel_access, metrics);
    }
}

/// Connections read the files too. Between them, this shows what the next one will find.
fn renew_tls(files: &'static str, tls: &TlsClient, metrics: &FileMetrics) {
    metrics.in_use(files, tls.renew());
    if let Some(seconds) = tls.expires_in() {
        metrics.expires_in(files, seconds);
    }
}

/// Connections read the file too. Between them, this shows what the next one will find.
fn renew_password(files: &'static str, access: &Access, metrics: &FileMetrics) {
    if let Some(Password::File(file)) = &access.password {
        metrics.in_use(files, file.renew());
    }
}

impl FileMetrics {
    /// Records whether the newest content of some files is in use.
    pub(super) fn in_use(&self, files: &'static str, in_use: bool) {
        self.in_use.record(u64::from(in_use), &[KeyValue::new("files", files)]);
    }

    pub(super) fn expires_in(&self, files: &'static str, seconds: i64) {
        self.expires_in.record(seconds, &[KeyValue::new("files", files)]);
    }
}
