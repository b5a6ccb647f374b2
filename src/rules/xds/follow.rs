//! Keeps the rules up to date with a control plane, across its streams.

use std::{sync::Arc, time::Duration};

use tokio::time::{self, Instant};

use super::{
    connection::connect, control_plane::ControlPlane, stream, subscription::RuleSubscription,
};
use crate::{
    process::pause::Pause,
    rules::{
        options::LoadOptions,
        watch::{Loaded, Rules},
    },
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
    options: LoadOptions,
    on_load: impl Fn(Loaded),
) {
    let mut subscription = RuleSubscription::new(rules, options, on_load);
    let mut pause = Pause::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        let began = Instant::now();
        let failure = match connect(&control_plane.target).await {
            Ok(channel) => stream::run(channel, &mut subscription, &control_plane).await,
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
