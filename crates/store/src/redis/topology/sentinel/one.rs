//! One Sentinel: what it is queried for, and what it announces.

use std::{collections::HashMap, io, time::Duration};

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use redis::{RedisError, RedisResult, Value};
use tokio::time;
use tollkeeper_base::process::pause::Pause;

use crate::redis::wire::{
    connection::{self, Connection},
    endpoint::{Address, Server},
    query_connection::KeptConnection,
    server_info::ServerInfo,
};

/// The pause between attempts and between queries that change nothing.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(100);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a Sentinel may take to answer. Opening a connection to it may take longer, and goes on between queries.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);

const SUBSCRIBE_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Sentinel {
    pub(super) address: Address,
    /// Whether another server than a Sentinel has answered last.
    pub(super) is_other_server: bool,
    server: Server,
    connection: KeptConnection,
    announcements: BoxStream<'static, ()>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) address: Address,
    /// The number of the failover that made it the master.
    pub(super) epoch: u64,
    pub(super) is_being_replaced: bool,
}

#[derive(Debug)]
pub(super) enum NotNamed {
    Unknown,
    Failed(RedisError),
}

impl Sentinel {
    pub(super) fn new(server: Server) -> Self {
        let address = server.address.clone();
        let announcements = Subscription::new(server.clone()).announcements();
        let connection = KeptConnection::new(server.clone());
        Self { address, is_other_server: false, server, connection, announcements }
    }

    /// Waits until it announces a new master, or may have done so before we listened.
    pub(super) async fn announcement(&mut self) {
        self.announcements.next().await;
    }

    pub(super) async fn master(&mut self, name: &str) -> Result<Named, NotNamed> {
        type Fields = HashMap<String, String>;
        let command = redis::cmd("SENTINEL").arg("MASTER").arg(name).take();
        let answer: RedisResult<Option<Fields>> =
            self.connection.query(&command, ANSWER_WITHIN).await;
        if matches!(&answer, Err(error) if error.to_string().contains("unknown command")) {
            self.tell_what_it_is().await;
            return Err(NotNamed::Failed(io::Error::other("it is not a Sentinel").into()));
        }
        self.is_other_server &= answer.is_err();
        match answer {
            Ok(Some(fields)) => named(&fields).ok_or(NotNamed::Unknown),
            Ok(None) => Err(NotNamed::Unknown),
            Err(error) if error.to_string().contains("No such master") => Err(NotNamed::Unknown),
            Err(error) => Err(NotNamed::Failed(error)),
        }
    }

    /// Logs once which URL a server has that is not a Sentinel.
    async fn tell_what_it_is(&mut self) {
        if self.is_other_server {
            return;
        }
        self.is_other_server = true;
        let info = self.connection.query(&redis::cmd("INFO"), ANSWER_WITHIN).await;
        // Its user may lack the right.
        let info: String = info.unwrap_or_default();
        let url = ServerInfo(&info).url_of(&self.server);
        tracing::warn!("Redis at {} is not a Sentinel: write {url}", self.address);
    }

    pub(super) async fn others(&mut self, name: &str) -> Option<Vec<Address>> {
        let command = redis::cmd("SENTINEL").arg("SENTINELS").arg(name).take();
        let answer = self.connection.query(&command, ANSWER_WITHIN).await;
        let others: Vec<HashMap<String, String>> = answer.ok()?;
        Some(others.iter().filter_map(address).collect())
    }
}

fn named(fields: &HashMap<String, String>) -> Option<Named> {
    let flags = fields.get("flags")?;
    Some(Named {
        address: address(fields)?,
        epoch: fields.get("config-epoch")?.parse().ok()?,
        is_being_replaced: flags.split(',').any(|flag| flag == "failover_in_progress"),
    })
}

fn address(fields: &HashMap<String, String>) -> Option<Address> {
    Some(Address::Tcp { host: fields.get("ip")?.clone(), port: fields.get("port")?.parse().ok()? })
}

/// A connection on which a Sentinel announces new masters. Its announcement itself is not used: a Sentinel that was
/// restarted may repeat an old announcement.
struct Subscription {
    server: Server,
    connection: Option<Connection>,
    pause: Pause,
}

impl Subscription {
    const fn new(server: Server) -> Self {
        Self { server, connection: None, pause: Pause::new(PAUSE_MIN, PAUSE_MAX) }
    }

    fn announcements(self) -> BoxStream<'static, ()> {
        stream::unfold(self, |mut subscription| async {
            subscription.next().await;
            Some(((), subscription))
        })
        .boxed()
    }

    async fn next(&mut self) {
        if let Some(connection) = &mut self.connection
            && connection.next_reply::<Value>().await.is_ok()
        {
            return;
        }
        // A new connection counts as an announcement: we may have missed one.
        while self.connection.is_some() || !self.connect().await {
            self.connection = None;
            time::sleep(self.pause.time()).await;
            self.pause.longer();
        }
        self.pause.shortest();
    }

    async fn connect(&mut self) -> bool {
        let subscribe = async {
            let mut connection = connection::open(&self.server).await?;
            let command = redis::cmd("SUBSCRIBE").arg("+switch-master").take();
            connection.query::<Value>(&command).await?;
            RedisResult::Ok(connection)
        };
        let connected = time::timeout(SUBSCRIBE_WITHIN, subscribe).await;
        self.connection = connected.ok().and_then(Result::ok);
        self.connection.is_some()
    }
}
