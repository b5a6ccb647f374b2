//! What happens to each stream, from a seed: both ends of it know the plan by its number.

use crate::support::prelude::*;

/// How a stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// Server-sent events, with the usage in the last one.
    Streams,
    /// One JSON document.
    Answers,
    /// 503, at once.
    Fails,
    /// The model server closes the connection without an answer.
    Resets,
    /// The model server closes the connection in mid-stream.
    Breaks,
    /// The client leaves in mid-stream.
    ClientLeaves,
    /// The client leaves soon, and the answer comes late.
    ClientLeavesEarly,
}

/// A stream, before it begins.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub number: u64,
    pub course: Course,
    /// The hits that its take holds.
    pub estimate: u64,
    /// Whether the request announces them as `max_tokens`; if not, they are the default of the rule.
    pub announces: bool,
    /// Tokens of the whole answer.
    pub used: u64,
    pub lasts: Duration,
    /// How often the commit is sent beside Envoy's own, and when.
    pub repeats: [Option<Duration>; 2],
}

/// What streams use.
#[derive(Debug, Clone, Copy)]
pub enum Usage {
    Exactly(u64),
    UpTo(u64),
    /// One in ten uses anything up to its estimate, the others at most an eighth of it.
    MostlyLittle,
}

/// What all streams of a run have in common.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    pub seed: u64,
    /// The smallest and the largest estimate; the default of the rule is half-way between them.
    pub estimates: (u64, u64),
    pub used: Usage,
    /// Longest time from the first event to the last.
    pub lasts: Duration,
    /// Whether clients leave in mid-stream and the model server fails.
    pub troubled: bool,
    /// Whether clients also leave before they have an answer: what their takes charged is not known to anybody else.
    pub impatient: bool,
}

impl Schedule {
    pub fn plan(&self, number: u64) -> Plan {
        let mut dice = Dice(self.seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..8 {
            dice.below(2);
        }
        let course = match dice.below(100) {
            _ if !self.troubled => Course::Streams,
            0..60 => Course::Streams,
            60..70 => Course::Answers,
            70..76 => Course::Fails,
            76..82 => Course::Resets,
            82..88 => Course::Breaks,
            88..96 => Course::ClientLeaves,
            _ if self.impatient => Course::ClientLeavesEarly,
            _ => Course::Streams,
        };
        let (least, most) = self.estimates;
        let announces = least == most || dice.below(10) > 0;
        let estimate =
            if announces { least + dice.below(most - least + 1) } else { least.midpoint(most) };
        let used = match self.used {
            Usage::Exactly(used) => used,
            Usage::UpTo(most) => dice.below(most + 1),
            Usage::MostlyLittle if dice.below(10) > 0 => dice.below(estimate / 8 + 1),
            Usage::MostlyLittle => dice.below(estimate + 1),
        };
        let lasts = self.lasts * u32::try_from(dice.below(101)).unwrap() / 100;
        let repeats =
            [(); 2].map(|()| (dice.below(3) < 2).then(|| Duration::from_millis(dice.below(40))));
        Plan { number, course, estimate, announces, used, lasts, repeats }
    }
}
