//! The targets of `fuzz/`, on their corpora and on mutations of them. libFuzzer finds more in more time; see
//! `fuzz/run`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tollkeeper::{limiter::holds::HoldKeys, store::system_clock};

use self::targets::{TARGETS, Target};
use crate::support::{dependencies, prelude::*};

#[path = "../../../fuzz/targets.rs"]
pub(crate) mod targets;

/// Mutations that are tried on one target: other ones in each run.
const MUTATIONS: usize = 5_000;

#[test]
fn every_reader_of_outside_input_keeps_its_promises_on_its_corpus_and_on_mutations_of_it() {
    let seed = system_clock().as_millis();
    thread::scope(|scope| {
        for (name, target) in TARGETS {
            let corpus = corpus(name);
            assert!(!corpus.is_empty(), "the corpus of {name}");
            assert!(root().join("fuzz/fuzz_targets").join(name).with_extension("rs").exists());
            scope.spawn(move || {
                let began = Instant::now();
                corpus.iter().for_each(|input| run(name, target, input));
                let mut random = Random(seed);
                (0..MUTATIONS).for_each(|_| run(name, target, &random.mutated(&corpus)));
                println!("{name}: {:.1?}", began.elapsed());
            });
        }
    });
}

/// How many calls commit forged tokens, eight each.
const FORGED_CALLS: usize = 60;

/// Windows of the rules of forged tokens have at most a hundred years of 365 days, and their keys expire within five minutes
/// after them, or a window later. Records of holds live for a week, from a clock that may be ahead by a day.
const WINDOW_MS_MAX: i64 = 2 * 100 * 365 * 86_400_000 + 300_000;
const RECORD_MS_MAX: i64 = 8 * 86_400_000;

#[tokio::test]
async fn tokens_with_forged_fields_harm_no_other_call_and_leave_no_key_beyond_what_rules_allow() {
    let redis = Redis::start();
    let (store, folder) = (redis.url(), tempfile::TempDir::new().unwrap());
    let file = folder.path().join("keys");
    fs::write(&file, targets::SECRET).unwrap();
    let flags = ["--hold-key-file", file.to_str().unwrap()];
    let service = Service::shop().on(&store).flags(&flags).start();
    let keys = HoldKeys::new([targets::SECRET.as_bytes()].into_iter());
    let now = system_clock();
    // Another one in each run.
    let seed = now.as_millis();
    let (mut random, mut read) = (Random(seed), 0);
    for _ in 0..FORGED_CALLS {
        let mut descriptors = Vec::new();
        for _ in 0..8 {
            let input: Vec<u8> = (0..400).map(|_| random.next() as u8).collect();
            let token = keys.sealed(targets::forged(&input, now)).unwrap_or_default();
            read += usize::from(keys.read(token.as_bytes(), now).is_some());
            let used = random.below(9).to_string();
            descriptors.push(descriptor(&[("hold.commit", &token), ("hold.used", &used)]));
        }
        // The call itself may fail.
        drop(service.ask(request("d", descriptors)).await);
        let good = service.ask(shop("work=good")).await;
        assert!(good.is_ok(), "{good:?} with seed {seed}");
    }
    assert!(read > 10, "hardly any forged token is committed: {read} with seed {seed}");
    redis.assert_no_key_leaks();
    for key in redis.keys() {
        let lives_ms: i64 = redis.query(&["PTTL", &key]);
        let most = if key.starts_with("tk1:hr:") { RECORD_MS_MAX } else { WINDOW_MS_MAX };
        assert!(lives_ms <= most, "{key} lives for {lives_ms} ms with seed {seed}");
    }
}

/// A stale lock file stops `fuzz/run` before it builds.
#[test]
fn the_fuzz_targets_lock_the_dependencies_of_the_program_in_its_versions() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let (lock, of_targets) = (read("Cargo.lock"), read("fuzz/Cargo.lock"));
    for name in dependencies(&["", "build-"]) {
        let package = format!("name = \"{name}\"\nversion = ");
        let versions = |lock: &str| {
            let found =
                lock.split("[[package]]\n").filter_map(|block| block.strip_prefix(&package));
            found.map(|block| block.lines().next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // Tests may need another version beside ours.
        let (all, ours) = (versions(&lock), versions(&of_targets));
        assert!(
            !ours.is_empty(),
            "{name}: copy Cargo.lock to fuzz/, and run `cargo metadata` there"
        );
        assert!(ours.iter().all(|version| all.contains(version)), "{name}: {ours:?}, not {all:?}");
    }
}

/// The inputs of a target, a line each, as [`run`] shows them.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let file = root().join("fuzz/corpus").join(name).with_extension("txt");
    fs::read_to_string(file).unwrap().lines().map(unescaped).collect()
}

fn unescaped(line: &str) -> Vec<u8> {
    let (mut input, mut rest) = (Vec::new(), line);
    while let Some((before, escape)) = rest.split_once('\\') {
        let is_hex = escape.starts_with('x');
        let (code, after) = escape.split_at(if is_hex { 3 } else { 1 });
        input.extend(before.bytes());
        input.push(match code {
            "n" => b'\n',
            "r" => b'\r',
            "t" => b'\t',
            _ if is_hex => u8::from_str_radix(&code[1..], 16).unwrap(),
            other => other.as_bytes()[0],
        });
        rest = after;
    }
    input.extend(rest.bytes());
    input
}

/// A failure shows the input, as text that Rust reads.
fn run(name: &str, target: Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        eprintln!("{name} fails on b\"{}\"", input.escape_ascii());
        resume_unwind(panic);
    }
}

/// SplitMix64. <https://prng.di.unimi.it/splitmix64.c>
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// An input of the corpus after a few changes: of a byte, or of a part that is taken out, repeated, or
    /// taken from another input.
    fn mutated(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            let at = self.below(input.len() + 1);
            let end = at + self.below((input.len() - at).min(32) + 1);
            let part = match self.below(5) {
                0 => vec![],
                1 => [&input[at..end], &input[at..end]].concat(),
                2 => vec![self.next() as u8],
                3 => b"\x00\x7f\x80\xff{}[]\"':-*%=,\r\n"[self.below(18)..].to_vec(),
                _ => {
                    let other = &corpus[self.below(corpus.len())];
                    let from = self.below(other.len() + 1);
                    other[from..from + self.below(other.len() - from + 1)].to_vec()
                }
            };
            input.splice(at..end, part);
        }
        input
    }
}
