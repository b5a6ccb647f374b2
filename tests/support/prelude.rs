//! What most tests use, each under its own name.

#![allow(unused_imports, reason = "each test binary uses a part of it")]

pub use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    io::{BufRead as _, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use futures_util::future::join_all;
pub use prost::Message as _;
pub use serde_json::{Value, json};
pub use tempfile::TempDir;
pub use tokio_stream::StreamExt as _;
pub use tollkeeper_proto::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
    RateLimitUnit, rate_limit_response::Code,
};
pub use tonic::transport::Channel;

pub use super::{
    PATIENCE, Process, TextFile,
    certificates::Authority,
    cluster::Cluster,
    dice::{Dice, number},
    eventually,
    fault_proxy::{FaultProxy, Faults, Flow},
    pages::{blocks, documents, page},
    redis_server::{Redis, Version, nobody},
    root, run,
    service::{
        Options, Service, descriptor, hits, refund, request, serve, shop, spell, tollkeeper,
    },
    stores::on_every_store,
    succeeds, tool, wait_until,
};
