//! Calls that go to Redis together: one script run for those on fixed windows, and one for the others,
//! in one write.

use redis::RedisResult;

use super::{
    connection::Connection,
    resp,
    script::{Answer, Call, Script, Scripts, another_form, fixed, is_unknown_script, read},
};
use crate::{
    engine::{ledger::Charge, time::Timestamp},
    telemetry::StoreMetrics,
};

/// The most weight of one batch. Such a run keeps Redis for less than 0.3 ms.
pub(super) const WEIGHT_MAX: usize = fixed::KEYS_MAX;

/// What a charge for the ledger weighs; one on a fixed window weighs 1.
const LEDGER_WEIGHT: usize = 6;

/// How long a call keeps Redis, relative to others.
pub(super) fn weight(charges: &[Charge]) -> usize {
    match Decider::of(charges) {
        Decider::Fixed => charges.len(),
        Decider::Ledger => LEDGER_WEIGHT * charges.len(),
    }
}

/// Calls in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Batch {
    fixed: fixed::Run,
    ledger: Call,
    /// How many charges each call for the ledger has.
    of_ledger: Vec<usize>,
    /// Who decides each call.
    deciders: Vec<Decider>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decider {
    Fixed,
    Ledger,
}

impl Decider {
    fn of(charges: &[Charge]) -> Self {
        if fixed::takes(charges) { Self::Fixed } else { Self::Ledger }
    }
}

impl Batch {
    /// Adds a call in the windows of `stamp`, on keys that begin with `key_prefix`. All calls together
    /// must not weigh more than [`WEIGHT_MAX`], except for one alone.
    pub(super) fn add(&mut self, charges: &[Charge], stamp: Timestamp, key_prefix: &str) {
        let decider = Decider::of(charges);
        match decider {
            Decider::Fixed => self.fixed.add(charges, stamp, key_prefix),
            Decider::Ledger => {
                self.ledger.add(charges, stamp);
                self.of_ledger.push(charges.len());
            }
        }
        self.deciders.push(decider);
    }

    /// Sends it, and reads what became of each call; and Redis's time, where a script told it.
    ///
    /// # Errors
    /// Those of the network: nobody knows then what was charged.
    pub(super) async fn ask(
        mut self,
        connection: &mut Connection,
        scripts: &Scripts,
        metrics: &StoreMetrics,
    ) -> RedisResult<(Option<Timestamp>, Vec<RedisResult<Answer>>)> {
        self.ledger = std::mem::take(&mut self.ledger).under(&scripts.key_prefix);
        let mut questions = Vec::with_capacity(2);
        if !self.fixed.is_empty() {
            questions.push((Decider::Fixed, &scripts.fixed));
        }
        if !self.of_ledger.is_empty() {
            questions.push((Decider::Ledger, &scripts.ledger));
        }

        let mut command = Vec::with_capacity(4096);
        for (decider, Script { hash, .. }) in &questions {
            self.write(*decider, &mut command, "EVALSHA", hash);
        }
        let exchanged = connection.exchange(&command, questions.len(), resp::integers);
        let mut replies = metrics.measure("EVALSHA", exchanged).await?;
        for ((decider, Script { source, .. }), reply) in questions.iter().zip(&mut replies) {
            if reply.as_ref().is_err_and(is_unknown_script) {
                command.clear();
                self.write(*decider, &mut command, "EVAL", source);
                let exchanged = connection.exchange(&command, 1, resp::integers);
                let mut again = metrics.measure("EVAL", exchanged).await?;
                *reply = again.pop().unwrap_or_else(|| Err(another_form()));
            }
        }

        let mut now = None;
        let mut answers = |decider: Decider| {
            let asked = questions.iter().zip(&replies).find(|((it, _), _)| *it == decider);
            let (_, reply) = asked?;
            Some(reply.as_ref().map_err(Clone::clone).and_then(|reply| {
                let read = match decider {
                    Decider::Fixed => self.fixed.read(reply),
                    Decider::Ledger => read(reply, &self.of_ledger),
                };
                let (told, answers) = read.ok_or_else(another_form)?;
                now = Some(told);
                Ok(answers.into_iter())
            }))
        };
        let (mut fixed, mut ledger) = (answers(Decider::Fixed), answers(Decider::Ledger));
        let answer = |decider: &Decider| {
            let answers = match decider {
                Decider::Fixed => &mut fixed,
                Decider::Ledger => &mut ledger,
            };
            match answers {
                Some(Ok(answers)) => answers.next().ok_or_else(another_form),
                Some(Err(error)) => Err(error.clone()),
                None => Err(another_form()),
            }
        };
        let answers = self.deciders.iter().map(answer).collect();
        Ok((now, answers))
    }

    fn write(&self, decider: Decider, command: &mut Vec<u8>, verb: &str, script: &str) {
        match decider {
            Decider::Fixed => self.fixed.write(command, verb, script),
            Decider::Ledger => self.ledger.command(verb, script).write_packed_command(command),
        }
    }
}
