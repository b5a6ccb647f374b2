//! One connection to Redis, which knows whether it may be used again.

use std::{io, mem};

use bytes::{Buf as _, BytesMut};
use futures_util::FutureExt as _;
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, Pipeline, RedisError,
    RedisFuture, RedisResult, Value, aio::ConnectionLike,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use super::resp;

/// What a batch's reply takes, and more.
const READ_AT_ONCE: usize = 4096;

/// Bytes to and from a server: TCP, or another transport.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection that one task has to itself.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    stream: S,
    received: BytesMut,
    usable: bool,
}

/// Connects over TCP, and logs in where the settings say so.
///
/// # Errors
/// Those of Redis and of the network.
pub(super) async fn open(server: &ConnectionInfo) -> RedisResult<Connection> {
    let ConnectionAddr::Tcp(host, port) = server.addr() else {
        return Err((ErrorKind::InvalidClientConfig, "not a host and port").into());
    };
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    // A command is one small packet, and must not wait for the acknowledgement of another.
    stream.set_nodelay(true)?;
    let mut connection = Connection::new(stream);
    connection.log_in(server).await?;
    Ok(connection)
}

impl<S: Stream> Connection<S> {
    fn new(stream: S) -> Self {
        Self { stream, received: BytesMut::new(), usable: true }
    }

    async fn log_in(&mut self, server: &ConnectionInfo) -> RedisResult<()> {
        let settings = server.redis_settings();
        if let Some(password) = settings.password() {
            let mut login = redis::cmd("AUTH");
            if let Some(name) = settings.username() {
                login.arg(name);
            }
            self.query::<()>(login.arg(password)).await.map_err(refused)?;
        }
        if settings.db() != 0 {
            self.query::<()>(redis::cmd("SELECT").arg(settings.db())).await?;
        }
        Ok(())
    }

    /// Whether it may be used again, as its commands have ended.
    pub(super) const fn is_usable(&self) -> bool {
        self.usable
    }

    /// Sees to it that it is not used again.
    pub(super) const fn retire(&mut self) {
        self.usable = false;
    }

    /// Whether the server has closed it, or has sent something without being asked.
    pub(super) fn is_closed(&mut self) -> bool {
        self.stream.read(&mut [0]).now_or_never().is_some()
    }

    /// Sends encoded commands, and reads this number of replies, each by `read`; where the
    /// network fails, that is what the missing ones are. If this is dropped half-way, or the server's
    /// state is in doubt, the connection will not be used again.
    pub(super) async fn exchange<T>(
        &mut self,
        commands: &[u8],
        replies: usize,
        read: impl Fn(&[u8]) -> RedisResult<T>,
    ) -> Vec<RedisResult<T>> {
        let was_usable = mem::replace(&mut self.usable, false);
        let mut answers = Vec::with_capacity(replies);
        let failure = match self.stream.write_all(commands).await {
            Ok(()) => self.read(replies, read, &mut answers).await.err(),
            Err(error) => Some(error.into()),
        };
        if let Some(failure) = failure {
            answers.resize_with(replies, || Err(failure.clone()));
        } else {
            let is_in_step = self.received.is_empty();
            let is_harmless =
                answers.iter().filter_map(|answer| answer.as_ref().err()).all(is_harmless);
            self.usable = was_usable && is_in_step && is_harmless;
        }
        answers
    }

    async fn read<T>(
        &mut self,
        replies: usize,
        read: impl Fn(&[u8]) -> RedisResult<T>,
        answers: &mut Vec<RedisResult<T>>,
    ) -> RedisResult<()> {
        while answers.len() < replies {
            if let Some(length) = resp::reply_length(&self.received)? {
                answers.push(read(self.received.get(..length).unwrap_or_default()));
                self.received.advance(length);
                continue;
            }
            self.received.reserve(READ_AT_ONCE);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }

    /// Sends one command and reads its answer, with the same care.
    ///
    /// # Errors
    /// Those of Redis and of the network.
    pub async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let answers = self.exchange(&command.get_packed_command(), 1, resp::value).await;
        answers.into_iter().next().unwrap_or_else(|| Err(io::Error::other("no answer").into()))
    }

    /// Runs several commands in a row; an error of one is among the answers. `None` if it is a
    /// transaction that did not run, because a watched key has changed.
    ///
    /// # Errors
    /// Those of the network, and of Redis where it ran none of them; a server that refuses the commands
    /// of a transaction leaves the connection as it was.
    pub(super) async fn pipeline(
        &mut self,
        commands: &Pipeline,
    ) -> RedisResult<Option<Vec<Value>>> {
        let answers = commands.query_async(self).await;
        if let Err(error) = &answers
            && !is_harmless(error)
        {
            self.retire();
        }
        answers
    }
}

/// Whether an error says nothing about the connection and the server's role: the next command may succeed.
/// Other errors are not Redis's answers, or come from a server that may have been replaced by now.
fn is_harmless(error: &RedisError) -> bool {
    match error.code() {
        None | Some("READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH") => false,
        // Older servers wrap an error inside of a script into the text of another one.
        Some(_) => !error.detail().is_some_and(|detail| detail.contains("-READONLY")),
    }
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
impl<S: Stream> ConnectionLike for Connection<S> {
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
            let replies = self.exchange(&commands, offset + count, redis::parse_redis_value).await;
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
