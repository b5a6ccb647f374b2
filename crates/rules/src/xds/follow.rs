//! Keeps the rules up to date with a control plane, across its streams.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::Mutex,
    time::{self, Instant},
};
use tollkeeper_base::process::pause::Pause;

use super::{
    connection::connect, control_plane::ControlPlane, stream, subscription::RuleSubscription,
};
use crate::{
    load::RuleFiles,
    options::LoadOptions,
    watch::{FollowedFiles, Loaded, Rules, off_thread},
};

/// Pauses between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// After a stream that lasted this long, the next attempt follows soon.
const LASTING: Duration = Duration::from_secs(60);

/// Keeps `rules` up to date with the control plane. The last good rules stay while it is not reachable. Never returns.
pub async fn follow(
    rules: Arc<Rules>,
    control_plane: Arc<ControlPlane>,
    overlays: Vec<PathBuf>,
    options: LoadOptions,
    on_load: impl Fn(Loaded),
) {
    let read = move || RuleFiles::read_overlays(&overlays);
    let first = off_thread(read.clone()).await.unwrap_or_default();
    let mut overlays = FollowedFiles::new(read, first.version());
    let subscription = Mutex::new(RuleSubscription::new(rules, options, on_load, first));
    let follow_overlays = async {
        loop {
            let next = overlays.next().await;
            if let Some(version) = subscription.lock().await.lay(next).await {
                control_plane.in_force(&version);
            }
        }
    };
    tokio::join!(follow_overlays, subscribe(&subscription, &control_plane));
}

/// Keeps a stream open, or tries to. Never returns.
async fn subscribe<F: Fn(Loaded)>(
    subscription: &Mutex<RuleSubscription<F>>,
    control_plane: &ControlPlane,
) {
    let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        let began = Instant::now();
        let failure = match connect(&control_plane.target).await {
            Ok(channel) => stream::run(channel, subscription, control_plane).await,
            Err(failure) => failure,
        };
        control_plane.disconnected(failure);
        if began.elapsed() >= LASTING {
            pause.shortest();
        }
        time::sleep(pause.time()).await;
        pause.longer();
    }
}
