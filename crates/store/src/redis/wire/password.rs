//! Passwords of Redis and of Sentinels. One in a file may change; while the file has none, the last good one stays.

use std::{fmt, fs, path::PathBuf, sync::Arc};

use parking_lot::Mutex;

#[derive(Clone)]
pub enum Password {
    Text(String),
    /// A file, which is read at each connection: passwords that are tokens expire.
    File(Arc<PasswordFile>),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(file) => file.fmt(f),
        }
    }
}

impl Password {
    pub fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(file) => file.read(),
        }
    }

    /// Notes that a server has accepted this password.
    pub(crate) fn accepted(&self, password: String) {
        if let Self::File(file) = self {
            let mut state = file.state.lock();
            if state.refused.as_ref() == Some(&password) {
                (state.refused, state.problem) = (None, None);
            }
            state.good.retain(|good| *good != password);
            state.good.insert(0, password);
            state.good.truncate(GOOD_MAX);
        }
    }

    /// The good passwords that a server may accept which has refused `refused`.
    pub(crate) fn others(&self, refused: &str) -> Vec<String> {
        let Self::File(file) = self else { return Vec::new() };
        file.state.lock().good.iter().filter(|good| *good != refused).cloned().collect()
    }

    /// Notes that a server refuses the password in the file, and accepts another one.
    pub(crate) fn refused(&self, password: String) {
        if let Self::File(file) = self {
            let mut state = file.state.lock();
            state.refused = Some(password);
            let problem = format!("{}: a server refuses the password in it", file.path.display());
            file.note(&mut state, problem);
        }
    }
}

/// A file that holds a password, and the last good ones.
pub struct PasswordFile {
    /// The flag that names the file, for log lines.
    flag: &'static str,
    path: PathBuf,
    state: Mutex<PasswordState>,
}

/// How many good passwords are known: while servers change theirs one after the other, some accept either.
const GOOD_MAX: usize = 2;

#[derive(Default)]
struct PasswordState {
    /// The last that servers have accepted, the latest first; until then the first that was read.
    good: Vec<String>,
    /// What the file had when a server refused it that accepts a good one.
    refused: Option<String>,
    /// Why the password in the file is not in use, as it was logged.
    problem: Option<String>,
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl PasswordFile {
    /// The file that the flag `flag` (without its dashes) names. It is not read yet.
    pub fn new(flag: &'static str, path: PathBuf) -> Self {
        Self { flag, path, state: Mutex::default() }
    }

    /// The password in the file. If the file is missing or empty, that is logged once, and the last good password is
    /// returned.
    pub fn read(&self) -> Result<String, String> {
        let read = self.read_file();
        let mut state = self.state.lock();
        match read {
            Ok(password) => {
                if state.refused.as_ref() != Some(&password) {
                    state.problem = None;
                }
                if state.good.is_empty() {
                    state.good.push(password.clone());
                }
                Ok(password)
            }
            Err(problem) => {
                let Some(good) = state.good.first().cloned() else { return Err(problem) };
                self.note(&mut state, problem);
                Ok(good)
            }
        }
    }

    fn note(&self, state: &mut PasswordState, problem: String) {
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!("--{}: {problem}; the last good password stays in use", self.flag);
            state.problem = Some(problem);
        }
    }

    /// Reads the file again, and returns whether its password was not refused.
    pub fn renew(&self) -> bool {
        drop(self.read());
        self.state.lock().problem.is_none()
    }

    fn read_file(&self) -> Result<String, String> {
        let problem = |what: &str| format!("{}: {what}", self.path.display());
        let text = fs::read_to_string(&self.path).map_err(|error| problem(&error.to_string()))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(problem("the file is empty")),
            password => Ok(password.to_owned()),
        }
    }
}
