//! A connection for occasional queries, reopened when it was closed.

use std::{io, time::Duration};

use futures_util::future::BoxFuture;
use redis::{Cmd, FromRedisValue, RedisResult};
use tokio::time;

use super::{
    connection::{self, CONNECT_WITHIN, Connection},
    endpoint::Server,
};

pub(crate) struct KeptConnection {
    server: Server,
    kept: Option<Connection>,
    /// One that is being opened: it may take longer than one query.
    opening: Option<BoxFuture<'static, RedisResult<Connection>>>,
}

impl KeptConnection {
    pub(crate) const fn new(server: Server) -> Self {
        Self { server, kept: None, opening: None }
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
            None => {
                let server = &self.server;
                let opening = self.opening.get_or_insert_with(|| Box::pin(open(server.clone())));
                let opened = opening.await;
                self.opening = None;
                opened?
            }
        };
        let answer = connection.query(command).await;
        if connection.is_usable() {
            self.kept = Some(connection);
        }
        answer
    }
}

async fn open(server: Server) -> RedisResult<Connection> {
    let opened = time::timeout(CONNECT_WITHIN, connection::open(&server)).await;
    opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
