//! One connection to Redis, which knows whether it may be used again.

use std::{fmt, io, mem, time::Duration};

use bytes::{Buf as _, BytesMut};
use futures_util::FutureExt as _;
use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    aio::ConnectionLike,
    io::tcp::socket2::{SockRef, TcpKeepalive},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::{self, Instant},
};
use tollkeeper_base::{
    net::tls::{ByteStream, in_words},
    process::pause,
};

use super::{
    endpoint::{Access, AclUser, Address, Server},
    password::Password,
    resp,
};

/// What a batch's reply takes, and more.
const READ_AT_ONCE: usize = 4096;

/// How long sent bytes may stay unacknowledged before the connection fails. The kernel's own limit is a quarter
/// of an hour.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// How long opening a connection may take, also if a packet of the handshake is lost. It belongs to no call, and
/// continues when those that wait have given up.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// How long a connection is idle before the kernel checks whether the server is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);

/// The longest time until a refused password is read again. It differs from connection to connection.
const LOGIN_AGAIN: Duration = Duration::from_millis(100);

/// A connection that one task has to itself.
pub(crate) struct Connection {
    stream: Box<dyn ByteStream>,
    received: BytesMut,
    usable: bool,
    /// How often its pool had discarded all connections when it was known to answer.
    pub(crate) discards: u64,
    pub(crate) replace_at: Instant,
    /// When it was last known to answer.
    pub(crate) answered_at: Instant,
}

/// What was received may be a secret.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("usable", &self.usable).finish_non_exhaustive()
    }
}

/// Connects, and logs in if the settings have a login. The caller bounds the time that it takes.
pub(crate) async fn open(server: &Server) -> RedisResult<Connection> {
    let mut connection = Connection::new(connect(server).await?);
    connection.log_in(&server.access).await?;
    Ok(connection)
}

async fn connect(server: &Server) -> io::Result<Box<dyn ByteStream>> {
    if let Some(dial) = &server.access.dial {
        return dial.open(&server.address).await;
    }
    let (host, port) = match &server.address {
        Address::Tcp { host, port } => (host.as_str(), *port),
        Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
    };
    let stream = connect_tcp(host, port).await?;
    match &server.access.tls {
        Some(tls) => {
            let name = server.certificate_name.as_deref().unwrap_or(host);
            Ok(Box::new(tls.connect(name, stream).await?))
        }
        None => Ok(Box::new(stream)),
    }
}

async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // A command is one small packet, and must not wait for the acknowledgement of another.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(UNACKNOWLEDGED_MAX),
    )?;
    Ok(stream)
}

impl Connection {
    fn new(stream: Box<dyn ByteStream>) -> Self {
        let (replace_at, answered_at) = (Instant::now(), Instant::now());
        let received = BytesMut::new();
        Self { stream, received, usable: true, discards: 0, replace_at, answered_at }
    }

    async fn log_in(&mut self, access: &Access) -> RedisResult<()> {
        if access.user.is_some() || access.password.is_some() {
            let user = access.user.as_ref().map(AclUser::name);
            let mut password = read(access.password.as_ref())?;
            let mut answer = self.authenticate(user, &password).await;
            if let (Err(error), Some(file @ Password::File(_))) = (&answer, &access.password)
                && error.code().is_some()
            {
                // The password and the file change one after the other, in either order.
                for other in file.others(&password) {
                    answer = self.authenticate(user, &other).await;
                    if answer.is_ok() {
                        file.refused(mem::replace(&mut password, other));
                        break;
                    }
                }
                if answer.is_err() {
                    time::sleep(pause::between(Duration::ZERO, LOGIN_AGAIN)).await;
                    password = read(Some(file))?;
                    answer = self.authenticate(user, &password).await;
                }
            }
            answer.map_err(|error| refused(error, access))?;
            if let Some(known) = &access.password {
                known.accepted(password);
            }
        } else {
            self.check_no_login_required().await?;
        }
        if access.database != 0 {
            self.query::<()>(redis::cmd("SELECT").arg(access.database)).await?;
        }
        Ok(())
    }

    /// Fails if the server requires a login. A short command shows it, since Redis 7 closes the connection of a client that
    /// has not logged in and sends more than ten arguments. Other refusals are for the checks to explain.
    async fn check_no_login_required(&mut self) -> RedisResult<()> {
        match self.query::<()>(&redis::cmd("PING")).await {
            Err(error) if error.code().is_none_or(|code| code == "NOAUTH") => Err(error),
            _ => Ok(()),
        }
    }

    async fn authenticate(&mut self, user: Option<&str>, password: &str) -> RedisResult<()> {
        let mut login = redis::cmd("AUTH");
        if let Some(user) = user {
            login.arg(user);
        }
        self.query(login.arg(password)).await
    }

    /// Whether it may be used again, as its commands have ended.
    pub(crate) const fn is_usable(&self) -> bool {
        self.usable
    }

    /// Sees to it that it is not used again.
    pub(crate) const fn retire(&mut self) {
        self.usable = false;
    }

