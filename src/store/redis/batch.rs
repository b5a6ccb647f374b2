//! Calls that go to Redis together: one script run for those on fixed windows, and one for the others,
//! in one write.

use redis::RedisResult;

use super::{
    connection::Connection,
    resp,
    script::{Answer, Question, Script, Scripts, another_form, fixed, is_unknown_script, ledger},
};
use crate::{
    engine::{ledger::Charge, time::Timestamp},
    telemetry::StoreMetrics,
};

/// The most weight of one batch. Such a run keeps Redis for less than 0.3 ms.
pub(super) const WEIGHT_MAX: usize = fixed::KEYS_MAX;

/// What a charge for the ledger weighs, by how long it keeps Redis; one on a fixed window weighs 1.
const LEDGER_WEIGHT: usize = 6;

/// Calls in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Batch {
    fixed: fixed::Run,
    ledger: ledger::Run,
    /// Who decides each call.
    deciders: Vec<Decider>,
}

/// The script that decides a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decider {
    Fixed,
    Ledger,
}

impl Decider {
    pub(super) fn of(charges: &[Charge]) -> Self {
        if fixed::takes(charges) { Self::Fixed } else { Self::Ledger }
    }

    /// How long a call keeps Redis, relative to others.
    pub(super) fn weight(self, charges: &[Charge]) -> usize {
        match self {
            Self::Fixed => charges.len(),
            Self::Ledger => LEDGER_WEIGHT * charges.len(),
        }
    }
}

impl Batch {
    /// Adds a call in the windows of `stamp`, on keys that begin with `key_prefix`. All calls together
    /// must not weigh more than [`WEIGHT_MAX`], except for one alone.
    pub(super) fn add(
        &mut self,
        decider: Decider,
        charges: &[Charge],
        stamp: Timestamp,
        key_prefix: &str,
    ) {
        match decider {
            Decider::Fixed => self.fixed.add(charges, stamp, key_prefix),
            Decider::Ledger => self.ledger.add(charges, stamp, key_prefix),
        }
        self.deciders.push(decider);
    }

    /// Sends it, and reads what became of each call; and Redis's time, where a script told it.
    pub(super) async fn ask(
        self,
        connection: &mut Connection,
        scripts: &Scripts,
        metrics: &StoreMetrics,
    ) -> (Option<Timestamp>, Vec<RedisResult<Answer>>) {
        let questions: [(&dyn Question, &Script); 2] =
            [(&self.fixed, &scripts.fixed), (&self.ledger, &scripts.ledger)];
        let mut command = Vec::with_capacity(4096);
        let asked = questions.iter().filter(|(question, _)| !question.is_empty());
        for (question, script) in asked.clone() {
            question.command("EVALSHA", &script.hash).write_packed_command(&mut command);
        }
        let exchanged = connection.exchange(&command, asked.count(), resp::integers);
        let mut replies = metrics.measure("EVALSHA", exchanged).await.into_iter();

        let mut now = None;
        let mut answers = [Ok(Vec::new()), Ok(Vec::new())];
        for ((question, script), answers) in questions.iter().zip(&mut answers) {
            if question.is_empty() {
                continue;
            }
            let mut reply = replies.next().unwrap_or_else(|| Err(another_form()));
            if reply.as_ref().is_err_and(is_unknown_script) {
                let command = question.command("EVAL", &script.source).get_packed_command();
                let exchanged = connection.exchange(&command, 1, resp::integers);
                let again = metrics.measure("EVAL", exchanged).await.pop();
                reply = again.unwrap_or_else(|| Err(another_form()));
            }
            *answers = reply.and_then(|reply| {
                let (told, answers) = question.read(&reply).ok_or_else(another_form)?;
                now = Some(told);
                Ok(answers)
            });
        }
        (now, self.in_order(answers))
    }

    /// The answers of both questions, in the order of the calls.
    fn in_order(&self, answers: [RedisResult<Vec<Answer>>; 2]) -> Vec<RedisResult<Answer>> {
        let [mut fixed, mut ledger] = answers.map(|answers| answers.map(Vec::into_iter));
        let answer = |decider: &Decider| {
            let answers = match decider {
                Decider::Fixed => &mut fixed,
                Decider::Ledger => &mut ledger,
            };
            let answers = answers.as_mut().map_err(|error| error.clone())?;
            answers.next().ok_or_else(another_form)
        };
        self.deciders.iter().map(answer).collect()
    }
}
