//! A connection to a simulated server, as the crate `redis` knows connections.

use redis::{ConnectionLike, RedisResult, Value};

use super::{
    reply::{Reply, parse_command},
    server::{Server, Session},
};

/// A server of its own, and the one connection to it.
pub struct Client {
    pub server: Server,
    session: Session,
}

impl Client {
    pub fn new(server: Server) -> Self {
        Self { server, session: Session::default() }
    }

    fn answers(&mut self, mut commands: &[u8]) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some((command, length)) = parse_command(commands) {
            replies.push(self.server.answer(&mut self.session, &command));
            commands = &commands[length..];
        }
        replies
    }
}

impl ConnectionLike for Client {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        Ok(self.req_packed_commands(command, 0, 1)?.remove(0))
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let replies = self.answers(commands).into_iter().skip(offset).take(count);
        let value = |reply: Reply| {
            let mut bytes = Vec::new();
            reply.write(&mut bytes);
            redis::parse_redis_value(&bytes)
        };
        replies.map(value).collect()
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}
