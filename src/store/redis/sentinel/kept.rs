//! A connection that is kept between questions that are asked now and then.

use std::{io, time::Duration};

use redis::{Cmd, FromRedisValue, RedisResult};
use tokio::time;

use crate::store::redis::{
    connection::{self, Connection},
    server::Server,
};

pub(super) struct KeptConnection {
    server: Server,
    kept: Option<Connection>,
}

impl KeptConnection {
    pub(super) const fn new(server: Server) -> Self {
        Self { server, kept: None }
    }

    /// Sends a command, after connecting if need be.
    pub(super) async fn query<T: FromRedisValue>(
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
            None => connection::open(&self.server).await?,
        };
        let answer = connection.query(command).await;
        if connection.is_usable() {
            self.kept = Some(connection);
        }
        answer
    }
}
