//! A connection for occasional queries, reopened when it was closed.

use std::{io, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use redis::{Cmd, FromRedisValue, RedisResult};
use tokio::time::{self, Instant};

use super::{
    connection::{self, CONNECT_WITHIN, Connection},
    endpoint::Server,
};

/// When another attempt to connect begins beside those whose packets may have been lost.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct KeptConnection {
    server: Server,
    kept: Option<Connection>,
    /// Those that are being opened: one may take longer than one query.
    opening: FuturesUnordered<BoxFuture<'static, RedisResult<Connection>>>,
    opening_since: Instant,
}

impl KeptConnection {
    pub(crate) fn new(server: Server) -> Self {
        let opening = FuturesUnordered::new();
        Self { server, kept: None, opening, opening_since: Instant::now() }
    }

    /// Sends a command, after connecting if need be.
    pub(crate) async fn query<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
        within: Duration,
    ) -> RedisResult<T> {
        let asked = time::timeout(within, self.ask(command)).await;
        asked.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let mut kept = self.kept.take();
        let mut connection = match kept.take_if(|kept| !kept.is_closed()) {
            Some(kept) => kept,
            None => self.opened().await?,
        };
        let answer = connection.query(command).await;
        if connection.is_usable() {
            self.kept = Some(connection);
        }
        answer
    }

    /// The first connection that can be opened.
    async fn opened(&mut self) -> RedisResult<Connection> {
        if self.opening.is_empty() || self.opening_since.elapsed() >= TRIED_AGAIN_AFTER {
            self.opening.push(Box::pin(open(self.server.clone())));
            self.opening_since = Instant::now();
        }
        while let Some(opened) = self.opening.next().await {
            if opened.is_ok() || self.opening.is_empty() {
                self.opening.clear();
                return opened;
            }
        }
        Err(io::Error::from(io::ErrorKind::NotConnected).into())
    }
}

async fn open(server: Server) -> RedisResult<Connection> {
    let opened = time::timeout(CONNECT_WITHIN, connection::open(&server)).await;
    opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
