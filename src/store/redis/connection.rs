//! One connection to Redis, which knows whether it may be used again.

use std::io;

use bytes::{Buf as _, BytesMut};
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, Pipeline, RedisError,
    RedisFuture, RedisResult, ServerErrorKind, Value, aio::ConnectionLike,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::resp;

/// A connection that one task holds for itself.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: BytesMut,
    usable: bool,
}

impl Connection {
    /// Connects, and logs in where the settings say so.
    ///
    /// # Errors
    /// Those of Redis and of the network.
    pub(super) async fn open(server: &ConnectionInfo) -> RedisResult<Self> {
        let ConnectionAddr::Tcp(host, port) = server.addr() else {
            return Err((ErrorKind::InvalidClientConfig, "not a host and port").into());
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        // A command is one small packet, and must not wait for the acknowledgement of another.
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, received: BytesMut::new(), usable: true };
        let settings = server.redis_settings();
        if let Some(password) = settings.password() {
            let mut login = redis::cmd("AUTH");
            if let Some(name) = settings.username() {
                login.arg(name);
            }
            connection.query::<()>(login.arg(password)).await.map_err(refused)?;
        }
        if settings.db() != 0 {
            connection.query::<()>(redis::cmd("SELECT").arg(settings.db())).await?;
        }
        Ok(connection)
    }

    /// Whether it may be used again, as its last commands ended.
    pub(super) fn is_usable(&self) -> bool {
        self.usable
    }

    /// Whether the server has closed it, or says what nobody asked.
    pub(super) fn is_closed(&self) -> bool {
        let silent = self.stream.try_read(&mut [0]);
        !silent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends commands that are written already, and reads so many replies, each by `read`. If this is
    /// dropped half-way, or the server's state is in doubt, the connection will not be used again.
    ///
    /// # Errors
    /// Those of the network; those of Redis are among the replies.
    pub(super) async fn exchange<T>(
        &mut self,
        commands: &[u8],
        replies: usize,
        read: impl Fn(&[u8]) -> RedisResult<T>,
    ) -> RedisResult<Vec<RedisResult<T>>> {
        self.usable = false;
        self.stream.write_all(commands).await?;
        let mut read_all = Vec::with_capacity(replies);
        while read_all.len() < replies {
            match resp::reply_length(&self.received)? {
                Some(length) => {
                    read_all.push(read(self.received.get(..length).unwrap_or_default()));
                    self.received.advance(length);
                }
                None if self.stream.read_buf(&mut self.received).await? > 0 => {}
                None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
        }
        self.usable = read_all.iter().all(|reply| reply.as_ref().err().is_none_or(is_harmless));
        Ok(read_all)
    }

    /// Sends one command and reads its answer, with the same care.
    ///
    /// # Errors
    /// Those of Redis and of the network.
    pub async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let command = command.get_packed_command();
        let mut replies = self.exchange(&command, 1, resp::value).await?;
        replies.pop().unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()))
    }

    /// The same for several commands in a row; an error of one is among the answers. `None` if it is
    /// a transaction that was not run, because a key that was watched has changed.
    ///
    /// # Errors
    /// Those of the network, and of Redis where it ran none of them.
    pub async fn transaction(&mut self, commands: &Pipeline) -> RedisResult<Option<Vec<Value>>> {
        let answer = commands.query_async(self).await;
        self.usable = answer.is_ok();
        answer
    }
}

/// What says nothing about the connection or the server's state.
fn is_harmless(error: &RedisError) -> bool {
    use ServerErrorKind::{NoPerm, NoScript, ResponseError};
    matches!(error.kind(), ErrorKind::Server(NoScript | ResponseError | NoPerm))
}

/// A refused login, in words that name it; the server's own may tell more than we want to log.
fn refused(error: RedisError) -> RedisError {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            (ErrorKind::AuthenticationFailed, "the server refused the login").into()
        }
        _ => error,
    }
}

/// What [`Pipeline`] needs to run its commands here.
impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.query(command))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let commands = pipeline.get_packed_pipeline();
            let replies =
                self.exchange(&commands, offset + count, redis::parse_redis_value).await?;
            let mut replies = replies.into_iter().collect::<RedisResult<Vec<Value>>>()?;
            let answers = replies.split_off(offset);
            // Of a transaction's first part only its refusal is of interest.
            replies.into_iter().try_for_each(|reply| reply.extract_error().map(drop))?;
            Ok(answers)
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}
