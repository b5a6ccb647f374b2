//! Reads certificates, passwords, the domains of clients and the admin token again while the service runs.

use std::{sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time};

use crate::{
    settings::{RuleSource, Settings, StoreUrl},
    store::redis::{password::Password, server::Access},
    telemetry::FileMetrics,
};

/// How often the files are read.
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
    if let Some(token) = &listen.admin_token {
        metrics.in_use("admin_token", token.renew());
    }
    if let RuleSource::ControlPlane(target) = &settings.rules.source
        && let Some(tls) = &target.tls
    {
        metrics.in_use("rules_certificates", tls.renew());
    }
    if let StoreUrl::Redis(url) = &settings.store.url {
        // Sentinels and Redis use the same files.
        if let Some(tls) = &url.access.tls {
            metrics.in_use("store_certificates", tls.renew());
            if let Some(seconds) = tls.expires_in() {
                metrics.expires_in("store_certificates", seconds);
            }
        }
        renew_password("store_password", &url.access, metrics);
        renew_password("store_sentinel_password", &url.sentinel_access, metrics);
    }
}

/// Connections read the file too. Between them, this shows what the next one will find.
fn renew_password(files: &'static str, access: &Access, metrics: &FileMetrics) {
    if let Some(Password::File(file)) = &access.password {
        metrics.in_use(files, file.renew());
    }
}