    /// Whether the server has closed it, or has sent something without a request.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.stream.read(&mut [0]).now_or_never().is_some()
    }

    /// Sends encoded commands, and reads this number of replies, each by `read`; where the
    /// network fails, that is what the missing ones are. If this is dropped half-way, or the server's
    /// state is in doubt, the connection will not be used again.
    pub(crate) async fn exchange<T>(
        &mut self,
        commands: &[u8],
        replies: usize,
        read: impl FnMut(&[u8]) -> RedisResult<T>,
    ) -> Vec<RedisResult<T>> {
        let was_usable = mem::replace(&mut self.usable, false);
        let mut answers = Vec::with_capacity(replies);
        let failure = match self.send(commands).await {
            Ok(()) => self.read(replies, read, &mut answers).await.err(),
            Err(error) => Some(in_words(error).into()),
        };
        if let Some(failure) = failure {
            answers.resize_with(replies, || Err(failure.clone()));
        } else {
            let is_in_step = self.received.is_empty();
            let is_harmless =
                answers.iter().filter_map(|answer| answer.as_ref().err()).all(is_harmless);
            self.usable = was_usable && is_in_step && is_harmless;
            self.answered_at = Instant::now();
        }
        answers
    }

    async fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        self.stream.write_all(commands).await?;
        // TLS may hold back what was written.
        self.stream.flush().await
    }

    async fn read<T>(
        &mut self,
        replies: usize,
        mut read: impl FnMut(&[u8]) -> RedisResult<T>,
        answers: &mut Vec<RedisResult<T>>,
    ) -> RedisResult<()> {
        while answers.len() < replies {
            if let Some(length) = resp::reply_length(&self.received)? {
                answers.push(read(self.received.get(..length).unwrap_or_default()));
                self.received.advance(length);
                continue;
            }
            self.received.reserve(READ_AT_ONCE);
            if self.stream.read_buf(&mut self.received).await.map_err(in_words)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }

    /// Sends one command and reads its answer, with the same care.
    pub(crate) async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        self.one(&command.get_packed_command()).await
    }

    /// Reads what the server sends without a request, as after SUBSCRIBE.
    pub(crate) async fn next_reply<T: FromRedisValue>(&mut self) -> RedisResult<T> {
        self.one(&[]).await
    }

    async fn one<T: FromRedisValue>(&mut self, command: &[u8]) -> RedisResult<T> {
        let answers = self.exchange(command, 1, resp::value).await;
        answers.into_iter().next().unwrap_or_else(|| Err(io::Error::other("no answer").into()))
    }

    /// Runs several commands in a row; an error of one is among the answers. `None` if it is a
    /// transaction that did not run, because a watched key has changed.
    ///
    /// # Errors
    /// Errors of the network, and of Redis where it ran none of them; a server that refuses the commands
    /// of a transaction leaves the connection as it was.
    pub(crate) async fn pipeline(
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

/// Whether an error does not concern the connection and the server's role: the next command may succeed.
/// Other errors are not Redis's answers, or come from a server that may have been replaced by now.
fn is_harmless(error: &RedisError) -> bool {
    match error.code() {
        None | Some("READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH") => false,
        // Older servers wrap an error inside of a script into the text of another one.
        Some(_) => !error.detail().is_some_and(|detail| detail.contains("-READONLY")),
    }
}

/// The password that is sent. A user without one may still log in if the server requires none.
fn read(password: Option<&Password>) -> RedisResult<String> {
    let Some(password) = password else { return Ok(String::new()) };
    password.read().map_err(|problem| io::Error::other(problem).into())
}

/// A refused login, in a sentence that names it; the server's text may reveal more than we want to log.
fn refused(error: RedisError, access: &Access) -> RedisError {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let login = format!("login refused for {}", access.user_in_words());
            (ErrorKind::AuthenticationFailed, "the server refused the login", login).into()
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

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use tokio::net::TcpListener;

    use super::*;
    use crate::redis::wire::password::PasswordFile;

    #[tokio::test]
    async fn a_server_that_is_gone_is_noticed_by_the_kernel() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let stream = connect_tcp("127.0.0.1", listener.local_addr()?.port()).await?;
        let socket = SockRef::from(&stream);
        assert!(socket.tcp_nodelay()?);
        assert_eq!(socket.tcp_user_timeout()?, Some(UNACKNOWLEDGED_MAX));
        assert!(socket.keepalive()?);
        assert_eq!(socket.tcp_keepalive_time()?, KEEPALIVE_AFTER);
        assert_eq!(socket.tcp_keepalive_interval()?, UNACKNOWLEDGED_MAX);
        Ok(())
    }

    /// The server replaces the password and the file, in this order, before it refuses the old password.
    #[tokio::test]
    async fn a_refused_password_is_read_once_more() -> io::Result<()> {
        let folder = tempfile::TempDir::new()?;
        let file = folder.path().join("password");
        fs::write(&file, "first")?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address =
            Address::Tcp { host: "127.0.0.1".to_owned(), port: listener.local_addr()?.port() };
        let password = Password::File(Arc::new(PasswordFile::new("flag", file.clone())));
        let access = Access { password: Some(password), ..Access::default() };
        let server = Server::new(address, Arc::new(access));
        let refuse = async {
            let (stream, _) = listener.accept().await?;
            let mut client = Connection::new(Box::new(stream));
            let mut passwords = Vec::new();
            for answer in ["-WRONGPASS no\r\n", "+OK\r\n"] {
                client.stream.read_buf(&mut client.received).await?;
                passwords.push(client.received.split());
                fs::write(&file, "second")?;
                client.send(answer.as_bytes()).await?;
            }
            io::Result::Ok(passwords)
        };
        let (passwords, opened) = tokio::join!(refuse, open(&server));
        opened.expect("the second password is right");
        let login = |password| redis::cmd("AUTH").arg(password).get_packed_command();
        assert_eq!(passwords?, [login("first"), login("second")]);
        Ok(())
    }
}
