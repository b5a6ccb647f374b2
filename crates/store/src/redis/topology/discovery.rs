//! How the servers of a store are found.

use std::future::pending;

use super::{
    cluster,
    directory::Directory,
    sentinel::{self, Monitored},
};
use crate::redis::wire::endpoint::Server;

#[derive(Debug)]
pub enum Finder {
    Given(Server),
    Sentinel(Monitored),
    /// These, and the others that they name, are nodes of a cluster.
    Cluster(Vec<Server>),
}

impl Finder {
    /// Finds the servers, and follows their changes; never ends.
    pub(crate) async fn follow(&self, directory: &Directory) {
        match self {
            Self::Given(_) => pending().await,
            Self::Sentinel(monitored) => sentinel::follow(directory, monitored).await,
            Self::Cluster(seeds) => cluster::follow(directory, seeds).await,
        }
    }
}
