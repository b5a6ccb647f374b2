//! Reads certificates, the domains of clients and the admin token again while the service runs.

use std::{sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time};

use crate::{settings::ListenSettings, telemetry::FileMetrics};

/// How often the files are read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Renews what the listeners have from files, and never returns.
pub(super) async fn renew(settings: Arc<ListenSettings>, metrics: FileMetrics) {
    loop {
        let (settings, metrics) = (Arc::clone(&settings), metrics.clone());
        drop(spawn_blocking(move || renew_once(&settings, &metrics)).await);
        time::sleep(READ_EVERY).await;
    }
}

fn renew_once(settings: &ListenSettings, metrics: &FileMetrics) {
    if let Some(tls) = &settings.tls {
        metrics.in_use("certificates", tls.renew());
        metrics.expires_in(tls.expires_in());
    }
    if let Some(access) = &settings.access {
        metrics.in_use("client_domains", access.renew());
    }
    if let Some(token) = &settings.admin_token {
        metrics.in_use("admin_token", token.renew());
    }
}
